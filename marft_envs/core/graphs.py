"""The graph behind a static D: its layers, whom an action depends on, and what cannot be one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from marft_envs.core.types import AgentSpec
from marft_envs.errors import DependencyError


def topological(agents: Sequence[str], preds: Mapping[str, Collection[str]]) -> tuple[list[list[str]], list[str]]:
    """Returns Kahn's layers in canonical order, and the agents that a cycle keeps waiting."""
    left, done = list(agents), set[str]()
    layers: list[list[str]] = []
    while left:
        ready = [name for name in left if all(p in done for p in preds[name])]
        if not ready:
            return layers, left
        layers.append(ready)
        done.update(ready)
        left = [name for name in left if name not in done]
    return layers, []


def ancestors(agents: Sequence[str], preds: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Returns all whom an agent's action depends on, itself among them if it is in a cycle."""

    def walk(start: str) -> set[str]:
        seen: set[str] = set()
        stack = list(preds[start])
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack.extend(preds[node])
        return seen

    return {name: walk(name) for name in agents}


def refuse_edges(value: Any) -> None:
    """Raises a :class:`DependencyError` for pairs of names, which are a graph library's edges and might be layers."""
    pairs = list(value) if isinstance(value, Mapping | Sequence | Set) else []
    if not pairs or any(not isinstance(pair, tuple) or list(map(type, pair)) != [str, str] for pair in pairs):
        return
    sees = {name: [seen for seen, other in pairs if other == name] for _, name in pairs}
    raise DependencyError(
        f"D got the pairs {pairs}, which may be edges or layers. For edges (seen, who sees) write a mapping from the "
        f"agent who sees to those whom it sees: {sees}. For layers, which act one after the other, write lists: "
        f"{list(map(list, pairs))}."
    )


def check_answer(agents: Sequence[AgentSpec], acting: frozenset[str] | None) -> None:
    """Raises a :class:`DependencyError` where D lets no agent act whose action is the team's answer."""
    answerers = [agent.name for agent in agents if agent.with_answer]
    if acting is not None and answerers and acting.isdisjoint(answerers):
        raise DependencyError(
            f"Under this D {', '.join(sorted(acting)) or 'nobody'} acts, and {' or '.join(answerers)} would answer:"
            f" no episode has an answer. Let D name {answerers[-1]}, too, or give with_answer=True to one who acts."
        )
