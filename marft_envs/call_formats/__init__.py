"""Call formats: how families of models write calls of tools, each with its writer and its reader."""

from marft_envs.call_formats.base import DEEPEST, ERRORS, LONGEST, MOST_CALLS, CallFormat, ToolReply
from marft_envs.call_formats.call import ToolCall
from marft_envs.call_formats.known import CALL_FORMATS, DEFAULT, MARKS, Found, call_format, find, parse, written

__all__ = [
    "CALL_FORMATS", "DEEPEST", "DEFAULT", "ERRORS", "LONGEST", "MARKS", "MOST_CALLS", "CallFormat", "Found",
    "ToolCall", "ToolReply", "call_format", "find", "parse", "written",
]  # fmt: skip
