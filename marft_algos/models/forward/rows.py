"""Attention of one new token a row, in batches of many rows on a GPU, without a mask.

torch's kernels take what rows may see as a mask, and read all places that there are. Here each row's keys and values
are read from its own first on, and neither pads nor places that nothing was written to.
"""

from __future__ import annotations

import math
import warnings
from importlib.util import find_spec

import torch
from torch import Tensor

BLOCK = 64
"""Columns that are read at a time."""
QUERIES = 16
"""Least queries of a product on matrix units; a group of fewer is filled up."""
PROGRAMS = 512
"""Rows times heads of keys that keep a GPU's processors full. With a quarter as many, torch's kernel was as fast."""


def fits(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Returns whether this kernel can compute a model's attention."""
    sized = head_dim in (32, 64, 128, 256) and heads // kv_heads <= QUERIES
    return sized and device.type == "cuda" and dtype == torch.bfloat16 and find_spec("triton") is not None


def usable(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Returns whether this kernel can compute a model's attention, and compiles; a warning says if it does not."""
    if not fits(heads, kv_heads, head_dim, dtype, device):
        return False
    q = torch.zeros(1, heads, head_dim, dtype=dtype, device=device)
    kv = torch.zeros(1, 2 * kv_heads, QUERIES, head_dim, dtype=dtype, device=device)
    place = torch.zeros(1, 1, dtype=torch.long, device=device)
    try:
        attend(q, kv, place, place[0])
    except Exception as error:  # whatever a compiler makes of it
        warnings.warn(
            f"Triton could not compile the kernel by which many rows attend ({str(error).strip()[:200]}): they attend"
            " by torch's, which is slower. Without this attempt: MARFT_KERNELS=forward,decode,merge,prefix.",
            stacklevel=2,
        )
        return False
    return True


def attend(q: Tensor, kv: Tensor, position: Tensor, column: Tensor) -> Tensor:
    """Returns what each row attends to, [b, heads, head_dim].

    Args:
        q: [b, heads, head_dim], rotated.
        kv: [b, 2 * kv_heads, capacity, head_dim], keys, then values; a row's stand in the last ``position + 1``
            columns up to ``column``.
        position: [b, 1], of the new tokens in their rows.
        column: [1], where they stand.
    """
    from marft_algos.models.forward.rows_kernel import attend as kernel  # Triton is there where torch has a GPU

    (b, heads, head_dim), kv_heads = q.shape, kv.shape[1] // 2
    out = q.new_empty(b, heads, head_dim)
    kernel[(b, kv_heads)](
        q, kv, position, column, out, q.stride(0), q.stride(1), *kv.stride()[:3],
        1 / math.sqrt(head_dim) / math.log(2), heads // kv_heads, head_dim, BLOCK, QUERIES,
    )  # fmt: skip
    return out
