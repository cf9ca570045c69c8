"""What changed between two teams on the same problems: metrics with paired intervals and verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from marft_algos.evaluation.differences import ALPHA, PairedDifference, Values, holm
from marft_algos.runs.intervals import Interval
from marft_algos.types import StopReason, Trajectory, Transition
from marft_envs.errors import ConfigError

SERVED = "served"
"""In the facts of an episode whose task was a user's words: nobody knows what it is worth."""
_BAD = {
    "truncated", "errors", "obeyed", "seconds", "cost", "tokens", "malformed", "error_rate", "duplicates", "refusals",
    "excess_steps", "handoff_loops", "handoff_loop_rate", "idle_loops",
}  # fmt: skip
"""Metrics of which less is better."""
_NEUTRAL = {"length", "turns", "infrastructure_errors", "calls", "budget_use"}
"""Metrics that are shown and judged by nobody."""
PRIMARY = "score"
"""The metric that a release is judged by, unless another is named."""
PERCENTILES = (50, 95)
"""Of the seconds of an episode."""


@dataclass(frozen=True, slots=True)
class Change:
    """One metric on the same scenarios: A, B, and the paired difference."""

    name: str
    paired: PairedDifference
    verdict: str = ""
    """``better`` or ``worse``, each wrong in at most 5 % of equal teams: of the primary metric, and of all others
    together (Holm)."""
    cohort: str = ""
    """The problems that it is of; empty: all of them."""

    @property
    def difference(self) -> Interval:
        """Returns B - A with its 95 % interval."""
        return self.paired.interval()

    @property
    def title(self) -> str:
        """Returns its name, with its cohort."""
        return f"{self.name} [{self.cohort}]" if self.cohort else self.name


def judged(pairs: Mapping[tuple[str, str], tuple[Values, Values]]) -> list[Change]:
    """Returns the changes, with 95 % intervals and verdicts.

    Args:
        pairs: (cohort, metric) -> of every problem the numbers of its episodes, of A and of B. Percentiles of seconds
            are added.

    Raises:
        ConfigError: One is no finite number.
    """
    of = dict[tuple[str, str], PairedDifference]()
    for (cohort, name), sides in pairs.items():
        _check_finite(name, sides)
        of[cohort, name] = PairedDifference.of(*sides)
        for percentile in PERCENTILES if name.endswith("seconds") else ():
            of[cohort, f"{name}/p{percentile}"] = PairedDifference.of(*sides, percentile)
    verdicts: dict[tuple[str, str], str] = {}
    for primary in (True, False):
        family = [at for at in of if is_judged(at[1]) and (at == ("", PRIMARY)) is primary]
        for verdict, more in (("better", True), ("worse", False)):
            toward = {at: of[at] if _BAD.isdisjoint(at[1].split("/")) is more else of[at].reversed() for at in family}
            adjusted = holm({d: d.p_above(0.0) for d in toward.values()})
            verdicts |= {at: verdict for at, d in toward.items() if adjusted[d] <= ALPHA}
    return [Change(name, d, verdicts.get((cohort, name), ""), cohort) for (cohort, name), d in of.items()]


def _check_finite(name: str, sides: Sequence[Values]) -> None:
    for side, values in zip("AB", sides, strict=True):
        if odd := [(i, x) for i, episodes in enumerate(values, 1) for x in episodes if not math.isfinite(x)]:
            raise ConfigError(
                f"{name} of {side} is {odd[0][1]} in problem {odd[0][0]} of {len(values)}, and no number in {len(odd)}."
                " Expected finite numbers: correct the task's metrics, or take these episodes' lines out and type the"
                " command of the evaluation again."
            )


def is_judged(name: str) -> bool:
    """Whether more or less of a metric is better or worse."""
    return _NEUTRAL.isdisjoint(name.split("/"))


def scores(played: Sequence[Trajectory]) -> list[float]:
    """Returns the outcome of every episode."""
    return [t.episode.score for t in played]


