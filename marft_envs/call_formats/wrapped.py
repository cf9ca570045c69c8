"""Formats that put JSON between marks of their own: Llama, Mistral, DeepSeek, Kimi, Cohere, Nemotron, Phi, Granite."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from marft_envs.call_formats.base import NAME, Bad, CallFormat, Cursor, Framed, Schemas, object_of, unwrapped
from marft_envs.call_formats.call import ToolCall

_MISTRAL = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_FENCE = re.compile(r"```(?:json)?\s*")
_KIMI = re.compile(r"\s*(?:functions\.)?(\S+?)(?::\d+)?\s*")


class LlamaJson(CallFormat):
    """``{"name": …, "parameters": {…}}``, the whole reply or behind ``<|python_tag|>``; several stand behind ``;``."""

    def _read(self, said: str, schemas: Schemas) -> tuple[Sequence[ToolCall], str]:
        before, tag, behind = said.rpartition("<|python_tag|>")
        text = (behind if tag else said).strip()
        if not tag and (text[:1] not in ("{", "[") or ('"parameters"' not in text and '"arguments"' not in text)):
            return (), said
        calls: list[ToolCall] = []
        cursor = Cursor(text)
        while cursor.at < len(text):
            calls += unwrapped(cursor.json())
            cursor.take(";")
            cursor.skip()
        if "<|python_tag|>" in before or not calls:
            raise Bad("bad_form")
        return calls, before


class JsonList(Framed):
    """A mark, a JSON list of calls (or one call), and perhaps a mark behind it.

    The mark behind may be left out where ``marks`` does not have it.
    """

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        value, end = cursor.json(), self.around[2].removeprefix("]")
        if end and not cursor.take(end) and end in self.marks:
            raise Bad("unclosed")
        return unwrapped(self._plain(value))

    def _plain(self, value: Any) -> Any:
        """The value with the usual names of members."""
        return value


class Cohere(JsonList):
    """``<|START_ACTION|>[{"tool_call_id": "0", "tool_name": …, "parameters": {…}}]<|END_ACTION|>``."""

    def _plain(self, value: Any) -> Any:
        items, members = value if isinstance(value, list) else [value], {"tool_call_id", "tool_name", "parameters"}
        if not all(isinstance(item, dict) and item.keys() <= members for item in items):
            raise Bad("not_a_call")
        return [{"name": item.get("tool_name"), "arguments": item.get("parameters")} for item in items]


class Mistral(Framed):
    """``[TOOL_CALLS]name[ARGS]{…}``, the mark before each call; an id may stand behind the name."""

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        head = cursor.match(_MISTRAL)
        if head is None:
            raise Bad("bad_form")
        return (ToolCall(head[1], object_of(cursor.json())),)


class DeepSeek(Framed):
    """``<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`` between marks of the section.

    Or ``function<｜tool▁sep｜>name``, and the arguments in a fenced block.
    """

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        calls = []
        while cursor.take("<｜tool▁call▁begin｜>"):
            name = cursor.until("<｜tool▁sep｜>").strip()
            cursor.skip()
            fenced = not cursor.sees("{")
            if fenced:
                name = cursor.until("\n").strip()
                if cursor.match(_FENCE) is None:
                    raise Bad("bad_form")
            arguments = object_of(cursor.json())
            if fenced:
                cursor.need("```")
            cursor.need("<｜tool▁call▁end｜>")
            if not NAME.fullmatch(name):
                raise Bad("not_a_call")
            calls.append(ToolCall(name, arguments))
        if not calls:
            raise Bad("bad_form" if "<｜tool▁call▁end｜>" in cursor.text else "unclosed")
        cursor.take("<｜tool▁calls▁end｜>")  # some templates leave it out
        return calls


class Kimi(Framed):
    """``<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`` in a section."""

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        calls = []
        while cursor.take("<|tool_call_begin|>"):
            head = _KIMI.fullmatch(cursor.until("<|tool_call_argument_begin|>"))
            if head is None:
                raise Bad("not_a_call")
            calls.append(ToolCall(head[1], object_of(cursor.json())))
            cursor.need("<|tool_call_end|>")
        if not calls and cursor.sees("<|tool_calls_section_end|>"):
            raise Bad("not_a_call")
        cursor.need("<|tool_calls_section_end|>")
        return calls
