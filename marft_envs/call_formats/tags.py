"""Search tags, as Search-R1 and its kin have them: a tag with the tool's name around a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from marft_envs.call_formats.base import Bad, CallFormat, Schemas, check_text, decoded
from marft_envs.call_formats.call import ToolCall

SEARCH = "search"
"""The tool that is known without a schema; it takes a ``query``."""
_TOOL = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)


class Tags(CallFormat):
    """``<search>words</search>``: the tool's name as a tag around its only text, or around its arguments as JSON.

    Results come back as ``<information>…</information>``. Only tools that the agent holds are tags; ``search`` always.
    """

    def _arguments(self, call: ToolCall, schemas: Schemas) -> str:
        if (call.name != SEARCH and call.name not in schemas) or not _TOOL.fullmatch(call.name):
            raise ValueError(f"'{call.name}' is no tag")  # its tag would be read as words
        text = call.arguments.get(_only(schemas.get(call.name))) if len(call.arguments) == 1 else None
        if isinstance(text, str) and text and text == text.strip() and text[0] != "{" and "<" not in text:
            return text
        return super()._arguments(call, schemas).replace("<", "\\u003c") if call.arguments else ""

    def result(self, line: str) -> str:
        """Returns the line between the tags of results, whose end it cannot hold."""
        return f"<information>{line.replace('</information>', '< /information>')}</information>"

    def restored(self, text: str) -> str:
        """Returns the text: no template and no environment breaks these tags up."""
        return text

    def _read(self, said: str, schemas: Schemas) -> tuple[Sequence[ToolCall], str]:
        opening = re.compile(f"<({'|'.join(map(re.escape, sorted({SEARCH, *schemas}, key=len, reverse=True)))})>")
        calls: list[ToolCall] = []
        words: list[str] = []
        at = 0
        while (tag := opening.search(said, at)) is not None:
            words.append(said[at : tag.start()])
            end = said.find(f"</{tag[1]}>", tag.end())
            if end < 0:
                raise Bad("unclosed")
            calls.append(ToolCall(tag[1], _arguments(said[tag.end() : end].strip(), schemas.get(tag[1]))))
            at = end + len(tag[1]) + 3
        return calls, "".join([*words, said[at:]])


def unwrapped_result(line: str) -> str:
    """Returns the line of a result without the tags that this call format puts around it."""
    return line.removeprefix("<information>").removesuffix("</information>")


def _only(schema: Any) -> str:
    """The argument that a text alone stands for; "" where there is none."""
    if schema is None:
        return "query"
    properties, required = schema.get("properties", {}), schema.get("required", ())
    keys = list(required) if len(required) == 1 else list(properties) if len(properties) == 1 else []
    return keys[0] if keys else ""


def _arguments(text: str, schema: Any) -> dict[str, Any]:
    if not text:
        return {}
    if text[0] == "{":
        value, end = decoded(text, 0)
        if end < len(text):
            raise Bad("bad_json")
        return dict(value)
    if not (key := _only(schema)):
        raise Bad("not_a_call", "the tool takes more than a text: write its arguments as a JSON object")
    check_text(text)
    return {key: text}
