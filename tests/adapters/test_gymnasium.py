"""One agent of a team as a Gymnasium environment: Gymnasium's checker, equality with the native loop, vectors."""

from __future__ import annotations

import functools
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from native_loop import CASES, Say, assert_same

import marft_envs
from marft_envs import AgentSpec, Chain, FlexEnv, Outcome
from marft_envs.adapters.outward import gymnasium_env
from marft_envs.adapters.outward.gymnasium_env import SingleAgentEnv
from marft_envs.errors import ConfigError

LEARNERS = {"math-dual-v0": "reasoner_0", "route-v0": "orchestrator_0", "math-debate-v0": "judge_0"}
"""Who learns here; of ``route-v0`` it is the one that acts in every episode."""


def play_as(learner: str, env: FlexEnv, seed: int, say: Say) -> dict[str, float]:
    partners = {name: functools.partial(say, name) for name in env.possible_agents if name != learner}
    single = SingleAgentEnv(env, learner, partners)
    seen, _ = single.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        assert single.observation_space.contains(seen)
        seen, reward, terminated, truncated, _ = single.step(say(learner, seen["messages"]))
        total, ended = total + reward, terminated or truncated
    # In each of these teams, all agents have the same rewards.
    return dict.fromkeys(env.possible_agents, total)


def test_episodes_equal_the_native_loops(case: str) -> None:
    assert_same(case, functools.partial(play_as, LEARNERS[case]))


@pytest.mark.parametrize("id", ["relay-v0", "signal-v0", "math-dual-v0"])
def test_gymnasiums_checker_passes(id: str) -> None:
    team = marft_envs.make(id, **CASES.get(id, {})).possible_agents
    env = gymnasium_env.make(id, team[0], dict.fromkeys(team[1:], "1"), **CASES.get(id, {}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Without a registry entry the checker cannot build the render modes, and says so; nothing else may be said.
        warnings.filterwarnings("ignore", message=".*spec.*", category=UserWarning)
        check_env(env)


def test_it_can_be_registered_and_made_by_gymnasium() -> None:
    gymnasium.register(
        "marft-test/Actor-v0",
        "marft_envs.adapters.outward.gymnasium_env:make",
        kwargs={"env_id": "math-dual-v0", "agent": "actor_0", "partners": {"reasoner_0": "add"}, "levels": [0]},
    )
    try:
        env = gymnasium.make("marft-test/Actor-v0", render_mode="ansi")
        seen, _ = env.reset(seed=1)
        assert seen["messages"][-1]["content"].endswith("[reasoner]\nadd")
        _, reward, terminated, _, info = env.step(rf"\boxed{{{env.unwrapped.env.unwrapped.task.gold()}}}")
        assert (reward, terminated, info["status"]) == (1.0, True, "correct")
        assert "reasoner_0: add" in env.render()
    finally:
        del gymnasium.registry["marft-test/Actor-v0"]


def relay(seed_offset: int = 0) -> SingleAgentEnv:
    return gymnasium_env.make("relay-v0", "solver_0", {"planner_0": lambda messages: messages[-1]["content"][-1]})


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_vectors_of_both_kinds_play(kind: str) -> None:
    fns = [relay, relay]
    vector = (
        gymnasium.vector.SyncVectorEnv(fns)
        if kind == "sync"
        else gymnasium.vector.AsyncVectorEnv(fns, shared_memory=False)
    )
    try:
        seen, _ = vector.reset(seed=[3, 4])
        for _ in range(4):
            said = [messages[-1]["content"] for messages in seen["messages"]]
            assert all(text.startswith("digit ?\n\n[planner]\n") for text in said)
            seen, rewards, terminated, _, _ = vector.step(tuple(text[-1] for text in said))
            assert rewards.tolist() == [1.0, 1.0] and terminated.tolist() == [True, True]
            seen, _, _, _, _ = vector.step(("", ""))  # the step after an end resets
    finally:
        vector.close()


def test_an_episode_without_a_turn_of_the_learner_is_passed_over() -> None:
    env = gymnasium_env.make("route-v0", "expert_1", {
        "orchestrator_0": lambda messages: str(["red", "blue", "green", "gold"].index(messages[-1]["content"].split()[-1])),
        "expert_0": "0", "expert_2": "0", "expert_3": "0",
    })  # fmt: skip
    skipped = []
    for seed in range(20):
        seen, info = env.reset(seed=seed)
        digit = seen["messages"][-1]["content"].split()[1]
        assert digit.isdigit()  # it acts only where it is the expert
        assert env.step(digit)[1:4] == (1.0, True, False)
        skipped.append(info["skipped"])
    assert min(skipped) == 0 < max(skipped)


def test_a_learner_that_never_acts_is_an_error() -> None:
    env = gymnasium_env.make("route-v0", "expert_1", {
        "orchestrator_0": "0", "expert_0": "0", "expert_2": "0", "expert_3": "0",
    })  # fmt: skip
    with pytest.raises(ConfigError, match=r"'expert_1' had no turn in 100 episodes in a row"):
        env.reset(seed=0)


class EarlyReward:
    """Rewards every turn with 1, and the team with 10 at the end; kills the solver after its turn."""

    slow, task_id = False, "t"

    def reset(self, rng: np.random.Generator, options: object) -> None: ...

    def observe(self, agent: str) -> str:
        return "go"

    def on_layer(self, turns: list[marft_envs.TurnRecord]) -> Outcome:
        dead = frozenset({"b_0"} & {turn.agent for turn in turns})
        return Outcome(team_reward=2.0, turn_rewards={turn.index: 1.0 for turn in turns}, dead=dead)

    def on_round(self, turns: object) -> Outcome:
        return Outcome(team_reward=10.0)

    def sample_actions(self, agent: str) -> tuple[str, ...]:
        return ("a",)

    def validate(self) -> None: ...


def test_what_partners_earn_before_the_first_turn_and_after_the_last_is_the_learners_too() -> None:
    agents = [AgentSpec(f"{x}_0", x) for x in "abc"]
    env = SingleAgentEnv(FlexEnv(agents, EarlyReward(), Chain()), "b_0", {"a_0": "x", "c_0": "y"})
    env.reset(seed=0)
    _, reward, terminated, truncated, _ = env.step("z")
    # 2 of a's layer, 1 + 2 of its own, after which it has left the episode.
    assert (reward, terminated, truncated) == (5.0, True, False)
    env = SingleAgentEnv(FlexEnv(agents, EarlyReward(), Chain()), "a_0", {"b_0": "x", "c_0": "y"})
    env.reset(seed=0)
    assert env.step("z")[1] == 1 + 2 + 2 + 2 + 10


def test_wrong_casts_are_errors_before_anything_starts() -> None:
    env = marft_envs.make("math-dual-v0", **CASES["math-dual-v0"])
    with pytest.raises(ConfigError, match=r"no agent 'actor_1'.*Did you mean 'actor_0'"):
        SingleAgentEnv(env, "actor_1")
    with pytest.raises(ConfigError, match=r"reasoner_0: no partner"):
        SingleAgentEnv(env, "actor_0")
    with pytest.raises(ConfigError, match=r"'actor_0' learns"):
        SingleAgentEnv(env, "actor_0", {"actor_0": "", "reasoner_0": ""})
    single = SingleAgentEnv(env, "actor_0", {"reasoner_0": ""})
    with pytest.raises(ConfigError, match=r"Next: env.reset"):
        single.step("x")
