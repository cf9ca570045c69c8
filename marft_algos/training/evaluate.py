"""Evaluates a team on a held-out panel, and tests whether its messages matter."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing

import numpy as np

from marft_algos import seeds
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import RolloutEngine
from marft_algos.engines.mixed import MixedEngine
from marft_algos.engines.scripted import ScriptedEngine
from marft_algos.models.chat import Renderer
from marft_algos.rollout.collector import Collector, OnProgress
from marft_algos.rollout.panel import Panel, check, check_any, settle, summary
from marft_algos.runs import folder as folders
from marft_algos.runs.folder import UNTRAINED, EvalRecord, PanelFacts, RunFolder
from marft_algos.runs.intervals import Interval
from marft_algos.runs.loggers import Display
from marft_algos.runs.progress import RunProgress
from marft_algos.training import records as rows
from marft_algos.training.parts import Parts
from marft_algos.training.session import Hindrances, advice
from marft_algos.training.setup import EnvFactory, sampling
from marft_algos.types import Trajectory
from marft_envs.core.vector import VectorEnv
from marft_envs.errors import ConfigError, did_you_mean


def play(
    config: TrainConfig,
    make_env: EnvFactory,
    panel: Panel,
    renderer: Renderer,
    engine: RolloutEngine,
    ended: Callable[[Trajectory], None] = lambda trajectory: None,
) -> list[Trajectory]:
    """Plays the panel as at evaluation: greedily, unless the settings say otherwise.

    Args:
        config: Settings of the run.
        make_env: Makes the environments that are played.
        panel: Episodes to play.
        renderer: Who plays which policy.
        engine: Writes the replies.
        ended: Gets each episode as soon as it has ended, lost ones, too.

    Raises:
        OutageError: Too many episodes were lost for a score; see the settings ``max_lost`` and ``on_task_error``.
        TaskError: The task's code does not work.
    """
    played = list[Trajectory]()
    for trajectory in streamed(config, make_env, panel, range(len(panel)), renderer, engine):
        played.append(trajectory)
        ended(trajectory)
    played.sort(key=lambda t: t.number)
    check_any(played)
    played = settle(played)
    check(played, config, "an evaluation")
    return played


def streamed(
    config: TrainConfig,
    make_env: EnvFactory,
    panel: Panel,
    numbers: Sequence[int],
    renderer: Renderer,
    engine: RolloutEngine,
) -> Generator[Trajectory]:
    """Plays the episodes of a panel that have these numbers, see ``play``; yields each as soon as it has ended."""
    seeds.start_global(seeds.tasks_at_evaluation())
    starts = [panel.seeds[i] for i in numbers], [panel.options[i] for i in numbers]
    with closing(VectorEnv([make_env] * slots(config, len(numbers)))) as vec:
        collector = Collector(vec, renderer, engine, sampling(config, evaluation=True), seed=config.seed)
        with closing(collector.stream(*starts, iteration=seeds.EVALUATION, numbers=numbers)) as groups:
            for group in groups:
                yield from group


def slots(config: TrainConfig, episodes: int) -> int:
    """Returns how many of so many episodes are in flight at an evaluation."""
    return min(episodes, config.num_envs or max(config.episodes_per_iteration, config.engine_batch))


def records(trajectories: Sequence[Trajectory]) -> list[EvalRecord]:
    """Returns the outcomes in panel order."""
    return [EvalRecord.of(t.episode) for t in trajectories]


def numbers(
    estimate: Interval, gain: Interval | None, facts: PanelFacts, counted: Mapping[str, float]
) -> dict[str, float]:
    """Returns what is logged of an evaluation: its score, the gain over the untrained team, and what was counted."""
    logged = {"success": estimate.mean, "low": estimate.low, "high": estimate.high, "n": float(estimate.n)}
    logged |= {"instances": float(facts.instances), "held_out": float(facts.held_out)}
    if gain is not None:
        logged |= {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high}
    kept = ("tokens", "critical_path", "infra", "task_errors", "agent/", "task/")
    return logged | {k: v for k, v in counted.items() if k.startswith(kept)}


class Evaluator:
    """Plays the held-out panel in the course of a run, and says what is in the way of learning.

    Args:
        parts: Of the run.
        held_out: Plays the panel.
    """

    def __init__(self, parts: Parts, held_out: Callable[[OnProgress], list[Trajectory]]) -> None:
        self._config, self._apart, self._taught = parts.config, parts.problems.apart, parts.demonstrations is not None
        self._held_out, self.notes, self._advised = held_out, Hindrances(parts.demonstrations), False

    def evaluate(self, run: RunFolder, display: Display, progress: RunProgress) -> dict[str, float]:
        """Plays the panel, writes its episodes and notes the best score; returns its numbers."""

        def show(done: int, total: int, tokens: int) -> None:
            display.phase(f"evaluating: {done}/{total}")

        started, iteration = time.monotonic(), progress.iteration
        played = self._held_out(show)
        run.write_episodes("eval", iteration, [rows.row(t) for t in played])
        now = records(played)
        estimate = folders.estimate(now)
        first = iteration == UNTRAINED or not run.writes
        gain = None if first else folders.compare(run.evaluation(UNTRAINED), now)[2]
        facts = PanelFacts.of([record.task_id for record in now], held_out=self._apart)
        display.evaluated(iteration, estimate, gain, str(facts))
        self.notes.show(display, played)
        if estimate.mean > progress.best_score:
            progress.best_score, progress.best_iteration = estimate.mean, iteration
        counted = summary(played)
        untaught = self._taught and iteration == UNTRAINED  # others' replies will teach it
        if not self._advised and not untaught and (words := advice(counted, self._config)):
            self._advised = True  # once is enough
            display.note(words)
        measured = numbers(estimate, gain, facts, counted)
        return {f"eval/{k}": v for k, v in measured.items()} | {"time_eval": time.monotonic() - started}


def swap(
    agent: str, played: Sequence[Trajectory], config: TrainConfig, engine: RolloutEngine, renderer: Renderer
) -> RolloutEngine:
    """Makes an engine that lets ``agent`` say in every episode what it said in another one.

    Messages that carry information about their own problem are worth nothing there: what the team loses is what the
    agent's words were worth. Play the same panel again with it.

    Args:
        agent: Whose messages are exchanged.
        played: The panel as played before, in order.
        config: Settings of both evaluations.
        engine: Replies for everybody else.
        renderer: Gives the exchanged messages their token ids.

    Raises:
        ConfigError: No such agent spoke, or there are fewer than two episodes.
    """
    texts = [[t.turn.text for t in trajectory.transitions if t.agent == agent] for trajectory in played]
    if not any(texts):
        names = {t.agent for trajectory in played for t in trajectory.transitions}
        raise ConfigError(f"No agent '{agent}' spoke in these episodes. {did_you_mean(agent, names)}")
    if len(played) < 2:
        raise ConfigError("Exchanging messages takes at least two episodes. Raise --episodes.")
    replies: dict[int, str] = {}
    for episode, other in enumerate(derangement(len(played))):
        turns = [t.index for t in played[episode].transitions if t.agent == agent]
        for k, index in enumerate(turns):
            exchanged = texts[other]
            text = exchanged[min(k, len(exchanged) - 1)] if exchanged else ""
            replies[seeds.row_seed(config.seed, seeds.EVALUATION, episode, index)] = text
    policy = renderer.policy_of(agent)
    tokenizer = renderer.tokenizer(policy) if policy in renderer.policies else None  # hosted agents have no tokens
    script = ScriptedEngine({agent: lambda request: replies.get(request.seed, "")}, tokenizer)
    engines = {"exchanged": script, "own": engine}
    return MixedEngine(engines, lambda request: "exchanged" if request.agent == agent else "own")


def derangement(n: int) -> list[int]:
    """Returns a fixed permutation of n ≥ 2 things that leaves none in its place: one cycle in a shuffled order."""
    order = seeds.generator(seeds.exchanged()).permutation(n)
    to = np.empty(n, dtype=int)
    to[order] = np.roll(order, -1)
    return [int(i) for i in to]
