"""What every call format is made of: the reply that is read, the errors that keep it from being read, strict JSON."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from marft_envs import tables
from marft_envs.call_formats.call import ToolCall, too_deep
from marft_envs.core import thoughts

LONGEST = 1_000_000
"""Characters of a reply; a longer one is not read."""

MOST_CALLS = 64
"""Calls in one reply."""

DEEPEST = 32
"""Levels of lists and objects within a call."""

TABLE = tables.read(__package__, "call_formats")
ERRORS: dict[str, str] = {
    name: says.format(DEEPEST=DEEPEST, LONGEST=LONGEST, MOST_CALLS=MOST_CALLS) for name, says in TABLE["errors"].items()
}
"""What keeps a reply from being read, by its name."""

Schemas = Mapping[str, Mapping[str, Any]]
"""Tool -> JSON Schema of its arguments: call formats that write no quotes need it to tell text from numbers."""

NAME = re.compile(r"[^\s<>\[\](){}\"'`=,|｜]+")
"""Names of tools that stand in a text without quotes."""

TOKEN = re.compile(r"<[|｜][^<>\s]+>|<[^<>\s]+[|｜]>|</?[\w:]+>|\[/?[A-Z_]+\]")
"""A special token."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class ToolReply(NamedTuple):
    """What a reply asks for."""

    calls: tuple[ToolCall, ...] = ()
    """In their order; empty if there is an error."""
    error: str = ""
    """A key of :data:`ERRORS`, or ""."""
    detail: str = ""
    """More about the error."""
    words: str = ""
    """What it says beside its calls, without thoughts; "" if there is an error."""

    @property
    def message(self) -> str:
        """The error in words, on one line."""
        return self.detail or (ERRORS[self.error] if self.error else "")


class Bad(ValueError):
    """Carries a key of :data:`ERRORS`, and perhaps words, out of a reader."""

    def __init__(self, error: str, detail: str = "") -> None:
        super().__init__(error)
        self.error, self.detail = error, detail


