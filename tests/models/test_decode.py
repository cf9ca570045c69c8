"""The fused decoder: every family against transformers, policies side by side, weights seen at once, and refusals."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from helpers.sampling import AGENTS, CONFIGS, PARAMS, build, disturb, requests, rescore, save
from helpers.tiny import save_tiny
from marft_algos.engines import NativeEngine
from marft_algos.models import weights as weights_module
from marft_algos.models.forward.decode import FusedDecoder
from marft_algos.models.forward.families import Unsupported
from marft_algos.models.policy import LoraSettings, PolicySet
from marft_algos.types import GenerationRequest
from marft_envs.errors import ConfigError


@pytest.mark.parametrize("limit", [weights_module.SMALL_MODEL, 0])
@pytest.mark.parametrize("family", CONFIGS)
def test_two_policies_in_one_batch_sample_what_the_learner_scores(
    family: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_module, "SMALL_MODEL", limit)
    policies = build(save(tmp_path / family, CONFIGS[family]))
    asked = requests(policies, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no word of a fallback
        replies = NativeEngine(policies).generate(asked, PARAMS)
    for request, reply in zip(asked, replies, strict=True):
        again = rescore(policies, request, reply, 1.0)
        np.testing.assert_allclose(reply.logprobs, again.numpy(), rtol=0, atol=1e-5)
    for policy in policies.policies:
        own = [r for r in asked if r.policy == policy]
        alone = NativeEngine(policies).generate(own, PARAMS)
        together = [g for r, g in zip(asked, replies, strict=True) if r.policy == policy]
        assert [g.action_ids for g in alone] == [g.action_ids for g in together]


@pytest.mark.parametrize("family", CONFIGS)
def test_greedy_replies_are_those_of_generate(family: str, tmp_path: Path) -> None:
    folder = save(tmp_path / family, CONFIGS[family])
    policies = PolicySet.build(str(folder), AGENTS, device="cpu")
    model = AutoModelForCausalLM.from_pretrained(folder)
    asked = requests(policies, 6)
    replies = NativeEngine(policies).generate(asked, dataclasses.replace(PARAMS, greedy=True))
    for request, reply in zip(asked, replies, strict=True):
        prompt = torch.tensor([request.prompt_ids])
        found = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=PARAMS.max_new_tokens, do_sample=False
        )
        assert found[0, prompt.shape[1] :].tolist() == reply.action_ids


def test_adapters_on_some_layers_and_ragged_prompts_of_several_policies(tmp_path: Path) -> None:
    policies = build(save_tiny(tmp_path / "qwen"), lora=LoraSettings(targets=("v_proj", "down_proj")))
    asked = requests(policies, 9)
    asked += [GenerationRequest("actor", [7], 3), GenerationRequest("reasoner", [*range(5, 60)], 4)]
    for request, reply in zip(asked, NativeEngine(policies).generate(asked, PARAMS), strict=True):
        np.testing.assert_allclose(reply.logprobs, rescore(policies, request, reply, 1.0).numpy(), rtol=0, atol=1e-5)


def test_whole_models_sample_their_own_weights_after_a_step_and_are_saved_whole(tmp_path: Path) -> None:
    policies = build(save_tiny(tmp_path / "qwen"), full_finetune=True)
    engine, asked = NativeEngine(policies), requests(policies, 6)
    engine.generate(asked, PARAMS)
    disturb(policies, "actor", seed=7)  # in place, as an optimiser does
    for request, reply in zip(asked, engine.generate(asked, PARAMS), strict=True):
        np.testing.assert_allclose(reply.logprobs, rescore(policies, request, reply, 1.0).numpy(), rtol=0, atol=1e-5)
    saved = AutoModelForCausalLM.from_pretrained(policies.save_adapter("actor", tmp_path / "saved"))
    tensors = dict(saved.named_parameters())
    assert all(torch.equal(tensors[n], p) for n, p in policies.weights("actor").model.named_parameters())


def test_the_modules_keep_their_weights_as_views_and_stay_trainable(tmp_path: Path) -> None:
    policies = build(save_tiny(tmp_path / "qwen"))
    model = policies.base("actor").model
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    FusedDecoder(model, torch.float32)
    attention = model.base_model.layers[0].self_attn
    assert attention.q_proj.weight.untyped_storage().data_ptr() == attention.v_proj.weight.untyped_storage().data_ptr()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.named_parameters())
    ids = torch.tensor([[5, 6, 7, 8]])
    policies.logprobs("actor", ids, torch.tensor([[False, False, True, True]]))[0].sum().backward()
    assert all(p.grad is not None for p in policies.parameters("actor"))


@pytest.mark.parametrize(("family", "changes", "reason"), [
    ("mistral", {"sliding_window": 16}, "sliding window"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
])  # fmt: skip
def test_variants_that_it_does_not_compute_are_refused(
    family: str, changes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(save(tmp_path / family, CONFIGS[family], **changes))
    with pytest.raises(Unsupported, match=reason):
        FusedDecoder(model, torch.float32)


def test_a_result_that_differs_is_refused(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_tiny(tmp_path / "qwen"))
    model.base_model.layers[1].mlp.register_forward_hook(lambda module, given, output: 1.01 * output)
    with pytest.raises(Unsupported, match="differs from its family"):
        FusedDecoder(model, torch.float32)


def test_another_architecture_is_decoded_by_transformers_and_one_line_says_so(tmp_path: Path) -> None:
    policies = build(save_tiny(tmp_path / "gpt2", "gpt2"))
    asked = requests(policies, 6)
    with pytest.warns(UserWarning, match="GPT2Model: it is decoded by transformers' own forward pass") as said:
        engine = NativeEngine(policies)
        replies = engine.generate(asked, PARAMS)
        engine.generate(asked, PARAMS)
    assert len(said) == 1
    for request, reply in zip(asked, replies, strict=True):
        np.testing.assert_allclose(reply.logprobs, rescore(policies, request, reply, 1.0).numpy(), rtol=0, atol=1e-5)


def test_an_environment_variable_leaves_fused_passes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny(tmp_path / "qwen")
    policies = build(folder)
    asked = requests(policies)
    expected = NativeEngine(policies).generate(asked, PARAMS)
    monkeypatch.setenv("MARFT_KERNELS", "none")
    plain = build(folder)
    with pytest.warns(UserWarning, match="decoded by transformers"):
        replies = NativeEngine(plain).generate(asked, PARAMS)
    assert [reply.action_ids for reply in replies] == [reply.action_ids for reply in expected]
    ids, mask = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[False, False, True, True]])
    torch.testing.assert_close(
        plain.logprobs("actor", ids, mask)[0], policies.logprobs("actor", ids, mask)[0], rtol=0, atol=1e-5
    )
    monkeypatch.setenv("MARFT_KERNELS", "decode,foward")
    with pytest.raises(ConfigError, match="Did you mean 'forward'"):
        build(folder)
