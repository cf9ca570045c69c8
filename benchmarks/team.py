"""The path that runs take, for measurements: a real environment, chat template, Collector and engine.

Prompts of one agent begin with the same profile, as those of a run do, so that what shares their head is measured as it
is used; replies have no end, so that every turn has its full length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from marft_algos.engines import NativeEngine
from marft_algos.engines.base import RolloutEngine
from marft_algos.models.loading import ModelSettings
from marft_algos.models.policy import PolicySet
from marft_algos.rollout.collector import Collector
from marft_algos.types import SamplingParams, Trajectory
from marft_envs import AgentSpec, Chain, FlexEnv, Outcome
from marft_envs.core.vector import VectorEnv

_WORDS = ("bird", "stone", "river", "seven", "green", "light", "paper", "north")


class Pages:
    """A task whose observation is so many random words; its reward is a number that depends on the last reply."""

    slow = False

    def __init__(self, words: int, rounds: int = 1) -> None:
        self.words, self.rounds, self.task_id, self._page, self._left = words, rounds, "", "", rounds

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Draws the words."""
        self._page = " ".join(rng.choice(_WORDS, self.words))
        self.task_id, self._left = self._page[:40], self.rounds

    def observe(self, agent: str) -> str:
        """The same for everybody."""
        return self._page

    def on_layer(self, turns: Sequence[Any]) -> Outcome:
        """Gives no reward."""
        return Outcome()

    def on_round(self, turns: Sequence[Any]) -> Outcome:
        """Rewards, and ends the episode after the last one."""
        self._left -= 1
        return Outcome(team_reward=float(len(turns[-1].text) % 7), terminated=not self._left)

    def sample_actions(self, agent: str) -> list[str]:
        """Two replies."""
        return ["stone", "seven birds"]

    def validate(self) -> None:
        """There is no gold answer."""


def team(agents: int) -> dict[str, str]:
    """Agent -> policy, one each."""
    return {f"reader_{i}": f"reader_{i}" for i in range(agents)}


def build(model: str, agents: int, device: str = "cpu", settings: ModelSettings | None = None) -> PolicySet:
    """Returns a policy for each agent, whose replies have no end."""
    policies = PolicySet.build(model, team(agents), device=device, settings=settings)
    for policy in policies.policies:
        policies.base(policy).chat.end_ids = ()
    return policies


class Stage:
    """Plays episodes of a chain in which everybody reads the reply before; over several rounds, all before.

    Args:
        policies: From :func:`build`.
        episodes: At once.
        prompt: About so many tokens in the first agent's prompt: its profile, then the page.
        new: Tokens of a reply.
        engine: The native one by default, which captures nothing.
        rounds: In which everybody speaks.
        profile: Share of the prompt that is the profile.
    """

    def __init__(
        self,
        policies: PolicySet,
        episodes: int,
        prompt: int,
        new: int,
        engine: RolloutEngine | None = None,
        rounds: int = 1,
        profile: float = 0.5,
    ) -> None:
        self.policies, self.episodes = policies, episodes
        self.engine = engine or NativeEngine(policies, max_batch=episodes, decode_graph=False)
        agents = list(policies.renderer.agents)
        words_of_profile, words = self._sizes(agents[0], prompt, profile)
        specs = [AgentSpec(name, name, words_of_profile, with_answer=name == agents[-1]) for name in agents]
        chain, history = ("previous", "deps") if rounds == 1 else ("all", "public")
        self._vec = VectorEnv(
            [lambda: FlexEnv(specs, Pages(words, rounds), Chain(sees=chain), history=history, max_rounds=rounds)]
            * episodes
        )
        self._collector = Collector(self._vec, policies.renderer, self.engine, SamplingParams(new))

    def play(self, iteration: int, repeats: int = 1) -> list[Trajectory]:
        """Plays the episodes; ``repeats`` of them in a row start alike."""
        panel = [iteration * self.episodes + i // repeats for i in range(self.episodes)]
        played = self._collector.collect(panel, iteration=iteration)
        return [replace(trajectory, group=trajectory.number // repeats) for trajectory in played]

    def close(self) -> None:
        """Closes the environments."""
        self._vec.close()

    def _sizes(self, agent: str, prompt: int, share: float) -> tuple[str, int]:
        """A profile, and a number of words, that make a prompt of about so many tokens."""
        policy = self.policies.renderer.policy_of(agent)

        def tokens(profile: str, page: str) -> int:
            messages = [{"role": "system", "content": profile}, {"role": "user", "content": page}]
            return len(self.policies.renderer.render(policy, messages))

        bare = tokens("", "")
        each = (tokens("", " ".join(_WORDS * 8)) - bare) / (8 * len(_WORDS))
        words = (prompt - bare) / each
        own = max(int(words * share), 1)
        return " ".join((_WORDS * own)[:own]), max(int(words * (1 - share)), 1)
