"""The sandbox as a service for machines where no layer holds, and its client. Standard library only."""

from __future__ import annotations

import base64
import dataclasses
import http.client
import json
import secrets
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from marft_envs.errors import ConfigError
from marft_envs.sandbox import values
from marft_envs.sandbox.types import (
    MESSAGE_CAP,
    Call,
    CallResult,
    CallStatus,
    Limits,
    SandboxError,
    SandboxUnavailable,
    StdioResult,
)
from marft_envs.server.door import LINES, DoorHandler, FrontDoor, RefusedRequest

if TYPE_CHECKING:
    from marft_envs.sandbox.pool import Sandbox

T = TypeVar("T")

PROTOCOL = 3
"""Number of the form of requests and answers; another form gets another number. Services before number 2 name none."""
REQUEST_BYTES = 64 << 20
"""Most bytes of one request; more is refused unread."""
_ANSWER_BYTES = 256 << 20
_AGES = 1e9
"""Seconds that no run takes."""
MOST = Limits(cpu_s=60.0, wall_s=180.0, total_s=600.0, memory_mb=4096, output_bytes=16 << 20, source_bytes=1 << 20)
"""Largest limits that a service grants unless it is told others: a client's word alone would take the machine."""
_GRACE = 120.0
"""Seconds beyond the run's own limit that the client waits: for a free worker of a busy service."""


class Client:
    """Speaks to a service.

    Args:
        url: ``http://TOKEN@HOST:PORT``; ``https`` where a proxy adds it.

    Raises:
        ConfigError: The URL has no token or host.
        SandboxUnavailable: Nobody answers there, or the token is wrong.
    """

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.username:
            raise ConfigError("the service's url has the form http://TOKEN@HOST:PORT")
        self._parts = parts
        self._service = f"the sandbox's service at {parts.scheme}://{parts.hostname}:{parts.port or ''}"

    def guarantees(self) -> frozenset[str]:
        """What the service's layer guarantees.

        Raises:
            SandboxUnavailable: Nobody answers there, the token is wrong, or the service speaks another protocol.
        """
        try:
            answer = self._ask("about", {"protocol": PROTOCOL}, 30.0)
        except SandboxError as error:
            raise SandboxUnavailable(f"{error}. {_START}") from None
        if answer.get("protocol") != PROTOCOL:
            raise SandboxUnavailable(f"{_differs(answer, self._service, 'this client')}. {_START}")
        names = answer.get("guarantees")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise SandboxUnavailable(f"{self._service} names no guarantees. {_START}")
        return frozenset(names)

    def run_calls(self, program: Mapping[str, str], calls: Sequence[Call], limits: Limits) -> list[CallResult]:
        """As ``supervise.run_calls``."""
        rows = [[call.kind, call.text, [values.encode(v, REQUEST_BYTES) for v in call.values]] for call in calls]
        request = {**program, "calls": rows, "limits": dataclasses.asdict(limits)}
        answer = self._ask("calls", request, limits.total_s + _GRACE)
        try:
            results = [CallResult(*_facts(status, values.decode(v), *rest)) for status, v, *rest in answer["results"]]
            if len(results) != len(calls):
                raise ValueError(f"{len(results)} results for {len(calls)} calls")
        except (values.BadValue, LookupError, ValueError, TypeError) as error:
            raise self._nonsense(error) from None
        return results

    def run_stdio(self, program: Mapping[str, str], stdin: bytes, limits: Limits) -> StdioResult:
        """As ``supervise.run_stdio``."""
        request = {**program, "stdin": base64.b64encode(stdin).decode(), "limits": dataclasses.asdict(limits)}
        answer = self._ask("stdio", request, limits.total_s + _GRACE)
        try:
            stdout = base64.b64decode(answer["stdout"], validate=True)
            return StdioResult(*_facts(answer["status"], stdout, *(answer[x] for x in ("stderr", "cpu_s", "wall_s"))))
        except (KeyError, ValueError, TypeError) as error:
            raise self._nonsense(error) from None

    def _nonsense(self, error: Exception) -> SandboxError:
        return SandboxError(f"{self._service} answered nonsense ({f'{type(error).__name__}: {error}'[:200]})")

    def _ask(self, what: str, request: dict[str, Any], timeout: float, again: bool = True) -> dict[str, Any]:
        """One request, tried twice: a run has no effect outside, so doing it again does no harm."""
        try:
            return self._post(what, request, timeout)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            if again:
                return self._ask(what, request, timeout, again=False)
            raise SandboxError(f"{self._service} failed: {str(error)[:200]}") from None

    def _post(self, what: str, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        token = urllib.parse.unquote(str(self._parts.username))
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        with closing(kind(str(self._parts.hostname), self._parts.port, timeout=timeout)) as connection:
            connection.request("POST", f"/{what}", json.dumps(request).encode(), headers)
            answer = connection.getresponse()
            body = json.loads(answer.read(_ANSWER_BYTES))
        if not isinstance(body, dict):
            raise ValueError("an answer that is no object")
        if answer.status != 200:
            raise SandboxError(f"{self._service} refused: {str(body.get('error'))[:500]}")
        return body


_START = "Start it with: python -m marft_envs.sandbox serve --host HOST --port PORT"


def _differs(info: dict[str, Any], they: str, we: str) -> str:
    """What two sides are told of which one speaks another protocol."""
    number = info.get("protocol")
    theirs = "a protocol before 2" if number is None else f"protocol {str(number)[:20]}"
    return f"{they} speaks {theirs}, {we} protocol {PROTOCOL}. Install the same version of marft on both machines"


def _facts(status: Any, value: T, message: Any, cpu_s: Any, wall_s: Any) -> tuple[CallStatus, T, str, float, float]:
    """What a service says of a run: how it ended, what it gave, its message, and CPU and wall seconds.

    Raises:
        ValueError: One is of another type, or a time is NaN, negative or endless.
    """
    timed = all(type(time) in (int, float) and 0 <= time < _AGES for time in (cpu_s, wall_s))
    if status not in get_args(CallStatus) or not isinstance(message, str) or not timed:
        raise ValueError("a status that there is not, a message that is no text, or a time that is no number from 0 on")
    return status, value, message[:MESSAGE_CAP], float(cpu_s), float(wall_s)


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
                raise ValueError(_differs(request, "the client", "this service"))
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
