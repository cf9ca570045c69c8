"""Dialects that put JSON between marks of their own: Llama, Mistral, DeepSeek, Kimi, Cohere, Nemotron, Phi, Granite."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from marft_envs.families.tools.dialects.base import (
    Bad,
    Cursor,
    Dialect,
    Framed,
    Schemas,
    arguments_of,
    object_of,
    text_of,
    unwrapped,
)
from marft_envs.families.tools.types import ToolCall


class LlamaJson(Dialect):
    """``{"name": …, "parameters": {…}}``, the whole reply or behind ``<|python_tag|>``; several stand behind ``;``."""

    name = "llama-json"
    families = "Llama 3.1, Llama 3.2, Llama 3.3, xLAM"
    form = '{"name": "…", "parameters": {…}} as the whole reply'
    marks = ('"parameters"',)
    also = ("<|python_tag|>",)
    ends = ("<|eom_id|>",)
    alone = True
    names = re.compile(r"(?s:.+)")

    def write(self, calls: Sequence[ToolCall], schemas: Schemas | None = None) -> str:
        """Returns the calls as JSON objects."""
        return "; ".join(text_of(call, "parameters") for call in calls)

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


class MarkedJson(Framed):
    """A mark, a JSON list of calls (or one call), and perhaps a mark behind it."""

    inner: tuple[str, str] = ("name", "arguments")
    """How a call's two members are called."""
    end: str = ""
    """The mark behind the list; "": none."""
    needs_end: bool = True

    def write(self, calls: Sequence[ToolCall], schemas: Schemas | None = None) -> str:
        """Returns the calls as a list between the marks."""
        items = [self._item(i, call) for i, call in enumerate(calls)]
        return self.opens + json.dumps(items, ensure_ascii=False) + self.end

    def _item(self, number: int, call: ToolCall) -> dict[str, Any]:
        return {self.inner[0]: call.name, self.inner[1]: dict(call.arguments)}

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        value = cursor.json()
        if self.end and not cursor.take(self.end) and self.needs_end:
            raise Bad("unclosed")
        return unwrapped(self._plain(value))

    def _plain(self, value: Any) -> Any:
        """The value with the usual names of members."""
        return value


class MistralV3(MarkedJson):
    """``[TOOL_CALLS] [{"name": …, "arguments": {…}, "id": "…"}]``."""

    name = "mistral-v3"
    families = "Mistral 7B v0.3, Mixtral, Nemo, Mistral Large 2, Mistral Small 3"
    form = '[TOOL_CALLS] [{"name": "…", "arguments": {…}}]'
    opens = "[TOOL_CALLS]"
    marks = ("[TOOL_CALLS]", '"arguments"')
    closes = ("[ARGS]",)
    names = LlamaJson.names
    listing = ("[AVAILABLE_TOOLS]\n", "\n[/AVAILABLE_TOOLS]")

    def _item(self, number: int, call: ToolCall) -> dict[str, Any]:
        return {**super()._item(number, call), "id": f"call{number:05d}"}

    def write(self, calls: Sequence[ToolCall], schemas: Schemas | None = None) -> str:
        """Returns the calls as a list behind the mark."""
        return super().write(calls).replace("[TOOL_CALLS]", "[TOOL_CALLS] ", 1)


class MistralV13(Framed):
    """``[TOOL_CALLS]name[ARGS]{…}``, the mark before each call."""

    name = "mistral-v13"
    families = "Magistral 2507, Devstral, Mistral Medium 3.1"
    form = "[TOOL_CALLS]name[ARGS]{…}"
    opens = "[TOOL_CALLS]"
    marks: ClassVar[tuple[str, ...]] = ("[TOOL_CALLS]", "[ARGS]")
    also: ClassVar[tuple[str, ...]] = ("[CALL_ID]",)
    closes = ("[ARGS]",)
    listing = MistralV3.listing
    _id = ""
    _HEAD = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\]\s*)?(?=\{)")

    def write(self, calls: Sequence[ToolCall], schemas: Schemas | None = None) -> str:
        """Returns the calls, each behind the mark."""
        ids = (self._id.format(i) for i in range(len(calls)))
        return "".join(
            f"[TOOL_CALLS]{call.name}{call_id}[ARGS]{arguments_of(call)}"
            for call, call_id in zip(calls, ids, strict=True)
        )

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        head = cursor.match(self._HEAD)
        if head is None:
            raise Bad("bad_form")
        return (ToolCall(head[1], object_of(cursor.json())),)


class MistralV11(MistralV13):
    """``[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}``."""

    name = "mistral-v11"
    families = "Mistral Small 3.2, Mistral Medium 3"
    form = "[TOOL_CALLS]name[CALL_ID]call00000[ARGS]{…}"
    marks = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
    also = ()
    _id = "[CALL_ID]call{:05d}"


class Cohere(MarkedJson):
    """``<|START_ACTION|>[{"tool_call_id": "0", "tool_name": …, "parameters": {…}}]<|END_ACTION|>``."""

    name = "cohere"
    families = "Command R7B, Command A"
    form = '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "…", "parameters": {…}}]<|END_ACTION|>'
    opens, end, inner = "<|START_ACTION|>", "<|END_ACTION|>", ("tool_name", "parameters")
    marks = ("<|START_ACTION|>", "<|END_ACTION|>")
    closes = ("<|END_ACTION|>",)
    names = LlamaJson.names

    def _item(self, number: int, call: ToolCall) -> dict[str, Any]:
        return {"tool_call_id": str(number), **super()._item(number, call)}

    def _plain(self, value: Any) -> Any:
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, dict) and item.keys() <= {"tool_call_id", *self.inner} for item in items):
            raise Bad("not_a_call")
        return [{"name": item.get("tool_name"), "arguments": item.get("parameters")} for item in items]


