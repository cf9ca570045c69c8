"""Any program is a team: what it asks of a chat-completions endpoint are turns of the agents that it names.

The program is a command or a function of one's own. It runs its loop; the endpoint, on the loopback, is the
environment's. One run of the program is one round: a layer is what it asks at once, and D is what its prompts are seen
to hold, an agent's words in a prompt of another's (:mod:`marft_envs.adapters.inward.quotes`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from marft_envs.adapters.inward.endpoint import Loopback, TurnRequest
from marft_envs.adapters.inward.launch import FUNCTION, Ended, function_of, graders, launcher
from marft_envs.adapters.inward.quotes import Quotes
from marft_envs.core.dependency import View
from marft_envs.core.env import FlexEnv
from marft_envs.core.routing import Router
from marft_envs.core.types import AgentSpec, Outcome, Turn, TurnRecord, Written
from marft_envs.errors import ConfigError, MarftError
from marft_envs.problems import rows
from marft_envs.problems.sets import Drawn, ProblemSet
from marft_envs.registration import PROGRAM, broken, import_for
from marft_envs.server.door import RefusedRequest

Target = str | Callable[..., Any]
Grader = str | Callable[..., Any]
GOLD = "answer"
"""What of a problem its grader alone is given."""
ASKED = "asked"
"""Option of ``reset``, and id, of a problem that a user has asked."""
_OWN = ("dependency", "history", "max_rounds")
"""Settings of ``FlexEnv`` that the program decides itself."""


class ProgramError(MarftError, RuntimeError):
    """A program that ended, or fell silent, before it asked for a turn: no agent's words are to blame."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One start: what the program is given, and what its grader is given beside it."""

    id: str
    row: Mapping[str, Any]


