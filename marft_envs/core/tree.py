"""A dependency function for teams that read side by side and join what they found, a few notes at a time."""

from __future__ import annotations

from collections.abc import Sequence

from marft_envs.core.dependency import StaticDAG
from marft_envs.errors import ConfigError, DependencyError

Joins = list[list[tuple[str, tuple[str, ...]]]]
"""Layers of joiners, each with its children, whose notes it reads."""


def joiners_of(leaves: int, arity: int) -> int:
    """Returns how many joiners so many leaves need, ``arity`` children each; one at least, the root."""
    if type(arity) is not int or arity < 2:
        raise ConfigError(f"arity is {arity!r}; expected how many notes a joiner reads, a whole number from 2.")
    inner = 0
    while leaves > arity:
        whole, left = divmod(leaves, arity)
        inner, leaves = inner + whole + (left > 1), whole + (left > 0)
    return inner + 1


def joins(leaves: Sequence[str], joiners: Sequence[str], arity: int) -> Joins:
    """Returns the layers above the leaves; a child that is left alone has no joiner and is read one layer higher.

    Args:
        leaves: At least one, in order.
        joiners: At least ``joiners_of`` of them; the last one is the root, and those that are not needed do not act.
        arity: Children of a joiner.

    Raises:
        DependencyError: There are too few joiners.
    """
    needed = joiners_of(len(leaves), arity)
    if len(joiners) < needed:
        raise DependencyError(
            f"A tree of arity {arity} over {len(leaves)} leaves needs {needed} joiners; got {len(joiners)}."
        )
    layers: Joins = []
    level, free = tuple(leaves), iter(joiners[: needed - 1])
    while len(level) > arity:
        groups = [level[i : i + arity] for i in range(0, len(level), arity)]
        heads = [group[0] if len(group) == 1 else next(free) for group in groups]
        layers.append([(head, group) for head, group in zip(heads, groups, strict=True) if len(group) > 1])
        level = tuple(heads)
    return [*layers, [(joiners[-1], level)]]


class Tree(StaticDAG):
    """Leaves side by side, then joiners layer by layer; a joiner sees its children only, and the last is the root.

    The path from a word to the answer has as many layers as the logarithm of the leaves' number, where a chain has as
    many as there are leaves.

    Args:
        *leaves: The agents of the first layer, in order; without any, as many of the team's first agents as the others
            can join.
        arity: Children of a joiner. At a ragged end it has fewer, and one that is left alone is read a layer higher.

    Raises:
        ConfigError: ``arity`` is below 2.
    """

    def __init__(self, *leaves: str, arity: int = 2) -> None:
        super().__init__({})
        joiners_of(1, arity)
        self.leaves, self.arity = leaves, arity

    def bind(self, agents: Sequence[str]) -> None:
        """Checks the names; all agents but the leaves join, in canonical order, and those not needed do not act."""
        self.agents = tuple(agents)
        self._known(self.leaves)
        if len(set(self.leaves)) < len(self.leaves):
            raise DependencyError(f"Tree names a leaf twice: {self.leaves}. Use Router for repeats.")
        n = max((n for n in range(1, len(agents)) if n + joiners_of(n, self.arity) <= len(agents)), default=1)
        leaves = self.leaves or self.agents[:n]
        others = [name for name in agents if name not in leaves]
        above = joins(leaves, others, self.arity) if others or len(leaves) > 1 else []
        self._preds = dict.fromkeys(leaves, ()) | {name: children for layer in above for name, children in layer}
        layers = [leaves, *([name for name, _ in layer] for layer in above)]
        self._layers = [[name for name in agents if name in layer] for layer in layers]
        self._lagged = dict.fromkeys(self._preds, ())
        self._simple, self._plans = True, {}

    def children(self, name: str) -> tuple[str, ...]:
        """Returns the agents whose notes an agent reads; none if it is a leaf or does not act."""
        return self._preds.get(name, ())
