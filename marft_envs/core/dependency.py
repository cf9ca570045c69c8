"""Defines the dependency function D: which agents act, in what order, and who sees whose actions.

``D(a^i, a^j) = 1`` says that agent j's action is conditioned on agent i's (arXiv 2504.16129, section
3.1); it may change every round. Here D is an object that is asked for one *layer* at a time: a set of
turns that do not depend on each other.

There are two ways to write the same D. In a matrix, a row is the agent who is seen and a column the one who sees:
``D[i][j] = 1`` where agent j sees agent i. A mapping goes from the agent who sees to the agents whom it sees. So
``[[0, 1], [0, 0]]`` and ``{"actor_0": ["reasoner_0"]}`` both say that the actor sees the reasoner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import chain, count
from typing import Any

import numpy as np

from marft_envs.core.faults import refuse_edges
from marft_envs.core.types import Outcome, Turn, TurnRecord
from marft_envs.errors import ConfigError, DependencyError, check_known, here


class View:
    """Shows a dependency function what has happened, never the task's state.

    Attributes:
        agents: All agents, in canonical order.
        history: The turns so far; a turn has ``agent``, ``text``, ``index``, ``round``, ``layer``, ``sees``.
        round: Number of the round, from 0.
        round_start: Index of this round's first turn.
        layer: Layers committed in this round so far.
        dead: Agents that act no more.
        outcome: What the task said last: rewards, verdicts and metrics to route by.
        rng: A seeded generator, for routing that draws.
    """

    __slots__ = ("agents", "dead", "history", "layer", "outcome", "rng", "round", "round_start")

    def __init__(self, agents: Sequence[str]) -> None:
        self.agents = tuple(agents)
        self.history: list[TurnRecord] = []
        self.round = 0
        self.round_start = 0
        self.layer = 0
        self.dead: set[str] = set()
        self.outcome: Outcome = Outcome()
        self.rng: np.random.Generator | None = None

    @property
    def this_round(self) -> list[TurnRecord]:
        """Returns the turns of this round."""
        return self.history[self.round_start :]

    def latest(self, agent: str, before: int | None = None, *, this_round: bool = False) -> int | None:
        """Returns the index of the agent's latest turn (before an index, in this round), or None."""
        stop = len(self.history) if before is None else before
        start = self.round_start if this_round else 0
        for index in range(stop - 1, start - 1, -1):
            if self.history[index].agent == agent:
                return index
        return None


class InvalidRouting(Exception):
    """Raised by ``next_layer`` where a model's words cannot be followed as routing.

    It is data: counted, recorded, and handled by ``on_invalid``. What code gets wrong is a :class:`DependencyError`.

    Args:
        reason: Why, for the record.
        fallback: Turns to play instead under ``on_invalid="fallback"``; those that cannot act are left out.
        named: The names in the words that cannot act.
        turn: History index of the words; None: the latest turn.
    """

    def __init__(
        self, reason: str, fallback: Sequence[Turn] = (), named: Sequence[str] = (), turn: int | None = None
    ) -> None:
        super().__init__(reason)
        self.fallback, self.named, self.turn = list(fallback), list(named), turn


