"""verl: a team's episode as an agent loop (made for verl 0.9; extra ``verl``).

A sample of the data set is one episode as one agent, the learner, lives it; :func:`rows` writes them. What the learner
reads between its turns has ``response_mask`` 0. verl builds agent loops from a file that
``actor_rollout_ref.rollout.agent.agent_loop_config_path`` names::

    - name: marft
      _target_: marft_envs.adapters.outward.verl.TeamLoop
      env: math-dual-v0
      env_kwargs: {levels: [0]}

What runs in this project's tests is the loop against a server manager that speaks verl's protocol, not verl itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import marft_envs
from marft_envs.adapters.optional import require
from marft_envs.adapters.outward.learner_row import LearnerRow, paid, template
from marft_envs.core.env import FlexEnv
from marft_envs.errors import ConfigError


def rows(
    env: FlexEnv, learners: Sequence[str], seeds: Iterable[int], agent_name: str = "marft"
) -> list[dict[str, Any]]:
    """Returns data set rows (for a parquet file): per seed and learner its profile, and ``extra_info`` that names both.

    Args:
        env: The environment, for its id and its profiles.
        learners: Whose tokens are trained; several share the model, each in rows of its own.
        seeds: Seeds of the episodes.
        agent_name: The loop's name in the file of agent loops.
    """
    dataset = []
    for index, (seed, learner) in enumerate((seed, learner) for seed in seeds for learner in learners):
        prompt = [{"role": "user", "content": env.profile(learner).prompt}]
        extra = {"seed": int(seed), "agent": learner, "index": index}
        source = env.unwrapped.env_id
        dataset.append({"data_source": source, "agent_name": agent_name, "prompt": prompt, "extra_info": extra})
    return dataset


class TeamLoop:
    """Plays one episode. verl constructs one per sample and calls :meth:`run`; nothing else of its base class is used.

    Args:
        env: Id of the environment.
        env_kwargs: Its arguments.
        trainer_config: verl's; the limits on tokens are read from it.
        server_manager: Generates: ``await generate(request_id, prompt_ids=…, sampling_params=…)``.
        tokenizer: Of the model.
        **_: What else verl passes.
    """

    def __init__(
        self,
        env: str,
        trainer_config: Any,
        server_manager: Any,
        tokenizer: Any,
        env_kwargs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        self.env = marft_envs.make(env, **dict(env_kwargs or {}))
        self.server_manager, self.tokenizer = server_manager, tokenizer
        limits = trainer_config.config.actor_rollout_ref.rollout
        self.prompt_length, self.response_length = int(limits.prompt_length), int(limits.response_length)

    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> Any:
        """Plays the episode that ``extra_info`` names; everybody speaks with the model, the learner's tokens are kept.

        A row that reaches ``response_length`` ends there, its episode truncated. An episode that breaks off is returned
        with a mask of zeros.
        """
        loop = require("verl.experimental.agent_loop.agent_loop", "verl", "0.9")
        named = sample.get("extra_info") or {}
        if "seed" not in named or "agent" not in named:
            raise ConfigError("The sample's extra_info names no seed and agent. Next: write the data set with rows(…).")
        row = LearnerRow(str(named["agent"]))
        try:
            turns = await self._play(row, int(named["seed"]), sampling_params)
            row.fill(self.tokenizer, self.env.messages(row.learner))
            episode = self.env.unwrapped.episode
        finally:
            self.env.close()
        cut = slice(0, self.response_length)
        extra = {"turn_scores": [], "tool_rewards": [], "success": episode.success, "stop_reason": episode.stop_reason}
        return loop.AgentLoopOutput(
            prompt_ids=row.prompt,
            response_ids=row.completion[cut],
            response_mask=[0 if episode.infra else mask for mask in row.mask[cut]],
            response_logprobs=None if row.logprobs is None else row.logprobs[cut],
            reward_score=paid(episode, row.learner),
            num_turns=2 * turns,
            metrics=loop.AgentLoopMetrics(),
            extra_fields=extra,
        )

    async def _play(self, row: LearnerRow, seed: int, sampling_params: dict[str, Any]) -> int:
        """Plays to the end; returns how many turns the learner had."""
        env, turns = self.env, 0
        env.reset(seed=seed)
        while not env.done:
            layer = env.ready_agents
            contexts = [
                row.read(self.tokenizer, env.messages(agent)) if agent == row.learner
                else template(self.tokenizer, env.messages(agent))
                for agent in layer
            ]  # fmt: skip
            if len(row.prompt) > self.prompt_length:
                raise ConfigError(
                    f"{row.learner}'s prompt has {len(row.prompt)} tokens, rollout.prompt_length is "
                    f"{self.prompt_length}. Next: raise it, or set max_chars in env_kwargs."
                )
            if len(row.completion) >= self.response_length:
                env.truncate("response_length")
                break
            replies = await asyncio.gather(*(self._generate(ids, sampling_params) for ids in contexts))
            for agent, reply in zip(layer, replies, strict=True):
                if agent == row.learner:
                    row.add_reply(reply.token_ids, reply.log_probs)
                    turns += 1
                env.select(agent)
                text = self.tokenizer.decode(reply.token_ids, skip_special_tokens=True)
                await asyncio.to_thread(env.step, text)
        return turns

    async def _generate(self, ids: list[int], sampling_params: dict[str, Any]) -> Any:
        # A request of its own for each turn: prompts of different agents share no prefix that a server could keep.
        return await self.server_manager.generate(
            request_id=uuid4().hex, prompt_ids=ids, sampling_params=sampling_params
        )
