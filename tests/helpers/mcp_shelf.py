"""A server of the package ``mcp``: the tiny domain's tools. ``python mcp_shelf.py stdio|http`` serves it."""

from __future__ import annotations

import inspect
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError as Refused
from mcp.types import ToolAnnotations

from marft_envs.families.tools import ToolError, ToolProblem
from tests.helpers.tools_tiny import TOOLS, Desk, grade


def shelf(problem: ToolProblem | None = None) -> Any:
    """A fresh server, with a state of its own."""
    server, desk = MCPServer("shelf", instructions="Never reset a counter."), Desk()
    for fn in TOOLS:
        hints = ToolAnnotations(read_only_hint=fn.__name__.startswith("read"))
        server.add_tool(_bound(fn, desk), name=fn.__name__, annotations=hints)

    @server.tool()
    def state() -> dict[str, Any]:
        """Everything; for grading."""
        return {"counters": desk.counters, "notes": desk.notes}

    return server


def _bound(fn: Any, desk: Desk) -> Any:
    def called(**arguments: Any) -> Any:
        try:
            return fn(desk, **arguments)
        except ToolError as error:
            raise Refused(str(error)) from error

    signature = inspect.signature(fn, eval_str=True)
    called.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    called.__name__, called.__doc__ = fn.__name__, inspect.getdoc(fn).partition("\n")[0]
    called.__annotations__ = {p.name: p.annotation for p in called.__signature__.parameters.values()}
    return called


def judged(world: Any, problem: ToolProblem) -> Any:
    """Grades by the state, as the tiny domain does."""
    return grade(Desk(**world.ask("state", {})), problem)


def serve_http() -> None:
    """Prints the URL once it listens."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = shelf().streamable_http_app()
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on")).run(sockets=[listening])


if __name__ == "__main__":
    if sys.argv[1] == "http":
        serve_http()
    else:
        shelf().run("stdio")
