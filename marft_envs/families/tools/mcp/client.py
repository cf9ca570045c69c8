"""A synchronous client: connections live on one background event loop per process.

A connection belongs to the process that made it. After ``os.fork`` the child has neither the loop's thread nor the
pipes' other ends to itself, so it counts inherited connections as lost and makes its own.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from marft_envs import __version__
from marft_envs.errors import ConfigError, WorkerError
from marft_envs.families.tools.mcp.wire import library

Request = Callable[[Any], Awaitable[Any]]
"""What to do with an ``mcp.Client``."""

_CLOSING_S = 10.0
"""Longest wait for a server to end: the library asks for 2 s, terminates for 2 s, then kills."""
_PING_S = 2.0
_NONSENSE_S = 5.0
"""Patience with a server that starts and has said what is no MCP; some print a greeting first."""
_LOOK_S = 0.25
_LAST_WORDS = 300

logging.getLogger("mcp").addHandler(logging.NullHandler())  # its tracebacks are for who asks for logs; errors are ours


class _Home:
    """The thread with the event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.live: weakref.WeakSet[Connection] = weakref.WeakSet()
        threading.Thread(target=self.loop.run_forever, daemon=True, name="marft-mcp").start()


@functools.cache
def _home() -> _Home:
    """This process's home; made when it is first needed."""
    return _Home()


def _close_all() -> None:
    """Ends every server that is still there; for the process's end."""
    connections = list(_home().live) if _home.cache_info().currsize else []
    for connection in connections:
        connection.close(wait=False)
    for connection in connections:
        connection.close()


_home()  # here, so that no two threads make one each
atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_home.cache_clear)


class Connection:
    """One client's connection to one server; may be used from any thread of its process.

    Args:
        server: A URL, a command as a list of words, ``mcp.StdioServerParameters``, or a server object.
        start_s: Most seconds for the server to start and to answer.

    Raises:
        ConfigError: If ``server`` is none of these.
        WorkerError: If it does not answer, with its last words.
    """

    def __init__(self, server: Any, start_s: float) -> None:
        self.name = named(server)
        self.lost = False
        """The server is gone, or this side has left."""
        self.suspect = False
        """A call missed its deadline; whether the server still answers is not known."""
        self._nonsense = ("", 0.0)
        """The last thing that could not be read, and when it came."""
        self._spoilt = ""
        """What is wrong with an answer that cannot be read; the call that waits for it gets no other."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the connection
        self._home = _home()
        self._stop = asyncio.Event()
        ready: Future[Any] = Future()
        self._waiting = {ready}
        target = _transport(server, self._errors)
        self._life = asyncio.run_coroutine_threadsafe(self._live(target, ready), self._home.loop)
        self._home.live.add(self)
        try:
            self._client = self._started(ready, start_s)
        except Exception as error:
            self._life.cancel()
            self.lost = True
            raise WorkerError(
                f"The MCP server '{self.name}' does not start: {self._why(error, start_s)}.{self._words()} "
                "Expected a URL of its MCP endpoint, or a command that talks MCP over its standard streams."
            ) from error

    def introduced(self, request: Request, start_s: float) -> Any:
        """Returns what a first request gives, as ``ask``; one that is not answered is a server that does not start.

        Raises:
            WorkerError: No answer, or none that can be read.
            ConfigError: The answer is one that the protocol does not allow.
        """
        future = self._sent(request)
        try:
            return self._started(future, start_s)
        except ConfigError:
            raise
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
            raise ConfigError(
                f"The MCP server '{self.name}' offers what the protocol does not allow, and none of its tools can be "
                f'read ({wrong[:_LAST_WORDS]}). A tool needs at least an inputSchema of {{"type": "object"}}. Fix '
                "it in the server; the number is its place in the server's list."
            ) from error
        except Exception as error:
            future.cancel()
            raise self._gone(f"it does not say what it offers: {self._why(error, start_s)}") from error

    def _sent(self, request: Request) -> Future[Any]:
        async def answered() -> Any:
            return await request(self._client)

        return asyncio.run_coroutine_threadsafe(answered(), self._home.loop)

    def _started(self, future: Future[Any], seconds: float) -> Any:
        """Waits for a server that starts; less long once it has said what is no MCP."""
        until = time.monotonic() + seconds
        while not future.done():
            nonsense, when = self._nonsense
            left = min(until, when + _NONSENSE_S if nonsense else until) - time.monotonic()
            if left <= 0:
                raise TimeoutError
            wait([future], min(left, _LOOK_S))
        return future.result()

    def _why(self, error: BaseException, seconds: float) -> str:
        if self._spoilt:
            return self._spoilt
        if not isinstance(error, TimeoutError):
            return _leaf(error)
        nonsense = self._nonsense[0]
        return f"what it says is no MCP: {nonsense}" if nonsense else f"no answer in {seconds:g} s"

    async def _receive(self, message: Any) -> None:
        """Gives up on answers that the library could not read and drops; whose they were is not known."""
        if not isinstance(message, Exception):
            return
        self._nonsense = (" ".join(str(message).split())[:_LAST_WORDS], time.monotonic())
        if spoilt := _spoilt(message):
            self._spoilt = spoilt
            for future in list(self._waiting):
                future.cancel()

    async def _live(self, target: Any, ready: Future[Any]) -> None:
        """Holds the client open; entered and left by one task, as its task groups demand."""
        mcp = library()
        try:
            info = mcp.Implementation(name="marft", version=__version__)
            async with mcp.Client(target, cache=None, client_info=info, message_handler=self._receive) as client:
                ready.set_result(client)
                await self._stop.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
        finally:
            self.lost = True

    def ask(self, request: Request, timeout_s: float) -> Any:
        """Returns what the request gives.

        Raises:
            TimeoutError: After ``timeout_s`` seconds; the request is cancelled, but may have been carried out.
            WorkerError: If the server is gone.
            Exception: What the library raises where the server answers with an error.
        """
        if not self.usable:
            raise self._gone("the connection is closed")
        mcp = library()
        future = self._sent(request)
        self._waiting.add(future)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            self.suspect = True
            raise
        except (mcp.MCPError, ValueError) as error:
            if getattr(error, "code", None) == mcp.types.CONNECTION_CLOSED and not self.answers():
                raise self._gone(str(error)) from error
            raise
        except (Exception, CancelledError) as error:
            if type(error) is RuntimeError and self.answers():
                raise  # how the library says that a result breaks the tool's own output schema
            if self._spoilt:
                self.close(wait=False)
            raise self._gone(self._spoilt or _leaf(error)) from error
        finally:
            self._waiting.discard(future)

    def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        """Returns the ``CallToolResult`` of a call; raises what :meth:`ask` does."""
        return self.ask(lambda client: client.call_tool(name, arguments), timeout_s)

    @property
    def usable(self) -> bool:
        """Whether this process can use it, as far as is known."""
        return not self.lost and self._home is _home()

    def answers(self) -> bool:
        """Asks the server for a sign of life."""
        if not self.usable:
            return False
        future = self._sent(lambda client: client.list_tools())
        try:
            future.result(_PING_S)
        except (Exception, CancelledError):
            future.cancel()
            return False
        self.suspect = False
        return True

    def close(self, wait: bool = True) -> None:
        """Leaves the server, and ends it where it is a process of ours.

        Args:
            wait: Return when it has ended; else it ends in the background.
        """
        self.lost = True
        if self._home is not _home():
            return
        self._home.loop.call_soon_threadsafe(self._stop.set)
        if wait:
            try:
                self._life.result(_CLOSING_S)
            except (TimeoutError, CancelledError):
                self._life.cancel()

    def _gone(self, why: str) -> WorkerError:
        self.lost = True
        return WorkerError(f"The MCP server '{self.name}' is gone: {why}.{self._words()}")

    def _words(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _LAST_WORDS))
        stderr = " ".join(self._errors.read().decode("utf-8", "replace").split())
        return f" It said: {stderr}" if stderr else ""


@asynccontextmanager
async def _lenient(transport: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A transport whose tools may have a schema that says nothing, or none: such a tool takes no arguments.

    The protocol does not allow it, servers do it, and the library reads none of the tools beside such a one.
    """
    async with transport as (read, write):
        yield _Reader(read), write


