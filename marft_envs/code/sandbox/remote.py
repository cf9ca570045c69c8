"""The sandbox as a service for machines where no layer holds, and its client. Standard library only."""

from __future__ import annotations

import base64
import dataclasses
import hmac
import http.client
import http.server
import json
import secrets
import socket
import sys
import threading
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft_envs.code.sandbox import values
from marft_envs.code.sandbox.types import Call, CallResult, Limits, SandboxError, SandboxUnavailable, StdioResult
from marft_envs.errors import ConfigError

if TYPE_CHECKING:
    from marft_envs.code.sandbox.pool import Sandbox

PROTOCOL = 2
"""Number of the form of requests and answers; another form gets another number. Services before number 2 name none."""
REQUEST_BYTES = 64 << 20
"""Most bytes of one request; more is refused unread."""
_ANSWER_BYTES = 256 << 20
MOST = Limits(cpu_s=60.0, wall_s=180.0, total_s=600.0, memory_mb=4096, output_bytes=16 << 20, source_bytes=1 << 20)
"""Largest limits that a service grants unless it is told others: a client's word alone would take the machine."""
CONNECTIONS = 256
"""Most connections at a time, a thread each."""
_TURN = 0.02
"""Seconds that a connection waits for a place before a stranger loses his."""
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
        self._where = f"{parts.scheme}://{parts.hostname}:{parts.port or ''}"

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
            they = f"the sandbox's service at {self._where}"
            raise SandboxUnavailable(f"{_differs(answer, they, 'this client')}. {_START}")
        return frozenset(str(name) for name in answer["guarantees"])

    def run_calls(
        self, source: str, entry_point: str, calls: Sequence[Call], setup: str, limits: Limits
    ) -> list[CallResult]:
        """As ``Sandbox.run_calls``."""
        request = {
            "source": source,
            "entry_point": entry_point,
            "calls": [[call.kind, call.text, [values.encode(v, REQUEST_BYTES) for v in call.values]] for call in calls],
            "setup": setup,
            "limits": dataclasses.asdict(limits),
        }
        rows = self._ask("calls", request, limits.total_s + _GRACE)["results"]
        try:
            return [CallResult(row[0], values.decode(row[1]), *row[2:5]) for row in rows]
        except (values.BadValue, TypeError, IndexError) as error:
            raise SandboxError(f"the sandbox's service at {self._where} answered nonsense: {error}") from None

    def run_stdio(self, source: str, stdin: bytes, limits: Limits) -> StdioResult:
        """As ``Sandbox.run_stdio``."""
        request = {"source": source, "stdin": _text(stdin), "limits": dataclasses.asdict(limits)}
        answer = self._ask("stdio", request, limits.total_s + _GRACE)
        try:
            stdout = base64.b64decode(answer["stdout"], validate=True)
            return StdioResult(answer["status"], stdout, answer["stderr"], answer["cpu_s"], answer["wall_s"])
        except (KeyError, ValueError, TypeError) as error:
            raise SandboxError(f"the sandbox's service at {self._where} answered nonsense: {error}") from None

    def _ask(self, what: str, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """One request, tried twice: a run has no effect outside, so doing it again does no harm."""
        for attempt in (1, 2):
            try:
                return self._post(what, request, timeout)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if attempt == 2:
                    raise SandboxError(f"the sandbox's service at {self._where} failed: {error}") from None
        raise AssertionError("unreachable")

    def _post(self, what: str, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(str(self._parts.hostname), self._parts.port, timeout=timeout)
        try:
            token = urllib.parse.unquote(str(self._parts.username))
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request("POST", f"/{what}", json.dumps(request).encode(), headers)
            answer = connection.getresponse()
            body = json.loads(answer.read(_ANSWER_BYTES))
        finally:
            connection.close()
        if not isinstance(body, dict):
            raise ValueError("an answer that is no object")
        if answer.status != 200:
            raise SandboxError(f"the sandbox's service at {self._where} refused: {str(body.get('error'))[:500]}")
        return body


_START = "Start it with: python -m marft_envs.code.sandbox serve --host HOST --port PORT"


def _differs(info: dict[str, Any], they: str, we: str) -> str:
    """What two sides are told of which one speaks another protocol."""
    number = info.get("protocol")
    theirs = f"a protocol before {PROTOCOL}" if number is None else f"protocol {str(number)[:20]}"
    return f"{they} speaks {theirs}, {we} protocol {PROTOCOL}. Install the same version of marft on both machines"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request; the server holds the sandbox and the token."""

    server: Server
    timeout = 60

    def do_POST(self) -> None:
        status, body = self._answer()
        data = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # the client has gone, and nobody waits for the answer

    def _answer(self) -> tuple[int, dict[str, Any]]:
        authorization = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(authorization, f"Bearer {self.server.token}".encode()):
            return 401, {"error": "wrong or missing token; the url has the form http://TOKEN@HOST:PORT"}
        self.server.known(self.connection)
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > REQUEST_BYTES:
            return 413, {"error": f"a request has a Content-Length of at most {REQUEST_BYTES} bytes"}
        try:
            request = json.loads(self.rfile.read(int(length)))
            return 200, self._do(request)
        except (ValueError, KeyError, TypeError, RecursionError, values.BadValue) as error:
            return 400, {"error": f"bad request: {type(error).__name__}: {error}"}
        except SandboxError as error:
            return 500, {"error": str(error)}

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
            done = sandbox.run_stdio(request["source"], base64.b64decode(request["stdin"]), limits=limits)
            return {**dataclasses.asdict(done), "stdout": _text(done.stdout)}
        if self.path == "/calls":
            calls = [Call(kind, text, tuple(map(values.decode, encoded))) for kind, text, encoded in request["calls"]]
            results = sandbox.run_calls(
                request["source"], request["entry_point"], calls, setup=request["setup"], limits=limits
            )
            cap = 8 * int(limits.output_bytes)
            rows = [[r.status, values.encode(r.value, cap), r.message, r.cpu_s, r.wall_s] for r in results]
            return {"results": rows}
        raise ValueError(f"no path {self.path[:100]}")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what a request holds is nobody's business."""


class Server(http.server.ThreadingHTTPServer):
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

    daemon_threads = True

    def __init__(
        self,
        sandbox: Sandbox,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        *,
        most: Limits = MOST,
        connections: int = CONNECTIONS,
    ) -> None:
        self.sandbox, self.most = sandbox, most
        self.token = token or secrets.token_urlsafe(24)
        self._free = threading.Semaphore(connections)
        self._strangers: dict[Any, None] = {}  # in the order of their coming
        self._lock = threading.Lock()
        super().__init__((host, port), _Handler)
        self.url = f"http://{urllib.parse.quote(self.token, safe='')}@{host}:{self.server_address[1]}"

    def known(self, connection: Any) -> None:
        """Notes that a connection has shown the token."""
        with self._lock:
            self._strangers.pop(connection, None)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection, as soon as there may be one more."""
        while not self._free.acquire(timeout=_TURN):
            with self._lock:
                oldest = next(iter(self._strangers), None)
                self._strangers.pop(oldest, None)
            if oldest is not None:
                self._hang_up(oldest)
        with self._lock:
            self._strangers[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers a connection, and gives its place free."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.known(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of connections that broke, which is no fault of the service."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def _hang_up(self, connection: Any) -> None:
        try:
            connection.shutdown(socket.SHUT_RDWR)  # its thread reads the end and goes
        except OSError:
            return  # it has gone by itself

    def start(self) -> threading.Thread:
        """Serves in a thread of its own."""
        thread = threading.Thread(target=self.serve_forever, daemon=True)
        thread.start()
        return thread


def serve(sandbox: Sandbox, host: str, port: int, token_file: Path | None) -> None:
    """Serves until interrupted; prints the URL, with its token only if no file names one."""
    token = token_file.read_text(encoding="utf-8").strip() if token_file else None
    if token == "":
        raise ConfigError("the token file is empty; write a long random word into it")
    with Server(sandbox, host, port, token) as server:
        shown = f"http://TOKEN@{host}:{server.server_address[1]}" if token_file else server.url
        print(f"{sandbox.layer}, {sandbox.workers} workers: {shown}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
