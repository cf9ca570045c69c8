"""The grid of a benchmark: made in Python, or read from a TOML file (``examples/configs/bench_*.toml``).

A label in ``envs``, ``algorithms`` or ``credit`` is a name, or that of a table ``[env.LABEL]``, ``[algorithm.LABEL]``
or ``[rule.LABEL]`` that says what it stands for: a team shape, another D, an algorithm or rule with its own settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import TypeAdapter

from marft_algos import credit as credits_
from marft_algos.algorithms import base as algorithms
from marft_algos.config import elsewhere, settings
from marft_algos.extras.bench.folder import BenchFolder, Stage
from marft_algos.ranges import COUNT, NOT_NEGATIVE, RATE, SEED, Range, Settings, checked, converted, hints
from marft_algos.terminal import say
from marft_envs.errors import ConfigError, check_known, did_you_mean

Control = Literal["untrained", "single", "vote", "reinforce", "rft"]
CONTROLS: tuple[Control, ...] = ("untrained", "single", "vote", "reinforce", "rft")
LEARNING = Range(0.0, RATE.high, open_low=True)
"""Rates of a sweep: at 0 nothing would be learnt."""
ALL = "all"
"""In ``algorithms``: every registered one."""


class GridTable(Settings):
    """Base class of the grid's tables: fields take what TOML, JSON and Python give them."""

    @classmethod
    def elsewhere(cls, name: str) -> str:
        """Returns where a setting of runs is written."""
        of_runs = hints(settings.TrainConfig).keys() | hints(algorithms.UpdateConfig).keys() | {"data"}
        return f"Write it under [settings]: {name} = …" if name in of_runs else elsewhere.advice(name)

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for a value of the wrong type, or outside what its field declares."""
        for name, hint in hints(type(self)).items():
            object.__setattr__(self, name, converted(name, getattr(self, name), hint))


@dataclass(frozen=True)
class EnvEntry(GridTable):
    """What an environment's label stands for."""

    id: str = ""
    """The environment; the label by default."""
    single: str = ""
    """The environment in which one agent does the same task on the same problems, for the single-agent controls."""
    members: Annotated[int, NOT_NEGATIVE] = 0
    """Train so many agents on their own, each on its part of the budget, and let them vote."""
    trained_on: str = ""
    """Another label: its trained teams are only scored here (with D ablated, say)."""
    swap: str = ""
    """With ``trained_on``: the agent who says, on every problem, what it said on another one."""
    token_budget: Annotated[int | None, COUNT] = None
    """Instead of the grid's."""
    sweep_lr: Annotated[tuple[float, ...], LEARNING] = ()
    """Instead of the sweep's learning rates, for every algorithm alike."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the run, as in a run's config.toml."""


@dataclass(frozen=True)
class AlgorithmEntry(GridTable):
    """What an algorithm's label stands for."""

    algo: str = ""
    """The algorithm; the label by default."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the algorithm, as under ``[algorithm]`` in a run's config.toml."""
    on: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Label of an environment -> settings there, of the algorithm or of the run."""
    run: dict[str, Any] = field(default_factory=dict)
    """Settings of the run that it needs, such as ``policies = "shared"``; over the environment's."""


@dataclass(frozen=True)
class Sweep(GridTable):
    """Learning rates, tried for every algorithm alike, on seeds that the main stage does not have."""

    lr: Annotated[tuple[float, ...], LEARNING]
    seeds: Annotated[tuple[int, ...], SEED]
    token_budget: Annotated[int | None, COUNT] = None
    """Of one run; none: as in the main stage."""


