"""The world behind an MCP server, whose state cannot be copied."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marft_envs.errors import ConfigError, WorkerError
from marft_envs.families.tools.mcp.client import Connection
from marft_envs.families.tools.mcp.wire import library, text_of, value_of
from marft_envs.families.tools.types import Tool, ToolCall, ToolError

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
            "forked nor saved half-way. Use an algorithm without fork."
        )

    def close(self) -> None:
        """Leaves a server of this episode's own, without waiting; notes of a shared one that a call is hanging."""
        if self._own:
            self._connection.close(wait=False)
        elif self._waiting:
            self._connection.suspect = True
