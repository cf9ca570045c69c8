"""The grids of a trial: each side has a sweep, over algorithms and learning rates, and the runs of what it chose.

``team`` (with the trained team's messages shuffled, and with its D cut, as rows of their own), ``no-communication`` (D
cut and retrained) and ``single``. All three choose among algorithms and rates by themselves; the single agent once per
budget, all from the same runs, since a run up to one budget is the beginning of a run up to a larger one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import marft_envs
from marft_algos.algorithms import base as algorithms
from marft_algos.config import presets
from marft_algos.extras.bench.grid import AlgorithmEntry, EnvEntry, Grid, Sweep
from marft_algos.extras.bench.grid_runs import single_entry
from marft_algos.extras.bench.sweep import means
from marft_algos.extras.bench.tables import Row, grouped
from marft_algos.extras.bench.versus.trial import Trial
from marft_algos.extras.bench.versus.verdict import UNITS, Unit
from marft_envs.errors import ConfigError

Side = Literal["team", "no-communication", "single"]
Budgets = Mapping[Unit, int]
SPENT: Mapping[Unit, str] = {"sampled": "tokens", "processed": "processed", "latency": "latency"}
"""Under which name a curve counts what was spent."""
CUT = "D cut"
SWAPPED = "shuffled messages of "
"""Before the name of the agent whose messages are shuffled between problems."""


@dataclass(frozen=True, order=True)
class Choice:
    """What a sweep chose."""

    algorithm: str
    lr: float

    @classmethod
    def of(cls, row: Row) -> Choice:
        """Returns what a row of a sweep tried."""
        return cls(row["algorithm"], row["lr"])

    def __str__(self) -> str:
        """As rows are labelled."""
        return f"{self.algorithm} at {self.lr:g}"


def sweep(trial: Trial, side: Side, budgets: Budgets) -> Grid:
    """Makes the grid of which only the stage ``sweep`` is run."""
    names = trial.algorithms if side == "single" else trial.team_trainers
    labelled = {name: _algorithm(trial, name) for name in names}
    return _grid(trial, labelled, {side: _entry(trial, side, budgets)}, budgets, Sweep(trial.lr, trial.sweep_seeds))


def candidates(trial: Trial, side: Side) -> list[Choice]:
    """Lists what a side chooses among."""
    names = trial.algorithms if side == "single" else trial.team_trainers
    return [Choice(name, lr) for name in names for lr in trial.lr]


def main(trial: Trial, side: Side, budgets: Budgets, choices: Sequence[Choice]) -> Grid:
    """Makes the grid of the runs that count, of a team also what is asked of it after training."""
    labelled = {}
    for choice in dict.fromkeys(choices):
        swept = _algorithm(trial, choice.algorithm)
        labelled[str(choice)] = dataclasses.replace(swept, settings={**swept.settings, "lr": choice.lr})
    entry = _entry(trial, side, budgets)
    envs: dict[str, EnvEntry] = {side: entry}
    if side == "team":
        after = dataclasses.replace(entry, trained_on=side)
        envs |= {f"{SWAPPED}{name}": dataclasses.replace(after, swap=name) for name in speakers(trial)}
        if has_dependency(trial):
            envs[CUT] = dataclasses.replace(after, settings=_without_d(entry.settings))
    return _grid(trial, labelled, envs, budgets, None)


def choose(rows: Sequence[Row], unit: Unit = "sampled", budget: int | None = None) -> Choice:
    """Picks the algorithm and rate with the best score when the budget was reached; of equals as the sweep does.

    Args:
        rows: Of a sweep.
        unit: What the budget is of.
        budget: None: the end of the runs.

    Raises:
        ConfigError: No run has ended well.
    """
    tried = {}
    for choice, seeds in grouped(rows, Choice.of).items():
        points = [reached(row, unit, budget) if row["status"] == "done" else None for row in seeds]
        tried[choice] = means(points)
    whole = {choice: both for choice, both in tried.items() if both is not None}
    if not whole:
        why = next((row["error"] for row in rows if row["status"] != "done"), "there are none")
        raise ConfigError(f"No run of the sweep ended well, so nothing can be chosen; the first: {why}")
    return max(whole, key=lambda c: (*whole[c], -c.lr))


def reached(row: Row, unit: Unit, budget: int | None) -> Row | None:
    """Finds the evaluation at the end of the iteration in which a budget was reached; None: it never was."""
    if budget is None:
        return next(reversed(row["curve"]), None)
    return next((point for point in row["curve"] if point[SPENT[unit]] >= budget), None)


def has_dependency(trial: Trial) -> bool:
    """Returns whether there is a D that could be cut."""
    with closing(marft_envs.make(trial.env, **trial.env_kwargs)) as env:
        return presets.accepts(trial.env, "dependency") and not env.unwrapped.dependency.is_empty


def speakers(trial: Trial) -> list[str]:
    """Lists the agents whose messages others may receive: by D, else those that do not give the answer."""
    with closing(marft_envs.make(trial.env, **trial.env_kwargs)) as env:
        edges, team = env.unwrapped.dependency.possible_edges, env.unwrapped.team
    if edges is None:
        return [agent.name for agent in team if not agent.with_answer]
    return [agent.name for agent in team if any(seen == agent.name for seen, _ in edges)]


def _entry(trial: Trial, side: Side, budgets: Budgets) -> EnvEntry:
    more = {f"{unit}_budget": budgets[unit] for unit in UNITS[1:] if unit in budgets}
    # The problems are the trial's, and not those on which that run was scored.
    begun = {"start": trial.start[-1 if side == "single" else 0], "eval_kwargs": {}} if trial.start else {}
    entry = EnvEntry(id=trial.env, settings={**begun, **trial.settings, **more, "env_kwargs": dict(trial.env_kwargs)})
    if side == "no-communication":
        return dataclasses.replace(entry, settings=_without_d(entry.settings))
    if side == "team":
        return entry
    name, kwargs = trial.rival()
    alone = single_entry(dataclasses.replace(entry, single=name))
    return dataclasses.replace(alone, settings={**begun, **alone.settings, "env_kwargs": kwargs})


def _without_d(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings, "env_kwargs": {**settings["env_kwargs"], "dependency": "independent"}}


def setting(trial: Trial, name: str, default: Any) -> Any:
    """Returns a setting of the trial's runs, as the trial or its preset says it."""
    return {**_preset(trial), **trial.settings}.get(name, default)


