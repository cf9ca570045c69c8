"""Dependency functions that decide while the episode runs: by schedule, by code, by an agent's words."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from marft_envs.core.dependency import DependencyFunction, InvalidRouting, Layered, View, as_dependency
from marft_envs.core.tree import joiners_of, joins
from marft_envs.core.types import Turn
from marft_envs.errors import ConfigError, DependencyError

Plan = DependencyFunction | str | Sequence[Sequence[str]] | Sequence[Sequence[int]] | np.ndarray


class Scheduled(DependencyFunction):
    """A new D each round.

    Args:
        fn: Called at each round's start with a :class:`View`; returns what
            :func:`marft_envs.core.dependency.as_dependency` takes (layers of names, a matrix, a function),
            or [] for a round in which nobody acts. Agents left out are skipped. If it reads the plan from a model's
            words and cannot, it raises :class:`InvalidRouting`.
    """

    def __init__(self, fn: Callable[[View], Plan]) -> None:
        self.fn = fn
        self._current: DependencyFunction | None = None

    def reset(self) -> None:
        """Forgets the last round's plan."""
        self._current = None

    def next_layer(self, view: View) -> list[Turn]:
        """Asks ``fn`` at the round's start, then follows its plan."""
        if view.layer == 0:
            self._current = None  # where words cannot be followed, nobody acts after the fallback
            plan: Any = self.fn(view)
            if isinstance(plan, Sequence) and not isinstance(plan, str):
                plan = [row for row in plan if not isinstance(row, Sequence) or row] or Layered([])
            current = copy.copy(as_dependency(plan))  # `fn` may give one object to many environments
            current.bind(self.agents)
            current.reset()
            self._current = current
        return self._current.next_layer(view) if self._current is not None else []


class Router(DependencyFunction):
    """Is asked after every layer which agents act next; repeats are allowed (by verdict, by tool error).

    An agent that ``fn`` names and that cannot act (unknown, dead) is an error of the code, unless the names come from
    what a model wrote: then it is data, counted in ``Episode.invalid`` and handled by the environment's ``on_invalid``.

    Args:
        fn: Takes a :class:`View`, returns agent names or :class:`Turn` objects; an empty list ends the
            round. A bare name sees everything said in this round. To say of one answer alone that words could not be
            followed, it raises :class:`InvalidRouting`.
        from_words: ``fn`` reads names from the latest turn's text.
    """

    def __init__(self, fn: Callable[[View], Sequence[str | Turn]], from_words: bool = False) -> None:
        self.fn, self.from_words = fn, from_words

    def next_layer(self, view: View) -> list[Turn]:
        """Returns what ``fn`` says, with names turned into turns."""
        steps = self.fn(view)
        if not isinstance(steps, Iterable) or isinstance(steps, str):
            name = getattr(self.fn, "__name__", type(self.fn).__name__)
            raise DependencyError(
                f"Router's function {name} returned {steps!r} in round {view.round}, layer {view.layer}; expected a "
                "list of agent names or Turn objects, [] to end the round. Next: let every branch return one."
            )
        here = tuple(range(view.round_start, len(view.history)))
        layer = [Turn(step, here) if isinstance(step, str) else step for step in steps]
        if self.from_words:
            named = [turn.agent for turn in layer if isinstance(turn, Turn)]
            if bad := [name for name in named if name not in self.agents or name in view.dead]:
                raise InvalidRouting("unknown or dead agent", layer, bad)
        return layer


def parse_names(text: str, workers: Sequence[str]) -> list[str] | None:
    """Returns the worker named last (by name, or by a role that only it has), [] for "finish", else None."""
    by_word: dict[str, str] = {}
    roles = [name.rpartition("_")[0] for name in workers]
    for name, role in zip(workers, roles, strict=True):
        by_word[name.lower()] = name
        if roles.count(role) == 1:
            by_word.setdefault(role.lower(), name)
    by_word["finish"] = ""
    # Longest first, so that `expert_1` is not read inside `expert_10`.
    words = sorted(by_word, key=len, reverse=True)
    names = re.findall(r"(?<![a-z0-9_])(" + "|".join(map(re.escape, words)) + r")(?![a-z0-9_])", text.lower())
    if not names:
        return None
    return [by_word[names[-1]]] if by_word[names[-1]] else []


class Orchestrator(DependencyFunction):
    """The boss's text names the agents that act next. Routing is an action, so it is trained like any other.

    Args:
        boss: Acts first, and again after each worker while ``hops`` last.
        workers: The agents that may be named; default all but the boss.
        hops: How often the boss routes in a round.
        parse: ``(text, workers) -> names``; ``[]`` ends the round, None says that the text is not a routing.
        default: The worker to fall back on when the text names no agent that can act.
    """

    def __init__(
        self,
        boss: str,
        workers: Sequence[str] | None = None,
        hops: int = 1,
        parse: Callable[[str, Sequence[str]], Sequence[str] | None] = parse_names,
        default: str | None = None,
    ) -> None:
        if hops < 1:
            raise ConfigError(f"Orchestrator(hops=…) must be at least 1; got {hops}.")
        self.boss, self.workers, self.hops, self.parse, self.default = boss, workers, hops, parse, default

    def bind(self, agents: Sequence[str]) -> None:
        """Checks the names of the boss, the workers and the default."""
        super().bind(agents)
        self._workers = tuple(self.workers) if self.workers is not None else tuple(a for a in agents if a != self.boss)
        self._known([self.boss, *self._workers, *([self.default] if self.default else [])])

    def next_layer(self, view: View) -> list[Turn]:
        """Alternates boss and worker, each seeing all that was said in this round."""
        here = tuple(range(view.round_start, len(view.history)))
        if view.layer % 2 == 0:
            more = view.layer < 2 * self.hops and self.boss not in view.dead
            return [Turn(self.boss, here)] if more else []
        names = self.parse(view.history[-1].spoken, self._workers)
        able = [name for name in names or () if name in self._workers and name not in view.dead]
        if names is None or len(able) < len(names):
            default = [self.default] if self.default and self.default not in view.dead else []
            fallback = [Turn(n, here) for n in able or default]
            bad = [name for name in names or () if name not in able]
            raise InvalidRouting(f"{self.boss} named no agent that can act", fallback, bad, here[-1])
        return [Turn(name, here) for name in able]


