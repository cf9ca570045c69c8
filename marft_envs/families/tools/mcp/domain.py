"""``MCPToolDomain``: any MCP server as the tools of a team."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import ConfigError, MarftError, WorkerError
from marft_envs.families.tools.functions import GradeFn
from marft_envs.families.tools.mcp.client import Connection, named
from marft_envs.families.tools.mcp.wire import check_size, chosen, library, text_of, value_of
from marft_envs.families.tools.types import Shared, StateGrade, Tool, ToolError, ToolProblem, frozen, graded
from marft_envs.problems.sets import ProblemSet, of_split

Problems = Sequence[ToolProblem] | Mapping[str, Sequence[ToolProblem]]
MOST_TOOLS = 1_000
"""That a server may list; the largest public ones have some hundred."""
_MOST_PAGES = 100


_GRACE_S = 1.0
"""The session gives a call up at its deadline; the thread that waits for it does a little later."""


@dataclass(frozen=True)
class PastCall:
    """A call that was made on a server, and what came of it."""

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
        self.history: list[PastCall] = []
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
            self.history.append(PastCall(call, False, str(error)))
            raise
        self._waiting = False
        self.history.append(PastCall(call, True, value))
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
            raise ToolError(text_of(result) or str(value_of(result) or "the tool failed without a word"))
        return value_of(result)

    def state_hash(self) -> str:
        """Returns a digest of the set of calls that may have changed something."""
        text = "\n".join(sorted(self._writes))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def _uncopied(self, *given: Any) -> Any:
        """Raises ConfigError: the server's state can neither be had nor set."""
        raise ConfigError(
            f"The state of the MCP server '{self._connection.name}' cannot be copied, so its episodes can neither be "
            "forked nor saved half-way. Use an algorithm without fork."
        )

    snapshot = restore = __deepcopy__ = __reduce__ = _uncopied

    def close(self) -> None:
        """Leaves a server of this episode's own, without waiting; notes of a shared one that a call is hanging."""
        if self._own:
            self._connection.close(wait=False)
        elif self._waiting:
            self._connection.suspect = True


