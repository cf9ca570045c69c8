"""``as_mcp_server``: any tool domain as an MCP server, so that other people's agents can use its worlds.

Beside the domain's tools there are a few of the harness's own, marked in ``_meta``: to list tasks, to start one, to go
on to the next user turn, to get the grade, to end it. Gold answers are never sent.

Every client has a task of its own. Where the transport knows its client (stdio, in process, HTTP with the handshake
that gives a session id), nothing more is needed. Elsewhere, or for many tasks over one connection, a task is started
with ``handle=true``, and calls name the handle in ``_meta`` as ``marft/session``.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from marft_envs import __version__
from marft_envs.errors import ConfigError, DataError, MarftError
from marft_envs.families.tools.mcp.wire import DOMAIN, ERROR, SESSION, STATE, TRANSIENT, library, to_mcp
from marft_envs.families.tools.mcp.worlds import END, GRADE, LIST, START, TURN
from marft_envs.families.tools.schema import tool, validate
from marft_envs.families.tools.session import Session, Toolbox
from marft_envs.families.tools.types import Grade, Problems, Tool, ToolCall, ToolDomain, ToolError, ToolProblem, graded

_CLIENT = "client"
_ENDLESS = 10**9
"""Budgets and lengths are the client's business."""
_IDLE_S = 1800.0
"""A task that nobody has touched for so long may be ended when another starts; the library drops sessions as late."""
_MOST = 4096
"""Open tasks per server."""
_MOST_SETS = 64
"""Lists of tasks kept."""


class _Task:
    """A task that a client works on."""

    def __init__(self, domain: ToolDomain, toolbox: Toolbox, problem: ToolProblem) -> None:
        self.domain, self.problem, self.lock = domain, problem, threading.RLock()
        everything = {_CLIENT: frozenset(toolbox.tools)}
        opened = partial(domain.open, problem)
        self.session = Session(toolbox, opened, everything, {}, _ENDLESS, _ENDLESS)
        self.used = time.monotonic()
        self.begin(0)

    def begin(self, turn: int) -> None:
        session, withheld = self.session, self.problem.withheld
        session.turn = turn
        session.withheld = withheld[turn] if turn < len(withheld) else frozenset()
        self.domain.begin_turn(self.problem, session.world, turn)

    def next_turn(self) -> None:
        if self.session.turn + 1 >= len(self.problem.turns):
            raise ToolError(f"'{self.problem.id}' has no further user turn.")
        self.begin(self.session.turn + 1)

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        types = library().types
        result = self.session.call(_CLIENT, ToolCall(name, arguments))
        entry = self.session.log[-1]
        meta: dict[str, Any] = {STATE: self.state()}
        if not result.error:
            return answered(result.value, meta)
        meta |= {ERROR: result.error, TRANSIENT: not entry.fault}
        text = types.TextContent(type="text", text=result.message)
        return types.CallToolResult(content=[text], is_error=True, _meta=meta)

    def state(self) -> str:
        return "" if self.session.broken else self.session.world.state_hash()

    def grade(self, told: Sequence[str]) -> Grade:
        if self.session.broken == "world_hung":
            return Grade(False, 0.0)
        try:
            return graded(self.domain.grade, self.problem, self.session.world, told)
        except Exception:
            if not self.session.broken:
                raise
            return Grade(False, 0.0)