def parse_assignments(text: str) -> list[str] | None:
    """Returns what stands between semicolons in the text's last line, one assignment a worker; None if it is empty."""
    lines = [line for line in text.splitlines() if line.strip()]
    parts = [part.strip() for part in lines[-1].split(";")] if lines else []
    return [part for part in parts if part] or None


class Spawn(DependencyFunction):
    """The boss's text says how many workers there are and what each is to do: the roster grows, as an action.

    The boss acts; then as many workers as its words have assignments act side by side, each seeing the boss's words
    alone; then the joiner acts, who sees all of them, or several join them as a :class:`Tree` does. The team lists as
    many workers as there can be. Those that are not spawned never act. What a worker is shown of the boss's words is
    the task's business (``show``), and so is what it works on. Where words cannot be followed (``parse`` finds no
    assignment, or more than there are workers), that is counted, and ``on_invalid`` decides: ``fallback`` spawns
    ``default`` workers, or all where too many were named.

    Args:
        boss: Acts first.
        workers: The agents that can be spawned, in this order; default all but boss and joiner.
        joiner: Acts last; default the boss, once more. With ``arity`` also several, the last of whom is the root.
        parse: ``text -> an assignment a worker``; None says that the text has none.
        default: How many workers act where the words name none.
        arity: Most messages that a joiner sees; the spawned workers are the leaves of the tree. None: one joiner sees
            all messages.

    Raises:
        ConfigError: ``default`` is below 1 or ``arity`` below 2, or there are several joiners without it.
    """

    def __init__(
        self,
        boss: str,
        workers: Sequence[str] | None = None,
        joiner: str | Sequence[str] | None = None,
        parse: Callable[[str], Sequence[str] | None] = parse_assignments,
        default: int = 1,
        arity: int | None = None,
    ) -> None:
        if default < 1:
            raise ConfigError(f"Spawn(default=…) must be at least 1; got {default}.")
        self.joiners = (joiner,) if isinstance(joiner, str) else tuple(joiner or (boss,))
        if arity is not None:
            joiners_of(1, arity)
        elif len(self.joiners) > 1:
            raise ConfigError(f"Spawn has {len(self.joiners)} joiners. Give arity=…, how many notes each one sees.")
        self.boss, self.workers, self.joiner = boss, workers, self.joiners[-1]
        self.parse, self.default, self.arity = parse, default, arity

    def bind(self, agents: Sequence[str]) -> None:
        """Checks the names of the boss, the workers and the joiner."""
        super().bind(agents)
        others = tuple(name for name in agents if name not in (self.boss, *self.joiners))
        self._workers = tuple(self.workers) if self.workers is not None else others
        self._known([self.boss, *self.joiners, *self._workers])
        if not self._workers or {self.boss, *self.joiners} & set(self._workers):
            raise DependencyError(f"Spawn needs workers beside '{self.boss}' and '{self.joiner}'; got {self._workers}.")
        if self.arity is not None:
            joins(self._workers, self.joiners, self.arity)

    @property
    def possible_edges(self) -> frozenset[tuple[str, str]]:
        """Returns the edges from the boss to every worker, and from all of them to the joiners."""
        edges = {(self.boss, name) for name in self._workers}
        edges |= {(name, joiner) for name in self._workers for joiner in self.joiners}
        if self.arity is not None:
            edges |= {(one, other) for i, other in enumerate(self.joiners) for one in self.joiners[:i]}
        elif self.joiner != self.boss:
            edges |= {(self.boss, self.joiner)}
        return frozenset(edges)

    def next_layer(self, view: View) -> list[Turn]:
        """Returns the boss, then the workers that its words spawn, then the joiner."""
        here = tuple(range(view.round_start, len(view.history)))
        if view.layer == 0:
            return [Turn(self.boss, here)] if self.boss not in view.dead else []
        if view.layer == 1:
            return self._spawned(view, here)
        if self.arity is not None:
            return self._joined(view)
        return [Turn(self.joiner, here)] if view.layer == 2 and self.joiner not in view.dead else []

    def _joined(self, view: View) -> list[Turn]:
        spawned = [turn.agent for turn in view.this_round if turn.agent in self._workers]
        above = joins(spawned, self.joiners, self.arity or 2) if spawned else []
        layer = []
        for name, sources in above[view.layer - 2] if view.layer - 2 < len(above) else []:
            seen = [view.latest(agent, this_round=True) for agent in (*sources, *([name] if name == self.boss else []))]
            if name not in view.dead:
                layer.append(Turn(name, tuple(sorted(index for index in seen if index is not None))))
        return layer

    def _spawned(self, view: View, here: tuple[int, ...]) -> list[Turn]:
        able = [name for name in self._workers if name not in view.dead]
        assigned = self.parse(view.history[-1].spoken)
        if assigned and len(assigned) <= len(able):
            return [Turn(name, here) for name in able[: len(assigned)]]
        fallback = [Turn(name, here) for name in (able if assigned else able[: self.default])]
        reason = f"{self.boss} spawns {len(assigned)} of {len(able)} workers" if assigned else "no assignment"
        raise InvalidRouting(reason, fallback, (), here[-1])
