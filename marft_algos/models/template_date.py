"""Chat templates that write the date: what their ``strftime_now`` tells is a fixed day, whatever the clock says."""

from __future__ import annotations

import string
from datetime import datetime
from functools import lru_cache

_NAME = "strftime_now"
_ESCAPED = "\x00"
"""Stands for ``%%`` meanwhile."""


@lru_cache
def pinned(template: str, date: str) -> str:
    """Returns a chat template for which it is always the same day, at midnight.

    Args:
        template: Jinja's source; transformers gives it a function ``strftime_now(format)``, and takes no other.
        date: YYYY-MM-DD.
    """
    if _NAME not in template:
        return template
    day = datetime.fromisoformat(date)
    # Not %s, seconds since 1970: they depend on the machine's time zone.
    codes = [f"%{flag}{letter}" for flag in ("", "-") for letter in string.ascii_letters if letter != "s"]
    replaced = {"%%": _ESCAPED, **{code: day.strftime(code) for code in codes}, _ESCAPED: "%"}
    steps = "".join(f"|replace({code!r}, {text!r})" for code, text in replaced.items() if code != text)
    # The template begins a line, as it did: jinja drops the newline behind a block.
    return f"{{%- macro {_NAME}(format) -%}}{{{{ format{steps} }}}}{{%- endmacro %}}\n{template}"
