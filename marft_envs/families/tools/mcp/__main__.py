"""``python -m marft_envs.families.tools.mcp serve --domain depot``: a tool domain as an MCP server."""

from __future__ import annotations

import argparse
import json
import socket
from typing import Any

from marft_envs.errors import ConfigError, MarftError
from marft_envs.families.tools import domain_of
from marft_envs.families.tools.mcp import as_mcp_server
from marft_envs.registry import importable


def over_stdio(server: Any) -> None:
    """Serves one client over standard input and output."""
    import anyio
    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(serve)


def over_http(server: Any, host: str, port: int) -> None:
    """Serves any number of clients over streamable HTTP; prints the URL once it listens."""
    import uvicorn

    with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        app = server.streamable_http_app(host=host)
        shown = f"[{host}]" if ":" in host else host
        print(f"http://{shown}:{listening.getsockname()[1]}/mcp", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on")).run(sockets=[listening])


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m marft_envs.families.tools.mcp", description=__doc__)
    serve = parser.add_subparsers(dest="command", required=True).add_parser("serve", help="serve a domain's worlds")
    serve.add_argument("--domain", default="depot", help="depot, bfcl, tau or module:callable (default: depot)")
    serve.add_argument("--domain-args", default="{}", help="the domain's arguments as a JSON object")
    serve.add_argument("--splits", nargs="+", default=["train", "test"], help="where tasks are looked up by id")
    serve.add_argument("--transport", choices=("stdio", "http"), default="stdio")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    serve.add_argument("--port", type=int, default=0, help="port (default: a free one, printed)")
    chosen = parser.parse_args(arguments)
    if ":" in chosen.domain:
        importable()
    try:
        try:
            domain_args = json.loads(chosen.domain_args)
        except ValueError as error:
            raise ConfigError(f"--domain-args is not JSON: {error}") from error
        if not isinstance(domain_args, dict):
            raise ConfigError("--domain-args must be a JSON object, like '{\"dual\": true}'.")
        server = as_mcp_server(domain_of(chosen.domain, domain_args), chosen.splits)
        if chosen.transport == "stdio":
            over_stdio(server)
        else:
            over_http(server, chosen.host, chosen.port)
    except (MarftError, OSError) as error:
        parser.exit(1, f"{error}\n")
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
