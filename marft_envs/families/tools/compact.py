"""Compact messages: what other agents did reaches an agent as records of action and state instead of raw text.

``CompactMessages(env)`` changes what is said of the turns that D lets an agent see, never which turns it sees. Under a
peer's tag stand its words alone: no thoughts, no calls. Under ``[feedback]``, which no agent can write, stands what the
environment knows about its calls, one line each:

* ``changed: NAME ARGUMENTS -> RESULT``: it worked, and the state is another one;
* ``done: NAME ARGUMENTS -> RESULT``: it worked, and the state is what it was (left out where the same call was made
  again in a later turn that is seen, which has the newer result);
* ``open: NAME ARGUMENTS: ERROR``: it failed (left out once a later call of the same tool, seen too, has worked).

Records are made of the calls and results that the environment has logged, by rules and not by a model, and of nothing
that the reader does not see. An agent's own replies and the feedback to it stay as they were.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from marft_envs.call_formats import ToolReply
from marft_envs.call_formats.call import ToolCall
from marft_envs.call_formats.tags import unwrapped_result
from marft_envs.core import observation as obs_mod
from marft_envs.core.env import FlexEnv
from marft_envs.core.plain_data import one_line
from marft_envs.core.types import AgentSpec, Outcome, TurnRecord
from marft_envs.core.wrappers import FlexWrapper
from marft_envs.errors import ConfigError, of_fields
from marft_envs.families.tools.session import CallEntry
from marft_envs.families.tools.task import ToolTask

Count = Callable[[str], int]
"""Tokens of a text."""
Read = Callable[[str, str], ToolReply]
"""(agent, its reply) -> what it asks for."""

_LACKS = "Compact messages have no setting"
_PIECE = re.compile(r"\w+|[^\w\s]")


def pieces(text: str) -> int:
    """Returns how many words and marks a text has: a stand-in for tokens that blanks between marks do not change."""
    return len(_PIECE.findall(text))


@dataclass(frozen=True, slots=True)
class Settings:
    """How much of a turn a record keeps.

    Raises:
        ConfigError: If a limit is below 1.
    """

    max_words: int = 200
    """Characters of the words beside calls. A turn without calls (a plan, a name, an objection) keeps all its words."""
    max_value: int = 300
    """Characters of a result, and of arguments."""

    def __post_init__(self) -> None:
        for name in ("max_words", "max_value"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; got {getattr(self, name)}.")


@dataclass(frozen=True, slots=True)
class _Line:
    """One call in a record."""

    text: str
    """Neutralised."""
    name: str
    """Of the tool; "" for a reply that could not be read."""
    call: str
    """Name and arguments."""
    ok: bool
    changed: bool = False

    def settled(self, later: _Line) -> bool:
        """Whether a later call that worked makes this line old."""
        return self.call == later.call and not self.changed if self.ok else self.name in ("", later.name)


@dataclass(frozen=True, slots=True)
class _Action:
    """What one turn comes to."""

    turn: TurnRecord
    words: str
    """Neutralised."""
    lines: tuple[_Line, ...]
    raw: int
    """Tokens of the turn as it is passed on without records: its text and the results of its calls."""
    shown_tokens: int
    """Tokens of the words."""


class Records:
    """The records of one episode, kept by a :class:`marft_envs.families.tools.ToolTask`.

    Args:
        agents: The team.
        settings: How much a record keeps.
        count: Tokens of a text, for the comparison that is logged.
    """

    def __init__(self, agents: Sequence[AgentSpec], settings: Settings, count: Count = pieces) -> None:
        self.agents = tuple(agent.name for agent in agents)
        self.count, self.settings = count, settings
        self._tags = obs_mod.role_tags(agents)
        self.start()

    def start(self) -> None:
        """Forgets the last episode."""
        self._actions: list[_Action] = []
        self._raw: Counter[str] = Counter()
        self._compact: Counter[str] = Counter()
        self._logged = 0

    def book(self, turns: Sequence[TurnRecord], outcome: Outcome, log: Sequence[CallEntry], read: Read) -> None:
        """Enters the turns of a layer, and what their agents were passed on from others.

        Args:
            turns: The layer's.
            outcome: What the task says of them; gets the token counts.
            log: The session's, of the whole episode.
            read: Reads the calls of an agent's reply.
        """
        new, self._logged = log[self._logged :], len(log)
        for turn in turns:
            self._count_seen(turn)
            entries = [entry for entry in new if entry.result.agent == turn.agent]
            self._actions.append(self._action(turn, outcome.results.get(turn.index, ""), entries, read))
        totals = {"raw": self._raw.total(), "compact": self._compact.total()}
        outcome.info = {**outcome.info, "peer_tokens": totals}
        counted = {f"peer_tokens_{form}": float(count) for form, count in totals.items()}
        for form, count in (("raw", self._raw), ("compact", self._compact)):
            counted.update({f"peer_tokens_{form}/{name}": float(count[name]) for name in self.agents})
        outcome.metrics = {**outcome.metrics, **counted}

    def _count_seen(self, turn: TurnRecord) -> None:
        for index in turn.sees:
            seen = self._actions[index]
            if seen.turn.agent != turn.agent:
                self._raw[turn.agent] += seen.raw
                _, lines = self.show(seen.turn, turn.agent, turn.sees)
                self._compact[turn.agent] += seen.shown_tokens + (self.count(lines) if lines else 0)

    def show(self, turn: TurnRecord, reader: str, sees: Sequence[int]) -> tuple[str, str]:
        """Returns a turn's words and its record, for a reader of the turns ``sees``."""
        action = self._actions[turn.index]
        later = [line for seen in sees if seen > turn.index for line in self._actions[seen].lines if line.ok]
        kept = []
        for position, line in enumerate(action.lines):
            after = [*(other for other in action.lines[position + 1 :] if other.ok), *later]
            if not any(line.settled(other) for other in after):
                kept.append(line.text)
        return action.words, "\n".join(kept)

    def _action(self, turn: TurnRecord, result: str, entries: list[CallEntry], read: Read) -> _Action:
        """The record of a turn: calls and the lines of their results are one to one."""
        raw = self.count(self._neutral(turn.text))
        if not result:
            words_kept = self._neutral(turn.spoken).strip()
            return _Action(turn, words_kept, (), raw, self.count(words_kept))
        reply = read(turn.agent, turn.text)
        if reply.error:
            words_kept = turn.spoken
            lines = [_Line(f"open: a reply that could not be read ({reply.message})", "", "", False)]
        else:
            words_kept, lines = reply.words, []
            for call, line in zip(reply.calls, map(unwrapped_result, result.split("\n")), strict=True):
                entry = entries[0] if entries and entries[0].result.call == call and entries[0].line == line else None
                entries = entries[1:] if entry is not None else entries
                lines.append(self._line(call, line, entry))
        words_kept = self._neutral(_short(words_kept, self.settings.max_words))
        raw += self.count(self._neutral(result))
        return _Action(turn, words_kept, tuple(lines), raw, self.count(words_kept))

    def _line(self, call: ToolCall, line: str, entry: CallEntry | None) -> _Line:
        """One call; without an entry in the log it is ``finish`` or a handover, whose result says nothing more."""
        name, limit = one_line(call.name)[:64], self.settings.max_value
        arguments = one_line(json.dumps(dict(call.arguments), ensure_ascii=False, separators=(",", ":")))
        short = f"{name} {_short(arguments, limit)}" if call.arguments else name
        value = line.removeprefix(f"{name}: ")
        changed = entry is not None and entry.result.changed
        ok = not value.startswith("error (")  # a value is JSON, which never begins like this
        if ok:
            text = f"{'changed' if changed else 'done'}: {short}"
            text += "" if entry is None or value == "null" else f" -> {_short(value, limit)}"
        else:
            text = f"open: {short}: {_short(value, limit)}"
        return _Line(self._neutral(text), name, f"{name} {arguments}", ok, changed)

    def _neutral(self, text: str) -> str:
        return obs_mod.neutralise(text, self._tags)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


