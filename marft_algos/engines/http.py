"""JSON over HTTP to a server of one's own: two kinds of failure, and nothing else."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from marft_envs.errors import MarftError

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # one's own servers: no proxy
_MESSAGE = 500
"""Characters of a server's message that are kept."""


class ServerDown(MarftError, ConnectionError):
    """No answer, or one that says that the server is broken or busy: another attempt may succeed."""


class ServerRefused(MarftError, RuntimeError):
    """The server understood and said no: the same request will never succeed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """One server.

    Args:
        url: Its address, without a path.
        timeout: Seconds one request may take.
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
            ServerDown: No answer in time, a lost connection, or a status of 429 or 500 and above.
            ServerRefused: Any other status that is no success.
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
        try:
            with _DIRECT.open(request, timeout=timeout) as answer:
                text = answer.read().decode("utf-8")
        except urllib.error.HTTPError as error:
            message = f"{error.code} {error.read().decode('utf-8', 'replace')[:_MESSAGE].strip() or error.reason}"
            if error.code == 429 or error.code >= 500:
                raise ServerDown(f"{self.url} said {message}") from error
            raise ServerRefused(error.code, message) from error
        except (OSError, http.client.HTTPException) as error:
            raise ServerDown(f"{self.url}: {error}") from error
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
