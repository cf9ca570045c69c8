"""Speaks to a sandbox that is served by another machine, for machines where no layer holds."""

from __future__ import annotations

import base64
import dataclasses
import http.client
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar, get_args

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

T = TypeVar("T")

PROTOCOL = 3
"""Number of the form of requests and answers; another form gets another number. Services before number 2 name none."""
REQUEST_BYTES = 64 << 20
"""Most bytes of one request; more is refused unread."""
_ANSWER_BYTES = 256 << 20
_AGES = 1e9
"""Seconds that no run takes."""
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
            raise SandboxUnavailable(f"{differs(answer, self._service, 'this client')}. {_START}")
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

    def _ask(self, what: str, request: dict[str, Any], timeout: float, *, again: bool = True) -> dict[str, Any]:
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


def differs(info: dict[str, Any], they: str, we: str) -> str:
    """The message for two sides that speak different protocols."""
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
