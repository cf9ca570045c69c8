"""Reads the calls of a reply, and writes them; the forms are :mod:`marft_envs.families.tools.dialects`'."""

from __future__ import annotations

from collections.abc import Sequence

from marft_envs.families.tools.dialects import DEEPEST, DEFAULT, ERRORS, LONGEST, MOST_CALLS, ToolReply, dialect, read
from marft_envs.families.tools.dialects.base import Schemas
from marft_envs.families.tools.types import ToolCall

__all__ = ["DEEPEST", "ERRORS", "LONGEST", "MOST_CALLS", "ToolReply", "parse", "written"]


def parse(text: str, form: str = DEFAULT, schemas: Schemas | None = None) -> ToolReply:
    """Returns the calls of a reply, or the error that keeps it from being read; raises nothing.

    Args:
        text: The reply.
        form: The dialect's name; ``any``: whichever it is written in.
        schemas: Tool -> schema of its arguments; dialects without quotes tell text from numbers by it.
    """
    return read(form, text, schemas)


def written(calls: Sequence[ToolCall], form: str = DEFAULT, schemas: Schemas | None = None) -> str:
    """Returns a reply that asks for these calls, which :func:`parse` reads back."""
    return dialect(form).write(calls, schemas)
