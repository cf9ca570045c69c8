"""``marft bench report``: results.jsonl, tables, figures, and one page that needs nothing else.

A pure function of the benchmark's folder: it can be written while runs are still missing, and again at any time.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft_algos.config.values import dumps
from marft_algos.extras.bench import figures, statistics, sweep, tables
from marft_algos.extras.bench.tables import alike, complete, grouped, label, outcomes, points
from marft_algos.runs.disk import write_whole
from marft_algos.runs.folder import EvaluationSetFacts
from marft_algos.runs.plots import inline
from marft_algos.terminal import aligned
from marft_envs.consent import powers
from marft_envs.errors import ConfigError

if TYPE_CHECKING:
    from marft_algos.extras.bench.folder import BenchFolder


def write(folder: BenchFolder, baseline: str = "", reference: str = "") -> Path:
    """Writes everything; returns the page's path.

    Args:
        folder: The benchmark.
        baseline: Row to compare with; the grid's by default.
        reference: Environment to compare each row's other environments with; the grid's, if any, by default.

    Raises:
        ConfigError: Another version's folder, nothing run yet, or no such baseline or reference.
        MissingExtraError: matplotlib is not installed.
    """
    described, rows = folder.described(), folder.rows()
    base = baseline or folder.baseline
    across = reference or described["grid"].get("reference", "")
    lines = tables.lines(rows, base, across)
    sheets = {"summary": tables.sheet(lines, base, across)}
    if len({line.env for line in lines}) > 1:
        sheets = {"means": tables.matrix(lines, "mean"), "differences": tables.matrix(lines, "difference")} | sheets
    if "sweep" in described["stages"]:
        sheets["rates"] = sweep.sheet(folder.rows("sweep"))
    texts = {
        "results.jsonl": "".join(json.dumps(row) + "\n" for row in rows if not row["hidden"]),
        **{f"{name}.md": tables.markdown(sheet) for name, sheet in sheets.items()},
        **{f"{name}.tex": tables.latex(sheet) for name, sheet in sheets.items()},
        "summary.txt": "\n".join([verdict(lines, base), "", *brief(sheets["summary"]), ""]),
        "summary.csv": tables.as_csv(lines),
        "marl_eval.json": json.dumps(tables.marl_eval(rows, "marft")) + "\n",
    }
    drawn = figures.write(rows, lines, folder.root / "figures")
    command = f"marft bench report {shlex.quote(str(folder.root))} --baseline {shlex.quote(base)}"
    command += f" --reference {shlex.quote(across)}" if across else ""
    texts["report.html"] = _page(folder, described["grid"], rows, sheets, command, drawn, verdict(lines, base))
    for name, text in texts.items():
        write_whole(folder.root / name, text, errors="replace")
    return folder.root / "report.html"


BRIEF = ("environment", "algorithm", "score", "points over", "seeds")
"""Columns that a terminal shows, by the beginning of their titles."""
_FEW = 4
"""Names that a sentence lists; of more it has the number."""


def verdict(lines: Sequence[tables.Line], baseline: str) -> str:
    """Says for each environment which algorithms are above the baseline, below it, or not significantly different."""
    said = []
    for env in dict.fromkeys(line.env for line in lines if line.difference and line.env != tables.EVERYTHING):
        found: dict[str, list[str]] = {}
        for line in lines:
            if line.env == env and (e := line.difference):
                side = "above" if e.low > 0 else "below" if e.high < 0 else "no significant difference from"
                how = f"{side} {baseline}" if e.low == e.low else "too few seeds to tell"
                found.setdefault(how, []).append(line.algorithm)
        each = (f"{how}: {', '.join(who) if len(who) <= _FEW else f'{len(who)} rows'}" for how, who in found.items())
        said.append(f"{env}: {'; '.join(each)}.")
    return " ".join(said)


def said(folder: BenchFolder) -> str:
    """Says a benchmark's verdict as its results stand now; ``""`` where its rows are compared with none.

    Raises:
        ConfigError: Another version's folder, or its baseline is none of its rows.
    """
    return verdict(tables.lines(folder.rows(), folder.baseline), folder.baseline)


def brief(sheet: Sequence[Sequence[str]]) -> list[str]:
    """Writes the columns of a sheet that a terminal shows."""
    columns = [column for column in zip(*sheet, strict=True) if column[0].startswith(BRIEF)]
    return aligned(list(zip(*columns, strict=True)))


def _page(
    folder: BenchFolder,
    grid: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    sheets: Mapping[str, Sequence[Sequence[str]]],
    command: str,
    drawn: Mapping[str, str],
    said: str,
) -> str:
    shown = [r for r in rows if not r["hidden"]]
    count = {s: sum(r["status"] == s for r in shown) for s in ("done", "failed", "skipped", "pending")}
    state = ", ".join(f"{n} {s}" for s, n in count.items() if n)
    source, where = shlex.quote(str(folder.grid_file)), shlex.quote(str(folder.root))
    units = "Scores with 95 % intervals over seeds and problems, differences in percentage points, paired"
    trusted = ["--trust"] * bool(powers(grid))
    runs = {}
    for row in shown:
        if row["status"] == "done" and row["kind"] == "train":
            config = str(folder.runs / row["key"] / "config.toml")
            title = f"{tables.label(row)} · {row['env']} · seed {row['seed']}: {row['score']:.3f}"
            words = ["marft", "train", "--config", config, "--runs-dir", "runs", "--name", row["key"], *trusted]
            runs[title] = shlex.join(words)
    names, envs = (len({title(row) for row in shown}) for title in (tables.label, lambda row: row["env"]))
    return tables.webpage(
        f"{folder.root.resolve().name}: {names} algorithms, {envs} environment{'s' * (envs > 1)}",
        verdict=said,
        about=[f"{state}. {units} by seed and problem.", _evaluation_sets(shown)],
        sheets=sheets,
        figures={name: inline(svg) for name, svg in drawn.items()},
        troubles=_troubles(shown),
        commands=f"{' '.join([f'marft bench run {source} --out {where}', *trusted])}\n{command}",
        runs=runs,
        grid=dumps(grid),
    )


def _evaluation_sets(rows: Sequence[Mapping[str, Any]]) -> str:
    """Says what each environment was evaluated on: held-out problems, or draws of what is trained on too."""
    done = {row["env"]: row for row in reversed(rows) if row["status"] == "done"}
    sets = [(env, r.get("evaluation_set") or EvaluationSetFacts.of(r["problems"])) for env, r in reversed(done.items())]
    return f"Evaluated on {'; '.join(f'{env}: {facts}' for env, facts in sets)}." if sets else ""


def _troubles(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Runs without a score, and why."""
    seeds = {"failed": " · seed {seed}", "skipped": ""}
    lines = [
        f"{r['status']} {tables.label(r)} · {r['env']}{seeds[r['status']].format(**r)}: {r['error']}"
        for r in rows
        if r["status"] in seeds
    ]
    return list(dict.fromkeys(lines))


