"""What every server here is: limits of head, body, time and lines, a key, strangers refused, errors in JSON.

A *line* is a connection. It is a stranger's until it has shown the key, or has asked something that is read whole.
"""

from __future__ import annotations

import errno
import hmac
import http.client
import json
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from email.errors import MissingHeaderBodySeparatorDefect
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from marft_envs.errors import ConfigError, MarftError

HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
"""Of this machine, in a browser's address. Another name that leads here is a stranger's page (DNS rebinding)."""
LINES = 256
"""Most lines at a time, a thread each."""
HEAD_BYTES = 64 << 10
PATIENCE_S = 60.0
"""Seconds that a stranger may take to ask, and anybody to go on with what he has begun."""
LOOK_S = 0.05
"""Seconds between looks at who has gone."""
_LINGER_S, _LINGER_BYTES = 1.0, 8 << 20
"""What is thrown away unread, so that who still sends gets to read why he is refused."""


class RefusedRequest(MarftError):
    """A request that is not answered: its status, and the words that its client gets.

    Args:
        status: Of HTTP.
        message: What happened, and what was expected.
        code: A name for programs, if there is one.
        field: Of the request, to blame.
        headers: Further ones of the answer.
    """

    def __init__(
        self, status: int, message: str, code: str = "", field: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.field, self.headers = status, code, field, headers or {}


def gone(line: socket.socket) -> bool:
    """Returns whether the other side has closed a line."""
    poll = select.poll()
    try:
        poll.register(line, select.POLLIN)
        return bool(poll.poll(0)) and not line.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True


class _Head:
    """Reads the lines of a head, and no more than one may have."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, HEAD_BYTES

    def readline(self, size: int) -> bytes:
        line: bytes = self._file.readline(min(size, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("head")
        return line


class DoorHandler(BaseHTTPRequestHandler):
    """Answers requests whose head is right, and says nothing of them: what is asked is its user's."""

    server: FrontDoor
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"
    server_version, sys_version = "marft", ""
    disable_nagle_algorithm = True
    timeout = PATIENCE_S
    for_browsers = True
    """Whether browsers of this machine may ask: a page of a stranger may not, which needs no key to send something."""
    key_expected = "Authorization: Bearer KEY"
    more_headers: Mapping[str, str] = {}
    """Of every answer."""
    _unread = True

    @property
    def route(self) -> str:
        """The path that is asked for, without a slash at its end and what stands behind ``?``."""
        return self.path.partition("?")[0].rstrip("/")

    @property
    def shown_key(self) -> str:
        """What a request shows as ``Authorization``; the keys of Azure's and Anthropic's clients, in its form."""
        other = self.headers.get("x-api-key") or self.headers.get("api-key")
        return self.headers.get("Authorization") or (f"Bearer {other}" if other else "")

    def check_head(self) -> None:
        """Raises ``RefusedRequest`` for a head that is wrong, a stranger's page, or a key that is not the server's."""
        if any(isinstance(defect, MissingHeaderBodySeparatorDefect) for defect in self.headers.defects):
            raise RefusedRequest(400, "A line of the head is no 'Name: value'.")
        if "Transfer-Encoding" in self.headers:
            if "Content-Length" in self.headers:
                raise RefusedRequest(400, "Content-Length excludes Transfer-Encoding. Expected the first alone.")
            raise RefusedRequest(411, "A body in chunks (Transfer-Encoding) is not read. Expected Content-Length.")
        if self.for_browsers:
            name, _, port = self.headers.get("Host", "").rpartition(":")
            if name not in NAMES:
                raise RefusedRequest(403, "Expected this machine's name as Host: what is here belongs to the machine.")
            origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "")
            if origin not in (None, *(f"http://{name}:{port}" for name in NAMES)) or site.lower() == "cross-site":
                raise RefusedRequest(403, "Another origin's page may not ask. Expected this server's, or a program.")
        if self.server.key is not None and (self.command, self.route) != ("GET", "/health"):
            if not self.server.has_key(self.shown_key):
                says = f"The key is wrong or missing. Expected {self.key_expected}."
                raise RefusedRequest(401, says, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
            self.server.known(self.connection)

    def body(self, most: int) -> bytes:
        """Reads the body.

        Args:
            most: Bytes.

        Raises:
            RefusedRequest: It is longer, or nobody says how long it is.
            ConnectionAbortedError: It ends early.
        """
        length = ",".join(self.headers.get_all("Content-Length", []))
        if not re.fullmatch("[0-9]{1,10}", length) or int(length) > most:
            raise RefusedRequest(413 if length else 411, f"Expected one Content-Length, of at most {most} bytes.")
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(HTTPStatus.CONTINUE)
            self.end_headers()
        data = self.rfile.read(int(length))
        if len(data) < int(length):
            raise ConnectionAbortedError
        self._unread = False
        self.server.known(self.connection)
        return data

    def send(self, status: int, kind: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Sends an answer of this content type; a line of which something stays unread is closed."""
        self.send_response(status)
        about = {"Content-Type": kind, "Content-Length": str(len(body)), **self.more_headers, **(headers or {})}
        for name, value in (about | ({"Connection": "close"} if self._unread or self.close_connection else {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, status: int, answer: Any, headers: Mapping[str, str] | None = None) -> None:
        """Sends JSON, as ASCII: models say lone surrogates, and UTF-8 has no place for them."""
        self.send(status, "application/json; charset=utf-8", json.dumps(answer, allow_nan=False).encode(), headers)

    def failure(self, refused: RefusedRequest) -> Any:
        """Returns a refusal as JSON."""
        return {"error": str(refused)}

    def refuse(self, refused: RefusedRequest) -> None:
        """Sends a refusal."""
        self.send_json(refused.status, self.failure(refused), refused.headers)

    # Python's own way -----------------------------------------------------------------------------------

    def handle_one_request(self) -> None:
        """Answers a request; with status 502 where an error of the project keeps from it."""
        try:
            super().handle_one_request()
        except MarftError as error:
            self.refuse(error if isinstance(error, RefusedRequest) else RefusedRequest(502, str(error)))
        self.server.answered(self.connection)

    def parse_request(self) -> bool:
        """Reads and checks a head; returns whether it can be read."""
        self.server.answered(self.connection)
        self._unread, whole = True, self.rfile
        self.rfile = _Head(whole)  # type: ignore[assignment]
        try:
            if not super().parse_request():
                return False
        finally:
            self.rfile = whole
        announced = any(name in self.headers for name in ("Content-Length", "Transfer-Encoding"))
        self._unread = announced or self.command not in ("GET", "HEAD") or bool(self.headers.defects)
        self.check_head()
        return True

    def handle_expect_100(self) -> bool:
        """Does nothing: a body is asked for once it is wanted."""
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers what Python refuses by itself."""
        self.close_connection = True
        if code != HTTPStatus.NOT_IMPLEMENTED:
            return self.refuse(RefusedRequest(code, f"{message or HTTPStatus(code).phrase}."))
        known = ", ".join(sorted(name[3:] for name in dir(self) if name.startswith("do_")))
        says = f"{self.command[:40]} is not answered. Expected {known}."
        self.refuse(RefusedRequest(HTTPStatus.METHOD_NOT_ALLOWED, says, headers={"Allow": known}))

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: what is asked is its user's, and an address may hold a token."""


class FrontDoor(ThreadingHTTPServer):
    """Listens, a thread for each line; ``serve_forever`` until ``shutdown``.

    Args:
        handler: Answers requests.
        port: 0: any that is free.
        host: The address to listen at; by default the loopback interface.
        key: What clients show; None: none, "": nobody's is right.
        lines: Most at a time. One more takes the place of the oldest stranger's; where there are none, it waits.

    Raises:
        ConfigError: The port is taken, or may not be used.
    """

    daemon_threads = True
    request_queue_size = 128
    counts_known = True
    """Whether lines that are no strangers' count, too."""
    grace_s = 5.0
    """Seconds after which a stranger's line goes if another wants its place: who asks honestly may be slow to begin."""

    def __init__(
        self, handler: type[DoorHandler], port: int = 0, host: str = HOST, key: str | None = None, lines: int = LINES
    ) -> None:
        self.key, self._lines = key, lines
        self._open: set[socket.socket] = set()
        self._strangers: dict[socket.socket, float] = {}
        self._moved = threading.Condition()
        try:
            super().__init__((host, port), handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                with socket.create_server((host, 0)) as free:
                    other = free.getsockname()[1]
                raise ConfigError(f"Port {port} is taken. Free is, for one: --port {other}") from error
            says = f"Port {port} of {host} cannot be used: {error.strerror}"
            raise ConfigError(f"{says}. Leave --port out: any that is free.") from error

    def start(self) -> threading.Thread:
        """Serves in a thread of its own."""
        thread = threading.Thread(target=self.serve_forever, args=(LOOK_S,), name="marft-server", daemon=True)
        thread.start()
        return thread

    def has_key(self, header: str) -> bool:
        """Returns whether ``Authorization`` has the key, in a time that does not depend on how much of it is right."""
        return bool(self.key) and hmac.compare_digest(header.encode(), f"Bearer {self.key}".encode())

    def known(self, line: socket.socket) -> None:
        """Notes that a line is no stranger's."""
        with self._moved:
            self._strangers.pop(line, None)
            self._moved.notify_all()

    def answered(self, line: socket.socket) -> None:
        """Notes that a line has nothing to wait for; who needs no key is a stranger again until he asks for more."""
        with self._moved:
            if self.key is None:
                self._strangers.pop(line, None)
                self._strangers[line] = time.monotonic()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a line, as soon as there may be one more."""
        with self._moved:
            while len(self._open if self.counts_known else self._strangers) >= self._lines:
                self._drop(self.grace_s, 1)
                self._moved.wait(LOOK_S)
            self._open.add(request)
            self._strangers[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Hangs up on strangers who have not come to ask."""
        self._drop(PATIENCE_S, len(self._strangers))

    def shutdown_request(self, request: Any) -> None:
        """Ends a line, and gives its place free."""
        end, left = time.monotonic() + _LINGER_S, _LINGER_BYTES
        with suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            request.settimeout(_LINGER_S)
            while left > 0 and time.monotonic() < end and (got := len(request.recv(1 << 16))):
                left -= got
        self.close_request(request)
        with self._moved:
            self._open.discard(request)
            self.known(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of those who hang up: the terminal is its user's."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def _drop(self, seconds: float, most: int) -> None:
        """Hangs up on the oldest strangers of this age."""
        with self._moved:
            aged = [line for line, since in self._strangers.items() if time.monotonic() - since > seconds][:most]
            for line in aged:
                del self._strangers[line]
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)  # its thread reads the end and goes