class DependencyFunction:
    """Base of all kinds. Subclasses override :meth:`next_layer`, and :meth:`bind` to check agent names.

    What follows from a D is asked of its properties, never of its class; they hold once it is bound. Those here promise
    nothing, which is right for a D that decides while the episode runs; a subclass that knows more says so.
    """

    agents: tuple[str, ...] = ()

    @property
    def is_static(self) -> bool:
        """Returns whether every round has the same layers of the same agents in every episode (deaths aside)."""
        return False

    @property
    def is_simultaneous(self) -> bool:
        """Returns whether in every round the whole team acts in one layer."""
        return False

    @property
    def possible_edges(self) -> frozenset[tuple[str, str]] | None:
        """Returns pairs of different agents ``(seen, seer)`` that this D can ever ask for; None: it may be any."""
        return None

    @property
    def is_empty(self) -> bool:
        """Returns whether D = 0: no agent sees another's messages, in any round."""
        return self.possible_edges is not None and not self.possible_edges

    @property
    def acting(self) -> frozenset[str] | None:
        """Returns the agents that act in every round, deaths aside; None: it may be any."""
        return None

    def bind(self, agents: Sequence[str]) -> None:
        """Learns the team, in canonical order; raises :class:`DependencyError` on names that are not in it."""
        self.agents = tuple(agents)

    def reset(self) -> None:
        """Forgets the last episode."""

    def next_layer(self, view: View) -> list[Turn]:
        """Returns the next layer of this round; an empty list ends the round."""
        raise NotImplementedError

    def _known(self, names: Iterable[str]) -> None:
        says = f"{type(self).__name__} names the agent '{{}}', which is not in the team."
        check_known(names, self.agents, says, DependencyError)


