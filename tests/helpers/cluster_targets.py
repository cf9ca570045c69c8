"""What workers import: an environment that is slow enough to be hit while it is played, and an owner of objects."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import marft_envs
from helpers.runs import Letters


class SlowLetters(Letters):
    """Letters, thought about for a moment."""

    def __init__(self, deadly: bool) -> None:
        self._deadly = deadly

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        super().reset(rng, options)
        self._kills = self._deadly and options.get("split") != "test" and rng.random() < 0.08

    def on_round(self, turns: Sequence[marft_envs.TurnRecord]) -> marft_envs.Outcome:
        time.sleep(0.02)
        if self._kills:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().on_round(turns)


def make_slow_letters() -> marft_envs.FlexEnv:
    """Two agents, and no danger."""
    return _make(False)


def make_deadly_letters() -> marft_envs.FlexEnv:
    """Some problems end the process in which they are played."""
    return _make(True)


def _make(deadly: bool) -> marft_envs.FlexEnv:
    team = [marft_envs.AgentSpec("planner_0", "planner", "Plan."), marft_envs.AgentSpec("solver_0", "solver", "Solve.")]
    return marft_envs.FlexEnv(team, SlowLetters(deadly), marft_envs.Chain())


class Owner:
    """Puts something into the store, which is lost with it."""

    def put(self, what: Any) -> list[Any]:
        """Returns where it is, in a list, so that it is not fetched."""
        import ray

        return [ray.put(what)]
