"""What an environment must offer to be trained, clause by clause; ``docs/compliance.md`` is the page.

:func:`check` looks at an environment of any kind and says of every clause whether it is met, and if not, what would be
needed. It plays a few steps with the spaces' own samples.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from marft_envs.adapters.inward import codecs
from marft_envs.core.env import FlexEnv
from marft_envs.errors import ConfigError

STEPS = 100
"""Most steps of the trial episode."""
Kind = Literal["flex", "aec", "parallel", "gymnasium", "textarena", "gem", "unknown"]


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of the page, and what was found."""

    name: str
    met: bool
    found: str
    """What is so, or what is missing and what would be needed."""

    def __str__(self) -> str:
        return f"  {'ok' if self.met else 'NO':<3} {self.name:<13} {self.found}"


_KINDS: dict[Kind, type] = {"flex": FlexEnv, "aec": AECEnv, "parallel": ParallelEnv, "gymnasium": gymnasium.Env}
_PLAYED = ("aec", "parallel", "gymnasium")
"""Kinds whose spaces and episodes have clauses."""


def kind_of(env: Any) -> Kind:
    """Tells what an environment is."""
    inner = getattr(env, "unwrapped", env)
    for kind, base in _KINDS.items():
        if isinstance(inner, base) or isinstance(env, base):
            return kind
    if callable(getattr(env, "get_observation", None)) and callable(getattr(env, "step", None)):
        return "textarena"
    return "gem" if type(inner).__module__.partition(".")[0] == "gem" else "unknown"


def check(env: Any, codec: Any = None) -> list[Clause]:
    """Looks at an environment clause by clause.

    Args:
        env: An environment of any kind; it is reset and stepped.
        codec: The codec that it will be used with, if it is not the one that its spaces suggest.
    """
    kind, clauses = kind_of(env), _without_playing(env, codec)
    if kind in _PLAYED and codec is None and all(clause.met for clause in clauses):
        clauses.append(_episode(env, kind))
    return clauses


def report(env: Any, codec: Any = None) -> str:
    """Returns the clauses as a table."""
    return "\n".join(map(str, check(env, codec)))


def require_trainable(env: Any, codec: Any = None) -> None:
    """Raises unless the environment meets every clause that can be checked without playing.

    Raises:
        ConfigError: Names each clause that is not met, and what would be needed.
    """
    missing = [f"{clause.name}: {clause.found}" for clause in _without_playing(env, codec) if not clause.met]
    if missing:
        raise ConfigError("This environment cannot be trained as it is.\n" + "\n".join(missing))


# The clauses ------------------------------------------------------------------------------------------


def _without_playing(env: Any, codec: Any) -> list[Clause]:
    kind = kind_of(env)
    clauses = [_interface(env, kind)]
    if clauses[0].met and kind in _PLAYED:
        clauses.append(_cast(env, kind))
        if clauses[-1].met:
            given = [Clause("actions", True, "by the codec that is given")]
            clauses += _spaces(env, kind) if codec is None else given
    return clauses


def _interface(env: Any, kind: Kind) -> Clause:
    # One action of such a Gymnasium environment is the actions of several agents.
    if kind == "unknown" or (kind == "gymnasium" and isinstance(env.action_space, spaces.Tuple | spaces.Dict)):
        if hasattr(env, "possible_agents") or hasattr(env, "agents") or kind == "gymnasium":
            needed = (
                "simultaneous moves without PettingZoo's parallel API. Needed: a subclass of pettingzoo.ParallelEnv "
                "with possible_agents, agents, reset() -> (observations, infos) and step(actions) -> five mappings"
            )
        else:
            needed = (
                f"{type(env).__name__} is no environment of a known kind. Needed: pettingzoo.AECEnv, "
                "pettingzoo.ParallelEnv, gymnasium.Env, or a Game of marft_envs.adapters.inward.game"
            )
        return Clause("interface", False, needed)
    return Clause("interface", True, kind)


def _cast(env: Any, kind: Kind) -> Clause:
    if kind == "gymnasium":
        return Clause("cast", True, "one seat, 'actor'")
    if seats := list(getattr(env, "possible_agents", None) or []):
        return Clause("cast", True, f"{len(seats)} agents")
    return Clause(
        "cast",
        False,
        "no possible_agents: agents that appear in mid-episode are not supported. Needed: possible_agents that lists "
        "all agents from the start; an agent that is not there yet is simply never on turn",
    )


def _spaces(env: Any, kind: Kind) -> list[Clause]:
    if kind == "gymnasium":
        spaces_of = {"actor": (env.action_space, env.observation_space)}
    else:
        spaces_of = {seat: (env.action_space(seat), env.observation_space(seat)) for seat in env.possible_agents}
    reasons: dict[str, list[str]] = {"actions": [], "observations": []}
    for actions, observations in spaces_of.values():
        for key, faults in (
            ("actions", codecs.missing(actions, spaces.Text(1))),
            ("observations", codecs.missing(spaces.Text(1), observations)),
        ):
            reasons[key] += [fault for fault in faults if fault not in reasons[key]]
    return [Clause(key, not faults, " ".join(faults) or "as text") for key, faults in reasons.items()]


def _episode(env: Any, kind: Kind) -> Clause:
    """Plays the same trial twice from one seed."""
    trials = []
    for _ in range(2):
        try:
            trials.append(_trial(env, kind))
        except ConfigError as error:
            return Clause("episode", False, str(error))
        except Exception as error:  # whatever a stranger's code raises is what the clause reports
            return Clause("episode", False, f"{type(error).__name__}: {error}. Needed: legal moves never raise")
    if trials[0] != trials[1]:
        return Clause("episode", False, "equal seeds gave other observations. Needed: reset(seed=…) seeds everything")
    return Clause("episode", True, f"reproducible over {len(trials[0]) - 1} steps")


def _trial(env: Any, kind: Kind) -> list[Any]:
    from marft_envs.adapters.inward import aec, gym_text, parallel

    build: Mapping[str, Any] = {"aec": aec.AECGame, "parallel": parallel.ParallelGame, "gymnasium": gym_text.GymGame}
    game = build[kind](env)
    rng = np.random.default_rng(0)
    game.reset(0, {})
    seen = [[game.observe(seat) for seat in game.ready()]]
    while game.ready() and len(seen) <= STEPS:
        if unknown := set(game.ready()) - set(game.seats):
            raise ConfigError(
                f"'{min(unknown)}' appeared in mid-episode and is not in possible_agents. "
                "Needed: possible_agents that lists all agents from the start"
            )
        moves = {}
        for seat in game.ready():
            legal = game.moves(seat)
            moves[seat] = legal[int(rng.integers(len(legal)))] if legal else "0"
        rewards = game.step(moves)
        if not np.isfinite(list(rewards.values())).all():
            raise ConfigError(f"rewards {dict(rewards)}. Needed: finite numbers")
        seen.append([game.observe(seat) for seat in game.ready()] + sorted(rewards.items()))
    return copy.deepcopy(seen)
