"""Runs a trial, or goes on with one: the team, the team without D, then the single agent on what the team has cost.

Before it trains anything, it finds out whether the trial can work and what it will cost: one iteration of either side
is played and learnt from, in a folder that is thrown away, so that tokens and seconds are measured and not guessed.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import marft_algos
from marft_algos.config import settings as configs
from marft_algos.config.settings import TrainConfig
from marft_algos.extras.bench import grid_runs
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.versus import grids
from marft_algos.extras.bench.versus.grids import SPENT, Budgets, Choice, Row, Side
from marft_algos.extras.bench.versus.trial import Trial
from marft_algos.extras.bench.versus.verdict import UNITS, Unit
from marft_algos.runs.disk import write_whole, writing
from marft_algos.terminal import say as to_terminal
from marft_algos.training import environments
from marft_envs.errors import ConfigError

FILE = "versus.json"
"""The trial, what the team has cost, and what the sweeps chose."""
Say = Callable[[str], None]


def run(trial: Trial, root: Path, jobs: int = 1, say: Say = to_terminal) -> dict[str, Any]:
    """Runs what is missing; returns what stands in ``versus.json``.

    Raises:
        ConfigError: The folder holds another trial, or no run of a side ended well.
    """
    _prepare(trial, root)
    budgets: Budgets = {"sampled": trial.token_budget}
    chosen: dict[str, Any] = {}
    for side in sides(trial):
        if side == "single":
            budgets = spent(finished(root, "team", "team"))
            say(f"the team has cost, in tokens: {described(budgets)}; the single agent gets as much")
        picks = _picked(trial, side, root, budgets, jobs, say)
        for unit, choice in picks.items():
            say(f"{side}{f' at equal {unit}' if side == 'single' else ''}: {choice}")
        runs = grids.main(trial, side, budgets, list(picks.values()))
        runs.run(_folder(root, side, "runs"), jobs=jobs, stage="main", report=_told(say, side))
        chosen[side] = {unit: str(choice) for unit, choice in picks.items()}
    record = {
        "version": marft_algos.__version__,
        "trial": dataclasses.asdict(trial),
        "budgets": dict(budgets),
        "chosen": chosen,
    }
    write_whole(root / FILE, json.dumps(record, indent=1) + "\n")
    return record


def _picked(trial: Trial, side: Side, root: Path, budgets: Budgets, jobs: int, say: Say) -> dict[Unit, Choice]:
    """Sweeps, unless there is nothing to choose among."""
    only = grids.candidates(trial, side)
    if len(only) == 1:
        return dict.fromkeys(_units(side), only[0])
    swept = _folder(root, side, "sweep")
    grids.sweep(trial, side, budgets).run(swept, jobs=jobs, stage="sweep", report=_told(say, f"{side}, sweep"))
    return choices(side, rows(root, side, "sweep"), budgets)


def _units(side: Side) -> tuple[Unit, ...]:
    """Lists what a side has budgets of."""
    return UNITS if side == "single" else UNITS[:1]


def sides(trial: Trial) -> list[Side]:
    """Lists who is trained, in order."""
    return ["team", "no-communication", "single"] if grids.has_dependency(trial) else ["team", "single"]


def choices(side: Side, rows: Sequence[Row], budgets: Budgets) -> dict[Unit, Choice]:
    """Chooses algorithm and rate, for the single agent under each budget by itself."""
    if side != "single":
        return {"sampled": grids.choose(rows)}
    return {unit: grids.choose(rows, unit, budgets[unit]) for unit in UNITS}


def spent(rows: Sequence[Row]) -> Budgets:
    """Averages what runs have cost.

    Raises:
        ConfigError: There are no finished runs.
    """
    if not rows:
        raise ConfigError("No run of the team ended well, so that there is no budget for the single agent; see above.")
    return {unit: round(fmean(row[SPENT[unit]] for row in rows)) for unit in UNITS}


def finished(root: Path, side: Side, env: str) -> list[Row]:
    """Reads the runs that count of a side, in one of its environments, as far as they ended well."""
    return [r for r in rows(root, side, "runs") if r["env"] == env and r["status"] == "done"]


def rows(root: Path, side: Side, part: Literal["sweep", "runs"]) -> list[Row]:
    """Reads the runs of a side's sweep, or those that count; none before they are planned."""
    folder = BenchFolder(_folder(root, side, part))
    return [*folder.rows("sweep" if part == "sweep" else "main")] if folder.bench_file.is_file() else []


