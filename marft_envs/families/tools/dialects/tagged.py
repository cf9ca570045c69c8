"""Dialects that put every argument into tags of its own: Qwen3-Coder and Qwen3.5, GLM, MiniMax, Seed, DeepSeek V3.2."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from marft_envs.families.tools.dialects import untyped
from marft_envs.families.tools.dialects.base import Bad, Cursor, Framed, Schemas, check_text
from marft_envs.families.tools.types import ToolCall

_KEYS = re.compile(r"[^<>\n\"=]+")


def _checked(call: ToolCall, names: re.Pattern[str]) -> ToolCall:
    for name, pattern in ((call.name, names), *((key, _KEYS) for key in call.arguments)):
        if not pattern.fullmatch(name) or name != name.strip():
            raise ValueError(f"'{name}' cannot be written as a name")
    return call


def _put(arguments: dict[str, Any], key: str, value: Any) -> None:
    if key in arguments:
        raise Bad("duplicate_key")
    arguments[key] = value


class QwenXml(Framed):
    """``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>``."""

    name = "qwen-xml"
    families = "Qwen3-Coder, Qwen3.5, Qwen3.6, Qwen3.8, Nemotron 3"
    form = "<tool_call><function=name><parameter=key>value</parameter></function></tool_call>"
    opens = "<function="
    outer: ClassVar[tuple[str, str]] = ("<tool_call>", "</tool_call>")
    marks: ClassVar[tuple[str, ...]] = ("<tool_call>", "<function=", "</function>", "</tool_call>")
    also = ("<parameter=", "</parameter>")
    keys = _KEYS
    listing = ("# Tools\n\nYou have access to the following functions:\n\n<tools>\n", "\n</tools>")
    _CLOSE = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")
    _CLOSES = (re.compile(r"</parameter>"),)

    def write(self, calls: Sequence[ToolCall], schemas: Schemas | None = None) -> str:
        """Returns the calls, each in its tags."""
        return "\n".join(self._written(_checked(call, self.names), schemas or {}) for call in calls)

    def _written(self, call: ToolCall, schemas: Schemas) -> str:
        lines = [self.outer[0], f"<function={call.name}>"]
        for key, value in call.arguments.items():
            raw = untyped.write(value, untyped.property_of(schemas, call.name, key), ("</parameter>",))
            lines += [f"<parameter={key}>", raw, "</parameter>"]
        return "\n".join([*lines, "</function>", self.outer[1]])

    def _read(self, said: str, schemas: Schemas) -> tuple[Sequence[ToolCall], str]:
        calls: list[ToolCall] = []
        words: list[str] = []
        at, (opening, closing) = 0, self.outer
        while (start := said.find(self.opens, at)) >= 0:
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
        if any(mark in spoken for mark in (closing, "</function>", "</parameter>", "<parameter=")):
            raise Bad("stray_close")
        return calls, spoken

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        calls = []
        while cursor.take("<function="):
            name, arguments = cursor.until(">").strip(), dict[str, Any]()
            if not self.names.fullmatch(name):
                raise Bad("not_a_call")
            while cursor.take("<parameter="):
                key = cursor.until(">").strip()
                close = self._CLOSE.search(cursor.text, cursor.at)
                if close is None:
                    raise Bad("unclosed")
                raw, cursor.at = cursor.text[cursor.at : close.start()], close.end()
                raw = raw.removeprefix("\n").removesuffix("\n")
                _put(arguments, key, untyped.read(raw, untyped.property_of(schemas, name, key)))
            cursor.need("</function>")
            calls.append(ToolCall(name, arguments))
        return calls


class SeedXml(QwenXml):
    """The same within ``<seed:tool_call>``."""

    name = "seed"
    families = "Seed-OSS"
    form = "<seed:tool_call><function=name><parameter=key>value</parameter></function></seed:tool_call>"
    outer = ("<seed:tool_call>", "</seed:tool_call>")
    marks = ("<seed:tool_call>", "<function=", "</function>", "</seed:tool_call>")


class Glm(Framed):
    """``<tool_call>name``, then ``<arg_key>key</arg_key><arg_value>value</arg_value>`` for each argument."""

    name = "glm"
    families = "GLM-4.5, GLM-4.6"
    form = "<tool_call>name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call>".replace("\n", "")
    opens = "<tool_call>"
    marks = ("<tool_call>", "</tool_call>")
    also = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    closes = ("</tool_call>", "<arg_key>", "</arg_value>")
    keys = _KEYS
    listing = QwenXml.listing
    _NAME = re.compile(r"\s*([^\s<>{}\[\]\"]+)\s*(?=<arg_key>|</tool_call>)")
    _CLOSE = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))")

    def write(self, calls: Sequence[ToolCall], schemas: Schemas | None = None) -> str:
        """Returns the calls, each in its tags."""
        return "\n".join(self._written(_checked(call, self.names), schemas or {}) for call in calls)

    def _written(self, call: ToolCall, schemas: Schemas) -> str:
        lines = [f"<tool_call>{call.name}"]
        for key, value in call.arguments.items():
            raw = untyped.write(value, untyped.property_of(schemas, call.name, key), ("</arg_value>",))
            lines += [f"<arg_key>{key}</arg_key>", f"<arg_value>{raw}</arg_value>"]
        return "\n".join([*lines, "</tool_call>"])

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        head = cursor.match(self._NAME)
        if head is None:
            raise Bad("bad_form" if "</tool_call>" in cursor.text[cursor.at :] else "unclosed")
        arguments: dict[str, Any] = {}
        while cursor.take("<arg_key>"):
            key = cursor.until("</arg_key>").strip()
            cursor.need("<arg_value>")
            close = self._CLOSE.search(cursor.text, cursor.at)
            if close is None:
                raise Bad("unclosed")
            raw, cursor.at = cursor.text[cursor.at : close.start()], close.end()
            _put(arguments, key, untyped.read(raw, untyped.property_of(schemas, head[1], key)))
        cursor.need("</tool_call>")
        return (ToolCall(head[1], arguments),)


class MiniMax(Framed):
    """``<minimax:tool_call><invoke name="…"><parameter name="…">value</parameter></invoke></minimax:tool_call>``."""

    name = "minimax"
    families = "MiniMax M2"
    prefix: ClassVar[str] = ""
    outer_name: ClassVar[str] = "minimax:tool_call"
    form = '<minimax:tool_call><invoke name="…"><parameter name="…">value</parameter></invoke></minimax:tool_call>'
    opens = "<minimax:tool_call>"
    marks: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>", '<invoke name="', "</invoke>", "</minimax:tool_call>")
    also: ClassVar[tuple[str, ...]] = ('<parameter name="', "</parameter>")
    keys = _KEYS
    typed: ClassVar[bool] = False
    """Whether an attribute says that an argument is text."""
    listing = ("<tools>\n", "\n</tools>")

    def write(self, calls: Sequence[ToolCall], schemas: Schemas | None = None) -> str:
        """Returns the calls in one block."""
        inside = "\n".join(self._written(_checked(call, self.names), schemas or {}) for call in calls)
        return f"{self.opens}\n{inside}\n</{self.prefix}{self.outer_name}>"

    def _written(self, call: ToolCall, schemas: Schemas) -> str:
        p, lines = self.prefix, [f'<{self.prefix}invoke name="{call.name}">']
        for key, value in call.arguments.items():
            schema = untyped.property_of(schemas, call.name, key)
            kind = ""
            if self.typed:
                kind = f' string="{"true" if isinstance(value, str) else "false"}"'
                schema = {"type": untyped.kind_of(value)}
            raw = untyped.write(value, schema, (f"</{p}parameter>",))
            lines.append(f'<{p}parameter name="{key}"{kind}>{raw}</{p}parameter>')
        return "\n".join([*lines, f"</{p}invoke>"])

    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        p, calls = self.prefix, list[ToolCall]()
        end = re.compile(rf"</{p}parameter>(?=\s*(?:<{p}parameter name=|</{p}invoke>))")
        kind_of = re.compile(r'\s+string="(true|false)"')
        while cursor.take(f'<{p}invoke name="'):
            name, arguments = cursor.until('"').strip(), dict[str, Any]()
            cursor.need(">")
            while cursor.take(f'<{p}parameter name="'):
                key = cursor.until('"').strip()
                kind = cursor.match(kind_of)
                cursor.need(">")
                close = end.search(cursor.text, cursor.at)
                if close is None:
                    raise Bad("unclosed")
                raw, cursor.at = cursor.text[cursor.at : close.start()], close.end()
                schema = untyped.property_of(schemas, name, key)
                if kind is not None:
                    schema = {"type": "string"} if kind[1] == "true" else schema
                _put(arguments, key, untyped.read(raw, schema))
            cursor.need(f"</{p}invoke>")
            calls.append(ToolCall(name, arguments))
        if not calls:
            raise Bad("not_a_call")
        cursor.need(f"</{p}{self.outer_name}>")
        return calls


class DeepSeekV32(MiniMax):
    """The same with DeepSeek's mark before each tag, and an attribute that says what is text."""

    name = "deepseek-v3.2"
    families = "DeepSeek V3.2"
    prefix, outer_name, typed = "｜DSML｜", "function_calls", True
    form = (
        '<｜DSML｜function_calls><｜DSML｜invoke name="…"><｜DSML｜parameter name="…" string="true">value'
        "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>"
    )
    opens = "<｜DSML｜function_calls>"
    marks = ("<｜DSML｜function_calls>", '<｜DSML｜invoke name="', "</｜DSML｜invoke>", "</｜DSML｜function_calls>")
    also = ('<｜DSML｜parameter name="', "</｜DSML｜parameter>")


class Muse(MiniMax):
    """The same with ``atem:``, behind a header that names the tool."""

    name = "muse"
    families = "Muse Glimmer"
    prefix, outer_name = "atem:", "function_calls"
    form = (
        '<atem:function_calls><atem:invoke name="…"><atem:parameter name="…">value</atem:parameter></atem:invoke>'
        "</atem:function_calls>"
    )
    opens = "<atem:function_calls>"
    marks = ("<atem:function_calls>", '<atem:invoke name="', "</atem:invoke>", "</atem:function_calls>")
    also = ('<atem:parameter name="', "</atem:parameter>", "<|start|>", "<|message|>", "<|eom|>")
    ends = ("<|eom|>",)
    frames = True
    _HEADER = re.compile(r"(?:<\|eom\|>|<\|eot\|>)?(?:<\|start\|>assistant)?[ ]?(?:to=[\w.-]+)?<\|message\|>")

    def said(self, text: str) -> str:
        """Returns a reply without headers."""
        said = self._HEADER.sub("", super().said(text)).removesuffix("<|eom|>")
        check_text(said)
        return said
