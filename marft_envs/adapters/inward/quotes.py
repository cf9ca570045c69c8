"""Finds agents' words in the prompts that a program writes: whom a turn depends on is what its prompt holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, NamedTuple

from marft_envs.adapters.inward.endpoint import TurnRequest
from marft_envs.core.observation import neutralise, role_tags
from marft_envs.core.types import AgentSpec, TurnRecord, Written
from marft_envs.server.chat import cut

SHORT = 16
"""Characters; shorter words are no evidence in a system message, and a shorter line, or value, is none of its reply."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_OPENS = re.compile(r"[\[{]")
_TRIES, _DEEPEST = 256, 32
"""Brackets of a text that may open no JSON before it is all words, and most levels of what is JSON."""
_ESCAPE = re.compile(r"\\(?:[bfnrt]|u[0-9a-fA-F]{4})\Z")
_DECIMAL = re.compile(r"\d\.\d")
_CLOSED, _OPEN = re.compile(r"(?:\A|[^\w\s+\-*/^]|\n)[ \t]*\Z"), re.compile(r"[ \t]*(?:\Z|[^\w\s+\-*/^])")
"""What stands before, or behind, words that are no part of a sentence."""
_DECODE = json.JSONDecoder().raw_decode
_PLAIN = re.compile("[A-Za-z0-9 ]+")
_SEVERAL = re.compile(r"\w\W+\w|[^\x00-\x7f]")
_STYLES: tuple[dict[str, Any], ...] = ({}, {"separators": (",", ":")}, {"indent": 2})
"""How programs write JSON."""
_WORD = re.compile(r"\w+")
_SPAN = 8
"""Words in a row, whatever stands between them, that are evidence although a program has rewritten what is around."""
_SENTENCE = re.compile(r"(?<=[.!?;])\s+")
_LABEL = re.compile(r"\A(?:[-*+•]|\(?\d+[.):]+|\*{0,2}\w[\w ]{0,20}:\*{0,2})\s+")
"""What programs take off a line: a list's mark, a number, a label."""


class SaidTurn(NamedTuple):
    """A turn, as its program was given it."""

    agent: str
    sent: str | None
    """Its content, blanks around it and all; None: its program asked for a part of it alone."""
    words: str
    values: tuple[str, ...] = ()
    """Texts in what it says in JSON, as arguments of calls or in its words, and the parts of that JSON themselves."""
    prompt: str = ""
    """What it was shown: words in it are no evidence that the turn is seen, but for its reply as a whole."""
    spans: frozenset[tuple[str, ...]] = frozenset()
    """Words in a row that are its own: neither its prompt nor the problem has them."""


class Forms(NamedTuple):
    """How words may stand in a prompt."""

    core: str
    """Part of them that is the same in all forms."""
    forms: Mapping[str, str]
    """Form -> the same without what it forges."""
    parts: Sequence[str]
    """Lines, without a label, too, and their sentences; none of JSON."""


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
        heard = turn.text if share_thoughts else turn.spoken
        kept = cut(heard, asked.stop)
        content, calls = _SURROGATE.sub("\ufffd", kept), list[dict[str, Any]]()
        if asked.tools and asked.choice != "none":
            content, calls = _called(content, asked.tools, turn.index)
            calls = calls if asked.parallel else calls[:1]
        self.enter_calls(turn.index, calls if kept == heard else ())
        texts = [content, *(call["function"]["arguments"] for call in calls)]
        prompt = "\n".join(message["content"] for message in asked.messages)
        values, old = self._values(texts, asked, prompt), _spans("\n".join([prompt, *self._given]))
        own = frozenset(span for text in (content, *values) for span in _spans(text)).difference(old)
        sent = content if kept == heard else None
        self.said.append(SaidTurn(turn.agent, sent, content.strip(), values, prompt, own))
        extras: Mapping[str, Any] = turn.extras or {}
        message = {"content": content or None, "tool_calls": calls} if calls else {"content": content}
        finish = "tool_calls" if calls else "length" if extras.get("stop_reason") == "length" else "stop"
        read, wrote = int(extras.get("prompt_tokens") or 0), int(extras.get("tokens") or 0)
        usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        return {"message": message, "finish_reason": finish, "usage": usage}

    def enter_calls(self, turn: int, calls: Sequence[Mapping[str, Any]]) -> None:
        """Enters the calls of a turn: a message with one of them is that turn."""
        self._calls += [(turn, _named(call)) for call in calls]

    def _values(self, texts: Sequence[str], asked: TurnRequest, prompt: str) -> tuple[str, ...]:
        """Returns values of JSON in a reply that the agent chose itself.

        Choices that a tool offers, and names and lines that stand in the prompt, are left out.
        """
        offered, lines = json.dumps(asked.tools, ensure_ascii=False), _lines(prompt)
        found = dict.fromkeys(part.strip() for text in texts for part in _parts(text))
        found.pop(texts[0].strip(), None)
        new = (part for part in found if part not in self._given and part not in offered)
        return tuple(part for part in new if part not in prompt or (len(part.split()) > 1 and part not in lines))

    def _written(self, agent: str, message: Mapping[str, Any]) -> Written:
        role, text = message["role"], message["content"]
        if role == "assistant":
            if (turn := self._whole(agent, message)) is not None:
                return Written("assistant", "", (turn,), whole=True)
            return Written("assistant", *self._found(_with_calls(message)))
        if role in ("system", "developer"):
            return Written("system", *self._found(text, system=True))
        text, quoted = self._found(text)
        return Written("user", f"[feedback]\n{text}" if role in ("tool", "function") else text, quoted)

    def _whole(self, agent: str, message: Mapping[str, Any]) -> int | None:
        """Returns the turn that an assistant's message is: of its call and the call's id, or the agent's own words."""
        if calls := message.get("tool_calls") or message.get("function_call"):
            sent = [_named(call) for call in calls] if isinstance(calls, list) else []
            return next((turn for turn, call in self._calls if call in sent), None)
        own = (i for i, said in enumerate(self.said) if said.agent == agent and said.sent == message["content"])
        return max(own, default=None)

    def _found(self, text: str, *, system: bool = False) -> tuple[str, tuple[int, ...]]:
        """Returns a text with the words that are found in it made harmless, and the turns whose words these are.

        Longer words are looked for first, the problem's among them, and what is found is not looked at again. Of turns
        with equal words, as many of the latest are meant as stand in the text. A short value counts as the whole text
        alone, if it is more than one word. Parts of words count if nobody else has written them.
        """
        page, whole = _Page(text, system=system), text.strip()
        turns: dict[str, list[int]] = {}
        for i, said in enumerate(self.said):
            values = (v for v in said.values if len(v) >= SHORT or (v == whole and _SEVERAL.search(v)))
            for words in (said.words, *values):
                turns.setdefault(words, []).append(i)
        ordered = sorted([*turns, *self._given.difference(turns)], key=len, reverse=True)
        quoted = [i for words in ordered if len(words) >= SHORT for i in self._cut(page, words, turns.get(words, []))]
        for i, said in enumerate(self.said):
            spans = [
                page.take(start, end, self._harmless(text[start:end])) for start, end in _in_order(text, said.spans)
            ]
            quoted += [i] if any(spans) else []
        for words in ordered if not system else ():
            quoted += self._cut(page, words, turns.get(words, [])) if 0 < len(words) < SHORT else []
        for i, said in enumerate(self.said if not system else ()):
            for value in said.values:
                quoted += self._cut(page, value, [i], part=True) if len(value) < SHORT and value != whole else []
        return page.shown(), tuple(sorted(set(quoted)))

    def _cut(self, page: _Page, words: str, by: Sequence[int], *, part: bool = False) -> Sequence[int]:
        """Makes words on a page harmless, in whatever form they stand there, and returns the turns that are seen by it.

        Args:
            page: Where they are looked for, and, if they are not there as a whole, their parts.
            words: What is looked for.
            by: The turns that said it; none: the problem has it.
            part: Whether it is a part of what they said, which counts only if nobody had written it before.
        """
        alone = part and len(words) < SHORT
        if part:
            by = [i for i in by if words not in self.said[i].prompt and not any(words in text for text in self._given)]
            if not by or (alone and (page.system or not _SEVERAL.search(words))):
                return ()
        times, known = 0, self._known(words)
        for form, shown in known.forms.items() if known.core in page.text else ():
            for start in _places(page.text, form):
                line = page.line(start, start + len(form))
                # A line that stood in the prompts of all who have said this says nothing of them.
                new = line == form or not by or any(line not in _lines(self.said[i].prompt) for i in by)
                if new and (line == form or not alone):
                    times += page.take(start, start + len(form), shown if by else form)
        if by and not (times or part):
            return [i for piece in known.parts for i in self._cut(page, piece, by, part=True)]
        return by[-times:] if times else ()

    def _known(self, words: str) -> Forms:
        if words not in self._forms:
            forms, core = self._forms_of(words), max(_PLAIN.findall(words), key=len, default="")
            self._forms[words] = Forms(core, forms, () if _restyled(words) else _pieces(words))
        return self._forms[words]

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


class _Page:
    """A text in which words are replaced, each place at most once.

    Args:
        text: The text.
        system: Whether it is a system message, in which short words are no evidence.
    """

    def __init__(self, text: str, *, system: bool) -> None:
        self.text, self.system = text, system
        self._taken, self._put = bytearray(len(text)), list[tuple[int, int, str]]()

    def line(self, start: int, end: int) -> str:
        """Returns the line, or lines, around a place."""
        after = self.text.find("\n", end)
        return self.text[self.text.rfind("\n", 0, start) + 1 : after if after >= 0 else None].strip()

    def take(self, start: int, end: int, shown: str) -> bool:
        """Replaces a place, unless a part of it is taken; returns whether."""
        free = self._taken.find(1, start, end) < 0
        if free:
            self._taken[start:end] = b"\1" * (end - start)
            self._put.append((start, end, shown))
        return free

    def shown(self) -> str:
        """Returns the text with all that was replaced."""
        out, at = "", 0
        for start, end, shown in sorted(self._put):
            out, at = out + self.text[at:start] + shown, end
        return out + self.text[at:]


@lru_cache(64)
def _lines(text: str) -> frozenset[str]:
    return frozenset(map(str.strip, text.splitlines()))


def _pieces(words: str) -> list[str]:
    """Returns the lines of words, without their labels, too, and the sentences of each; not the whole."""
    lines = [line.strip() for line in words.splitlines()]
    lines += [_LABEL.sub("", line) for line in lines]
    found = dict.fromkeys([*lines, *(part for line in lines for part in _SENTENCE.split(line))])
    return sorted((part for part in found if part and part != words), key=len, reverse=True)


def _spans(text: str) -> set[tuple[str, ...]]:
    """Returns all words in a row of a text."""
    words = _WORD.findall(text.casefold())
    return {tuple(words[i : i + _SPAN]) for i in range(len(words) - _SPAN + 1)}


def _in_order(text: str, spans: Set[tuple[str, ...]]) -> Iterator[tuple[int, int]]:
    """Yields where a text has words in a row that are among these, with what is written around a word."""
    words = list(_WORD.finditer(text)) if spans else []
    plain = [word.group().casefold() for word in words]
    at = 0
    while at + _SPAN <= len(words):
        last = at
        while tuple(plain[last : last + _SPAN]) in spans:
            last += 1
        if last > at:
            start, end = words[at].start(), words[last + _SPAN - 2].end()
            while start and not text[start - 1].isspace():
                start -= 1
            yield start, end
            at = last + _SPAN - 2
        at += 1


def _places(text: str, words: str) -> Iterator[int]:
    """Yields where words stand in a text and are no part of other words, or, if they are few, of a sentence."""
    start = text.find(words)
    while start >= 0:
        end = start + len(words)
        inside = _joined(text, start) or _joined(text, end)
        inside |= len(words) < 4 and not (_CLOSED.search(text, max(start - 8, 0), start) or _OPEN.match(text, end))
        if not inside:
            yield start
        start = text.find(words, start + 1 if inside else end)


def _joined(text: str, i: int) -> bool:
    if not 0 < i < len(text):
        return False
    around = text[max(i - 2, 0) : i + 2]
    letters = text[i - 1].isalnum() and text[i].isalnum()
    return bool(_DECIMAL.search(around)) or (letters and _ESCAPE.search(text, max(i - 6, 0), i) is None)


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
