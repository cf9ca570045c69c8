"""Attention without a mask on a GPU: behind a shared prefix in transformers' own pass, and of many rows that decode.

Rows that start with the same profile read its keys from a cache: there are fewer queries than keys. transformers writes
down what they may see as a mask, which rules out flash attention and repeats keys for the queries that share them. Here
the pattern goes by its name, causal and aligned to the lower right, wherever a flash kernel can take the tensors.

torch's kernels take what rows that decode may see as a mask, too, and read all places that there are. A kernel of our
own reads each row's keys and values from its own first on, and neither pads nor places that nothing was written to.
"""

from __future__ import annotations

import math
import warnings
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "marft_sdpa"
BLOCK = 64
"""Columns that are read at a time."""
QUERIES = 16
"""Least queries of a product on matrix units; a group of fewer is filled up."""
PROGRAMS = 512
"""Rows times heads of keys that keep a GPU's processors full. With a quarter as many, torch's kernel was as fast."""


def use(model: PreTrainedModel) -> None:
    """Lets a model attend in this way, if it attends by torch's ``scaled_dot_product_attention``."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


def flash_fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Returns whether a flash kernel can take these, [batch, heads, tokens, head_dim], under a pattern by name."""
    grouped = query.shape[1] != key.shape[1]
    return bool(can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, False, grouped)))


def attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Computes attention as transformers' ``sdpa_attention_forward`` does."""
    queries, keys = query.shape[2], key.shape[2]
    if attention_mask is not None or not 1 < queries < keys or not getattr(module, "is_causal", True):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if torch.is_autocast_enabled(query.device.type):  # scaled_dot_product_attention would do it behind the check
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    biased = kwargs.get("softcap") is not None or kwargs.get("position_bias") is not None
    if biased or not flash_fits(query, key, value):
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
        return sdpa_attention_forward(module, query, key, value, mask[None, None], **kwargs)
    attended = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=causal_lower_right(queries, keys),
        dropout_p=kwargs.get("dropout", 0.0),
        scale=kwargs.get("scaling"),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended.transpose(1, 2).contiguous(), None


def mask(*, q_length: int, kv_length: int, **kwargs: Any) -> Tensor | None:
    """Returns transformers' mask; None where tokens see all that a cache holds and what of their own is before them."""
    plain = kwargs["mask_function"] is causal_mask_function and kwargs.get("attention_mask") is None
    offsets = kwargs.get("q_offset"), kwargs.get("kv_offset")
    if plain and kwargs.get("allow_is_causal_skip", True) and offsets == (kv_length - q_length, 0):
        return None
    return sdpa_mask(q_length=q_length, kv_length=kv_length, **kwargs)


def rows_fit(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> bool:
    """Returns whether our own kernel can compute a model's attention."""
    sized = head_dim in (32, 64, 128, 256) and heads // kv_heads <= QUERIES
    return sized and dtype == torch.bfloat16 and find_spec("triton") is not None


def rows_usable(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Returns whether that kernel can, and compiles; a warning says if it does not."""
    if not rows_fit(heads, kv_heads, head_dim, dtype):
        return False
    q = torch.zeros(1, heads, head_dim, dtype=dtype, device=device)
    kv = torch.zeros(1, 2 * kv_heads, QUERIES, head_dim, dtype=dtype, device=device)
    place = torch.zeros(1, 1, dtype=torch.long, device=device)
    try:
        attend_rows(q, kv, place, place[0])
    except Exception as error:  # whatever a compiler makes of it
        warnings.warn(
            f"Triton could not compile the kernel by which many rows attend ({str(error).strip()[:200]}): they attend"
            " by torch's, which is slower. Without this attempt: MARFT_KERNELS=forward,decode,merge,prefix.",
            stacklevel=2,
        )
        return False
    return True


def attend_rows(q: Tensor, kv: Tensor, position: Tensor, column: Tensor) -> Tensor:
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


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, mask)
