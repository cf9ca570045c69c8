"""Bits for text, indices for replies, on the real scheduler."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings

import numpy as np
import pytest
from native_loop import CANDIDATES, CASES, Chooser, Say, assert_same, choice
from pettingzoo.test import api_test, parallel_api_test

import marft_envs
from marft_envs import FlexEnv
from marft_envs.adapters.outward.numeric import Numeric, decode, encode
from marft_envs.adapters.outward.parallel_play import LayerParallel
from marft_envs.errors import ConfigError, MissingExtraError


def play_numeric(id: str, env: FlexEnv, seed: int, say: Say) -> dict[str, float]:
    numeric = Numeric(env, CANDIDATES[id])
    numeric.reset(seed=seed)
    paid = dict.fromkeys(env.possible_agents, 0.0)
    while not env.done:
        for name in numeric.ready_agents:
            numeric.select(name)
            found = numeric.observe(name)
            assert numeric.observation_space(name).contains(found)
            numeric.step(choice(name, decode(found["observation"]), int(found["action_mask"].sum())))
        for name, reward in numeric.rewards.items():
            paid[name] += reward
    return paid


def test_episodes_equal_the_native_loops(case: str) -> None:
    assert_same(case, functools.partial(play_numeric, case), say=Chooser(case))


@pytest.mark.parametrize("text", ["", "digit 3", "x² ∫ 🙂", "ends in a line\n"])
def test_bits_and_back(text: str) -> None:
    bits = encode(text, 32)
    assert bits.shape == (256,) and bits.dtype == np.float32 and set(np.unique(bits)) <= {0.0, 1.0}
    assert decode(bits) == text
    # Bit 8k + j of the end is bit 7 - j of that byte.
    data = text.encode().rjust(32, b"\x00")
    assert [int(b) for b in bits] == [(byte >> (7 - j)) & 1 for byte in data for j in range(8)]


def test_only_the_end_of_a_long_text_is_shown() -> None:
    assert decode(encode("a" * 100 + "end", 8)) == "aaaaaend"
    assert decode(encode("🙂b", 3)).endswith("b")


@pytest.mark.parametrize("id", ["relay-v0", "route-v0", "math-dual-v0"])
def test_pettingzoos_tests_pass(id: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        api_test(Numeric(marft_envs.make(id, **CASES.get(id, {}))), num_cycles=20)
        parallel_api_test(LayerParallel(Numeric(marft_envs.make(id, **CASES.get(id, {})))), num_cycles=20)


def test_the_replies_are_the_tasks_own_unless_given() -> None:
    env = Numeric(marft_envs.make("relay-v0"))
    env.reset(seed=0)
    for action in (2, 4):
        env.step(action)
    assert [turn.text for turn in env.unwrapped.episode.turns] == ["2", "hello"]
    env = Numeric(marft_envs.make("relay-v0"), {"planner": ["one", "two"], "solver_0": ["3"]})
    assert [env.action_space(name).n for name in env.possible_agents] == [2, 1]


def test_who_is_not_on_turn_has_one_action() -> None:
    env = Numeric(marft_envs.make("relay-v0"))
    env.reset(seed=0)
    assert env.observe("planner_0")["action_mask"].tolist() == [1] * 5
    assert env.observe("solver_0")["action_mask"].tolist() == [1, 0, 0, 0, 0]


def test_building_it_leaves_the_environments_generator_alone() -> None:
    plain, counted = marft_envs.make("relay-v0"), marft_envs.make("relay-v0")
    for env in (plain, counted):
        env.reset(seed=7)
    Numeric(counted)
    drawn = []
    for env in (plain, counted):
        drawn.append([])
        for _ in range(10):
            env.reset()
            drawn[-1].append(env.task.task_id)
    assert drawn[0] == drawn[1]


def test_a_changing_number_of_replies_is_masked_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = marft_envs.make("relay-v0")
    masked, bare = Numeric(env), Numeric(env, mask=False)
    assert bare.observation_space("solver_0").shape == (512,)
    monkeypatch.setattr(env.task, "sample_actions", lambda agent: ("0", "1"))
    env.reset(seed=0)
    assert masked.observe("planner_0")["action_mask"].tolist() == [1, 1, 0, 0, 0]
    with pytest.raises(ConfigError, match=r"has the actions 0 to 1; got 4"):
        masked.step(4)
    with pytest.raises(ConfigError, match=r"2 candidate replies here and had 5 before"):
        bare.step(0)
    monkeypatch.setattr(env.task, "sample_actions", lambda agent: tuple("0123456"))
    with pytest.raises(ConfigError, match=r"7 candidate replies here and had 5 before"):
        masked.step(0)


def test_settings_that_cannot_work_are_refused() -> None:
    env = marft_envs.make("relay-v0")
    with pytest.raises(ConfigError, match=r"no role or agent 'planer'.*Did you mean 'planner'"):
        Numeric(env, {"planer": ["a"]})
    with pytest.raises(ConfigError, match=r"'planner_0' has no candidate replies"):
        Numeric(env, {"planner": []})
    with pytest.raises(ConfigError, match=r"at least 1; got 0"):
        Numeric(env, length=0)


@pytest.mark.parametrize(("adapter", "package"), [("rllib", "ray"), ("torchrl", "torchrl"), ("benchmarl", "benchmarl")])
def test_a_library_that_is_not_installed_is_answered_with_the_pip_command(
    adapter: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ray", "torchrl", "benchmarl")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    # Not only what is blocked: the module that needs it must be looked for again.
    for name in ("rllib", "torchrl", "benchmarl"):
        monkeypatch.delitem(sys.modules, f"marft_envs.adapters.outward.{name}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"pip install -e '\.\[{adapter}\]'"):
        importlib.import_module(f"marft_envs.adapters.outward.{adapter}")
