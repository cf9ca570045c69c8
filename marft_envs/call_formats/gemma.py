"""Gemma 4: objects without quotes around keys, and a mark instead of quotes around texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from marft_envs.call_formats.base import DEEPEST, Bad, Cursor, Framed, Schemas, check_text, decoded
from marft_envs.call_formats.call import ToolCall

_QUOTE = '<|"|>'
_NAME = re.compile(r"\s*call:([^\s{}<>]+?)\s*(?=\{)")
_PLAIN_KEY = re.compile(r"[^\s:{}\[\],<>\"]+")
_KEY = re.compile(rf"\s*({_PLAIN_KEY.pattern})\s*:")
_SCALAR = re.compile(r"\s*([^\s,{}\[\]<>]+)\s*")
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


class Gemma4(Framed):
    """``<|tool_call>call:name{key:<|"|>text<|"|>,other:3}<tool_call|>``."""

    def _arguments(self, call: ToolCall, schemas: Schemas) -> str:
        return _written(dict(call.arguments))

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Returns tools as declarations."""
        return "".join(
            f"<|tool>declaration:{tool['name']}{_written({k: v for k, v in tool.items() if k != 'name'})}<tool|>"
            for tool in (tool["function"] for tool in tools)
        )

    def said(self, text: str) -> str:
        """Returns a reply without thoughts, and without the mark of the result that ends a call."""
        return super().said(text).removesuffix("<|tool_response>")

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        name = cursor.match(_NAME)
        if name is None:
            raise Bad("bad_form" if "<tool_call|>" in cursor.text[cursor.at :] else "unclosed")
        arguments = _value(cursor, DEEPEST)
        cursor.need("<tool_call|>")
        check_text(arguments)
        return (ToolCall(name[1], arguments),)


def _written(value: Any) -> str:
    if isinstance(value, str):
        if _QUOTE in value:
            raise ValueError(f"a text with {_QUOTE} cannot be written")
        return f"{_QUOTE}{value}{_QUOTE}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(key)}:{_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else _written(key)


def _value(cursor: Cursor, levels: int) -> Any:
    if levels < 0:
        raise Bad("too_deep")
    if cursor.take(_QUOTE):
        return cursor.until(_QUOTE)
    if cursor.take("{"):
        return _object(cursor, levels - 1)
    if cursor.take("["):
        return _list(cursor, levels - 1)
    word = cursor.match(_SCALAR)
    if word is None:
        raise Bad("bad_form" if cursor.at < len(cursor.text) else "unclosed")
    if word[1] in _WORDS:
        return _WORDS[word[1]]
    value, end = decoded(word[1], 0)
    if end < len(word[1]) or isinstance(value, str):
        raise Bad("bad_form")
    return value


def _object(cursor: Cursor, levels: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    while not cursor.take("}"):
        if out:
            cursor.need(",")
        if cursor.take(_QUOTE):
            key = cursor.until(_QUOTE)
            cursor.need(":")
        elif (match := cursor.match(_KEY)) is not None:
            key = match[1]
        else:
            raise Bad("bad_form" if cursor.at < len(cursor.text) else "unclosed")
        if key in out:
            raise Bad("duplicate_key")
        out[key] = _value(cursor, levels)
    return out


def _list(cursor: Cursor, levels: int) -> list[Any]:
    out: list[Any] = []
    while not cursor.take("]"):
        if out:
            cursor.need(",")
        out.append(_value(cursor, levels))
    return out
