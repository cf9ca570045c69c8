"""Dialects: the forms in which model families write calls of tools, each with its writer and its reader."""

from marft_envs.families.tools.dialects.base import DEEPEST, ERRORS, LONGEST, MOST_CALLS, Dialect, ToolReply
from marft_envs.families.tools.dialects.known import DEFAULT, DIALECTS, MARKS, Found, dialect, find, parse, written

__all__ = [
    "DEEPEST", "DEFAULT", "DIALECTS", "ERRORS", "LONGEST", "MARKS", "MOST_CALLS", "Dialect", "Found", "ToolReply",
    "dialect", "find", "parse", "written",
]  # fmt: skip
