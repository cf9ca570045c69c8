"""JSON over HTTP to a server of the user's own; a request fails as ``ServerDown`` or as ``ServerRefused``."""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

from marft_algos.config import keys
from marft_envs.errors import MarftError

ANSWER_BYTES = 64 << 20
"""Longest answer that is read: 100 times what the longest reply needs."""
NONSENSE = (KeyError, TypeError, AttributeError, IndexError, ValueError, StopIteration)
"""What reading an answer raises that is JSON of another shape than expected."""
MESSAGE = 500
"""Characters of a server's message that are kept."""
_CHUNK = 1 << 16
Headers = Mapping[str, str]
_PROMPT = re.compile(
    r"context.?(length|window|size)|\btoo (long|many tokens)|token count"
    r"|content.?(policy|filter|management)|moderation",
    re.IGNORECASE,
)
"""Words of servers that refuse a prompt, for its length or for what it says."""


class ServerDown(MarftError, ConnectionError):
    """No answer, or one that says that the server is broken or busy: another attempt may succeed."""


class ServerRefused(MarftError, RuntimeError):
    """The server understood and said no: the same request will never succeed."""

    def __init__(self, status: int, message: str, location: str = "") -> None:
        super().__init__(message)
        self.status, self.location = status, location


def refuses_prompt(status: int, message: str) -> bool:
    """Returns whether a refusal says itself that the prompt is why: too long, or against the endpoint's policy."""
    return status == 413 or (status in (400, 422, 451) and bool(_PROMPT.search(message)))


class Deadline:
    """Ends a request at a time, whatever it waits for then: a socket's own timeout begins anew with each byte.

    Args:
        seconds: From now on.
    """

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._watched: list[tuple[threading.Timer, socket.socket]] = []

    @property
    def passed(self) -> bool:
        """Whether the time has come."""
        return time.monotonic() >= self._until

    def watch(self, line: socket.socket) -> None:
        """Shuts a connection down when the time comes, so that who reads from it or writes to it goes on."""
        line = line.dup()  # which outlives the connection
        timer = threading.Timer(max(self._until - time.monotonic(), 0.0), _shut, (line,))
        timer.daemon = True
        timer.start()
        self._watched.append((timer, line))

    def close(self) -> None:
        """Forgets the connections."""
        for timer, line in self._watched:
            timer.cancel()
            timer.join()
            line.close()


def _shut(line: socket.socket) -> None:
    with suppress(OSError):  # the other side was quicker
        line.shutdown(socket.SHUT_RDWR)


class _Plain(http.client.HTTPConnection):
    """Knows no proxy and follows no redirect: one's own servers, and a key that is for the host that was named."""

    deadline: Deadline
    line: socket.socket | None = None
    whole = False
    """The last answer was read to its end, and the server keeps the connection open."""

    def connect(self) -> None:
        super().connect()
        self.line = self.sock.dup()  # TLS takes the socket itself over
        self.deadline.watch(self.line)

    def idle(self) -> bool:
        """Returns whether another request may be sent: the server has not closed it meanwhile, or said more."""
        return self.line is not None and not select.select([self.line], [], [], 0)[0]

    def take(self, deadline: Deadline, timeout: float) -> None:
        """Prepares for a request."""
        self.deadline, self.whole = deadline, False
        if self.line is not None:
            self.sock.settimeout(timeout)
            deadline.watch(self.line)

    def close(self) -> None:
        super().close()
        if self.line is not None:
            self.line.close()
        self.line = None


class _Secure(http.client.HTTPSConnection, _Plain):
    """The same; the handshake comes after the connection is watched."""


