"""The kernel by which many rows attend, against attention written out; without a GPU in Triton's interpreter."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch

from marft_algos.models import attention

REAL = torch.cuda.is_available()


@pytest.mark.skipif(
    not REAL and (find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1"),
    reason="no GPU here, nor Triton with TRITON_INTERPRET=1, which computes without",
)
@pytest.mark.parametrize(
    ("b", "heads", "kv_heads", "head_dim", "capacity"),
    [(3, 8, 2, 32, 160), (2, 9, 3, 64, 200), (5, 16, 2, 128, 70), (300, 4, 2, 32, 80)],
)
def test_rows_attend_to_what_they_hold_and_nothing_else_is_read(
    b: int, heads: int, kv_heads: int, head_dim: int, capacity: int
) -> None:
    torch.manual_seed(0)
    device, dtype = ("cuda", torch.bfloat16) if REAL else ("cpu", torch.float32)
    end = capacity - 6
    lengths = torch.randint(1, end, (b,))
    lengths[0], lengths[-1] = end, 1
    q = torch.randn(b, heads + 3, head_dim, device=device).to(dtype)[:, :heads]  # keys and values stand behind
    kv = torch.randn(b, 2 * kv_heads, capacity, head_dim, device=device).to(dtype)
    kv[:, :, end:] = torch.nan
    for i, length in enumerate(lengths.tolist()):
        kv[i, :, : end - length] = torch.nan
    place = torch.tensor([end - 1], device=device)
    found = attention.attend_rows(q, kv, (lengths - 1)[:, None].to(device), place)
    for i, length in enumerate(lengths.tolist()):
        keys, values = kv[i, :, end - length : end].float().repeat_interleave(heads // kv_heads, 0).chunk(2)
        weights = (q[i, :, None].float() @ keys.mT / head_dim**0.5).softmax(-1)
        expected = (weights @ values)[:, 0]
        torch.testing.assert_close(found[i].float(), expected, rtol=0, atol=2e-2 if REAL else 1e-5)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype"),
    [
        (16, 2, 80, torch.bfloat16),
        (16, 2, 128, torch.float32),  # its products would be of another precision
        (34, 2, 128, torch.bfloat16),
    ],
)
def test_other_models_attend_by_torchs_kernels(
    heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "find_spec", lambda _: True)
    assert attention.rows_fit(16, 2, 128, torch.bfloat16)
    assert not attention.rows_fit(heads, kv_heads, head_dim, dtype)
    monkeypatch.setattr(attention, "find_spec", lambda _: None)
    assert not attention.rows_fit(16, 2, 128, torch.bfloat16)
