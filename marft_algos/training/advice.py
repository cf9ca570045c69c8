"""Says what to do about a team that cannot begin to learn: replies that are cut, answers that nobody can read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from marft_algos.config import presets
from marft_algos.config.settings import TrainConfig
from marft_algos.rollout.demonstrations import Demonstrations
from marft_algos.runs.loggers import Display
from marft_algos.types import Trajectory
from marft_envs.core.types import Episode

NAMED = 10
"""Problems that a note names."""
TASK = -2
"""How ``Episode.cuts`` calls the task's own text."""
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


class Hindrances:
    """Says what is in the way of learning: problems whose own text is too long, demonstrations that were left out.

    Args:
        demonstrations: What is learnt from beside the run's own episodes, if there is any.
    """

    def __init__(self, demonstrations: Demonstrations | None) -> None:
        self._demonstrations, self._named = demonstrations, set[str]()

    def show(self, display: Display, played: Sequence[Trajectory] = (), last: bool = False) -> None:
        """Shows what these episodes add; at the end, how many demonstrations were left out in all."""
        if words := too_long(played, self._named):
            display.note(words)
        if self._demonstrations is not None:
            words = self._demonstrations.summary() if last else self._demonstrations.news()
            if words:
                display.note(words)


def too_long(played: Sequence[Trajectory], named: set[str]) -> str:
    """Returns a note on problems whose own text was cut in these episodes; "" for none.

    Args:
        played: The episodes.
        named: Problems that were named already; gets the others.
    """
    names = [t.episode.task_id or f"seed {t.episode.seed}" for t in played if _shortened(t.episode)]
    fresh = [name for name in dict.fromkeys(names) if name not in named]
    named.update(fresh)
    if not fresh:
        return ""
    more = f" and {len(fresh) - NAMED} more" if len(fresh) > NAMED else ""
    return (
        f"note: too long for the model's context, so their texts were cut at the end: {', '.join(fresh[:NAMED])}"
        f"{more}. Leave them out, lower --max-new-tokens, or choose a model with a longer context."
    )


def _shortened(episode: Episode) -> bool:
    """Whether the task's text was cut in a prompt because of the context, rather than by the environment's limit."""
    by_context = {turn.index for turn in episode.turns if turn.max_chars is not None}
    return any(cut["seen"] == TASK and cut["turn"] in by_context for cut in episode.cuts)


def _unread(numbers: Mapping[str, float]) -> float:
    """Returns the share of answers, programs or calls without any form that the task reads."""
    if "task/parsed" in numbers:
        return 1.0 - numbers["task/parsed"] - numbers.get("task/timeout", 0.0)
    if "task/verdict/no_code" in numbers:
        return numbers["task/verdict/no_code"]
    return numbers.get("task/malformed", 0.0) / max(numbers.get("turns", 1.0), 1.0)


def _what(numbers: Mapping[str, float]) -> str:
    return "turns" if "task/malformed" in numbers else "answers"
