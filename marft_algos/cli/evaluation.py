"""``marft eval``: scores teams, trained or not, here or hosted."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marft_algos.config import arguments
from marft_algos.config.arguments import typed
from marft_algos.config.evaluation import COMPARE_ONLY, ENGINES_ONLY, EvalArguments, EvalConfig
from marft_algos.lazy import check_packages
from marft_algos.ranges import hints
from marft_algos.runs.intervals import Interval
from marft_algos.terminal import Progress, say
from marft_envs.errors import ConfigError

if TYPE_CHECKING:
    from marft_algos.evaluation.resumable import ResumableEvaluation


def run_eval(argv: list[str]) -> int:
    """``marft eval RUN …``."""
    return evaluated(arguments.parse(EvalArguments, argv, prog="marft eval"), argv)


def evaluated(options: EvalArguments, argv: list[str]) -> int:
    """Evaluates as options say, which stand in ``argv`` as they were typed; returns the exit code."""
    if options.engines == {}:
        raise ConfigError("--engines needs a value: a model, AGENT=MODEL …, or a table (docs/evaluation.md).")
    if options.engines and not (options.run and options.served()):
        return _engines(options, argv)
    _only_engines(options)
    if options.compare:
        from marft_algos.cli import comparison

        return comparison.compared(options)
    from marft_algos.cli import held_out

    if options.cross:
        return held_out.cross(options)
    check_packages()
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
        evaluation, results, note = resumable.run(config, command, _announce, Progress())
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
            " weights of an export are played by the name of their folder. vLLM servers play a run's own adapters:"
            """ marft eval RUN --engines '{kind = "vllm", url = "…"}'"""
        )
    if not options.env:
        raise ConfigError("Which environment? marft eval --env ID --engines …. All of them: marft envs")
    if options.out.endswith(".jsonl"):
        raise ConfigError(f"--out {options.out}: with --engines it names a folder. Type: --out evals/NAME")


def _announce(evaluation: ResumableEvaluation) -> None:
    from marft_algos.evaluation.environments import held_out_kwargs

    config, done = evaluation.config, len(evaluation.finished())
    way = "greedy" if config.greedy else f"sampled at temperature {config.temperature or 1.0:g}"
    shown = arguments.task(config.env, held_out_kwargs(config.env, {}, config.env_kwargs))
    say(f"{shown}, {len(evaluation.problems)} problems, {config.samples} samples each, {way}")
    say(f"folder:  {evaluation.root}" + (f" ({done} episodes have ended before)" if done else ""))


def _say(evaluation: ResumableEvaluation, content: Mapping[str, Any]) -> None:
    average = Interval(**content["average"] | {"infrastructure_errors": content["infrastructure_errors"]})
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
