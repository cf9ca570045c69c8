"""The parallel view and the registry of PettingZoo."""

from __future__ import annotations

import sys
import warnings

import pettingzoo
import pytest
from native_loop import CASES, Say, assert_same
from pettingzoo.test import parallel_api_test
from pettingzoo.utils import aec_to_parallel

import marft_envs
from marft_envs import FlexEnv
from marft_envs.adapters.outward import parallel_play
from marft_envs.adapters.outward.parallel_play import NOOP, LayerParallel
from marft_envs.errors import ConfigError


def play_parallel(env: FlexEnv, seed: int, say: Say) -> dict[str, float]:
    parallel = LayerParallel(env)
    seen, infos = parallel.reset(seed=seed)
    paid = dict.fromkeys(parallel.possible_agents, 0.0)
    while parallel.agents:
        actions = {
            name: say(name, seen[name]["messages"]) if infos[name]["acts"] else "dropped" for name in parallel.agents
        }
        seen, rewards, _, _, infos = parallel.step(actions)
        for name, reward in rewards.items():
            paid[name] += reward
    return paid


def test_episodes_equal_the_native_loops(case: str) -> None:
    assert_same(case, play_parallel)


def test_a_debate_takes_two_steps() -> None:
    env = parallel_play.make("math-debate-v0", levels=[0])
    _, infos = env.reset(seed=0)
    assert [name for name in env.agents if infos[name]["acts"]] == ["solver_0", "solver_1", "solver_2"]
    *_, infos = env.step({name: "1" for name in env.agents})
    assert [name for name in env.agents if infos[name]["acts"]] == ["judge_0"]
    env.step({"judge_0": "2"})  # the others need not answer
    assert not env.agents
    assert [turn.text for turn in env.env.episode.turns] == ["1", "1", "1", "2"]


@pytest.mark.parametrize("id", ["relay-v0", "signal-v0", "math-debate-v0", "route-v0"])
def test_pettingzoos_parallel_test_passes(id: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        parallel_api_test(parallel_play.make(id, **CASES.get(id, {})), num_cycles=20)


def test_without_dependencies_it_is_what_pettingzoos_own_conversion_gives() -> None:
    own = aec_to_parallel(marft_envs.make("xor-v0", dependency="independent"))
    ours = parallel_play.make("xor-v0", dependency="independent")
    for seed in range(8):
        theirs, _ = own.reset(seed=seed)
        seen, _ = ours.reset(seed=seed)
        assert seen == theirs
        actions = {name: str(seed % 2) for name in ours.agents}
        wanted = own.step(actions)
        assert ours.step(actions)[1:4] == wanted[1:4]


def test_an_agent_on_turn_without_an_action_is_an_error() -> None:
    env = parallel_play.make("math-debate-v0", **CASES["math-debate-v0"])
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"It is the turn of .*got no action of solver_1, solver_2"):
        env.step({"solver_0": NOOP, "judge_0": NOOP})


def test_every_id_is_in_pettingzoos_registry() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids = parallel_play.register()
        assert parallel_play.register() == ids
    assert {f"marft/{spec.id}" for spec in marft_envs.list_envs() if "/" not in spec.id} <= set(ids)
    env = pettingzoo.make("aec", "marft/math-dual-v0", levels=[0])
    assert isinstance(env, FlexEnv) and env.possible_agents == ["reasoner_0", "actor_0"]
    parallel = pettingzoo.make("parallel", "marft/route-v0")
    assert isinstance(parallel, LayerParallel) and len(parallel.reset(seed=0)[0]) == 5


def test_a_pettingzoo_without_a_registry_is_an_error_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo.env_registry.registration", None)
    with pytest.raises(ConfigError, match=r"pettingzoo [\d.]+ is installed; its registry came with 1\.27"):
        parallel_play.register()
