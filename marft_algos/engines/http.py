"""JSON over HTTP to a server of the user's own; a request fails as ``ServerDown`` or as ``ServerRefused``."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

from marft_envs.errors import MarftError

ANSWER_BYTES = 64 << 20
"""Longest answer that is read: 100 times what the longest reply needs."""
NONSENSE = (KeyError, TypeError, AttributeError, IndexError, ValueError, StopIteration)
"""What reading an answer raises that is JSON of another shape than expected."""
_CHUNK = 1 << 16
_MESSAGE = 500
"""Characters of a server's message that are kept."""


class ServerDown(MarftError, ConnectionError):
    """No answer, or one that says that the server is broken or busy: another attempt may succeed."""


class ServerRefused(MarftError, RuntimeError):
    """The server understood and said no: the same request will never succeed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the key in the request's header is for the host that was named, and no other."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay)  # one's own servers: no proxy


class Server:
    """One server.

    Args:
        url: Its address, without a path.
        timeout: Seconds one request may take, the reading of its answer included.
        key: Bearer token.
    """

    def __init__(self, url: str, timeout: float, key: str | None = None) -> None:
        self.url, self._timeout = url.removesuffix("/v1"), timeout
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self.down = False
        """The last attempt found it dead."""

    def get(self, path: str) -> Any:
        """Returns what a GET gives; see ``post``."""
        return self._ask(urllib.request.Request(self.url + path, headers=self._headers), self._timeout)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Returns what a POST gives, JSON decoded where it is JSON.

        Raises:
            ServerDown: No answer in time, a lost connection, a status of 429 or 500 and above, or an answer that is
                too long or cannot be decoded.
            ServerRefused: Any other status that is no success; a redirect is one.
        """
        data = json.dumps(body).encode()
        return self._ask(urllib.request.Request(self.url + path, data, self._headers, method="POST"), self._timeout)

    def healthy(self) -> bool:
        """Returns whether it answers at all, within two seconds."""
        try:
            self._ask(urllib.request.Request(self.url + "/health", headers=self._headers), 2.0)
        except (ServerDown, ServerRefused):
            return False
        return True

    def _ask(self, request: urllib.request.Request, timeout: float) -> Any:
        until = time.monotonic() + timeout
        try:
            with _DIRECT.open(request, timeout=timeout) as answer:
                data = self._read(answer, until)
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, MarftError):
                raise
            raise ServerDown(f"{self.url}: {error}") from error
        try:
            text = data.decode("utf-8")
            return json.loads(text)
        except json.JSONDecodeError:
            return text
        except (ValueError, RecursionError) as error:
            raise ServerDown(f"{self.url} answered what cannot be decoded: {error}") from error

    def _read(self, answer: Any, until: float) -> bytes:
        """Returns the whole answer, read in pieces, for a timeout of the socket begins anew with each byte."""
        data = bytearray()
        while piece := answer.read1(_CHUNK):
            data += piece
            if len(data) > ANSWER_BYTES:
                raise ServerDown(f"{self.url} sent more than {ANSWER_BYTES >> 20} MiB, which is no reply of a model")
            if time.monotonic() > until:
                raise ServerDown(f"{self.url} did not finish its answer in time")
        if answer.length:
            raise ServerDown(f"{self.url} ended in the middle of its answer")
        return bytes(data)

    def _refusal(self, error: urllib.error.HTTPError) -> ServerDown | ServerRefused:
        try:
            text = error.read(4 * _MESSAGE).decode("utf-8", "replace")[:_MESSAGE].strip()
        except (OSError, http.client.HTTPException):
            text = ""
        message = f"{error.code} {text or error.reason}"
        if error.code == 429 or error.code >= 500:
            return ServerDown(f"{self.url} said {message}")
        if 300 <= error.code < 400:
            there = str(error.headers.get("Location"))[:_MESSAGE]
            message = f"{self.url} redirects to {there}, and redirects are not followed. Name that address itself."
        return ServerRefused(error.code, message)