@dataclass(frozen=True)
class Grid(GridTable):
    """A benchmark: every algorithm in every environment, with every seed.

    >>> bench = Grid(["marft", "grpo"], ["relay-v0"], token_budget=4000, seeds=range(3)).run("runs/small", jobs=2)
    >>> bench.report()

    Raises:
        ConfigError: An unknown key, name or label, or a value of the wrong type.
    """

    algorithms: tuple[str, ...]
    """Labels, or ``all``."""
    envs: tuple[str, ...]
    """Labels."""
    token_budget: Annotated[int, COUNT]
    """Tokens sampled for training in one run: dropped groups, refills and branches count."""
    seeds: Annotated[tuple[int, ...], SEED] = (0, 1, 2, 3, 4)
    """Of the runs; five are few, three are the least that give an interval."""
    credit: tuple[str, ...] = ()
    """Credit rules, by name or label; empty: each algorithm's own default."""
    baseline: str = "reinforce"
    """Differences are against it, paired."""
    reference: str = ""
    """Label in ``envs`` with the same problems as the others: each row's differences to it are reported as well,
    paired."""
    single: str | tuple[str, ...] = ()
    """Algorithms that may train the single agent; the sweep chooses the best, with its rate. Default: the first one."""
    controls: tuple[Control, ...] = CONTROLS
    """Rows that a comparison without would mislead; leave some out only where they stand elsewhere."""
    samples: Annotated[int, NOT_NEGATIVE] = 0
    """Answers sampled to each problem of the evaluation set by a trained team, for ``avg@k`` beside the greedy score;
    0: none. Finished runs whose folders are there are sampled, too, without being trained again."""
    contribution: Annotated[int, NOT_NEGATIVE] = 0
    """Episodes on which the team is scored with each policy set back to its start, one at a time; 0: not."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of every run, as in a run's config.toml."""
    env: dict[str, EnvEntry] = field(default_factory=dict)
    algorithm: dict[str, AlgorithmEntry] = field(default_factory=dict)
    rule: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Label in ``credit`` -> a rule with its arguments."""
    sweep: Sweep | None = None
    """None: the settings' learning rates are used."""

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for names that do not exist, and numbers that make no sense."""
        super().__post_init__()
        if ALL in self.algorithms:
            # Who imitates demonstrations has seen the answers, and is no rival to those who are rewarded.
            rewarded = [name for name in algorithms.names() if not algorithms.get(name).imitates]
            labels = dict.fromkeys([*rewarded, *self.algorithms])
            object.__setattr__(self, "algorithms", tuple(label for label in labels if label != ALL))
        _check(self)

    def table(self) -> dict[str, Any]:
        """Returns what is not as by default, as plain values: the TOML file of this grid."""
        return TypeAdapter(Grid).dump_python(self, mode="json", exclude_defaults=True)

    def run(
        self,
        folder: Path | str,
        *,
        jobs: int = 1,
        stage: Literal["all", "sweep", "main"] = "all",
        report: Callable[[str], None] = say,
    ) -> BenchFolder:
        """Runs every run of the grid, or goes on where an earlier call was stopped, and tries failed ones again.

        A script that calls this does so below ``if __name__ == "__main__":``, as each run is a process.

        Args:
            folder: Of the benchmark; what has been run there is not run again.
            jobs: Processes side by side, each with one thread.
            stage: ``sweep``: only the sweep over learning rates; ``main``: only the runs that count.
            report: Takes a line for each run.

        Returns:
            The folder: ``rows()`` are the runs with their status and scores, ``report()`` writes tables and figures.

        Raises:
            ConfigError: A run that cannot work, another version's folder, or a sweep that has not been run.
        """
        from marft_algos.extras.bench.run import run

        return run(self, BenchFolder(Path(folder)), self.stages(stage), jobs, report)

    def stages(self, wanted: Literal["all", "sweep", "main"]) -> list[Stage]:
        """Returns the stages that are wanted and that there are, in order.

        Raises:
            ConfigError: Only the sweep is wanted, and there is none.
        """
        if wanted == "sweep" and self.sweep is None:
            raise ConfigError("The grid has no [sweep] with learning rates and seeds.")
        if wanted != "all":
            return [wanted]
        return ["sweep", "main"] if self.sweep else ["main"]

    def env_entry(self, label: str) -> EnvEntry:
        """Returns the environment that the label stands for."""
        entry = self.env.get(label, EnvEntry())
        return dataclasses.replace(entry, id=entry.id or label)

    def algorithm_entry(self, label: str) -> AlgorithmEntry:
        """Returns the algorithm that the label stands for."""
        entry = self.algorithm.get(label, AlgorithmEntry())
        return dataclasses.replace(entry, algo=entry.algo or label)

    def credit_rule(self, label: str) -> str | dict[str, Any]:
        """Returns the rule that the label stands for, as the setting ``credit`` of an algorithm takes it."""
        return self.rule.get(label, label)

    @property
    def trained(self) -> tuple[str, ...]:
        """Labels of every algorithm that trains teams here, controls and baseline included."""
        wanted = [*self.algorithms, *(c for c in ("reinforce", "rft") if c in self.controls)]
        return tuple(dict.fromkeys(wanted))

    @property
    def singles(self) -> tuple[str, ...]:
        """Labels of the algorithms that may train the single agent."""
        named = (self.single,) if isinstance(self.single, str) else self.single
        return tuple(filter(None, named)) or self.algorithms[:1]

    def single_row(self, label: str) -> str:
        """Names the single agent's row if this algorithm trains it."""
        return "single" if len(self.singles) == 1 else f"single ({label})"


