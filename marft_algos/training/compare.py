"""Compares runs: agent by agent on frozen scenarios (``marft eval --compare A B``), and as each other's partners.

A team's score can hide an agent that got worse while the others made up for it. So beside the team's numbers and each
agent's own, every policy of B is put into team A alone: what A gains or loses is that agent's own change.

With ``marft eval --cross RUN RUN …`` every run's agents play with every other's: cross-play and exploitability.
Agents that were trained together may have agreed on a language that nobody else speaks, and an opponent that one has
always met says nothing of others. So some seats are played by the row's run and the others by the column's, on the
same held-out problems. A self-play score far above cross-play's is an agreement; in a game of own rewards, what
somebody else would gain in the place of one of two sides is how far a run can be exploited:

    NashConv(i) = [max_k u_row(k, i) − u_row(i, i)] + [max_k u_column(i, k) − u_column(i, i)]

over the runs k that are there (arXiv 1711.00832, section 3): a lower bound, as a better answer may not be among them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marft_algos import credit
from marft_algos.config.settings import TrainConfig
from marft_algos.evaluation.changes import Change, judged, metrics, scores
from marft_algos.evaluation.environments import PROMPTS_CHECKED
from marft_algos.models import assignment
from marft_algos.rollout.episodes import Prompts
from marft_algos.runs import checkpoint, intervals, paths
from marft_algos.runs.disk import write_whole, writing
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.intervals import Interval
from marft_algos.training.environments import eval_kwargs, make_env
from marft_algos.training.evaluate import HeldOut
from marft_algos.types import Estimates, Trajectory
from marft_envs.errors import ConfigError, did_you_mean, reading

SHAPE = ("models", "lora_r", "lora_alpha", "lora_targets", "full_finetune")
"""Settings in which runs must agree, so that one's weights can play where another's have."""


def compare(a: RunFolder, b: RunFolder, scenarios: Path | None = None, which: str = "last") -> list[Change]:
    """Plays the scenarios with A, with B, and with A in which one policy is B's, for every policy.

    Args:
        a: The run to compare with.
        b: The run in question.
        scenarios: Where the frozen set lies; made of A's held-out evaluation set if there is no such file, None: not
            kept.
        which: Checkpoint, see ``checkpoint.pick``.

    Raises:
        ConfigError: Teams, models or adapters differ, so agents cannot change teams; or they are scored on other
            problems.
    """
    config, other = paths.of_run(a), paths.of_run(b)
    what = "agents cannot change teams. Compare their scores alone: marft eval RUN"
    _check_alike(config, other, a, b, ("env", *SHAPE, "policies"), what)
    if eval_kwargs(config) != eval_kwargs(other) and _problems(config) != _problems(other):
        raise ConfigError(
            f"{a.root.name} is scored on {paths.task(a)} and {b.root.name} on {paths.task(b)}, which are different"
            " problems. Expected two runs with the same held-out problems; each by itself: marft eval RUN"
        )
    both = HeldOut(config)
    if scenarios is not None:
        both.evaluation_set = frozen(scenarios, config.env, eval_kwargs(config), both.evaluation_set)
    old, new = (checkpoint.pick(run.checkpoints, which) for run in (a, b))
    both.load(b, which)
    after = both.play()
    both.load(a, which)
    before = both.play()
    old_kept, new_kept = _both(before, after)
    pairs = {("", name): (value(old_kept), value(new_kept)) for name, value in metrics(old_kept, new_kept).items()}
    lost = [[float(t.infrastructure_error) for t in played] for played in (before, after)]
    pairs["", "infrastructure_errors"] = lost[0], lost[1]
    for name in both.names if len(both.names) > 1 else []:
        both.policies.load_adapter(name, new / "policies" / name)
        old_kept, new_kept = _both(before, both.play())
        pairs["", f"team A with B's {name}"] = (scores(old_kept), scores(new_kept))
        both.policies.load_adapter(name, old / "policies" / name)
    return judged({at: ([[x] for x in old], [[x] for x in new]) for at, (old, new) in pairs.items()})


def _problems(config: TrainConfig) -> list[str]:
    """Returns the ids of some held-out problems of a run's settings, drawn with the same seeds for all."""
    ids = []
    with closing(make_env(config, eval_kwargs(config))) as env:
        for seed in range(PROMPTS_CHECKED):
            env.reset(seed=seed)
            ids.append(env.unwrapped.task.task_id)
    return ids