class StaticDAG(DependencyFunction):
    """A fixed organisation, as a matrix or a mapping. A subclass with a ``next_layer`` of its own says what holds then.

    Args:
        D: ``[n, n]`` array in canonical agent order with ``D[i, j] = 1`` if agent j sees agent i, or a mapping from
            the agent who sees to the agents whom it sees: ``{"actor_0": ["reasoner_0"]}``.
        on_cycle: ``"error"``; ``"lag"``: an edge against the order of agents reads the previous round's
            action; ``"unroll:k"``: the agents of a cycle act k times a round, each on the latest actions.
    """

    def __init__(self, D: Any, on_cycle: str = "error") -> None:
        self.D = D
        self.on_cycle = on_cycle
        if not re.fullmatch(r"error|lag|unroll:[1-9]\d*", on_cycle):
            raise ConfigError(f"on_cycle must be 'error', 'lag' or 'unroll:k'; got '{on_cycle}'.")

    def bind(self, agents: Sequence[str]) -> None:
        """Checks the matrix against the team and orders it into layers."""
        super().bind(agents)
        self._preds = self._predecessors()
        self._lagged: dict[str, tuple[str, ...]] = {name: () for name in agents}
        layers, cyclic = _topological(self.agents, self._preds)
        if cyclic and self.on_cycle == "error":
            raise DependencyError(
                f"The dependency function has a cycle among {', '.join(cyclic)}: each would wait for the other. "
                "Remove an edge, or say on_cycle='lag' (read the previous round) or 'unroll:k' (repeat)."
            )
        if cyclic and self.on_cycle == "lag":
            order = {name: i for i, name in enumerate(self.agents)}
            earlier = _ancestors(self.agents, self._preds)
            for name in cyclic:
                back = [p for p in self._preds[name] if order[p] >= order[name] and (p == name or name in earlier[p])]
                self._lagged[name] = tuple(back)
                self._preds[name] = tuple(p for p in self._preds[name] if p not in back)
            layers, _ = _topological(self.agents, self._preds)
        elif cyclic:
            layers = self._unrolled()
        self._layers = layers
        self._simple = not cyclic
        self._plans: dict[int, list[list[Turn]]] = {}

    def _unrolled(self) -> list[list[str]]:
        """Returns layers over the cycles' groups; a group's agents act one by one, and the group k times."""
        earlier = _ancestors(self.agents, self._preds)
        together = {a: [b for b in self.agents if b == a or (b in earlier[a] and a in earlier[b])] for a in self.agents}
        heads = [name for name in self.agents if together[name][0] == name]
        waits = {h: {together[p][0] for name in together[h] for p in self._preds[name]} - {h} for h in heads}
        layers = []
        for group in _topological(heads, waits)[0]:
            single = [head for head in group if head not in earlier[head]]
            layers += [single] if single else []
            for head in group:
                if head not in single:
                    layers += [[name] for name in together[head]] * int(self.on_cycle.partition(":")[2])
        return layers

    def _predecessors(self) -> dict[str, tuple[str, ...]]:
        refuse_edges(self.D)
        if isinstance(self.D, Mapping):
            sees = {name: (seen,) if isinstance(seen, str) else tuple(seen) for name, seen in self.D.items()}
            self._known([*sees, *(p for seen in sees.values() for p in seen)])
            return {name: tuple(p for p in self.agents if p in sees.get(name, ())) for name in self.agents}
        matrix = np.asarray(self.D, dtype=object)  # rows of unequal length are an error below
        n = len(self.agents)
        if matrix.shape != (n, n) or not np.isin(matrix, (0, 1)).all():
            wanted = f"a {n} x {n} matrix of 0 and 1 for {n} agents (D[i][j] = 1: agent j sees agent i)"
            raise DependencyError(f"D must be {wanted}, or a mapping (agent: those it sees); got shape {matrix.shape}.")
        return {a: tuple(self.agents[i] for i in range(n) if matrix[i, j]) for j, a in enumerate(self.agents)}

    @property
    def is_static(self) -> bool:
        """Returns True."""
        return True

    @property
    def is_simultaneous(self) -> bool:
        """Returns whether there is one layer, of everybody."""
        return len(self._layers) == 1 and set(self._layers[0]) == set(self.agents)

    @property
    def acting(self) -> frozenset[str]:
        """Returns the agents of all layers."""
        return frozenset(chain.from_iterable(self._layers))

    @property
    def possible_edges(self) -> frozenset[tuple[str, str]]:
        """Returns the edges between agents who act."""
        acting = self.acting
        edges = ((p, name) for name in acting for p in (*self._preds[name], *self._lagged[name]))
        return frozenset((p, name) for p, name in edges if p in acting and p != name)

    def next_layer(self, view: View) -> list[Turn]:
        """Returns the next topological layer; dead agents are skipped."""
        if view.layer == 0:
            self._short, self._position = False, 0
        if view.dead and not self._short:  # the round no longer follows the plan made for all
            self._short, self._position = True, view.layer
        if self._simple and not self._short:
            if view.layer >= len(self._layers):
                return []
            plan = self._plans.setdefault(view.round_start, [])
            if not plan:
                index = dict(zip(chain.from_iterable(self._layers), count(view.round_start)))
                for names in self._layers:
                    plan.append([])
                    for name in names:
                        plan[-1].append(Turn(name, tuple(sorted(map(index.__getitem__, self._preds[name])))))
            return plan[view.layer]
        while self._position < len(self._layers):
            names = self._layers[self._position]
            self._position += 1
            if layer := [Turn(name, self._sees(view, name)) for name in names if name not in view.dead]:
                return layer
        return []

    def _sees(self, view: View, name: str) -> tuple[int, ...]:
        here = [view.latest(p, this_round=True) for p in self._preds[name] if p != name]
        before = [view.latest(p, before=view.round_start) for p in self._lagged[name]]
        return tuple(sorted(i for i in here + before if i is not None))


def _topological(agents: Sequence[str], preds: Mapping[str, Collection[str]]) -> tuple[list[list[str]], list[str]]:
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


