"""The front door of every server: whom it lets ask, what it reads, whom it shows out, and in which words."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from marft_envs.server import door
from marft_envs.server.door import DoorHandler, FrontDoor, gone


class Echo(DoorHandler):
    """Answers with what it is sent."""

    def do_GET(self) -> None:
        self.send_json(200, {"path": self.route})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.send_json(200, {"body": self.body(100).decode()})


class Keyed(Echo):
    for_browsers = False


@contextlib.contextmanager
def serving(server: FrontDoor) -> Iterator[FrontDoor]:
    with server:
        server.start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def open_() -> Iterator[FrontDoor]:
    with serving(FrontDoor(Echo)) as server:
        yield server


@pytest.fixture(scope="module")
def keyed() -> Iterator[FrontDoor]:
    with serving(FrontDoor(Keyed, key="right")) as server:
        yield server


def raw(server: FrontDoor, sent: bytes, seconds: float = 10.0) -> list[tuple[int, Any, str]]:
    """Returns all answers on a line: status, JSON and head; they end with the line."""
    with socket.create_connection(server.server_address, seconds) as line:  # type: ignore[arg-type]
        line.sendall(sent)
        line.shutdown(socket.SHUT_WR)
        heard = b"".join(iter(lambda: line.recv(1 << 16), b""))
    answers = []
    while heard:
        head, _, rest = heard.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        answers.append((int(head.split()[1]), json.loads(rest[:length] or "null"), head.decode()))
        heard = rest[length:]
    return answers


HOST = b"Host: localhost:1\r\n"
POST = b"POST / HTTP/1.1\r\n" + HOST


@pytest.mark.parametrize(
    ("sent", "status", "says"),
    [
        (POST + b"Content-Length: 2\r\n\r\nhi", 200, ""),
        (POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nhi", 413, "at most 100 bytes"),
        (POST + b"Content-Length: 101\r\n\r\n", 413, "at most 100 bytes"),
        (POST + b"Content-Length: -1\r\n\r\n", 413, "one Content-Length"),
        (POST + b"Content-Length: +2\r\n\r\nhi", 413, "one Content-Length"),
        (POST + b"Content-Length: \xb2\r\n\r\nhi", 413, "one Content-Length"),
        (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi", 413, "one Content-Length"),
        (POST + b"\r\n", 411, "one Content-Length"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 411, "in chunks"),
        (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nhi", 400, "excludes"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nTransfer-Encoding: x\r\n\r\n", 400, "excludes"),
        (POST + b"Content-Length : 2\r\n\r\nhi", 400, "A line of the head"),
        (b"OPTIONS / HTTP/1.1\r\n" + HOST + b"\r\n", 405, "Expected GET, HEAD, POST"),
        (b"GET / HTTP/3.0\r\n\r\n", 505, "HTTP version"),
        (b"GET / HTTP/x\r\n\r\n", 400, "version"),
        (b"rubbish\r\n\r\n", 400, "syntax"),
        (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", 414, "Too Long"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431, "headers"),
        (b"GET / HTTP/1.1\r\n" + (b"A: " + b"b" * 60000 + b"\r\n") * 2 + b"\r\n", 431, "Line too long"),
        (b"GET / HTTP/1.1\r\nHost: evil.example:1\r\n\r\n", 403, "machine's name"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Origin: https://evil.example\r\n\r\n", 403, "origin"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Origin: http://localhost:2\r\n\r\n", 403, "origin"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Origin: null\r\n\r\n", 403, "origin"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Sec-Fetch-Site: Cross-Site\r\n\r\n", 403, "origin"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Origin: http://127.0.0.1:1\r\n\r\n", 200, ""),
        (b"GET /a/?b=c HTTP/1.1\r\n" + HOST + b"Sec-Fetch-Site: same-origin\r\n\r\n", 200, ""),
    ],
)
def test_a_head_is_taken_or_refused_once_in_json(open_: FrontDoor, sent: bytes, status: int, says: str) -> None:
    ((got, answer, head),) = raw(open_, sent)
    assert got == status and says in answer.get("error", "") and ("error" in answer) == (status != 200)
    assert ("Connection: close" in head) or status in (200, 403), "what was not read is no second request"
    assert "application/json" in head and "Access-Control" not in head


def test_a_line_is_kept_where_all_was_read(open_: FrontDoor) -> None:
    one = POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\nhi"
    with socket.create_connection(open_.server_address, 10) as line:  # type: ignore[arg-type]
        for _ in range(2):
            line.sendall(one)
            heard = b""
            while b'"hi"' not in heard:
                heard += line.recv(1000)
            assert heard.startswith(b"HTTP/1.1 100 Continue") and b"200 OK" in heard
    ((status, answer, head),) = raw(open_, b"HEAD /x HTTP/1.1\r\n" + HOST + b"\r\n")[:1] or [(200, None, "")]
    assert status == 200 and answer is None and "Content-Length" in head


@pytest.mark.parametrize("shown", [b"", b"Authorization: Bearer wrong\r\n", "Authorization: Bearer é\r\n".encode()])
def test_without_the_key_no_body_is_read(keyed: FrontDoor, shown: bytes) -> None:
    """Nor is a body asked for, waited for, or taken for a second request."""
    began = time.monotonic()
    with socket.create_connection(keyed.server_address, 10) as line:  # type: ignore[arg-type]
        line.sendall(b"POST / HTTP/1.1\r\n" + shown + b"Content-Length: 99\r\nExpect: 100-continue\r\n\r\n")
        heard = b"".join(iter(lambda: line.recv(1 << 16), b""))
    assert heard.startswith(b"HTTP/1.1 401") and heard.count(b"HTTP/1.1") == 1 and time.monotonic() - began < 5
    assert b"WWW-Authenticate: Bearer" in heard
    right = (
        b"POST / HTTP/1.1\r\nAuthorization: Bearer right\r\nOrigin: https://a.example\r\nContent-Length: 2\r\n\r\nhi"
    )
    assert raw(keyed, right)[0][:2] == (200, {"body": "hi"})


def test_who_still_sends_reads_why_he_is_refused(keyed: FrontDoor) -> None:
    sent = b"POST / HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n" + b"x" * 5_000_000
    assert raw(keyed, sent)[0][0] == 401


def test_strangers_keep_nobody_out_and_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrontDoor, "grace_s", 0.1)
    hello = b"POST / HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: 2\r\n\r\nhi"
    with serving(FrontDoor(Echo, lines=4)) as server:
        before = threading.active_count()
        silent = [socket.create_connection(server.server_address) for _ in range(20)]  # type: ignore[arg-type]
        silent[0].sendall(b"POST / HTTP/1.1\r\nContent-Le")
        assert raw(server, hello)[0][0] == 200 and threading.active_count() - before <= 4
        monkeypatch.setattr(door, "PATIENCE_S", 0.2)
        silent[-1].settimeout(5)
        assert silent[-1].recv(1) == b"", "nobody else comes, and it is shown out"
        for line in silent:
            line.close()


def test_a_line_has_gone_once_its_other_side_is_closed() -> None:
    here, there = socket.socketpair()
    assert not gone(here)
    there.sendall(b"x")
    assert not gone(here)
    here.recv(1)
    there.close()
    assert gone(here)
    here.close()
    assert gone(here)
