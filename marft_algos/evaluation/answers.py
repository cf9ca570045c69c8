"""Plays a user's text as a task, with whatever replies: ``marft serve``, and trained teams in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from marft_algos.evaluation.changes import SERVED
from marft_algos.types import Generation, StopReason
from marft_envs import FlexEnv
from marft_envs.core.types import Episode, optional
from marft_envs.errors import ConfigError, MarftError

Message = Mapping[str, str]
Reply = Callable[[str, Sequence[Message]], str | Generation]
"""(agent, chat messages) -> what the agent says; of an engine's with its tokens counted."""


class RefusedPrompt(MarftError):
    """A problem that the team cannot be asked: its prompt is too long, or an endpoint refuses it."""

    code = "refused"


def check_answers(env: FlexEnv) -> None:
    """Checks that a user's text can be a task of an environment that has begun.

    Raises:
        ConfigError: A task is more than a text.
    """
    if (pose := optional(env.unwrapped.task, "pose")) is None:
        raise ConfigError(
            f"A task of {env.unwrapped.env_id} is more than a text, so no message can be one. Expected a"
            " team of the families math, rag or cases, or a task of your own with pose(text): docs/custom-tasks.md"
        )
    pose("")


def answered(env: FlexEnv, problem: str, reply: Reply, options: Mapping[str, Any] | None = None) -> Episode:
    """Plays a user's text as a task; returns the record, which has no score, and the prompt of each turn.

    Raises:
        ConfigError: See ``check_answers``.
        MarftError: There was no reply, or the team did not come to an answer.
        RefusedPrompt: A prompt is refused: the text is too long.
    """
    base = env.unwrapped
    env.reset(seed=0, options=dict(options or {}))
    check_answers(env)
    optional(base.task, "pose")(problem)
    while not base.done:
        for agent in base.ready_agents:
            messages = base.messages(agent)
            said = reply(agent, messages)
            base.select(agent)
            base.attach(agent, {"messages": messages, **({} if isinstance(said, str) else _counted(said))})
            env.step(said if isinstance(said, str) else said.text)
    episode = base.episode
    if episode.failed or not episode.turns:
        raise MarftError(f"The team did not come to an answer: {episode.stop_reason}.")
    return replace(episode, success=None, metrics={}, info={SERVED: True})


def _counted(said: Generation) -> dict[str, Any]:
    """Returns what is kept of a reply: tokens, and why it ended.

    Raises:
        RefusedPrompt: Its prompt was.
    """
    if said.stop_reason is StopReason.REFUSED:
        refused = RefusedPrompt(f"The task cannot be played: {said.error}.")
        refused.code = "context_length_exceeded" if "context" in said.error else "refused"
        raise refused
    read, wrote = said.usage or (0, len(said.action_ids))
    return {"prompt_tokens": read, "tokens": wrote, "stop_reason": str(said.stop_reason)}


def only_message(messages: Sequence[Message]) -> str:
    """Returns the text of chat messages of which there is one, a user's.

    Raises:
        ConfigError: They ask for more than an answer to one message.
    """
    roles = [message["role"] for message in messages]
    if roles != ["user"]:
        raise ConfigError(
            f"This team answers one task per request, and was sent messages of {', '.join(roles)[:80]}."
            " Expected a message of a user, alone, with all that counts."
        )
    if not messages[0]["content"].strip():
        raise ConfigError("Expected a message of a user, of text: this one is empty.")
    return messages[0]["content"]
