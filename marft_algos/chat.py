"""How a model is spoken to: its chat template, what that takes, and which token closes a reply."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError

from marft_envs.errors import ConfigError

Tools = Sequence[Mapping[str, Any]]
"""Tools in the form of OpenAI's chat API."""
_MARK = "zqx{}zqx"
"""Text that no template holds by itself."""


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
    control: re.Pattern[str] | None = field(init=False)
    """Matches the tokenizer's control tokens written out as text."""
    system: bool = field(init=False)
    """Whether the template shows a system message."""

    def __post_init__(self) -> None:
        """Asks the template what it takes.

        Raises:
            ConfigError: tools are to be shown by a template that shows none.
        """
        self.control = _control_pattern(self.tokenizer)
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

        Control tokens written out in a message are broken up first, so a message cannot close its own turn.

        Args:
            conversations: messages with roles system, user and assistant.
            tools: what each speaker can call; shown if ``self.tools``.

        Raises:
            ConfigError: the template refuses a conversation.
        """
        chats = [
            self._folded([{**m, "content": self.neutralise(m["content"])} for m in messages])
            for messages in conversations
        ]
        try:
            if not self.tools or tools is None:
                return self._apply(chats, tokenize=True)
            return [
                self._apply(chat, tokenize=True, tools=list(own) or None)
                for chat, own in zip(chats, tools, strict=True)
            ]
        except TemplateError as error:
            roles = [m["role"] for m in conversations[0]]
            raise ConfigError(
                f"The chat template of '{self.spec}' refuses a conversation with roles {roles}: {error}. Expected a"
                " template that takes user and assistant messages by turns. Choose an instruction model."
            ) from error

    def neutralise(self, text: str) -> str:
        """Puts a space inside every control token that ``text`` spells out."""
        return self.control.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text) if self.control else text

    def closing(self) -> int | None:
        """Returns the control token that the template writes behind a reply; None if it writes none.

        Not every model's generation settings list it (Gemma's long did not).
        """
        reply = _MARK.format(4)
        chat = [{"role": "user", "content": _MARK.format(2)}, {"role": "assistant", "content": reply}]
        shown = self._text(chat, add_generation_prompt=False)
        if shown is None or reply not in shown or self.control is None:
            return None
        found = self.control.match(shown.split(reply)[-1].lstrip())
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

    def _text(self, chat: list[dict[str, str]], **options: Any) -> str | None:
        """A conversation as text; None if the template refuses it."""
        try:
            return str(self._apply(chat, tokenize=False, **options))
        except TemplateError:
            return None


def _control_pattern(tokenizer: Any) -> re.Pattern[str] | None:
    names = {t.content for t in tokenizer.added_tokens_decoder.values() if t.special} | set(
        tokenizer.all_special_tokens
    )
    spelled = sorted((name for name in names if len(name) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, spelled))) if spelled else None