def load(path: Path | str, *, trusted: bool = False) -> Grid:
    """Reads a grid.

    Args:
        path: A TOML file.
        trusted: Take settings that execute or send from it, too; see ``marft_algos.config.trust``.

    Raises:
        ConfigError: An unknown key, name or label, or a value of the wrong type.
        TrustError: Settings that execute or send, and nobody has allowed them.
    """
    return build(settings.read(path, trusted))


def build(table: Mapping[str, Any]) -> Grid:
    """Makes a grid from plain values; see ``load``."""
    return checked(Grid, table, where="the grid")


def _check(grid: Grid) -> None:
    """Names that must exist, numbers that must make sense."""
    for key in ("algorithms", "envs", "seeds"):
        chosen = getattr(grid, key)
        if not chosen or len(set(chosen)) < len(chosen):
            raise ConfigError(f"'{key}' is {list(chosen)}; expected at least one, and none twice.")
    if len(grid.singles) > 1 and grid.sweep is None:
        named = ", ".join(grid.singles)
        raise ConfigError(f"'single' names {named}, and there is no [sweep] to choose among them. Name one, or add it.")
    for label in [*grid.trained, *grid.singles]:
        algorithms.get(grid.algorithm_entry(label).algo)
    for label in grid.credit:
        credits_.get(grid.credit_rule(label))
    rows = list(dict.fromkeys([*grid.trained, *grid.controls]))
    if grid.baseline not in rows:
        add = f', or add "{grid.baseline}" to controls' if grid.baseline in CONTROLS else ""
        after = f'Name a row of the grid: baseline = "{rows[0]}"{add}.'
        check_known([grid.baseline], rows, "The baseline '{}' is in neither algorithms nor controls.", after=after)
    check_known(filter(None, [grid.reference]), grid.envs, "The reference '{}' is not in 'envs'.")
    for kind, key, used in (
        ("env", "envs", grid.envs),
        ("algorithm", "algorithms", [*grid.trained, *grid.singles]),
        ("rule", "credit", grid.credit),
    ):
        check_known(getattr(grid, kind), used, f"[{kind}.{{}}] is not in '{key}'.")
    for label, entry in grid.algorithm.items():
        check_known(entry.on, grid.envs, f"[algorithm.{label}.on.{{}}] is not in 'envs'.")
    _check_envs(grid)
    if grid.sweep is not None:
        if not grid.sweep.lr or not grid.sweep.seeds:
            raise ConfigError("[sweep] needs learning rates and seeds of its own.")
        if both := set(grid.sweep.seeds) & set(grid.seeds):
            raise ConfigError(f"Seeds {sorted(both)} are in both stages: rates chosen on a seed flatter it.")


def _check_envs(grid: Grid) -> None:
    for label in grid.envs:
        entry = grid.env_entry(label)
        source = entry.trained_on
        if source and (source not in grid.envs or grid.env_entry(source).trained_on or grid.env_entry(source).members):
            raise ConfigError(
                f"[env.{label}] is trained on '{source}', which is no label that trains a team. "
                f"{did_you_mean(source, [e for e in grid.envs if not grid.env_entry(e).trained_on])}"
            )
        if entry.swap and not source:
            raise ConfigError(f"[env.{label}]: swap shuffles messages of a trained team. Name it: trained_on = LABEL.")
        if entry.members == 1 or (entry.members and source):
            raise ConfigError(f"[env.{label}]: members is {entry.members}; a vote takes two or more, trained here.")
        if entry.sweep_lr and (grid.sweep is None or source):
            raise ConfigError(f"[env.{label}] has sweep_lr, and no sweep.")
