"""Finds agents' words in the prompts that a program writes: whom a turn depends on is what its prompt holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marft_envs.adapters.inward.endpoint import TurnRequest
from marft_envs.core.observation import neutralise, role_tags
from marft_envs.core.thoughts import spoken
from marft_envs.core.types import AgentSpec, TurnRecord, Written

SHORT = 16
"""Characters; shorter words are no evidence in a system message, and a shorter line is none of its reply."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_OURS = re.compile(r"call_(\d+)_\d+")


class Quotes:
    """The words of one episode, as its program was given them, and the prompts in which it puts them.

    Args:
        team: The agents.
        given: Texts of the problem: what stands in them is nobody's words.
    """

    def __init__(self, team: Sequence[AgentSpec], given: Sequence[str] = ()) -> None:
        self.said: list[tuple[str, str, str]] = []
        """Of each turn its agent, what was sent to the program, and the words of it."""
        self._tags = role_tags(team)
        self._given = frozenset(text.strip() for text in given if text.strip())

    def read(self, asked: TurnRequest) -> None:
        """Reads a request, against what has been said by then; tags that words forge are harmless in it."""
        asked.written = [self._written(asked.agent, message) for message in asked.messages]

    def reply(self, turn: TurnRecord, asked: TurnRequest, share_thoughts: bool) -> dict[str, Any]:
        """Enters a turn, and returns it as its program gets it: calls, where it offered tools, as ``tool_calls``."""
        heard = turn.text if share_thoughts else spoken(turn.text)
        content, calls = _SURROGATE.sub("\ufffd", heard), list[dict[str, Any]]()
        if asked.tools and asked.choice != "none":
            content, calls = _called(content, asked.tools, turn.index)
            calls = calls if asked.parallel else calls[:1]
        self.said.append((turn.agent, content, content.strip()))
        extras: Mapping[str, Any] = turn.extras or {}
        message = {"content": content or None, "tool_calls": calls} if calls else {"content": content}
        finish = "tool_calls" if calls else "length" if extras.get("stop_reason") == "length" else "stop"
        read, wrote = int(extras.get("prompt_tokens") or 0), int(extras.get("tokens") or 0)
        usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        return {"message": message, "finish_reason": finish, "usage": usage}

    def _written(self, agent: str, message: Mapping[str, Any]) -> Written:
        role, text = message["role"], message["content"]
        if role == "assistant" and (turn := self._whole(agent, message)) is not None:
            return Written("assistant", "", (turn,), whole=True)
        if role in ("system", "developer"):
            return Written("system", *self._found(text, SHORT))
        if role in ("tool", "function"):
            text = f"[feedback]\n{text}"
        return Written("assistant" if role == "assistant" else "user", *self._found(text))

    def _whole(self, agent: str, message: Mapping[str, Any]) -> int | None:
        """Returns the turn that an assistant's message is: of its call's id, or the agent's own of the same words."""
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            ours = _OURS.fullmatch(str(call.get("id", ""))) if isinstance(call, Mapping) else None
            if ours is not None and int(ours[1]) < len(self.said):
                return int(ours[1])
        own = (i for i, (who, sent, _) in enumerate(self.said) if who == agent and sent == message["content"])
        return max(own, default=None)

    def _found(self, text: str, shortest: int = 1) -> tuple[str, tuple[int, ...]]:
        """Returns a text with the words that are found in it made harmless, and the turns whose words these are.

        Longer words are looked for first, the problem's among them, and what is found is not looked at again. Of turns
        with equal words, as many of the latest are meant as stand in the text.
        """
        pieces = [(text, True)]
        turns: dict[str, list[int]] = {}
        for i, (_, _, words) in enumerate(self.said):
            turns.setdefault(words, []).append(i)
        quoted: list[int] = []
        for words in sorted([*turns, *self._given.difference(turns)], key=len, reverse=True):
            if len(words) < shortest:
                break
            if words not in turns:
                pieces, _ = _cut(pieces, words, words)
                continue
            pieces, times = _cut(pieces, words, neutralise(words, self._tags))
            for line in () if times else map(str.strip, words.splitlines()):
                if len(line) >= SHORT:
                    pieces, more = _cut(pieces, line, neutralise(line, self._tags))
                    times = max(times, more)
            quoted += turns[words][-times:] if times else []
        return "".join(piece for piece, _ in pieces), tuple(quoted)


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
    return 0 < i < len(text) and text[i - 1].isalnum() and text[i].isalnum()


def _called(text: str, tools: Sequence[Mapping[str, Any]], index: int) -> tuple[str, list[dict[str, Any]]]:
    """Returns the words of a reply and its calls, whatever the dialect; one that cannot be read is all words."""
    from marft_envs.families.tools.dialects import parse

    functions = [tool.get("function") for tool in tools]
    schemas = {str(f.get("name")): f.get("parameters") or {} for f in functions if isinstance(f, Mapping)}
    reply = parse(text, "any", schemas)
    if reply.error or not reply.calls:
        return text, []
    named = [{"name": c.name, "arguments": json.dumps(dict(c.arguments), ensure_ascii=False)} for c in reply.calls]
    return reply.words, [{"id": f"call_{index}_{k}", "type": "function", "function": f} for k, f in enumerate(named)]
