"""``marft train``, ``marft eval`` and ``marft show``. Only ``show`` works without the train extra."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from marft_algos.cli.training import typed_settings
from marft_algos.config import arguments, presets, trust
from marft_algos.config.arguments import typed
from marft_algos.lazy import check_packages, require_training
from marft_algos.ranges import COUNT
from marft_algos.runs import paths, start
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import REGRESSION, clean, say
from marft_envs.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from marft_algos.config.settings import TrainConfig
    from marft_algos.training.trainer import Trainer

# marft train ----------------------------------------------------------------------------------------


def run_train(argv: list[str]) -> int:
    """``marft train [ALGO] …``."""
    check_packages()
    if "--dry-run" in argv:
        return _dry_run([word for word in argv if word != "--dry-run"])
    config, run = typed_settings(argv)
    command = typed("train", *argv)
    with ExitStack() as lock:
        if run is not None:
            lock.enter_context(run.locked(command))
        require_training()
        from marft_algos.training.parts import build
        from marft_algos.training.trainer import Trainer
        from marft_algos.training.warm import warmed

        if run is not None and _is_done(run, config):
            return 0
        if run is None:
            config = warmed(config, command)
        trainer, is_new = Trainer(build(config)), run is None
        if run is None:
            run = trainer.start()
            lock.enter_context(run.locked(command))
        else:
            trainer.resume(run)
        run.add_command(command, trainer.progress.iteration, made=is_new)
        return _train(trainer, run)


def run_sft(argv: list[str]) -> int:
    """``marft sft …``: ``marft train sft …``, supervised fine-tuning on demonstrations."""
    return run_train(["sft", *argv])


def run_dpo(argv: list[str]) -> int:
    """``marft dpo …``: ``marft train dpo …``, preference optimisation on recorded episodes."""
    return run_train(["dpo", *argv])


def _train(trainer: Trainer, run: RunFolder) -> int:
    """Trains, and says what came of it."""
    from marft_algos.runs import report
    from marft_algos.runs.loggers import Display

    config = trainer.config
    say(f"run:     {run.root}")
    _print_start(run)
    try:
        with Display(config.iterations, trainer.progress.iteration, f"{config.env} · {config.algo}") as display:
            trainer.train(run, display)
        report.finish(run)
    except KeyboardInterrupt:
        if trainer.progress.done(config.iterations, config.token_budget):
            say(f"stopped when all was trained and saved; its report: {typed('show', run.root, '--html')}")
        else:
            resume = typed("train", "--resume", run.root)
            say(f"stopped after iteration {trainer.progress.iteration}; go on: {resume}")
        return 130
    _print_gain(run)
    say(f"report:  {run.report_file}")
    speaker = trainer.policies.renderer.agents[0]
    say(f"next:    {typed('eval', run.root, '--swap', speaker)}   # do the words of {speaker} matter?")
    return 0


def _is_done(run: RunFolder, config: TrainConfig) -> bool:
    """Whether nothing is left to train, and says so; a report that is missing is written."""
    from marft_algos.runs import checkpoint, report

    if not checkpoint.steps(run.checkpoints):
        return False
    progress = checkpoint.read_progress(checkpoint.pick(run.checkpoints))
    if progress.unevaluated or not progress.done(config.iterations, config.token_budget):
        return False
    if not run.report_file.is_file():
        report.finish(run)
    if progress.iteration >= config.iterations:
        more = typed("train", "--resume", run.root, "--iterations", 2 * max(progress.iteration, 1))
        done = f"is at iteration {progress.iteration} of {config.iterations}"
    else:
        more = typed("train", "--resume", run.root, "--token-budget", 2 * progress.tokens)
        done = f"has sampled {progress.tokens} of {config.token_budget} tokens"
    say(f"nothing to do: {run.root} {done}; for more: {more}")
    say(f"report:  {run.report_file}")
    return True


def _dry_run(argv: list[str]) -> int:
    """Checks the settings and estimates the memory; loads no weights and writes nothing."""
    config, _ = typed_settings(argv)
    require_training()
    from marft_algos.training import setup
    from marft_algos.training.estimate import capacity, estimate
    from marft_algos.training.resolve import make_algorithm, resolve

    trust.check_dry(config.table())
    env = setup.make_env(config, config.env_kwargs)
    spec = resolve(config, env)
    make_algorithm(spec, setup.sampling(config))
    memory = estimate(spec, env)
    say(f"{config.env} · {config.algo}, memory at most:\n{memory.table()}")
    say(f"  {capacity(memory.device) / 1e9:8.2f} GB  there is")
    memory.check()
    say(f"next:    {typed('train', *argv)}")
    return 0


def _print_start(run: RunFolder) -> None:
    if origin := start.record(run):
        say(f"start:   {clean(origin, line=True)}")


def _print_gain(run: RunFolder) -> None:
    if (gain := run.gain()) is not None:
        before, after, difference = gain
        say(f"on:      {run.panel()}")
        say(f"before:  {before}")
        say(f"after:   {after}")
        say(f"gain:    {_signed(difference)} (paired, 95 %)")


def _signed(estimate: Any) -> str:
    return f"{estimate.mean:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


# marft eval -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvalArguments:
    """Scores a trained team against the untrained one, on the same problems: held-out ones where there is a split.

    Without RUN, scores an untrained team: marft eval --untrained --env math-solo-v0. With --compare RUN_A RUN_B, scores
    B against A, agent by agent; exits with 3 if anything has become worse.
    """

    run: Annotated[str, tyro.conf.Positional] = ""
    """Folder or name of the run."""
    checkpoint: str = "last"
    """``last``, ``best`` or an iteration's number."""
    untrained: bool = False
    """Only the untrained team."""
    episodes: Annotated[int | None, COUNT] = None
    """How many; none: as while training."""
    env: str = ""
    """Another environment for the same policies."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment, over those of the run."""
    data: str = ""
    """Math problems from a JSONL file, or a named data set."""
    models: dict[str, str] | str = ""
    """Other base models (only with --untrained)."""
    sampled: bool = False
    """Sample instead of decoding greedily."""
    swap: str = ""
    """Also exchange this agent's messages between problems: what the team loses is what its words are worth."""
    out: str = ""
    """Write the trained team's episodes (the untrained team's, with --untrained) to this JSONL file."""
    device: str = ""
    """Another device than while training."""
    compare: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN_A RUN_B")] = ()
    """Two runs of one team, A and B."""
    scenarios: str = ""
    """With --compare: file of the frozen scenarios; written from A's held-out panel if it is not there yet."""