def _ancestors(agents: Sequence[str], preds: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
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


class Chain(StaticDAG):
    """One agent after the other, each seeing all before it (or only the one before).

    Args:
        *order: Agent names; without any, the team's canonical order.
        sees: ``"all"`` (the paper's a^{1:i-1}) or ``"previous"``.
    """

    def __init__(self, *order: str, sees: str = "all") -> None:
        super().__init__({})
        if sees not in ("all", "previous"):
            raise ConfigError(f"Chain(sees=…) must be 'all' or 'previous'; got '{sees}'.")
        self.order, self.sees = order, sees

    def bind(self, agents: Sequence[str]) -> None:
        """Checks the order; agents that it does not name do not act."""
        self.agents = tuple(agents)
        order = self.order or self.agents
        self._known(order)
        if len(set(order)) < len(order):
            raise DependencyError(f"Chain names an agent twice: {order}. Use Router for repeats.")
        first = 0 if self.sees == "all" else -1
        self._preds = {name: tuple(order[:i][first:]) for i, name in enumerate(order)}
        self._lagged = {name: () for name in order}
        self._layers, self._simple, self._plans = [[name] for name in order], True, {}


class Layered(StaticDAG):
    """Groups that act side by side, each group seeing all groups before it: ``Layered([["a_0", "b_0"], ["c_0"]])``."""

    def __init__(self, layers: Sequence[Sequence[str]]) -> None:
        super().__init__({})
        self.layers = [list(layer) for layer in layers]

    def bind(self, agents: Sequence[str]) -> None:
        """Checks the names; within a layer agents act in canonical order."""
        self.agents = tuple(agents)
        named = [name for layer in self.layers for name in layer]
        self._known(named)
        if len(set(named)) < len(named):
            raise DependencyError(f"Layered names an agent twice: {self.layers}. Repeats: Router. Edges: a mapping.")
        self._layers = [[name for name in agents if name in layer] for layer in self.layers if layer]
        self._preds = {}
        earlier: tuple[str, ...] = ()
        for layer in self._layers:
            self._preds.update(dict.fromkeys(layer, earlier))
            earlier += tuple(layer)
        self._lagged = {name: () for name in named}
        self._simple, self._plans = True, {}


class Independent(StaticDAG):
    """D = 0: everybody acts at once and sees nobody (the DEC-POMDP case)."""

    def __init__(self) -> None:
        super().__init__({})


def as_dependency(value: Any) -> DependencyFunction:
    """Returns a dependency function for what a configuration file can hold.

    Args:
        value: A dependency function; ``"chain"``, ``"previous"`` (a chain in which each sees only the one before
            it) or ``"independent"``; layers of names, each a list or a set (as :class:`Layered`); an n x n matrix of 0
            and 1 with ``D[i][j] = 1`` where agent j sees agent i; or a mapping from the agent who sees to the agents
            whom it sees (both as :class:`StaticDAG`).

    Raises:
        ConfigError: If it is none of these.
        DependencyError: If it is a list of edges.
    """
    kinds: dict[str, Callable[[], DependencyFunction]] = {
        "chain": Chain,
        "previous": lambda: Chain(sees="previous"),
        "independent": Independent,
    }
    if isinstance(value, DependencyFunction):
        return value
    if isinstance(value, str):
        check_known([value], kinds, "There is no dependency '{}'.", hint=partial(here, "marft_envs"))
        return kinds[value]()
    if isinstance(value, np.ndarray | Mapping):
        return StaticDAG(value)
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        is_class = isinstance(value, type) and issubclass(value, DependencyFunction)
        wanted = (
            f"{name}()" if is_class else f"Router({name}), asked after every layer, or Scheduled({name}), every round"
        )
        raise ConfigError(f"{name} is {'a class' if is_class else 'no dependency function yet'}. Next: {wanted}.")
    refuse_edges(value)
    rows = value if isinstance(value, Sequence) else ()
    if rows and all(isinstance(row, Sequence | Set) and row and not isinstance(row, str) for row in rows):
        cells = [cell for row in value for cell in row]
        if all(isinstance(cell, str) for cell in cells):
            return Layered(value)
        if all(isinstance(cell, int) for cell in cells):
            return StaticDAG(value)
    raise ConfigError(
        f"Cannot read a dependency function from {value!r}. Expected 'chain', 'previous', 'independent', layers of "
        "agent names, a matrix of 0 and 1 (D[i][j] = 1: agent j sees agent i), a mapping from the agent who sees to "
        "those whom it sees, or a DependencyFunction."
    )
