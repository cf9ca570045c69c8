"""Says what to do about a team that cannot begin to learn: replies that are cut, answers that nobody can read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from marft_algos.config import presets
from marft_algos.config.settings import TrainConfig

HALF = 0.5
"""Share of replies, or of episodes, from which on it is worth a word."""


def advice(numbers: Mapping[str, float], config: TrainConfig) -> str:
    """Returns what an evaluation shows to be in the way of learning, and what to type; "" where nothing is.

    Args:
        numbers: Of an evaluation, as :func:`marft_algos.rollout.panel.summary` counts them.
        config: The run's settings.
    """
    cut = {key.split("/")[1]: v for key, v in numbers.items() if key.startswith("agent/") and key.endswith("/cut")}
    seen = [
        f"{share:.0%} of {agent}'s replies were cut at max_new_tokens = {config.max_new_tokens}"
        for agent, share in cut.items()
        if share >= HALF
    ]
    unread = _unread(numbers)
    if unread >= HALF:
        seen.append(f"nothing could be read from {unread:.0%} of {_what(numbers)}")
    if not seen:
        return ""
    examples = ""
    if presets.accepts(config.env, "profiles"):
        examples = (
            f"give the model examples (marft profiles {shlex.quote(config.env)} > profiles.json, then --env-kwargs"
            " profiles=profiles.json), "
        )
    return (
        f"note: {'; '.join(seen)}. Little can be learnt from that. Next: {examples}start from demonstrations (marft"
        " sft, with the same options), or, if its replies are good but long, raise --max-new-tokens."
    )


def _unread(numbers: Mapping[str, float]) -> float:
    """Returns the share of answers, programs or calls without any form that the task reads."""
    if "task/parsed" in numbers:
        return 1.0 - numbers["task/parsed"] - numbers.get("task/timeout", 0.0)
    if "task/verdict/no_code" in numbers:
        return numbers["task/verdict/no_code"]
    return numbers.get("task/malformed", 0.0) / max(numbers.get("turns", 1.0), 1.0)


def _what(numbers: Mapping[str, float]) -> str:
    return "turns" if "task/malformed" in numbers else "answers"