class EngineServer:
    """One server.

    Args:
        url: Its address, without a path.
        timeout: Seconds one request may take, from the connection to the end of the answer.
        key: For this server alone; a function is asked again when the server refuses the key that it gave before.
        header: What the key is sent as; a bearer token by default.
        keep: Send later requests over connections that are open: many small ones, of which a server knows the repeated.
    """

    def __init__(
        self,
        url: str,
        timeout: float,
        key: str | Callable[[], str | None] | None = None,
        header: str = "",
        *,
        keep: bool = False,
    ) -> None:
        self.url, self._timeout, self._header = url.removesuffix("/v1"), timeout, header
        self._find_key = key if callable(key) else lambda: key
        self._key = self._find_key()
        self._keep, self._open = keep, list[_Plain]()
        self.down = False
        """The last attempt found it dead."""

    def get(self, path: str) -> Any:
        """Returns what a GET gives; see ``post``."""
        return self._ask("GET", path, None, self._timeout)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Returns what a POST gives, JSON decoded where it is JSON.

        Raises:
            ServerDown: No answer in time, a lost connection, a status of 429 or 500 and above, or an answer that is
                too long or cannot be decoded.
            ServerRefused: Any other status that is no success; a redirect is one.
        """
        return self._ask("POST", path, json.dumps(body).encode(), self._timeout)

    def healthy(self) -> bool:
        """Returns whether it is well, within two seconds."""
        try:
            self._ask("GET", "/health", None, 2.0)
        except (ServerDown, ServerRefused):
            return False
        return True

    def answers(self) -> bool:
        """Returns whether anything answers there within two seconds, and does not say that it is broken."""
        try:
            self.request("GET", "/health", None, 2.0)
        except ServerDown:
            return False
        except ServerRefused:  # a server of another kind, which is found out by asking for models
            pass
        return True

    def masked(self, text: str) -> str:
        """Returns a text of the server's without the key."""
        return keys.masked(text, self._key)

    def _headers(self) -> Headers:
        """What is sent with every request."""
        key = self._key or ""
        shown = {self._header: key} if self._header else {"Authorization": f"Bearer {key}"}
        kept = {} if self._keep else {"Connection": "close"}
        return {"Content-Type": "application/json", **kept, **(shown if key else {})}

    def _ask(self, method: str, path: str, body: bytes | None, timeout: float) -> Any:
        data, _ = self.request(method, path, body, timeout)
        try:
            text = data.decode("utf-8")
            return json.loads(text)
        except json.JSONDecodeError:
            return text
        except (ValueError, RecursionError) as error:
            raise ServerDown(f"{self.url} answered what cannot be decoded: {error}") from error

    def request(
        self, method: str, path: str, body: bytes | None, timeout: float, headers: Headers | None = None, most: int = 0
    ) -> tuple[bytes, str]:
        """Sends bytes; returns the answer's, of so many at most, and their type; see ``post``."""
        sent = self._key
        try:
            return self._request(method, path, body, timeout, headers or {}, most)
        except ServerRefused as error:
            if error.status != 401 or (found := self._find_key()) == sent:
                raise
            self._key = found  # it was started again, and has drawn a new one
        return self._request(method, path, body, timeout, headers or {}, most)

    def _request(
        self, method: str, path: str, body: bytes | None, timeout: float, headers: Headers, most: int
    ) -> tuple[bytes, str]:
        parts, deadline = urlsplit(self.url + path), Deadline(timeout)
        target = parts._replace(scheme="", netloc="").geturl()
        try:
            with self._connection(parts, timeout, deadline) as connection, closing(deadline):
                connection.request(method, target, body, {**self._headers(), **headers})
                answer = connection.getresponse()
                try:
                    if answer.status >= 300:
                        raise self._refusal(answer)
                    return self._read(answer, deadline, most or ANSWER_BYTES), answer.headers.get_content_type()
                finally:
                    connection.whole = not answer.will_close and (answer.isclosed() or answer.length == 0)
                    answer.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, MarftError):
                raise
            problem = "no whole answer in time" if deadline.passed else error
            raise ServerDown(self.masked(f"{self.url}: {problem}")) from None

    @contextmanager
    def _connection(self, parts: SplitResult, timeout: float, deadline: Deadline) -> Iterator[_Plain]:
        """Yields a connection for one request: one that is open, else a new one."""
        try:
            while not (connection := self._open.pop()).idle():
                connection.close()
        except IndexError:  # none is open, or another thread has taken the last
            connection = (_Secure if parts.scheme == "https" else _Plain)(parts.netloc, timeout=timeout)
        connection.take(deadline, timeout)
        try:
            yield connection
        finally:
            if self._keep and connection.whole:
                self._open.append(connection)
            else:
                connection.close()

    def _read(self, answer: http.client.HTTPResponse, deadline: Deadline, most: int) -> bytes:
        """Returns the whole answer; one that the deadline has cut looks like one that has ended."""
        data = bytearray()
        while piece := answer.read1(_CHUNK):
            data += piece
            if len(data) > most:
                raise ServerDown(f"{self.url} sent more than {most >> 20} MiB, which is no reply of a model")
        if deadline.passed:
            raise ServerDown(f"{self.url} did not finish its answer in time")
        if answer.length:
            raise ServerDown(f"{self.url} ended in the middle of its answer")
        return bytes(data)

    def _refusal(self, answer: http.client.HTTPResponse) -> ServerDown | ServerRefused:
        try:
            text = self.masked(answer.read(4 * MESSAGE).decode("utf-8", "replace"))[:MESSAGE].strip()
        except (OSError, http.client.HTTPException):
            text = ""
        message = f"{answer.status} {text or self.masked(answer.reason)}"
        if answer.status == 429 or answer.status >= 500:
            return ServerDown(f"{self.url} said {message}")
        there = str(answer.headers.get("Location")) if answer.status < 400 else ""
        if there:
            said = self.masked(there)[:MESSAGE]
            message = f"{self.url} redirects to {said}, and redirects are not followed. Name that address itself."
        return ServerRefused(answer.status, message, there)