# Is a benchmark still what it was? ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackCheck:
    """What a check found."""

    lines: list[str]
    departed: list[str]
    """Rows whose interval excludes the new runs, that are gone, or that share no problem without infrastructure
    errors."""


def compare(new: Sequence[Mapping[str, Any]], old: Sequence[Mapping[str, Any]]) -> PackCheck:
    """Compares every row that the baseline has finished; what only the new benchmark has is not looked at.

    Raises:
        ConfigError: The two have nothing in common, or were scored on other problems.
    """
    now, before = (
        grouped(
            (r for r in rows if r["status"] == "done" and not r["hidden"]), lambda row: f"{label(row)} · {row['env']}"
        )
        for rows in (new, old)
    )
    lines, departed = [], []
    for title, theirs in before.items():
        if (ours := now.get(title)) is None:
            lines.append(f"{title}: not there any more")
            departed.append(title)
            continue
        if not alike([*ours, *theirs]):
            raise ConfigError(f"{title}: the baseline was scored on other problems; nothing can be compared.")
        kept = complete(outcomes(ours)[1], outcomes(theirs)[1])
        if not kept[0].size:
            lines.append(f"{title}: cannot be compared, every problem was lost to an infrastructure error in some run")
            departed.append(title)
            continue
        change = statistics.departure(*kept)
        if math.isnan(change.low):
            lines.append(f"{title}: {points(change)}, no interval: the baseline has too few seeds")
            continue
        out = change.low > 0 or change.high < 0
        verdict = ("better" if change.mean > 0 else "worse") if out else "as before"
        lines.append(f"{title}: {points(change)}, {verdict}")
        departed += [title] if out else []
    if not lines:
        raise ConfigError("The baseline and this benchmark have no finished row in common.")
    return PackCheck(lines, departed)
