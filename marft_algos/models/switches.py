"""Which forward passes of our own are used: an environment variable leaves some out, where one is suspected."""

from __future__ import annotations

import os

from marft_envs.errors import check_known

FUSED = "MARFT_KERNELS"
"""Environment variable: which of ``FUSED_PASSES`` may be used, with commas between; ``none``: no one."""
FUSED_PASSES = ("forward", "decode", "merge", "attention", "prefix")
"""Scoring and training; decoding; adapters added to the weights before the forward pass; attention without a mask,
behind shared prefixes and in many rows, on a GPU; what rows or rounds start with, computed once."""


def fused_passes() -> frozenset[str]:
    """Returns which passes of our own may be used: all, or those that the environment variable ``FUSED`` lists.

    Raises:
        ConfigError: it lists an unknown one.
    """
    passes, known = os.environ.get(FUSED, ",".join(FUSED_PASSES)).split(","), (*FUSED_PASSES, "none")
    check_known(passes, known, f"{FUSED} lists an unknown pass '{{}}'.")
    return frozenset(passes)
