"""Value heads on cached features of the frozen base model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from helpers.teams import put, say
from helpers.tiny import save_tiny
from marft_algos.models.critic import Critics
from marft_algos.models.policy import PolicySet
from marft_algos.types import Generation, GenerationRequest, StopReason, Transition
from marft_envs.core.types import TurnRecord
from marft_envs.errors import ConfigError

AGENTS = {"reasoner_0": "reasoner", "actor_0": "actor"}
VIEW = "What is 1+1?\n\n(actor)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "qwen")


@pytest.fixture
def policies(folder: Path) -> PolicySet:
    return PolicySet.build(str(folder), AGENTS, device="cpu")


def turn(policy: str = "actor", prompt: int = 5, action: int = 3, trainable: bool = True) -> Transition:
    reply = Generation([40 + i for i in range(action)], np.zeros(action, np.float32), StopReason.EOS, version=0)
    return Transition(
        TurnRecord(index=0, round=0, layer=0, agent=f"{policy}_0", role=policy, sees=(), text=""),
        GenerationRequest(policy, [10 + i for i in range(prompt)], 0),
        reply,
        trainable=trainable,
        team_view=VIEW,
    )


def states(folder: Path, ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return model.model(input_ids=torch.tensor([ids])).last_hidden_state[0]


@pytest.mark.parametrize("view", ["own", "team"])
def test_features_are_read_before_each_token_is_known(
    folder: Path, policies: PolicySet, view: Literal["own", "team"]
) -> None:
    turns = [turn(action=3), turn(prompt=9, action=1), turn("reasoner", action=4)]
    features = Critics(policies).featurise(turns, view=view, level="token")
    for t in turns:
        prompt = t.request.prompt_ids
        if view == "team":
            prompt = policies.renderer.render(t.policy, [{"role": "user", "content": VIEW}])
        expected = states(folder, prompt + t.reply.action_ids)[len(prompt) - 1 : -1]
        torch.testing.assert_close(features[t], expected, rtol=0, atol=1e-5)
    features = Critics(policies).featurise(turns, view=view, level="action")
    for t in turns:
        prompt = (
            t.request.prompt_ids
            if view == "own"
            else policies.renderer.render(t.policy, [{"role": "user", "content": VIEW}])
        )
        torch.testing.assert_close(features[t], states(folder, prompt)[-1:], rtol=0, atol=1e-5)


def test_turns_without_a_loss_have_one_value_and_turns_without_a_prompt_none(policies: PolicySet) -> None:
    frozen, silent, scripted = turn(trainable=False), turn(action=0), turn(prompt=0)
    features = Critics(policies).featurise([frozen, silent, scripted], view="own", level="token")
    assert features[frozen].shape == features[silent].shape == (1, 32)
    assert scripted not in features


def test_own_actions_and_adapters_do_not_reach_the_features(policies: PolicySet) -> None:
    first, second = turn(), turn()
    say(second, action_ids=[70, 71, 72])
    critics = Critics(policies)
    features = critics.featurise([first], view="team", level="action")
    with torch.no_grad():
        for tensor in policies.parameters("actor"):
            tensor.add_(1.0)
    features |= critics.featurise([second], view="team", level="action")
    torch.testing.assert_close(features[first], features[second])


def test_values_start_at_zero_and_fit_targets_of_their_own_policy(policies: PolicySet) -> None:
    critics = Critics(policies, hidden=(16,))
    turns = [turn(prompt=n) for n in range(3, 9)]
    found = critics.featurise(turns, view="own", level="action")
    features = torch.cat([found[t] for t in turns])
    assert not critics.values("actor", features).any()
    targets = torch.linspace(-1, 1, 6)
    optimizer = torch.optim.Adam(critics.parameters("actor"), lr=0.02)
    for _ in range(200):
        loss = (critics.values("actor", features) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.02
    assert not critics.values("reasoner", features).any()


def test_heads_are_fp32_under_bf16_compute(folder: Path) -> None:
    policies = PolicySet.build(str(folder), AGENTS, device="cpu", dtype="bf16")
    critics, one = Critics(policies), turn()
    features = critics.featurise([one], view="own", level="token")
    assert all(p.dtype == torch.float32 for p in critics.parameters("actor"))
    assert critics.values("actor", features[one]).dtype == torch.float32


def test_heads_restore_and_refuse_other_shapes(policies: PolicySet) -> None:
    first, second = Critics(policies, hidden=(8, 4), seed=1), Critics(policies, hidden=(8, 4), seed=2)
    with torch.no_grad():
        for p in first.parameters("actor"):
            p.add_(0.1)
    second.load_state_dict(first.state_dict())
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(first.values("actor", x), second.values("actor", x))
    assert first.values("actor", x).abs().sum() > 0
    with pytest.raises(ConfigError, match="does not fit"):
        Critics(policies, hidden=(8,)).load_state_dict(first.state_dict())
    with pytest.raises(ConfigError, match="Did you mean 'actor'"):
        first.values("acter", x)


def test_bases_of_other_widths_have_their_own_heads(folder: Path, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "llama", "llama", hidden=48)
    policies = PolicySet.build({"reasoner": str(folder), "actor": str(other)}, AGENTS, device="cpu")
    critics, turns = Critics(policies), [turn("reasoner"), turn("actor")]
    features = critics.featurise(turns, view="own", level="action")
    assert [features[t].shape for t in turns] == [(1, 32), (1, 48)]
    for t in turns:
        assert critics.values(t.policy, features[t]).shape == (1,)


def test_of_a_team_view_beyond_the_context_the_end_is_read(tmp_path: Path) -> None:
    """One long row ends no training: prompts are cut to the context, too."""
    folder = save_tiny(tmp_path / "short", context=64)
    policies = PolicySet.build(str(folder), AGENTS, device="cpu")
    long = turn()
    put(long, team_view="x" * 60)
    features = Critics(policies).featurise([long], view="team", level="action")[long]
    ids = policies.renderer.render("actor", [{"role": "user", "content": long.team_view}])
    assert len(ids) > 64
    torch.testing.assert_close(features, states(folder, ids[-64:])[-1:], atol=1e-4, rtol=1e-4)
