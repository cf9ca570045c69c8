"""The page of a trial: ``verdict.json``, ``report.md`` and ``report.html``, from what stands in its folder."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from marft_algos.extras.bench import tables
from marft_algos.extras.bench.tables import Row, grouped
from marft_algos.extras.bench.versus import grids, run, verdict
from marft_algos.extras.bench.versus.grids import SPENT
from marft_algos.extras.bench.versus.trial import Trial
from marft_algos.extras.bench.versus.verdict import UNITS, Comparison, Unit
from marft_algos.runs.disk import write_whole

Sheet = list[list[str]]
_SILENT: grids.Side = "no-communication"
_TITLES = {
    "sampled": "sampled tokens",
    "processed": "processed tokens",
    "latency": "latency in training (critical path)",
}


@dataclass(frozen=True)
class Findings:
    """What a trial has found."""

    team_needed: verdict.Needed
    reason: str
    dependency: verdict.Matters
    comparisons: Mapping[Unit, Comparison]
    """The team minus the single agent that was chosen for this budget."""
    retrained: Comparison | None
    """The team minus the one that was trained without D; None: there is no D."""
    after: Mapping[str, Comparison]
    """The team minus the same trained team with its D cut, or with an agent's messages shuffled."""
    sheets: Mapping[str, Sheet]

    @property
    def sentence(self) -> str:
        """Says both verdicts in a line."""
        asked = "" if self.dependency == "not asked" else f"; {self.dependency}"
        return f"{self.team_needed}{asked}. {self.reason}"


def read(trial: Trial, root: Path) -> Findings:
    """Compares what was trained.

    Raises:
        ConfigError: Runs are missing, or were not scored on the same problems.
    """
    record = json.loads((root / run.FILE).read_text(encoding="utf-8"))
    team, single = run.finished(root, "team", "team"), run.finished(root, "single", "single")
    labels, budgets = record["chosen"]["single"], record["budgets"]
    rivals = {unit: [r for r in single if r["algorithm"] == labels[unit]] for unit in UNITS}
    at = {unit: reached_rows(rivals[unit], unit, budgets[unit]) for unit in UNITS}
    unequal = {unit: _unequal(team, at[unit], unit, trial.tolerance) for unit in UNITS}
    comparisons = {unit: verdict.compare(_gaps(team, at[unit]), trial.margin, unequal[unit]) for unit in UNITS}
    ablated = run.finished(root, _SILENT, _SILENT) if _SILENT in record["chosen"] else None
    retrained = None if ablated is None else verdict.compare(_gaps(team, ablated), trial.margin)
    by_env = grouped((r for r in run.rows(root, "team", "runs") if r["env"] != "team"), lambda row: str(row["env"]))
    after = {env: verdict.compare(_gaps(team, played), trial.margin) for env, played in by_env.items()}
    word, reason = verdict.needed(comparisons)
    sheets = {
        "At equal cost": [
            ["equal", "team", "best single agent", "its score", "difference", "says", "spent by the single agent"],
            *(_row(unit, team, at[unit], labels[unit], comparisons[unit]) for unit in UNITS),
        ],
        "Without D": [
            ["rival", "its score", "team minus it", "says"],
            *([["D cut and retrained", *_against(ablated, retrained)]] if ablated is not None and retrained else []),
            *([f"trained with D, {env}", *_against(by_env[env], after[env])] for env in after),
        ],
        "An answer's cost at test": _costs({"team": team, "single": rivals["sampled"], "without D": ablated or []}),
        "Sweeps": _sweeps(trial, root, labels),
    }
    return Findings(word, reason, verdict.matters(retrained), comparisons, retrained, after, sheets)


def write(trial: Trial, root: Path, command: str) -> Findings:
    """Writes ``verdict.json``, ``report.md`` and ``report.html``.

    Args:
        trial: What was asked.
        root: The trial's folder.
        command: As it was typed.
    """
    findings = read(trial, root)
    failed = run.failures(root, trial)
    write_whole(root / "verdict.json", json.dumps(dataclasses.asdict(findings) | {"failed": failed}, indent=1) + "\n")
    notes = _notes(trial)
    folders = [root / f"{side}-runs" for side in run.sides(trial)]
    commands = "\n".join([command, *(f"marft bench report {shlex.quote(str(f))}" for f in folders)])
    text = [f"# {trial.env}: {findings.sentence}", *notes]
    for title, sheet in findings.sheets.items():
        text += [f"## {title}", tables.markdown(sheet).rstrip()]
    text += ["## Without a number", *(f"* {tables.in_markdown(line)}" for line in failed)] if failed else []
    text += ["## Commands", f"```sh\n{commands}\n```"]
    write_whole(root / "report.md", "\n\n".join(text) + "\n", errors="replace")
    shown = {"about": notes, "sheets": findings.sheets, "troubles": failed, "commands": commands}
    write_whole(
        root / "report.html",
        tables.webpage(f"versus: {trial.env}", verdict=findings.sentence, **shown),
        errors="replace",
    )
    return findings


