"""``marft eval``: scores teams, trained or not, here or hosted."""

from __future__ import annotations

import json
import re
import shlex
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from marft_algos.config import arguments
from marft_algos.config.arguments import typed
from marft_algos.config.evaluation import EvalConfig
from marft_algos.evaluation.changes import Change, Check, checks, gates, printed
from marft_algos.lazy import check_packages, require_training
from marft_algos.ranges import NOT_NEGATIVE, hints
from marft_algos.runs.disk import write_whole
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.intervals import Interval
from marft_algos.terminal import REGRESSION, clean, say
from marft_envs.errors import ConfigError

if TYPE_CHECKING:
    from marft_algos.evaluation.resumable import ResumableEvaluation

_SAID = 10
"""Times that progress is said."""


@dataclass(frozen=True)
class EvalArguments(EvalConfig):
    """Scores a trained team against the untrained one, on the same problems: held-out ones where there is a split.

    Without RUN, scores an untrained team: marft eval --untrained --env math-solo-v0. With --compare RUN_A RUN_B, scores
    B against A, agent by agent; exits with 3 if anything has become worse. So it does of two folders that --engines
    wrote, task by task. With --engines, plays any team of hosted and local models in parallel, without a run; such an
    evaluation that was stopped goes on by the same command.
    """

    run: Annotated[str, tyro.conf.Positional] = ""
    """Folder or name of the run; or a team on the Hugging Face hub, USER/NAME or USER/NAME@REVISION."""
    checkpoint: str = "last"
    """``last``, ``best`` or an iteration's number."""
    untrained: bool = False
    """Only the untrained team."""
    data: str = ""
    """Math problems from a JSONL file, or a named data set."""
    sampled: bool = False
    """Sample instead of decoding greedily."""
    one_by_one: bool = False
    """Play one episode after the other, as a single user waits for them, and print the seconds that each took."""
    swap: str = ""
    """Also exchange this agent's messages between problems: what the team loses is what its words are worth."""
    compare: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN_A RUN_B")] = ()
    """Two runs of one team, A and B; or teams on the hub, USER/NAME; or two folders that --engines wrote."""
    cross: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN RUN …")] = ()
    """Runs of one environment: each one's agents with every other's, on the same problems (docs/evaluation.md)."""
    seats: Annotated[tuple[str, ...], tyro.conf.arg(metavar="AGENT …")] = ()
    """With --cross: agents or roles that a row's run plays, the column's plays the others; none: the first agent."""
    scenarios: str = ""
    """With --compare of runs: file of the frozen scenarios; written from A's held-out panel if there is none yet."""
    cohort: str = ""
    """With --compare of folders: also by ``kind`` of task, or by this column of the rows of their --data."""
    fail_if_worse: Annotated[float | None, NOT_NEGATIVE] = None
    """With --compare: exit with 3 where the score has fallen by more than so many points (of 0.01), on average over
    the tasks, of all or of a cohort; and only then."""
    gate: dict[str, str] = field(default_factory=dict)
    """With --compare: metric = the change of its mean that is allowed, with its sign: score=-0.02 (may fall by 0.02),
    obeyed=+0 (may not rise). Else the exit code is 3."""
    json: bool = False
    """With --compare: print JSON instead of text."""
    junit: str = ""
    """With --compare: write what was judged to this file, as a CI server reads it."""

    def of_engines(self) -> EvalConfig:
        """Returns the settings of an evaluation of engines, its folder named."""
        data = {"data": self.data} if self.data else {}
        kwargs = {key: value for key, value in {**data, **self.env_kwargs}.items() if value is not None}
        place = f"evals/{re.sub('[/:]', '-', self.env)}-{time.strftime('%Y%m%d-%H%M%S')}"
        settings = {name: getattr(self, name) for name in hints(EvalConfig)}
        settings |= {"env_kwargs": kwargs, "out": self.out or place}
        settings["temperature"] = self.temperature or (1.0 if self.sampled else None)
        return EvalConfig(**settings)

    def given(self) -> set[str]:
        """Returns the names of the options that are not as they are without being typed."""
        plain = EvalArguments()
        return {name for name, value in vars(self).items() if value != getattr(plain, name)}


ENGINES_ONLY = ("samples", "jobs", "price", "temperature", "max_new_tokens", "seed", "max_lost", "on_task_error")
"""Options of ``--engines``."""
COMPARE_ONLY = ("cohort", "fail_if_worse", "gate", "json", "junit")
"""Options of ``--compare``."""


def run_eval(argv: list[str]) -> int:
    """``marft eval RUN …``."""
    options: EvalArguments = arguments.parse(EvalArguments, argv, prog="marft eval")
    if options.engines == {}:
        raise ConfigError("--engines needs a value: a model, AGENT=MODEL …, or a table (docs/evaluation.md).")
    if options.engines:
        return _engines(options, argv)
    _only_engines(options)
    if options.compare:
        return _compare(options)
    if options.cross:
        return _cross(options)
    check_packages()
    from marft_algos.cli import held_out

    return held_out.play(options)


