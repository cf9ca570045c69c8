"""Finds agents' words in the prompts that a program writes: whom a turn depends on is what its prompt holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from marft_envs.adapters.inward.endpoint import TurnRequest
from marft_envs.core.observation import neutralise, role_tags
from marft_envs.core.thoughts import spoken
from marft_envs.core.types import AgentSpec, TurnRecord, Written

SHORT = 16
"""Characters; shorter words are no evidence in a system message, and a shorter line, or value, is none of its reply."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_OPENS = re.compile(r"[\[{]")
_TRIES, _DEEPEST = 256, 32
"""Brackets of a text that may open no JSON before it is all words, and most levels of what is JSON."""
_ESCAPE = re.compile(r"\\(?:[bfnrt]|u[0-9a-fA-F]{4})\Z")
_DECODE = json.JSONDecoder().raw_decode
_PLAIN = re.compile("[A-Za-z0-9 ]+")
_SEVERAL = re.compile(r"\w\W+\w|[^\x00-\x7f]")
_STYLES: tuple[dict[str, Any], ...] = ({}, {"separators": (",", ":")}, {"indent": 2})
"""How programs write JSON."""


class SaidTurn(NamedTuple):
    """A turn, as its program was given it."""

    agent: str
    sent: str
    """Its content, blanks around it and all."""
    words: str
    values: tuple[str, ...] = ()
    """Texts in what it says in JSON, as arguments of calls or in its words, and the parts of that JSON themselves."""


class Forms(NamedTuple):
    """How words may stand in a prompt."""

    core: str
    """Part of them that is the same in all forms."""
    forms: Mapping[str, str]
    """Form -> the same without what it forges."""
    lines: Sequence[str]
    """Lines that are words in themselves; none of JSON."""


class Quotes:
    """The words of one episode, as its program was given them, and the prompts in which it puts them.

    Args:
        team: The agents.
        given: Texts of the problem: words in them are not quotations of an agent.
    """

    def __init__(self, team: Sequence[AgentSpec], given: Sequence[str] = ()) -> None:
        self.said: list[SaidTurn] = []
        self._tags = role_tags(team)
        self._given = frozenset(text.strip() for text in given if text.strip())
        self._forms: dict[str, Forms] = {}
        self._calls: list[tuple[int, Any]] = []
        """Of each call its turn, and the call as :func:`_named` has it."""

    def read(self, asked: TurnRequest) -> None:
        """Reads a request, against what has been said by then; tags that words forge are harmless in it."""
        asked.written = [self._written(asked.agent, message) for message in asked.messages]

    def reply(self, turn: TurnRecord, asked: TurnRequest, *, share_thoughts: bool) -> dict[str, Any]:
        """Enters a turn, and returns it as its program gets it: calls, where it offered tools, as ``tool_calls``."""
        heard = turn.text if share_thoughts else spoken(turn.text)
        content, calls = _SURROGATE.sub("\ufffd", heard), list[dict[str, Any]]()
        if asked.tools and asked.choice != "none":
            content, calls = _called(content, asked.tools, turn.index)
            calls = calls if asked.parallel else calls[:1]
        self._calls += [(turn.index, _named(call)) for call in calls]
        texts = [content, *(call["function"]["arguments"] for call in calls)]
        self.said.append(SaidTurn(turn.agent, content, content.strip(), self._values(texts, asked)))
        extras: Mapping[str, Any] = turn.extras or {}
        message = {"content": content or None, "tool_calls": calls} if calls else {"content": content}
        finish = "tool_calls" if calls else "length" if extras.get("stop_reason") == "length" else "stop"
        read, wrote = int(extras.get("prompt_tokens") or 0), int(extras.get("tokens") or 0)
        usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        return {"message": message, "finish_reason": finish, "usage": usage}

    def _values(self, texts: Sequence[str], asked: TurnRequest) -> tuple[str, ...]:
        """Returns values of JSON in a reply that the agent chose itself.

        Choices that a tool offers, and names that stand in the prompt, are left out.
        """
        offered = json.dumps(asked.tools, ensure_ascii=False)
        prompt = "\n".join(message["content"] for message in asked.messages)
        found = dict.fromkeys(part.strip() for text in texts for part in _parts(text))
        found.pop(texts[0].strip(), None)
        new = (part for part in found if part not in self._given and part not in offered)
        return tuple(part for part in new if part not in prompt or len(part.split()) > 1)

    def _written(self, agent: str, message: Mapping[str, Any]) -> Written:
        role, text = message["role"], message["content"]
        if role == "assistant":
            if (turn := self._whole(agent, message)) is not None:
                return Written("assistant", "", (turn,), whole=True)
            return Written("assistant", *self._found(_with_calls(message)))
        if role in ("system", "developer"):
            return Written("system", *self._found(text, SHORT))
        text, quoted = self._found(text)
        return Written("user", f"[feedback]\n{text}" if role in ("tool", "function") else text, quoted)

    def _whole(self, agent: str, message: Mapping[str, Any]) -> int | None:
        """Returns the turn that an assistant's message is: of its call and the call's id, or the agent's own words."""
        if calls := message.get("tool_calls") or message.get("function_call"):
            sent = [_named(call) for call in calls] if isinstance(calls, list) else []
            return next((turn for turn, call in self._calls if call in sent), None)
        own = (i for i, said in enumerate(self.said) if said.agent == agent and said.sent == message["content"])
        return max(own, default=None)

    def _found(self, text: str, shortest: int = 1) -> tuple[str, tuple[int, ...]]:
        """Returns a text with the words that are found in it made harmless, and the turns whose words these are.

        Longer words are looked for first, the problem's among them, and what is found is not looked at again. Of turns
        with equal words, as many of the latest are meant as stand in the text. A short value counts as the whole text
        alone, if it is more than one word.
        """
        pieces, whole = [(text, True)], text.strip()
        turns: dict[str, list[int]] = {}
        for i, said in enumerate(self.said):
            values = (v for v in said.values if len(v) >= SHORT or (v == whole and _SEVERAL.search(v)))
            for words in (said.words, *values):
                turns.setdefault(words, []).append(i)
        quoted: list[int] = []
        for words in sorted([*turns, *self._given.difference(turns)], key=len, reverse=True):
            if len(words) < shortest:
                break
            pieces, times = self._cut(pieces, words, text, harmless=words in turns)
            for line in self._forms[words].lines if words in turns and not times else ():
                pieces, more = self._cut(pieces, line, text)
                times = max(times, more)
            quoted += turns[words][-times:] if times and words in turns else []
        return "".join(piece for piece, _ in pieces), tuple(quoted)

    def _cut(
        self, pieces: list[tuple[str, bool]], words: str, text: str, *, harmless: bool = True
    ) -> tuple[list[tuple[str, bool]], int]:
        """Returns the pieces of a text with words in it, in whatever form, made harmless, and how many these were."""
        known = self._forms.get(words)
        if known is None:
            lines = [line for line in map(str.strip, words.splitlines()) if SHORT <= len(line) < len(words)]
            core = max(_PLAIN.findall(words), key=len, default="")
            known = self._forms[words] = Forms(core, self._forms_of(words), () if _restyled(words) else lines)
        times = 0
        for form, shown in known.forms.items() if known.core in text else ():
            pieces, more = _cut(pieces, form, shown if harmless else form)
            times += more
        return pieces, times

    def _forms_of(self, words: str) -> dict[str, str]:
        """Returns the forms in which words may stand in a prompt, and each without what they forge.

        As they are; JSON in each style; and what is escaped in JSON, or in JSON within JSON.
        """
        forms = {text: self._harmless(text) for text in (words, *_restyled(words))}
        for _ in range(2):
            forms |= {
                _escaped(form, to_ascii=a): _escaped(safe, to_ascii=a)
                for form, safe in forms.items()
                for a in (False, True)
            }
        return dict(sorted(forms.items(), key=lambda form: -len(form[0])))

    def _harmless(self, words: str) -> str:
        """Returns words without control tokens and forged tags, also at the line starts of texts in JSON."""
        for part in _parts(words) if self._tags.search(words) else ():
            for escape in (False, True):
                words = words.replace(
                    _escaped(part, to_ascii=escape), _escaped(neutralise(part, self._tags), to_ascii=escape)
                )
        return neutralise(words, self._tags)


def _cut(pieces: list[tuple[str, bool]], words: str, shown: str) -> tuple[list[tuple[str, bool]], int]:
    """Returns pieces of a text, with ``shown`` in place of words, not to be looked at again, and how many there are."""
    out, times = list[tuple[str, bool]](), 0
    for text, open_ in pieces:
        end = 0
        for start in _places(text, words) if open_ else ():
            out += [(text[end:start], True), (shown, False)]
            end, times = start + len(words), times + 1
        out.append((text[end:], open_))
    return (out, times) if times else (pieces, 0)


def _places(text: str, words: str) -> Iterator[int]:
    """Yields where words stand in a text and are no part of other words."""
    start = text.find(words)
    while start >= 0:
        end = start + len(words)
        inside = _joined(text, start) or _joined(text, end)
        if not inside:
            yield start
        start = text.find(words, start + 1 if inside else end)


def _joined(text: str, i: int) -> bool:
    letters = 0 < i < len(text) and text[i - 1].isalnum() and text[i].isalnum()
    return letters and _ESCAPE.search(text, max(i - 6, 0), i) is None


def _parts(text: str) -> Iterator[str]:
    """Yields a text, the JSON objects and lists that stand in it and in each other, and their texts likewise."""
    from marft_envs.call_formats.call import too_deep

    todo: list[Any] = [text]
    while todo:
        value, at, tries = todo.pop(), 0, 0
        if isinstance(value, dict | list):
            yield json.dumps(value, ensure_ascii=False)
            todo += value.values() if isinstance(value, dict) else value
        elif isinstance(value, str):
            yield value
            while tries < _TRIES and (opens := _OPENS.search(value, at)):
                try:
                    inner, at = _DECODE(value, opens.start())
                except (ValueError, RecursionError):
                    at, tries = opens.end(), tries + 1
                else:
                    todo += [] if too_deep(inner, _DEEPEST) else [inner]


def _restyled(words: str) -> list[str]:
    """Returns JSON as programs may write it; none of what is no JSON object or list."""
    try:
        value = json.loads(words) if words[:1] in ("{", "[") else None
        return [json.dumps(value, ensure_ascii=a, **style) for style in _STYLES for a in (False, True) if value]
    except (ValueError, RecursionError):
        return []


def _escaped(text: str, *, to_ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=to_ascii)[1:-1]


def _named(call: Mapping[str, Any]) -> Any:
    """Returns the id of a call, its name and its arguments, however they are written; None: it is no such call."""
    try:
        return call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])
    except (LookupError, TypeError, ValueError, RecursionError):
        return None


def _with_calls(message: Mapping[str, Any]) -> str:
    """Returns the words and calls of a message that is no turn; calls that no call format can write are as they are."""
    from marft_envs.records.chats import UnreadableError, chat

    try:
        return chat([message])[0].content
    except UnreadableError:
        calls = message.get("tool_calls") or message.get("function_call")
        return "\n".join(filter(None, [message["content"], json.dumps(calls, ensure_ascii=False)]))


def _called(text: str, tools: Sequence[Mapping[str, Any]], index: int) -> tuple[str, list[dict[str, Any]]]:
    """Returns the words of a reply and its calls, whatever the call format; one that cannot be read is all words."""
    from marft_envs.call_formats import parse

    functions = [tool.get("function") for tool in tools]
    schemas = {str(f.get("name")): f.get("parameters") or {} for f in functions if isinstance(f, Mapping)}
    reply = parse(text, "any", schemas)
    if reply.error or not reply.calls:
        return text, []
    named = [{"name": c.name, "arguments": json.dumps(dict(c.arguments), ensure_ascii=False)} for c in reply.calls]
    return reply.words, [{"id": f"call_{index}_{k}", "type": "function", "function": f} for k, f in enumerate(named)]
