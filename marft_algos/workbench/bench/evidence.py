"""What a packed benchmark must show before its numbers are ranked: each is computed again from the outcomes.

A file may be anybody's: nothing that it names is imported or started without ``--trust``, and what its fields hold is
checked before it is used. What no file can show is that its outcomes were had by the training that it describes.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError

from marft_algos.algorithms import base as algorithms
from marft_algos.config import settings as configs
from marft_algos.config import trust
from marft_algos.config.settings import TrainConfig
from marft_algos.runs.folder import PanelFacts
from marft_algos.training import setup
from marft_algos.workbench.bench import sweep
from marft_algos.workbench.bench.cells import Cell
from marft_algos.workbench.bench.packed import Packed
from marft_envs.errors import ConfigError, DataError, MarftError

MOST_EPISODES = 100_000
"""Of an evaluation: a file that asks for more would only keep this machine busy."""
_OF_CELLS = {f.name for f in dataclasses.fields(Cell)} - {"samples", "contribution"}
"""What a result may not say of itself, for a row is its cell and its result."""


class EvidenceError(DataError):
    """A packed benchmark says what does not follow from what it holds."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Point(_Strict):
    score: FiniteFloat
    tokens: NonNegativeInt
    outcomes: list[FiniteFloat | None]


class _Spent(_Strict):
    tokens: NonNegativeInt


class _Result(_Strict):
    """What a result must have; of other fields nothing is used."""

    problems: list[str]
    outcomes: list[FiniteFloat | None]
    score: FiniteFloat
    train_score: FiniteFloat = 0.0
    tokens: NonNegativeInt
    processed: NonNegativeInt | None = None
    infra: NonNegativeInt = 0
    curve: list[_Point]
    drift: list[_Spent]


class _Bench(_Strict):
    stages: dict[Literal["sweep", "main"], list[dict[str, Any]]]