def run_eval(argv: list[str]) -> int:
    """``marft eval RUN …``."""
    check_packages()
    options: EvalArguments = arguments.parse(EvalArguments, argv, prog="marft eval")
    if options.compare:
        return _compare(options)
    config, run = _eval_settings(options)
    require_training()
    import torch

    from marft_algos.runs import checkpoint, records
    from marft_algos.runs import folder as runs
    from marft_algos.training import evaluate, hosting, setup
    from marft_algos.training.resolve import resolve

    torch.set_num_threads(config.threads)
    # Everything that was typed is checked before anything is played.
    trained = checkpoint.pick(run.checkpoints, options.checkpoint) if run and not options.untrained else None
    env, kwargs = setup.make_env(config, config.env_kwargs), setup.eval_kwargs(config)
    swapped = _agent_called(options.swap, env) if options.swap else ""
    make_held_out = setup.env_factory(config, kwargs)
    held_out = setup.started(config.env, make_held_out)
    problems = setup.problems(config, env, held_out)
    panel = problems.held_out
    if swapped and len(panel) < 2:
        raise ConfigError("Exchanging messages takes at least two episodes. Raise --episodes.")
    spec = resolve(config, env)
    policies = setup.make_policies(spec)
    names = setup.saved_policies(config, policies)
    if trained is not None:
        checkpoint.check_policies(trained, names)
    renderer = policies.renderer
    setup.check_prompts(config, held_out, renderer, panel)
    engine = hosting.make_engine(spec, policies, local=True)
    way = "greedy" if config.eval_greedy else f"sampled at temperature {config.temperature:g}"
    shown = ", ".join(f"{k}={v}" for k, v in kwargs.items())
    say(f"{config.env}{f' ({shown})' if shown else ''}, {len(panel)} episodes, {way}")

    played = evaluate.play(config, make_held_out, panel, renderer, engine)
    before = evaluate.records(played)
    say(f"on           {runs.PanelFacts.of([r.task_id for r in before], problems.apart)}")
    say(f"untrained    {runs.estimate(before)}")
    if trained is not None:
        checkpoint.load_policies(trained, policies, names)
        played = evaluate.play(config, make_held_out, panel, renderer, engine)
        _, after, difference = runs.compare(before, evaluate.records(played))
        say(f"{trained.name:<12} {after}")
        say(f"difference   {_signed(difference)} (paired, 95 %)")
    if swapped:
        exchanged = evaluate.swap(swapped, played, config, engine, renderer)
        again = evaluate.play(config, make_held_out, panel, renderer, exchanged)
        _, after, difference = runs.compare(evaluate.records(played), evaluate.records(again))
        say(f"exchanged    {after}, with {swapped}'s messages from other problems")
        say(f"difference   {_signed(difference)} (paired, 95 %)")
    if options.out:
        records.write(Path(options.out), [records.row(t) for t in played])
        say(f"episodes:    {options.out}")
    return 0


