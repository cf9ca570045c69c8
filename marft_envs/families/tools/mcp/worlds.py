"""The worlds behind MCP: of a server of ours, which can be copied, and of anybody else's, which cannot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft_envs.errors import ConfigError, WorkerError
from marft_envs.families.tools.mcp.client import Connection
from marft_envs.families.tools.mcp.wire import ERROR, SESSION, STATE, TRANSIENT, library, text_of, value_of
from marft_envs.families.tools.types import Grade, Tool, ToolCall, ToolError, ToolProblem

START, TURN, GRADE, END, LIST = (
    "marft_start_task", "marft_next_turn", "marft_grade", "marft_end_task", "marft_list_tasks",
)  # fmt: skip
"""Tools of our servers that belong to the harness."""

_GRACE_S = 1.0
"""The session gives a call up at its deadline; the thread that waits for it does a little later."""


class MarftWorld:
    """A task on a server of ours.

    Its snapshot is the list of calls so far. A copy, a restored world, and a grade after the server's death start the
    task anew and repeat them; that the state is then the same is checked by its hash.
    """

    may_block = True

    def __init__(
        self, connect: Callable[[], Connection], problem: ToolProblem, tools: Mapping[str, Tool], start_s: float
    ) -> None:
        self._connect, self._problem, self._tools, self._start_s = connect, problem, tools, start_s
        self._connection: Connection | None = None
        self._handle = self._state = ""
        self._history: list[dict[str, Any]] = []
        self._waiting = False

    def start(self) -> Connection:
        """Opens the task on the server, and repeats what was done in it; returns the way there."""
        self._leave()
        connection = self._connection = self._connect()
        connection.worlds.add(self)
        arguments = {"task_id": self._problem.id, "handle": True, "history": self._history}
        if self._problem.level is not None:
            arguments["level"] = self._problem.level
        begun = controlled(connection, START, arguments, self._start_s)
        if self._history and begun["state"] != self._state:
            controlled(connection, END, {}, self._start_s, begun["session"])
            raise WorkerError(
                f"The same {len(self._history)} steps of '{self._problem.id}' led to another state on "
                f"'{connection.name}'. A world can be copied over MCP only if its tools always do the same."
            )
        self._handle, self._state = begun["session"], begun["state"]
        return connection

    def _live(self) -> Connection:
        connection = self._connection
        if connection is None or not self._handle or not connection.usable:
            connection = self.start()
        return connection

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Calls a tool; its errors come back as the server's world raised them."""
        copied = dict(arguments)
        connection, self._waiting = self._live(), True
        try:
            result = connection.call(name, copied, self._tools[name].timeout_s + _GRACE_S, {SESSION: self._handle})
        except WorkerError:
            self._handle = ""
            raise
        self._waiting = False
        self._history.append({"name": name, "arguments": copied})
        meta = result.meta or {}
        self._state = meta.get(STATE, self._state)
        if not result.is_error:
            return result.structured_content["result"]
        code, message = meta.get(ERROR), text_of(result)
        if code == "timeout":
            raise TimeoutError(message)
        if code == "crashed":
            raise WorkerError(f"the world failed on '{connection.name}': {message}")
        raise ToolError(message, transient=bool(meta.get(TRANSIENT)))

    def begin_turn(self, turn: int) -> None:
        """Begins user turn ``turn``; the first begins with the task."""
        if turn:
            begun = controlled(self._live(), TURN, {}, self._start_s, self._handle)
            self._history.append({"name": TURN, "arguments": {}})
            self._state = begun["state"]

    def grade(self, told: Sequence[str] = ()) -> Grade:
        """Returns the server's judgement; of a server that died, that of its successor after the same calls."""
        connection, arguments = self._live(), {"told": list(told)} if told else {}
        try:
            verdict = controlled(connection, GRADE, arguments, self._start_s, self._handle)
        except WorkerError:
            if connection.usable:
                raise
            verdict = controlled(self._live(), GRADE, arguments, self._start_s, self._handle)
        return Grade(verdict["completion"], verdict["progress"], verdict["info"])

    def snapshot(self) -> tuple[tuple[dict[str, Any], ...], str]:
        """Returns the calls so far, and the hash of the state that they led to."""
        return tuple(self._history), self._state

    def restore(self, snapshot: tuple[tuple[dict[str, Any], ...], str]) -> None:
        """Goes back to a snapshot; its calls are repeated when the world is next used."""
        self.close()
        self._history, self._state = list(snapshot[0]), snapshot[1]

    def state_hash(self) -> str:
        """Returns the hash that the server sent with the last result."""
        return self._state

    def close(self) -> None:
        """Ends the task on the server, without waiting."""
        connection, handle, self._handle = self._connection, self._handle, ""
        if connection is not None and handle and connection.usable:
            connection.suspect |= self._waiting
            connection.tell(END, {SESSION: handle})
        self._leave()

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.worlds.discard(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> MarftWorld:
        new = MarftWorld(self._connect, self._problem, self._tools, self._start_s)
        new._history, new._state = list(self._history), self._state
        return new


@dataclass(frozen=True)
class Past:
    """A call that was made on a foreign server, and what came of it."""

    call: ToolCall
    ok: bool
    value: Any
    """JSON value; of a call that failed, the error's text."""


class ForeignWorld:
    """Calls on somebody else's server. What its state is, cannot be known from here.

    So it cannot be copied: ``fork``, ``snapshot`` and pickling are refused. In place of the state, ``state_hash``
    stands for the set of calls that worked so far and were not of read-only tools. A read is then a duplicate if it was
    made before and no new call of these came between; another call, from its third time on.
    """

    may_block = True

    def __init__(self, connection: Connection, tools: Mapping[str, Tool], own: bool) -> None:
        self.history: list[Past] = []
        """Calls in their order, for grading."""
        self.baseline: Any = None
        """What the domain noted at the episode's start."""
        self._connection, self._tools, self._own = connection, tools, own
        self._writes: set[str] = set()
        self._waiting = False

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Calls a tool."""
        call = ToolCall(name, dict(arguments))
        self._waiting = True
        try:
            value = self.ask(name, arguments)
        except ToolError as error:
            self._waiting = False
            self.history.append(Past(call, False, str(error)))
            raise
        self._waiting = False
        self.history.append(Past(call, True, value))
        if not self._tools[name].read_only:
            self._writes.add(json.dumps([name, call.arguments], sort_keys=True))
        return value

    def ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Calls a tool for grading: it stands in no history. Tools that agents do not hold can be called, too.

        Raises:
            ToolError: What the tool says.
            WorkerError: If the server is gone.
        """
        mcp = library()
        limit = self._tools[name].timeout_s if name in self._tools else max(t.timeout_s for t in self._tools.values())
        try:
            result = self._connection.call(name, dict(arguments), limit + _GRACE_S)
        except WorkerError:
            raise
        except (mcp.MCPError, ValueError) as error:  # the server refuses the request, or answers nonsense
            raise ToolError(str(error)) from error
        except RuntimeError as error:
            raise ToolError(f"the result breaks the tool's own schema: {error}") from error
        if result.is_error:
            raise ToolError(text_of(result) or "the tool failed without a word")
        return value_of(result)

    def state_hash(self) -> str:
        """Returns a digest of the set of calls that may have changed something."""
        text = "\n".join(sorted(self._writes))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def snapshot(self) -> Any:
        """Raises ConfigError: the server's state cannot be had."""
        raise self._uncopied()

    def restore(self, snapshot: Any) -> None:
        """Raises ConfigError: the server's state cannot be set."""
        raise self._uncopied()

    def __deepcopy__(self, memo: dict[int, Any]) -> ForeignWorld:
        raise self._uncopied()

    def __reduce__(self) -> Any:
        raise self._uncopied()

    def _uncopied(self) -> ConfigError:
        return ConfigError(
            f"The state of the MCP server '{self._connection.name}' cannot be copied, so its episodes can neither be "
            "forked nor saved half-way. Use an algorithm without fork, or serve the world with as_mcp_server."
        )

    def close(self) -> None:
        """Leaves a server of this episode's own, without waiting; notes of a shared one that a call is hanging."""
        if self._own:
            self._connection.close(wait=False)
        elif self._waiting:
            self._connection.suspect = True


def controlled(connection: Connection, name: str, arguments: dict[str, Any], timeout_s: float, handle: str = "") -> Any:
    """Calls one of our servers' own tools and returns its value.

    Raises:
        ToolError: If the server refuses.
        WorkerError: If it does not answer, or is gone.
    """
    try:
        result = connection.call(name, arguments, timeout_s, {SESSION: handle} if handle else None)
    except TimeoutError as error:
        raise WorkerError(f"The MCP server '{connection.name}' did not answer {name} in {timeout_s:g} s.") from error
    except library().MCPError as error:
        raise WorkerError(f"The MCP server '{connection.name}' failed at {name}: {error}") from error
    if result.is_error:
        raise ToolError(text_of(result))
    return result.structured_content["result"]
