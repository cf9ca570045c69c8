"""Episodes as JSON rows: the environment's record, with what training knows of every turn in its ``extras``.

``marft_envs.records.trajectory`` reads, replays and converts these rows like any other records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marft_algos.runs.disk import writing
from marft_algos.types import Estimates, Trajectory, Transition
from marft_envs.records import trajectory as episodes

DIGITS = 5
"""Decimals of recorded values: for reading, not for computing."""


def row(
    trajectory: Trajectory, estimates: Estimates | None = None, tokenizers: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Writes one episode as plain values.

    Args:
        trajectory: Finished.
        estimates: Of the update that learnt from it.
        tokenizers: Policy -> tokenizer, to record tokens with what is known of each; None: leave tokens out.
    """
    record = episodes.to_dict(trajectory.episode)
    for turn, transition in zip(record["turns"], trajectory.transitions, strict=True):
        turn["extras"] = {**(turn["extras"] or {}), **_learnt(transition, estimates or Estimates(), tokenizers or {})}
    return record


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows to a JSONL file.

    Raises:
        RunError: It cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _learnt(t: Transition, estimates: Estimates, tokenizers: Mapping[str, Any]) -> dict[str, Any]:
    """The agent's prompt; first value, mean advantage and mean return; and of each token what is known of it.

    ``pieces`` are the sampled tokens as text; ``logprobs`` those of the sampler; ``advantages`` has one number at
    action level; ``values`` is there at token level only.
    """
    extras: dict[str, Any] = {}
    if t.observation:
        extras["observation"] = t.observation
    if t in estimates.values:
        extras["value"] = _number(estimates.values[t][0])
    if t in estimates.advantages:
        extras["advantage"] = _number(np.mean(estimates.advantages[t]))
    if t in estimates.returns:
        extras["return"] = _number(np.mean(estimates.returns[t]))
    ids = t.reply.action_ids
    if t.policy in tokenizers and ids:
        extras["pieces"] = [*map(str, tokenizers[t.policy].batch_decode([[i] for i in ids]))]
        known = {"logprobs": t.reply.logprobs, "values": estimates.values.get(t, ())}
        extras |= {name: _numbers(array) for name, array in known.items() if len(array) == len(ids)}
        if t in estimates.advantages:
            extras["advantages"] = _numbers(estimates.advantages[t])
    return extras


def _numbers(array: Any) -> list[float]:
    return [_number(x) for x in array]


def _number(x: Any) -> float:
    return round(float(x), DIGITS)
