"""The folder of a benchmark: what lies where, and reading it back. No torch: reports are made anywhere.

* ``bench.json``: version, grid, and the runs of each stage; ``grid.toml``: the grid, to be run again
* ``jobs/KEY.json``, ``runs/KEY/``, ``logs/KEY.log``, ``results/KEY.json``: one run each, named by its content
* ``results.jsonl``, tables, ``marl_eval.json``, ``figures/``, ``report.html``: made by ``marft bench report``
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from marft_algos.config import values
from marft_algos.runs.disk import Inside, write_whole, writing
from marft_envs.errors import ConfigError, reading

FORMAT = 1
SCORES = "0.1.0"
"""Version since which equal runs have equal scores: the distribution's, when something last moved them."""
Stage = Literal["sweep", "main"]
ONE_VOTER = "no vote: the tokens of a team's answer suffice for one answer of the agent"
"""Why a row ``vote`` has no score: one sampled answer controls nothing."""


@dataclass(frozen=True, slots=True)
class BenchFolder:
    """Paths and records of one benchmark."""

    root: Path

    bench_file = Inside("bench.json")
    grid_file = Inside("grid.toml")
    runs = Inside("runs")
    results_file = Inside("results.jsonl")

    def job_file(self, key: str) -> Path:
        """Names the file of a run's settings."""
        return self.root / "jobs" / f"{key}.json"

    def lock_file(self, key: str) -> Path:
        """Names the lock that the process of the run holds."""
        return self.root / "jobs" / f"{key}.lock"

    def log_file(self, key: str) -> Path:
        """Names the file of what the run's process printed."""
        return self.root / "logs" / f"{key}.log"

    def result_file(self, key: str) -> Path:
        """Names the file of a run's result."""
        return self.root / "results" / f"{key}.json"

    def error_file(self, key: str) -> Path:
        """Names the file that says why there is no result."""
        return self.root / "results" / f"{key}.error"

    def prepare(self, grid: Mapping[str, Any]) -> None:
        """Makes the folder, or checks that it belongs to this version and grid.

        Raises:
            ConfigError: It holds another version's benchmark, or something else.
        """
        if self.bench_file.is_file():
            self.described()
        elif self.root.is_dir() and any(self.root.iterdir()):
            raise ConfigError(f"'{self.root}' is not empty and no benchmark. Choose another folder: --out DIR")
        with writing(self.root):
            for name in ("jobs", "runs", "logs", "results"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            self.grid_file.write_text(values.dumps(grid), encoding="utf-8")
        stages = self.described()["stages"] if self.bench_file.is_file() else {}
        self._describe({"grid": grid, "stages": stages})

    def described(self) -> dict[str, Any]:
        """Reads bench.json.

        Raises:
            ConfigError: There is none, or it is another version's.
        """
        start = f"Start one: marft bench run GRID.toml --out {shlex.quote(str(self.root))}"
        with reading(f"'{self.root}' is no benchmark: bench.json cannot be read", start):
            description = dict[str, Any](json.loads(self.bench_file.read_text(encoding="utf-8")))
        version = (description.get("format"), description.get("version"))
        if version != (FORMAT, SCORES):
            raise ConfigError(
                f"'{self.root}' was made by marft {version[1]} (format {version[0]}); scores are comparable since "
                f"{SCORES} (format {FORMAT}), so its runs are not. Choose another --out, or install that version."
            )
        return description

    @property
    def baseline(self) -> str:
        """The row that differences are to, as the grid says; see ``described``."""
        return str(self.described()["grid"].get("baseline", "reinforce"))

    def write_stage(self, stage: str, grid_runs: Sequence[Mapping[str, Any]]) -> None:
        """Records the runs of a stage, and every run's job."""
        known = self.described()
        known["stages"][stage] = [{k: v for k, v in c.items() if k != "config"} for c in grid_runs]
        with writing(self.root):
            for grid_run in grid_runs:
                self.job_file(grid_run["key"]).write_text(json.dumps(grid_run) + "\n", encoding="utf-8")
        self._describe({"grid": known["grid"], "stages": known["stages"]})

    def _describe(self, content: Mapping[str, Any]) -> None:
        text = json.dumps({"format": FORMAT, "version": SCORES, **content}, indent=1)
        write_whole(self.bench_file, text + "\n")

    def job(self, key: str) -> dict[str, Any]:
        """Reads a run's settings."""
        return dict(json.loads(self.job_file(key).read_text(encoding="utf-8")))

    def result(self, key: str) -> dict[str, Any]:
        """Reads a run's result."""
        return dict(json.loads(self.result_file(key).read_text(encoding="utf-8")))

    def complete(self, job: Mapping[str, Any]) -> bool:
        """Whether a run's result is there, with everything that its job asks for: as many samples, if any."""
        there, samples = self.result_file(job["key"]).is_file(), job.get("samples")
        return there and (not samples or self.result(job["key"]).get("samples") == samples)

    def write_result(self, key: str, result: Mapping[str, Any]) -> None:
        """Writes the result of a run, whole or not at all."""
        write_whole(self.result_file(key), json.dumps(result) + "\n")
        self.error_file(key).unlink(missing_ok=True)

    def rows(self, stage: str = "main") -> list[dict[str, Any]]:
        """Reads every run of a stage: its status (``done``, ``failed``, ``skipped``, ``pending``) and its result.

        Raises:
            ConfigError: The stage has not been run.
        """
        stages = self.described()["stages"]
        if stage not in stages:
            raise ConfigError(f"The stage '{stage}' has not been run in '{self.root}'. Type: marft bench run GRID.toml")
        return [self._row(grid_run) for grid_run in stages[stage]]

    def report(self, baseline: str = "", reference: str = "") -> Path:
        """Writes tables, figures and the page; see :func:`marft_algos.extras.bench.page.write`."""
        from marft_algos.extras.bench import page

        return page.write(self, baseline, reference)

    def _row(self, grid_run: Mapping[str, Any]) -> dict[str, Any]:
        key, row = grid_run["key"], dict(grid_run)
        if grid_run["skipped"]:
            return row | {"status": "skipped", "error": grid_run["skipped"]}
        if self.result_file(key).is_file():
            result = self.result(key)
            if result.get("votes") == 1:
                return row | {"status": "skipped", "error": ONE_VOTER}
            if result.get("samples") != grid_run.get("samples"):
                result.pop("sampled", None)  # of another number than this grid asks for: no column has both
            return row | {"status": "done", "error": ""} | result
        if self.error_file(key).is_file():
            return row | {"status": "failed", "error": self.error_file(key).read_text(encoding="utf-8").strip()}
        return row | {"status": "pending", "error": "not run yet"}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of an earlier benchmark: of its folder, or of its results.jsonl.

    Raises:
        ConfigError: Neither.
    """
    if path.is_dir():
        return BenchFolder(path).rows()
    with reading(f"Cannot read '{path}'", "Expected a benchmark's folder or results.jsonl."):
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
