"""verifiers: a team as an ``Env`` whose seats are the agents (verifiers 0.4; extra ``verifiers``).

verifiers finds environments as modules, by name. So one's own module is three names:

>>> # my_team.py
>>> from marft_envs.adapters.outward.verifiers import plugin
>>> Tasks, Seat, Team = plugin("math-dual-v0", levels=[0])
>>> __all__ = ["Seat", "Tasks", "Team"]

Its id is ``my_team``: ``vf.load_environment(vf.resolve_env_config({"taskset": {"id": "my_team"}}))``. An episode of
verifiers is one of ours; each turn is one trace, made by the agent of that seat, with rewards of its own. Agents of a
layer run at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import marft_envs
from marft_envs.adapters.optional import require
from marft_envs.core.env import FlexEnv
from marft_envs.core.types import Episode
from marft_envs.errors import check_known
from marft_envs.records.trajectory import to_dict


def plugin(id: str, learners: Sequence[str] | None = None, **kwargs: Any) -> tuple[Any, Any, Any]:
    """Returns the classes that a verifiers module exports: its taskset, its harness, its environment.

    Args:
        id: Of an environment.
        learners: Agents whose tokens train; None: all of them.
        **kwargs: The environment's own.

    Raises:
        MissingExtraError: Without verifiers.
        ConfigError: An unknown agent, or one whose name cannot be a field.
    """
    vf = require("verifiers.v1", "verifiers", "0.4", below="0.5")
    env = marft_envs.make(id, **kwargs)
    names = list(env.possible_agents)
    env.close()
    check_known(learners or (), names, f"There is no agent '{{}}' in {id}.")
    return _taskset(vf, id), _harness(vf), _team(vf, names, names if learners is None else learners, id, kwargs)


def _taskset(vf: Any, id: str) -> Any:
    """Tasks are seeds: ``--env.taskset.seeds`` of them, from ``--env.taskset.first_seed`` on."""
    import pydantic

    data: Any = pydantic.create_model("SeedData", __base__=vf.TaskData, seed=(int, ...))
    fields: dict[str, Any] = {"seeds": (int, 1000), "first_seed": (int, 0)}
    config: Any = pydantic.create_model("SeedsConfig", __base__=vf.TasksetConfig, **fields)
    of_data: Any = vf.Task[data]

    class Seed(of_data):
        pass

    base: Any = vf.Taskset[Seed, config]

    class Seeds(base):
        def load(self) -> Iterator[Any]:
            for seed in range(self.config.first_seed, self.config.first_seed + self.config.seeds):
                yield Seed(data(seed=seed, name=f"{id} seed {seed}"), self.config.task)

    return Seeds


def _harness(vf: Any) -> Any:
    """A program in this process: one request, one reply; by verifiers' own endpoint, so that the trace records it."""
    base: Any = vf.Harness[vf.HarnessConfig]

    class OneReply(base):
        APPENDS_SYSTEM_PROMPT = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
        ) -> Any:
            import aiohttp

            system, prompt = self.resolve_prompt(data)
            messages = [("user", prompt)] if isinstance(prompt, str) else [(m.role, m.content) for m in prompt]
            shown = [("system", system), *messages] if system else messages
            body = {"model": ctx.model, "messages": [{"role": role, "content": text} for role, text in shown]}
            headers = {"Authorization": f"Bearer {secret}"}
            async with (
                aiohttp.ClientSession(headers=headers) as session,
                session.post(f"{endpoint}/chat/completions", json=body) as answer,
            ):
                text = await answer.text()
                return vf.ProgramResult(0 if answer.ok else 1, "", "" if answer.ok else text)

    return OneReply


def _team(vf: Any, names: Sequence[str], learners: Sequence[str], id: str, kwargs: dict[str, Any]) -> Any:
    """The environment: seats are fields of its configuration, named as the agents are."""
    import pydantic

    fields: dict[str, Any] = {name: (vf.AgentConfig, vf.AgentConfig(runtime=vf.SubprocessConfig())) for name in names}
    # verifiers plays one agent of an episode at a time by default; a layer's agents do not wait for each other.
    fields["max_concurrent_agents"] = (int | None, None)
    config: Any = pydantic.create_model("TeamConfig", __base__=vf.EnvConfig, **fields)
    base: Any = vf.Env[config]

    class Team(base):
        async def setup(self, agents: Any) -> None:
            for name in names:
                getattr(agents, name).trainable = name in learners

        async def run(self, task: Any, agents: Any) -> None:
            # One object serves all episodes at once, so that nothing of an episode lies on self.
            env = marft_envs.make(id, **kwargs)
            try:
                await _play(vf, env, task, agents)
            finally:
                env.close()

    return Team


async def _play(vf: Any, env: FlexEnv, task: Any, agents: Any) -> None:
    """Plays one episode, then writes each turn and its rewards on its trace."""
    traces: list[Any] = []
    env.reset(seed=task.data.seed)
    while not env.done:
        layer = env.ready_agents
        turns = [getattr(agents, name).run(_turn(vf, env, name, task.data.idx)) for name in layer]
        replies = await asyncio.gather(*turns)
        if (failed := next((trace for trace in replies if not trace.ok), None)) is not None:
            why = failed.last_error.message if failed.last_error else failed.stop_condition
            env.truncate(f"error: {failed.agent.name}: {why}", "engine")
            break
        traces += replies
        for name, trace in zip(layer, replies, strict=True):
            env.select(name)
            env.attach(name, {"trace": trace.id})
            await asyncio.to_thread(env.step, trace.assistant_messages[-1].content or "")
    by_id = {trace.id: trace for trace in traces}
    episode = env.episode
    for turn in episode.turns:
        if turn.extras is not None:
            _record(by_id[turn.extras["trace"]], episode, turn.index)
    if traces:
        traces[-1].info["episode"] = to_dict(episode)


def _turn(vf: Any, env: FlexEnv, agent: str, idx: int | None) -> Any:
    """What one agent sees now, as a task of verifiers."""
    messages = env.messages(agent)
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    rest = messages[1:] if system is not None else messages
    kinds = {"user": vf.UserMessage, "assistant": vf.AssistantMessage}
    prompt = rest[0]["content"] if len(rest) == 1 else [kinds[m["role"]](content=m["content"]) for m in rest]
    return vf.Task(vf.TaskData(idx=idx, name=agent, system_prompt=system, prompt=prompt))


def _record(trace: Any, episode: Episode, index: int) -> None:
    """Records the rewards ``turn`` (this turn's), ``agent`` and ``team`` (the sums of both from this layer on).

    A turn reward belongs to its turn alone. Every turn had a part in the team rewards that come after it.
    """
    turn = episode.turns[index]
    after = episode.layers[turn.layer :]
    trace.record_reward("turn", turn.reward)
    trace.record_reward("agent", sum(layer.agent_rewards.get(turn.agent, 0.0) for layer in after))
    trace.record_reward("team", sum(layer.team_reward for layer in after))
    trace.record_metrics({"round": turn.round, "layer": turn.layer, "success": float(bool(episode.success))})
