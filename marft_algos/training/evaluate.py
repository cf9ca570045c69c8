"""Evaluates a run's team on its held-out evaluation set: during training, and afterwards, as it was or is."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from marft_algos.config.settings import TrainConfig
from marft_algos.evaluation import records as rows
from marft_algos.evaluation.environments import check_prompts, started
from marft_algos.evaluation.play import Player, records
from marft_algos.rollout.collector import OnProgress
from marft_algos.rollout.curriculum import with_profiles
from marft_algos.rollout.episodes import Prompts, summary
from marft_algos.runs import checkpoint
from marft_algos.runs import folder as folders
from marft_algos.runs.intervals import Interval
from marft_algos.runs.loggers import Display
from marft_algos.runs.progress import RunProgress
from marft_algos.training import environments, hosting
from marft_algos.training.parts import Parts
from marft_algos.training.policies import make_policies, player, sampling, saved_policies
from marft_algos.training.resolve import resolve
from marft_algos.training.session import Hindrances, advice, unfamiliar
from marft_algos.types import Trajectory
from marft_envs.core.types import optional
from marft_envs.errors import reading

VOTE_SEEDS = 7919
"""Between the seeds of the answers that are sampled to one problem."""


def numbers(
    estimate: Interval, gain: Interval | None, facts: folders.EvaluationSetFacts, counted: Mapping[str, float]
) -> dict[str, float]:
    """Returns what is logged of an evaluation: its score, the gain over the untrained team, and what was counted."""
    logged = {"success": estimate.mean, "low": estimate.low, "high": estimate.high, "n": float(estimate.n)}
    logged |= {"instances": float(facts.instances), "held_out": float(facts.held_out)}
    if gain is not None:
        logged |= {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high}
    kept = ("tokens", "critical_path", "infrastructure_error", "task_errors", "agent/", "task/")
    return logged | {k: v for k, v in counted.items() if k.startswith(kept)}


class Evaluator:
    """Plays the held-out evaluation set during a run, and says what is in the way of learning.

    Args:
        parts: Of the run.
        held_out: Plays the evaluation set.
    """

    def __init__(self, parts: Parts, held_out: Callable[[OnProgress], list[Trajectory]]) -> None:
        self._config, self._apart, self._taught = parts.config, parts.problems.apart, parts.demonstrations is not None
        self._held_out, self.notes, self._advised = held_out, Hindrances(parts.demonstrations), False

    def evaluate(self, run: folders.RunFolder, display: Display, progress: RunProgress) -> dict[str, float]:
        """Plays the evaluation set, writes its episodes and notes the best score; returns its numbers."""

        def show(done: int, total: int, tokens: int) -> None:
            display.phase(f"evaluating: {done}/{total}")

        started, iteration = time.monotonic(), progress.iteration
        played = self._held_out(show)
        run.write_episodes("eval", iteration, [rows.row(t) for t in played])
        now = records(played)
        estimate = folders.estimate(now)
        first = iteration == folders.UNTRAINED or not run.writes
        gain = None if first else folders.compare(run.evaluation(folders.UNTRAINED), now)[2]
        facts = folders.EvaluationSetFacts.of([record.task_id for record in now], held_out=self._apart)
        display.evaluated(iteration, estimate, gain, str(facts))
        if first and not self._taught and not self._config.start and (words := unfamiliar(self._config)):
            display.note(words)
        self.notes.show(display, played)
        if estimate.mean > progress.best_score:
            progress.best_score, progress.best_iteration = estimate.mean, iteration
        counted = summary(played)
        untaught = self._taught and iteration == folders.UNTRAINED  # others' replies will teach it
        if not self._advised and not untaught and (words := advice(counted, self._config)):
            self._advised = True  # once is enough
            display.note(words)
        measured = numbers(estimate, gain, facts, counted)
        return {f"eval/{k}": v for k, v in measured.items()} | {"time_eval": time.monotonic() - started}


class HeldOut:
    """The held-out problems of a run's settings, and policies to play them.

    Args:
        config: The run's settings.
        episodes: Only so many of the problems, the first; None: all.
        servers: That play the policies, see ``hosting.served``; empty: they are played here. They hold adapters until
            :meth:`close`.
        on_progress: Called with (ended, all, lost) after every episode of a play.

    Attributes:
        evaluation_set: The problems.
        apart: Whether none of them is trained on.
        team: The agents.
        policies: As they are before training, until :meth:`load`.
        names: Those of them whose weights a checkpoint holds.
        answer_key: What makes two replies the same answer, if the task says so.
        player: Plays them.
        profiles: The best that a run has learnt, by agent.
        waited: Seconds from one episode's end to the next one's, in the last play; none for those that were lost.
    """

    def __init__(
        self, config: TrainConfig, episodes: int | None = None, servers: Mapping[str, object] | None = None,
        on_progress: Callable[[int, int, int], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        self.config, self.make_env = config, environments.env_factory(config, environments.eval_kwargs(config))
        held_out = started(config.env, self.make_env)
        with closing(environments.make_env(config, config.env_kwargs)) as env, closing(held_out):
            problems = environments.problems(config, env, held_out)
            evaluation_set, self.apart, self.team = problems.held_out, problems.apart, env.unwrapped.team
            spec = resolve(config, env, held_out)
            spec = hosting.served(spec, servers) if servers else spec
            self.answer_key: Callable[[str], str] | None = optional(held_out.unwrapped.task, "answer_key")
        self.evaluation_set = Prompts(evaluation_set.seeds[:episodes], evaluation_set.options[:episodes])
        self.policies = make_policies(spec)
        self.names = saved_policies(config, self.policies)
        self._engine = hosting.make_engine(spec, self.policies, local=not servers)
        self.player = player(config, self.make_env, self.policies.renderer, self._engine)
        self._publisher, self._version = hosting.publisher(config, self._engine, self.policies), -1
        self._publish()
        self.profiles: dict[str, str] = {}
        self.waited, self._on_progress = list[float](), on_progress

    def check(self) -> None:
        """Checks that the problems fit the models' contexts, and that calls are read as models write them.

        Raises:
            ConfigError: As ``check_prompts`` and ``check_call_formats``.
        """
        with closing(started(self.config.env, self.make_env)) as env:
            check_prompts(env, self.policies.renderer, self.evaluation_set, self.config.max_new_tokens)
            environments.check_call_formats(env, self.policies.renderer)

    def load(self, run: folders.RunFolder, which: str = "last") -> None:
        """Takes over what a run has learnt: policies (``which``: see ``checkpoint.pick``), and its best profiles."""
        self.profiles = {}
        if run.profiles_file.is_file():
            with reading(f"Cannot read the profiles in '{run.profiles_file}'", "Expected a file that a run wrote."):
                self.profiles = dict(json.loads(run.profiles_file.read_text(encoding="utf-8")))
        checkpoint.load_policies(checkpoint.pick(run.checkpoints, which), self.policies, self.names)
        self._publish()

    def close(self) -> None:
        """Unloads what servers hold."""
        self._engine.close()
        self._publisher.close()

    def play(self) -> list[Trajectory]:
        """Plays every problem as the settings say."""
        return self._play(self.player)

    def sample(self, i: int) -> list[Trajectory]:
        """Plays every problem sampled, for the ``i``-th time."""
        seed = self.config.seed + VOTE_SEEDS * (i + 1)
        return self._play(dataclasses.replace(self.player, sampling=sampling(self.config), seed=seed))

    def shuffle(self, agents: Sequence[str], played: Sequence[Trajectory]) -> list[Trajectory]:
        """Plays every problem once more, with these agents' words taken from other problems.

        Args:
            agents: Whose words.
            played: What :meth:`play` has returned.

        Raises:
            ConfigError: One of them never spoke, or there are fewer than two problems.
        """
        shuffling = self.player
        for agent in agents:
            shuffling = shuffling.shuffling(agent, played)
        return self._play(shuffling)

    def _publish(self) -> None:
        self._version += 1
        self._publisher.publish(self.policies.policies, self._version)

    def _play(self, by: Player) -> list[Trajectory]:
        self.waited, began, lost = [], time.perf_counter(), 0

        def ended(trajectory: Trajectory) -> None:
            nonlocal began, lost
            before, began = began, time.perf_counter()
            lost += trajectory.infrastructure_error
            self.waited += [] if trajectory.infrastructure_error else [began - before]
            self._on_progress(len(self.waited) + lost, len(self.evaluation_set), lost)

        return by.play(with_profiles(self.evaluation_set, [self.profiles]), ended)


def score(played: Sequence[Trajectory]) -> float:
    """Averages the outcomes of what was played, without infrastructure errors."""
    return folders.estimate(records(played)).mean