def described(budgets: Mapping[Unit, int]) -> str:
    """Writes budgets for people."""
    return ", ".join(f"{budgets[unit]:,} {unit}".replace(",", " ") for unit in UNITS if unit in budgets)


def failures(root: Path, trial: Trial) -> list[str]:
    """Lists the runs that failed, with their errors."""
    parts: tuple[Literal["sweep", "runs"], ...] = ("sweep", "runs")
    return [
        f"{side}: {row['algorithm']} · {row['env']} · seed {row['seed']}: {row['error']}"
        for side in sides(trial)
        for part in parts
        for row in rows(root, side, part)
        if row["status"] in ("failed", "skipped")
    ]


def _prepare(trial: Trial, root: Path) -> None:
    """Makes the folder, or checks that it is of this trial: results of another one would be taken for this one's."""
    file = root / "trial.json"
    table = json.loads(json.dumps(dataclasses.asdict(trial)))
    if file.is_file():
        there = json.loads(file.read_text(encoding="utf-8"))
        if different := [key for key in table if there.get(key) != table[key]]:
            raise ConfigError(
                f"'{root}' is another trial: {', '.join(f'{key} was {there.get(key)!r}' for key in different)}. "
                "Choose another folder: --out DIR"
            )
        return
    if root.is_dir() and any(root.iterdir()):
        raise ConfigError(f"'{root}' is not empty and no trial. Choose another folder: --out DIR")
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(table, indent=1) + "\n")


def _folder(root: Path, side: Side, part: str) -> Path:
    """Names a plain benchmark's folder, which ``marft bench report`` reads, too."""
    return root / f"{side}-{part}"


def _told(say: Say, what: str) -> Say:
    return lambda line: say(f"{what} {line}")


# Before anything is trained ------------------------------------------------------------------------

COMPARED = 64
"""Problems whose names both sides must agree on."""
PILOT_EVALUATION = 16
"""Episodes of an evaluation of the pilot, by which those of runs are estimated."""


@dataclass(frozen=True)
class Cost:
    """What an iteration of one side costs, untrained."""

    spent: Mapping[Unit, int]
    """Tokens, by unit."""
    seconds: float
    """Playing and learning."""
    evaluation: float
    """Seconds of one evaluation."""


def check(trial: Trial) -> dict[Side, TrainConfig]:
    """Checks what can be checked without training; returns settings of each side's first run.

    Raises:
        ConfigError: An algorithm that cannot train a side, other problems, or settings that cannot work.
    """
    budgets = {unit: trial.token_budget for unit in UNITS}
    configs_of = {}
    for side in sides(trial):
        planned = grid_runs.expand(grids.sweep(trial, side, budgets), "sweep")
        for grid_run in planned:
            if grid_run.skipped:
                raise ConfigError(f"{side}: {grid_run.algorithm} cannot train it: {grid_run.skipped}")
        configs_of[side] = configs.build(planned[0].config)
    _same_problems(counted(configs_of["team"]), counted(configs_of["single"]))
    return configs_of


def pilot(config: TrainConfig) -> Cost:
    """Plays and learns one iteration, and measures."""
    from marft_algos.extras.bench import worker

    with tempfile.TemporaryDirectory() as aside:
        one = dataclasses.replace(
            config,
            runs_dir=aside,
            name="pilot",
            iterations=1,
            warm_start=0,
            eval_episodes=min(PILOT_EVALUATION, config.eval_episodes),
            record_episodes=0,
        )
        result = worker.train(one, 0)
    share = config.eval_episodes / one.eval_episodes
    each = result["eval_seconds"] / 2  # before and after the iteration
    return Cost({unit: int(result[SPENT[unit]]) for unit in UNITS}, result["seconds"], share * each)


