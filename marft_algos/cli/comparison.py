"""``marft eval --compare A B`` and ``marft_algos.compare``: two evaluations, or two runs, on the same problems."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marft_algos.cli.results import ComparisonResult, EvaluationResult, named
from marft_algos.config.evaluation import COMPARE_ONLY, EvalArguments
from marft_algos.evaluation import changes, folders, gates
from marft_algos.lazy import require_training
from marft_algos.runs import paths
from marft_algos.runs.disk import write_whole
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import REGRESSION, UNDECIDED, aligned, clean, say
from marft_envs.errors import ConfigError


def compare(
    a: Any, b: Any, *, margin: float | None = None, gate: Mapping[str, str] | None = None, cohort: str = ""
) -> ComparisonResult:
    """Compares B with A on the same tasks, as ``marft eval --compare A B`` does.

    Examples:
        >>> marft_algos.compare(before, after, margin=2, gate={"cost": "+0.001"}).outcome

    Args:
        a: What is compared with: what ``evaluate`` returned, the folder of an evaluation of engines; or a run, its
            folder or name, which is played then.
        b: In question; of the same kind.
        margin: By how many percentage points B's score may be worse.
        gate: Other metrics -> their margin, with the sign of what is worse.
        cohort: Of evaluations: also by ``kind``, or by a column of their rows.

    Raises:
        ConfigError: Their tasks differ, one is an evaluation and the other is none, or a gate names no metric of both.
    """
    return _compare(a, b, EvalArguments(margin=margin, gate=dict(gate or {}), cohort=cohort))


def compared(options: EvalArguments) -> int:
    """``marft eval --compare A B``; returns the exit code."""
    if options.given() - {"compare", "scenarios", "checkpoint", *COMPARE_ONLY}:
        raise ConfigError("--compare takes two runs, --scenarios and --checkpoint, and nothing else: both play alike.")
    if options.plan:
        return _say_power(options)
    if len(options.compare) != 2:
        raise ConfigError(f"--compare got {len(options.compare)} runs. Expected two: marft eval --compare RUN_A RUN_B")
    result, asked = _compare(*options.compare, options), options.margin is not None or bool(options.gate)
    code = {"passed": 0, "failed": REGRESSION, "undecided": UNDECIDED if asked else 0}[result.outcome]
    if options.junit:
        _junit(Path(options.junit), options.compare, result.checks)
    if options.json:
        sides = {"a": options.compare[0], "b": options.compare[1], "head": result.head}
        say(json.dumps({**sides, **_plain(result), "outcome": result.outcome, "exit": code}))
        return code
    say(result.head)
    say(repr(result))
    if result.checks:
        say("\n".join(aligned(gates.table(result.checks))))
        titles = ", ".join(c.change.title for c in result.checks if c.outcome == result.outcome)
        unasked = "none; one that asks whether B is no worse: --margin POINTS"
        say(f"gate:    {f'{result.outcome}: {titles}' if asked or code else unasked}")
    return code


def _compare(a: Any, b: Any, options: EvalArguments) -> ComparisonResult:
    allowed, shown = gates.gates(options.gate, options.margin), [str(named(each)) for each in (a, b)]
    old, new = (_evaluation(each) for each in (a, b))
    if old is not None and new is not None:
        if odd := options.given() & {"scenarios", "checkpoint"}:
            raise ConfigError(f"--{min(odd)} is about runs: the evaluations of A and B have been played.")
        found = folders.paired(old, new, options.cohort, allowed)
        n, total = found[0].paired.n, len(old.samples) + old.unknown
        tasks = f"{n} tasks" + (f" of {total} (others lost to infrastructure errors)" if n < total else "")
        differ = ", ".join(folders.differing(old, new)) or "nothing"
        how = f"{tasks}; they differ in {differ}: A, B, B - A (paired, 95 %)"
    elif old is not new:
        one = shown[old is None]
        raise ConfigError(f"'{one}' is an evaluation, and the other is none. Expected two evaluations, or two runs.")
    else:
        if options.cohort:
            raise ConfigError("--cohort is about two folders that marft eval --engines wrote, and these are runs.")
        require_training()
        from marft_algos.training import compare as played

        first, second = (RunFolder.find(each) for each in shown)
        scenarios = Path(options.scenarios) if options.scenarios else None
        found = played.compare(first, second, scenarios, options.checkpoint)
        how = "A, B, B - A (paired, 95 %; of these runs, not of seeds)"
        how = f"{found[0].paired.n} scenarios of {paths.task(first)}: {how}"
    checks = gates.checks(found, allowed, cohorts=bool(options.cohort))
    return ComparisonResult(found, checks, f"A {shown[0]}, B {shown[1]}, {how}")


def _evaluation(given: Any) -> folders.Evaluation | None:
    """Returns an evaluation that is given, or lies in the folder that is; None: it is something else."""
    name = named(given)
    if isinstance(name, str):
        return folders.Evaluation.of(Path(name)) if name and Path(name, folders.SETTINGS).is_file() else None
    if isinstance(given, EvaluationResult):
        if given.results:
            return folders.Evaluation.of(given.folder)
        numbered = [dataclasses.replace(episode, index=i) for i, episode in enumerate(given.episodes)]
        drawn: dict[str, Any] = {"env": "", "env_kwargs": {}}
        for first in numbered[:1]:
            drawn = {"env": first.env_id, "env_kwargs": first.env_kwargs, "data": first.env_kwargs.get("data")}
        return folders.Evaluation.played(given.folder, drawn, numbered)
    return None


def _say_power(options: EvalArguments) -> int:
    """Says what a gate with the tasks of an evaluation can show, before another team has played them."""
    old = _evaluation(options.compare[0]) if len(options.compare) == 1 else None
    if old is None or options.margin is None:
        raise ConfigError(
            "--plan takes the evaluation of the team that is there, and a margin. Type: marft eval --compare EVALUATION"
            " --margin 2 --plan"
        )
    scores = [changes.scores(played) for played in old.samples.values() if played]
    say("\n".join(aligned(gates.power(scores, options.margin))))
    return 0


def _plain(result: ComparisonResult) -> dict[str, Any]:
    """Returns changes and checks as JSON, which has no NaN."""

    def row(c: changes.Change) -> dict[str, Any]:
        sides = {"before": c.paired.before, "after": c.paired.after}
        difference = known(dataclasses.asdict(c.difference))
        return {"name": c.name, "cohort": c.cohort, **sides, "verdict": c.verdict, "difference": difference}

    def known(numbers: Mapping[str, Any]) -> dict[str, Any]:
        return {key: None if value != value else value for key, value in numbers.items()}

    names = ("limit", "outcome", "p_worse", "p_margin", "bound")
    judged = [{"change": row(c.change), **known({name: getattr(c, name) for name in names})} for c in result.checks]
    return {"gates": judged, "changes": [row(c) for c in result.changes]}


def _junit(path: Path, sides: Sequence[str], judged: Sequence[gates.Check]) -> None:
    """Writes a report that CI shows: one case per metric and cohort that was judged; undecided ones are skipped."""

    def plain(text: object) -> str:
        return clean(text, line=True)  # XML has no control characters

    title = plain(f"marft eval --compare {sides[0]} {sides[1]}")
    marks = {"failed": "failure", "undecided": "skipped"}
    failures, skipped = (str(sum(check.outcome == outcome for check in judged)) for outcome in marks)
    suite = ET.Element("testsuite", name=title, tests=str(len(judged)), failures=failures, skipped=skipped)
    for check in judged:
        of = plain(check.change.cohort or "all tasks")
        case = ET.SubElement(suite, "testcase", classname=of, name=plain(check.change.name))
        if check.outcome in marks:
            ET.SubElement(case, marks[check.outcome], message=plain("  ".join(check.row())))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n")
