"""Runs the loop: collect → update → publish → log → evaluate → save. It knows no algorithm and no environment."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console

from marft_algos import memory
from marft_algos.config.arguments import task, typed
from marft_algos.config.settings import TrainConfig
from marft_algos.evaluation import records
from marft_algos.learner.learner import Learner
from marft_algos.models.critic import Critics
from marft_algos.ranks.group import Alone, RankGroup, lead, restarts
from marft_algos.ranks.reduction import ReductionSlots
from marft_algos.rollout.episodes import StoppedError
from marft_algos.runs import checkpoint, loggers, report
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.progress import RunProgress
from marft_algos.runs.read_only import seen
from marft_algos.terminal import say
from marft_algos.training import rollouts
from marft_algos.training.collect import Collected, RolloutQueue, due
from marft_algos.training.evaluate import Evaluator
from marft_algos.training.parts import Parts, build
from marft_algos.training.session import TrainingSession
from marft_algos.training.state import RunState
from marft_envs import artefacts


class Trainer:
    """Trains a team: collects, updates, publishes, evaluates and saves.

    Args:
        parts: Of the run, see :func:`marft_algos.training.parts.build`.
        group: The ranks that train together; every one of them makes the same calls.
    """

    def __init__(self, parts: Parts, group: RankGroup | None = None) -> None:
        self.config = config = parts.config
        self.reduction = ReductionSlots(group, config.reduction_slots, sharded=parts.policies.sharded)
        self.group = self.reduction.group
        if self.group.size > 1:
            self.config = config = replace(config, reduction_slots=self.reduction.count)  # kept on resume
        self.parts, self.policies, algorithm = parts, parts.policies, parts.algorithm
        reads = algorithm.view != "none"
        heads = config.critic_hidden, config.seed, config.algorithm.critic_features
        self.critics = Critics(parts.trunk or self.policies, *heads) if reads else None
        shape = config.seed, self.reduction, config.staleness, parts.optimiser
        self.learner = Learner(algorithm, self.policies, self.critics, *shape)
        self.rollouts = rollouts.make(parts, self.reduction)
        self._queue = RolloutQueue(parts, config, self.rollouts, self.group)
        self._evaluator = Evaluator(parts, self._queue.held_out)
        self.state = RunState(parts, config, self.learner, self.critics, self._queue)
        self.progress = RunProgress()
        self._others = self.group.seconds

    def start(self) -> RunFolder:
        """Makes the folder of a new run."""
        return self.state.create()

    def resume(self, run: RunFolder) -> None:
        """Takes over the last checkpoint; what the run wrote after it is forgotten, and will be written again.

        A damaged one is renamed, and the one before is taken. Settings may differ from those the run was started with
        (more iterations, say): config.toml follows, once it is certain that the checkpoint fits them.

        Raises:
            ConfigError: What it draws problems from has changed.
            DamagedError: No checkpoint is whole.
        """
        self.state.check_data(run)
        kept = -1, 0
        if self.state.begun(run):
            self.progress = self.state.load(run)
            kept = self.progress.iteration, self.progress.metrics_bytes
        run.write_config(self.config.to_toml())
        run.rewind(*kept)

    def train(self, run: RunFolder, display: loggers.Display) -> None:
        """Runs the iterations that are left.

        Raises:
            Interrupted: Ctrl-C was pressed, or SIGTERM or SIGHUP came; the state was saved if it was whole.
            InfrastructureError: Too many episodes were lost to faults of engine, world or machine; the state was saved.
            TaskError: The task's code does not work; the state was saved.
        """
        sinks = list[loggers.Logger]()
        if run.writes:
            sinks += [loggers.make(name, run, self.progress.iteration) for name in self.config.loggers]
            sinks += self.parts.loggers
        session = TrainingSession(run, display, sinks, self.group)
        try:
            with session.guarded(lambda: self.state.save(run, self.progress) if self.state.begun(run) else None):
                self.rollouts.lost = run.lost
                self.policies.prepare()
                self.rollouts.prepare()
                self.rollouts.publish(self.policies.policies, self.policies.version)
                with session.interrupt.installed(), memory.settled():
                    self._run(session)
        finally:
            if self.parts.demonstrations is not None:
                self.parts.demonstrations.close()
            self.rollouts.close()
            self._queue.close()
            session.close()

    def _run(self, session: TrainingSession) -> None:
        """Evaluates what has not been, and goes through the iterations."""

        def show(done: int, total: int, tokens: int) -> None:
            display.phase(f"playing: {done}/{total} episodes, {tokens} tokens")

        display, notes = session.display, self._evaluator.notes.show
        notes(display)
        if self.progress.unevaluated or not self.state.begun(session.run):
            self._catch_up(session)
        while not self.progress.done(self.config):
            started = time.monotonic()
            with session.interrupt.allowed():
                display.phase("playing")
                self._queue.fill(self.progress, self.policies.version, show)
                collected = self._queue.take()
            notes(display, collected.trajectories)
            self._learn(session, collected, started)
        notes(display, last=True)

    # One iteration ---------------------------------------------------------------------------------

    def _learn(self, session: TrainingSession, collected: Collected, started: float) -> None:
        """Updates, publishes, records, evaluates and saves."""
        config, iteration, metrics = self.config, self.progress.iteration, collected.metrics
        before = time.monotonic()
        trajectories = collected.learnt_from(config, iteration)
        counted = self.rollouts.metrics()
        metrics |= {k if k.startswith("time_") else f"engine/{k}": v for k, v in counted.items()}
        self.rollouts.rest()
        session.display.phase("learning")
        metrics |= self.learner.update(trajectories, iteration)
        metrics |= collected.judge(trajectories, self.learner.estimates)
        passed = sum(self.group.gather(self.policies.take_counted()), Counter[str]())
        metrics |= {f"tokens_{kind}": float(passed[kind]) for kind in ("read", "computed")}
        self.policies.version += 1
        self.rollouts.wake()
        self.rollouts.publish(self.learner.trainable, self.policies.version)
        metrics |= {"time_rollout": before - started, "time_update": time.monotonic() - before, **self._waits()}
        self.progress.iteration = iteration = iteration + 1
        self._queue.evidence, self._queue.progress = collected.evidence, collected.progress
        if (pool := self.parts.pool) is not None:
            metrics |= pool.results(trajectories)
            self.rollouts.publish(pool.take(iteration), self.policies.version)
        reached = self.progress.reached(config)
        self.progress.spend(metrics)
        metrics["tokens_total"] = self.progress.tokens
        last = self.progress.done(config)
        if config.record_episodes and (last or due(iteration, config.record_every)):
            self._record(session.run, collected)
        evaluated = last or due(iteration, config.eval_every) or self.progress.reached(config) > reached
        if evaluated:
            try:
                metrics |= self._evaluator.evaluate(session.run, session.display, self.progress)
            except StoppedError:
                self.progress.unevaluated = True  # the update is done; a resumed run begins with what is missing
                session.log({"iteration": iteration, **metrics}, self.progress, started)
                self.state.save(session.run, self.progress)
                raise
        session.log({"iteration": iteration, **metrics}, self.progress, started)
        if evaluated or due(iteration, config.save_every):
            self.state.save(session.run, self.progress)
        session.interrupt.agreed()

    def _waits(self) -> dict[str, Any]:
        """Returns how many ranks there are, what they waited for since the last call, and when they were restarted."""
        among = self.group.gather(self.group.seconds - self._others)  # rank by rank
        known: dict[str, Any] = {"engine/ranks": self.group.size, "engine/rank_restarts": restarts()}
        known |= {"time_wait": self._queue.waited, "time_ranks": [round(seconds, 4) for seconds in among]}
        if self.state.silent:
            known["time_restart"] = self.state.silent
        self._queue.waited, self._others, self.state.silent = 0.0, self.group.seconds, 0.0
        return known

    def _catch_up(self, session: TrainingSession) -> None:
        """Evaluates the team as it stands: untrained, or where infrastructure errors stopped the run before."""
        started = time.monotonic()
        with session.interrupt.allowed():
            metrics = self._evaluator.evaluate(session.run, session.display, self.progress)
        self.progress.unevaluated = False
        session.log({"iteration": self.progress.iteration, **metrics}, self.progress, started)
        self.state.save(session.run, self.progress, again=True)

    def _record(self, run: RunFolder, collected: Collected) -> None:
        renderer = self.policies.renderer
        tokenizers = {policy: renderer.tokenizer(policy) for policy in renderer.policies}
        played, learnt = collected.trajectories[: self.config.record_episodes], self.learner.estimates
        run.write_episodes("train", self.progress.iteration, [records.row(t, learnt, tokenizers) for t in played])


@contextmanager
def opened(
    config: TrainConfig, run: RunFolder | None = None, command: str = "", group: RankGroup | None = None, **parts: Any
) -> Iterator[tuple[Trainer, RunFolder]]:
    """Begins a run, or goes on with one from its last checkpoint; its folder is locked until the end.

    Args:
        config: The settings.
        run: To go on with; None: its folder is made.
        command: What was typed, which the folder keeps; empty: nothing was.
        group: The ranks that train together.
        **parts: What ``build`` takes instead of what the settings say.
    """
    group, is_new = group or Alone(), run is None
    with ExitStack() as lock:
        if run is not None:
            run = seen(run, group)
            lock.enter_context(run.locked(command))
        trainer = Trainer(build(config, group=group, **parts), group)
        if run is None:
            run = trainer.start()
            lock.enter_context(run.locked(command))
        else:
            trainer.resume(run)
        if command:
            run.add_command(command, trainer.progress.iteration, made=is_new)
        yield trainer, run


def is_over(run: RunFolder, config: TrainConfig, group: RankGroup) -> bool:
    """Whether nothing is left to train, and says so; a report that is missing is written."""
    return lead(group, partial(_is_over, run, config))


def _is_over(run: RunFolder, config: TrainConfig) -> bool:
    if not checkpoint.steps(run.checkpoints):
        return False
    last = checkpoint.pick(run.checkpoints)
    try:
        progress = checkpoint.read_progress(last)
        if progress.unevaluated or not progress.done(config):
            return False
        artefacts.check(last)
    except artefacts.DamagedError:
        return False  # something is: to resume takes an earlier one
    if not run.report_file.is_file():
        report.finish(run)
    if progress.iteration >= config.iterations:
        more = typed("train", "--resume", run.root, "--iterations", 2 * max(progress.iteration, 1))
        done = f"is at iteration {progress.iteration} of {config.iterations}"
    else:
        unit, spent, budget = progress.spent(config)[0]
        more = typed("train", "--resume", run.root, f"--{unit.replace('_', '-')}", 2 * spent)
        done = f"has spent {spent} of {budget} tokens ({unit})"
    say(f"nothing to do: {run.root} {done}; for more: {more}")
    say(f"report:  {run.report_file}")
    return True


def train_and_report(trainer: Trainer, run: RunFolder, what: str = "") -> None:
    """Runs the iterations that are left, with progress at the terminal, and writes what people look at afterwards.

    Args:
        trainer: Has started the run, or resumed it.
        run: Its folder.
        what: Stands beside the environment's id in the progress; the algorithm's name by default.

    Raises:
        Interrupted, InfrastructureError, TaskError: As ``Trainer.train``; then there is no report.
    """
    config, progress = trainer.config, trainer.progress
    title = f"{task(config.env, config.env_kwargs)} · {what or config.algo}"
    console = None if run.writes else Console(quiet=True)
    share = partial(progress.share, config)
    with loggers.Display(config.iterations, progress.iteration, title, console, share) as display:
        trainer.train(run, display)
    if run.writes:
        report.finish(run)