def _both(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
    """Leaves out the scenarios with an infrastructure error in either."""
    both = [pair for pair in zip(before, after, strict=True) if not any(t.infrastructure_error for t in pair)]
    return [old for old, _ in both], [new for _, new in both]


def _check_alike(
    one: TrainConfig, other: TrainConfig, a: RunFolder, b: RunFolder, keys: Sequence[str], what: str
) -> None:
    """Refuses two runs that differ in one of these settings, and says what does not work then."""
    for key in keys:
        if (mine := getattr(one, key)) != (theirs := getattr(other, key)):
            raise ConfigError(f"{a.root.name} and {b.root.name} differ in '{key}' ({mine!r}, {theirs!r}): {what}")


def frozen(path: Path, env: str, kwargs: dict[str, Any], evaluation_set: Prompts) -> Prompts:
    """Reads the scenarios of the file, or writes those of ``evaluation_set`` if there is none yet.

    Raises:
        ConfigError: They are another environment's.
    """
    if not path.is_file():
        content = {"env": env, "env_kwargs": kwargs, "seeds": evaluation_set.seeds, "options": evaluation_set.options}
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content) + "\n")
        return evaluation_set
    with reading(f"Cannot read the scenarios in '{path}'", "Expected a file written here."):
        content = json.loads(path.read_text(encoding="utf-8"))
        stored = Prompts([int(s) for s in content["seeds"]], [dict(o) for o in content["options"]])
        of = content["env"], content["env_kwargs"]
    if of != (env, json.loads(json.dumps(kwargs))):
        raise ConfigError(f"'{path}' holds scenarios of {of[0]} ({of[1]}), not of {env} ({kwargs}).")
    return stored


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rewards of the row's seats and of the others, by run of the row and of the column."""

    names: Sequence[str]
    seats: Sequence[str]
    """Agents that the row's run plays."""
    rows: Sequence[Sequence[Interval]]
    """Mean reward of the row's seats."""
    columns: Sequence[Sequence[Interval]]
    """Mean reward of the other seats."""

    @property
    def n(self) -> int:
        """Returns the fewest episodes of a pair; the rest were lost to infrastructure errors."""
        return min(pair.n for line in self.rows for pair in line)

    @property
    def cross_play(self) -> tuple[float, float]:
        """Returns means of both sides' rewards: of a run with itself, and with others."""
        both = [
            [(r.mean + c.mean) / 2 for r, c in zip(*lines, strict=True)]
            for lines in zip(self.rows, self.columns, strict=True)
        ]
        own, count = np.trace(both), len(self.names)
        return float(own / count), float((np.sum(both) - own) / (count * (count - 1)))

    def nash_conv(self, i: int) -> float:
        """Returns what both sides of run ``i`` together would gain by the best run that is there."""
        row = max(line[i].mean for line in self.rows) - self.rows[i][i].mean
        return row + max(pair.mean for pair in self.columns[i]) - self.columns[i][i].mean

    def __str__(self) -> str:
        width = max(18, *(len(name) + 2 for name in self.names))
        lines = [" " * width + "".join(f"{name:>{width}}" for name in self.names)]
        for name, *pairs in zip(self.names, self.rows, self.columns, strict=True):
            scores = (f"{row.mean:.3f} / {column.mean:.3f}" for row, column in zip(*pairs, strict=True))
            lines.append(f"{name:<{width}}" + "".join(f"{score:>{width}}" for score in scores))
        return "\n".join(lines)


def cross(
    runs: Sequence[RunFolder], seats: Sequence[str] = (), which: str = "last", episodes: int | None = None
) -> Matrix:
    """Plays every pair of runs, both ways, on the first run's held-out problems.

    Args:
        runs: Two or more, of one environment and of base models of one shape.
        seats: Agents or roles that the row's run plays; empty: the first agent.
        which: Checkpoint, see ``checkpoint.pick``.
        episodes: Only so many problems; None: all.

    Raises:
        ConfigError: Runs differ in what their weights fit, or nobody is left for one of the sides.
    """
    configs = [paths.of_run(run) for run in runs]
    for config, run in zip(configs, runs, strict=True):
        what = "one cannot play the other's seats. Expected runs of one environment and one shape of model."
        _check_alike(configs[0], config, runs[0], run, ("env", *SHAPE), what)
    if not isinstance(configs[0].models, str):
        raise ConfigError(
            "Agents with base models of their own have no seat in another's team. Expected one model for all."
        )
    both = HeldOut(dataclasses.replace(configs[0], policies="own", start="", adapters={}), episodes)
    known = [agent.name for agent in both.team if agent.name in both.names]
    first = _seats(seats, both, known)
    weights = [_adapters(run, config, both, which) for run, config in zip(runs, configs, strict=True)]
    rows, columns = list[list[Interval]](), list[list[Interval]]()
    for row in weights:
        rows.append([])
        columns.append([])
        for column in weights:
            for agent in known:
                both.policies.load_adapter(agent, (row if agent in first else column)[agent])
            played = [t for t in both.play() if not t.infrastructure_error]
            rows[-1].append(intervals.mean([_paid(t, first) for t in played]))
            columns[-1].append(intervals.mean([_paid(t, [a for a in known if a not in first]) for t in played]))
    return Matrix([run.root.name for run in runs], first, rows, columns)


def _adapters(run: RunFolder, config: TrainConfig, both: HeldOut, which: str) -> dict[str, Path]:
    """Returns where the weights are with which a run plays an agent."""
    saved = checkpoint.pick(run.checkpoints, which) / "policies"
    team = [agent for agent in both.team if both.policies.renderer.plays(agent.name)]  # partners are not
    return {agent: saved / policy for agent, policy in assignment.assign(team, config.policies).items()}


def _seats(seats: Sequence[str], both: HeldOut, known: Sequence[str]) -> list[str]:
    """Returns the trained agents that the row's run plays."""
    roles = {agent.name: agent.role for agent in both.team}
    for seat in seats:
        if seat not in known and seat not in (roles[name] for name in known):
            raise ConfigError(f"Nobody who is trained is called '{seat}'. {did_you_mean(seat, known)}")
    first = [name for name in known if name in seats or roles[name] in seats] if seats else list(known[:1])
    if len(first) == len(known):
        raise ConfigError(f"The row's run would play all of {', '.join(known)}. Name fewer with --seats.")
    return first


def _paid(trajectory: Trajectory, agents: Sequence[str]) -> float:
    """Returns these agents' mean reward: the team's rewards, their own and their turns'."""
    paid = credit.broadcast(trajectory)
    return float(np.mean([credit.agent_score(trajectory, paid, agent, Estimates()) for agent in agents]))
