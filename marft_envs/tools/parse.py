"""Calls in a reply: Hermes/Qwen tags or plain JSON, tolerant of form and never of ambiguity.

What is read as calls:

* ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, any number of times, with words around;
* fenced blocks (no language, ``json`` or ``tool_call``) that hold such an object or a list of them;
* such an object, or a list of them, as the whole reply.

Inside, ``arguments`` may be called ``parameters`` and may be a JSON string; ``{"function": {…}}`` and ``{"tool_calls":
[…]}`` around it are OpenAI's and are taken off. A reply with tags is read by its tags alone. What a model thinks
(``<think>…</think>``) is not read. If any part of a reply cannot be read, none of it is carried out. Every character is
looked at a fixed number of times, and text is never evaluated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from marft_envs.tools.types import ToolCall
from marft_envs.tools.values import too_deep

LONGEST = 1_000_000
"""Characters of a reply; a longer one is not read."""

MOST_CALLS = 64
"""Calls in one reply."""

DEEPEST = 32
"""Levels of lists and objects within a call."""

ERRORS = {
    "unclosed": "a <tool_call> or <think> is not closed",
    "stray_close": "a </tool_call> closes nothing",
    "nested": "a <tool_call> stands inside another",
    "bad_json": "a call is not valid JSON",
    "duplicate_key": "a key stands twice in one object",
    "bad_number": "NaN, Infinity and numbers beyond the range of floats cannot be passed",
    "bad_text": "a text holds half of a surrogate pair",
    "too_deep": f"a call is nested deeper than {DEEPEST} levels",
    "too_large": f"the reply is longer than {LONGEST:,} characters",
    "too_many": f"the reply holds more than {MOST_CALLS} calls",
    "not_a_call": 'a call must be {"name": "…", "arguments": {…}}',
}
"""What keeps a reply from being read, by its name."""

# A blank behind the bracket: peers' words and an agent's own earlier ones can be shown to it in that form.
_TAG = re.compile(r"<[ ]?(/?)tool_call>\s*")
_END = re.compile(rf"\s*{_TAG.pattern}")
_THOUGHT = re.compile(r"<(/?)think>")
_FENCE = re.compile(r"^[ \t]*```[ \t]*(?:([\w+-]+)[ \t]*)?$", re.MULTILINE)
_MEANT = re.compile(r'"(?:arguments|parameters|tool_calls)"\s*:')
_SURROGATE = re.compile("[\ud800-\udfff]")
_FENCES = ("", "json", "tool_call")


class Reply(NamedTuple):
    """What a reply asks for."""

    calls: tuple[ToolCall, ...] = ()
    """In their order; empty if there is an error."""
    error: str = ""
    """A key of :data:`ERRORS`, or ""."""

    @property
    def message(self) -> str:
        """The error in words."""
        return ERRORS[self.error] if self.error else ""


class _Bad(ValueError):
    """Carries a key of ERRORS out of the decoder."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        raise _Bad("duplicate_key")
    return out


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Bad("bad_number")
    return value


def _constant(text: str) -> Any:
    raise _Bad("bad_number")


_decode = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_float, parse_constant=_constant).raw_decode


def parse(text: str) -> Reply:
    """Returns the calls of a reply, or the error that keeps it from being read; raises nothing."""
    if "{" not in text and "tool_call>" not in text and "<think>" not in text:
        return _NOTHING
    if len(text) > LONGEST:
        return Reply(error="too_large")
    try:
        return Reply(tuple(_calls(_without_thoughts(text) if "think>" in text else text)))
    except _Bad as bad:
        return Reply(error=str(bad))


_NOTHING = Reply()
_TAGGED = re.compile(r"<[ ]?tool_call>.*?<[ ]?/tool_call>", re.DOTALL)
_FENCED = re.compile(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)


def words(text: str, calls: bool | None = None) -> str:
    """Returns what a reply says beside its calls: neither these nor thoughts; "" where all of it is a call.

    Args:
        text: The reply.
        calls: It is known to have calls, or to have none; None: not known.
    """
    spoken = text.rpartition("</think>")[2]
    if _TAGGED.search(spoken):
        return _TAGGED.sub("", spoken).strip()
    if not (parse(text).calls if calls is None else calls):
        return spoken.strip()
    return _FENCED.sub("", spoken).strip() if "```" in spoken else ""  # without a fence, the whole reply is the call


