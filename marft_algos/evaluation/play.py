"""Plays an evaluation set, and tests whether a team's messages matter."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from marft_algos import seeds
from marft_algos.engines.base import RolloutEngine
from marft_algos.engines.mixed import MixedEngine
from marft_algos.evaluation.environments import EnvFactory
from marft_algos.models.chat import Renderer
from marft_algos.rollout.collector import Collector
from marft_algos.rollout.episodes import ErrorLimits, Prompts, check, check_any, settle
from marft_algos.runs.folder import EvalRecord
from marft_algos.types import SamplingParams, Trajectory
from marft_envs.core.vector import VectorEnv
from marft_envs.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True)
class Player:
    """Plays episodes as at evaluation."""

    make_env: EnvFactory
    renderer: Renderer
    """Who plays which policy."""
    engine: RolloutEngine
    """Writes the replies."""
    sampling: SamplingParams
    seed: int
    slots: int
    """Episodes in flight at most."""
    limits: ErrorLimits

    def play(self, prompts: Prompts, ended: Callable[[Trajectory], None] = lambda trajectory: None) -> list[Trajectory]:
        """Plays prompts; returns their episodes in order.

        Args:
            prompts: Episodes to play.
            ended: Gets each episode as soon as it has ended, lost ones, too.

        Raises:
            InfrastructureError: Too many episodes were lost for a score; see ``limits``.
            TaskError: The task's code does not work.
        """
        played = list[Trajectory]()
        for trajectory in self.stream(prompts, range(len(prompts))):
            played.append(trajectory)
            ended(trajectory)
        played.sort(key=lambda t: t.number)
        check_any(played)
        played = settle(played)
        check(played, self.limits, "an evaluation")
        return played

    def stream(self, prompts: Prompts, numbers: Sequence[int]) -> Generator[Trajectory]:
        """Plays the prompts with these numbers; yields each as soon as it has ended."""
        seeds.start_global(seeds.tasks_at_evaluation())
        starts = [prompts.seeds[i] for i in numbers], [prompts.options[i] for i in numbers]
        with closing(VectorEnv([self.make_env] * min(len(numbers), self.slots))) as vec:
            collector = Collector(vec, self.renderer, self.engine, self.sampling, seed=self.seed)
            with closing(collector.stream(*starts, iteration=seeds.EVALUATION, numbers=numbers)) as groups:
                for group in groups:
                    yield from group

    def shuffling(self, agent: str, played: Sequence[Trajectory]) -> Player:
        """Returns a player whose ``agent`` says in every episode what it said in another one.

        Messages that carry information about their own problem are worth nothing there: what the team loses is what the
        agent's messages were worth. Play the same prompts again with it.

        Args:
            agent: Whose messages are shuffled.
            played: The same prompts as played before, in order.

        Raises:
            ConfigError: No such agent spoke, or there are fewer than two episodes.
        """
        from marft_algos.engines.scripted import ScriptedEngine

        texts = [[t.turn.text for t in trajectory.transitions if t.agent == agent] for trajectory in played]
        if not any(texts):
            names = {t.agent for trajectory in played for t in trajectory.transitions}
            raise ConfigError(f"No agent '{agent}' spoke in these episodes. {did_you_mean(agent, names)}")
        if len(played) < 2:
            raise ConfigError("Shuffling messages takes at least two episodes. Raise --episodes.")
        replies: dict[int, str] = {}
        for episode, other in enumerate(derangement(len(played))):
            turns = [t.index for t in played[episode].transitions if t.agent == agent]
            for k, index in enumerate(turns):
                exchanged = texts[other]
                text = exchanged[min(k, len(exchanged) - 1)] if exchanged else ""
                replies[seeds.row_seed(self.seed, seeds.EVALUATION, episode, index)] = text
        policy = self.renderer.policy_of(agent)
        # Hosted agents have no tokens.
        tokenizer = self.renderer.tokenizer(policy) if policy in self.renderer.policies else None
        script = ScriptedEngine({agent: lambda request: replies.get(request.seed, "")}, tokenizer)
        engines = {"shuffled": script, "own": self.engine}
        return replace(self, engine=MixedEngine(engines, lambda r: "shuffled" if r.agent == agent else "own"))


def derangement(n: int) -> list[int]:
    """Returns a fixed permutation of n ≥ 2 things that leaves none in its place: one cycle in a shuffled order."""
    order = seeds.generator(seeds.shuffled()).permutation(n)
    to = np.empty(n, dtype=int)
    to[order] = np.roll(order, -1)
    return [int(i) for i in to]


def records(trajectories: Sequence[Trajectory]) -> list[EvalRecord]:
    """Returns the outcomes in the order of the prompts."""
    return [EvalRecord.of(t.episode) for t in trajectories]
