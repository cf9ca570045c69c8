"""Formats that put every argument into tags of its own: Qwen3-Coder and Qwen3.5, GLM, MiniMax, Seed, DeepSeek V3.2.

Values stand between tags without quotes: what is text and what is a number, the tool's schema says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft_envs.call_formats.base import NAME, Bad, Cursor, Framed, Schemas, check_text, decoded
from marft_envs.call_formats.call import ToolCall

_KEYS = re.compile(r"[^<>\n\"=]+")
_GLM = re.compile(r"\s*([^\s<>{}\[\]\"]+)\s*(?=<arg_key>|</tool_call>)")
_IS_TEXT = re.compile(r'\s+string="(true|false)"')
_MUSE = re.compile(r"(?:<\|eom\|>|<\|eot\|>)?(?:<\|start\|>assistant)?[ ]?(?:to=[\w.-]+)?<\|message\|>")
_PYTHON = {"True": True, "False": False, "None": None}
_ESCAPED = re.compile(r"\\u00")


@dataclass(eq=False)
class Tagged(Framed):
    """Arguments in tags, as they are written and read; a line each."""

    argument: str = ""
    """An argument as it is written, in place of ``%(key)s``, ``%(value)s`` and ``%(is_text)s`` what they say."""
    tags: tuple[str, str, str, str] = ("", "", "", "")
    """What stands before and behind a key, and before and behind a value."""

    @property
    def end(self) -> str:
        """The tag that ends a call."""
        return self.call.partition("%(arguments)s")[2].partition("\n")[0]

    def _arguments(self, call: ToolCall, schemas: Schemas) -> str:
        for name, pattern in ((call.name, NAME), *((key, _KEYS) for key in call.arguments)):
            if not pattern.fullmatch(name) or name != name.strip():
                raise ValueError(f"'{name}' cannot be written as a name")
        lines = []
        for key, value in call.arguments.items():
            known = property_of(schemas, call.name, key)
            raw = raw_of(value, {"type": kind_of(value)} if "%(is_text)s" in self.argument else known, self.tags[3])
            is_text = "true" if isinstance(value, str) else "false"
            lines.append(self.argument % {"key": key, "value": raw, "is_text": is_text})
        return "".join(f"{line}\n" for line in lines)

    def _taken(self, cursor: Cursor, name: str, schemas: Schemas) -> dict[str, Any]:
        """Reads the arguments that stand here, and the end of the call."""
        arguments: dict[str, Any] = {}
        before_key, behind_key, before_value, behind_value = self.tags
        close = re.compile(rf"{behind_value}(?=\s*(?:{before_key.rstrip(chr(34))}|{self.end}))")
        while cursor.take(before_key):
            key = cursor.until(behind_key).strip()
            schema = self._typed(cursor, property_of(schemas, name, key))
            if before_value:
                cursor.need(before_value)
            end = close.search(cursor.text, cursor.at)
            if end is None:
                raise Bad("unclosed")
            raw, cursor.at = cursor.text[cursor.at : end.start()], end.end()
            value = value_of(self._raw(raw), schema)
            if key in arguments:
                raise Bad("duplicate_key")
            arguments[key] = value
        cursor.need(self.end)
        return arguments

    def _typed(self, cursor: Cursor, schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The schema of the value that follows."""
        return schema

    def _raw(self, raw: str) -> str:
        """What stands between a value's tags, without what is written around it."""
        return raw


class QwenXml(Tagged):
    """``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>``."""

    def _read(self, said: str, schemas: Schemas) -> tuple[Sequence[ToolCall], str]:
        calls: list[ToolCall] = []
        words: list[str] = []
        at, opening, closing = 0, self.marks[0], self.marks[-1]
        while (start := said.find("<function=", at)) >= 0:
            before = said[at:start].rstrip()
            framed = before.endswith(opening)  # models leave it out now and then
            words.append(before[: -len(opening)] if framed else said[at:start])
            cursor = Cursor(said, start)
            calls += self._body(cursor, schemas)
            if framed:
                cursor.need(closing)
            at = cursor.at
        spoken = "".join([*words, said[at:]])
        if opening in spoken:
            raise Bad("bad_form" if closing in spoken else "unclosed")
        if any(mark in spoken for mark in self.closes or ()):
            raise Bad("stray_close")
        return calls, spoken

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        calls = []
        while cursor.take("<function="):
            name = cursor.until(">").strip()
            if not NAME.fullmatch(name):
                raise Bad("not_a_call")
            calls.append(ToolCall(name, self._taken(cursor, name, schemas)))
        return calls

    def _raw(self, raw: str) -> str:
        return raw.removeprefix("\n").removesuffix("\n")