def fits(trial: Trial, costs: Mapping[Side, Cost]) -> list[str]:
    """Checks budgets against what an iteration costs; returns warnings.

    Raises:
        ConfigError: A budget is smaller than one iteration.
    """
    budgets = single_budgets(trial, costs["team"])
    notes = []
    for side, cost in costs.items():
        for unit in _units(side):
            share = cost.spent[unit] / budgets[unit]
            if share > 1:
                raise ConfigError(
                    f"One iteration of the {side} takes {cost.spent[unit]} tokens ({unit}), and the budget is "
                    f"{budgets[unit]}. Raise --token-budget, or play fewer: --settings episodes_per_iteration=N"
                )
            if side == "single" and share > trial.tolerance:
                notes.append(
                    f"one iteration of the single agent is {share:.0%} of its budget ({unit}): a run may overshoot "
                    f"by as much, and beyond {trial.tolerance:.0%} the comparison stays open"
                )
    return notes


def single_budgets(trial: Trial, team: Cost) -> dict[Unit, int]:
    """Estimates what the team's budget will cost it, by its first iteration."""
    return {u: round(trial.token_budget * team.spent[u] / team.spent["sampled"]) for u in UNITS}


def plan(trial: Trial, costs: Mapping[Side, Cost]) -> list[str]:
    """Says what will be run, how many tokens that takes, and how long, on one core."""
    budgets = single_budgets(trial, costs["team"])
    lines = [f"budgets of a run, by one iteration of the untrained team: {described(budgets)} tokens"]
    seconds, tokens, count = 0.0, 0, 0
    for side in sides(trial):
        cost = costs["single" if side == "single" else "team"]
        choices, units = len(grids.candidates(trial, side)), _units(side)
        swept = choices * len(trial.sweep_seeds) if choices > 1 else 0
        iterations = max(budgets[u] / cost.spent[u] for u in units)
        each = iterations * cost.seconds + cost.evaluation * (2 + len(units))
        least, most = len(trial.seeds), len(units) * len(trial.seeds)
        runs = f"{least} to {most}" if most > least else f"{most}"
        size = f"about {each:.0f} s and {iterations:.0f} iterations each"
        lines.append(f"{side}: {swept} runs of the sweep, {runs} that count, {size}")
        seconds += each * (swept + most)
        tokens += round(iterations * cost.spent["sampled"] * (swept + most))
        count += swept + most
    spoken = len(grids.speakers(trial)) + grids.has_dependency(trial)
    lines.append(f"and {spoken * len(trial.seeds)} evaluations of the trained team, messages shuffled or D cut")
    if warm := grids.setting(trial, "warm_start", 0):
        lines.append(f"and a warm start of {warm} iterations for each side and seed, which is not in the sum")
    grouped = f"{tokens:,}".replace(",", " ")
    lines.append(f"in all at most {count} runs, {grouped} sampled tokens, {_clock(seconds)} of one core")
    return lines


def _clock(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def counted(config: TrainConfig) -> TrainConfig:
    """Returns settings of the runs that count: the sweep has its problems of the training split."""
    kept = {k: v for k, v in config.eval_kwargs.items() if k != "split"}
    return dataclasses.replace(config, eval_kwargs=kept)


def _same_problems(team: TrainConfig, single: TrainConfig) -> None:
    ours, theirs = _names(team), _names(single)
    if len(ours) != len(theirs) or ours != theirs:
        where = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
        pair = f"'{ours[where]}' and '{theirs[where]}'" if ours and theirs else "none"
        raise ConfigError(
            f"The team ({team.env}) and the single agent ({single.env}) are not scored on the same problems: "
            f"{ours[-1]} and {theirs[-1]} of them, the first that differ {pair}. "
            "Name another environment (--single ENV), or its arguments (--single-kwargs KEY=VALUE)."
        )


def _names(config: TrainConfig) -> list[Any]:
    """Names the problems on which a side is scored, as many as are compared."""
    held_out = environments.make_env(config, environments.eval_kwargs(config))
    with closing(held_out), closing(environments.make_env(config, config.env_kwargs)) as env:
        evaluation_set = environments.problems(config, env, held_out).held_out
        names = []
        for seed, options in list(zip(evaluation_set.seeds, evaluation_set.options, strict=True))[:COMPARED]:
            held_out.reset(seed=seed, options=dict(options))
            names.append(held_out.unwrapped.task.task_id)
    return [*names, len(evaluation_set)]
