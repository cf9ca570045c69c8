"""Hermes, which Qwen2.5 and Qwen3 write, too: tags around JSON. The default, and tolerant: plain JSON is read as well.

What is read as calls:

* ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, any number of times, with words around;
* fenced blocks (no language, ``json`` or ``tool_call``) that hold such an object or a list of them;
* such an object, or a list of them, as the whole reply.

Inside, ``arguments`` may be called ``parameters`` and may be a JSON string; ``{"function": {…}}`` and ``{"tool_calls":
[…]}`` around it are OpenAI's and are taken off. A reply with tags is read by its tags alone. If any part of a reply
cannot be read, none of it is carried out. Every character is looked at a fixed number of times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from marft_envs.call_formats.base import KEYS, MOST_CALLS, Bad, CallFormat, Schemas, decoded, unwrapped
from marft_envs.call_formats.call import ToolCall

# A blank behind the bracket: peers' words and an agent's own earlier ones can be shown to it in that form.
_TAG = re.compile(r"<[ ]?(/?)tool_call>\s*")
_END = re.compile(rf"\s*{_TAG.pattern}")
_FENCE = re.compile(r"^[ \t]*```[ \t]*(?:([\w+-]+)[ \t]*)?$", re.MULTILINE)
_MEANT = re.compile(r'"(?:arguments|parameters|tool_calls)"\s*:')
_FENCES = ("", "json", "tool_call")
_TAGGED = re.compile(r"<[ ]?tool_call>.*?<[ ]?/tool_call>", re.DOTALL)
LOOSE = re.compile(r'\{\s*"(?:tool_)?name"\s*:\s*"[^"\n]{1,200}"\s*,\s*"(?:arguments|parameters)"\s*:\s*[{"]')
"""The beginning of a call in JSON."""


class Hermes(CallFormat):
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``; plain JSON is read, too."""

    def restored(self, text: str) -> str:
        """Returns the text: its tags are read with a blank in them."""
        return text

    def _read(self, said: str, schemas: Schemas) -> tuple[Sequence[ToolCall], str]:
        calls = _calls(said)
        if _TAGGED.search(said):
            return calls, _TAGGED.sub("", said)
        if not calls:
            return calls, said
        return calls, unfenced(said) if _FENCE.search(said) else ""  # without a fence, the whole reply is the call


def _calls(text: str) -> list[ToolCall]:
    tag = _TAG.search(text) if "tool_call>" in text else None
    values = _tagged(text, tag) if tag else (_fenced(text) if "```" in text else []) or whole(text.strip())
    calls: list[ToolCall] = []
    for value in values:
        calls += unwrapped(value)
        if len(calls) > MOST_CALLS:
            raise Bad("too_many")
    return calls


def _tagged(text: str, tag: re.Match[str] | None) -> list[Any]:
    """The values in tags, of which ``tag`` is the first."""
    values: list[Any] = []
    while tag is not None:
        if tag[1]:
            raise Bad("stray_close")
        if len(values) == MOST_CALLS:
            raise Bad("too_many")
        try:
            value, end = decoded(text, tag.end())
        except Bad as bad:
            following = _TAG.search(text, tag.end())
            if following is None:
                raise Bad("unclosed") from bad
            raise Bad("nested" if not following[1] and bad.error == "bad_json" else bad.error) from bad
        close = _END.match(text, end)
        if close is None:
            raise Bad("bad_json" if _TAG.search(text, end) else "unclosed")
        if not close[1]:
            raise Bad("nested")
        values.append(value)
        tag = _TAG.search(text, close.end())
    return values


def _fenced(text: str) -> list[Any]:
    """The values of fenced blocks that look like calls; other blocks are words."""
    marks = list(_FENCE.finditer(text))
    values: list[Any] = []
    for opening, closing in zip(marks[::2], marks[1::2], strict=False):
        inside = text[opening.end() : closing.start()].strip()
        if (opening[1] or "").lower() in _FENCES and not closing[1]:
            values += whole(inside)
    return values


def unfenced(text: str) -> str:
    """Returns a text without its fenced blocks; a block that is not closed stays."""
    marks = list(_FENCE.finditer(text))
    kept, start = [], 0
    for opening, closing in zip(marks[::2], marks[1::2], strict=False):
        kept.append(text[start : opening.start()])
        start = closing.end()
    return "".join([*kept, text[start:]])


def whole(text: str) -> list[Any]:
    """Returns the value that is all of ``text``, as a list; [] where it is not meant as a call.

    Raises:
        Bad: It is meant as one, and cannot be read.
    """
    if not text or text[0] not in "{[":
        return []
    meant = _MEANT.search(text) is not None
    try:
        value, end = decoded(text, 0)
        if end < len(text):
            raise Bad("bad_json")
    except Bad:
        if not meant:
            return []
        raise
    return [value] if _is_call(value) else []


def _is_call(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_call, value)) if all(isinstance(item, dict) for item in value) else False
    return isinstance(value, dict) and (
        "tool_calls" in value
        or (isinstance(value.get("function"), dict) and "name" in value["function"])
        or (isinstance(value.get("name"), str) and value.keys() <= KEYS)
    )
