"""From a grid to its runs: each with its resolved settings, under a name that its content gives it.

A run is trained (``train``), or made of trained ones: several answers voted on (``vote``), a trained team scored in
another environment (``ablation``). What cannot be run has the reason in ``skipped``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Set
from contextlib import closing
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

from marft_algos.algorithms import base as algorithms
from marft_algos.algorithms.ppo import PPOConfig
from marft_algos.config import elsewhere, presets
from marft_algos.config import settings as configs
from marft_algos.config.settings import TrainConfig
from marft_algos.extras.bench.folder import SCORES, Stage
from marft_algos.extras.bench.sweep import Rates
from marft_algos.runs import start
from marft_algos.training import environments
from marft_algos.training.policies import sampling
from marft_algos.training.resolve import fitting_algorithm, settled
from marft_algos.training.resolve import resolve as resolve_run
from marft_envs.core.types import optional
from marft_envs.errors import ConfigError

if TYPE_CHECKING:
    from marft_algos.extras.bench.grid import EnvEntry, Grid

ENDLESS = 1_000_000
"""Iterations of a run that its budget ends."""
MEMBER_SEEDS = 1000
"""Between the seeds of agents that are trained apart and vote together."""
_PLACE = ("runs_dir", "name", "threads", "device", "decode_graph")
_ELSEWHERE = (*_PLACE, "cache_gb", "fit_memory", "max_error_rate", "on_task_error")
"""Settings that say where a run is made and what stops it, not what it is."""
_NAMES = tomllib.loads((resources.files("marft_algos.extras.bench") / "later.toml").read_text(encoding="utf-8"))
_LATER = {name: getattr(TrainConfig, name) for name in _NAMES["of_runs"]}
"""Settings that came later, and their defaults: at them a run is what it was, and so its results count."""
_LATER_OF_ALGORITHMS = {
    "lr_warmup": 0,  # of runs that do not begin with trained weights: `settled`
    **dict.fromkeys(_NAMES["of_rft"]),
    "costs": {},
    **{name: getattr(PPOConfig, name) for name in _NAMES["of_ppo"]},
}
_AT_FIRST = (("centring", "reward"), ("turn_mean", "batch"))
"""More of these: MARSHAL's centring, and the mean over turns, whose two values are one in every run that was packed."""
_TEAM = ("dependency", "profiles")
"""Arguments of an environment that speak of its team."""


@dataclass(frozen=True)
class GridRun:
    """One run, or one score made of runs."""

    stage: Stage
    algorithm: str
    env: str
    credit: str
    seed: int
    lr: float | None = None
    kind: Literal["train", "vote", "ablation"] = "train"
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved settings, as ``config.build`` takes them."""
    contribution: int = 0
    samples: int = 0
    """Sampled answers to each problem; an addition to a result, not a part of what the run is."""
    sources: tuple[str, ...] = ()
    """Keys of the trained runs it is made of."""
    reference: str = ""
    """Key of the run whose inference tokens a vote may spend; empty: one answer of each source."""
    swap: str = ""
    """Agent whose messages are shuffled between problems when a trained team is scored."""
    hidden: bool = False
    """A part of another run, no row of its own."""
    skipped: str = ""

    @property
    def key(self) -> str:
        """Hashes what the run is: settings, what is done with them, version of the package."""
        table = {k: v for k, v in _as_before(self.config, _LATER).items() if k not in _ELSEWHERE}
        if "algorithm" in table:
            algorithm = {k: v for k, v in table["algorithm"].items() if (k, v) not in _AT_FIRST}
            risen = {"lr_warmup": algorithm.get("lr_warmup") or 0}  # none: packed before the setting, when no rate rose
            table["algorithm"] = _as_before({**algorithm, **risen}, _LATER_OF_ALGORITHMS)
        content = [SCORES, self.kind, self.contribution, self.sources, self.reference, table]
        content += [self.swap] if self.swap else []
        if self.skipped:
            content = [self.stage, self.algorithm, self.env, self.credit, self.seed, self.lr, self.skipped]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """Names the run for people."""
        parts = [self.algorithm, self.env, self.credit, f"lr {self.lr:g}" if self.lr is not None else ""]
        return " · ".join([*filter(None, parts), f"seed {self.seed}"])

    def row(self) -> dict[str, Any]:
        """Returns plain values, and the key."""
        return {"key": self.key, **dataclasses.asdict(self)}


def _as_before(table: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings without those that came later and stand at their defaults."""
    return {k: v for k, v in table.items() if k not in later or v != later[k]}


