"""Keeps what agents read of an episode: its turns, their results, feedback, and the task's words, all neutralised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from marft_envs.core.observation import Part, neutralise, role_tags
from marft_envs.core.types import AgentSpec, Task, TurnRecord, optional
from marft_envs.errors import ConfigError

Parts = tuple[Part, ...]


class Transcript:
    """Keeps the texts of one episode as they are shown; it knows nothing of who may see which turn.

    Args:
        agents: The team, under whose tags words are shown.
        task: Its ``show`` may shorten what others did.
        share_thoughts: Others read what an agent thinks aloud.
    """

    def __init__(self, agents: Sequence[AgentSpec], task: Task, *, share_thoughts: bool = False) -> None:
        self._share_thoughts = share_thoughts
        self._task, self._tags, self._show = task, role_tags(agents), optional(task, "show")
        self._restored, self._conversation = optional(task, "restored"), optional(task, "conversation")
        self._images = optional(task, "images")
        self.selective: bool = self._show is not None
        """Whether the task may leave a turn out of an observation whose ``sees`` names it."""
        self._turns: list[Parts] = []
        """Of each turn the words and then, if anything, the result."""
        self._own: dict[int, Parts] = {}
        """The same for the agent that acted itself."""
        self._feedback: list[tuple[str, int, Part]] = []
        """Reader, turns committed by then, text."""
        self._task_texts: dict[str, tuple[str, str]] = {}

    def enter(self, turn: TurnRecord) -> None:
        """Adds the words of the next turn."""
        shown = turn.text if self._share_thoughts else turn.spoken
        self._turns.append((Part(neutralise(shown, self._tags), turn.round, turn),))

    def set_result(self, turn: TurnRecord) -> None:
        """Sets the result of a turn."""
        result = neutralise(self._text(turn.result, "the result of a turn"), self._tags)
        words = self._turns[turn.index][0]
        self._turns[turn.index] = (words, Part(result, turn.round, turn, result=True)) if result else (words,)
        self._own.pop(turn.index, None)

    def give_feedback(self, agent: str, round_: int, text: str) -> None:
        """Adds what the task tells one agent, behind the turns so far."""
        shown = neutralise(self._text(text, "feedback"), self._tags)
        self._feedback.append((agent, len(self._turns), Part(shown, round_)))

    def images(self, agent: str) -> tuple[str, ...]:
        """Returns the images that the task shows an agent.

        Raises:
            ConfigError: One is neither an address nor data.
        """
        shown = () if self._images is None else tuple(self._images(agent))
        for image in shown:
            if not isinstance(image, str) or not image.startswith(("https://", "http://", "data:image/")):
                raise ConfigError(f"images('{agent}') has {image!r:.60}; expected https://… or data:image/png;base64,…")
        return shown

    def task_text(self, agent: str) -> str:
        """Returns what the task shows an agent; most turns it is what it was the turn before."""
        text = self._text(self._task.observe(agent), f"observe('{agent}')")
        known = self._task_texts.get(agent)
        if known is None or known[0] != text:
            known = self._task_texts[agent] = (text, neutralise(text, self._tags))
        return known[1]

    def _text(self, shown: Any, what: str) -> str:
        if not isinstance(shown, str):
            raise ConfigError(
                f"The task {type(self._task).__name__} gives {type(shown).__name__} as {what}; expected text, which is "
                "all that agents read: no parts, and no images. Next: write what it shows in words."
            )
        return shown

    def parts(self, agent: str, sees: Sequence[int]) -> list[Part]:
        """Returns what an agent that sees these turns reads, oldest first; feedback stands where it was given."""
        turns = self._seen_by(agent, sees)
        if not self._feedback:
            return list(chain.from_iterable(turns))
        keyed = [(i + 1, 0, part) for i, parts in zip(sees, turns, strict=True) for part in parts]
        keyed += [(after, 1, part) for reader, after, part in self._feedback if reader == agent]
        return [part for *_, part in sorted(keyed, key=lambda item: item[:2])]

    def written(self, agent: str) -> tuple[str, list[Part], tuple[int, ...]] | None:
        """Returns what a program of the task's own has written to an agent, system message first, and whom that quotes.

        None: nothing.
        """
        messages = self._conversation(agent) if self._conversation is not None else None
        if messages is None:
            return None
        system = [message for message in messages if message.role == "system"]
        parts: list[Part] = []
        for message in messages:
            own, text = message.role == "assistant", message.text
            if message.whole:
                index = message.quotes[0]
                words = self._turns[index][0]
                if words.turn is not None and words.turn.agent == agent:
                    parts.append((self._own.get(index) or self._as_own(index))[0])
                    continue
                text = words.text
            if message.role != "system":
                text = self._restored(agent, neutralise(text)) if own else neutralise(text)
                parts.append(Part(text, 0, own=own, quotes=message.quotes))
        profile = "\n\n".join(neutralise(message.text) for message in system)
        return profile, parts, tuple(i for message in system for i in message.quotes)

    def everything(self) -> Iterator[Part]:
        """Returns all words and results, as agents are shown them that are not their authors."""
        return chain.from_iterable(self._turns)

    def _seen_by(self, agent: str, sees: Sequence[int]) -> list[Parts]:
        turns, own_parts, show = self._turns, self._own, self._show
        seen = []
        for i in sees:
            parts = turns[i]
            turn = parts[0].turn
            assert turn is not None
            if turn.agent == agent:
                parts = own_parts.get(i) or self._as_own(i)
            elif show is not None and (shown := show(turn, agent, sees)) is not None:
                texts = [(bool(i), text) for i, text in enumerate(shown) if any(shown[i:])]
                parts = tuple(Part(neutralise(text, self._tags), turn.round, turn, result=i) for i, text in texts)
            seen.append(parts)
        return seen

    def _as_own(self, index: int) -> Parts:
        """Renders a turn as its author reads it: with its calls as it wrote them, so that it keeps writing them so."""
        words, *result = self._turns[index]
        assert words.turn is not None
        text = self._restored(words.turn.agent, neutralise(words.turn.text, self._tags))
        parts = self._own[index] = (Part(text, words.round, words.turn, own=True), *result)
        return parts
