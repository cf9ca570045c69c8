"""``marft bench run``, ``report`` and ``pack``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from marft_algos.config import arguments, manual
from marft_algos.ranges import COUNT
from marft_algos.terminal import REGRESSION, say
from marft_envs.errors import check_known

if TYPE_CHECKING:
    from marft_algos.extras.bench.grid_runs import GridRun

USAGE = (resources.files("marft_algos.extras.bench") / "usage.txt").read_text(encoding="utf-8").rstrip()


def run_bench(argv: list[str]) -> int:
    """``marft bench VERB …``."""
    if not argv or manual.asked(argv[:1]):
        say(USAGE.format(examples=manual.examples("bench")))
        if argv:
            raise SystemExit(0)
        return 0
    verb, rest = argv[0], argv[1:]
    check_known([verb], VERBS, "There is no 'marft bench {}'.", after="Next: marft bench run GRID")
    return arguments.called(VERBS[verb], rest, prog=f"marft bench {verb}") or 0


@dataclass(frozen=True)
class RunArguments:
    """Runs a grid of algorithms, environments and seeds with equal token budgets, or goes on with one."""

    grid: Annotated[Path, tyro.conf.Positional]
    """TOML file; see examples/configs/bench_toys.toml."""
    out: Path
    """Folder of the benchmark. What has been run there already is not run again."""
    jobs: Annotated[int, COUNT] = 1
    """Runs side by side, each a process with one thread."""
    stage: Literal["all", "sweep", "main"] = "all"
    """Only the sweep over learning rates, or only the runs that count."""
    plan: bool = False
    """Only say what would be run, and what does not fit."""


def run_run(options: RunArguments) -> int:
    """``marft bench run GRID.toml --out DIR``."""
    from marft_algos.lazy import require_training

    require_training()
    from marft_algos.extras.bench import grid, grid_runs

    loaded = grid.load(options.grid)
    if options.plan:
        for stage in loaded.stages(options.stage):
            _print_plan(stage, grid_runs.expand(loaded, stage))
        return 0
    folder = loaded.run(options.out, jobs=options.jobs, stage=options.stage)
    say(f"next:    marft bench report {shlex.quote(str(options.out))}")
    stages = [stage for stage in folder.described()["stages"] if options.stage in ("all", stage)]
    failed = sum(row["status"] == "failed" for stage in stages for row in folder.rows(stage))
    if failed:
        say(f"{failed} failed; the same command tries them again", error=True)
    return 1 if failed else 0


def _print_plan(stage: str, planned: Sequence[GridRun]) -> None:
    from marft_algos.extras.bench.tables import count

    runs = [c for c in planned if not c.skipped]
    budget = sum(int(c.config["token_budget"]) for c in runs if c.kind == "train" and c.config["iterations"])
    say(f"{stage}: {len(runs)} runs, {count(budget)} tokens")
    for grid_run in planned:
        if not grid_run.hidden:
            say(f"  {grid_run.title}{f': skipped, {grid_run.skipped}' if grid_run.skipped else ''}")


@dataclass(frozen=True)
class ReportArguments:
    """Writes results.jsonl, tables, figures and report.html of a benchmark; pending and failed runs are named."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Folder of the benchmark."""
    baseline: str = ""
    """Differences are against this row; the grid's baseline by default."""
    reference: str = ""
    """Differences to this environment are reported as well, each row's own; the grid's reference by default."""
    check: str = ""
    """Folder or results.jsonl of an earlier benchmark: exits with 3 when an interval excludes the new runs."""


def run_report(options: ReportArguments) -> int:
    """``marft bench report DIR``."""
    from marft_algos.extras.bench import page
    from marft_algos.extras.bench.folder import BenchFolder, read_rows

    folder = BenchFolder(options.folder)
    written = page.write(folder, options.baseline, options.reference)
    say((folder.root / "summary.txt").read_text(encoding="utf-8").rstrip())
    say(f"\nreport:  {written}")
    if not options.check:
        return 0
    comparison = page.compare(folder.rows(), read_rows(Path(options.check)))
    say("\n".join(comparison.lines))
    return REGRESSION if comparison.departed else 0


@dataclass(frozen=True)
class PackArguments:
    """Packs a benchmark's settings and results, without its runs, as one file."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Folder of the benchmark."""
    out: Path | None = None
    """The file; NAME.tar.xz, of the folder's name, if not given."""


def run_pack(options: PackArguments) -> None:
    """``marft bench pack DIR``."""
    from marft_algos.extras.bench import packed
    from marft_algos.extras.bench.folder import BenchFolder

    folder = BenchFolder(options.folder.resolve())
    out = options.out or Path(f"{folder.root.name}.tar.xz")
    say(f"{packed.pack(folder, out)} results: {out}, {out.stat().st_size / 1024:.0f} KiB")


VERBS: dict[str, Callable[..., int | None]] = {"run": run_run, "report": run_report, "pack": run_pack}
