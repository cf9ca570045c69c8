"""Formats that write calls as Python: Llama 3.2 and 4, LFM2, OLMo 3. ``ast`` reads literals; nothing is evaluated."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from marft_envs.call_formats.base import DEEPEST, Bad, CallFormat, Cursor, Framed, Schemas, check_text
from marft_envs.call_formats.call import ToolCall, too_deep

LONGEST_SOURCE = 100_000
"""Characters of calls written as Python; a tree of more takes too much memory."""

_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_TAG_OF_LLAMA = re.compile(r"<\|python_(?:tag|start)\|>")
LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\((?=\s*(?:\)|\*\*\s*\{|[A-Za-z_]\w*\s*=[^=]))", re.ASCII)
"""The beginning of a list of calls."""
SINGLE = re.compile(r"[A-Za-z_][\w.]*\(\s*(?:(?:[A-Za-z_]\w*\s*=[^=]|\*\*\s*\{).*)?\)", re.ASCII | re.DOTALL)
"""A whole text that is one call."""
_JSON_NAMES = {"null": None, "true": True, "false": False}
_PIECE = re.compile(  # a text that is not closed goes on to the end, so nothing is looked at twice
    r"""(?P<string>'(?:[^'\\]|\\.)*(?:'|\\?\Z)|"(?:[^"\\]|\\.)*(?:"|\\?\Z))|[^'"]+""", re.DOTALL
)


@dataclass(eq=False)
class Pythonic(CallFormat):
    """Calls of functions: ``name(key=value)``."""

    call: str = "%(name)s(%(arguments)s)"
    sample: str = 'key="value"'

    def _arguments(self, call: ToolCall, schemas: Schemas) -> str:
        if not _NAME.fullmatch(call.name) or any(map(iskeyword, call.name.split("."))):
            raise ValueError(f"'{call.name}' is no name in Python")
        parts = [f"{key}={value!r}" for key, value in call.arguments.items() if _plain(key)]
        odd = {key: value for key, value in call.arguments.items() if not _plain(key)}
        # A mark of a template inside a text would end the calls.
        return ", ".join([*parts, f"**{odd!r}"] if odd else parts).replace("<|", "\\x3c|").replace("</", "\\x3c/")


def _plain(key: str) -> bool:
    return key.isascii() and key.isidentifier() and not iskeyword(key)


class LlamaPythonic(Pythonic):
    """``[name(key=value), …]`` as the whole reply, or behind ``<|python_tag|>`` or between Llama 4's marks."""

    def restored(self, text: str) -> str:
        """Returns the text with the marks whole; its brackets are Python's."""
        for mark in self.also:
            text = text.replace(f"< {mark[1:]}", mark)
        return text

    def _read(self, said: str, schemas: Schemas) -> tuple[Sequence[ToolCall], str]:
        before, tag, source = _TAG_OF_LLAMA.search(said), "", said
        if before is not None:
            tag, source = said[: before.start()], said[before.end() :].replace("<|python_end|>", "")
        source = source.strip()
        if before is None and not LIST.match(source) and not SINGLE.fullmatch(source):
            return (), said
        return calls_of(source), tag


class PythonBlock(Pythonic, Framed):
    """Calls between two marks, as a list or one a line."""

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        calls = calls_of(cursor.until(self.marks[1]))
        if not calls:
            raise Bad("not_a_call")
        return calls


# Reading ------------------------------------------------------------------------------------------------


def calls_of(source: str) -> list[ToolCall]:
    """Returns the calls of a list of them, of one, or of one a line.

    Raises:
        Bad: It is anything else, or holds what is no literal.
    """
    if len(source) > LONGEST_SOURCE:
        raise Bad("too_large", f"calls written as Python may have {LONGEST_SOURCE:,} characters")
    try:
        tree = ast.parse(_PIECE.sub(_on_one_line, source).strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Bad("bad_form") from error
    calls: list[ToolCall] = []
    for statement in tree.body:
        if not isinstance(statement, ast.Expr):
            raise Bad("not_a_call")
        value = statement.value
        calls += map(_call, value.elts if isinstance(value, ast.List) else [value])
    return calls


def _on_one_line(piece: re.Match[str]) -> str:
    """A text as Python has it: some templates write its line ends as they are."""
    return piece[0] if piece["string"] is None else piece[0].replace("\n", "\\n").replace("\r", "\\r")


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise Bad("not_a_call", "a call must be name(key=value, …), with every argument named")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        value = _value(keyword.value)
        items = {keyword.arg: value} if keyword.arg is not None else value
        if not isinstance(items, dict):
            raise Bad("not_a_call")
        if items.keys() & arguments.keys():
            raise Bad("duplicate_key")
        arguments |= items
    if too_deep(arguments, DEEPEST):
        raise Bad("too_deep")
    check_text(arguments)
    return ToolCall(_dotted(node.func), arguments)


def _dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise Bad("not_a_call")
    return ".".join([node.id, *reversed(names)])


def _value(node: ast.expr) -> Any:
    """The value of a literal; JSON's ``null``, ``true`` and ``false`` are read, too."""
    if isinstance(node, ast.Constant):
        return _scalar(node.value)
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        number = _scalar(node.operand.value)
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        out: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                raise Bad("bad_form", "keys of objects must be texts")
            if key.value in out:
                raise Bad("duplicate_key")
            out[key.value] = _value(value)
        return out
    raise Bad("bad_form", "arguments must be literals: texts, numbers, True, False, None, lists and objects of these")


def _scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise Bad("bad_number")
    if value is None or isinstance(value, str | int | float):
        return value
    raise Bad("bad_form", "arguments must be literals that JSON has, too")
