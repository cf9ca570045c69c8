"""``marft train``, ``sft``, ``dpo`` and ``show``. Only ``show`` works without the train extra."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from marft_algos.cli.training import typed_settings
from marft_algos.config import arguments, trust
from marft_algos.lazy import require_training
from marft_algos.runs import breakdown, paths, start
from marft_algos.runs.folder import RunFolder, compare
from marft_algos.runs.metrics import describe
from marft_algos.runs.read_only import seen
from marft_algos.terminal import clean, say
from marft_algos.training import launch
from marft_envs.core.partners import expert_of

if TYPE_CHECKING:
    from marft_algos.config.settings import TrainConfig
    from marft_algos.training.trainer import Trainer

# marft train ----------------------------------------------------------------------------------------


def run_train(argv: list[str]) -> int:
    """``marft train [ALGO] …``."""
    if "--dry-run" in argv:
        return _dry_run([word for word in argv if word != "--dry-run"])
    argv, nproc = launch.take(argv)
    launch.quiet()
    config, run = typed_settings(argv)
    if nproc > 1:
        require_training()
        return launch.train(nproc, argv, config, run)
    with _unbegun("no run was made" if run is None else f"{run.root} is as it was"):
        return _run_train(argv, config, run)


@contextmanager
def _unbegun(made: str) -> Iterator[None]:
    """Says what there is where Ctrl-C comes before training has begun: what has begun says so itself."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if type(stop) is not KeyboardInterrupt:  # a warm start was interrupted, and has said what was saved
            raise
        raise KeyboardInterrupt(f"stopped before training began: {made}") from None


def _run_train(argv: list[str], config: TrainConfig, run: RunFolder | None) -> int:
    command = arguments.typed("train", *argv)
    require_training()
    from marft_algos.training.trainer import is_over, opened
    from marft_algos.training.warm import warmed

    with launch.ending_together(config), ExitStack() as lock, closing(launch.joined(config)) as group:
        config, run = launch.settled(config, run, group)
        config = launch.lessened(config)
        if run is None:
            config = warmed(config, command, group)
        else:
            lock.enter_context(seen(run, group).locked(command))
            if is_over(run, config, group):
                return 0
        return _train(*lock.enter_context(opened(config, run, command, group)))


def run_sft(argv: list[str]) -> int:
    """``marft sft …``: ``marft train sft …``, supervised fine-tuning on demonstrations."""
    return run_train(["sft", *argv])


def run_dpo(argv: list[str]) -> int:
    """``marft dpo …``: ``marft train dpo …``, preference optimisation on recorded episodes."""
    return run_train(["dpo", *argv])


def _train(trainer: Trainer, run: RunFolder) -> int:
    """Trains, and says what came of it."""
    from marft_algos.training.trainer import train_and_report

    config = trainer.config
    try:
        _print_start(run)
        train_and_report(trainer, run)
        solved = _print_gain(run)
    except KeyboardInterrupt:
        if trainer.progress.done(config):
            say(f"stopped when all was trained and saved; its report: {arguments.typed('show', run.root, '--html')}")
        else:
            resume = arguments.typed("train", "--resume", run.root)
            say(f"stopped after iteration {trainer.progress.iteration}; go on: {resume}")
        return 130
    say(f"report:  {run.report_file}")
    if run.profiles_file.is_file():
        say(f"prompts: {run.profiles_file}   # for any command: --env-kwargs profiles=FILE")
    if not trainer.policies.policies:
        return 0
    say(f"advice:  {_advice(run, config, solved)}")
    recorded = run.recorded("eval")[-1:]
    seen = breakdown.seen_agents(episode for i in recorded for episode in run.episodes("eval", i))
    if speaker := next((agent for agent in trainer.policies.renderer.agents if agent in seen), ""):
        say(f"next:    do the messages of {speaker} matter? {arguments.typed('eval', run.root, '--swap', speaker)}")
    return 0


def _advice(run: RunFolder, config: TrainConfig, solved: float | None) -> str:
    """Says what the first score and the rewards mean for RL; docs/should-i-train-a-team.md has the figures."""
    if getattr(config.algorithm, "offline", False):
        onward = arguments.typed("train", "--start", run.root)
        return f"this run imitated demonstrations; continue with RL: {onward}"
    credit = getattr(config.algorithm, "credit", "")
    with_costs = isinstance(credit, dict) and bool({"costs", "budgets"} & credit.keys())
    lines = [line for line in run.metrics() if {"return", "success"} <= line.keys()]
    if solved is not None and solved < start.LEAST:
        text = f"an untrained score of {solved:.3f} is little to learn from: demonstrations first (--warm-start N)"
    elif with_costs or not all(math.isclose(line["return"], line["success"], abs_tol=1e-9) for line in lines):
        text = "rewards were more than success: compare with RFT that uses them (rft with credit or weight_temperature)"
    else:
        text = "the reward was 0 or 1: RFT usually reaches the same score at less cost; compare with marft train rft"
    return f"{text}; docs/should-i-train-a-team.md"


