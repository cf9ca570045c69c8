"""Dependency functions that decide while the episode runs: by schedule, by code, by an agent's words."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence

import numpy as np

from marft_envs.dependency import DependencyFunction, InvalidRouting, Layered, StaticDAG, View
from marft_envs.errors import ConfigError, DependencyError
from marft_envs.types import Turn

Plan = DependencyFunction | Sequence[Sequence[str]] | np.ndarray


class Scheduled(DependencyFunction):
    """A new D each round.

    Args:
        fn: Called at each round's start with a :class:`View`; returns a dependency function, layers of
            names (as :class:`Layered`), or an n x n array. Agents left out are skipped.
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
            plan = self.fn(view)
            if isinstance(plan, np.ndarray):
                plan = StaticDAG(plan)
            elif isinstance(plan, DependencyFunction):
                plan = copy.copy(plan)  # `fn` may give one object to many environments
            else:
                plan = Layered(plan)
            plan.bind(self.agents)
            plan.reset()
            self._current = plan
        if self._current is None:
            raise DependencyError("Scheduled was asked for a later layer before the round's first.")
        return self._current.next_layer(view)


class Router(DependencyFunction):
    """Asked after every layer who acts next; repeats are allowed (by verdict, by tool error).

    Args:
        fn: Takes a :class:`View`, returns agent names or :class:`Turn` objects; an empty list ends the
            round. A bare name sees everything said in this round.
    """

    def __init__(self, fn: Callable[[View], Sequence[str | Turn]]) -> None:
        self.fn = fn

    def next_layer(self, view: View) -> list[Turn]:
        """Returns what ``fn`` says, with names turned into turns."""
        layer = []
        for step in self.fn(view):
            if not isinstance(step, Turn):
                step = Turn(step, tuple(range(view.round_start, len(view.history))))
            layer.append(step)
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
    found = re.findall(r"(?<![a-z0-9_])(" + "|".join(map(re.escape, words)) + r")(?![a-z0-9_])", text.lower())
    if not found:
        return None
    return [by_word[found[-1]]] if by_word[found[-1]] else []


class Orchestrator(DependencyFunction):
    """The boss's text names who acts next. Routing is an action, so it is trained like any other.

    Args:
        boss: Acts first, and again after each worker while ``hops`` last.
        workers: Who may be named; default everybody else.
        hops: How often the boss routes in a round.
        parse: ``(text, workers) -> names``; ``[]`` ends the round, None says that the text is not a routing.
        default: The worker to fall back on when the text names nobody who can act.
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
        """Boss, worker, boss, worker, … each seeing all that was said in this round."""
        here = tuple(range(view.round_start, len(view.history)))
        if view.layer % 2 == 0:
            more = view.layer < 2 * self.hops and self.boss not in view.dead
            return [Turn(self.boss, here)] if more else []
        names = self.parse(view.history[-1].text, self._workers)
        able = [name for name in names or () if name in self._workers and name not in view.dead]
        if names is None or len(able) < len(names):
            default = [self.default] if self.default and self.default not in view.dead else []
            raise InvalidRouting(f"{self.boss} named nobody who can act", [Turn(n, here) for n in able or default])
        return [Turn(name, here) for name in able]