def reached_rows(rows: Sequence[Row], unit: Unit, budget: int) -> list[Row]:
    """Returns runs as they stood when a budget was reached: outcomes and costs of that evaluation."""
    out: list[Row] = []
    for row in rows:
        if (point := grids.reached(row, unit, budget)) is not None:
            out.append({**row, **{name: point[name] for name in ("outcomes", "score", *SPENT.values())}})
    return out


def _gaps(ours: Sequence[Row], theirs: Sequence[Row]) -> Any:
    return tables.gaps(ours, theirs) if ours and theirs and any(r["status"] == "done" for r in theirs) else None


def _unequal(team: Sequence[Row], single: Sequence[Row], unit: Unit, tolerance: float) -> str:
    """Says why budgets are not equal, or nothing."""
    if not team or not single:
        return ""
    ratio = _ratio(team, single, unit)
    if abs(ratio - 1) <= tolerance:
        return ""
    return (
        f"the single agent has spent {ratio:.2f} of the team's, and at most {tolerance:.0%} more or less is equal: "
        "more tokens, or fewer episodes an iteration"
    )


def _ratio(team: Sequence[Row], single: Sequence[Row], unit: Unit) -> float:
    return fmean(r[SPENT[unit]] for r in single) / max(fmean(r[SPENT[unit]] for r in team), 1)


def _row(unit: Unit, team: Sequence[Row], single: Sequence[Row], label: str, comparison: Comparison) -> list[str]:
    cost = f"{_ratio(team, single, unit):.2f} of the team's" if team and single else "–"
    return [_TITLES[unit], _score(team), label, *_against(single, comparison), cost]


def _against(rows: Sequence[Row], comparison: Comparison) -> list[str]:
    says = comparison.word + (f": {comparison.why}" if comparison.why else "")
    return [_score(rows), tables.points(comparison.difference), says]


def _score(rows: Sequence[Row]) -> str:
    scores = [r["score"] for r in rows if r["status"] == "done"]
    return f"{fmean(scores):.3f} ({len(scores)} seeds)" if scores else "–"


def _costs(sides: Mapping[str, Sequence[Row]]) -> Sheet:
    """Lists what one episode of the last evaluation costs."""
    head = ["", "sampled tokens", "processed tokens", "critical path"]
    body = []
    for name, rows in ((name, rows) for name, rows in sides.items() if rows):
        costs = [fmean(r[key] / len(r["problems"]) for r in rows) for key in ("eval_tokens", "eval_processed")]
        costs += [fmean(r["critical_path"] for r in rows)]  # an average already
        body.append([name, *(f"{cost:.1f}" for cost in costs)])
    return [head, *body]


def _sweeps(trial: Trial, root: Path, labels: Mapping[str, str]) -> Sheet:
    """Lists every score that a choice was made from: of the single agent, when each budget was reached."""
    head = ["side", "algorithm", "rate", "score at the end, on problems of the sweep", "chosen"]
    chosen = json.loads((root / run.FILE).read_text(encoding="utf-8"))["chosen"]
    body = []
    for side in run.sides(trial):
        for choice, rows in grouped(run.rows(root, side, "sweep"), grids.Choice.of).items():
            where = [unit for unit, made in chosen[side].items() if made == str(choice)]
            mark = (", ".join(where) if side == "single" else "yes") if where else ""
            if where and len(trial.lr) > 1 and choice.lr in (min(trial.lr), max(trial.lr)):
                mark += " (edge of the rates)"
            body.append([side, choice.algorithm, f"{choice.lr:g}", _score(rows), mark])
    return [head, *body]


def _notes(trial: Trial) -> list[str]:
    name, kwargs = trial.rival()
    acting = f" where only {', '.join(trial.single_team)} acts" if trial.single_team else ""
    waits = trial.answer_latency
    limit = f" An answer that waits for more than {waits} tokens, on any side, counts as none." if waits else ""
    return [
        f"The single agent plays {name}{acting} ({json.dumps(kwargs, default=str)}). Differences in points, team minus "
        f"rival, paired by seed and problem, with 95 % intervals over both; the smallest gain worth a team is "
        f"{100 * trial.margin:g} points. Seeds {_listed(trial.seeds)}; rates and algorithms were chosen on "
        f"{_listed(trial.sweep_seeds)}.",
        "The single agent was trained until it had spent what the team had, and scored when each budget was reached. "
        "Budgets are of training, latency too: it is the critical path of the episodes that were played to learn. What "
        "an answer costs at test, and how long a user waits for it, is a table of its own and is not equalised."
        + limit,
    ]


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
