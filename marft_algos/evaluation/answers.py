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
Words = str | Sequence[Message]
"""What a user asks: a text, or a conversation."""


class RefusedPrompt(MarftError):
    """A problem that the team cannot be asked: its prompt is too long, or an endpoint refuses it."""

    code = "refused"


def check_answers(env: FlexEnv) -> None:
    """Checks that a user's words can be a task of an environment.

    Raises:
        ConfigError: A task is more than a text.
    """
    if (asked := optional(env.unwrapped.task, "asked")) is not None:
        asked([{"role": "user", "content": ""}])
        return
    pose = _pose(env)
    env.reset(seed=0)
    pose("")


def _pose(env: FlexEnv) -> Callable[[str], None]:
    pose: Callable[[str], None] | None = optional(env.unwrapped.task, "pose")
    if pose is None:
        raise ConfigError(
            f"A task of {env.unwrapped.env_id} is more than a text, so no message can be one. Expected a"
            " team of the families math, rag or cases, or a task of your own with pose(text): docs/custom-tasks.md"
        )
    return pose


def words_of(env: FlexEnv, messages: Sequence[Message]) -> Words:
    """Returns what chat messages ask a team: all of them where its task reads conversations, else a text.

    Raises:
        ConfigError: They ask for more than an answer to what its task reads.
    """
    if (asked := optional(env.unwrapped.task, "asked")) is None:
        return only_message(messages)
    if messages[-1]["role"] != "user" or not messages[-1]["content"].strip():
        raise ConfigError("Expected a message of a user, of text, as the last.")
    asked(messages)
    return messages


def answered(env: FlexEnv, problem: Words, reply: Reply, options: Mapping[str, Any] | None = None) -> Episode:
    """Plays a user's words as a task; returns the record, which has no score, and the prompt of each turn.

    Args:
        env: What the team plays.
        problem: A text, or a conversation where the task reads those.
        reply: Who replies.
        options: Of ``reset``.

    Raises:
        ConfigError: See ``check_answers``.
        MarftError: There was no reply, or the team did not come to an answer.
        RefusedPrompt: A prompt is refused: the text is too long.
    """
    task, given = env.unwrapped.task, dict(options or {})
    if (asked := optional(task, "asked")) is None:
        pose = _pose(env)
        env.reset(seed=0, options=given)
        pose(problem if isinstance(problem, str) else only_message(problem))
        return _played(env, reply)
    said = [{"role": "user", "content": problem}] if isinstance(problem, str) else problem
    env.reset(seed=0, options={**given, **asked(said)})
    try:
        return _played(env, reply)
    except BaseException:
        env.close()  # what has begun would wait for replies
        raise


def _played(env: FlexEnv, reply: Reply) -> Episode:
    """Plays an episode that has begun."""
    base = env.unwrapped
    while not base.done:
        for agent in base.ready_agents:
            messages = base.messages(agent)
            said = reply(agent, messages)
            base.select(agent)
            base.attach(agent, {"messages": messages, **({} if isinstance(said, str) else counted(said))})
            env.step(said if isinstance(said, str) else said.text)
    episode = base.episode
    given = {name: value for name, value in episode.info.items() if name == "answer"}
    if episode.failed or not episode.turns or (optional(base.task, "asked") is not None and not given):
        raise MarftError(f"The team did not come to an answer: {episode.stop_reason}.")
    return replace(episode, success=None, metrics={}, info={SERVED: True, **given})


def counted(said: Generation) -> dict[str, Any]:
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
