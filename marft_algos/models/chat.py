"""How models are spoken to: chat templates, which token closes a reply, and which agent plays which policy.

No weights are needed: whatever plays episodes needs this and an engine, so it can run where no model is loaded.
"""

from __future__ import annotations

import itertools
import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from marft_algos.models import DATE, markers
from marft_envs.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from marft_envs.call_formats import CallFormat

Tools = Sequence[Mapping[str, Any]]
"""Tools in the form of OpenAI's chat API."""
Messages = Sequence[Mapping[str, Any]]
"""A conversation, with roles system, user and assistant."""
_MARK = "zqx{}zqx"
"""Text that no template holds by itself."""
_MARKED = re.compile(r"zqx\d+zqx")
_CANNOT_RENDER = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""What a template raises that has no place for what a probe shows it."""
_OTHERS = frozenset(("user", "tool"))
"""Roles whose messages hold what others say: tasks, peers, tools. Profiles and an agent's own words are not theirs."""


@dataclass(frozen=True, slots=True)
class Said:
    """A turn of an agent, as it was read and sampled."""

    rendered: list[int]
    """The prompt as the template wrote it."""
    prompt: list[int]
    """As the agent read it: with its own earlier words as they were sampled."""
    reply: list[int]


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
    date: str = DATE
    """The day that it is for the template (``strftime_now``), as YYYY-MM-DD, at midnight."""
    context: int = 1 << 30
    """Most tokens of prompt and reply together."""
    end_ids: tuple[int, ...] = ()
    """Tokens that close a reply."""
    end_text: str = ""
    """Text that closes a reply, too, where the template writes no token behind one; see ``closing``."""
    vocabulary: int = 1 << 30
    """Token ids that the model knows."""
    content_breaker: markers.Breaker = field(init=False)
    """Breaks all markers up, in what others say."""
    profile_breaker: markers.Breaker = field(init=False)
    """Breaks up what would end the message, in profiles and in an agent's own words: calls and thoughts stay."""
    system: bool = field(init=False)
    """Whether the template shows a system message."""
    _end: int | None = field(init=False, default=None, repr=False)
    """What ``reply_ids`` ends with, once it has been asked for."""
    _special_ids: tuple[frozenset[int], frozenset[int]] | None = field(init=False, default=None, repr=False)
    """What ``text_of`` keeps and drops, once it has been asked for."""
    call_format: CallFormat | None = field(init=False, default=None)
    """The form in which the template writes calls; None unless it shows tools."""

    def __post_init__(self) -> None:
        """Asks the template what it takes.

        Raises:
            ConfigError: The template leaves out plain text; or tools are to be shown by one that shows none, or whose
                calls cannot be read back.
        """
        profile, task = _MARK.format(1), _MARK.format(2)
        probe = [{"role": "system", "content": profile}, {"role": "user", "content": task}]
        shown = self._text(probe)
        self.system = shown is not None and profile in shown and task in shown
        self._check_renders(self._folded(probe))
        special, framing, written, lines = markers.special(self.tokenizer), set(), set(), set()
        for gap, frame, opening in self._written():
            written |= markers.tags(gap)
            framing |= markers.tags(frame)
            lines |= markers.heads(opening)
        everything = special | markers.added(self.tokenizer) | framing | written | markers.spelt(self.tokenizer)
        self.content_breaker = markers.Breaker(self.tokenizer, everything, lines)
        self.profile_breaker = markers.Breaker(self.tokenizer, special | framing, lines)
        if task not in (self._text(self._folded(probe)) or ""):
            raise ConfigError(
                f"The chat template of '{self.spec}' leaves out what messages say: it takes lists of parts (text,"
                " images). Expected one that takes plain text. Choose a text model."
            )
        self._check_opens(self._folded(probe))
        if self.tools:
            from marft_algos.models.probing import call_format_of

            self.call_format = call_format_of(self.spec, self._text, self._folded(probe))
            own = {mark for mark in (*self.call_format.marks, *self.call_format.also) if not self.call_format.frames}
            self.profile_breaker = markers.Breaker(self.tokenizer, (special | framing) - own, lines)

    def _check_renders(self, chat: list[dict[str, str]]) -> None:
        """Refuses a template that is no template, or takes no profile and task at all."""
        try:
            self._apply(chat, tokenize=False)
        except _CANNOT_RENDER as error:
            raise ConfigError(
                f"The chat template of '{self.spec}' cannot write a conversation of"
                f" {' and '.join(message['role'] for message in chat)}: {type(error).__name__}: {error}. Expected a"
                " Jinja template that takes user and assistant messages by turns. Fix tokenizer.chat_template, give"
                " another (--chat-template FILE), or choose an instruction model."
            ) from error

    def _check_opens(self, chat: list[dict[str, str]]) -> None:
        """Refuses a template that leaves out of prompts what it writes before a reply: others would speak next."""
        last, reply = chat[-1]["content"], _MARK.format(4)
        prompt, bare = self._text(chat) or "", self._text(chat, add_generation_prompt=False) or ""
        whole = self._text([*chat, {"role": "assistant", "content": reply}], add_generation_prompt=False) or ""
        if prompt != bare or last not in prompt or last not in whole or reply not in whole:
            return
        tail, before = prompt.rpartition(last)[2], whole.rpartition(last)[2].partition(reply)[0]
        if tail.startswith(before.rstrip()):
            return  # such as [/INST], which closes the task and opens the reply
        raise ConfigError(
            f"The chat template of '{self.spec}' does not open the reply: a prompt ends with {tail!r}, and a reply"
            f" begins behind {before!r}. Expected at the template's end: {{% if add_generation_prompt %}}"
            f"{{{{ {before.removeprefix(tail)!r} }}}}{{% endif %}}. Add that to tokenizer.chat_template and save it"
            " (tokenizer.save_pretrained), give another (--chat-template FILE), or choose an instruction model."
        )

    def render(self, conversations: Sequence[Messages], tools: Sequence[Tools] | None = None) -> list[list[int]]:
        """Returns prompt ids, with the opening of the assistant's turn.

        Markers written out in a message are broken up first, so a message cannot close its own turn or open another.

        Args:
            conversations: messages with roles system, user and assistant.
            tools: what each speaker can call; shown if ``self.tools``.

        Raises:
            ConfigError: the template refuses a conversation.
        """
        chats = []
        for messages in conversations:
            chat = []
            for message in messages:
                if "images" in message:
                    says = f"The task shows images, and '{self.spec}' reads text. Let a hosted model play this agent"
                    raise ConfigError(f'{says}: --engines AGENT=\'{{kind="openai", model="…"}}\'')
                breaker = self.content_breaker if message["role"] in _OTHERS else self.profile_breaker
                chat.append({**message, "content": breaker.broken(message["content"])})
            chats.append(self._folded(chat))
        try:
            if not self.tools or tools is None:
                return self._apply(chats, tokenize=True)
            return [
                self._apply(chat, tokenize=True, tools=self._described(own_tools) or None)
                for chat, own_tools in zip(chats, tools, strict=True)
            ]
        except TemplateError as error:
            roles = [m["role"] for m in conversations[0]]
            raise ConfigError(
                f"The chat template of '{self.spec}' refuses a conversation with roles {roles}: {error}. Expected a"
                " template that takes user and assistant messages by turns. Choose an instruction model."
            ) from error

    def text_of(self, ids: Sequence[int]) -> str:
        """Returns a reply as text: without special tokens, but for those that calls and thoughts are written with.

        Readers of calls would not see a call whose marks are gone. A text that closes it is no part of it.
        """
        return self._decoded(ids).partition(self.end_text)[0] if self.end_text else self._decoded(ids)

    def _decoded(self, ids: Sequence[int]) -> str:
        kept, dropped = self._special()
        if kept.isdisjoint(ids):
            return str(self.tokenizer.decode(ids, skip_special_tokens=True))
        return str(self.tokenizer.decode([i for i in ids if i not in dropped], skip_special_tokens=False))

    def as_sampled(self, rendered: list[int], said: Said) -> list[int]:
        """Returns a prompt that holds an agent's last turn as it was sampled, not as its text is tokenised again.

        Where the template writes that turn otherwise, or the reply holds control tokens that its text does not, the
        prompt stays as it is.

        Args:
            rendered: The prompt as the template writes it.
            said: The turn before.
        """
        if self.end_text and self.end_text in self._decoded(said.reply):
            return rendered
        body = said.reply[:-1] if said.reply and said.reply[-1] in self.end_ids else said.reply
        start, dropped = len(said.rendered), self._special()[1]
        if rendered[:start] != said.rendered or not dropped.isdisjoint(body):
            return rendered
        again = self.tokenizer.encode(self.text_of(body), add_special_tokens=False)
        if rendered[start : start + len(again)] != again:
            return rendered
        return [*said.prompt, *body, *rendered[start + len(again) :]]

    def token_at(self, ids: Sequence[int], text: str, end: int) -> int:
        """Returns which token of a reply completes the first ``end`` characters of its text.

        The text's end is the last token's: who ends a reply there has decided so. Nothing is tokenised again.
        """
        if end == len(text):
            return len(ids) - 1
        return bisect_left(range(len(ids) - 1), True, key=lambda i: self.text_of(ids[: i + 1]).startswith(text[:end]))

    def _special(self) -> tuple[frozenset[int], frozenset[int]]:
        """Returns the special tokens that stay in a reply's text, and those that do not."""
        if self._special_ids is None:
            from marft_envs.call_formats import MARKS

            named = dict(zip(self.tokenizer.all_special_ids, self.tokenizer.all_special_tokens, strict=False))
            special = named | {int(i): t.content for i, t in self.tokenizer.added_tokens_decoder.items() if t.special}
            kept = frozenset(i for i, token in special.items() if token in MARKS and i not in self.end_ids)
            self._special_ids = kept, frozenset(special) - kept
        return self._special_ids

    def neutralise(self, text: str) -> str:
        """Returns what others say with every marker broken up (:mod:`.markers`), the rest as it was."""
        return self.content_breaker.broken(text)

    def _described(self, value: Any) -> Any:
        """Returns tools with the words of their descriptions neutralised."""
        if isinstance(value, str):
            return self.neutralise(value)
        if isinstance(value, Mapping):
            return {key: self._described(below) for key, below in value.items()}
        return [self._described(below) for below in value] if isinstance(value, list | tuple) else value

    def _written(self) -> Iterator[tuple[str, str, str]]:
        """Yields what the template writes around the messages of many conversations, text by text.

        Each text comes with the part of it that frames a system or user message, and the part that opens a message.
        """
        profile, task, answer, more, name = (_MARK.format(i) for i in range(5))
        system, user = {"role": "system", "content": profile}, {"role": "user", "content": task}
        reply: Mapping[str, Any] = {"role": "assistant", "content": answer}
        question = {"role": "user", "content": more}
        result = {"role": "tool", "content": more, "name": name, "tool_call_id": "call00000"}
        schema = {"name": name, "description": answer, "parameters": {"type": "object", "properties": {}}}
        calls: list[Mapping[str, Any]] = []
        for arguments in ({name: answer}, json.dumps({name: answer})):
            call = {"id": "call00000", "type": "function", "function": {"name": name, "arguments": arguments}}
            calls.append({**reply, "tool_calls": [call]})
        rests: list[list[Mapping[str, Any]]] = [[], [question], [reply, question]]
        heads: list[list[Mapping[str, Any]]] = [[system, user], [user]]
        tool_lists = (None, [{"type": "function", "function": schema}])
        variants: list[dict[str, Any]] = [{}, {"add_generation_prompt": False}, {"enable_thinking": not self.thinking}]
        for head in heads:
            talks = [head, [*head, reply, question]]
            uses = [[*head, call, result, *rest] for call in calls for rest in rests]
            thoughts = [[*head, {**reply, "reasoning_content": more}], [*head, reply]]
            for chat, tools, options in itertools.product([*talks, *thoughts, *uses], tool_lists, variants):
                gaps = _MARKED.split(self._text(chat, tools=tools, **options) or "")
                yield from ((gap, "", "") for gap in gaps)
                if chat in talks and tools is None and len(gaps) == len(chat) + 1:
                    closes = "assistant" if options.get("add_generation_prompt", True) else ""
                    yield from markers.framing([message["role"] for message in chat], gaps, closes)

    def reply_ids(self, text: str) -> list[int]:
        """Returns the tokens of a reply that somebody else wrote, with the one that closes it.

        Markers that would end the message are broken up in it, as in an agent's own earlier words.
        """
        if self._end is None:
            closing = self.closing()
            self._end = int(self.tokenizer.eos_token_id if closing is None else closing)
        return [*self.tokenizer.encode(self.profile_breaker.broken(text), add_special_tokens=False), self._end]

    def closing(self) -> int | None:
        """Returns the control token that the template writes behind a reply; if none, ``end_text`` is what it does."""
        task, more, reply = (_MARK.format(i) for i in (2, 3, 4))
        chat = [{"role": "user", "content": task}, {"role": "assistant", "content": reply}]
        behind = (self._text(chat, add_generation_prompt=False) or "").partition(reply)[2]
        if (token := markers.token_behind(self.tokenizer, behind)) is None:
            shown = self._text([*chat, {"role": "user", "content": more}], add_generation_prompt=False) or ""
            self.end_text = shown.partition(reply)[2].partition(more)[0].rstrip(" ")
        return token

    def end_of(self, ids: Sequence[int]) -> int:
        """Returns after how many tokens a reply has ended, the end included; 0: it has not."""
        return markers.ended(ids, self.end_ids, self.end_text, self._decoded)

    def _folded(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        if self.system or not messages or messages[0]["role"] != "system":
            return messages
        profile, rest = messages[0]["content"], messages[1:]
        if rest and rest[0]["role"] == "user":
            return [{**rest[0], "content": f"{profile}\n\n{rest[0]['content']}".rstrip()}, *rest[1:]]
        return [{"role": "user", "content": profile}, *rest]

    def _apply(self, chat: Any, **options: Any) -> Any:
        from marft_algos.models import template_date

        template = template_date.pinned(self.tokenizer.get_chat_template(tools=options.get("tools")), self.date)
        settings = {"add_generation_prompt": True, "return_dict": False, "enable_thinking": self.thinking}
        return self.tokenizer.apply_chat_template(chat, **settings | {"chat_template": template} | options)

    def _text(self, chat: Sequence[Mapping[str, Any]], **options: Any) -> str | None:
        """Returns a conversation as text; None if the template refuses it."""
        try:
            return str(self._apply(chat, tokenize=False, **options))
        except _CANNOT_RENDER:
            return None


class Renderer:
    """Turns agents' messages into prompts.

    Args:
        chats: Policy id -> chat template of its model. Hosted policies have none: they read the messages themselves.
        agents: Agent -> the policy that plays it.
        trained: Policies that are updated.
    """

    def __init__(self, chats: Mapping[str, Chat], agents: Mapping[str, str], trained: Collection[str] = ()) -> None:
        self._chats, self._agents, self._trained = dict(chats), dict(agents), frozenset(trained)

    @property
    def policies(self) -> list[str]:
        """Policies with a template, in the order the agents name them."""
        return list(self._chats)

    @property
    def agents(self) -> list[str]:
        """Agents whose policy has a template: hosted ones are left out."""
        return [agent for agent, policy in self._agents.items() if policy in self._chats]

    def plays(self, agent: str) -> bool:
        """Returns whether a policy plays the agent, and not a wrapper of the environment."""
        return agent in self._agents

    def policy_of(self, agent: str) -> str:
        """Returns the policy an agent plays with, hosted or local."""
        if agent not in self._agents:
            raise ConfigError(f"No policy for agent '{agent}'. {did_you_mean(agent, self._agents)}")
        return self._agents[agent]

    def trains(self, policy: str) -> bool:
        """Returns whether this policy is updated; frozen and hosted ones are not."""
        return policy in self._trained

    def chat(self, policy: str) -> Chat:
        """Returns the chat template of a policy's model, with its tokenizer, context and end tokens."""
        if policy not in self._chats:
            raise ConfigError(f"Unknown policy '{policy}'. {did_you_mean(policy, self._chats)}")
        return self._chats[policy]

    def tokenizer(self, policy: str) -> Any:
        """Returns the tokenizer of a policy's model."""
        return self.chat(policy).tokenizer

    def shows_tools(self, policy: str) -> bool:
        """Returns whether the policy's prompts hold its agent's tools in the template's own form."""
        return self.chat(policy).tools

    def begin(self, policy: str, prefix: str) -> list[int]:
        """Returns the beginning of a reply, which a task has set, as tokens that stand behind the prompt.

        Raises:
            ConfigError: The policy is a hosted model's, which begins its replies itself.
        """
        if policy not in self._chats:
            raise ConfigError(
                f"The task has begun a reply of '{policy}', which a hosted model plays: it cannot go on from there."
                " Next: a model with weights here (leave out --engines for it)."
            )
        return list(self.tokenizer(policy).encode(prefix, add_special_tokens=False))

    def render(self, policy: str, messages: Messages, tools: Tools = ()) -> list[int]:
        """Returns the prompt of one conversation as token ids, by the policy's template; tools if ``shows_tools``."""
        return self.render_many(policy, [messages], [tools])[0]

    def render_many(
        self, policy: str, conversations: Sequence[Messages], tools: Sequence[Tools] | None = None
    ) -> list[list[int]]:
        """Returns the prompts of many conversations; see ``render``."""
        return self.chat(policy).render(conversations, tools) if conversations else []