def metrics(
    before: Sequence[Trajectory], after: Sequence[Trajectory]
) -> dict[str, Callable[[Sequence[Trajectory]], list[float]]]:
    """Returns what computes a metric, one number per episode, by name: the team's, the task's, each agent's.

    A task's metrics and agents are those that both have.
    """
    scored: dict[str, Callable[[Sequence[Trajectory]], list[float]]] = {
        "score": scores,
        "return": lambda x: [t.score for t in x],
    }
    if all(SERVED in t.episode.info for t in (*before, *after)):
        scored = {}  # nobody knows the answers
    found = scored | {
        "errors": lambda x: [float(bool(t.fault)) for t in x],
        "turns": lambda x: [float(len(t.transitions)) for t in x],
        "tokens": lambda x: [float(sum(turn.turn.processed for turn in t.transitions)) for t in x],
    }
    extras = [turn.turn.extras or {} for t in (*before, *after) for turn in t.transitions]
    known = ("seconds", *(["cost"] if any(turn.get("cost") for turn in extras) else ()))
    found |= {what: partial(_spent, what) for what in known if all(what in turn for turn in extras)}
    keys, agents = (
        sorted(set.intersection(*({name for t in side for name in names(t)} for side in (before, after))))
        for names in (lambda t: t.metrics, lambda t: [turn.agent for turn in t.transitions])
    )
    for key in keys:
        found[f"task/{key}"] = lambda x, key=key: [t.metrics.get(key, 0.0) for t in x]
    for agent in agents:
        for name, read in _AGENT.items() if scored else list(_AGENT.items())[1:]:
            found[f"agent/{agent}/{name}"] = lambda x, agent=agent, read=read: [
                read(t, [turn for turn in t.transitions if turn.agent == agent], agent) for t in x
            ]
    return found


def _spent(what: str, played: Sequence[Trajectory]) -> list[float]:
    """Returns what an episode cost; or took, in seconds, where the replies of a layer are written at the same time."""
    over = max if what == "seconds" else sum
    spent = [[float((turn.turn.extras or {})[what]) for turn in t.transitions] for t in played]
    return [
        sum(over([turns[i] for i in layer.turns] or [0.0]) for layer in t.layers)
        for t, turns in zip(played, spent, strict=True)
    ]


_AGENT: dict[str, Callable[[Trajectory, Sequence[Transition], str], float]] = {
    "reward": lambda t, own, agent: (
        sum(turn.turn.reward for turn in own) + sum(layer.agent_rewards.get(agent, 0.0) for layer in t.layers)
    ),
    "truncated": lambda t, own, agent: float(
        any((turn.turn.extras or {}).get("stop_reason") == StopReason.LENGTH for turn in own)
    ),
    "length": lambda t, own, agent: float(sum(turn.length for turn in own)),
}
"""An agent's own numbers in an episode: its own reward, whether a reply was truncated, the length of its replies."""


def printed(changes: Sequence[Change]) -> str:
    """Formats one line per metric: A, B, difference with its interval, verdict; and of a cohort, how many it is.

    Of more than one, numbers of the task and of agents that are the same on every problem are counted, and not shown.
    """
    width, lines, same = max(len(c.title) for c in changes), list[str](), 0
    for c in changes:
        if len(changes) > 1 and "/" in c.name and not c.paired.differing:
            same += 1
            continue
        digits = _DIGITS.get(c.name, 3)
        shown = c.difference.points(*unit(c.name)) + (f", n = {c.paired.n}" if c.cohort else "")
        sides = f"{c.paired.before:8.{digits}f}  {c.paired.after:8.{digits}f}"
        lines.append(f"{c.title:<{width}}  {sides}  {shown}  {c.verdict}".rstrip())
    return "\n".join([*lines, f"the same: {same} more metrics of task and agents (all: --json)"] if same else lines)


_DIGITS = {"cost": 6}


def unit(name: str) -> tuple[str, int, int]:
    """Returns how differences of a metric are written: the unit, its scale, and the decimals (``Interval.points``)."""
    return (" points", 100, 1) if name.startswith((PRIMARY, "team ")) else ("", 1, _DIGITS.get(name, 3))
