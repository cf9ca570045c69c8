"""What requests to servers came to: counts, tokens, money. Shared by the engines that go over the network."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass

from marft_algos.types import Generation, StopReason


@dataclass(slots=True)
class Usage:
    """Totals since the engine was made."""

    requests: int = 0
    """Replies asked for."""
    retries: int = 0
    """Attempts beyond a request's first."""
    failed: int = 0
    """Requests that were given up and recorded as errors."""
    empty: int = 0
    """Answers without text: refused, filtered, or cut before the model began to answer."""
    refused: int = 0
    """Of these, the prompts that were refused."""
    tokens_in: int = 0
    """Prompt tokens, as the server counts them."""
    tokens_out: int = 0
    """Reply tokens, as the server counts them."""
    cost: float = 0.0
    """In the currency of the prices given; 0 without prices."""

    def answered(self, reason: StopReason, text: str) -> None:
        """Counts how a request ended."""
        self.failed += reason is StopReason.ERROR
        self.empty += reason is not StopReason.ERROR and not text
        self.refused += reason is StopReason.REFUSED


class Meter:
    """Counts usage from many threads; prices are per million tokens."""

    def __init__(self, price_in: float = 0.0, price_out: float = 0.0) -> None:
        self._prices = (price_in, price_out)
        self._lock = threading.Lock()
        self._total, self._reported = Usage(), Usage()

    @property
    def total(self) -> Usage:
        """A copy of the totals so far."""
        with self._lock:
            return Usage(**asdict(self._total))

    def count(self, reply: Generation, *, retries: int = 0, tokens_in: int = 0, tokens_out: int = 0) -> None:
        """Books one request, and what came of it."""
        with self._lock:
            total = self._total
            total.requests += 1
            total.retries += retries
            total.answered(reply.stop_reason, reply.text)
            total.tokens_in += tokens_in
            total.tokens_out += tokens_out
            total.cost += (tokens_in * self._prices[0] + tokens_out * self._prices[1]) / 1e6

    def since(self) -> dict[str, float]:
        """Returns what was booked since the last call, by name."""
        now = self.total
        with self._lock:
            before, self._reported = asdict(self._reported), now
        return {name: float(number - before[name]) for name, number in asdict(now).items()}