class _Scope:
    """Open tasks of one run of the server (of one client, over stdio and in process)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tasks: dict[str, _Task] = {}
        """Handle -> task."""
        self.current: dict[str, str] = {}
        """Client -> handle of its own task."""

    def put(self, task: _Task, client: str | None) -> str:
        with self.lock:
            late = time.monotonic() - _IDLE_S
            gone = [handle for handle, old in self.tasks.items() if old.used < late]
            if client is not None and client in self.current:
                gone.append(self.current.pop(client))
            ended = [self.tasks.pop(handle) for handle in gone if handle in self.tasks]
            full = len(self.tasks) >= _MOST
            handle = "" if full else secrets.token_urlsafe(16)
            if handle:
                self.tasks[handle] = task
            if handle and client is not None:
                self.current[client] = handle
        for old in [*ended, *([task] if full else [])]:
            old.session.world.close()
        if full:
            raise ToolError(f"{_MOST} tasks are open. End some with {END} first.")
        return handle

    def find(self, client: str | None, handle: str | None) -> _Task:
        if handle is None and client is None:
            raise ToolError(
                f"This transport does not tell clients apart. Start with {START}(handle=true) and name the handle in "
                f"_meta['{SESSION}'], or connect with the initialize handshake."
            )
        with self.lock:
            task = self.tasks.get(handle if handle is not None else self.current.get(client or "", ""))
        if task is None:
            raise ToolError(f"No task is open{' under this handle' if handle else ''}. Next: {START}(task_id=…).")
        task.used = time.monotonic()
        return task

    def end(self, task: _Task) -> None:
        with self.lock:
            handles = [handle for handle, open_task in self.tasks.items() if open_task is task]
            for handle in handles:
                del self.tasks[handle]
            self.current = {client: handle for client, handle in self.current.items() if handle not in handles}
        with task.lock:
            task.session.world.close()

    def close(self) -> None:
        for task in list(self.tasks.values()):
            self.end(task)


class _Caller:
    """Who calls: a run of the server, a client if the transport knows it, a handle if the call names one."""

    def __init__(self, ctx: Any) -> None:
        self.scope: _Scope = ctx.lifespan_context
        headers = getattr(ctx.request, "headers", None)
        self.client: str | None = "" if headers is None else headers.get("mcp-session-id")
        self.handle: str | None = (ctx.meta or {}).get(SESSION)

    def task(self) -> _Task:
        return self.scope.find(self.client, self.handle)


class _Harness:
    """The tools that are not for agents; all parameters and docstrings but of ``caller`` are the tools' own."""

    def __init__(self, domain: ToolDomain, splits: Sequence[str]) -> None:
        self.domain, self.splits = domain, tuple(splits)
        self.toolbox = Toolbox(domain.tools.values())
        self._sets: dict[tuple[str, tuple[int, ...] | None, int | None], Problems] = {}

    def _set(self, split: str, levels: Sequence[int] | None, limit: int | None = None) -> Problems:
        key = (split, None if levels is None else tuple(levels), limit)
        if key not in self._sets:
            if len(self._sets) >= _MOST_SETS:
                self._sets.clear()
            self._sets[key] = self.domain.problems(split, levels, limit)
        return self._sets[key]

    def _problem(self, task_id: str, level: int | None) -> ToolProblem:
        """The problem of an id: among those listed before, else in the splits."""
        levels = None if level is None else [level]
        sources: list[Callable[[], Problems]] = [partial(self._set, *key) for key in self._sets]
        sources += [partial(self._set, split, levels) for split in self.splits]
        for source in sources:
            try:
                return source().get(task_id)
            except DataError:
                continue
        raise ToolError(f"There is no task '{task_id}'. Next: {LIST}.")

    def list_tasks(
        self,
        caller: _Caller,
        split: str | None = None,
        levels: list[int] | None = None,
        limit: int | None = None,
        task_id: str | None = None,
    ) -> list[dict[str, Any]]:
        """Lists tasks: id, the user's words, level, least number of calls. For the harness, not for agents.

        Args:
            caller: Who asks.
            split: Which split; the first if left out.
            levels: Only tasks of these levels.
            limit: At most so many, spread evenly.
            task_id: Only this one.
        """
        problems = self._set(split or self.splits[0], levels, limit)
        chosen = [problems[i] for i in range(len(problems))] if task_id is None else [problems.get(task_id)]
        return [
            {
                "task_id": p.id,
                "turns": list(p.turns),
                "level": p.level,
                "least_steps": p.least_steps,
                "withheld": [sorted(names) for names in p.withheld],
            }
            for p in chosen
        ]

    def start_task(
        self,
        caller: _Caller,
        task_id: str,
        level: int | None = None,
        handle: bool = False,
        history: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Starts a task in a world of its own; returns what the user wants. For the harness, not for agents.

        Args:
            caller: Who asks.
            task_id: As marft_list_tasks names it.
            level: The task's, if it has one; spares a search in the others.
            handle: Give the task a handle, and leave the client's own task as it is; calls then name the handle in
                _meta['marft/session']. Otherwise the task becomes the client's own, and ends the one before.
            history: Steps to carry out at once, as {"name": …, "arguments": {…}}.
        """
        if not handle and caller.client is None:
            raise ToolError("This transport does not tell clients apart. Start with handle=true.")
        problem = self._problem(task_id, level)
        task = _Task(self.domain, self.toolbox, problem)
        for step in history or ():
            if step.get("name") == TURN:
                task.next_turn()
            else:
                task.session.call(_CLIENT, ToolCall(str(step.get("name")), step.get("arguments", {})))
        named = caller.scope.put(task, None if handle else caller.client)
        begun = {"task_id": problem.id, "request": problem.turns[task.session.turn], "user_turns": len(problem.turns)}
        return {**begun, "policy": self.domain.policy, "state": task.state(), **({"session": named} if handle else {})}

    def next_turn(self, caller: _Caller) -> dict[str, Any]:
        """Begins the next user turn; returns what the user says. For the harness, not for agents."""
        task = caller.task()
        with task.lock:
            task.next_turn()
            return {"request": task.problem.turns[task.session.turn], "state": task.state()}

    def grade(self, caller: _Caller, told: list[str] | None = None) -> dict[str, Any]:
        """Judges the state as it is now: completion, progress. For the harness, not for agents.

        Args:
            caller: Who asks.
            told: What the user was told, for tasks that ask for it.
        """
        task = caller.task()
        with task.lock:
            grade = task.grade(told or ())
        return {"completion": grade.completion, "progress": grade.progress, "info": dict(grade.info)}

    def end_task(self, caller: _Caller) -> str:
        """Ends the task. For the harness, not for agents."""
        caller.scope.end(caller.task())
        return "ended"

    def tools(self) -> dict[str, tuple[Tool, Callable[..., Any]]]:
        """Name -> the tool, and what it does."""
        methods: dict[str, tuple[Callable[..., Any], bool]] = {
            LIST: (self.list_tasks, True), START: (self.start_task, False), TURN: (self.next_turn, False),
            GRADE: (self.grade, True), END: (self.end_task, False),
        }  # fmt: skip
        hidden = ("caller",)
        return {name: (tool(fn, read, name=name, hidden=hidden), fn) for name, (fn, read) in methods.items()}

    def carry_out(self, caller: _Caller, name: str, arguments: dict[str, Any]) -> Any:
        """Calls a tool of the domain's on the caller's task."""
        task = caller.task()
        with task.lock:
            return task.call(name, arguments)


def answered(value: Any, meta: Mapping[str, Any]) -> Any:
    """Returns a value as a ``CallToolResult``: as text for agents, and as it is under ``result``."""
    types = library().types
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = types.TextContent(type="text", text=words)
    return types.CallToolResult(content=[text], structured_content={"result": value}, _meta=dict(meta))


def as_mcp_server(domain: ToolDomain, splits: Sequence[str] = ("train", "test")) -> Any:
    """Returns an ``mcp.server.Server`` with the domain's tools, to be run over any transport.

    Args:
        domain: Any tool domain.
        splits: Where tasks are looked up by id.

    Raises:
        ConfigError: If a tool has the name of one of the harness's.
        MissingExtraError: If the package ``mcp`` is not installed.
    """
    library()
    from mcp.server import Server
    from mcp.types import version as versions

    harness = _Harness(domain, splits)
    control = harness.tools()
    for name in control:
        if name in domain.tools:
            raise ConfigError(f"The domain's tool '{name}' has the name of a tool of the server's. Rename it.")
    serving = _Handlers(harness, control)
    server: Any = Server(
        f"marft-{domain.name}",
        version=__version__,
        instructions=f"{domain.policy}\n\nThe tools need a task: {START}(task_id), which {LIST} names.".strip(),
        lifespan=_lifespan,
        on_list_tools=serving.list_tools,
        on_call_tool=serving.call_tool,
    )
    server.add_request_handler("server/discover", library().types.RequestParams, partial(_discover, server, versions))
    return server


@asynccontextmanager
async def _lifespan(server: Any) -> AsyncIterator[_Scope]:
    scope = _Scope()
    try:
        yield scope
    finally:
        scope.close()


async def _discover(server: Any, versions: Any, ctx: Any, params: Any) -> Any:
    """Over HTTP only the versions with a handshake are offered, since later ones know no sessions."""
    known = versions.HANDSHAKE_PROTOCOL_VERSIONS if ctx.request is not None else versions.MODERN_PROTOCOL_VERSIONS
    return library().types.DiscoverResult(
        supported_versions=list(known),
        capabilities=server.get_capabilities(protocol_version=ctx.protocol_version),
        instructions=server.instructions,
    )


class _Handlers:
    """What the server answers."""

    def __init__(self, harness: _Harness, control: Mapping[str, tuple[Tool, Callable[..., Any]]]) -> None:
        self.harness, self.control = harness, control

    async def list_tools(self, ctx: Any, params: Any) -> Any:
        domain = self.harness.domain
        tools = [to_mcp(each) for each in domain.tools.values()]
        tools += [to_mcp(each, control=True) for each, _ in self.control.values()]
        about = {
            "name": domain.name,
            "policy": domain.policy,
            "specialists": {role: sorted(names) for role, names in domain.specialists.items()},
            "user_tools": sorted(domain.user_tools),
            "user_policy": getattr(domain, "user_policy", ""),
        }
        return library().types.ListToolsResult(tools=tools, _meta={DOMAIN: about})

    async def call_tool(self, ctx: Any, params: Any) -> Any:
        """Worlds are called in threads, so that a slow one keeps nobody else waiting."""
        from anyio.to_thread import run_sync

        return await run_sync(self._called, _Caller(ctx), params.name, params.arguments or {})

    def _called(self, caller: _Caller, name: str, arguments: dict[str, Any]) -> Any:
        types = library().types
        try:
            if name not in self.control:
                return self.harness.carry_out(caller, name, arguments)
            control, fn = self.control[name]
            if wrong := validate(control, arguments):
                raise ToolError("; ".join(wrong))
            return answered(fn(caller, **arguments), {})
        except (ToolError, MarftError) as error:
            text = types.TextContent(type="text", text=str(error))
            return types.CallToolResult(content=[text], is_error=True, _meta={ERROR: "tool_error"})