def _only_engines(options: EvalArguments) -> None:
    """Refuses what would otherwise be left out without a word."""
    if options.seats and not options.cross:
        raise ConfigError("--seats is about --cross. Type: marft eval --cross RUN RUN --seats AGENT")
    if options.scenarios and not options.compare:
        raise ConfigError("--scenarios is about --compare. Type: marft eval --compare RUN_A RUN_B --scenarios FILE")
    given = options.given()
    if not options.compare and (odd := [name for name in COMPARE_ONLY if name in given]):
        raise ConfigError(f"--{odd[0].replace('_', '-')} is about --compare. Type: marft eval --compare A B")
    if options.untrained and "checkpoint" in given:
        raise ConfigError("--untrained plays no checkpoint. Leave out --untrained, or --checkpoint.")
    if odd := [name for name in ENGINES_ONLY if name in given]:
        raise ConfigError(f"--{odd[0].replace('_', '-')} belongs to --engines. Type: marft eval --env ID --engines …")


def _engines(options: EvalArguments, argv: list[str]) -> int:
    """``marft eval --engines``: plays the team, or what is left to play, and says what it reached and cost."""
    _check(options)
    from marft_algos.evaluation import resumable

    config = options.of_engines()
    command = typed("eval", *argv, *([] if options.out else ["--out", config.out]))
    try:
        evaluation, results, note = resumable.run(config, command, _announce, _Progress())
    except KeyboardInterrupt:
        say(f"stopped; what has ended is kept. Go on: {command}")
        return 130
    if note:
        say(note, error=True)
    _say(evaluation, results)
    return 0


def _check(options: EvalArguments) -> None:
    """Refuses options that say something about a run."""
    if odd := sorted(options.given() - hints(EvalConfig).keys() - {"data", "sampled"}):
        named = "a run" if "run" in odd else f"--{odd[0]}"
        raise ConfigError(
            f"--engines plays a team without a run, and {named} belongs to one. Leave out one of the two; merged"
            " weights of an export are played by the name of their folder."
        )
    if not options.env:
        raise ConfigError("Which environment? marft eval --env ID --engines …. All of them: marft envs")
    if options.out.endswith(".jsonl"):
        raise ConfigError(f"--out {options.out}: with --engines it names a folder. Type: --out evals/NAME")


def _announce(evaluation: ResumableEvaluation) -> None:
    config, done = evaluation.config, len(evaluation.finished())
    way = "greedy" if config.greedy else f"sampled at temperature {config.temperature or 1.0:g}"
    say(f"{config.env}, {len(evaluation.problems)} problems, {config.samples} samples each, {way}")
    say(f"folder:  {evaluation.root}" + (f" ({done} episodes have ended before)" if done else ""))


class _Progress:
    """Says how far it is, a few times."""

    def __init__(self) -> None:
        self._said = 0

    def __call__(self, ended: int, total: int, lost: int) -> None:
        if ended * _SAID // total > self._said:
            self._said = ended * _SAID // total
            say(f"  {ended}/{total} episodes, infra {lost}", error=True)


def _say(evaluation: ResumableEvaluation, content: Mapping[str, Any]) -> None:
    average = Interval(**content["average"] | {"infra": content["infra"]})
    say(f"{f'avg@{evaluation.config.samples}':<10} {average}")
    for k, interval in content["pass"].items():
        say(f"{f'pass@{k}':<10} {Interval(**interval)}")
    for k, interval in list(content["pass_hat"].items())[1:]:  # the first is pass@1
        say(f"{f'pass^{k}':<10} {Interval(**interval)}")
    for policy, used in content["usage"].items():
        tokens = f"{used['tokens_in']:,} + {used['tokens_out']:,} tokens"
        odd = f"{used['failed']} failed, {used['empty']} without text"
        odd += f" of which {used['refused']} refused" if used["refused"] else ""
        said = f"{used['requests']} requests ({odd}), {tokens}"
        said += "".join(f", {seconds:.2f} s ({p})" for p, seconds in used["seconds"].items())
        say(f"{policy:<10} {said}" + (f", cost {used['cost']:.4f}" if used["cost"] else ""))
    if content["cost"]:
        say(f"{'cost':<10} {content['cost']:.4f}")
    say(f"results:   {shlex.quote(str(evaluation.results_file))}")