class _Reader:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _Reader:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __aiter__(self) -> _Reader:
        return self

    async def __anext__(self) -> Any:
        return _with_schemas(await self._stream.__anext__())

    async def receive(self) -> Any:
        return _with_schemas(await self._stream.receive())


def _with_schemas(item: Any) -> Any:
    result = getattr(getattr(item, "message", None), "result", None)
    tools = result.get("tools") if isinstance(result, dict) else None
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and not tool.get("inputSchema"):
            tool["inputSchema"] = {"type": "object"}
    return item


def _leaf(error: BaseException) -> str:
    """The first error in a group of groups, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _spoilt(error: Exception) -> str:
    """What is wrong with a line that was meant as a message of the protocol; nothing for a line that was not.

    Servers print to their standard output what belongs elsewhere, and go on; that is forgiven.
    """
    if not isinstance(error, ValidationError):
        return ""
    errors = error.errors(include_url=False, include_context=False)
    if not any("jsonrpc" in e["input"] for e in errors if isinstance(e["input"], str | dict)):
        return ""
    reasons = "; ".join(dict.fromkeys(f"{'.'.join(map(str, e['loc']))}: {e['msg']}".removeprefix(": ") for e in errors))
    return f"its answer is no MCP message ({reasons[:_LAST_WORDS]})"


def named(server: Any) -> str:
    """Returns what errors call a server; no arguments or headers, which may hold secrets."""
    if isinstance(server, str):
        return server.partition("?")[0]
    if isinstance(server, Sequence) and server:
        return os.path.basename(str(server[0]))
    return os.path.basename(str(getattr(server, "command", getattr(server, "name", type(server).__name__))))


def _transport(server: Any, errors: Any) -> Any:
    """What ``mcp.Client`` takes."""
    mcp = library()
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.server import MCPServer, Server

    if isinstance(server, str):
        if not server.startswith(("http://", "https://")):
            raise ConfigError(f"'{server}' is not the URL of an MCP server. A command is a list: [{server!r}, …].")
        # Results are cut by the session, not lost.
        return _lenient(streamable_http_client(server, max_sse_event_size=None))
    if isinstance(server, Sequence) and server and all(isinstance(word, str) for word in server):
        server = mcp.StdioServerParameters(command=server[0], args=list(server[1:]))
    if isinstance(server, mcp.StdioServerParameters):
        return _lenient(stdio_client(_guarded(server), errlog=errors))
    if isinstance(server, Server | MCPServer):
        return server
    raise ConfigError(
        f"{type(server).__name__} is not an MCP server. Expected a URL, a command as a list of words, "
        "mcp.StdioServerParameters, a server object of the package mcp, or a function that returns one of these."
    )


def _guarded(server: Any) -> Any:
    """The same command under a process that ends it when this one is gone, however it went."""
    path = (server.env or {}).get("PATH") or os.environ.get("PATH")
    here = shutil.which(server.command, path=path) or (server.cwd is not None and os.sep in server.command)
    if os.name != "posix" or not here:
        return server  # the library says that there is no such command
    guard = [str(Path(__file__).with_name("guard.py")), str(os.getpid())]
    changed = {"command": sys.executable, "args": ["-I", "-S", *guard, server.command, *server.args]}
    return server.model_copy(update=changed)