def _preset(trial: Trial) -> Mapping[str, Any]:
    return presets.get(trial.settings.get("preset", presets.suited(trial.env)))


def _algorithm(trial: Trial, name: str) -> AlgorithmEntry:
    """Gives algorithms that make one step of a batch as many steps of the same tokens as the others make.

    They play a part of the episodes an iteration, where the preset makes several steps of one.
    """
    shared = {**_preset(trial).get("algorithm", {}), **trial.settings.get("algorithm", {})}
    steps = shared.get("epochs", 1) * shared.get("minibatches", 1)
    run = {}
    if algorithms.get(name).Config.one_step and steps > 1:
        episodes = setting(trial, "episodes_per_iteration", 64)
        run = {"episodes_per_iteration": max(episodes // steps, 1)}
    return AlgorithmEntry(algo=name, settings=dict(trial.algorithm.get(name, {})), run=run)


def _grid(
    trial: Trial, labelled: dict[str, AlgorithmEntry], envs: dict[str, EnvEntry], budgets: Budgets, swept: Sweep | None
) -> Grid:
    return Grid(
        algorithms=tuple(labelled),
        envs=tuple(envs),
        token_budget=budgets["sampled"],
        seeds=trial.seeds,
        controls=(),
        baseline=next(iter(labelled)),
        env=envs,
        algorithm=labelled,
        sweep=swept,
    )
