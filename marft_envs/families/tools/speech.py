"""How the agents of a team write calls, each in its format, and what they say to the user."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from marft_envs.call_formats import CALL_FORMATS, DEFAULT, CallFormat, ToolReply, call_format, parse
from marft_envs.call_formats.call import ToolCall
from marft_envs.core.teams import Team
from marft_envs.errors import ConfigError, check_known
from marft_envs.families.tools.types import Tool

ANY = "any"
"""Not a call format: whichever a reply is written in. Prompts and written calls use the default format."""

BRIEF = "The customer's brief; 'you' is the customer, and every action that it asks for counts as confirmed:\n"
TELL = "\nWhat the customer asks to know has to be told to the customer in words."
"""Behind the brief of a task of which words are asked, too: silence does not settle it."""

Named = str | Mapping[str, str]
"""A call format's name, or agent or role -> name."""


def by_agent(named: Named, team: Team) -> dict[str, str]:
    """Returns agent -> the name of its call format; agents that a mapping leaves out have the default.

    Raises:
        ConfigError: An agent, a role or a call format that there is not.
    """
    known = {name for agent in team.agents for name in (agent.name, agent.role)}
    names = named.values() if isinstance(named, Mapping) else [named]
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"call_format is {named!r}; expected a name, or a table of agent or role = name. What there is:"
            " docs/call-formats.md."
        )
    table = dict.fromkeys(known, named) if isinstance(named, str) else dict(named)
    check_known(table, known, "There is no agent or role '{}' to have a call format.")
    after = "What each is: docs/call-formats.md."
    check_known(table.values(), [*CALL_FORMATS, ANY], "There is no call format '{}'.", after=after)
    return {agent.name: table.get(agent.name, table.get(agent.role, DEFAULT)) for agent in team.agents}


def with_call_formats(team: Team, call_formats: Mapping[str, str]) -> Team:
    """Returns the team with profiles that name each agent's own form of calls, where they named the default's."""
    usual = call_format(DEFAULT).use
    agents = (
        replace(agent, prompt=agent.prompt.replace(usual, _of(call_formats.get(agent.name, DEFAULT)).use))
        for agent in team.agents
    )
    return replace(team, agents=tuple(agents))


def _of(name: str) -> CallFormat:
    return call_format(DEFAULT if name == ANY else name)


class Speech:
    """Reads and writes the calls of a team's agents.

    Args:
        call_formats: Agent -> the name of its call format, or ``any``.
        tools: Agent -> the tools that it may hold.

    Raises:
        ConfigError: A tool of an agent, or one of its arguments, has a name that the agent's call format cannot write.
    """

    def __init__(self, call_formats: Mapping[str, str], tools: Mapping[str, Sequence[Tool]]) -> None:
        self.call_formats = dict(call_formats)
        self.forms = {agent: _of(name) for agent, name in call_formats.items()}
        """Agent -> the format in its prompt, in which it writes."""
        self._schemas = {agent: {tool.name: tool.parameters for tool in held} for agent, held in tools.items()}
        for agent, held in tools.items():
            for tool in held:
                try:
                    self.write(agent, [ToolCall(tool.name, dict.fromkeys(tool.parameters.get("properties", {}), 1))])
                except ValueError as error:
                    raise ConfigError(
                        f"The tool '{tool.name}' of '{agent}' cannot be called in the format "
                        f"'{self.call_formats[agent]}': {error}. Rename it, or choose another call_format=."
                    ) from error

    def read(self, agent: str, text: str) -> ToolReply:
        """Returns the calls of an agent's reply, or the error that keeps it from being read."""
        return parse(text, self.call_formats[agent], self._schemas[agent])

    def write(self, agent: str, calls: Sequence[ToolCall]) -> str:
        """Returns a reply of an agent that asks for these calls.

        Raises:
            ValueError: A name cannot be written in the agent's call format.
        """
        return self.forms[agent].write(calls, self._schemas[agent])

    def restored(self, agent: str, text: str) -> str:
        """Returns an agent's own neutralised words with its format's marks whole, so that it keeps writing them so."""
        text = self.forms[agent].restored(text)
        return text.replace("< tool_call>", "<tool_call>").replace("< /tool_call>", "</tool_call>")


@dataclass
class UserTalk:
    """The messages of an episode to and from the user.

    Without a user-agent, the messages to the user are the words of the replies that end its turns. A user-agent
    receives every message that the others write to it; their talk is new as long as no side repeats itself.
    """

    user: str = ""
    """The user-agent; "" where there is none."""
    messages: list[str] = field(default_factory=list)
    """Messages to the user, in order; without thoughts and calls."""
    replies: set[tuple[str, str]] = field(default_factory=set)
    """Agent and words, case and marks apart, of this user turn."""

    def receive(self, agent: str, spoken: str, calls: bool, over: bool) -> bool:
        """Notes a reply; returns whether it said something new to, or as, the user-agent.

        Args:
            agent: Who says it.
            spoken: The words of the reply.
            calls: It holds calls; beside these, nothing is said to a user-agent.
            over: The user's turn is over with it.
        """
        if not (over if not self.user else not calls):
            return False
        if agent != self.user and spoken:
            self.messages.append(spoken)
        plain = (agent, " ".join(re.findall(r"\w+", spoken.casefold())))
        new = bool(self.user and plain[1]) and plain not in self.replies
        self.replies.add(plain)
        return new


def is_said(wanted: str, messages: Sequence[str]) -> bool:
    """Whether a text stands, whatever its case, in a message without its commas: the rule of τ-bench and τ²-bench."""
    return any(wanted.lower() in text.lower().replace(",", "") for text in messages)
