"""Serves to this machine alone: what ``marft view`` and ``marft serve`` listen with."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from marft_envs.errors import ConfigError

HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
"""Of this machine, in a browser's address. Another name that leads here is a stranger's page (DNS rebinding)."""


class LoopbackHandler(BaseHTTPRequestHandler):
    """Answers requests, and says nothing of them: what is asked is its user's, and an address may hold a token."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "marft", ""
    more_headers: Mapping[str, str] = {}
    """Of every answer."""

    @property
    def is_strangers(self) -> bool:
        """Whether a request came by another name than this machine's."""
        return self.headers.get("Host", "").rpartition(":")[0] not in NAMES

    def send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        """Sends an answer of this content type."""
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **self.more_headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


class LoopbackServer(ThreadingHTTPServer):
    """Listens on a port of the loopback interface; ``serve_forever`` until ``shutdown``."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
        """Binds the port.

        Args:
            handler: Answers requests.
            port: 0: any that is free.

        Raises:
            ConfigError: The port is taken, or may not be used.
        """
        try:
            super().__init__((HOST, port), handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                with socket.create_server((HOST, 0)) as free:
                    other = free.getsockname()[1]
                raise ConfigError(f"Port {port} is taken. Free is, for one: --port {other}") from error
            raise ConfigError(
                f"Port {port} cannot be used: {error.strerror}. Leave --port out: any that is free."
            ) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of those who hang up: the terminal is its user's."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
