"""Call formats: how families of models write calls of tools, each with its writer and its reader."""

from marft_envs.call_formats.base import DEEPEST, ERRORS, LONGEST, MOST_CALLS, Dialect, ToolReply
from marft_envs.call_formats.call import ToolCall
from marft_envs.call_formats.known import DEFAULT, DIALECTS, MARKS, Found, dialect, find, parse, written

__all__ = [
    "DEEPEST", "DEFAULT", "DIALECTS", "ERRORS", "LONGEST", "MARKS", "MOST_CALLS", "Dialect", "Found", "ToolCall",
    "ToolReply", "dialect", "find", "parse", "written",
]  # fmt: skip
