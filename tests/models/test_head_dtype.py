"""The output head in fp32 (``head_dtype``): exact logits under bf16 for sampler and learner, nothing else moved."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from helpers import families, runs
from helpers.sampling import build, requests, rescore
from helpers.tiny import save_tiny
from marft_algos.config.settings import TrainConfig
from marft_algos.config.settings import build as build_config
from marft_algos.engines import NativeEngine
from marft_algos.models import scoring
from marft_algos.models.loading import ModelSettings, load_base, wrap_base
from marft_algos.models.policy import PolicySet
from marft_algos.models.scoring import Fp32Head, head_of
from marft_algos.training.estimate import Shape
from marft_algos.training.policies import model_settings
from marft_algos.types import SamplingParams
from marft_envs.errors import ConfigError

WIDE = ModelSettings(head_dtype="fp32")


def both(folder: Path, dtype: str, **settings: object) -> tuple[PolicySet, PolicySet]:
    """The same policies with the head as the rest computes, and in fp32."""
    return build(folder, dtype=dtype, **settings), build(folder, dtype=dtype, settings=WIDE, **settings)


def test_under_bf16_the_sampler_uses_it_as_the_learner_does(tmp_path: Path) -> None:
    policies = build(save_tiny(tmp_path / "qwen"), dtype="bf16", settings=WIDE)
    asked = requests(policies)
    heads = list[tuple[torch.Tensor, torch.Tensor]]()
    head_of(policies.weights("actor").model).register_forward_hook(lambda _, args, out: heads.append((args[0], out)))
    replies = NativeEngine(policies).generate(asked, SamplingParams(6))
    assert len(heads) == 6
    for hidden, raw in heads:
        assert hidden.dtype == torch.bfloat16 and raw.dtype == torch.float32
        assert not torch.equal(raw, raw.bfloat16().float())
    gaps = [np.abs(rescore(policies, a, b, 1.0).numpy() - b.logprobs) for a, b in zip(asked, replies, strict=True)]
    assert np.mean(np.concatenate(gaps)) < 0.05


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_exact_and_embeddings_stay_as_they_were(tied: bool, tmp_path: Path) -> None:
    folder = families.save(tmp_path / "model", "llama3", tie_word_embeddings=tied)
    model = load_base(str(folder), dtype=torch.bfloat16, device=torch.device("cpu"), settings=WIDE).model
    head, embeddings = head_of(model), model.get_input_embeddings().weight
    assert embeddings.dtype == torch.bfloat16 and head.weight.dtype == torch.float32
    before = load_base(str(folder), dtype=torch.bfloat16, device=torch.device("cpu")).model
    assert torch.equal(head.weight, head_of(before).weight.float())
    hidden = torch.randn(5, embeddings.shape[1]).bfloat16()
    targets, temperature = torch.arange(5), torch.full((5,), 0.7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        raw = scoring.logits(head, hidden, None)
        scored, _ = scoring.score(head, hidden.requires_grad_(True), targets, temperature)
    expected = hidden.detach().float() @ head.weight.T
    assert torch.equal(raw, expected)
    logprobs = torch.log_softmax(expected / 0.7, -1)
    torch.testing.assert_close(scored, logprobs[range(5), range(5)], rtol=0, atol=1e-6)
    scored.sum().backward()
    slope = (F.one_hot(targets, len(head.weight)) - logprobs.exp()) / 0.7 @ head.weight
    assert hidden.grad is not None
    torch.testing.assert_close(hidden.grad, slope.bfloat16())


def test_in_fp32_nothing_changes(tmp_path: Path) -> None:
    plain, wide = both(save_tiny(tmp_path / "qwen"), "fp32")
    asked = requests(plain, 6)
    assert isinstance(head_of(wide.base("actor").model), Fp32Head)
    for a, b in zip(*(NativeEngine(p).generate(asked, SamplingParams(8)) for p in (plain, wide)), strict=True):
        assert a.action_ids == b.action_ids and np.array_equal(a.logprobs, b.logprobs)
        assert torch.equal(rescore(plain, asked[0], a, 1.0), rescore(wide, asked[0], a, 1.0))


def test_whole_models_train_their_head_and_ties_stay(tmp_path: Path) -> None:
    policies = build(save_tiny(tmp_path / "qwen"), dtype="bf16", full_finetune=True, settings=WIDE)
    model = policies.weights("actor").model
    assert head_of(model).weight is model.get_input_embeddings().weight
    request = requests(policies, 2)[1]
    ids = torch.tensor([[*request.prompt_ids, 5, 6]])
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, -2:] = True
    policies.logprobs("actor", ids, mask)[0].sum().backward()
    grad = head_of(model).weight.grad
    assert grad is not None and grad.abs().sum() > 0
    saved = AutoModelForCausalLM.from_pretrained(policies.save_adapter("actor", tmp_path / "saved"))
    assert torch.equal(head_of(saved).weight, head_of(model).weight)


def test_a_model_that_is_loaded_already_gets_it_too(tmp_path: Path) -> None:
    tokenizer = build(save_tiny(tmp_path / "qwen")).base("actor").chat.tokenizer
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "qwen", dtype=torch.bfloat16)
    base = wrap_base(model, tokenizer, WIDE)
    assert base.fp32_head and base.dtype == torch.bfloat16
    assert not wrap_base(AutoModelForCausalLM.from_pretrained(tmp_path / "qwen"), tokenizer).fp32_head


@pytest.mark.parametrize("tied", [True, False])
def test_the_estimate_counts_it(tied: bool, tmp_path: Path) -> None:
    folder = families.save(tmp_path / "model", "llama3", tie_word_embeddings=tied)
    config = dataclasses.replace(runs.settings(folder, tmp_path), head_dtype="fp32", dtype="bf16")
    shape = Shape.of(str(folder), config, torch.bfloat16)
    base = load_base(str(folder), dtype=torch.bfloat16, device=torch.device("cpu"), settings=model_settings(config, {}))
    assert base.fp32_head
    assert shape.weights == sum(p.numel() * p.element_size() for p in base.model.parameters())


def test_other_words_are_refused() -> None:
    assert TrainConfig().head_dtype == "auto"
    with pytest.raises(ConfigError, match="Did you mean 'fp32'"):
        build_config({"head_dtype": "fp23"})


@pytest.mark.parametrize("settings", [ModelSettings(), WIDE])
def test_a_head_may_forbid_tokens_and_a_damaged_one_is_still_told(settings: ModelSettings, tmp_path: Path) -> None:
    """A padded vocabulary has a bias of −inf; logits that are infinite here and finite there are another matter."""
    folder = save_tiny(tmp_path / "qwen", hidden=16, layers=1)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = load_base(str(folder), dtype=torch.float32, device=torch.device("cpu")).chat.tokenizer
    rows = len(model.lm_head.weight)
    head = torch.nn.Linear(16, rows)
    head.load_state_dict({"weight": model.lm_head.weight.detach().clone(), "bias": torch.zeros(rows)})
    head.bias.data[rows - 7 :] = -torch.inf
    model.set_output_embeddings(head)
    base = wrap_base(model, tokenizer, settings)
    hidden, targets = torch.randn(4, 16), torch.zeros(4, dtype=torch.long)
    assert all(torch.isfinite(x).all() for x in scoring.score(head_of(base.model), hidden, targets, torch.ones(4)))
    for damage in (torch.inf, torch.nan):
        head_of(base.model).bias.data[3] = damage
        with pytest.raises(ConfigError, match="gives infinity or NaN"):
            wrap_base(base.model, tokenizer, settings)
    head_of(base.model).bias.data[:] = -torch.inf
    with pytest.raises(ConfigError, match="gives infinity or NaN"):
        wrap_base(base.model, tokenizer, settings)
