"""Attention behind a shared prefix on a GPU: no mask where a flash kernel fits, and the numbers of transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, Gemma2Config, MistralConfig, PreTrainedModel

from helpers.pretend_gpu import pretend_gpu
from helpers.sampling import CONFIGS, save
from helpers.tiny import save_tiny
from marft_algos.models import attention
from marft_algos.models.forward import text, transformers_pass
from marft_algos.models.loading import load_base

SHARED = list(range(3, 15))
IDS = torch.tensor([[*SHARED, 5, 6, 7, 0], [*SHARED, 9, 2, 0, 0], [*SHARED, 4, 4, 8, 1]])
WANTED = torch.zeros_like(IDS, dtype=torch.bool)
WANTED[:, 12:14] = True
FAMILIES = CONFIGS | {"windowed": MistralConfig(sliding_window=4), "gemma2": Gemma2Config(sliding_window=4)}


class Calls(TorchFunctionMode):
    """Notes under which masks attention is computed, of more than one query."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and args[0].shape[2] > 1:
            self.masks.append(kwargs["attn_mask"])
        return func(*args, **kwargs)


def states(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Final states behind a shared prefix, and a gradient that runs through all of it."""
    model.requires_grad_(True).zero_grad()
    hidden = transformers_pass.hidden_states(model.base_model, model, IDS, WANTED)
    hidden.square().sum().backward()
    embeddings = model.get_input_embeddings().weight.grad
    assert embeddings is not None
    return hidden.detach(), embeddings.clone()


def near(found: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_shared_prefix_needs_no_mask_where_a_flash_kernel_fits(
    family: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModelForCausalLM.from_pretrained(save(tmp_path / family, CONFIGS[family]))
    with Calls() as calls:
        expected = states(model)
    masked = [mask for mask in calls.masks if mask is not None]
    assert len(masked) == 2 and all(mask.shape == (3, 1, 4, 16) for mask in masked)  # one a layer
    attention.use(model)
    monkeypatch.setattr(attention, "flash_fits", lambda *_: fits)
    with Calls() as calls:
        near(states(model), expected)
    if not fits:
        assert all(mask.shape == (1, 1, 4, 16) for mask in calls.masks if mask is not None)
        return
    patterns = [mask for mask in calls.masks if mask is not None]
    assert len(calls.masks) == 4 and len(patterns) == 2  # the prefix by itself, then the rows behind it
    for pattern in patterns:
        assert isinstance(pattern, CausalBias) and pattern.variant == CausalVariant.LOWER_RIGHT
        assert (pattern.seq_len_q, pattern.seq_len_kv) == (4, 16)


def test_our_own_pass_needs_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_tiny(tmp_path / "qwen"))
    ours = text.TextPass(model, torch.float32)
    expected = ours.hidden_states(IDS, WANTED)
    monkeypatch.setattr(ours, "_named", True)  # as on a GPU
    for fits in (False, True):
        monkeypatch.setattr(text, "flash_fits", lambda *_, fits=fits: fits)
        with Calls() as calls:
            torch.testing.assert_close(ours.hidden_states(IDS, WANTED), expected, rtol=1e-4, atol=1e-5)
        patterns = [mask for mask in calls.masks if isinstance(mask, CausalBias)]
        # The prefix by itself but in the last block, then the rows behind it.
        assert len(calls.masks) == 3 and len(patterns) == 2 * fits
        assert all((mask.variant, mask.seq_len_q) == (CausalVariant.LOWER_RIGHT, 2) for mask in patterns)


@pytest.mark.parametrize("family", ["windowed", "gemma2", "gpt2"])
def test_other_patterns_stay_transformers_own(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / family
    save_tiny(folder, "gpt2") if family == "gpt2" else save(folder, FAMILIES[family])
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected = states(model)
    attention.use(model)
    monkeypatch.setattr(attention, "flash_fits", lambda *_: True)
    near(states(model), expected)


@torch.no_grad()
def test_padded_rows_are_masked(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_tiny(tmp_path / "qwen"))
    real = torch.ones_like(IDS)
    real[0, :3] = 0
    expected = model(input_ids=IDS, attention_mask=real).logits
    attention.use(model)
    torch.testing.assert_close(model(input_ids=IDS, attention_mask=real).logits, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_weights_in_fp32_are_offered_to_a_flash_kernel_in_the_compute_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_tiny(tmp_path / "qwen"))
    attention.use(model)
    offered = []

    def fits(*tensors: torch.Tensor) -> bool:
        offered.extend(tensor.dtype for tensor in tensors)
        return True

    monkeypatch.setattr(attention, "flash_fits", fits)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        transformers_pass.hidden_states(model.base_model, model, IDS, WANTED)
    assert set(offered) == {torch.bfloat16}


def test_models_on_a_gpu_attend_so_and_are_saved_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny(tmp_path / "qwen")
    cpu = load_base(str(folder), dtype=torch.float32, device=torch.device("cpu"))
    assert cpu.model.config._attn_implementation == "sdpa"
    with pretend_gpu():
        base = load_base(str(folder), dtype=torch.float32, device=torch.device("cuda"))
        monkeypatch.setenv("MARFT_KERNELS", "decode")
        without = load_base(str(folder), dtype=torch.float32, device=torch.device("cuda"))
    assert base.model.config._attn_implementation == attention.NAME
    assert without.model.config._attn_implementation == "sdpa"
    cpu.model.set_attn_implementation(attention.NAME)
    cpu.model.save_pretrained(tmp_path / "saved")
    assert attention.NAME not in (tmp_path / "saved" / "config.json").read_text()
