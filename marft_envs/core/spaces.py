"""Defines the action space of language agents: any text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gymnasium import spaces


class UnicodeText(spaces.Text):
    """Any unicode string up to ``max_length`` characters, checked in O(1).

    gymnasium's ``Text`` refuses spaces, newlines and LaTeX by default, and a full charset costs
    seconds and hundreds of megabytes. Use one instance per agent and environment.

    Args:
        max_length: Longest string in the space, in characters.
        candidates: Called by :meth:`sample`; returns plausible replies. Without it, or before there
            are any, samples are the empty string.
        seed: Seed of the space's generator.
    """

    def __init__(
        self,
        max_length: int = 2_000_000,
        *,
        candidates: Callable[[], Sequence[str]] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(max_length, min_length=0, charset="0123456789", seed=seed)
        self.candidates = candidates

    def contains(self, x: Any) -> bool:
        """Returns whether ``x`` is a string that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Returns one of the task's plausible replies, drawn with the space's own generator."""
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText.sample takes neither mask nor probability: call sample() alone")
        options = self.candidates() if self.candidates is not None else ()
        return str(options[int(self.np_random.integers(len(options)))]) if options else ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"
