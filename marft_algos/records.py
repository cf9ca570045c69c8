"""Episodes as JSON rows: the environment's record, with what training knows of every turn in its ``extras``.

``marft_envs.trajectory`` reads, replays and converts these rows like any other records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marft_algos.types import Trajectory, Transition
from marft_envs import trajectory as episodes

DIGITS = 5
"""Decimals of recorded values: for reading, not for computing."""


def row(trajectory: Trajectory, tokenizers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One episode as plain values.

    Args:
        trajectory: Finished; after an update its turns have values and advantages.
        tokenizers: Policy -> tokenizer, to record tokens beside their advantages; None: leave tokens out.
    """
    made = episodes.to_dict(trajectory.info["episode"])
    for turn, transition in zip(made["turns"], trajectory.transitions, strict=True):
        turn["extras"] = {**(turn["extras"] or {}), **_learnt(transition, tokenizers or {})}
    return made


def _learnt(t: Transition, tokenizers: Mapping[str, Any]) -> dict[str, Any]:
    """What the agent was told; first value, mean advantage and mean return; the tokens' own ones beside the tokens."""
    found: dict[str, Any] = {}
    if t.info.get("observation"):
        found["observation"] = t.info["observation"]
    if t.values is not None:
        found["value"] = _number(t.values[0])
    if t.advantages is not None:
        found["advantage"] = _number(np.mean(t.advantages))
    if t.returns is not None:
        found["return"] = _number(np.mean(t.returns))
    if t.policy in tokenizers and t.advantages is not None:
        found["pieces"] = _pieces(tokenizers[t.policy], t.action_ids)
        found["advantages"] = [_number(a) for a in t.advantages]
    return found


def _pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    return [str(piece) for piece in tokenizer.batch_decode([[i] for i in ids])]


def _number(x: Any) -> float:
    return round(float(x), DIGITS)
