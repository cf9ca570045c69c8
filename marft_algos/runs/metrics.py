"""Every key of metrics.jsonl, with its unit and what it says: the page ``pages/metrics.md``, docs/metrics.md as well.

A part ``*`` of a key stands for a name: of an agent, a policy, a reason, a number. What an algorithm or credit rule of
somebody else's logs besides is a number without a description.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Metric:
    """What a number is."""

    unit: str
    """Empty: a pure number."""
    meaning: str


def page() -> str:
    """Reads docs/metrics.md."""
    return (resources.files("marft_algos.runs") / "pages/metrics.md").read_text(encoding="utf-8")


_ROW = re.compile(r"^\| `(.+?)`(?:, (.+?))? \| (.+) \|$", re.MULTILINE)
METRICS = {key: Metric(unit, meaning) for key, unit, meaning in _ROW.findall(page())}
_PATTERNS = {re.compile(re.escape(key).replace(r"\*", "[^/]+")): metric for key, metric in METRICS.items()}


@functools.cache
def describe(key: str) -> Metric | None:
    """Says what a key of metrics.jsonl is; None: nothing here logs it.

    >>> describe("policy/actor_0/kl").unit
    'nats/token'
    """
    if key in METRICS:
        return METRICS[key]
    found = next((metric for pattern, metric in _PATTERNS.items() if pattern.fullmatch(key)), None)
    if found is None and key.startswith("eval/"):  # an evaluation's own count of what iterations count
        return describe(key.removeprefix("eval/"))
    return METRICS["task/*"] if found is None and key.startswith("task/") else found


if __name__ == "__main__":
    from marft_algos.terminal import say

    say(page(), end="")
