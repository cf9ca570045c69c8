"""Teams as TorchRL environments: tensordicts of text and of bits, whole episodes equal to the native loop's."""

from __future__ import annotations

import functools
import json

import pytest
from native_loop import CANDIDATES, CASES, Chooser, Say, assert_same, choice

pytest.importorskip("torchrl", reason="TorchRL is not installed here; `make test-adapters` makes an environment for it")
import torch
from tensordict import NonTensorStack
from torchrl.envs import MarlGroupMapType
from torchrl.envs.utils import check_env_specs

import marft_envs
from marft_envs import FlexEnv
from marft_envs.adapters.outward.numeric import Numeric, decode
from marft_envs.adapters.outward.torchrl import TeamEnv, totals
from marft_envs.core.wrappers import PromptObservation


def play_text(env: FlexEnv, seed: int, say: Say) -> dict[str, float]:
    team = TeamEnv(PromptObservation(env, json.dumps))

    def policy(td):
        for group, agents in team.group_map.items():
            seen, acts = team.texts(td, group), td[group, "mask"].tolist()
            said = [say(a, json.loads(s)) if on else "dropped" for a, s, on in zip(agents, seen, acts, strict=True)]
            td[group].set("action", NonTensorStack(*said))
        return td

    return totals(team, team.rollout(20, policy, tensordict=team.reset(seed=seed), auto_reset=False))


def play_bits(id: str, env: FlexEnv, seed: int, say: Say) -> dict[str, float]:
    team = TeamEnv(Numeric(env, CANDIDATES[id]), MarlGroupMapType.ONE_GROUP_PER_AGENT, categorical_actions=True)

    def policy(td):
        for agent in team.group_map:
            seen, legal = td[agent, "observation", "observation"], td[agent, "action_mask"]
            chosen = choice(agent, decode(seen[0].numpy()), int(legal.sum()))
            td[agent].set("action", torch.tensor([chosen if td[agent, "mask"][0] else 0]))
        return td

    return totals(team, team.rollout(20, policy, tensordict=team.reset(seed=seed), auto_reset=False))


def test_text_episodes_equal_the_native_loops(case: str) -> None:
    assert_same(case, play_text)


def test_numeric_episodes_equal_the_native_loops(case: str) -> None:
    assert_same(case, functools.partial(play_bits, case), say=Chooser(case))


def test_torchrls_own_check_passes() -> None:
    check_env_specs(TeamEnv(Numeric(marft_envs.make("relay-v0"), length=4)))


def test_the_mask_says_whose_layer_it_is() -> None:
    env = TeamEnv(marft_envs.make("math-debate-v0", **CASES["math-debate-v0"]))
    td = env.reset(seed=0)
    assert td["solver", "mask"].tolist() == [True] * 3 and td["judge", "mask"].tolist() == [False]
    td["solver"].set("action", NonTensorStack("1", "2", "3"))
    td["judge"].set("action", NonTensorStack("dropped"))
    after = env.step(td)["next"]
    assert after["solver", "mask"].tolist() == [False] * 3 and after["judge", "mask"].tolist() == [True]
    assert "[solver]\n2" in env.texts(after, "judge")[0]
