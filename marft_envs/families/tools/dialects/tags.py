"""Search tags, as Search-R1 and its kin have them: a tag with the tool's name around a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from marft_envs.families.tools.dialects.base import Bad, Dialect, Schemas, arguments_of, check_text, decoded
from marft_envs.families.tools.types import ToolCall

SEARCH = "search"
"""The tool that is known without a schema; it takes a ``query``."""


class Tags(Dialect):
    """``<search>words</search>``: the tool's name as a tag around its only text, or around its arguments as JSON.

    Results come back as ``<information>…</information>``. Only tools that the agent holds are tags; ``search`` always.
    """

    name = "tags"
    families = "Search-R1, ZeroSearch, R1-Searcher"
    form = "<search>words</search>, a tag with the tool's name around its text (around a JSON object, if it takes more)"
    names = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)

    def write(self, calls: Sequence[ToolCall], schemas: Schemas | None = None) -> str:
        """Returns the calls, each a tag.

        Raises:
            ValueError: A tool is not known, so its tag would be read as words.
        """
        return "\n".join(self._written(call, schemas or {}) for call in calls)

    def _written(self, call: ToolCall, schemas: Schemas) -> str:
        if (call.name != SEARCH and call.name not in schemas) or not self.names.fullmatch(call.name):
            raise ValueError(f"'{call.name}' is no tag")
        inside = arguments_of(call).replace("<", "\\u003c") if call.arguments else ""
        key = _only(schemas.get(call.name))
        if len(call.arguments) == 1 and isinstance(text := call.arguments.get(key), str):
            plain = text and text == text.strip() and text[0] != "{" and "<" not in text
            inside = text if plain else inside
        return f"<{call.name}>{inside}</{call.name}>"

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
    """Returns the line of a result without the tags that this dialect puts around it."""
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
