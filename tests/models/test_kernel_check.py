"""What decides that a fused pass may be used: rounding is no reason to refuse it, a wrong pass is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from helpers.sampling import CONFIGS, save
from marft_algos.models.forward import check
from marft_algos.models.forward.decode import FusedDecoder
from marft_algos.models.forward.families import Unsupported
from marft_algos.models.forward.text import TextPass

PASSES: dict[str, Callable[[PreTrainedModel, torch.dtype], object]] = {"decode": FusedDecoder, "text": TextPass}


def amplifying(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model whose attention is sharp: what one block rounds, the next ones multiply."""
    save(folder, CONFIGS["llama"], num_hidden_layers=8)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.mul_(60.0 if "q_proj" in name or "k_proj" in name else 8.0 if "layers" in name else 1.0)
    return model.to(dtype)


def test_rounding_that_a_model_amplifies_is_no_reason_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = amplifying(tmp_path)
    ids = torch.tensor([check.LONG_PROBE])
    with torch.no_grad():
        single = check._logprobs(model, check._theirs(model, ids, torch.float32))
        with check._in_double(model):
            exact = check._logprobs(model, check._theirs(model, ids, torch.float64))
    assert (single - exact).abs().max() > 1e-4, "the model amplifies too little to say anything"
    monkeypatch.setattr(check, "CLOSE", 0.0)  # everything is judged in double precision
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    for kernel in PASSES.values():
        kernel(model, torch.float32)
    for name, weight in model.named_parameters():
        assert weight.dtype == torch.float32 and torch.equal(weight, before[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", PASSES)
def test_bf16_is_judged_by_its_own_rounding(kernel: str, dtype: torch.dtype, tmp_path: Path) -> None:
    save(tmp_path, CONFIGS["llama"], num_hidden_layers=4)
    PASSES[kernel](AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype), dtype)


WRONG: dict[str, tuple[str, Callable[..., object]]] = {
    "the rotation turns slower": (
        "angles",
        lambda right: lambda self, length: tuple(table[torch.arange(length) // 2] for table in right(self, length)),
    ),
    "norms have no factors": ("scale", lambda right: lambda self, norm: torch.ones_like(right(self, norm))),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kernel", PASSES)
@pytest.mark.parametrize("amplifies", [True, False])
def test_a_wrong_pass_is_refused(
    amplifies: bool, kernel: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, change = WRONG[wrong]
    model = amplifying(tmp_path) if amplifies else _disturbed(tmp_path, torch.float32)
    with torch.no_grad():
        for block in model.base_model.layers:
            block.input_layernorm.weight.uniform_(0.5, 2.0)
    PASSES[kernel](model, torch.float32)
    monkeypatch.setattr(TextPass, name, change(getattr(TextPass, name)))
    with pytest.raises(Unsupported, match="differs from its family"):
        PASSES[kernel](model, torch.float32)


@pytest.mark.parametrize("kernel", PASSES)
def test_a_wrong_pass_is_refused_in_bf16(kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _disturbed(tmp_path, torch.bfloat16)
    PASSES[kernel](model, torch.bfloat16)
    name, change = WRONG["the rotation turns slower"]
    monkeypatch.setattr(TextPass, name, change(getattr(TextPass, name)))
    with pytest.raises(Unsupported, match="differs from its family"):
        PASSES[kernel](model, torch.bfloat16)


def test_a_model_in_double_precision_is_what_it_says(tmp_path: Path) -> None:
    model = _disturbed(tmp_path, torch.float32)
    ids = torch.tensor([check.LONG_PROBE])
    with torch.no_grad():
        with check._in_double(model):
            found: Tensor = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        expected = model.double().base_model(input_ids=ids, use_cache=False).last_hidden_state
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def _disturbed(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    save(folder, CONFIGS["llama"], num_hidden_layers=4)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "layers" in name:
                weight.mul_(8.0)  # so that attention looks at something
    return model.to(dtype)