class Glm(Tagged):
    """``<tool_call>name``, then ``<arg_key>key</arg_key><arg_value>value</arg_value>`` for each argument."""

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        head = cursor.match(_GLM)
        if head is None:
            raise Bad("bad_form" if self.end in cursor.text[cursor.at :] else "unclosed")
        return (ToolCall(head[1], self._taken(cursor, head[1], schemas)),)


class Invoked(Tagged):
    """``<invoke name="…"><parameter name="…">value</parameter></invoke>`` in a section, which may say what is text."""

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        calls = []
        while cursor.take(self.marks[1]):
            name = cursor.until('"').strip()
            cursor.need(">")
            calls.append(ToolCall(name, self._taken(cursor, name, schemas)))
        if not calls:
            raise Bad("not_a_call")
        cursor.need(self.marks[-1])
        return calls

    def _typed(self, cursor: Cursor, schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        is_text = cursor.match(_IS_TEXT)
        return {"type": "string"} if is_text is not None and is_text[1] == "true" else schema


class Muse(Invoked):
    """The same behind a header that names the tool."""

    def said(self, text: str) -> str:
        """Returns a reply without headers."""
        said = _MUSE.sub("", super().said(text)).removesuffix("<|eom|>")
        check_text(said)
        return said


# Values between tags ------------------------------------------------------------------------------------


def value_of(raw: str, schema: Mapping[str, Any] | None) -> Any:
    r"""Returns the value that a raw text stands for.

    Without a schema, what is JSON is its value, and all else is text. Where a schema allows text alone, it is text, but
    for a JSON string with an escape ``\u00…``: so a text can be written that would be taken for something else.

    Raises:
        Bad: No text is allowed, and it is JSON that nothing can be called with.
    """
    inner = raw.strip()
    quoted = inner[:1] == '"' and _ESCAPED.search(inner) is not None
    kinds = None if schema is None or quoted else kinds_of(schema)
    if kinds is not None and inner in _PYTHON and kind_of(_PYTHON[inner]) in kinds:
        return _PYTHON[inner]
    if kinds != {"string"}:
        try:
            value, end = decoded(inner, 0)
        except Bad as bad:
            if kinds is not None and "string" not in kinds and bad.error != "bad_json":
                raise
        else:
            fits = kinds is None or (kind_of(value) in kinds and not isinstance(value, str))
            if end == len(inner) and fits:
                return value
    check_text(raw)
    return raw


def raw_of(value: Any, schema: Mapping[str, Any] | None, end: str) -> str:
    """Returns a value as a raw text that :func:`value_of` reads back, without the mark that would end it."""
    raw = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
    if end not in raw and _stands_for(raw, schema, value):
        return raw
    quoted = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
    if isinstance(value, str) and value and not _ESCAPED.search(quoted):
        first = format(ord(value[0]), "04x")
        quoted = f'"\\u{first}{json.dumps(value[1:], ensure_ascii=False)[1:]}'
    return quoted


def _stands_for(raw: str, schema: Mapping[str, Any] | None, value: Any) -> bool:
    """Whether a raw text is read as this very value, with 1, 1.0 and True apart."""
    try:
        read = value_of(raw, schema)
    except Bad:
        return False
    return bool(read == value) and repr(read) == repr(value)


def kind_of(value: Any) -> str:
    """Returns the JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def kinds_of(schema: Mapping[str, Any]) -> set[str] | None:
    """Returns the JSON types that a schema allows (an integer is a number); None: it does not say."""
    if "enum" in schema or "const" in schema:
        return {kind_of(value) for value in schema.get("enum", [schema.get("const")])}
    if isinstance(kinds := schema.get("type"), str | list):
        return {"number" if kind == "integer" else kind for kind in ([kinds] if isinstance(kinds, str) else kinds)}
    out: set[str] = set()
    for option in schema.get("anyOf") or schema.get("oneOf") or ():
        below = kinds_of(option) if isinstance(option, Mapping) else None
        if below is None:
            return None
        out |= below
    return out or None


def property_of(schemas: Mapping[str, Mapping[str, Any]], tool: str, key: str) -> Mapping[str, Any] | None:
    """Returns the schema of one argument; None where nothing is known of it."""
    schema = schemas.get(tool, {}).get("properties", {}).get(key)
    return schema if isinstance(schema, Mapping) else None