def expand(grid: Grid, stage: Stage, rates: Rates | None = None) -> list[GridRun]:
    """Lists the runs of a stage, the trained ones before those made of them.

    Args:
        grid: The benchmark.
        stage: ``sweep`` (every learning rate) or ``main``.
        rates: What the sweep chose; None without a sweep.

    Raises:
        ConfigError: Settings that no run could have.
    """
    grid_runs = list(_Expansion(grid, stage, rates).grid_runs())
    # Trained runs first; where a row and a hidden part are one run, the row remains.
    grid_runs.sort(key=lambda grid_run: (grid_run.kind != "train", not grid_run.hidden))
    return list({(c.key, c.algorithm, c.env): c for c in grid_runs}.values())


class _Expansion:
    """Walks through a grid, and remembers which pairs fit."""

    def __init__(self, grid: Grid, stage: Stage, rates: Rates | None) -> None:
        self.grid, self.stage, self.rates = grid, stage, rates
        self._resolved: dict[str, tuple[TrainConfig, str]] = {}

    def grid_runs(self) -> Iterator[GridRun]:
        """Yields every run of the stage."""
        grid = self.grid
        for env in grid.envs:
            entry = grid.env_entry(env)
            if self.stage == "sweep":
                if not entry.trained_on:
                    yield from self._swept(env, entry)
                continue
            for label in grid.trained:
                for rule in grid.credit or ("",):
                    for seed in grid.seeds:
                        yield from self._team(label, env, entry, rule, seed)
            if not (entry.trained_on or entry.members):
                for seed in grid.seeds:
                    yield from self._controls(env, entry, seed)

    def _swept(self, env: str, entry: EnvEntry) -> Iterator[GridRun]:
        assert self.grid.sweep is not None
        singles = self.grid.singles if {"single", "vote"} & set(self.grid.controls) and entry.single else ()
        for lr in entry.sweep_lr or self.grid.sweep.lr:
            for seed in self.grid.sweep.seeds:
                for label in self.grid.trained:
                    yield self._grid_run(label, env, entry, "", seed, lr)
                for label in () if entry.members else singles:
                    alone = self._grid_run(label, env, single_entry(entry), "", seed, lr)
                    yield dataclasses.replace(alone, algorithm=self.grid.single_row(label))

    def _team(self, label: str, env: str, entry: EnvEntry, rule: str, seed: int) -> Iterator[GridRun]:
        lr = self._rate(label, env)
        if entry.trained_on:
            source = self._grid_run(label, entry.trained_on, self.grid.env_entry(entry.trained_on), rule, seed, lr)
            here = self._grid_run(label, env, dataclasses.replace(entry, trained_on=""), rule, seed, lr)
            scored = dataclasses.replace(here, kind="ablation", sources=(source.key,), contribution=0, samples=0)
            yield dataclasses.replace(scored, swap=entry.swap, skipped=source.skipped or here.skipped)
        elif entry.members:
            members = [self._member(label, env, entry, rule, seed, lr, m) for m in range(entry.members)]
            yield from (m for m in members if not m.skipped)
            keys = tuple(m.key for m in members)
            why = members[0].skipped or _unvotable(members[0])
            yield dataclasses.replace(members[0], kind="vote", seed=seed, sources=keys, hidden=False, skipped=why)
        else:
            yield self._grid_run(label, env, entry, rule, seed, lr)

    def _member(self, label: str, env: str, entry: EnvEntry, rule: str, seed: int, lr: float | None, m: int) -> GridRun:
        budget = (entry.token_budget or self.grid.token_budget) // entry.members
        part = dataclasses.replace(entry, token_budget=budget)
        grid_run = self._grid_run(label, env, part, rule, seed + MEMBER_SEEDS * m, lr)
        return dataclasses.replace(grid_run, hidden=True, contribution=0, samples=0)

    def _controls(self, env: str, entry: EnvEntry, seed: int) -> Iterator[GridRun]:
        grid = self.grid
        if "untrained" in grid.controls:
            start = self._grid_run(grid.algorithms[0], env, entry, "", seed, None, iterations=0)
            yield dataclasses.replace(start, algorithm="untrained", contribution=0)
        alone_or_voting = [control for control in ("single", "vote") if control in grid.controls]
        if not entry.single:
            why = f"[env.{env}] names no environment for a single agent"
            yield from (GridRun(self.stage, control, env, "", seed, skipped=why) for control in alone_or_voting)
        if not entry.single or not alone_or_voting:
            return
        # Of the algorithms that may train the single agent, the one that the sweep's choice left.
        left = [label for label in grid.singles if self._rate(grid.single_row(label), env) is not None]
        label = (left or list(grid.singles))[0]
        row = grid.single_row(label)
        alone = self._grid_run(label, env, single_entry(entry), "", seed, self._rate(row, env))
        alone = dataclasses.replace(alone, algorithm=row, contribution=0, hidden="single" not in grid.controls)
        yield alone
        if "vote" in grid.controls:
            rule = (grid.credit or ("",))[0]
            team = next(self._team(grid.algorithms[0], env, entry, rule, seed))
            yield dataclasses.replace(
                alone,
                algorithm="vote",
                kind="vote",
                samples=0,
                sources=(alone.key,),
                reference=team.key,
                hidden=False,
                skipped=alone.skipped or team.skipped or _unvotable(alone),
            )

    def _rate(self, label: str, env: str) -> float | None:
        return None if self.rates is None else self.rates.get((label, env))

    def _grid_run(
        self, label: str, env: str, entry: EnvEntry, rule: str, seed: int, lr: float | None, **changes: Any
    ) -> GridRun:
        made = GridRun(self.stage, label, env, rule, seed, lr)
        swept = self.stage == "main" and self.rates is not None and changes.get("iterations") != 0
        if swept and lr is None:
            return dataclasses.replace(made, skipped="no learning rate of the sweep ended well")
        variant = self.grid.algorithm_entry(label)
        if rule and "credit" not in {f.name for f in dataclasses.fields(algorithms.get(variant.algo).Config)}:
            return dataclasses.replace(made, skipped=f"{variant.algo} has no choice of credit rule")
        try:
            config, why = self._settings(label, env, entry, rule, changes)
        except ConfigError as error:
            raise ConfigError(f"{made.title}: {error}") from error
        rate = {} if lr is None else {"lr": lr}
        config = dataclasses.replace(config, seed=seed, algorithm=dataclasses.replace(config.algorithm, **rate))
        main = self.stage == "main"
        contribution, samples = (self.grid.contribution, self.grid.samples) if main else (0, 0)
        return dataclasses.replace(made, config=config.table(), contribution=contribution, samples=samples, skipped=why)

    def _settings(
        self, label: str, env: str, entry: EnvEntry, rule: str, changes: Mapping[str, Any]
    ) -> tuple[TrainConfig, str]:
        """Settings that all seeds and rates share, and why the algorithm cannot train this team, or nothing."""
        case = json.dumps([label, env, dataclasses.asdict(entry), rule, changes], sort_keys=True)
        if case not in self._resolved:
            config = resolve(self.grid, label, env, entry, rule, self.stage, changes)
            self._resolved[case] = config, misfit(config)
        return self._resolved[case]


