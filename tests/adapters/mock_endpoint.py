"""An OpenAI-compatible server on this machine that a script speaks for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Endpoint(ThreadingHTTPServer):
    """``say(model, messages)`` replies; agents are known by the model that they ask for. A reply None is an error 400."""

    request_queue_size = 128  # more than ask at once

    say: Callable[[str, Sequence[Any]], str | None]

    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server: Any = self.server
        text = server.say(body["model"], body["messages"])
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        reply = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
        raw = b"{}" if text is None else json.dumps(reply).encode()
        self.send_response(400 if text is None else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    """A server on a free port of the loopback."""
    server = Endpoint(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