def careful(api: Any, timeout: float, answers: Callable[[], bool], late: Callable[[], None]) -> Any:
    """Makes a package's HTTP client that keeps a key with its host, and whose requests end: in time, and at a length.

    Args:
        api: The package ``openai``.
        timeout: Seconds that an attempt may take, from the connection to the end of the answer.
        answers: Says whether the endpoint has answered something.
        late: Is called when an attempt ends for want of time.
    """

    class Careful(api.DefaultHttpxClient):
        def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
            with closing(Deadline(timeout)) as deadline:

                def watch(event: str, about: dict[str, Any]) -> None:
                    if event.endswith("connect_tcp.complete"):
                        deadline.watch(about["return_value"].get_extra_info("socket"))

                request.extensions = {**request.extensions, "trace": watch}
                try:
                    answer = super().send(request, stream=True, **{**options, "follow_redirects": False})
                    data = self._whole(request, answer)
                finally:
                    if deadline.passed:  # whatever it looks like: a connection that was shut looks like an end
                        late()
                        library = sys.modules[type(request).__module__.partition(".")[0]]
                        raise library.ReadTimeout("no whole answer in time", request=request)
            dropped = ("content-encoding", "content-length")  # of what came over the wire
            headers = [(key, value) for key, value in answer.headers.multi_items() if key not in dropped]
            if answer.status_code == 404 and answers():  # one replica of several that does not serve the model yet
                headers.append(("x-should-retry", "true"))
            extensions = {k: v for k, v in answer.extensions.items() if k != "network_stream"}
            response = type(answer)(answer.status_code, headers=headers, content=data, extensions=extensions)
            response.request = request
            return response

        def _whole(self, request: Any, answer: Any) -> bytes:
            data = bytearray()
            with closing(answer):
                for piece in answer.iter_bytes():
                    data += piece
                    if len(data) > ANSWER_BYTES:
                        problem = f"more than {ANSWER_BYTES >> 20} MiB came"
                        raise api.APIConnectionError(message=problem, request=request)
            return bytes(data)

    # Each request has a connection of its own: of one that was open before, nobody tells the deadline.
    return Careful(timeout=timeout, headers={"Connection": "close"})
