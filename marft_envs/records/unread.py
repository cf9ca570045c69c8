"""What could not be read in the files of others: each reason once, with its first place and how often it occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from marft_envs.records.chats import UnreadableError


class Unread:
    """Collects reasons why something was not read, or how many things were left out."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._times = Counter[str]()

    def count(self, what: str, number: int = 1, where: str = "") -> None:
        """Notes a reason at its place; without a place, a number of things."""
        if number:
            self._first.setdefault(what, where)
            self._times[what] += number

    @contextmanager
    def noted(self, where: str) -> Iterator[None]:
        """Notes what is wrong with what others wrote, and goes on."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            name = "" if isinstance(error, UnreadableError) else f"{type(error).__name__}: "
            self.count(f"{name}{error}", where=where)

    def lines(self) -> list[str]:
        """Says all of it, a line a reason, numbers first."""
        more = {what: f", and {number - 1} more" if number > 1 else "" for what, number in self._times.items()}
        placed = [f"{where}{more[what]}: {what}" for what, where in self._first.items() if where]
        return [f"{self._times[what]} {what}" for what, where in self._first.items() if not where] + placed
