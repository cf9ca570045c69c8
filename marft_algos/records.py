"""Episodes as JSON rows: the environment's record, with what training knows of every turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from marft_algos.types import Trajectory, Transition

DIGITS = 5
"""Decimals of recorded values: for reading, not for computing."""


def row(trajectory: Trajectory, tokenizers: dict[str, Any] | None = None) -> dict[str, Any]:
    """One episode as plain values.

    Args:
        trajectory: Finished; after an update its turns have values and advantages.
        tokenizers: Policy -> tokenizer, to record tokens beside their advantages; None: leave tokens out.
    """
    made = dataclasses.asdict(trajectory.info["episode"])
    made["score"] = trajectory.score
    for turn, transition in zip(made["turns"], trajectory.transitions, strict=True):
        turn["training"] = _training(transition, tokenizers)
    return made


def _training(t: Transition, tokenizers: dict[str, Any] | None) -> dict[str, Any]:
    known = {"value": t.values, "advantage": t.advantages, "return": t.returns}
    summary: dict[str, Any] = {
        key: _number(x[0] if key == "value" else np.mean(x)) for key, x in known.items() if x is not None and len(x)
    }
    if tokenizers is not None and t.policy in tokenizers and t.advantages is not None:
        summary["pieces"] = _pieces(tokenizers[t.policy], t.action_ids)
        summary["advantages"] = [_number(a) for a in t.advantages]
        summary["values"] = [] if t.values is None else [_number(v) for v in t.values]
    return summary


def _pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    return [str(piece) for piece in tokenizer.batch_decode([[i] for i in ids])]


def _number(x: Any) -> float:
    return round(float(x), DIGITS)
