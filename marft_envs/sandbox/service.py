"""The sandbox as a service for machines where no layer holds; :mod:`marft_envs.sandbox.remote` is its client."""

from __future__ import annotations

import base64
import dataclasses
import json
import secrets
import sys
import urllib.parse
from pathlib import Path
from typing import Any

from marft_envs.errors import ConfigError
from marft_envs.sandbox import values
from marft_envs.sandbox.pool import Sandbox
from marft_envs.sandbox.remote import PROTOCOL, REQUEST_BYTES, differs
from marft_envs.sandbox.types import Call, Limits
from marft_envs.server.door import LINES, DoorHandler, FrontDoor, RefusedRequest

MOST = Limits(cpu_s=60.0, wall_s=180.0, total_s=600.0, memory_mb=4096, output_bytes=16 << 20, source_bytes=1 << 20)
"""Largest limits that a service grants by default: without them, one client could take the whole machine."""


def _strings(request: dict[str, Any], *names: str) -> list[str]:
    """Texts of a request.

    Raises:
        ValueError: One is absent or no text.
    """
    if wrong := next((name for name in names if not isinstance(request.get(name), str)), ""):
        raise ValueError(f"'{wrong}' is {type(request.get(wrong)).__name__}; expected text")
    return [request[name] for name in names]


def _calls(rows: Any) -> list[Call]:
    """The calls of a request.

    Raises:
        ValueError: They are no list of kind, text and encoded values.
        BadValue: A value is none.
    """
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and [*map(type, row)] == [str, str, list] and row[0] in ("call", "expr") for row in rows
    ):
        raise ValueError("'calls' is no list of [kind, text, values] with the kind 'call' or 'expr'")
    return [Call(kind, text, tuple(map(values.decode, encoded))) for kind, text, encoded in rows]


class _Handler(DoorHandler):
    """Answers one request; the server holds the sandbox and the token."""

    server: SandboxServer
    protocol_version = "HTTP/1.0"
    for_browsers = False
    key_expected = "the token of the url, which has the form http://TOKEN@HOST:PORT"

    def do_POST(self) -> None:
        try:
            request = json.loads(self.body(REQUEST_BYTES))
            if not isinstance(request, dict):
                raise ValueError(f"the body is JSON of type {type(request).__name__}; expected an object")
            self.send_json(200, self._do(request))
        except (ValueError, KeyError, TypeError, RecursionError, values.BadValue) as error:
            raise RefusedRequest(400, f"bad request: {type(error).__name__}: {error}") from error

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        sandbox = self.server.sandbox
        if self.path == "/about":
            if request.get("protocol") != PROTOCOL:
                raise ValueError(differs(request, "the client", "this service"))
            return {"protocol": PROTOCOL, "layer": sandbox.layer, "guarantees": sorted(sandbox.guarantees)}
        limits = Limits(**request["limits"])
        for name, most in vars(self.server.most).items():
            if getattr(limits, name) > most:
                raise ValueError(f"limit {name} is {getattr(limits, name)}; this service grants {most} at most")
        if self.path == "/stdio":
            source, stdin, prelude = _strings(request, "source", "stdin", "prelude")
            data = base64.b64decode(stdin, validate=True)
            done = sandbox.run_stdio(source, data, prelude=prelude, limits=limits)
            return {**dataclasses.asdict(done), "stdout": base64.b64encode(done.stdout).decode()}
        if self.path == "/calls":
            source, entry, setup, prelude = _strings(request, "source", "entry_point", "setup", "prelude")
            calls = _calls(request.get("calls"))
            results = sandbox.run_calls(source, entry, calls, setup=setup, prelude=prelude, limits=limits)
            cap = 8 * int(limits.output_bytes)
            return {"results": [[r.status, values.encode(r.value, cap), r.message, r.cpu_s, r.wall_s] for r in results]}
        raise ValueError(f"no path {self.path[:100]}")


class SandboxServer(FrontDoor):
    """The service. ``url`` is what a client takes, token included.

    Args:
        sandbox: Runs the programs; as many at once as it has workers.
        host: Address to listen on.
        port: 0 for a free one.
        token: What clients have to know; None draws one.
        most: Largest limits that clients may ask for.
        connections: Most at a time. One more takes the place of the oldest that has not shown the token yet, so
            strangers keep nobody out; where all have, it waits.
    """

    grace_s = 1.0

    def __init__(
        self,
        sandbox: Sandbox,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        *,
        most: Limits = MOST,
        connections: int = LINES,
    ) -> None:
        self.sandbox, self.most = sandbox, most
        self.token = token or secrets.token_urlsafe(24)
        super().__init__(_Handler, port, host, self.token, connections)
        self.url = f"http://{urllib.parse.quote(self.token, safe='')}@{host}:{self.server_address[1]}"


def serve(sandbox: Sandbox, host: str, port: int, token_file: Path | None) -> None:
    """Serves until interrupted; prints the URL, with its token only if no file names one."""
    token = token_file.read_text(encoding="utf-8").strip() if token_file else None
    if token == "":
        raise ConfigError("the token file is empty; write a long random word into it")
    with SandboxServer(sandbox, host, port, token) as server:
        shown = f"http://TOKEN@{host}:{server.server_address[1]}" if token_file else server.url
        print(f"{sandbox.layer}, {sandbox.workers} workers: {shown}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