def _compare(options: EvalArguments) -> int:
    """``marft eval --compare A B``."""
    if len(options.compare) != 2:
        raise ConfigError(f"--compare got {len(options.compare)} runs. Expected two: marft eval --compare RUN_A RUN_B")
    a, b = options.compare
    if options.given() - {"compare", "scenarios", "checkpoint", *COMPARE_ONLY}:
        raise ConfigError("--compare takes two runs, --scenarios and --checkpoint, and nothing else: both play alike.")
    from marft_algos.evaluation import folders

    allowed = gates(options.gate, options.fail_if_worse)
    stored = [name for name in (a, b) if Path(name, folders.SETTINGS).is_file()]
    if len(stored) == 1:
        raise ConfigError(f"'{stored[0]}' is an evaluation, and the other is none. Expected two runs, or two folders.")
    if stored:
        if odd := options.given() & {"scenarios", "checkpoint"}:
            raise ConfigError(f"--{min(odd)} is about runs: the evaluations in '{a}' and '{b}' have been played.")
        old, new = (folders.Evaluation.of(Path(name)) for name in (a, b))
        changes = folders.paired(old, new, options.cohort, allowed)
        differ = ", ".join(folders.differing(old, new)) or "nothing"
        how = f"{changes[0].difference.n} tasks; they differ in {differ}: A, B, B - A (paired, 95 %)"
        return _told(f"A {a}, B {b}, {how}", (a, b), changes, allowed, options)
    if options.cohort:
        raise ConfigError("--cohort is about two folders that marft eval --engines wrote, and these are runs.")
    require_training()
    from marft_algos.training.compare import compare

    path = Path(options.scenarios) if options.scenarios else None
    changes = compare(RunFolder.team(a), RunFolder.team(b), path, options.checkpoint)
    how = f"{changes[0].difference.n} scenarios: A, B, B - A (paired, 95 %; of these runs, not of seeds)"
    return _told(f"A {a}, B {b}, {how}", (a, b), changes, allowed, options)


def _told(
    head: str, names: Sequence[str], changes: Sequence[Change], allowed: Mapping[str, str], options: EvalArguments
) -> int:
    """Says what was found, writes what CI reads; returns the exit code."""
    judged = checks(changes, allowed)
    failed = [check.change for check in judged if check.failed]
    code = REGRESSION if failed else 0
    if options.junit:
        _junit(Path(options.junit), names, judged)
    if options.json:
        rows = [asdict(check) for check in (*judged, *(Check(c, "", False) for c in changes))]
        for difference in (row["change"]["difference"] for row in rows):
            difference |= {key: None for key, value in difference.items() if value != value}  # JSON has no NaN
        of = {"gates": rows[: len(judged)], "changes": [row["change"] for row in rows[len(judged) :]]}
        say(json.dumps({"a": names[0], "b": names[1], "head": head, **of, "exit": code}))
        return code
    say(head)
    say(printed(changes))
    titles = ", ".join(change.title for change in failed)
    if allowed:
        say(f"gate:    failed: {titles}" if failed else f"gate:    passed ({len(judged)} checks)")
    else:
        say(f"worse:   {titles}" if failed else "nothing has become worse")
    return code


def _junit(path: Path, names: Sequence[str], judged: Sequence[Check]) -> None:
    """Writes a report that CI shows: one case per metric and cohort that was judged."""

    def plain(text: object) -> str:
        return clean(text, line=True)  # XML has no control characters

    wrong = sum(check.failed for check in judged)
    title = plain(f"marft eval --compare {names[0]} {names[1]}")
    suite = ET.Element("testsuite", name=title, tests=str(len(judged)), failures=str(wrong))
    for check in judged:
        of = plain(check.change.cohort or "all tasks")
        case = ET.SubElement(suite, "testcase", classname=of, name=plain(check.change.name))
        if check.failed:
            allowed = f", allowed {check.limit}" if check.limit else ""
            ET.SubElement(case, "failure", message=plain(printed([check.change]) + allowed))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n")


def _cross(options: EvalArguments) -> int:
    """``marft eval --cross RUN RUN …``."""
    if len(options.cross) < 2:
        raise ConfigError("--cross got one run. Expected two or more: marft eval --cross RUN_A RUN_B")
    if options.given() - {"cross", "seats", "checkpoint", "episodes"}:
        raise ConfigError("--cross takes runs, --seats, --episodes and --checkpoint, and nothing else: all play alike.")
    require_training()
    from marft_algos.training.compare import cross

    found = cross([RunFolder.team(run) for run in options.cross], options.seats, options.checkpoint, options.episodes)
    say(f"rows play {', '.join(found.seats)}, columns the others; paid to the row's / to the others', n = {found.n}")
    say(str(found))
    own, others = found.cross_play
    say(f"with itself {own:.3f}, with others {others:.3f}, difference {own - others:+.3f} (means of both sides)")
    for i, name in enumerate(found.names):
        say(f"exploited   {name} {found.nash_conv(i):.3f}")
    return 0
