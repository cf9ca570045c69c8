"""The numbers of a benchmark: one line per algorithm and environment, as Markdown, CSV and LaTeX; marl-eval's JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from marft_algos.extras.bench import statistics
from marft_algos.extras.bench.statistics import Outcomes
from marft_algos.runs.intervals import Interval
from marft_algos.terminal import clean
from marft_envs.errors import ConfigError, check_known, did_you_mean

Row = Mapping[str, Any]
Key = TypeVar("Key", bound=Hashable)
EVERYTHING = "all environments"


@dataclass(frozen=True, slots=True)
class Line:
    """What the runs of one algorithm in one environment (or in all) say."""

    env: str
    algorithm: str
    mean: Interval | None = None
    iqm: Interval | None = None
    difference: Interval | None = None
    """To the baseline, paired by seed and problem."""
    across: Interval | None = None
    """To the same algorithm in the environment of reference, paired likewise."""
    improvement: Interval | None = None
    seeds: int = 0
    failed: int = 0
    pending: int = 0
    infrastructure_errors: int = 0
    """Episodes lost to infrastructure errors: of training and of the last evaluation, over all runs."""
    tokens: float = math.nan
    """Sampled for training, mean per run."""
    processed: float = math.nan
    """The same with prompts; NaN where a run was made before this was counted."""
    prompts: float = math.nan
    """Visits to a start, a group of episodes being one; NaN likewise."""
    critical_path: float = math.nan
    """Of an episode of the last evaluation, in tokens; NaN likewise."""
    seconds: float = math.nan
    memory: float = math.nan
    """Largest of a process, bytes."""
    note: str = ""
    """Why there is no number, or no interval."""
    sampled: Interval | None = None
    """Mean outcome of sampled answers (avg@k), where the grid asks for them and every run has them."""
    samples: int = 0
    """That k."""


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Sorts rows into lists by what a function says of each, in the order in which that is first said."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def label(row: Row) -> str:
    """Names the algorithm, with its credit rule where one was chosen."""
    return f"{row['algorithm']} / {row['credit']}" if row["credit"] else str(row["algorithm"])


def outcomes(rows: Sequence[Row]) -> tuple[list[int], Outcomes]:
    """Seeds and outcomes [S, P] of finished runs of one setting; nan for an infrastructure error.

    Raises:
        ConfigError: They are not of the same problems.
    """
    done = sorted((r for r in rows if r["status"] == "done"), key=lambda r: int(r["seed"]))
    if not alike(done):
        raise ConfigError(f"The runs of {label(done[0])} in {done[0]['env']} were not scored on the same problems.")
    return [int(r["seed"]) for r in done], np.array([r["outcomes"] for r in done], dtype=np.float64)


def alike(rows: Sequence[Row]) -> bool:
    """Whether runs were scored on the same problems; episodes with infrastructure errors may lack their names."""
    if len({len(r["problems"]) for r in rows}) > 1:
        return False
    known = ([p if y is not None else None for p, y in zip(r["problems"], r["outcomes"], strict=True)] for r in rows)
    return all(len(set(names) - {None}) <= 1 for names in zip(*known, strict=True))


def complete(*arrays: Outcomes) -> list[Outcomes]:
    """Keeps the problems without infrastructure errors in all of these runs, which are of the same problems."""
    kept = ~np.isnan(np.concatenate(arrays)).any(0)
    return [array[:, kept] for array in arrays]


def gaps(rows: Sequence[Row], base: Sequence[Row]) -> Outcomes | None:
    """Outcomes minus the baseline's [S, P], on the seeds and problems that both have; None where one or other is none.

    Raises:
        ConfigError: They are not of the same problems.
    """
    (seeds, ours), (others, theirs) = outcomes(rows), outcomes(base)
    if not (both := [s for s in seeds if s in others]):
        return None
    if not alike([r for r in (*rows, *base) if r["status"] == "done"]):
        one, other = rows[0], base[0]
        raise ConfigError(
            f"{label(one)} and {label(other)} in {one['env']} were not scored on the same problems: no pairs."
        )
    paired = complete(np.array([ours[seeds.index(s)] - theirs[others.index(s)] for s in both]))[0]
    return paired if paired.size else None


def lines(rows: Sequence[Row], baseline: str, reference: str = "") -> list[Line]:
    """Makes a line for each algorithm and environment, and one for each algorithm that was scored in all of them.

    Args:
        rows: Runs.
        baseline: Algorithm that the others are compared with in each environment.
        reference: Environment that the others are compared with for each algorithm; none: not. Same problems only.

    Raises:
        ConfigError: No row has the baseline's or the reference's label, or two rows to compare have other problems.
    """
    shown = [r for r in rows if not r["hidden"]]
    by_setting = grouped(shown, lambda row: (row["env"], label(row)))
    labels = list(dict.fromkeys(name for _, name in by_setting))
    base_label = next((name for name in labels if name == baseline or name.split(" / ")[0] == baseline), None)
    if base_label is None:
        raise ConfigError(f"There is no row '{baseline}' to compare with. {did_you_mean(baseline, labels)}")
    envs = list(dict.fromkeys(env for env, _ in by_setting))
    check_known(filter(None, [reference]), envs, "There is no environment '{}' to compare with.")
    out = []
    for env, name in sorted(by_setting, key=lambda key: envs.index(key[0])):  # votes were made last, of finished runs
        runs = by_setting[env, name]
        line = _line(env, [runs], [by_setting.get((env, base_label), [])], name)
        away = by_setting.get((reference, name), []) if env != reference else []
        out.append(dataclasses.replace(line, across=_difference([runs], [away])))
    for name in labels if len(envs) > 1 else []:
        parts = [by_setting.get((env, name), []) for env in envs]
        if _all_done(parts):
            out.append(_line(EVERYTHING, parts, [by_setting.get((env, base_label), []) for env in envs], name))
    return out


def _line(env: str, parts: Sequence[Sequence[Row]], bases: Sequence[Sequence[Row]], name: str) -> Line:
    everyone = [r for part in parts for r in part]
    done = [r for r in everyone if r["status"] == "done"]
    failed, pending = (sum(r["status"] == s for r in everyone) for s in ("failed", "pending"))
    if not done:
        why = next((r["error"] for r in everyone if r["status"] in ("skipped", "failed")), "not run yet")
        return Line(env, name, failed=failed, pending=pending, note=why)
    played = [outcomes(part)[1] for part in parts]
    per_env = [complete(p)[0] for p in played]
    known = all(p.size for p in per_env)
    names = ("tokens", "processed", "prompts", "critical_path", "seconds")
    costs: dict[str, Any] = {cost: float(np.mean([r.get(cost, math.nan) for r in done])) for cost in names}
    sampled, samples = _sampled(parts)
    return Line(
        env,
        name,
        mean=statistics.estimate(per_env) if known else None,
        iqm=statistics.estimate(per_env, statistics.iqm) if known else None,
        difference=_difference(parts, bases) if parts != bases else None,
        improvement=_improvement(parts, bases) if parts != bases and _all_done(bases) else None,
        seeds=min(map(len, per_env)),
        failed=failed,
        pending=pending,
        infrastructure_errors=sum(int(r.get("infrastructure_errors", 0)) for r in done),
        **costs,
        memory=float(max(r["peak_memory"] for r in done)),
        note=_note(played, per_env),
        sampled=sampled,
        samples=samples,
    )


def _note(played: Sequence[Outcomes], kept: Sequence[Outcomes]) -> str:
    """Says why there is no number or no interval, or on how many problems it stands."""
    if not all(p.size for p in kept):
        return "no problem is left: each was lost to an infrastructure error in some run"
    notes = [] if statistics.enough(kept) else [f"no interval: {min(map(len, kept))} of {statistics.MIN_SEEDS} seeds"]
    left, whole = (sum(p.shape[1] for p in per_env) for per_env in (kept, played))
    rest = f"{left} of {whole} problems: others were lost to infrastructure errors"
    return "; ".join([*notes, *([rest] if left < whole else [])])


def _improvement(parts: Sequence[Sequence[Row]], bases: Sequence[Sequence[Row]]) -> Interval | None:
    """Estimates P(a run scores above the baseline's); None where no problem is left in both."""
    pairs = [complete(outcomes(part)[1], outcomes(base)[1]) for part, base in zip(parts, bases, strict=True)]
    if not all(new.size for new, _ in pairs):
        return None
    return statistics.probability_of_improvement([new for new, _ in pairs], [old for _, old in pairs])


def _sampled(parts: Sequence[Sequence[Row]]) -> tuple[Interval | None, int]:
    """Estimates avg@k, with its k; None where a run has no samples, or no problem is left."""
    done = [r for part in parts for r in part if r["status"] == "done"]
    if not all("sampled" in r for r in done):
        return None, 0
    drawn = [[r["sampled"] for r in part if r["status"] == "done"] for part in parts]
    per_env = [complete(np.array(each, dtype=np.float64))[0] for each in drawn]
    return (statistics.estimate(per_env) if all(p.size for p in per_env) else None), int(done[0]["samples"])


def _all_done(parts: Sequence[Sequence[Row]]) -> bool:
    """Whether every part has a finished run."""
    return all(any(r["status"] == "done" for r in part) for part in parts)


def _difference(parts: Sequence[Sequence[Row]], bases: Sequence[Sequence[Row]]) -> Interval | None:
    """Estimates the mean difference of parts to bases; None where something is not there to be paired."""
    paired = [gaps(part, base) for part, base in zip(parts, bases, strict=True)]
    known = [p for p in paired if p is not None]
    return statistics.estimate(known, difference=True) if len(known) == len(paired) else None


# Printed ------------------------------------------------------------------------------------------


def score(e: Interval | None) -> str:
    """Writes ``0.830 [0.795, 0.860]``, with the interval if there is one."""
    return "–" if e is None else e.score()


def points(e: Interval | None) -> str:
    """Writes ``+1.2 [-0.4, +2.9]``: a difference in percentage points, a unit that the column's title names."""
    return "–" if e is None else e.points("")


def share(e: Interval | None) -> str:
    """Writes ``0.92 [0.76, 1.00]``."""
    if e is None:
        return "–"
    return f"{e.mean:.2f}" if math.isnan(e.low) else f"{e.mean:.2f} [{e.low:.2f}, {e.high:.2f}]{e.seeds}"


def count(number: float, separator: str = " ") -> str:
    """Writes ``98 304``; a dash where it was not counted."""
    return "–" if math.isnan(number) else f"{number:,.0f}".replace(",", separator)


def _score(line: Line) -> str:
    """Writes the mean, with a note on it; without a score it says why."""
    if line.mean is None:
        return line.note + (f" ({line.pending} pending)" if line.pending else "")
    return score(line.mean) + (f" ({line.note})" if line.note else "")


_COLUMNS: dict[str, Callable[[Line], str]] = {
    "environment": lambda line: line.env,
    "algorithm": lambda line: line.algorithm,
    "mean": _score,
    "sampled": lambda line: score(line.sampled),
    "IQM": lambda line: score(line.iqm),
    "difference": lambda line: points(line.difference),
    "across": lambda line: points(line.across),
    "P(improvement)": lambda line: share(line.improvement),
    "seeds": lambda line: str(line.seeds) + (f" (+{line.pending} pending)" if line.pending and line.mean else ""),
    "failed": lambda line: str(line.failed),
    "infrastructure errors": lambda line: str(line.infrastructure_errors) if line.seeds else "–",
    "tokens": lambda line: count(line.tokens),
    "processed": lambda line: count(line.processed),
    "prompts": lambda line: count(line.prompts),
    "critical path": lambda line: count(line.critical_path),
    "seconds": lambda line: count(line.seconds, ""),
    "MiB": lambda line: count(line.memory / 2**20, ""),
}
"""Of the printed tables, with 95 % intervals. ``failed`` counts runs, ``infrastructure errors`` episodes lost in the
others' training and last evaluation."""
_COUNTED_LATER = ("processed", "prompts", "critical path")


def sheet(shown: Sequence[Line], baseline: str, reference: str = "") -> list[list[str]]:
    """Makes the table's entries, its head first; a column that would be empty is left out.

    ``across`` is there only with a reference, ``sampled`` (titled ``avg@k``) and what was not counted from the first
    version on only where some run has it.
    """
    titles = {"mean": "score", "difference": f"points over {baseline}"}
    titles["across"] = f"points over {reference}"
    titles["sampled"] = f"avg@{max((line.samples for line in shown), default=0)}"
    columns = {name: [entry(line) for line in shown] for name, entry in _COLUMNS.items()}
    empty = [name for name in ("sampled", *_COUNTED_LATER) if set(columns[name]) <= {"–"}]
    for name in (*empty, *([] if reference else ["across"])):
        del columns[name]
    return [[titles.get(name, name) for name in columns], *map(list, zip(*columns.values(), strict=True))]


def matrix(shown: Sequence[Line], value: Literal["mean", "difference"]) -> list[list[str]]:
    """Algorithms down, environments across: means, or differences to the baseline; its head first."""
    envs, names = (list(dict.fromkeys(getattr(line, key) for line in shown)) for key in ("env", "algorithm"))
    by_run = {(line.algorithm, line.env): getattr(line, value) for line in shown}
    written = score if value == "mean" else points
    rows = [[name, *(written(by_run.get((name, env))) for env in envs)] for name in names]
    return [["algorithm", *envs], *rows]


_MARKS = {c: f"&#{ord(c)};" for c in "&<>|*\\{}~$@#!`"}


def in_markdown(text: str) -> str:
    """Escapes text, which a grid of others may hold, for a line of Markdown: HTML, links and tables would act."""
    return "".join(_MARKS.get(c, c) for c in clean(text, line=True)).replace("](", "]&#40;").replace("://", ":&#47;/")


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Writes a sheet as Markdown."""
    head, *body = ([in_markdown(text) for text in row] for row in lines)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)) + "\n"


def webpage(title: str, **content: Any) -> str:
    """Writes sheets, and what else the template shows, as a page of HTML that needs nothing else."""
    from marft_algos.runs import report

    return report.pages("marft_algos.extras.bench").get_template("sheet.html.jinja").render(title=title, **content)


_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}"}
_TEX |= {"–": "--", "�": "?"}


def _in_tex(text: str) -> str:
    """Escapes text of a table; a bracket that opens it would be a length, behind the end of the row before."""
    escaped = "".join(_TEX.get(c, c) for c in clean(text, line=True))
    return "{[}" + escaped[1:] if escaped.startswith("[") else escaped


def latex(lines: Sequence[Sequence[str]]) -> str:
    """Writes a sheet as LaTeX's tabular (package booktabs)."""
    top, *body = (" & ".join(map(_in_tex, row)) + r" \\" for row in lines)
    opened = [rf"\begin{{tabular}}{{ll{'r' * (len(lines[0]) - 2)}}}", r"\toprule", top, r"\midrule"]
    return "\n".join([*opened, *body, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(shown: Sequence[Line]) -> str:
    """Writes the table as CSV, unrounded; empty where there is no number."""
    estimates = ("mean", "sampled", "iqm", "difference", "across", "improvement")
    counts = ("samples", "seeds", "failed", "pending", "infrastructure_errors", "tokens", "processed", "prompts")
    plain = (*counts, "critical_path", "seconds", "memory", "note")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    bounds = [f"{name}{end}" for name in estimates for end in ("", "_low", "_high")]
    writer.writerow(["environment", "algorithm", *bounds, *plain])
    for line in shown:
        values: list[Any] = []
        for name in estimates:
            e: Interval | None = getattr(line, name)
            values += [None] * 3 if e is None else [e.mean, e.low, e.high]
        values += [getattr(line, name) for name in plain]
        known = ["" if v is None or (isinstance(v, float) and math.isnan(v)) else v for v in values]
        writer.writerow([_in_csv(value) for value in (line.env, line.algorithm, *known)])
    return file.getvalue()


def _in_csv(value: Any) -> Any:
    """Writes text so that no spreadsheet takes it for a formula."""
    if not isinstance(value, str):
        return value
    text = clean(value, line=True)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def marl_eval(rows: Sequence[Row], name: str) -> dict[str, Any]:
    """Puts the finished runs into marl-eval's schema: environment, task, algorithm, run, step, metric over episodes.

    Steps are sampled tokens. ``absolute_metrics`` are those of the last evaluation: ours has 500 problems, where the
    protocol asks for ten times as many episodes as in the evaluations before.
    """
    tasks: dict[str, Any] = {}
    for row in rows:
        if row["status"] != "done" or row["hidden"]:
            continue
        runs = tasks.setdefault(row["env"], {}).setdefault(label(row), {})
        last = {"tokens": row["tokens"], "seconds": row["seconds"], "outcomes": row["outcomes"]}
        steps = {
            f"step_{i}": {"step_count": p["tokens"], "elapsed_time": p["seconds"], "return": _known(p["outcomes"])}
            for i, p in enumerate(row["curve"] or [last])
        }
        runs[f"seed_{row['seed']}"] = {**steps, "absolute_metrics": {"return": _known(row["outcomes"])}}
    return {name: tasks}


def _known(outcomes: Sequence[float | None]) -> list[float]:
    """Keeps the outcomes of episodes without infrastructure errors."""
    return [x for x in outcomes if x is not None]