class MCPToolDomain(Shared):
    """A :class:`marft_envs.families.tools.types.ToolDomain` whose tools are an MCP server's.

    The problems and their grading are given here. Every episode has a connection of its own (of a command: a process of
    its own), unless ``shared``. Worlds cannot be copied half-way: the state of a server cannot be had.

    Args:
        server: The URL of an MCP endpoint (streamable HTTP); a command as a list of words, or
            ``mcp.StdioServerParameters`` for its environment and folder (stdio); a server object of the package ``mcp``
            (in process); or a function that takes the problem (None: only the tools are asked for) and returns one of
            these, to prepare what the server works on.
        problems: What the user can want, one list for all splits or a mapping from split to list.
        grade: Judges an episode by ``world.history`` (calls and results) and ``world.ask(tool, arguments)`` (the server
            itself), given the world and the problem, and, if it has a parameter ``messages``, the messages to the user.
            A number is the progress, and 1 (or True) is completion.
            Default: ``secret["expected"]`` of a problem, a list of (:class:`ToolCall`, value): these calls are made at
            the end, and progress is the share of those answers that have come true. Any JSON value equals itself only;
            68 equals 68.0.
        oracle: Gold calls per user turn; default: ``secret["calls"]`` of a problem.
        policy: Text that every acting agent is shown; default: the server's instructions.
        specialists: Role -> names of its tools.
        user_tools: Names of the user-agent's tools.
        tools: Names of the tools that agents may hold; default: all.
        read_only: Names of tools that change nothing, where the server does not say so.
        timeout_s: Wall seconds for one call.
        start_s: Wall seconds for the server to start; the default leaves time for a first start by ``npx`` or ``uvx``,
            which download it.
        shared: One connection for all episodes; for servers whose state does not matter.
        name: The domain's name; default: the server's.

    Raises:
        ConfigError: If the server's tools, or what is said about them, cannot work.
        MissingExtraError: If the package ``mcp`` is not installed.
        WorkerError: If the server does not start.
    """

    may_block = True
    copyable = False

    def __init__(
        self,
        server: Any,
        problems: Problems | None = None,
        grade: GradeFn | None = None,
        *,
        oracle: Callable[[ToolProblem], list[list[ToolCall]]] | None = None,
        policy: str | None = None,
        specialists: Mapping[str, Collection[str]] | None = None,
        user_tools: Collection[str] | None = None,
        tools: Collection[str] | None = None,
        read_only: Collection[str] = (),
        timeout_s: float = 30.0,
        start_s: float = 60.0,
        shared: bool = False,
        name: str | None = None,
    ) -> None:
        self._server, self._given, self._grade, self._oracle = server, problems, grade, oracle
        self._start_s, self._shared = start_s, shared
        self.same_world = not callable(server)
        """As of :class:`marft_envs.families.tools.FunctionDomain`."""
        self._prepare()
        if problems is None:
            raise ConfigError(
                f"The MCP server '{named(server)}' has tools, but no problems. Next: problems=[ToolProblem(…)], "
                "with grade=… or secret={'expected': [(ToolCall(…), value)]}."
            )
        connection = self.connection()
        try:
            listed, instructions = connection.introduced(_introduced, start_s)
            selected = chosen(listed, tools, timeout_s, frozenset(read_only))
            check_size(selected, policy or instructions)
        except MarftError:
            self.close()
            raise
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in selected}
        self.name = name or connection.name
        self.policy = policy if policy is not None else instructions
        self.specialists = {role: frozenset(names) & set(self.tools) for role, names in (specialists or {}).items()}
        self.user_tools = frozenset(user_tools or ())
        if not shared:
            self.close()

    def _prepare(self) -> None:
        self._lock, self._open = threading.Lock(), list[Connection]()

    def connection(self, problem: ToolProblem | None = None) -> Connection:
        """Returns the connection for a problem's episode: the one that is there if it still serves, else a new one."""
        with self._lock:
            if problem is None or self._shared:
                # A shared server may be slow, if it still gives a sign of life.
                for unfit in [c for c in self._open if not c.usable or (c.suspect and not c.answers())]:
                    self._open.remove(unfit)
                    unfit.close(wait=False)
                if self._open:
                    return self._open[0]
            self._open = [opened for opened in self._open if opened.usable]
            server = self._server(problem) if callable(self._server) else self._server
            self._open.append(Connection(server, self._start_s))
            return self._open[-1]

    def problems(
        self, split: str, levels: Sequence[int] | None = None, limit: int | None = None
    ) -> ProblemSet[ToolProblem]:
        """Returns the problems of a split.

        Raises:
            DataError: If there are none.
        """
        return of_split(self.name, self._given or (), split, levels, limit)

    def open(self, problem: ToolProblem) -> ForeignWorld:
        """Returns a fresh world; a server that has died or hangs is started anew.

        Raises:
            WorkerError: If it does not start.
        """
        connection = self.connection(problem)
        world = ForeignWorld(connection, self.tools, not self._shared)
        if self._grade is None:
            try:
                world.baseline = _held(world, problem)
            except TimeoutError as error:
                raise WorkerError(f"The MCP server '{connection.name}' did not answer in time.") from error
        return world

    def begin_turn(self, problem: ToolProblem, world: ForeignWorld, turn: int) -> None:
        """Does nothing: a server knows no user."""

    def grade(self, problem: ToolProblem, world: ForeignWorld, messages: Sequence[str] = ()) -> StateGrade:
        """Judges state and words to the user; where a server cannot be asked, nothing is achieved (``server_lost``)."""
        try:
            verdict = graded(self._grade or _expected, world, problem, messages)
        except (WorkerError, TimeoutError):
            return StateGrade(False, 0.0, {"server_lost": True})
        return StateGrade.of(verdict)

    def oracle(self, problem: ToolProblem) -> list[list[ToolCall]]:
        """Returns gold calls, if they were given."""
        missing = f"'{self.name}' has no oracle. Give oracle=…, or secret={{'calls': …}} with each problem."
        return problem.asked(self._oracle, missing)

    def close(self) -> None:
        """Leaves the server and ends its processes; the next use starts it again."""
        with self._lock:
            left, self._open = self._open, []
        for connection in left:
            connection.close(wait=False)
        for connection in left:
            connection.close()

    def __enter__(self) -> MCPToolDomain:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Without connections; an unpickled copy makes its own."""
        if not (callable(self._server) or isinstance(self._server, str | Sequence) or hasattr(self._server, "command")):
            raise ConfigError(
                f"A server object ('{self.name}') cannot be pickled. Give a function that makes the server instead."
            )
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_open")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()


async def _introduced(client: Any) -> tuple[list[Any], str]:
    """All tools, and the server's instructions."""
    tools: list[Any] = []
    cursor = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if len(tools) > MOST_TOOLS:
            raise ConfigError(f"The MCP server lists more than {MOST_TOOLS} tools; agents cannot read that many.")
        if not cursor:
            break
    return tools, client.instructions or ""


def _held(world: ForeignWorld, problem: ToolProblem) -> list[bool]:
    """Which of the expected answers the server gives."""
    if not isinstance(problem.secret, Mapping) or "expected" not in problem.secret:
        raise ConfigError(
            f"How is '{problem.id}' graded? Give grade=…, or secret={{'expected': [(ToolCall(…), value), …]}}."
        )
    return [_answer(world, call) == ("answer", frozen(value)) for call, value in problem.secret["expected"]]


def _answer(world: ForeignWorld, call: ToolCall) -> tuple[str, Any]:
    try:
        return "answer", frozen(world.ask(call.name, call.arguments))
    except ToolError as error:
        return "error", str(error)


def _expected(world: ForeignWorld, problem: ToolProblem) -> StateGrade:
    """Progress: answers that have come true less answers that have stopped being true, of those that were wrong."""
    now, before = _held(world, problem), world.baseline
    won = sum(new and not old for new, old in zip(now, before, strict=True))
    spoilt = sum(old and not new for new, old in zip(now, before, strict=True))
    wanted = before.count(False)
    share = max(0.0, (won - spoilt) / wanted) if wanted else 0.0
    done = all(now)
    return StateGrade(done, 1.0 if done else share, {"achieved": won, "wanted": wanted, "wrong": spoilt})