def _without_thoughts(text: str) -> str:
    """The reply without what was only thought; a leading ``<think>`` may have been part of the prompt."""
    tags = list(_THOUGHT.finditer(text))
    closes = [tag for tag in tags if tag[1]]
    end = closes[-1].end() if closes else 0
    if any(not tag[1] and tag.start() >= end for tag in tags):
        raise _Bad("unclosed")
    return text[end:]


def _calls(text: str) -> list[ToolCall]:
    tag = _TAG.search(text) if "tool_call>" in text else None
    values = _tagged(text, tag) if tag else (_fenced(text) if "```" in text else []) or _whole(text.strip())
    calls: list[ToolCall] = []
    for value in values:
        calls += _unwrapped(value)
        if len(calls) > MOST_CALLS:
            raise _Bad("too_many")
    return calls


def _tagged(text: str, tag: re.Match[str] | None) -> list[Any]:
    """The values in tags, of which ``tag`` is the first."""
    values: list[Any] = []
    while tag is not None:
        if tag[1]:
            raise _Bad("stray_close")
        if len(values) == MOST_CALLS:
            raise _Bad("too_many")
        try:
            value, end = _json(text, tag.end())
        except _Bad as bad:
            following = _TAG.search(text, tag.end())
            if following is None:
                raise _Bad("unclosed") from bad
            raise _Bad("nested" if not following[1] and str(bad) == "bad_json" else str(bad)) from bad
        close = _END.match(text, end)
        if close is None:
            raise _Bad("bad_json" if _TAG.search(text, end) else "unclosed")
        if not close[1]:
            raise _Bad("nested")
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
            values += _whole(inside)
    return values


def _whole(text: str) -> list[Any]:
    """The value that is all of ``text``, as a list; [] where it is not meant as a call."""
    if not text or text[0] not in "{[":
        return []
    meant = _MEANT.search(text) is not None
    try:
        value, end = _json(text, 0)
        if end < len(text):
            raise _Bad("bad_json")
    except _Bad:
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
        or (isinstance(value.get("name"), str) and value.keys() <= _KEYS)
    )


def _json(text: str, start: int) -> tuple[Any, int]:
    """One strict JSON value from ``start``, and where it ends."""
    try:
        value, end = _decode(text, start)
    except _Bad:
        raise
    except RecursionError as error:
        raise _Bad("too_deep") from error
    except ValueError as error:  # no JSON, or an integer of thousands of digits
        raise _Bad("bad_json") from error
    part = text[start:end]
    if part.count("{") + part.count("[") > DEEPEST and too_deep(value, DEEPEST):
        raise _Bad("too_deep")
    if (not part.isascii() or "\\u" in part) and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise _Bad("bad_text")
    return value, end


_KEYS = frozenset({"name", "arguments", "parameters", "id", "type", "index"})


def _unwrapped(value: Any) -> Sequence[ToolCall]:
    """The calls that a decoded value stands for."""
    if isinstance(value, dict) and value.keys() == {"tool_calls"} and isinstance(value["tool_calls"], list):
        value = value["tool_calls"]
    if not isinstance(value, list):
        return (_call(value),)
    if not value:
        raise _Bad("not_a_call")
    return [_call(item) for item in value]


def _call(value: Any) -> ToolCall:
    if isinstance(value, dict) and "function" in value:
        if not value.keys() <= {"function", "id", "type", "index"}:
            raise _Bad("not_a_call")
        value = value["function"]
    if not isinstance(value, dict) or not value.keys() <= _KEYS or not isinstance(value.get("name"), str):
        raise _Bad("not_a_call")
    if "arguments" not in value:
        arguments = value.get("parameters")
    elif "parameters" not in value:
        arguments = value["arguments"]
    else:
        raise _Bad("not_a_call")
    return ToolCall(value["name"], arguments if isinstance(arguments, dict) else _read(arguments))


def _read(arguments: Any) -> dict[str, Any]:
    """Arguments that are no object as they stand: a text that holds one, or nothing."""
    if isinstance(arguments, str):
        inner = arguments.strip()
        arguments, end = _json(inner, 0) if inner else ({}, 0)
        if end < len(inner):
            raise _Bad("bad_json")
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise _Bad("not_a_call")
    return arguments


def written(calls: Sequence[ToolCall]) -> str:
    """Returns a reply that asks for these calls, in the tags that :func:`parse` reads."""
    return "\n".join(
        "<tool_call>\n"
        + json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
        + "\n</tool_call>"
        for call in calls
    )