_BENCH, _RESULT, _CELL = TypeAdapter(_Bench), TypeAdapter(_Result), TypeAdapter(Cell)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run whose numbers follow from its outcomes."""

    row: Cell
    config: TrainConfig
    outcomes: tuple[float | None, ...]
    panel: tuple[str, ...]
    """Ids of the problems, as this version draws them."""
    facts: PanelFacts
    tokens: int
    processed: int | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """A packed benchmark, checked."""

    packed: Packed
    runs: tuple[Run, ...]
    """Teams that were trained and scored where they were trained; the others were checked only."""
    planned: Mapping[tuple[str, str, str], int]
    """Algorithm, environment, credit rule (as the grid labels them) -> seeds, finished or not."""
    tuning: Mapping[tuple[str, str], int]
    """Algorithm, environment -> learning rates that the sweep tried, whose choice it is."""
    checked: int
    """Results, those of the sweep included."""


def check(packed: Packed) -> Evidence:
    """Computes every number of a packed benchmark again.

    Raises:
        EvidenceError: One differs, or something is not what a benchmark holds.
        TrustError: Its settings would run code, start programs or send something.
        ConfigError: Another version's, whose scores are not comparable.
    """
    return _Check(packed).run()


@dataclass(slots=True)
class _Check:
    packed: Packed
    configs: dict[str, TrainConfig] = field(default_factory=dict)
    panels: dict[str, tuple[tuple[str, ...], PanelFacts]] = field(default_factory=dict)
    results: dict[str, _Result] = field(default_factory=dict)

    def run(self) -> Evidence:
        stages = self._stages()
        runs, planned, count = [], dict[tuple[str, str, str], int](), 0
        for stage, cells in stages.items():
            for cell, key in cells:
                if not cell.hidden and not cell.skipped and stage == "main":
                    where = (cell.algorithm, cell.env, cell.credit)
                    planned[where] = planned.get(where, 0) + 1
                if cell.skipped or not self.packed.folder.result_file(key).is_file():
                    continue
                run = self._result(cell, key)
                count += 1
                if stage == "main" and cell.kind == "train" and not cell.hidden:
                    runs.append(run)
        return Evidence(self.packed, tuple(runs), planned, self._tuning(stages), count)

    def fail(self, key: str, what: str) -> EvidenceError:
        """An error about one result."""
        where = f"results/{key}.json of '{self.packed.file}'" if key else f"'{self.packed.file}'"
        return EvidenceError(f"{where}: {what}. Nothing of this file is ranked; ask its author, or run its grid again.")

    def _json(self, file: Path) -> Any:
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise self.fail("", f"{file.parent.name}/{file.name} cannot be read: {error}") from error

    def _stages(self) -> dict[str, list[tuple[Cell, str]]]:
        """Reads the cells, each with the settings that its key is the hash of."""
        folder = self.packed.folder
        described = self._json(folder.bench_file)
        if not isinstance(described, dict):
            raise self.fail("", "bench.json is no table")
        bench = self._model(_BENCH, folder.described())
        return {stage: [self._cell(dict(row)) for row in rows] for stage, rows in bench.stages.items()}

    def _model(self, kind: TypeAdapter[Any], value: Any, key: str = "") -> Any:
        try:
            return kind.validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise self.fail(key, f"{where or 'its content'}: {first['msg'].lower()}") from error

    def _cell(self, row: dict[str, Any]) -> tuple[Cell, str]:
        key, folder = str(row.pop("key", "")), self.packed.folder
        if not row.get("skipped") and folder.result_file(key).is_file():
            job = self._json(folder.job_file(key))
            row["config"] = job.get("config") if isinstance(job, dict) else None
        if unknown := set(row) - {f.name for f in dataclasses.fields(Cell)}:
            raise self.fail("", f"a cell has {min(unknown)!r}, which this version does not know")
        cell: Cell = self._model(_CELL, row)
        if cell.config and cell.key != key:
            raise self.fail(key, "its settings are not those that its name is the hash of: they were changed later")
        return cell, key

    def _config(self, cell: Cell, key: str) -> TrainConfig:
        """Builds a run's settings; once for all seeds."""
        file = self.packed.folder.job_file(key)
        name = json.dumps({k: v for k, v in cell.config.items() if k != "seed"}, sort_keys=True)
        if name not in self.configs:
            trust.check(cell.config, f"{self.packed.file}: jobs/{file.name}")
            try:
                self.configs[name] = configs.build(cell.config)
            except ConfigError as error:
                raise self.fail(key, f"its settings: {error}") from error
        return dataclasses.replace(self.configs[name], seed=cell.config.get("seed", 0))

    def _result(self, cell: Cell, key: str) -> Run:
        config = self._config(cell, key)
        content = self._json(self.packed.folder.result_file(key))
        if not isinstance(content, dict) or set(content) & _OF_CELLS:
            raise self.fail(key, "it says what only its cell may say")
        result = self.results[key] = self._model(_RESULT, content, key)
        self._named(cell, config, key)
        panel, facts = self._panel(config, key)
        if len(result.problems) != len(panel) or len(result.outcomes) != len(panel):
            raise self.fail(key, f"{len(result.outcomes)} outcomes, where its settings ask for {len(panel)}")
        pairs = zip(result.problems, panel, result.outcomes, strict=True)
        if differ := [problem for problem, ours, y in pairs if y is not None and problem != ours]:
            why = f"problem {differ[0]!r} is not what this version of {config.env} draws: it was scored on others"
            raise self.fail(key, why)
        if sum(y is None for y in result.outcomes) > result.infra:
            raise self.fail(key, "more outcomes are missing than it counts as outages")
        self._mean(key, "score", result.score, result.outcomes)
        if cell.kind == "train":
            self._trained(config, result, key)
        outcomes = tuple(result.outcomes)
        return Run(cell, config, outcomes, panel, facts, result.tokens, result.processed)

    def _named(self, cell: Cell, config: TrainConfig, key: str) -> None:
        """A row is called what it is."""
        if cell.algorithm in algorithms.names() and cell.algorithm != config.algo:
            raise self.fail(key, f"it is called {cell.algorithm!r}, and its settings train {config.algo!r}")
        if cell.algorithm == "untrained" and config.iterations:
            raise self.fail(key, "it is called 'untrained', and its settings train")
        if cell.kind == "train" and not cell.hidden and cell.seed != config.seed:
            raise self.fail(key, f"it is seed {cell.seed} by its name, and {config.seed} by its settings")

    def _mean(self, key: str, what: str, said: float, outcomes: Sequence[float | None]) -> None:
        known = [y for y in outcomes if y is not None]
        mean = math.fsum(known) / len(known) if known else math.nan
        if not math.isclose(said, mean, rel_tol=0, abs_tol=1e-9):
            raise self.fail(key, f"its {what} is {said:g}, and that of its outcomes {mean:g}")

    def _trained(self, config: TrainConfig, result: _Result, key: str) -> None:
        """The curve ends with the result, and the run where its budget did."""
        for point in result.curve:
            self._mean(key, f"score after {point.tokens} tokens", point.score, point.outcomes)
        spent = [p.tokens for p in result.drift]
        steps = [p.tokens for p in result.curve]
        if steps != sorted(steps) or spent != sorted(spent):
            raise self.fail(key, "its tokens become fewer")
        if not result.curve or result.curve[-1].outcomes != result.outcomes or steps[-1] != result.tokens:
            raise self.fail(key, "its curve does not end with its outcomes and its tokens")
        if (spent[-1] if spent else 0) != result.tokens:
            raise self.fail(
                key, f"its iterations sampled {spent[-1] if spent else 0} tokens, and it says {result.tokens}"
            )
        others = config.processed_budget is not None or config.latency_budget is not None
        if config.token_budget is not None and not others and len(spent) > 1 and spent[-2] >= config.token_budget:
            raise self.fail(key, f"it went on after its budget of {config.token_budget} tokens")

    def _panel(self, config: TrainConfig, key: str) -> tuple[tuple[str, ...], PanelFacts]:
        """Draws the problems of an evaluation, as a run with these settings does."""
        name = json.dumps([config.env, config.env_kwargs, config.eval_kwargs, config.eval_episodes], sort_keys=True)
        if name not in self.panels:
            if config.eval_episodes > MOST_EPISODES:
                raise self.fail(key, f"eval_episodes = {config.eval_episodes}. At most {MOST_EPISODES} are checked")
            try:
                self.panels[name] = panel(config)
            except MarftError as error:
                raise self.fail(key, f"the problems of {config.env} cannot be drawn here: {error}") from error
        return self.panels[name]

    def _tuning(self, stages: Mapping[str, Sequence[tuple[Cell, str]]]) -> dict[tuple[str, str], int]:
        """Counts the rates of each sweep; the main stage must have those that it chose."""
        if "sweep" not in stages:
            return {}
        tried = sweep.tried([self._swept(cell, key) for cell, key in stages["sweep"]])
        best = {pair: sweep.best(by_rate) for pair, by_rate in tried.items()}
        for cell, key in stages.get("main", ()):
            pair = (cell.algorithm, cell.env)
            if cell.config and cell.kind == "train" and cell.lr is not None and best.get(pair, cell.lr) != cell.lr:
                raise self.fail(key, f"its learning rate is {cell.lr:g}, and the sweep's choice {best[pair]}")
        return {pair: len(by_rate) for pair, by_rate in tried.items()}

    def _swept(self, cell: Cell, key: str) -> dict[str, Any]:
        result = self.results.get(key)
        row = {"algorithm": cell.algorithm, "env": cell.env, "lr": cell.lr, "hidden": cell.hidden}
        if result is None:
            return row | {"status": "failed"}
        return row | {"status": "done", "score": result.score, "train_score": result.train_score}


def panel(config: TrainConfig) -> tuple[tuple[str, ...], PanelFacts]:
    """Draws the ids of the problems on which a run with these settings is evaluated, and says what they are."""
    make_env = setup.env_factory(config, setup.eval_kwargs(config))
    with (
        closing(setup.make_env(config, config.env_kwargs)) as env,
        closing(setup.started(config.env, make_env)) as held_out,
    ):
        problems = setup.problems(config, env, held_out)
        ids = []
        for seed, options in zip(problems.held_out.seeds, problems.held_out.options, strict=True):
            held_out.reset(seed=seed, options=options)
            ids.append(held_out.episode.task_id)
    return tuple(ids), PanelFacts.of(ids, problems.apart)
