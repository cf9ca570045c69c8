"""What becomes of episodes that were broken off: a text's fault is paid the worst, outages are left out and counted.

Whose fault it was stands in the record (``marft_envs.types.Fault``). Left out means: of the update and of its groups,
of every score and metric, of evaluations and what is made of them. Too many of them are an error, never a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Protocol

from marft_algos.engines.base import EngineError
from marft_algos.types import Trajectory
from marft_envs import Episode
from marft_envs.errors import MarftError


class StoppedError(MarftError, RuntimeError):
    """Episodes failed in a way that makes no number out of the rest. The run's state is whole, and can be resumed."""


class OutageError(StoppedError, EngineError):
    """Too many episodes were lost to faults of engine, world or machine."""


class TaskError(StoppedError):
    """The code of a task raised on every episode, or on any where ``on_task_error`` is ``stop``."""


class Limits(Protocol):
    """What a run's settings say about it."""

    @property
    def max_lost(self) -> float:
        """Largest share of episodes that may be lost."""

    @property
    def on_task_error(self) -> Literal["worst", "stop"]:
        """What an exception of a task's code does."""


def whole(played: Sequence[Trajectory]) -> list[Trajectory]:
    """Those that no outage broke off: what there is to learn from, and to score."""
    return [t for t in played if not t.infra]


def counts(played: Sequence[Trajectory]) -> dict[str, float]:
    """What was broken off: ``infra`` episodes by outages, ``task_errors`` by exceptions of a task; ``failed``: all."""
    lost = sum(t.infra for t in played)
    return {
        "failed": sum(bool(t.fault) for t in played) / len(played),
        "infra": lost,
        "infra_rate": lost / len(played),
        "task_errors": sum(bool(t.episode.task_error) for t in played),
    }


def settle(played: Sequence[Trajectory]) -> list[Trajectory]:
    """Pays those that a text broke off no more than the lowest return of the others that were played with them.

    The environment has paid them the task's ``worst_return``, or at most 0; the rest is booked at the last layer. Who
    spoke there is paid no more than nothing, and than the lowest it was paid elsewhere, by rewards of its own: where
    agents are rivals, a broken game is no draw. Where nobody's success is judged, theirs is not either: the return
    counts.
    """
    others = [t for t in played if not t.fault]
    return [_settled(t, others) if t.fault == "text" else t for t in played]


def _settled(t: Trajectory, others: Sequence[Trajectory]) -> Trajectory:
    owed = min([t.score, *(other.score for other in others)]) - t.score
    layers = list(t.layers)
    if layers:
        last = layers[-1]
        agents = dict(last.agent_rewards)
        for agent in {t.transitions[i].agent for i in last.turns}:
            own = _own(t, agent)
            missing = min([own, 0.0, *(_own(other, agent) for other in others)]) - own
            if missing:
                agents[agent] = agents.get(agent, 0.0) + missing
        layers[-1] = replace(last, team_reward=last.team_reward + owed, agent_rewards=agents)
    unjudged = bool(others) and all(other.success is None for other in others)
    return t.paid(layers, [turn.reward for turn in t.transitions], None if unjudged else t.success)


def _own(t: Trajectory, agent: str) -> float:
    """What an agent was paid by rewards of its own."""
    return sum(layer.agent_rewards.get(agent, 0.0) for layer in t.layers)


def check(
    played: Sequence[Trajectory],
    limits: Limits,
    what: str,
    branches: int = 0,
    lost_branches: Sequence[Episode] = (),
) -> None:
    """Refuses to make numbers of episodes of which too many failed.

    Args:
        played: Of an iteration, or of an evaluation.
        limits: The run's settings.
        what: What they are of, for the message.
        branches: How many branches were played of them.
        lost_branches: Those that were lost.

    Raises:
        OutageError: More than ``max_lost`` of them were lost, or of them and their branches, or all of them.
        TaskError: The task's code raised on all of them, or on any where ``on_task_error`` is ``stop``.
    """
    lost = [t.episode for t in played if t.infra]
    _check_share(lost, len(played), limits, what)
    _check_share([*lost, *lost_branches], len(played) + branches, limits, f"{what}, branches included,")
    errors = [t.episode.task_error for t in played if t.episode.task_error]
    if errors and len(errors) == len(played):
        raise TaskError(f"The task's code raised on all {len(played)} episodes of {what}; the first: {errors[0]}.")
    if errors and limits.on_task_error == "stop":
        raise TaskError(
            f"The task's code raised on {len(errors)} of the {len(played)} episodes of {what}; the first: {errors[0]}. "
            "With on_task_error=worst such a text is paid the worst, and the run goes on."
        )


def _check_share(lost: Sequence[Episode], of: int, limits: Limits, what: str) -> None:
    if lost and (len(lost) > limits.max_lost * of or len(lost) == of):
        raise OutageError(
            f"{len(lost)} of the {of} episodes of {what} were lost to outages ({blamed(lost)}). "
            f"At most a share of {limits.max_lost:g} may be (max_lost), and never all."
        )


def blamed(lost: Sequence[Episode]) -> str:
    """Whose faults these were, and the first of them: ``2 engine, 1 world; the first: …``."""
    kinds = ", ".join(f"{n} {fault}" for fault, n in Counter(e.fault for e in lost).most_common())
    first = lost[0]
    detail = f" ({first.info['world_error']})" if "world_error" in first.info else ""
    return f"{kinds}; the first: {first.stop_reason}{detail}"
