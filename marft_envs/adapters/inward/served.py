"""The policies of a team, each as a model of its agent's name, for a program that runs elsewhere.

Prompts and replies are those of the same program as an environment (:mod:`marft_envs.adapters.inward.program`). An
agent's own calls come back by their ids, and stand in its next prompt as it wrote them.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from marft_envs.adapters.inward.endpoint import TurnRequest, check_called
from marft_envs.adapters.inward.quotes import Quotes
from marft_envs.core.observation import Message, RolloutObservation, to_messages
from marft_envs.core.transcript import Transcript
from marft_envs.core.types import AgentSpec, TurnRecord
from marft_envs.server.chat import ChatRequest, cut
from marft_envs.server.openai import ChatHandler, OneByOne

KEPT = 4096
"""Calls that are known by their ids; older ones are written as those that a program brings."""


class PolicyReply(NamedTuple):
    """A reply of a policy."""

    text: str
    extras: Mapping[str, Any]
    """``prompt_tokens``, ``tokens`` and ``stop_reason``."""
    logprobs: Sequence[Mapping[str, Any]] | None = None
    """Of each sampled token, if they were asked for."""


Say = Callable[[str, Sequence[Message], Sequence[Mapping[str, Any]], ChatRequest], PolicyReply]
"""(agent, messages, tools, the request) -> what its policy says."""


class PolicyServer(OneByOne):
    """Answers each request by the policy of the agent that it names.

    Args:
        team: The agents.
        say: Who replies.
        share_thoughts: Whether its clients read what an agent thinks aloud.
        port: 0: any that is free.
        key: What clients have to show; None: nothing.
    """

    heeds = ("logprobs",)

    def __init__(
        self,
        team: Sequence[AgentSpec],
        say: Say,
        *,
        share_thoughts: bool = False,
        port: int = 0,
        key: str | None = None,
    ) -> None:
        self._team = {agent.name: agent for agent in team}
        self.models, self._say, self._share_thoughts = tuple(self._team), say, share_thoughts
        self._calls: OrderedDict[str, tuple[TurnRecord, Sequence[Mapping[str, Any]]]] = OrderedDict()
        self._lock = threading.Lock()
        super().__init__(_Handler, port, key=key)

    def reply(self, agent: str, asked: ChatRequest, line: Any) -> dict[str, Any]:
        """Returns the message of a reply, ``finish_reason``, ``usage`` and, if they were asked for, ``logprobs``."""
        turn, quotes = TurnRequest.of(asked, agent, line), Quotes([*self._team.values()])
        said = self._say(agent, self._prompt(quotes, turn), turn.tools, asked)
        role, number = self._team[agent].role, secrets.randbits(64)  # which makes the ids of its calls its own
        record = TurnRecord(number, 0, 0, agent, role, (), said.text, extras=said.extras)
        reply = quotes.reply(record, turn, share_thoughts=self._share_thoughts)
        calls = reply["message"].get("tool_calls", ())
        check_called(asked, agent, calls)
        if cut(said.text, turn.stop) == said.text:
            with self._lock:
                self._calls |= {call["id"]: (record, calls) for call in calls}
                while len(self._calls) > KEPT:
                    self._calls.popitem(last=False)
        return {**reply, **({} if said.logprobs is None else {"logprobs": {"content": said.logprobs, "refusal": None}})}

    def _prompt(self, quotes: Quotes, turn: TurnRequest) -> list[Message]:
        """Returns what an agent reads, with the turns in it whose calls are known as their authors wrote them."""
        task: Any = SimpleNamespace(conversation=lambda agent: turn.written)
        transcript = Transcript([*self._team.values()], task, share_thoughts=self._share_thoughts)
        given = (calls for message in turn.messages if isinstance(calls := message.get("tool_calls"), list))
        ids = [str(call.get("id")) for calls in given for call in calls if isinstance(call, dict)]
        with self._lock:
            known = {said[0].index: said for id in ids if (said := self._calls.get(id)) is not None}
        for i, (record, calls) in enumerate(known.values()):
            transcript.enter(replace(record, index=i))
            quotes.enter_calls(i, calls)
        quotes.read(turn)
        shown = transcript.written(turn.agent)
        assert shown is not None
        profile = AgentSpec(turn.agent, self._team[turn.agent].role, shown[0])
        return to_messages(RolloutObservation(profile, 0, "", shown[1], []))


class _Handler(ChatHandler):
    server: PolicyServer
    most = 4 << 20
    key_expected = "Authorization: Bearer KEY, with the key of marft serve --key"

    def do_POST(self) -> None:
        """Answers a turn."""
        asked = self.chat()
        agent = self.server.named(asked)
        with self.server.turn(self.connection):
            reply = self.server.reply(agent, asked, self.connection)
        self.answer(asked, asked.body.get("model") or agent, reply)