def _compare(options: EvalArguments) -> int:
    """``marft eval --compare A B``."""
    if len(options.compare) != 2:
        raise ConfigError(f"--compare got {len(options.compare)} runs. Expected two: marft eval --compare RUN_A RUN_B")
    a, b = options.compare
    unused = dataclasses.replace(options, compare=(), scenarios="", checkpoint="last")
    if unused != EvalArguments():
        raise ConfigError("--compare takes two runs, --scenarios and --checkpoint, and nothing else: both play alike.")
    require_training()
    from marft_algos.training import compare

    path = Path(options.scenarios) if options.scenarios else None
    changes = compare.compare(RunFolder.open(a), RunFolder.open(b), path, options.checkpoint)
    say(f"A {a}, B {b}, {changes[0].difference.n} scenarios: A, B, B - A (paired, 95 %; of these runs, not of seeds)")
    say(compare.printed(changes))
    worse = [change.name for change in changes if change.verdict == "worse"]
    say(f"worse:   {', '.join(worse)}" if worse else "nothing has become worse")
    return REGRESSION if worse else 0


def _eval_settings(options: EvalArguments) -> tuple[TrainConfig, RunFolder | None]:
    """Changes the run's settings (the quickstart's without a run) as the options say."""
    from marft_algos.config import settings as configs

    if not options.run and not options.untrained:
        raise ConfigError("Which run? marft eval RUN. For a team as it is before training: marft eval --untrained")
    if options.episodes is not None and options.episodes < 1:
        raise ConfigError(f"--episodes is {options.episodes}; expected at least 1, or leave it out: as while training.")
    if options.models and not options.untrained:
        raise ConfigError("A trained team plays on its own base models. Add --untrained, or leave --models out.")
    run = RunFolder.open(options.run) if options.run else None
    if run is not None:
        config = paths.of_run(run, {"models": options.models} if options.models else {})
    else:
        config = configs.build(presets.get(presets.suited(options.env)))
    kwargs = config.env_kwargs
    if options.env and options.env != config.env:
        kwargs = presets.keep_accepted(options.env, kwargs)
    if options.data:
        kwargs = {"data": options.data}
    changes: dict[str, Any] = {"env": options.env, "models": options.models, "device": options.device}
    changes |= {"eval_episodes": options.episodes} if options.episodes is not None else {}
    changed = {key: value for key, value in changes.items() if value}
    if options.models:
        changed |= {"start": "", "adapters": {}}  # of the run's own models
    if options.data:
        changed["eval_kwargs"] = {k: v for k, v in config.eval_kwargs.items() if k != "data"}
    kwargs = arguments.over(kwargs, options.env_kwargs, preset=run is None)
    changed |= {"env_kwargs": kwargs, "eval_greedy": config.eval_greedy and not options.sampled}
    return dataclasses.replace(config, **changed), run


def _agent_called(name: str, env: Any) -> str:
    """Finds an agent by its name, or by its role if only one has it."""
    team = env.unwrapped.team
    matches = [agent.name for agent in team if name in (agent.name, agent.role)]
    if len(matches) != 1:
        known = [agent.name for agent in team]
        raise ConfigError(f"'{name}' is {'no agent' if not matches else 'not one agent'}. {did_you_mean(name, known)}")
    return matches[0]


# marft show -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShowArguments:
    """Prints the last numbers of a run, and where its report is."""

    run: Annotated[str, tyro.conf.Positional] = ""
    """Folder or name of the run; empty: the newest one in runs/."""
    html: bool = False
    """Write report.html again."""


def run_show(argv: list[str]) -> int:
    """``marft show RUN``."""
    from marft_algos.runs import report

    options: ShowArguments = arguments.parse(ShowArguments, argv, prog="marft show")
    run = RunFolder.open(options.run or _newest())
    metrics = run.metrics()
    if options.html:
        report.write(run)
    last = metrics[-1] if metrics else {}
    say(f"run:     {run.root}")
    _print_start(run)
    say(f"done:    iteration {last.get('iteration', 0)}, {last.get('time_elapsed', 0.0):.0f} s")
    _print_gain(run)
    for key, number in last.items():
        if isinstance(number, int | float) and not key.startswith("time_") and key != "iteration":
            say(f"  {clean(key, line=True):<36} {number:.5g}")
    if run.report_file.is_file():
        say(f"report:  {run.report_file}")
    else:
        say(f"report:  not yet; write it now: {typed('show', run.root, '--html')}")
    return 0


def _newest() -> str:
    configs = sorted(Path("runs").glob("*/config.toml"), key=lambda path: path.stat().st_mtime)
    if not configs:
        raise ConfigError("There is no run in runs/ yet. Start one: marft train")
    return str(configs[-1].parent)
