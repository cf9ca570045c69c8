"""Calls that would keep a back end busy for ever, refused before they start.

Upstream's calculator takes whole numbers of any size and any precision, and copying folders into each other makes trees
that double with every call. No task needs either. Everything here is about a million times what the tasks use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.families.tools.types import ToolError

DIGITS = 10_000
"""Most decimal places of a calculation."""
BITS = 100_000
"""Most bits of a whole number raised to a power."""
ENTRIES = 20_000
"""Most files and folders of a file system, counted along every way to them."""


def check(instance: Any, name: str, arguments: Mapping[str, Any]) -> None:
    """Lets a call pass.

    Raises:
        ToolError: If it could run for very long; says which limit.
    """
    if name in ("logarithm", "square_root"):
        _at_most(abs(_whole(arguments.get("precision"))), DIGITS, "The precision")
    elif name == "round_number":
        _at_most(abs(_whole(arguments.get("decimal_places"))), DIGITS, "The number of decimal places")
    elif name == "power":
        base, exponent = _whole(arguments.get("base")), _whole(arguments.get("exponent"))
        _at_most(base.bit_length() * abs(exponent), BITS, "The power, in bits,")
    elif name in ("cp", "mv"):
        size = _entries(instance.root) + _entries(instance._current_dir.contents.get(arguments.get("source")))
        _at_most(size, ENTRIES, "The number of files and folders")


def _at_most(value: int, limit: int, what: str) -> None:
    if value > limit:
        raise ToolError(f"{what} would exceed {limit}.")


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _entries(item: Any) -> int:
    """Files and folders below, the item included; stops counting beyond the limit (a folder may hold itself)."""
    count, waiting = 0, [item]
    while waiting and count <= ENTRIES:
        entry = waiting.pop()
        count += 1
        waiting.extend(getattr(entry, "contents", {}).values())
    return count
