"""How a model is spoken to: its chat template, what that takes, and which token closes a reply."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError

from marft_algos.models import markers
from marft_envs.errors import ConfigError

Tools = Sequence[Mapping[str, Any]]
"""Tools in the form of OpenAI's chat API."""
_MARK = "zqx{}zqx"
"""Text that no template holds by itself."""
_MARKED = re.compile(r"zqx\d+zqx")
_CANNOT_RENDER = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""What a template raises that has no place for what a probe shows it."""
_OTHERS = frozenset(("user", "tool"))
"""Roles whose messages hold what others say: tasks, peers, tools. Profiles and an agent's own words are not theirs."""


@dataclass(slots=True)
class Chat:
    """Renders conversations by a tokenizer's chat template.

    Some families' templates have no place for a system message (Gemma, older Mistral): they refuse it or leave it
    out. The profile then stands at the head of the first user message, as those families are trained.
    """

    spec: str
    """The model, for messages."""
    tokenizer: Any
    thinking: bool = False
    """Of models that can think aloud first and have a switch for it in their template (Qwen3)."""
    tools: bool = False
    """Whether agents' tools are handed to the template."""
    context: int = 1 << 30
    """Most tokens of prompt and reply together."""
    end_ids: tuple[int, ...] = ()
    """Tokens that close a reply."""
    others: markers.Breaker = field(init=False)
    """Breaks all markers up, in what others say."""
    own: markers.Breaker = field(init=False)
    """Breaks up what would end the message, in profiles and in an agent's own words: calls and thoughts stay."""
    system: bool = field(init=False)
    """Whether the template shows a system message."""

    def __post_init__(self) -> None:
        """Asks the template what it takes.

        Raises:
            ConfigError: tools are to be shown by a template that shows none.
        """
        special, framing, written, lines = markers.special(self.tokenizer), set(), set(), set()
        for gap, frame, opening in self._written():
            written |= markers.tags(gap)
            framing |= markers.tags(frame)
            lines |= markers.heads(opening)
        everything = special | markers.added(self.tokenizer) | framing | written
        self.others = markers.Breaker(self.tokenizer, everything, lines)
        self.own = markers.Breaker(self.tokenizer, special | framing, lines)
        profile, task = _MARK.format(1), _MARK.format(2)
        probe = [{"role": "system", "content": profile}, {"role": "user", "content": task}]
        shown = self._text(probe)
        self.system = shown is not None and profile in shown and task in shown
        name = _MARK.format(3)
        schema = {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}}
        tool = {"type": "function", "function": schema}
        if self.tools and name not in (self._text(self._folded(probe), tools=[tool]) or ""):
            raise ConfigError(
                f"The chat template of '{self.spec}' shows no tools. Leave --template-tools off (the environment then"
                " writes them into the profiles, unless its show_tools is 'none'), or choose a model whose template"
                " takes tools."
            )

    def render(
        self, conversations: Sequence[Sequence[Mapping[str, str]]], tools: Sequence[Tools] | None = None
    ) -> list[list[int]]:
        """Returns prompt ids, with the opening of the assistant's turn.

        Markers written out in a message are broken up first, so a message cannot close its own turn or open another.

        Args:
            conversations: messages with roles system, user and assistant.
            tools: what each speaker can call; shown if ``self.tools``.

        Raises:
            ConfigError: the template refuses a conversation.
        """
        chats = [
            self._folded([{**m, "content": self._breaker(m["role"]).broken(m["content"])} for m in messages])
            for messages in conversations
        ]
        try:
            if not self.tools or tools is None:
                return self._apply(chats, tokenize=True)
            return [
                self._apply(chat, tokenize=True, tools=self._described(own) or None)
                for chat, own in zip(chats, tools, strict=True)
            ]
        except TemplateError as error:
            roles = [m["role"] for m in conversations[0]]
            raise ConfigError(
                f"The chat template of '{self.spec}' refuses a conversation with roles {roles}: {error}. Expected a"
                " template that takes user and assistant messages by turns. Choose an instruction model."
            ) from error

    def neutralise(self, text: str) -> str:
        """Returns what others say with every marker broken up (:mod:`.markers`), the rest as it was."""
        return self.others.broken(text)

    def _breaker(self, role: str) -> markers.Breaker:
        return self.others if role in _OTHERS else self.own

    def _described(self, value: Any) -> Any:
        """Tools with the words of their descriptions neutralised."""
        if isinstance(value, str):
            return self.neutralise(value)
        if isinstance(value, Mapping):
            return {key: self._described(below) for key, below in value.items()}
        return [self._described(below) for below in value] if isinstance(value, list | tuple) else value

    def _written(self) -> Iterator[tuple[str, str, str]]:
        """What the template writes around messages: all of it, what frames a system or user message, what opens one."""
        profile, task, said, more, name = (_MARK.format(i) for i in range(5))
        system, user = {"role": "system", "content": profile}, {"role": "user", "content": task}
        reply: Mapping[str, Any] = {"role": "assistant", "content": said}
        again, result = (
            {"role": "user", "content": more},
            {"role": "tool", "content": more, "name": name, "tool_call_id": "call00000"},
        )
        schema = {"name": name, "description": said, "parameters": {"type": "object", "properties": {}}}
        calls: list[Mapping[str, Any]] = []
        for arguments in ({name: said}, json.dumps({name: said})):
            call = {"id": "call00000", "type": "function", "function": {"name": name, "arguments": arguments}}
            calls.append({**reply, "tool_calls": [call]})
        rests: list[list[Mapping[str, Any]]] = [[], [again], [reply, again]]
        heads: list[list[Mapping[str, Any]]] = [[system, user], [user]]
        shown = (None, [{"type": "function", "function": schema}])
        ways: list[dict[str, Any]] = [{}, {"add_generation_prompt": False}, {"enable_thinking": not self.thinking}]
        for head in heads:
            talks = [head, [*head, reply, again]]
            uses = [[*head, call, result, *rest] for call in calls for rest in rests]
            thoughts = [[*head, {**reply, "reasoning_content": more}], [*head, reply]]
            for chat, tools, options in itertools.product([*talks, *thoughts, *uses], shown, ways):
                gaps = _MARKED.split(self._text(chat, tools=tools, **options) or "")
                yield from ((gap, "", "") for gap in gaps)
                if chat in talks and tools is None and len(gaps) == len(chat) + 1:
                    closes = "assistant" if options.get("add_generation_prompt", True) else ""
                    yield from _framing([message["role"] for message in chat], gaps, closes)

    def closing(self) -> int | None:
        """Returns the control token that the template writes behind a reply; None if it writes none.

        Not every model's generation settings list it (Gemma's long did not).
        """
        reply = _MARK.format(4)
        chat = [{"role": "user", "content": _MARK.format(2)}, {"role": "assistant", "content": reply}]
        shown = self._text(chat, add_generation_prompt=False)
        tokens = markers.special(self.tokenizer) | markers.added(self.tokenizer)
        if shown is None or reply not in shown or not tokens:
            return None
        found = re.match(markers.pattern_of(tokens), shown.split(reply)[-1].lstrip())
        return None if found is None else int(self.tokenizer.convert_tokens_to_ids(found[0]))

    def _folded(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        if self.system or not messages or messages[0]["role"] != "system":
            return messages
        profile, rest = messages[0]["content"], messages[1:]
        if rest and rest[0]["role"] == "user":
            return [{**rest[0], "content": f"{profile}\n\n{rest[0]['content']}".rstrip()}, *rest[1:]]
        return [{"role": "user", "content": profile}, *rest]

    def _apply(self, chat: Any, **options: Any) -> Any:
        settings = {"add_generation_prompt": True, "return_dict": False, "enable_thinking": self.thinking}
        return self.tokenizer.apply_chat_template(chat, **{**settings, **options})

    def _text(self, chat: Sequence[Mapping[str, Any]], **options: Any) -> str | None:
        """A conversation as text; None if the template refuses it."""
        try:
            return str(self._apply(chat, tokenize=False, **options))
        except _CANNOT_RENDER:
            return None


def _framing(roles: Sequence[str], gaps: Sequence[str], closes: str) -> Iterator[tuple[str, str, str]]:
    """The gaps of a plain conversation, with the two lines next to each system or user message."""
    for before, gap, after in zip(["", *roles], gaps, [*roles, closes], strict=True):
        lines, theirs = gap.splitlines(keepends=True), ("system", "user")
        opens = lines[-2:] if after in theirs else []
        ends = lines[:2] if before in theirs and after != "assistant" else []
        yield gap, "".join([*opens, *ends]), gap if after else ""