class Nemotron(MarkedJson):
    """``<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>``."""

    name = "nemotron"
    families = "Nemotron Nano v2, Llama 3.3 Nemotron"
    form = '<TOOLCALL>[{"name": "…", "arguments": {…}}]</TOOLCALL>'
    opens, end = "<TOOLCALL>", "</TOOLCALL>"
    marks = ("<TOOLCALL>", "</TOOLCALL>")
    closes = ("</TOOLCALL>",)
    names = LlamaJson.names
    listing = ("<AVAILABLE_TOOLS>\n", "\n</AVAILABLE_TOOLS>")


class Phi4(MarkedJson):
    """``<|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>``; Granite leaves the second mark out."""

    name = "phi4"
    families = "Phi-4-mini, Granite 3"
    form = '<|tool_call|>[{"name": "…", "arguments": {…}}]<|/tool_call|>'
    opens, end, needs_end = "<|tool_call|>", "<|/tool_call|>", False
    marks = ("<|tool_call|>", '"arguments"')
    also = ("<|/tool_call|>",)
    closes = ("<|/tool_call|>",)
    names = LlamaJson.names
    listing = ("<|tool|>\n", "\n<|/tool|>")


class DeepSeekV31(Framed):
    """``<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`` between marks of the section."""

    name = "deepseek-v3.1"
    families = "DeepSeek V3.1"
    form = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    opens = "<｜tool▁calls▁begin｜>"
    marks: ClassVar[tuple[str, ...]] = (
        "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
    )  # fmt: skip
    also: ClassVar[tuple[str, ...]] = ("<｜tool▁calls▁end｜>",)
    closes = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
    _call = "{name}<｜tool▁sep｜>{arguments}"
    _FENCE = re.compile(r"```(?:json)?\s*")

    def write(self, calls: Sequence[ToolCall], schemas: Schemas | None = None) -> str:
        """Returns the calls between the marks of the section."""
        items = (self._call.format(name=call.name, arguments=arguments_of(call)) for call in calls)
        inside = "".join(f"<｜tool▁call▁begin｜>{item}<｜tool▁call▁end｜>" for item in items)
        return f"<｜tool▁calls▁begin｜>{inside}<｜tool▁calls▁end｜>"

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        calls = []
        while cursor.take("<｜tool▁call▁begin｜>"):
            name = cursor.until("<｜tool▁sep｜>").strip()
            cursor.skip()
            fenced = not cursor.sees("{")
            if fenced:
                name = cursor.until("\n").strip()
                if cursor.match(self._FENCE) is None:
                    raise Bad("bad_form")
            arguments = object_of(cursor.json())
            if fenced:
                cursor.need("```")
            cursor.need("<｜tool▁call▁end｜>")
            if not self.names.fullmatch(name):
                raise Bad("not_a_call")
            calls.append(ToolCall(name, arguments))
        if not calls:
            raise Bad("bad_form" if "<｜tool▁call▁end｜>" in cursor.text else "unclosed")
        cursor.take("<｜tool▁calls▁end｜>")  # some templates leave it out
        return calls


class DeepSeekV3(DeepSeekV31):
    """``function<｜tool▁sep｜>name`` and the arguments in a fenced block."""

    name = "deepseek-v3"
    families = "DeepSeek V3, DeepSeek R1 and what was distilled from it"
    form = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name, the arguments as a ```json block,"
        " <｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )
    marks = (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "function<｜tool▁sep｜>",
        "```json",
        "<｜tool▁call▁end｜>",
    )
    also = ("<｜tool▁calls▁end｜>", "<｜tool▁sep｜>")
    _call = "function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"


class KimiK2(Framed):
    """``<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`` in a section."""

    name = "kimi-k2"
    families = "Kimi K2"
    form = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )
    opens = "<|tool_calls_section_begin|>"
    marks = (
        "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    )  # fmt: skip
    closes = marks[1:]
    _ID = re.compile(r"\s*(?:functions\.)?(\S+?)(?::\d+)?\s*")

    def write(self, calls: Sequence[ToolCall], schemas: Schemas | None = None) -> str:
        """Returns the calls between the marks of the section."""
        inside = "".join(
            f"<|tool_call_begin|>functions.{call.name}:{i}<|tool_call_argument_begin|>{arguments_of(call)}"
            "<|tool_call_end|>"
            for i, call in enumerate(calls)
        )
        return f"<|tool_calls_section_begin|>{inside}<|tool_calls_section_end|>"

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        calls = []
        while cursor.take("<|tool_call_begin|>"):
            head = self._ID.fullmatch(cursor.until("<|tool_call_argument_begin|>"))
            if head is None:
                raise Bad("not_a_call")
            calls.append(ToolCall(head[1], object_of(cursor.json())))
            cursor.need("<|tool_call_end|>")
        if not calls and cursor.sees("<|tool_calls_section_end|>"):
            raise Bad("not_a_call")
        cursor.need("<|tool_calls_section_end|>")
        return calls
