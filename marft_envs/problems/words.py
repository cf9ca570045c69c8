"""Texts of problems with places for values: ``@name``, or ``@{name}`` before a letter; no other mark has a meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

_PLACE = re.compile(r"@(?:\{\{(\w+)\}\}|([a-z]\w*))")


def filled(text: str, values: Mapping[str, object]) -> str:
    """Returns a text with the values in their places."""
    return _form(text).format_map(values)


@cache
def _form(text: str) -> str:
    return _PLACE.sub(r"{\1\2}", text.replace("{", "{{").replace("}", "}}"))