@dataclass(eq=False)
class ProgramTask(Drawn[Problem]):
    """Runs a program, and waits for what it asks."""

    target: Target
    """A command (no shell reads it), ``module:function``, or the function."""
    team: Sequence[AgentSpec]
    rows: ProblemSet[Problem] | None
    """Where problems come from; None: the program makes its own, from the seed."""
    grader: Grader
    """``module:function`` (in a worker process), or a function: takes a problem and the program's answer, returns the
    reward; "": the answer is a number, and is itself the reward."""
    timeout: float
    """Seconds that the program may take from a reply, or its start, to its next request or its end."""
    window: float
    """Seconds without a further request after which those that came are a layer."""
    share_thoughts: bool
    """Whether the program reads what an agent thinks aloud."""
    demonstrator: str | Callable[..., str] = ""
    """``module:function``, or a function: takes the whole row of a problem, an agent and the messages that the program
    sends it, and returns what an expert says; "": there is none."""

    slow = starts_slowly = True
    copyable = False

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for what cannot work."""
        for name in ("timeout", "window"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e6:
                raise ConfigError(f"{name} is {seconds!r}; expected seconds, above 0.")
        self.name, self._launch = launcher(self.target)
        if isinstance(self.grader, str) and self.grader:
            function_of(self.grader, "grader")
        if self.demonstrator:
            self.expert = self._demonstrated
        if self.rows is None:
            self.evaluation_set = self.kind_of = None  # type: ignore[assignment]
        else:
            self.problems = self.rows
        self._given: dict[str, Any] = {}
        self._endpoint: Loopback | None = None
        self._stop: Callable[[], None] | None = None
        self.waiting: list[TurnRequest] = []
        """Requests without a reply, in the order in which they came."""
        self.end: Ended | None = None
        """What the program came to; None: it runs."""
        self.quotes, self.unseeing, self.seen = Quotes(self.team), 0, set[int]()

    # The program -----------------------------------------------------------------------------------

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Starts the program on a problem, and waits for the first layer.

        Raises:
            ConfigError: It asks for an agent that there is not before anybody has spoken.
            ProgramError: It ends, or says nothing, before it asks.
        """
        self.close(endpoint=False)
        row: Mapping[str, Any] = {}
        seed, self._asked = int(rng.integers(2**31)), ASKED in options
        if self._asked:
            self.task_id, row = ASKED, options[ASKED]
            self._problem = Problem(ASKED, row)
        elif self.rows is not None:
            row = self.draw(rng, options).row
        else:
            self.task_id = str(options.get("task_id", seed))
            seed = int(self.task_id) if self.task_id.isdecimal() else seed
        self._given = {"seed": seed} | {key: value for key, value in row.items() if key != GOLD}
        if self._endpoint is None:
            self._endpoint = Loopback([agent.name for agent in self.team])
        self._events: SimpleQueue[TurnRequest | RefusedRequest | Ended] = SimpleQueue()
        self.end, self.waiting, self.unknown, self.unseeing, self.seen = None, [], 0, 0, set()
        self.unheeded: RefusedRequest | None = None
        self.quotes = Quotes(self.team, _texts(self._given))
        key = self._endpoint.begin(self._events.put)
        self._stop = self._launch(self._given, self._endpoint.url, key, self._events.put)
        self._wait()
        if self.end is not None:
            raise ProgramError(
                f"{self.name} asked for no turn ({self.end.why or 'it ended without an error'}). Expected a request to"
                f" OPENAI_BASE_URL with an agent as model: {', '.join(agent.name for agent in self.team)}."
            )

    def asked(self, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Returns options with which ``reset`` starts the program on a user's words, in place of a row.

        Where its rows have ``messages``, it reads the whole conversation; where they have ``problem``, one message.

        Raises:
            ConfigError: The rows hold more than that, or the user has said more than one message.
        """
        name, row = self._asks
        if name == "messages":
            return {ASKED: {**row, name: [{key: message[key] for key in ("role", "content")} for message in messages]}}
        if (roles := [message["role"] for message in messages]) != ["user"]:
            raise ConfigError(
                f"{self.name} answers one message of a user, and was sent messages of {', '.join(roles)[:80]}. Where"
                " the rows of its data have 'messages', in place of 'problem', it is given the whole conversation."
            )
        return {ASKED: {**row, name: messages[0]["content"]}}

    @cached_property
    def _asks(self) -> tuple[str, dict[str, Any]]:
        """The column of the data that a user's words are, and those that are the same in all rows."""
        rows = [] if self.rows is None else [dict(self.rows[i].row) for i in range(len(self.rows))]
        given = [{key: value for key, value in row.items() if key not in ("id", "split", GOLD)} for row in rows]
        name = next((name for name in ("messages", "problem") if given and all(name in row for row in given)), None)
        if name is None:
            has = f"begins on {', '.join(given[0])}" if given else "makes its own problems"
            says = "so no message can be one. Expected data with 'problem', a text, or 'messages', a conversation"
            raise ConfigError(f"A task of {PROGRAM}{self.name} is more than a text: it {has}, {says}, in every row.")
        same = {key: value for key, value in given[0].items() if all(row.get(key) == value for row in given)}
        if more := sorted({key for row in given for key in row} - {name, *same}):
            raise ConfigError(
                f"A task of {PROGRAM}{self.name} is more than a text: beside '{name}' its rows have"
                f" {', '.join(more)}, which no message holds. What the grader alone needs belongs into '{GOLD}'."
            )
        return name, same | ({"id": ASKED} if any("id" in row for row in rows) else {})

    def _wait(self) -> None:
        """Waits for a layer: until no further request comes, all agents have been asked, or the program ends."""
        until, unknown = time.monotonic() + self.timeout, self.unknown
        refused: RefusedRequest | None = None
        while self.end is None and len({asked.agent for asked in self.waiting}) < len(self.team):
            left = until - time.monotonic()
            try:
                event = self._events.get(timeout=max(self.window if self.waiting else left, 0.0))
            except Empty:
                break
            if isinstance(event, TurnRequest):
                self.quotes.read(event)
                self.waiting.append(event)
                self.unheeded = None  # whatever it was, the program has gone on
            elif isinstance(event, Ended):
                if event.fault and self.unheeded is not None:
                    self.close(endpoint=False)
                    raise ConfigError(f"{self.name} has ended by a request that is refused: {self.unheeded}")
                # Who asks for an agent that a model has named is refused, which clients may say as a broken line.
                self.end = replace(event, fault="text") if event.fault and self.unknown else event
            elif left <= 0:  # it asks for what it cannot have, again and again
                break
            elif event.field:
                self.unheeded = refused = event
            elif not self.quotes.said:
                self.close(endpoint=False)
                raise ConfigError(f"{self.name}: {event}")
            else:
                self.unknown += 1
        if self.end is not None:
            self.waiting = []
        elif not self.waiting:
            self.close(endpoint=False)
            if refused is not None:
                raise ConfigError(f"{self.name} does not go on after a request that is refused: {refused}")
            why = f"world_hung: no request and no end within {self.timeout:g} s"
            self.end = Ended(why=why, fault="text" if self.unknown > unknown else "world")

    def __getstate__(self) -> dict[str, Any]:
        if self._endpoint is not None:
            says = f"An episode of {self.name} cannot be copied, as a program cannot."
            raise ConfigError(f"{says} Next: an algorithm that does not go back to states of an episode.")
        return self.__dict__

    def close(self, *, endpoint: bool = True) -> None:
        """Ends the program, and refuses what it still asks."""
        if self._stop is not None:
            self._stop()
            self._stop = None
        if self._endpoint is not None:
            self._endpoint.end()
            if endpoint:
                self._endpoint.shutdown()
                self._endpoint.server_close()
                self._endpoint = None

    # What happens ----------------------------------------------------------------------------------

    def layer(self, view: View) -> list[Turn]:
        """Returns the turns that the program waits for; of an agent that it asks twice, the first."""
        return [Turn(agent, asked.sees) for agent, asked in self._first().items()]

    def _first(self) -> dict[str, TurnRequest]:
        return {asked.agent: asked for asked in reversed(self.waiting)}

    def observe(self, agent: str) -> str:
        """The problem, as the program is given it."""
        return str(self._given.get("problem", json.dumps(self._given, ensure_ascii=False)))

    def conversation(self, agent: str) -> Sequence[Written] | None:
        """What the program has written to an agent; None: nothing."""
        asked = self._first().get(agent)
        return None if asked is None else asked.written

    def tools(self, agent: str) -> list[dict[str, Any]]:
        """The tools that the program lets the agent call."""
        asked = self._first().get(agent)
        return [] if asked is None else asked.tools

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Gives the program its replies, and waits for what it asks then."""
        first = self._first()
        if self.quotes.said:
            self.unseeing += sum(not first[turn.agent].sees for turn in turns)
        self.seen.update(*(first[turn.agent].sees for turn in turns))
        for turn in turns:
            asked = first[turn.agent]
            self.waiting.remove(asked)
            asked.reply.set_result(self.quotes.reply(turn, asked, share_thoughts=self.share_thoughts))
        self._wait()
        end = self.end
        return Outcome() if end is None else Outcome(fault=end.fault, stop_reason=end.why)

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Returns the reward of the answer; a program that a limit cuts has no answer."""
        self.close(endpoint=False)
        cut, answer = self.end is None, self.end.answer if self.end else ""
        if self._asked:  # nobody knows the answer
            return Outcome(terminated=not cut, info={} if cut else {"answer": answer})
        reward = self._graded(self._row(), answer) if self.grader or not cut else 0.0
        unseen = sum(turn.layer < turns[-1].layer and turn.index not in self.seen for turn in turns)
        counts = {"unknown_agents": self.unknown, "saw_nobody": self.unseeing, "seen_by_nobody": unseen}
        metrics, info = {name: float(count) for name, count in counts.items()}, {"answer": answer[:2000]}
        return Outcome(reward, terminated=not cut, success=reward >= 1.0, metrics=metrics, info=info)

    def _row(self) -> dict[str, Any]:
        """Returns all of the problem, its answer among it."""
        return {**self._given, **(self.problem.row if self.rows is not None else {})}

    def _demonstrated(self, agent: str) -> str:
        says = self.demonstrator if callable(self.demonstrator) else function_of(self.demonstrator, "expert")
        try:
            return str(says(self._row(), agent, self._first()[agent].messages))
        except MarftError:
            raise
        except Exception as error:  # whatever a function of others raises
            raise broken(self.name, f"The expert fails as {agent}", error) from error

    def _graded(self, problem: Mapping[str, Any], answer: str) -> float:
        reward: Any = answer
        if callable(self.grader):
            reward = self.grader(problem, answer)
        elif self.grader:
            reward = graders().call({"grader": self.grader, "problem": problem, "answer": answer})
        with suppress(ValueError, TypeError):
            if math.isfinite(reward := float(reward)):
                return reward
        raise ConfigError(
            f"The reward of {self.name} is {str(reward)[:80]!r}; expected a finite number. Without a grader, the reward"
            " is the program's last line, or what the function returns. Next: print a number, or give"
            " grader='module:function', a function of problem and answer."
        )

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Replies as the checks play them."""
        return ("yes", "no", "0", "1", "I do not know.")

    def validate(self) -> None:
        """Raises unless the grader, if there is one, returns a number for an empty answer."""
        if self.grader and self.rows is not None:
            self._graded(self.problems[0].row, "")


def make(
    target: Target,
    *,
    agents: Sequence[str | AgentSpec] = (),
    data: str | Path | Sequence[Mapping[str, Any]] | None = None,
    split: str = "train",
    grader: Grader = "",
    expert: str | Callable[..., str] = "",
    timeout: float = 60.0,
    window: float = 0.05,
    max_turns: int = 64,
    share_thoughts: bool = False,
    **settings: Any,
) -> FlexEnv:
    """Makes a team of a program.

    Args:
        target: ``program:`` and a command or ``module:function``; without the prefix, or as a function, too.
        agents: The team: the names that the program's requests have as ``model``.
        data: JSONL file, ``module:name`` of rows, or rows, of problems; of a row, ``answer`` is for the grader alone.
        split: Which rows are kept where rows have a ``split``; ``{split}`` in a path becomes it. Evaluations take
            ``test``; where one list serves both, a part of it is held out.
        grader: See :class:`ProgramTask`; so are ``timeout`` and ``window``.
        expert: The ``demonstrator`` of :class:`ProgramTask`, for warm starts.
        timeout: Seconds.
        window: Seconds.
        max_turns: Turns after which the program is ended.
        share_thoughts: See :class:`FlexEnv`.
        **settings: Settings of :class:`FlexEnv`.

    Raises:
        ConfigError: A setting that cannot work.
        DataError: Of the problems.
    """
    if isinstance(agents, str) or not agents:
        raise ConfigError("A program's team is not named. Next: agents=['writer_0', 'critic_0'], as its requests say.")
    if taken := [name for name in _OWN if name in settings]:
        raise ConfigError(f"'{taken[0]}' is decided by the program itself, as it runs. Leave it out.")
    team = [a if isinstance(a, AgentSpec) else AgentSpec(a, a.rpartition("_")[0] or a) for a in agents]
    target = target.removeprefix(PROGRAM) if isinstance(target, str) else target
    asked = None if data is None else problems(data, split)
    task = ProgramTask(target, team, asked, grader, timeout, window, share_thoughts, expert)
    settings.setdefault("env_id", f"{PROGRAM}{task.name}")
    env = FlexEnv(team, task, Router(task.layer), share_thoughts=share_thoughts, max_turns=max_turns, **settings)
    env.dependency = Router(task.layer)  # FlexEnv keeps a copy of D; this one has to ask the task itself
    env.dependency.bind(env.possible_agents)
    return env


def problems(data: str | Path | Sequence[Mapping[str, Any]], split: str = "train") -> ProblemSet[Problem]:
    """Returns the rows of a split as problems, under their ``id``, else their number.

    Raises:
        ConfigError: A module that is named cannot be imported, or has no such rows.
        DataError: They cannot be read, two have one id, or none is left.
    """
    name = str(data) if isinstance(data, str | Path) else "data"
    if FUNCTION.fullmatch(name):
        module, _, inner = name.partition(":")
        listed = getattr(import_for(name, module), inner, None)
        if not isinstance(listed, list | tuple):
            raise ConfigError(f"There are no rows '{name}'. Expected module:name of a list of dictionaries, or a path.")
        data = listed
    if isinstance(data, str | Path):
        path = Path(name.replace("{split}", split)).expanduser()
        made = [Problem(str(row.get("id", n)), row) for n, _, row in rows.of_file(path)]
    else:
        made = [Problem(str(row.get("id", n)), dict(row)) for n, row in enumerate(data, 1)]
    return ProblemSet([problem for problem in made if problem.row.get("split", split) == split], name)


def _texts(value: Any) -> list[str]:
    """Returns every text of a row."""
    if isinstance(value, Mapping | list):
        return [text for inner in (value.values() if isinstance(value, Mapping) else value) for text in _texts(inner)]
    return [value] if isinstance(value, str) else []
