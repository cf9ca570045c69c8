"""What changed between two teams on the same problems: metrics with paired intervals, verdicts, a release's gate."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from marft_algos.runs import intervals
from marft_algos.runs.intervals import Interval
from marft_algos.types import StopReason, Trajectory, Transition
from marft_envs.errors import ConfigError, check_known

SERVED = "served"
"""In the facts of an episode whose task was a user's words: nobody knows what it is worth."""
_BAD = ("truncated", "errors", "obeyed", "seconds")
"""Metrics of which less is better."""
_NEUTRAL = ("length", "turns", "infrastructure_errors")
"""Metrics that are shown and judged by nobody."""
POINT = 0.01
"""Of a score."""
_SIGNED = re.compile(r"[+-](\d+\.?\d*|\.\d+)")


@dataclass(frozen=True, slots=True)
class Change:
    """One metric on the same scenarios: A, B, and the paired difference."""

    name: str
    before: float
    after: float
    difference: Interval
    verdict: str
    """``better``, ``worse``, or nothing where the interval of all gated metrics together includes 0."""
    cohort: str = ""
    """The problems that it is of; empty: all of them."""

    @property
    def title(self) -> str:
        """Returns its name, with its cohort."""
        return f"{self.name} [{self.cohort}]" if self.cohort else self.name


def judged(pairs: dict[tuple[str, str], tuple[list[float], list[float]]]) -> list[Change]:
    """Returns the changes with 95 % intervals each; verdicts hold for all gated metrics together (Bonferroni).

    Args:
        pairs: (cohort, metric) -> a number per problem of A and of B. One problem alone has no interval and no verdict.
    """
    gated = [(cohort, name) for (cohort, name), (before, _) in pairs.items() if is_judged(name) and len(before) > 1]
    out = []
    for (cohort, name), (before, after) in pairs.items():
        difference, verdict = intervals.paired(before, after), ""
        if (cohort, name) in gated:
            strict = intervals.paired(before, after, 1 - 0.05 / len(gated))
            if strict.low > 0 or strict.high < 0:
                good = (strict.mean > 0) is (name.rpartition("/")[2] not in _BAD)
                verdict = "better" if good else "worse"
        if len(before) == 1:
            difference = Interval(difference.mean, math.nan, math.nan, 1)
        old, new = sum(before) / len(before), sum(after) / len(after)
        out.append(Change(name, old, new, difference, verdict, cohort))
    return out


def is_judged(name: str) -> bool:
    """Whether more or less of a metric is better or worse."""
    return name.rpartition("/")[2] not in _NEUTRAL


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
    }
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
        d = c.difference
        if len(changes) > 1 and "/" in c.name and d.mean == 0 == d.low == d.high:
            same += 1
            continue
        alone = c.difference.n == 1
        difference = c.difference.points() if c.name.startswith(("score", "team ")) else c.difference.points("", 1)
        difference = difference.partition(" [")[0] if alone else difference
        shown = f"{difference}, n = {c.difference.n}" if c.cohort or alone else difference
        lines.append(f"{c.title:<{width}}  {c.before:8.3f}  {c.after:8.3f}  {shown}  {c.verdict}".rstrip())
    return "\n".join([*lines, f"the same: {same} more metrics of task and agents (all: --json)"] if same else lines)


@dataclass(frozen=True, slots=True)
class Check:
    """One change that a gate allows or not."""

    change: Change
    limit: str
    """As typed; empty: nothing that has become worse beyond its interval is allowed."""
    failed: bool


def gates(written: Mapping[str, str], fail_if_worse: float | None) -> dict[str, str]:
    """Returns metric -> the change that is allowed, with its sign: by how much it may fall (-) or rise (+).

    Raises:
        ConfigError: One has no sign, or is no number.
    """
    found = {} if fail_if_worse is None else {"score": f"-{fail_if_worse * POINT:g}"}
    for metric, text in written.items():
        if not _SIGNED.fullmatch(text):
            raise ConfigError(
                f"--gate {metric}={text}: expected a number with its sign, by how much the mean may change: -0.02 (may"
                " fall by 0.02) or +0 (may not rise)."
            )
        found[metric.removeprefix("task/")] = text
    return found


def checks(changes: Sequence[Change], allowed: Mapping[str, str]) -> list[Check]:
    """Judges changes: by the means of their differences where gates are given, else by the verdicts.

    A cohort of one problem passes every gate: the whole it belongs to does not have to.

    Raises:
        ConfigError: A gate names no metric of these evaluations.
    """
    if not allowed:
        return [Check(c, "", c.verdict == "worse") for c in changes if is_judged(c.name)]
    known = {c.name.removeprefix("task/") for c in changes}
    check_known(allowed, known, "--gate {}: there is no such metric.")
    found = []
    for c in changes:
        if limit := allowed.get(c.name.removeprefix("task/"), ""):
            beyond = float(f"{limit[0]}1") * c.difference.mean - float(limit[1:]) > 1e-9  # not by rounding
            found.append(Check(c, limit, beyond and not (c.cohort and c.difference.n < 2)))
    return found