class CompactMessages(FlexWrapper):
    """A tool-using team whose members read each other's actions as records; see the module.

    Tokens passed on from others are counted in both forms on the same episode: the metrics ``peer_tokens_raw`` and
    ``peer_tokens_compact``, per reader as ``name/agent``, and both totals in ``infos`` as ``peer_tokens``.

    Args:
        env: An environment of :func:`marft_envs.families.tools.make`, between episodes.
        count: Tokens of a text; by default words and marks. To be pickled, it has to be a function of a module.
        **settings: Fields of :class:`Settings`.

    Raises:
        ConfigError: If the environment's task is no :class:`marft_envs.ToolTask`, or in the middle of an episode.
    """

    def __init__(self, env: FlexEnv, count: Count = pieces, **settings: int) -> None:
        super().__init__(env)
        inner, task = env.unwrapped, env.task
        if not isinstance(task, ToolTask):
            raise ConfigError(
                f"CompactMessages is for tool-using teams; {type(task).__name__} keeps no log of calls. "
                'Next: CompactMessages(marft_envs.make("tools-trio-v0")).'
            )
        if not inner.done:
            raise ConfigError("CompactMessages wraps an environment between episodes; this one is in one.")
        task.records = Records(task.team.agents, of_fields(Settings, settings, _LACKS), count)
        # So that an environment that is rebuilt from a record renders the same prompts.
        inner.env_kwargs = {**inner.env_kwargs, "compact": settings or True}


def records(compact: bool | Mapping[str, int], agents: Sequence[AgentSpec]) -> Records | None:
    """Returns what ``make(compact=…)`` asks for."""
    given = compact if isinstance(compact, Mapping) else {}
    return Records(agents, of_fields(Settings, given, _LACKS)) if compact else None
