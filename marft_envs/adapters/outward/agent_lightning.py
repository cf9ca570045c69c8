"""Agent-Lightning: a team as a ``LitAgent`` (made for agentlightning 0.3; extra ``agent-lightning``).

A task is ``{"seed": …}``. Each agent speaks by the resource of its own name, else by ``main_llm``; Agent-Lightning's
proxy records the calls, and the rollout's reward is what the episode paid.

>>> trainer = agentlightning.Trainer(algorithm=…, n_runners=8)
>>> trainer.fit(agent("math-dual-v0", levels=[0]), train_dataset=[{"seed": seed} for seed in range(1000)])

What runs in this project's tests is the agent against an OpenAI-compatible server on the loopback, not its trainers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import marft_envs
from marft_envs.adapters.optional import require
from marft_envs.adapters.outward.learner_row import paid
from marft_envs.core.env import FlexEnv
from marft_envs.errors import ConfigError


def agent(id: str, learner: str | None = None, **kwargs: Any) -> Any:
    """Returns a ``LitAgent`` that plays an environment's episodes.

    Args:
        id: Of the environment.
        learner: The agent whose own rewards count beside the team's; None: the team's only.
        **kwargs: The environment's own; it is built once here, so that a wrong one is an error before training.
    """
    lightning: Any = require("agentlightning", "agent-lightning", "0.3")
    marft_envs.make(id, **kwargs).close()
    base: Any = lightning.LitAgent

    class TeamAgent(base):
        async def rollout_async(
            self, task: Mapping[str, Any], resources: Mapping[str, Any], rollout: Any
        ) -> float | None:
            if "seed" not in task:
                raise ConfigError(f"A task names its seed; got {sorted(task)}. Next: train_dataset=[{{'seed': 0}}, …].")
            env = marft_envs.make(id, **kwargs)
            try:
                env.reset(seed=int(task["seed"]))
                await _play(env, resources, rollout)
                episode = env.unwrapped.episode
                if episode.infra:
                    return None
                return episode.team_return if learner is None else paid(episode, learner)
            finally:
                env.close()

    return TeamAgent()


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
"""One client for each event loop, that is for each runner: making one costs more than a short reply."""


async def _play(env: FlexEnv, resources: Mapping[str, Any], rollout: Any) -> None:
    while not env.done:
        layer = env.ready_agents
        texts = await asyncio.gather(*(_reply(env, name, resources, rollout) for name in layer))
        for name, text in zip(layer, texts, strict=True):
            env.select(name)
            await asyncio.to_thread(env.step, text)


async def _reply(env: FlexEnv, name: str, resources: Mapping[str, Any], rollout: Any) -> str:
    """One request; the address carries the rollout's and the attempt's ids, by which the proxy files the call."""
    import openai

    llm = resources.get(name, resources.get("main_llm"))
    if llm is None:
        raise ConfigError(f"There is no LLM for {name}; resources: {sorted(resources)}. Next: name one 'main_llm'.")
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = openai.AsyncOpenAI(base_url="http://localhost", api_key="none")
    url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    client = _clients[loop].with_options(base_url=url, api_key=llm.api_key or "none")
    answer = await client.chat.completions.create(
        model=llm.model, messages=env.messages(name), **llm.sampling_parameters
    )
    return answer.choices[0].message.content or ""
