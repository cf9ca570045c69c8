"""The nouns of tool use: a tool, a call, its result; a world that is called, a problem, and a domain that has both.

For tools of your own, implement :class:`World` and :class:`ToolDomain`, or give typed functions to
:func:`marft_envs.families.tools.make`. Everything that crosses these lines is a JSON value.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import ConfigError, DataError
from marft_envs.problems import sets as problems

_T = TypeVar("_T")


class Shared:
    """Never changes: copies of an episode share it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class ToolError(Exception):
    """What a tool says when it cannot do what was asked: a typed observation, not a fault of the environment.

    Args:
        message: The message to the agent.
        transient: The same call may work when it is repeated: it then counts neither as an error of the agent's nor,
            repeated, as a duplicate.
    """

    def __init__(self, message: str = "", *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


ErrorCode = Literal[
    "", "unknown_tool", "withheld", "not_permitted", "invalid_arguments", "budget", "timeout", "tool_error", "crashed",
    "too_large", "malformed",
]  # fmt: skip
"""What kept a call from giving a value; "" where nothing did. ``malformed`` is a reply whose call cannot be read."""


@dataclass(frozen=True, eq=False)
class Tool:
    """What a tool is called, what it does, and what it takes; one is equal to itself alone."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """Strict JSON Schema of an object (``additionalProperties`` false, unless it names no members)."""
    read_only: bool = False
    """True: a call never changes the state."""
    idempotent: bool = False
    """True: a second call with the same arguments changes nothing more."""
    timeout_s: float = 5.0
    """Wall seconds for one call, in worlds that may block."""

    def openai(self) -> dict[str, Any]:
        """Returns the tool as OpenAI's chat API (and most chat templates) take it."""
        parameters = dict(self.parameters)
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    @cached_property
    def line(self) -> str:
        """The same as one line of JSON, as chat templates write it."""
        return json.dumps(self.openai(), ensure_ascii=False)


class ToolResult(NamedTuple):
    """What came of a call."""

    call: ToolCall
    agent: str
    ok: bool
    value: Any = None
    """JSON value of a call that worked; of one ``too_large``, the cut text."""
    error: str = ""
    """An :data:`ErrorCode`."""
    message: str = ""
    """The message to the agent about the error."""
    changed: bool = False
    """``state_hash`` differs before and after."""


@runtime_checkable
class World(Protocol):
    """The live state of one episode; ``copy.deepcopy`` gives an independent one (forks need that).

    A world whose calls may hang (a server, a network) says so with a class attribute ``may_block = True``: its calls
    then run in a thread with the tool's deadline. All others are called in place. A world that has had to write its
    results as strict JSON already may have ``text_of(value)``, which gives that text.
    """

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Returns a JSON value, or raises :class:`ToolError`; arguments are valid, and a copy of the world's own."""

    def snapshot(self) -> Any:
        """Returns the state, to be given to :meth:`restore`."""

    def restore(self, snapshot: Any) -> None:
        """Goes back to a snapshot; the same snapshot may be restored again."""

    def state_hash(self) -> str:
        """Returns a text that is equal for equal states and differs otherwise; cheap (cached until a write)."""

    def close(self) -> None:
        """Releases what the world holds."""


@dataclass(frozen=True)
class StateGrade:
    """How the final state compares with the one that was wanted."""

    completion: bool
    """The state's difference is exactly the gold one (and whatever else the domain demands)."""
    progress: float
    """In [0, 1]; 0 for an unchanged state where the gold changes it; 1 exactly if ``completion``."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """JSON for ``infos`` and records; no gold values. ``server_lost``: the world could not be asked any more."""

    @property
    def lost(self) -> bool:
        """Whether there is nothing to judge, because the world could not be asked: an infrastructure error."""
        return bool(self.info.get("server_lost"))

    @classmethod
    def of(cls, verdict: StateGrade | float) -> StateGrade:
        """What a function that grades may return: a grade, or how much is achieved, 1 being all of it."""
        if isinstance(verdict, StateGrade):
            return verdict
        return cls(float(verdict) >= 1.0, min(max(float(verdict), 0.0), 1.0))


def graded(judge: Callable[..., Any], first: Any, second: Any, messages: Sequence[str]) -> Any:
    """Returns what a function that grades says; ``messages`` is passed to those that have a parameter of that name."""
    more = {"messages": tuple(messages)} if _takes_messages(getattr(judge, "__func__", judge)) else {}
    return judge(first, second, **more)


@lru_cache(maxsize=256)
def _takes_messages(judge: Callable[..., Any]) -> bool:
    try:
        return "messages" in inspect.signature(judge).parameters
    except ValueError:  # a builtin without a signature
        return False


@dataclass(frozen=True)
class ToolProblem:
    """What the user wants. Agents see ``turns``, one by one, and ``document``, and nothing else of it."""

    id: str
    """``<domain>/…``; regenerates or finds the same problem."""
    turns: tuple[str, ...]
    """What the user says, one text per user turn."""
    least_steps: int
    """Calls that the oracle needs: writes, and the reads that it cannot do without."""
    level: int | None = None
    withheld: tuple[frozenset[str], ...] = ()
    """Tools that are missing in user turn i."""
    document: str = ""
    """A text of others that the request is about, which nobody vouches for. The team says who sees it."""
    sought: str = field(default="", repr=False)
    """What of the document the request needs; never shown."""
    secret: Any = field(default=None, repr=False)
    """The domain's own gold; never shown."""

    def missing(self, turn: int) -> frozenset[str]:
        """Returns the tools that are withheld in a user turn."""
        return frozenset(self.withheld[turn]) if turn < len(self.withheld) else frozenset()

    @property
    def gold_calls(self) -> list[list[ToolCall]] | None:
        """Gold calls per user turn, where the secret is a mapping that has ``calls``."""
        return self.secret.get("calls") if isinstance(self.secret, Mapping) else None

    def asked(self, oracle: Callable[[ToolProblem], list[list[ToolCall]]] | None, missing: str) -> list[list[ToolCall]]:
        """Returns an oracle's calls, else those of the secret; with neither it raises a ConfigError that says this."""
        if (calls := self.gold_calls if oracle is None else oracle(self)) is None:
            raise ConfigError(missing)
        return calls

    @property
    def gold_words(self) -> str:
        """What the oracle tells the user at the end, where the secret is a mapping that has ``says``."""
        return self.secret.get("says", "") if isinstance(self.secret, Mapping) else ""


@runtime_checkable
class ToolProblems(problems.Problems[ToolProblem], Protocol):
    """Problems in a fixed order; :class:`marft_envs.problems.sets.ProblemSet` is the usual one."""


class ToolDomain(Protocol):
    """Tools, a policy, problems, and how to judge what was done."""

    name: str
    tools: Mapping[str, Tool]
    policy: str
    """Text that every agent is shown, the user-agent of ``dual_control`` apart: it reads ``user_policy``, if there is
    one."""
    specialists: Mapping[str, frozenset[str]]
    """Role -> tools, disjoint; who is in the teams ``router`` and ``supervisor``."""
    user_tools: frozenset[str]
    """Tools of the user-agent in the team ``dual_control``; empty: it only talks."""

    def problems(self, split: str, levels: Sequence[int] | None = None, limit: int | None = None) -> ToolProblems:
        """Returns the problems of a split."""

    def open(self, problem: ToolProblem) -> World:
        """Returns a fresh world for the problem."""

    def begin_turn(self, problem: ToolProblem, world: World, turn: int) -> None:
        """User turn ``turn`` (from 0) starts; most domains do nothing."""

    def grade(self, problem: ToolProblem, world: World) -> StateGrade:
        """Judges the state as it is; may be called at any time and changes nothing.

        If it has a parameter ``messages``, it gets the messages to the user so far, a tuple of texts
        (:class:`marft_envs.families.tools.speech.UserTalk`).
        """

    def oracle(self, problem: ToolProblem) -> list[list[ToolCall]]:
        """Returns gold calls, per user turn."""


def secret_of(domain: ToolDomain, problem: ToolProblem, kind: type[_T]) -> _T:
    """Returns the gold that a domain has put into a problem.

    Raises:
        DataError: The problem is another domain's.
    """
    if not isinstance(problem.secret, kind):
        raise DataError(
            f"'{problem.id}' is not a problem of {domain.name}. Take problems from {type(domain).__name__}.problems()."
        )
    return problem.secret


def own_world(domain: ToolDomain, world: World, kind: type[_T]) -> _T:
    """Returns a world that a domain has opened.

    Raises:
        DataError: It is something else.
    """
    if not isinstance(world, kind):
        raise DataError(
            f"{domain.name} was given a {type(world).__name__}. Take worlds from {type(domain).__name__}.open()."
        )
    return world


# JSON values: copies, hashable stand-ins, depth, and text -----------------------------------------------

_PLAIN = frozenset((str, int, float, type(None)))


def copied(value: Any) -> Any:
    """Returns a copy of a JSON value."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list | tuple) else value


def frozen(value: Any) -> Any:
    """Returns a hashable stand-in: equal for equal JSON values (1 and 1.0 are equal, 1 and true are not)."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, Mapping):
        return ("dict", frozenset([(key, frozen(item)) for key, item in value.items()]))
    if isinstance(value, list | tuple):
        return ("list", tuple(map(frozen, value)))
    return value


encode: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False).encode
"""Returns a value as strict JSON text; raises TypeError, ValueError or RecursionError for what is none."""