def _unvotable(made: GridRun) -> str:
    """Says why answers to a run's task cannot be voted on, or nothing."""
    if made.skipped:
        return ""
    with closing(environments.make_env(configs.build(made.config), made.config["env_kwargs"])) as env:
        votable = optional(env.unwrapped.task, "answer_key") is not None
    return "" if votable else f"the task of {made.config['env']} has no answer_key(text): replies cannot be voted on"


def misfit(config: TrainConfig) -> str:
    """Says why an algorithm cannot train a team: what it needs and the run does not offer; empty if it can.

    Raises:
        ConfigError: The environment cannot be built.
    """
    with closing(environments.make_env(config, config.env_kwargs)) as env:
        spec = resolve_run(config, env)
    try:
        fitting_algorithm(spec, sampling(config))
    except ConfigError as error:
        return str(error)
    return ""


def single_entry(entry: EnvEntry) -> EnvEntry:
    """Returns the same task for one agent: without what speaks of the team."""
    settings = {k: v for k, v in entry.settings.items() if k not in ("policies", "frozen", "adapters", "start")}
    kwargs = {k: v for k, v in settings.pop("env_kwargs", {}).items() if k not in _TEAM}
    settings["env_kwargs"] = presets.keep_accepted(entry.single, kwargs, general=True)
    return dataclasses.replace(entry, id=entry.single, settings=settings)


