"""Replies that go on from a beginning which the task has set: cut and written again, and credited for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.flex import PlainTask, flex
from helpers.tiny import save_tiny
from marft_algos.engines import NativeEngine, ScriptedEngine
from marft_algos.models.policy import PolicySet
from marft_algos.rollout.collector import Collector
from marft_algos.types import SamplingParams, Trajectory
from marft_envs import Chain, ConfigError, FlexEnv, Outcome
from marft_envs.core.types import TurnRecord
from marft_envs.core.vector import VectorEnv
from marft_envs.records import trajectory


class CutTask(PlainTask):
    """Keeps the first half of the first reply, from which the second turn goes on; pays spans of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = ""

    def reset(self, rng: np.random.Generator, options: Any) -> None:
        super().reset(rng, options)
        self.kept = ""

    def prefix(self, agent: str) -> str:
        return self.kept

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        text = turns[0].text
        if not turns[0].index:
            self.kept = text[: len(text) // 2]
            return Outcome()
        half = len(self.kept)
        return Outcome(segments={turns[0].index: [(0, half, 0.25), (half, len(text), 0.5)]} if len(text) > half else {})


def make(**kwargs: Any) -> FlexEnv:
    return flex(1, Chain(), CutTask(), max_rounds=2, history="public", **kwargs)


def test_an_action_goes_on_from_the_beginning_or_repeats_it() -> None:
    for said in ("cd", "abcd"):
        env = make()
        env.reset(seed=0)
        env.step("abxy")
        env.step(said)
        assert [turn.text for turn in env.episode.turns] == ["abxy", "abcd"]
        assert env.episode.team_return == 0.75
        assert trajectory.replay(env.episode, make()).turns[1].text == "abcd"


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> PolicySet:
    folder = save_tiny(tmp_path_factory.mktemp("models") / "qwen")
    return PolicySet.build(str(folder), {"a_0": "a"}, device="cpu")


def collect(policies: PolicySet, engine: Any = None) -> list[Trajectory]:
    params = SamplingParams(max_new_tokens=8)
    vector = VectorEnv([make] * 3)
    return Collector(vector, policies.renderer, engine or NativeEngine(policies), params).collect([1, 2, 3, 4])


def test_a_policy_goes_on_and_is_scored_on_what_it_sampled(policies: PolicySet) -> None:
    encode, cut = policies.renderer.tokenizer("a").encode, 0
    for played in collect(policies):
        first, second = played.transitions
        kept = first.turn.text[: len(first.turn.text) // 2]
        given = encode(kept, add_special_tokens=False)
        assert first.request.begun == 0 and second.request.begun == len(given)
        assert second.request.prompt_ids[len(second.request.prompt_ids) - len(given) :] == given
        assert second.turn.text == kept + second.reply.text
        ids = torch.tensor([[*second.request.prompt_ids, *second.reply.action_ids]])
        mask = torch.arange(ids.shape[1])[None] >= len(second.request.prompt_ids)
        with torch.no_grad():
            again, _ = policies.logprobs("a", ids, mask, 1.0)
        np.testing.assert_allclose(again[mask[:, 1:]].numpy(), second.reply.logprobs, atol=1e-5)
        if second.reply.text:
            assert second.tokens_at[len(second.turn.text)] == len(second.reply.action_ids) - 1
            assert second.tokens_at[len(kept)] == 0  # what was given is nobody's token
            cut += 1
    assert cut


def test_a_hosted_model_is_refused_by_name(policies: PolicySet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="begun a reply of 'b'"):
        policies.renderer.begin("b", "so far")
    vector = VectorEnv([make])
    engine = ScriptedEngine({"a_0": "abxy"})
    (played,) = Collector(vector, None, engine, SamplingParams(max_new_tokens=8)).collect([1])
    assert [turn.text for turn in played.episode.turns] == ["abxy", "ababxy"]
