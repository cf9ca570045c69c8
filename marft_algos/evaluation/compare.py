"""Compares two teams on the same problems: runs on frozen scenarios, agent by agent (``marft eval --compare A B``).

A team's score can hide an agent that got worse while the others made up for it. So beside the team's numbers and each
agent's own, every policy of B is put into team A alone: what A gains or loses is that agent's own change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft_algos.config.settings import TrainConfig
from marft_algos.evaluation.held_out import HeldOut
from marft_algos.evaluation.options import POSED
from marft_algos.rollout.panel import Panel
from marft_algos.runs import checkpoint, intervals, paths
from marft_algos.runs.disk import reading, writing
from marft_algos.runs.folder import RunFolder, outcome
from marft_algos.runs.intervals import Interval
from marft_algos.training import setup
from marft_algos.types import StopReason, Trajectory, Transition
from marft_envs.errors import ConfigError

_BAD = ("cut", "errors", "obeyed", "seconds")
"""Metrics of which less is better."""
SHAPE = ("models", "lora_r", "lora_alpha", "lora_targets", "full_finetune")
"""Settings in which runs must agree, so that one's weights can play where another's have."""
_NEUTRAL = ("length", "turns", "infra")
"""Metrics that are shown and judged by nobody."""


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


def compare(a: RunFolder, b: RunFolder, scenarios: Path | None = None, which: str = "last") -> list[Change]:
    """Plays the scenarios with A, with B, and with A in which one policy is B's, for every policy.

    Args:
        a: The run to compare with.
        b: The run in question.
        scenarios: Where the frozen set lies; made of A's held-out panel if there is no such file, None: not kept.
        which: Checkpoint, see ``checkpoint.pick``.

    Raises:
        ConfigError: Teams, models or adapters differ, so nothing can be exchanged.
    """
    config = _common(paths.of_run(a), paths.of_run(b), a, b)
    both = HeldOut(config)
    if scenarios is not None:
        both.panel = frozen(scenarios, config.env, setup.eval_kwargs(config), both.panel)
    old, new = (checkpoint.pick(run.checkpoints, which) for run in (a, b))
    both.load(b, which)
    after = both.play()
    both.load(a, which)
    before = both.play()
    old_kept, new_kept = _both(before, after)
    pairs = {("", name): (value(old_kept), value(new_kept)) for name, value in metrics(old_kept, new_kept).items()}
    pairs["", "infra"] = ([float(t.infra) for t in before], [float(t.infra) for t in after])
    for name in both.names if len(both.names) > 1 else []:
        both.policies.load_adapter(name, new / "policies" / name)
        old_kept, new_kept = _both(before, both.play())
        pairs["", f"team A with B's {name}"] = (_scores(old_kept), _scores(new_kept))
        both.policies.load_adapter(name, old / "policies" / name)
    return judged(pairs)


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


def _both(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
    """Leaves out the scenarios that an outage took from either."""
    indices = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if not (a.infra or b.infra)]
    return [before[i] for i in indices], [after[i] for i in indices]


def _scores(played: Sequence[Trajectory]) -> list[float]:
    return [outcome(t.success, t.score) for t in played]


def metrics(
    before: Sequence[Trajectory], after: Sequence[Trajectory]
) -> dict[str, Callable[[Sequence[Trajectory]], list[float]]]:
    """Returns what computes a metric, one number per episode, by name: the team's, the task's, each agent's.

    A task's metrics and agents are those that both have.
    """
    scored: dict[str, Callable[[Sequence[Trajectory]], list[float]]] = {
        "score": _scores,
        "return": lambda x: [t.score for t in x],
    }
    if all(POSED in t.episode.info for t in (*before, *after)):
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
    "cut": lambda t, own, agent: float(
        any((turn.turn.extras or {}).get("stop_reason") == StopReason.LENGTH for turn in own)
    ),
    "length": lambda t, own, agent: float(sum(turn.length for turn in own)),
}
"""An agent's own numbers in an episode: what it alone was paid, whether a reply was cut, how much it said."""


def _common(one: TrainConfig, other: TrainConfig, a: RunFolder, b: RunFolder) -> TrainConfig:
    """Returns A's settings, once it is certain that agents can be exchanged with B.

    Raises:
        ConfigError: They cannot.
    """
    what = "agents cannot be exchanged. Compare their scores alone: marft eval RUN"
    check_alike(one, other, a, b, (*SHAPE, "policies"), what)
    return one


def check_alike(
    one: TrainConfig, other: TrainConfig, a: RunFolder, b: RunFolder, keys: Sequence[str], what: str
) -> None:
    """Refuses two runs that differ in one of these settings, and says what does not work then."""
    for key in keys:
        if (mine := getattr(one, key)) != (theirs := getattr(other, key)):
            raise ConfigError(f"{a.root.name} and {b.root.name} differ in '{key}' ({mine!r}, {theirs!r}): {what}")


def frozen(path: Path, env: str, kwargs: dict[str, Any], panel: Panel) -> Panel:
    """Reads the scenarios of the file, or writes those of ``panel`` if there is none yet.

    Raises:
        ConfigError: They are another environment's.
    """
    if not path.is_file():
        content = {"env": env, "env_kwargs": kwargs, "seeds": panel.seeds, "options": panel.options}
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content) + "\n", encoding="utf-8")
        return panel
    with reading(f"Cannot read the scenarios in '{path}'", "Expected a file written here."):
        content = json.loads(path.read_text(encoding="utf-8"))
        stored = Panel([int(s) for s in content["seeds"]], [dict(o) for o in content["options"]])
        of = content["env"], content["env_kwargs"]
    if of != (env, json.loads(json.dumps(kwargs))):
        raise ConfigError(f"'{path}' holds scenarios of {of[0]} ({of[1]}), not of {env} ({kwargs}).")
    return stored


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
        difference = f"{c.difference.mean:+.3f}" if alone else c.difference.signed()
        shown = f"{difference}, n = {c.difference.n}" if c.cohort or alone else difference
        lines.append(f"{c.title:<{width}}  {c.before:8.3f}  {c.after:8.3f}  {shown}  {c.verdict}".rstrip())
    return "\n".join([*lines, f"the same: {same} more metrics of task and agents (all: --json)"] if same else lines)
