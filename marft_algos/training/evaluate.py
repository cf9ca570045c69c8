"""Evaluation on a held-out panel, and the question whether a team's messages matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from marft_algos import seeds
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import RolloutEngine
from marft_algos.engines.mixed import MixedEngine
from marft_algos.engines.scripted import ScriptedEngine
from marft_algos.models.renderer import Renderer
from marft_algos.rollout import faults
from marft_algos.rollout.collector import Collector
from marft_algos.runs.folder import EvalRecord, outcome
from marft_algos.training.setup import EnvFactory, Panel, sampling
from marft_algos.types import StopReason, Trajectory
from marft_envs.errors import ConfigError, did_you_mean
from marft_envs.vector import VectorEnv

Progress = Callable[[int, int, int], None]


def play(
    config: TrainConfig,
    make_env: EnvFactory,
    panel: Panel,
    renderer: Renderer,
    engine: RolloutEngine,
    on_progress: Progress | None = None,
) -> list[Trajectory]:
    """Plays the panel as at evaluation: greedily, unless the settings say otherwise.

    Args:
        config: Settings of the run.
        make_env: Makes the environments that are played.
        panel: Episodes to play.
        renderer: Who plays which policy.
        engine: Writes the replies.
        on_progress: See ``Collector``.

    Raises:
        OutageError: Too many episodes were lost for a score; see the settings ``max_lost`` and ``on_task_error``.
        TaskError: The task's code does not work.
    """
    slots = min(len(panel), config.num_envs or max(config.episodes_per_iteration, config.engine_batch))
    seeds.start_global(seeds.tasks_at_evaluation())
    with closing(VectorEnv([make_env] * slots)) as vec:
        params = sampling(config, evaluation=True)
        collector = Collector(vec, renderer, engine, params, seed=config.seed, on_progress=on_progress)
        played = collector.collect(panel.seeds, panel.options, iteration=seeds.EVALUATION)
    faults.check(played, config, "an evaluation")
    return played


def records(trajectories: Sequence[Trajectory]) -> list[EvalRecord]:
    """Outcomes in panel order."""
    return [EvalRecord(t.task_id, outcome(t.success, t.score), t.infra) for t in trajectories]


def summary(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Numbers of played episodes: score, success, what the task measured, how long each agent's replies are.

    Tokens are of all of them, and how many failed is counted; the other numbers are of those that no outage took.
    """
    whole = faults.whole(trajectories)
    turns = [t for trajectory in whole for t in trajectory.transitions]
    metrics: dict[str, float] = {
        "episodes": len(trajectories),
        "tokens": sum(len(t.action_ids) for trajectory in trajectories for t in trajectory.transitions),
        "score": sum(t.score for t in whole) / len(whole),
        "turns": len(turns) / len(whole),
        **faults.counts(trajectories),
    }
    judged = [t.success for t in whole if t.success is not None]
    if judged:
        metrics["success"] = sum(judged) / len(judged)
    for name in sorted({key for t in whole for key in t.metrics}):
        values = [t.metrics[name] for t in whole if name in t.metrics]
        metrics[f"task/{name}"] = sum(values) / len(values)
    for agent in sorted({t.agent for t in turns if t.action_ids}):  # hosted ones have no tokens here
        own = [t for t in turns if t.agent == agent]
        metrics[f"agent/{agent}/length"] = sum(len(t.action_ids) for t in own) / len(own)
        metrics[f"agent/{agent}/cut"] = sum(t.stop_reason is StopReason.LENGTH for t in own) / len(own)
    return metrics


def swap(
    agent: str, played: Sequence[Trajectory], config: TrainConfig, engine: RolloutEngine, renderer: Renderer
) -> RolloutEngine:
    """An engine that lets ``agent`` say in every episode what it said in another one.

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
    said = [[t.text for t in trajectory.transitions if t.agent == agent] for trajectory in played]
    if not any(said):
        names = {t.agent for trajectory in played for t in trajectory.transitions}
        raise ConfigError(f"No agent '{agent}' spoke in these episodes. {did_you_mean(agent, names)}")
    if len(played) < 2:
        raise ConfigError("Exchanging messages takes at least two episodes. Raise --episodes.")
    replies: dict[int, str] = {}
    for episode, other in enumerate(derangement(len(played))):
        turns = [t.index for t in played[episode].transitions if t.agent == agent]
        for k, index in enumerate(turns):
            words = said[other]
            text = words[min(k, len(words) - 1)] if words else ""
            replies[seeds.row_seed(config.seed, seeds.EVALUATION, episode, index)] = text
    policy = renderer.policy_of(agent)
    tokenizer = renderer.tokenizer(policy) if policy in renderer.policies else None  # hosted agents have no tokens
    script = ScriptedEngine({agent: lambda request: replies.get(request.seed, "")}, tokenizer)
    engines = {"exchanged": script, "own": engine}
    return MixedEngine(engines, lambda request: "exchanged" if request.agent == agent else "own")


def derangement(n: int) -> list[int]:
    """A fixed permutation of n ≥ 2 things that leaves none in its place: one cycle through a shuffled order."""
    order = seeds.generator(seeds.exchanged()).permutation(n)
    to = np.empty(n, dtype=int)
    to[order] = np.roll(order, -1)
    return [int(i) for i in to]
