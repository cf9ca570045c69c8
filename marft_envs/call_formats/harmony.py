"""Harmony, the format of gpt-oss: messages on channels, and calls as messages to functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft_envs.call_formats.base import NAME, Bad, CallFormat, Schemas, object_of
from marft_envs.call_formats.call import ToolCall
from marft_envs.core import thoughts

_TO = re.compile(r"\bto=functions\.([^\s<]+)")
_ADDRESS = re.compile(r"\bto=\S+|^assistant\b")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_TYPES = {"integer": "number", "null": "null", "object": "object", "array": "any[]"}


@dataclass(eq=False)
class Harmony(CallFormat):
    """``<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>``.

    A reply goes on from ``<|start|>assistant``. The analysis channel is thought; final and commentary are words.
    """

    also: tuple[str, ...] = thoughts.HARMONY

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Returns tools as TypeScript, as the developer message has them."""
        lines = []
        for tool in (tool["function"] for tool in tools):
            lines += [f"// {line}" for line in str(tool.get("description", "")).splitlines()]
            lines.append(f"type {tool['name']} = ({_parameters(tool.get('parameters', {}))}) => any;\n")
        return "# Tools\n\n## functions\n\nnamespace functions {\n\n" + "\n".join(lines) + "\n} // namespace functions"

    def _arguments(self, call: ToolCall, schemas: Schemas) -> str:
        if not NAME.fullmatch(call.name):
            raise ValueError(f"'{call.name}' cannot be written as a recipient")
        return super()._arguments(call, schemas).replace("<|", "\\u003c|")  # no mark that would end the message

    def _read(self, said: str, schemas: Schemas) -> tuple[Sequence[ToolCall], str]:
        calls: list[ToolCall] = []
        words: list[str] = []
        for header, content, end in thoughts.harmony(said):
            to, channel = _TO.search(header), _CHANNEL.search(header)
            words.append(_ADDRESS.sub("", header.partition("<|channel|>")[0]))
            if to is not None:
                if end.startswith("<|end|>"):
                    raise Bad("bad_form", "a call must end with <|call|>")
                if not content.strip():
                    raise Bad("unclosed")
                calls.append(ToolCall(to[1], object_of(content)))
            elif channel is not None and channel[1] not in ("final", "commentary"):
                raise Bad("bad_form", "the channels are analysis, commentary and final")
            elif "to=functions." in content or ("<|channel|>" in content and "to=" in content):
                raise Bad("unclosed")
            else:
                words.append(content)
        return calls, "\n\n".join(part.strip() for part in words if part.strip())


def _parameters(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    properties = schema.get("properties", {})
    if not properties:
        return ""
    fields = (
        f"{name}{'' if name in required else '?'}: {_type(value if isinstance(value, Mapping) else {})},"
        for name, value in properties.items()
    )
    return "_: {\n" + "\n".join(fields) + "\n}"


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type")
    if kind == "array" and isinstance(items := schema.get("items"), Mapping):
        return f"{_type(items)}[]"
    return _TYPES.get(kind, kind) if isinstance(kind, str) else "any"
