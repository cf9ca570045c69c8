"""Causal attention behind a shared prefix without a mask, in transformers' own pass on a GPU.

Rows that start with the same profile read its keys from a cache: there are fewer queries than keys. transformers writes
down what they may see as a mask, which rules out flash attention and repeats keys for the queries that share them. Here
the pattern goes by its name, causal and aligned to the lower right, wherever a flash kernel can take the tensors.
"""

from __future__ import annotations

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


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, mask)
