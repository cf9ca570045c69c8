"""Teams in RLlib: whole layers at once, episodes of its own runner equal to the native loop's."""

from __future__ import annotations

import pytest
from native_loop import CANDIDATES, CASES, Chooser, Say, assert_same, choice

pytest.importorskip(
    "ray.rllib", reason="Ray RLlib is not installed here; `make test-adapters` makes an environment for it"
)
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner

import marft_envs
from marft_envs import FlexEnv
from marft_envs.adapters.outward.numeric import Numeric, decode
from marft_envs.adapters.outward.rllib import RLlibEnv
from marft_envs.core.types import Episode
from marft_envs.errors import ConfigError
from marft_envs.records.trajectory import to_dict


def play_text(env: FlexEnv, seed: int, say: Say) -> None:
    team = RLlibEnv(env)
    seen, _ = team.reset(seed=seed)
    paid: dict[str, float] = {}
    while True:
        assert all(team.observation_spaces[name].contains(found) for name, found in seen.items())
        seen, rewards, terminated, truncated, _ = team.step({a: say(a, seen[a]["messages"]) for a in seen})
        for name, reward in rewards.items():
            paid[name] = paid.get(name, 0.0) + reward
        if terminated["__all__"] or truncated["__all__"]:
            break
    # An agent that acted has the rewards of the whole team; an agent that did not is absent.
    assert paid == dict.fromkeys({turn.agent for turn in env.episode.turns}, env.episode.team_return)


def test_text_episodes_equal_the_native_loops(case: str) -> None:
    assert_same(case, play_text)


class Scripted(RLModule):
    """A policy of RLlib that chooses by the bits it sees, as :func:`native_loop.choice` does."""

    framework = "torch"

    def _forward(self, batch, **kwargs):
        agent = self.model_config["agent"]
        ends = [decode(bits) for bits in batch[Columns.OBS]]
        return {Columns.ACTIONS: torch.tensor([choice(agent, end, self.action_space.n) for end in ends])}


PLAYED: list[Episode] = []


class Recorded(RLlibEnv):
    """Keeps what the runner played; RLlib copies what is registered, so it is kept in this module."""

    def __init__(self, config):
        case = config["case"]
        super().__init__(Numeric(marft_envs.make(case, **CASES[case]), CANDIDATES[case], mask=False))

    def step(self, action_dict):
        result = super().step(action_dict)
        if self.env.unwrapped.done:
            PLAYED.append(self.env.unwrapped.episode)
        return result


def test_episodes_of_its_own_runner_equal_the_native_loops(case: str) -> None:
    """RLlib's environment runner steps the environment, with policies that are scripts."""
    PLAYED.clear()
    agents = marft_envs.make(case, **CASES[case]).possible_agents
    config = PPOConfig().environment(Recorded, env_config={"case": case}).env_runners(num_env_runners=0)
    config = config.multi_agent(policies=set(agents), policy_mapping_fn=lambda agent, episode, **_: agent)
    config = config.debugging(seed=1).rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={
        agent: RLModuleSpec(module_class=Scripted, model_config={"agent": agent}) for agent in agents
    }))  # fmt: skip
    runner = MultiAgentEnvRunner(config=config)
    episodes = runner.sample(num_episodes=100, explore=False)
    assert len(episodes) == 100 == len(PLAYED)
    chooser = Chooser(case)
    again = marft_envs.make(case, **CASES[case])
    for episode, record in zip(episodes, PLAYED, strict=True):
        # The runner seeds the first episode only; the problem that it drew is played again natively, by its name.
        again.reset(options={"task_id": record.task_id})
        while not again.done:
            for agent in again.ready_agents:
                text = chooser(agent, again.messages(agent))
                again.select(agent)
                again.step(text)
        assert to_dict(again.episode)["turns"] == to_dict(record)["turns"]
        assert again.episode.team_return == record.team_return
        acted = {turn.agent for turn in record.turns}
        assert {a: episode.agent_episodes[a].get_return() for a in acted} == dict.fromkeys(acted, record.team_return)
    assert len({record.team_return for record in PLAYED}) > 1


def test_a_parallel_layer_is_observed_at_once() -> None:
    env = RLlibEnv(marft_envs.make("math-debate-v0", **CASES["math-debate-v0"]))
    seen, _ = env.reset(seed=0)
    assert list(seen) == ["solver_0", "solver_1", "solver_2"]
    with pytest.raises(ConfigError, match=r"It is the turn of"):
        env.step({"solver_0": "1"})
    seen, *_ = env.step(dict.fromkeys(seen, "1"))
    assert list(seen) == ["judge_0"]