@dataclass(eq=False)
class CallFormat(ABC):
    """A form in which a family of models writes calls.

    Text alone goes in and out, and it is never evaluated. Special tokens are written out as text.
    """

    name: str
    families: str
    """Families of models that are trained on it."""
    marks: tuple[str, ...] = ()
    """What stands in every call that is written, by default its special tokens; of two formats that read a text, the
    one with more marks in it is meant."""
    also: tuple[str, ...] = ()
    """Marks that may stand in a reply, too."""
    call: str = ""
    """A call as it is written; in place of ``%(name)s``, ``%(quoted)s`` (the name as JSON), ``%(arguments)s`` and
    ``%(number)s`` (from 0 in a reply) stands what they say."""
    around: tuple[str, str, str] = ("", "", "")
    """What stands before, between and behind the calls of a reply."""
    sample: str = "{…}"
    """Arguments, as the prompt shows them to agents."""
    shown_form: str = ""
    """One call, as the prompt shows it to agents; "": as it is written, on one line."""
    listing: tuple[str, str] = ("Your tools:\n", "")
    """What stands before and behind the tools, one a line."""
    alone: bool = False
    """Calls are the whole reply: words beside them make it unreadable."""
    frames: bool = False
    """Marks frame messages, too, so an agent's earlier reply cannot be shown to it as the text that it was."""

    def __post_init__(self) -> None:
        self.marks = self.marks or tuple(TOKEN.findall(f"{self.around[0]}{self.call}{self.around[2]}"))

    @property
    def form(self) -> str:
        """One call, on one line, as the prompt shows it to agents."""
        before, _, behind = self.around
        one = self.call % {"number": 0, "name": "name", "quoted": '"…"', "arguments": self.sample}
        return self.shown_form or f"{before}{one}{behind}".replace("\n", "") + " as the whole reply" * self.alone

    @property
    def use(self) -> str:
        """Returns what a profile says of calls."""
        return f"To call a tool, write {self.form}. Several calls in one reply are carried out in order."

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Returns tools (in the form of OpenAI's chat API) as the family's own prompts list them."""
        before, behind = self.listing
        return before + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + behind

    def write(self, calls: Sequence[ToolCall], schemas: Schemas | None = None) -> str:
        """Returns a reply that asks for these calls, which :meth:`read` with the same schemas reads back.

        Raises:
            ValueError: A name, or an argument's, cannot be written in this form.
        """
        before, between, behind = self.around
        written = []
        for number, call in enumerate(calls):
            parts = {"number": number, "name": call.name, "quoted": json.dumps(call.name, ensure_ascii=False)}
            written.append(self.call % {**parts, "arguments": self._arguments(call, schemas or {})})
        return before + between.join(written) + behind

    def _arguments(self, call: ToolCall, schemas: Schemas) -> str:
        """Returns the arguments of a call as they are written; raises ValueError as ``write``."""
        return json.dumps(dict(call.arguments), ensure_ascii=False)

    def result(self, line: str) -> str:
        """Returns the line of a call's result as its agent reads it; most families' form is their template's alone."""
        return line

    def read(self, text: str, schemas: Schemas | None = None) -> ToolReply:
        """Returns the calls of a reply in this form, or the error that keeps it from being read; raises nothing."""
        if len(text) > LONGEST:
            return ToolReply(error="too_large")
        try:
            calls, words = self._read(self.said(text), schemas or {})
            if len(calls) > MOST_CALLS:
                raise Bad("too_many")
        except Bad as bad:
            return ToolReply(error=bad.error, detail=bad.detail)
        return ToolReply(tuple(calls), words=words.strip())

    def said(self, text: str) -> str:
        """Returns a reply without its thoughts, with its marks as they are written.

        A blank stands behind the bracket where a peer's words, or an agent's own, were shown with it.
        """
        said, unclosed = thoughts.split(text)
        if unclosed:
            raise Bad("unclosed")
        return self.restored(said) if "< " in said or "[ " in said else said

    def restored(self, text: str) -> str:
        """Returns a text in which this call format's marks are whole again."""
        for mark in (*self.marks, *self.also):
            text = text.replace(f"{mark[0]} {mark[1:]}", mark)
        return text

    @abstractmethod
    def _read(self, said: str, schemas: Schemas) -> tuple[Sequence[ToolCall], str]:
        """Returns calls and words.

        Raises:
            Bad: It cannot be read.
        """


@dataclass(eq=False)
class Framed(CallFormat):
    """A call format whose calls stand behind an opening mark, the first of its marks, one call or several to each."""

    closes: tuple[str, ...] | None = None
    """Marks that stand in no words; None: the last of its marks."""

    def _read(self, said: str, schemas: Schemas) -> tuple[Sequence[ToolCall], str]:
        calls: list[ToolCall] = []
        words: list[str] = []
        at, opening = 0, self.marks[0]
        while (start := said.find(opening, at)) >= 0:
            words.append(said[at:start])
            cursor = Cursor(said, start + len(opening))
            calls += self._body(cursor, schemas)
            at = cursor.at
            if len(calls) > MOST_CALLS:
                raise Bad("too_many")
        spoken = "".join([*words, said[at:]])
        if any(mark in spoken for mark in (self.marks[-1:] if self.closes is None else self.closes)):
            raise Bad("stray_close")
        return calls, spoken

    @abstractmethod
    def _body(self, cursor: Cursor, schemas: Schemas) -> Sequence[ToolCall]:
        """Reads what stands behind the opening mark."""


class Cursor:
    """A place in a text, which moves forward as parts are read."""

    __slots__ = ("at", "text")

    def __init__(self, text: str, at: int = 0) -> None:
        self.text, self.at = text, at

    def skip(self) -> None:
        """Moves behind blanks and line ends."""
        self.at = _BLANK.match(self.text, self.at).end()  # type: ignore[union-attr]

    def sees(self, mark: str) -> bool:
        """Returns whether ``mark`` stands here."""
        return self.text.startswith(mark, self.at)

    def take(self, mark: str) -> bool:
        """Moves behind ``mark`` if it stands here, blanks before it or not."""
        self.skip()
        if not self.sees(mark):
            return False
        self.at += len(mark)
        return True

    def need(self, mark: str) -> None:
        """Moves behind ``mark``; it must stand here."""
        if not self.take(mark):
            raise Bad("unclosed" if self.text.find(mark, self.at) < 0 else "bad_form")

    def until(self, mark: str) -> str:
        """Returns what stands before the next ``mark``, and moves behind it."""
        end = self.text.find(mark, self.at)
        if end < 0:
            raise Bad("unclosed")
        part, self.at = self.text[self.at : end], end + len(mark)
        return part

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Returns what matches here, and moves behind it."""
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def json(self) -> Any:
        """Returns the strict JSON value that stands here, and moves behind it."""
        self.skip()
        value, self.at = decoded(self.text, self.at)
        return value


_BLANK = re.compile(r"\s*")


# JSON ---------------------------------------------------------------------------------------------------


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        raise Bad("duplicate_key")
    return out


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Bad("bad_number")
    return value


def _constant(text: str) -> Any:
    raise Bad("bad_number")


_decode = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_float, parse_constant=_constant).raw_decode


def decoded(text: str, start: int) -> tuple[Any, int]:
    """Returns one strict JSON value from ``start``, and where it ends.

    Raises:
        Bad: There is none.
    """
    try:
        value, end = _decode(text, start)
    except Bad:
        raise
    except RecursionError as error:
        raise Bad("too_deep") from error
    except ValueError as error:  # no JSON, or an integer of thousands of digits
        raise Bad("bad_json") from error
    part = text[start:end]
    if part.count("{") + part.count("[") > DEEPEST and too_deep(value, DEEPEST):
        raise Bad("too_deep")
    if not part.isascii() or "\\u" in part:
        check_text(value)
    return value, end


def check_text(value: Any) -> None:
    """Raises ``Bad`` if a text in a value holds half of a surrogate pair."""
    if _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise Bad("bad_text")


KEYS = frozenset({"name", "arguments", "parameters", "id", "type", "index"})
"""Members of a call in JSON."""


def unwrapped(value: Any) -> Sequence[ToolCall]:
    """Returns the calls that a decoded value stands for: one, a list, or OpenAI's objects around them."""
    if isinstance(value, dict) and value.keys() == {"tool_calls"} and isinstance(value["tool_calls"], list):
        value = value["tool_calls"]
    if not isinstance(value, list):
        return (call_of(value),)
    if not value:
        raise Bad("not_a_call")
    return [call_of(item) for item in value]


def call_of(value: Any) -> ToolCall:
    """Returns the call that an object stands for."""
    if isinstance(value, dict) and "function" in value:
        if not value.keys() <= {"function", "id", "type", "index"}:
            raise Bad("not_a_call")
        value = value["function"]
    if not isinstance(value, dict) or not value.keys() <= KEYS or not isinstance(value.get("name"), str):
        raise Bad("not_a_call")
    if "arguments" not in value:
        arguments = value.get("parameters")
    elif "parameters" not in value:
        arguments = value["arguments"]
    else:
        raise Bad("not_a_call")
    return ToolCall(value["name"], arguments if isinstance(arguments, dict) else object_of(arguments))


def object_of(arguments: Any) -> dict[str, Any]:
    """Returns arguments that are no object as they stand: a text that holds one, or nothing."""
    if isinstance(arguments, str):
        inner = arguments.strip()
        arguments, end = decoded(inner, 0) if inner else ({}, 0)
        if end < len(inner):
            raise Bad("bad_json")
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise Bad("not_a_call")
    return arguments