def resolve(
    grid: Grid, label: str, env: str, entry: EnvEntry, rule: str, stage: Stage, changes: Mapping[str, Any]
) -> TrainConfig:
    """Resolves a run's settings but for seed and rate: the preset's, the grid's, the environment's, the algorithm's.

    Of a preset made for one algorithm, others take the settings that they have too.
    """
    variant = grid.algorithm_entry(label)
    there, of_runs = variant.on.get(env, {}), {f.name for f in dataclasses.fields(TrainConfig)}
    layers = [grid.settings, entry.settings, variant.run, {k: v for k, v in there.items() if k in of_runs}]
    named = next((layer["preset"] for layer in reversed(layers) if "preset" in layer), presets.suited(entry.id))
    begun = str(next((layer["start"] for layer in reversed(layers) if "start" in layer), ""))
    base = start.defaults(begun, named, entry.id)
    known = algorithms.get(variant.algo).Config.general()
    classes = [algorithms.get(grid.algorithm_entry(label).algo) for label in grid.trained]
    everybody = frozenset(f.name for kind in classes for f in dataclasses.fields(kind.Config))
    taken = frozenset().union(*(kind.Config.general() for kind in classes))
    algorithm: dict[str, Any] = {}
    kwargs = base.env_kwargs if begun else presets.keep_accepted(entry.id, base.env_kwargs)
    table: dict[str, Any] = {"iterations": ENDLESS, "env_kwargs": kwargs}
    for layer in layers:
        rest = dict(layer)
        flat = {key: rest.pop(key) for key in (everybody | known) - of_runs & rest.keys()}
        shared = flat | rest.pop("algorithm", {})
        elsewhere.check(shared, everybody | known, "Expected one of some algorithm of the grid.")
        _check_taken(shared, taken, grid.trained[0])
        algorithm |= {k: v for k, v in shared.items() if k in known}
        table |= rest | {"env_kwargs": table["env_kwargs"] | rest.get("env_kwargs", {})}
    algorithm |= variant.settings | {k: v for k, v in there.items() if k not in of_runs}
    algorithm |= {"credit": grid.credit_rule(rule)} if rule else {}
    sweep = grid.sweep if stage == "sweep" else None
    budget = (sweep and sweep.token_budget) or entry.token_budget or grid.token_budget
    table |= {"algo": variant.algo, "env": entry.id, "token_budget": budget, "keep": "last"}
    if sweep is not None:
        table["eval_every"] = 0  # a rate is chosen by its last score, and a grid's curves are those of its main stage
        if presets.keep_accepted(entry.id, {"split": ""}):
            # The main stage's problems are not looked at before it: rates are chosen on held-out *training* problems.
            table["eval_kwargs"] = {**table.get("eval_kwargs", {}), "split": "train"}
    return settled(configs.build({**table, **changes, "algorithm": algorithm}, base))


def _check_taken(shared: Mapping[str, Any], taken: Set[str], label: str) -> None:
    """Refuses a setting for all algorithms that none of them takes from there; ``label`` is one of them."""
    if lost := sorted(shared.keys() - taken):
        raise ConfigError(
            f"{lost[0]} = {shared[lost[0]]!r} is set for all algorithms of the grid, and none takes it from there:"
            f" {label} has values of its own. Write it for each: [algorithm.{label}] settings = {{ {lost[0]} = … }}; or"
            f" for one environment: [algorithm.{label}.on] ENV = {{ {lost[0]} = … }}"
        )
