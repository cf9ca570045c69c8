"""Runs the loop: collect → update → publish → log → evaluate → save. It knows no algorithm and no environment."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.console import Console

from marft_algos import seeds
from marft_algos.credit import diagnostics
from marft_algos.learner.learner import Learner
from marft_algos.models.critic import Critics
from marft_algos.ranks import lanes
from marft_algos.ranks.alike import check_state
from marft_algos.ranks.group import Group, lead, restarts
from marft_algos.ranks.lanes import Lanes
from marft_algos.rollout import selfplay
from marft_algos.rollout.panel import StoppedError, permute_rewards, summary, whole
from marft_algos.runs import checkpoint, loggers, records, report
from marft_algos.runs import folder as runs
from marft_algos.runs import start as starts
from marft_algos.runs.folder import UNTRAINED, PanelFacts, RunFolder
from marft_algos.runs.onlooker import Onlooker
from marft_algos.runs.progress import Progress
from marft_algos.terminal import say
from marft_algos.training import evaluate, rollouts, setup
from marft_algos.training.advice import LongProblems, advice
from marft_algos.training.collect import Collected, RolloutQueue, due
from marft_algos.training.interrupt import Interrupt, Interrupted
from marft_algos.training.parts import Parts
from marft_algos.types import Trajectory


class Trainer:
    """Trains a team: collects, updates, publishes, evaluates and saves.

    Args:
        parts: Of the run, see :func:`marft_algos.training.parts.build`.
        group: The ranks that train together; every one of them makes the same calls.
    """

    def __init__(self, parts: Parts, group: Group | None = None) -> None:
        self.config = config = parts.config
        self.lanes = Lanes(group, config.lanes or lanes.usual(group), parts.policies.sharded)
        self.group = self.lanes.group
        if self.group.size > 1:
            self.config = config = replace(config, lanes=self.lanes.count)  # it goes on so, on however many ranks
        self.parts, self.policies, self.problems = parts, parts.policies, parts.problems
        algorithm = parts.algorithm
        self.critics = Critics(self.policies, config.critic_hidden, config.seed) if algorithm.view != "none" else None
        self.learner = Learner(algorithm, self.policies, self.critics, config.seed, self.lanes, config.staleness)
        self.pool = selfplay.Pool(config, self.policies) if config.pool else None
        self.rollouts = rollouts.make(parts, self.lanes, self.pool)
        self._demonstrations = parts.demonstrations
        queue = config, algorithm, self.problems, self.rollouts, self.group, parts.demonstrations
        self._queue = RolloutQueue(*queue)
        self.progress = Progress()
        self._advised, self._cpu, self._long = False, time.process_time(), LongProblems()
        self._others, self._restarted = self.group.seconds, 0.0
        self._saved = setup.saved_policies(config, self.policies)

    def start(self) -> RunFolder:
        """Makes the folder of a new run."""
        config = self.config
        setup.take_values(self.parts.spec, self.critics)
        stem = f"{config.env}-{config.algo}".replace("/", "_").replace(":", "_")

        def make() -> RunFolder:
            run = RunFolder.create(config.runs_dir, config.name, stem)
            starts.keep(run, config, self.parts.spec.local)
            run.write_config(config.to_toml())
            return run

        return self.seen(lead(self.group, make))

    def seen(self, run: RunFolder) -> RunFolder:
        """Returns a run's folder as this rank may use it: only the first one writes."""
        return run if self.group.rank == 0 else Onlooker(run.root)

    def resume(self, run: RunFolder) -> None:
        """Takes over the last checkpoint; what the run wrote after it is forgotten, and will be written again.

        A damaged one is renamed, and the one before is taken. Settings may differ from those the run was started with
        (more iterations, say): config.toml follows, once it is certain that the checkpoint fits them.

        Raises:
            DamagedError: No checkpoint is whole.
        """
        if not self._begun(run):
            run.write_config(self.config.to_toml())
            run.rewind(-1, 0)
            return
        self._restarted = run.silent() if restarts() else 0.0
        path, damaged = lead(self.group, partial(checkpoint.newest_whole, run.checkpoints))
        if damaged and self.group.rank == 0:
            say(*(f"note: {what}" for what in damaged), f"note: going on from {path}", sep="\n", error=True)
        self.progress = checkpoint.read_progress(path)
        checkpoint.load_policies(path, self.policies, self._saved)
        state = checkpoint.load_state(path)
        self.learner.load_state_dict(state["learner"])
        if self.critics is not None:
            self.critics.load_state_dict(state["critics"])
        self._queue.load_state_dict(state.get("ahead", []), self.progress)
        self.policies.version = self.progress.version
        run.write_config(self.config.to_toml())
        run.rewind(self.progress.iteration, self.progress.metrics_bytes)

    def train(self, run: RunFolder, display: loggers.Display) -> None:
        """Runs the iterations that are left.

        Raises:
            Interrupted: Ctrl-C was pressed, or SIGTERM or SIGHUP came; the state was saved if it was whole.
            OutageError: Too many episodes were lost to faults of engine, world or machine; the state was saved.
            TaskError: The task's code does not work; the state was saved.
        """

        def show(done: int, total: int, tokens: int) -> None:
            display.phase(f"playing: {done}/{total} episodes, {tokens} tokens")

        config = self.config
        sinks = list[loggers.Logger]()
        if self.group.rank == 0:
            sinks += [loggers.make(name, run, self.progress.iteration) for name in config.loggers]
            sinks += self.parts.loggers
        session = _Session(run, display, [display, *sinks], Interrupt(self.group))
        try:
            with self._guarded(session):
                self.rollouts.lost = run.lost
                self.rollouts.publish(self.policies.policies, self.policies.version)
                with session.interrupt.installed():
                    self._tell(session)
                    if not checkpoint.steps(run.checkpoints) or self.progress.unevaluated:
                        self._catch_up(session)
                    while not self._done():
                        started = time.monotonic()
                        with session.interrupt.allowed():
                            display.phase("playing")
                            self._queue.fill(self.progress, self.policies.version, show)
                            collected = self._queue.take()
                        self._tell(session, collected.trajectories)
                        self._learn(session, collected, started)
                    self._tell(session, last=True)
        finally:
            if self._demonstrations is not None:
                self._demonstrations.close()
            self.rollouts.close()
            self._queue.close()
            for sink in sinks:
                sink.close()

    def _tell(self, session: _Session, played: Sequence[Trajectory] = (), last: bool = False) -> None:
        """Says which problems were too long, and which demonstrations were left out; at the end, how many in all."""
        if words := self._long.news(played):
            session.display.note(words)
        if self._demonstrations is not None:
            words = self._demonstrations.summary() if last else self._demonstrations.news()
            if words:
                session.display.note(words)

    @contextmanager
    def _guarded(self, session: _Session) -> Iterator[None]:
        """Holds the folder's lock; what stops the run inside lets go of it only when the state is saved."""
        run = session.run
        with run.locked():
            try:
                yield
            except KeyboardInterrupt:
                if session.interrupt.whole and self._begun(run):
                    self._save(run)
                raise Interrupted from None
            except StoppedError as error:
                if self._begun(run):
                    self._save(run)
                raise type(error)(f"{error} Mend it, and go on: marft train --resume {run.root}") from error

    def _begun(self, run: RunFolder) -> bool:
        """Whether there is a checkpoint: all ranks take rank 0's word, for they save together."""
        return lead(self.group, lambda: bool(checkpoint.steps(run.checkpoints)))

    # One iteration ---------------------------------------------------------------------------------

    def _learn(self, session: _Session, collected: Collected, started: float) -> None:
        """Updates, publishes, records, evaluates and saves."""
        config, iteration, metrics = self.config, self.progress.iteration, collected.metrics
        # What an outage broke off says nothing about the replies before it.
        trajectories, before = whole(collected.trajectories), time.monotonic()
        counted = self.rollouts.metrics()
        metrics |= {k if k.startswith("time_") else f"engine/{k}": v for k, v in counted.items()}
        self.rollouts.rest()
        if config.permute_rewards:
            trajectories = permute_rewards(
                trajectories, seeds.generator(seeds.permuted_rewards(config.seed, iteration))
            )
        session.display.phase("learning")
        metrics |= self.learner.update(trajectories, iteration)
        if collected.judged:
            metrics |= diagnostics.metrics(collected.judged, trajectories, self.learner.estimates)
        self.policies.version += 1
        self.rollouts.wake()
        self.rollouts.publish(self.learner.trainable, self.policies.version)
        metrics |= {"time_rollout": before - started, "time_update": time.monotonic() - before, **self._waits()}
        self.progress.iteration = iteration = iteration + 1
        if self.pool is not None:
            metrics |= self.pool.results(trajectories)
            self.rollouts.publish(self.pool.take(iteration), self.policies.version)
        reached = self.progress.reached(config)
        self.progress.spend(metrics)
        metrics["tokens_total"] = self.progress.tokens
        last = self._done()
        if config.record_episodes and (last or due(iteration, config.record_every)):
            self._record(session.run, iteration, collected.trajectories[: config.record_episodes])
        evaluated = last or due(iteration, config.eval_every) or self.progress.reached(config) > reached
        if evaluated:
            try:
                metrics |= self._evaluate(session, iteration)
            except StoppedError:
                self.progress.unevaluated = True  # the update is done; a resumed run begins with what is missing
                self._log(session, {"iteration": iteration, **metrics}, started)
                self._save(session.run)
                raise
        self._log(session, {"iteration": iteration, **metrics}, started)
        if evaluated or due(iteration, config.save_every):
            self._save(session.run)
        session.interrupt.agreed()

    def _waits(self) -> dict[str, Any]:
        """Returns how many ranks there are, what they waited for since the last call, and when they were restarted."""
        among = self.group.gather(self.group.seconds - self._others)  # rank by rank
        known: dict[str, Any] = {"engine/ranks": self.group.size, "engine/rank_restarts": restarts()}
        known |= {"time_wait": self._queue.waited, "time_ranks": [round(seconds, 4) for seconds in among]}
        if self._restarted:
            known["time_restart"] = self._restarted
        self._queue.waited, self._others, self._restarted = 0.0, self.group.seconds, 0.0
        return known

    def _done(self) -> bool:
        return self.progress.done(self.config)

    def _catch_up(self, session: _Session) -> None:
        """Evaluates the team as it stands: untrained, or where an outage stopped the run before it was evaluated."""
        started, iteration = time.monotonic(), self.progress.iteration
        with session.interrupt.allowed():
            metrics = self._evaluate(session, iteration)
        self.progress.unevaluated = False
        self._log(session, {"iteration": iteration, **metrics}, started)
        self._save(session.run, again=True)

    def _evaluate(self, session: _Session, iteration: int) -> dict[str, float]:
        """Plays the held-out panel; returns its numbers."""

        def show(done: int, total: int, tokens: int) -> None:
            session.display.phase(f"evaluating: {done}/{total}")

        started, run = time.monotonic(), session.run
        played = self._queue.held_out(show)
        run.write_episodes("eval", iteration, [records.row(t) for t in played])
        now = evaluate.records(played)
        estimate = runs.estimate(now)
        first = iteration == UNTRAINED or self.group.rank > 0  # who writes nothing has nothing to read, either
        gain = None if first else runs.compare(run.evaluation(UNTRAINED), now)[2]
        facts = PanelFacts.of([record.task_id for record in now], self.problems.apart)
        session.display.evaluated(iteration, estimate, gain, str(facts))
        self._tell(session, played)
        if estimate.mean > self.progress.best_score:
            self.progress.best_score, self.progress.best_iteration = estimate.mean, iteration
        counted = summary(played)
        taught = self._demonstrations is not None and iteration == UNTRAINED  # it learns from others' replies
        if not self._advised and not taught and (words := advice(counted, self.config)):
            self._advised = True  # once is enough
            session.display.note(words)
        measured = evaluate.numbers(estimate, gain, facts, counted)
        return {f"eval/{k}": v for k, v in measured.items()} | {"time_eval": time.monotonic() - started}

    # Records ---------------------------------------------------------------------------------------

    def _record(self, run: RunFolder, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        renderer = self.policies.renderer
        tokenizers = {policy: renderer.tokenizer(policy) for policy in renderer.policies}
        learnt = self.learner.estimates
        run.write_episodes("train", iteration, [records.row(t, learnt, tokenizers) for t in trajectories])

    def _log(self, session: _Session, metrics: dict[str, Any], started: float) -> None:
        spent = time.monotonic() - started
        self.progress.seconds += spent
        metrics |= {
            "time_total": spent,
            "time_elapsed": self.progress.seconds,
            "time_cpu": time.process_time() - self._cpu,
        }
        self._cpu = time.process_time()
        self.progress.metrics_bytes = session.run.append_metrics(metrics)
        for sink in session.sinks:
            sink.log(metrics)

    def _save(self, run: RunFolder, again: bool = False) -> None:
        """Writes a checkpoint, on rank 0; all ranks have to hold what it writes.

        Raises:
            RanksDiffer: They do not.
        """
        state = {
            "learner": self.learner.state_dict(),
            "critics": self.critics.state_dict() if self.critics is not None else {},
        }
        if self.group.size > 1:
            check_state(self.group, [self.policies.state_dict(), state], str(run.root))
        if self.group.rank > 0:
            return
        if not again and checkpoint.steps(run.checkpoints)[-1:] == [self.progress.iteration]:
            return
        self.progress.version = self.policies.version
        checkpoint.save(run.checkpoints, self.progress, self.policies, self._saved, state, self._queue.state_dict())
        checkpoint.prune(run.checkpoints, self.config.keep, self.progress.best_iteration)


def train_and_report(trainer: Trainer, run: RunFolder, what: str = "") -> None:
    """Runs the iterations that are left, with progress at the terminal, and writes what people look at afterwards.

    Args:
        trainer: Has started the run, or resumed it.
        run: Its folder.
        what: Stands beside the environment's id in the progress; the algorithm's name by default.

    Raises:
        Interrupted, OutageError, TaskError: As ``Trainer.train``; then there is no report.
    """
    config, first = trainer.config, trainer.group.rank == 0
    title = f"{config.env} · {what or config.algo}"
    console = None if first else Console(quiet=True)
    progress = trainer.progress
    share = partial(progress.share, config)
    with loggers.Display(config.iterations, progress.iteration, title, console, share) as display:
        trainer.train(run, display)
    if first:
        report.finish(run)


@dataclass(frozen=True, slots=True)
class _Session:
    """Holds one run of the loop: where it writes, and who watches."""

    run: RunFolder
    display: loggers.Display
    sinks: Sequence[loggers.Logger]
    interrupt: Interrupt