def _dry_run(argv: list[str]) -> int:
    """Checks the settings and estimates the memory; loads no weights and writes nothing."""
    config, _ = typed_settings(argv)
    require_training()
    from marft_algos.training import environments
    from marft_algos.training.estimate import capacity
    from marft_algos.training.fit import fitted
    from marft_algos.training.policies import make_renderer, sampling
    from marft_algos.training.resolve import make_algorithm, resolve

    trust.check_dry(config.table())
    with (
        closing(environments.make_env(config, config.env_kwargs)) as env,
        closing(environments.make_env(config, environments.eval_kwargs(config))) as held_out,
    ):
        problems = environments.problems(config, env, held_out)
        spec = resolve(config, env, held_out)
        make_algorithm(spec, sampling(config))
        _, memory = fitted(spec, env)
        renderer = make_renderer(spec)
        environments.check_spoken(config, env, held_out, renderer, problems)
        shown = environments.demonstrations(
            config, environments.env_factory(config, config.env_kwargs), renderer, problems
        )
        if shown is not None:
            if words := shown.news():
                say(words)
            shown.close()
        elif config.warm_start and not config.start:
            expert_of(env)
    say(f"{arguments.task(config.env, config.env_kwargs)} · {config.algo}, memory at most:\n{memory.table()}")
    say(f"  {capacity(memory.device) / 1e9:8.2f} GB  there is")
    memory.check()
    say(f"next:    {arguments.typed('train', *argv)}")
    return 0


def _print_start(run: RunFolder) -> None:
    """Says which run it is, what it trains on, and what it began with."""
    say(f"run:     {run.root}")
    say(f"task:    {paths.task(run)}")
    if origin := start.record(run):
        say(f"start:   {clean(origin, line=True)}")


def _print_gain(run: RunFolder) -> float | None:
    """Says what was gained; returns what was solved at the start, where that was evaluated."""
    if (both := run.before_and_after()) is None:
        return None
    before, after, difference = compare(*both)
    say(f"on:      {run.evaluation_set()}")
    say(f"before:  {before}")
    say(f"after:   {after}")
    say(f"gain:    {difference.points()} (paired, 95 % interval)")
    if changed := breakdown.most(breakdown.changes(*both)):
        say(f"kinds:   {clean(changed, line=True)}")
    return before.mean


# marft show -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShowArguments:
    """Prints the last numbers of a run, and where its report is."""

    run: Annotated[str, tyro.conf.Positional] = ""
    """Folder or name of the run; empty: the newest one in runs/."""
    html: bool = False
    """Write report.html again."""
    all: bool = False
    """Print every number of the last iteration, with what it is."""
    json: bool = False
    """Print the numbers of the last iteration as JSON, for programs."""


_SHOWN = ("success", "return", "infrastructure_errors", "tokens_total")
"""What is printed of the last iteration, where there is such a number."""


def run_show(options: ShowArguments) -> None:
    """``marft show RUN``."""
    from marft_algos.runs import report

    run = RunFolder.open(options.run or RunFolder.newest())
    metrics = run.metrics()
    if options.html:
        report.write(run)
    last = metrics[-1] if metrics else {}
    if options.json:
        say(json.dumps({"run": str(run.root), **last}, indent=1))
        return
    _print_start(run)
    say(f"done:    iteration {last.get('iteration', 0)}, {last.get('time_elapsed', 0.0):.0f} s")
    _print_gain(run)
    shown = {k: n for k, n in last.items() if isinstance(n, int | float) and not k.startswith(("time_", "iteration"))}
    first = [key for key in _SHOWN if key in shown]
    for key in shown if options.all else first:
        about = describe(key) if options.all else None
        say(f"  {clean(key, line=True):<36} {shown[key]:<10.5g}  {about.meaning if about else ''}".rstrip())
    if len(shown) > len(first) and not options.all:
        say(f"numbers: {len(shown) - len(first)} more: {arguments.typed('show', run.root, '--all')}")
    unwritten = f"not yet; write it now: {arguments.typed('show', run.root, '--html')}"
    say(f"report:  {run.report_file if run.report_file.is_file() else unwritten}")
