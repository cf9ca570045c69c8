"""What could not be read in the files of others: each reason once, with its first place and how often it occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from marft_envs.records.chats import UnreadableError


class Unread:
    """Collects reasons why something was not read."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._times, self._counts = Counter[str](), Counter[str]()

    def add(self, where: str, why: str) -> None:
        """Notes an object that is not read."""
        self._first.setdefault(why, where)
        self._times[why] += 1

    def count(self, what: str, number: int = 1) -> None:
        """Notes a number of things, of which no place is said."""
        self._counts[what] += number

    @contextmanager
    def noted(self, where: str) -> Iterator[None]:
        """Notes what is wrong with what others wrote, and goes on."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            name = "" if isinstance(error, UnreadableError) else f"{type(error).__name__}: "
            self.add(where, f"{name}{error}")

    def lines(self) -> list[str]:
        """Says all of it, a line a reason."""
        found = [f"{number} {what}" for what, number in self._counts.items() if number]
        for why, number in self._times.items():
            found.append(f"{self._first[why]}{f', and {number - 1} more' if number > 1 else ''}: {why}")
        return found
