"""What bf16 costs on a CPU, which may have instructions for it or not."""

from __future__ import annotations

import time
import warnings
from functools import cache

import torch
from torch.nn.functional import linear

SLOW = 2.0
"""A CPU without instructions for bf16 is several times slower in it, one that has them about twice as fast."""
_ROWS, _IN, _OUT = 64, 512, 1536
_TIMES = 8


def check_bf16() -> None:
    """Warns where bf16 costs time on this CPU, instead of saving it."""
    if (cost := bf16_cost()) > SLOW:
        warnings.warn(
            f"dtype is bf16, and this CPU computes a product of matrices {cost:.0f} times as fast in fp32: it has no "
            "instructions for bf16 (on x86: avx512_bf16 or amx_bf16). Type: --dtype fp32, or the preset without bf16, "
            "such as smollm2.",
            stacklevel=3,
        )


@cache
def bf16_cost() -> float:
    """Returns how many times as long as in fp32 a product of matrices takes in bf16 on this CPU.

    It is measured (in a fifth of a second where there are no instructions for bf16), once a process: the flags of a
    processor have other names on each architecture, and do not say what torch makes of them.
    """
    return _seconds(torch.bfloat16) / _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    """Returns the shortest of several times of one thread: on a busy machine several wait for each other."""
    states, weights = torch.ones(_ROWS, _IN, dtype=dtype), torch.ones(_OUT, _IN, dtype=dtype)
    times, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            for _ in range(_TIMES):
                began = time.perf_counter()
                linear(states, weights)
                times.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    return min(times)
