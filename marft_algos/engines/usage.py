"""What requests to servers came to: counts, tokens, money. Shared by the engines that go over the network."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Usage:
    """Totals since the engine was made."""

    requests: int = 0
    """Replies asked for."""
    retries: int = 0
    """Attempts beyond a request's first."""
    failed: int = 0
    """Requests that were given up and recorded as errors."""
    tokens_in: int = 0
    """Prompt tokens, as the server counts them."""
    tokens_out: int = 0
    """Reply tokens, as the server counts them."""
    cost: float = 0.0
    """In the currency of the prices given; 0 without prices."""


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

    def count(self, *, retries: int = 0, failed: bool = False, tokens_in: int = 0, tokens_out: int = 0) -> None:
        """Books one request."""
        with self._lock:
            total = self._total
            total.requests += 1
            total.retries += retries
            total.failed += failed
            total.tokens_in += tokens_in
            total.tokens_out += tokens_out
            total.cost += (tokens_in * self._prices[0] + tokens_out * self._prices[1]) / 1e6

    def since(self) -> dict[str, float]:
        """Returns what was booked since the last call, by name."""
        now = self.total
        with self._lock:
            before, self._reported = asdict(self._reported), now
        return {name: float(number - before[name]) for name, number in asdict(now).items()}
