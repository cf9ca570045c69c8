"""The sandbox as a service, on this machine's loopback, and its command line."""

from __future__ import annotations

import http.client
import json
import pickle
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marft_envs.sandbox import Call, Limits, Sandbox, SandboxError, SandboxUnavailable, layers, remote
from marft_envs.sandbox import service as service_module
from marft_envs.sandbox.service import SandboxServer

HELD = [layer for layer in layers.LOCAL if not layers.check(layer)]
pytestmark = pytest.mark.skipif(not HELD, reason="no sandbox layer holds here; see python -m marft_envs.sandbox")


@pytest.fixture(scope="module")
def service() -> Iterator[SandboxServer]:
    with Sandbox(workers=2) as sandbox, SandboxServer(sandbox, token="a b/c") as server:
        server.start()
        yield server
        server.shutdown()


def test_results_are_those_of_the_local_sandbox(service: SandboxServer) -> None:
    source = "def f(x):\n    if x == 2: return object()\n    return {1: (x, 2.5, {3}, b'4', None, 1 << 80)}"
    calls = [Call("call", f"[{n}]") for n in range(4)]
    with Sandbox("remote", url=service.url) as far, Sandbox() as near:
        assert far.layer == "remote" and far.guarantees == near.guarantees
        got, wanted = (sandbox.run_calls(source, "f", calls) for sandbox in (far, near))
        assert [(one.status, one.value, one.message) for one in got] == [
            (one.status, one.value, one.message) for one in wanted
        ]
        assert [one.status for one in got] == ["ok", "ok", "bad_value", "ok"] and got[0].cpu_s > 0
        done = far.run_stdio("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", b"\xff\0")
        assert (done.status, done.stdout) == ("ok", b"\xff\0")
        assert far.run_stdio("while True: pass", "", limits=Limits(cpu_s=0.2)).status == "timeout"
        assert far.run_calls("x" * (1 << 18), "f", calls[:1])[0].status == "too_large"
        again = pickle.loads(pickle.dumps(far))
        assert again.run_calls(source, "f", calls[:1])[0].value == wanted[0].value


def test_clients_at_once(service: SandboxServer) -> None:
    with Sandbox("remote", workers=4, url=service.url) as far:
        got: dict[int, object] = {}

        def ask(n: int) -> None:
            got[n] = far.run_calls("def f(x): return x * x", "f", [Call("call", f"[{n}]")])[0].value

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {n: n * n for n in range(6)}


def test_strangers_are_turned_away(service: SandboxServer) -> None:
    port = service.server_address[1]
    with pytest.raises(SandboxUnavailable, match="token"):
        Sandbox("remote", url=f"http://wrong@127.0.0.1:{port}")
    assert ask(port, b"{}", {"Authorization": "Bearer x"})[0] == 401
    assert ask(port, b"{}", {})[0] == 401


def test_what_is_no_question_is_refused_in_json(service: SandboxServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", service.server_address[1], timeout=30)
    connection.request("OPTIONS", "/about", headers={"Authorization": "Bearer a b/c"})
    answer = connection.getresponse()
    assert answer.status == 405 and "OPTIONS" in json.loads(answer.read())["error"]
    connection.close()
    headers = {"Authorization": "Bearer a b/c", "Transfer-Encoding": "chunked"}
    status, said = ask(service.server_address[1], b"0\r\n\r\n", headers)
    assert status in (400, 411) and "Expected" in said


@pytest.mark.parametrize(("facts", "named"), [({}, "before 2"), ({"protocol": 2}, "protocol 2")])
def test_a_service_of_another_protocol_is_refused_by_name(
    service: SandboxServer, facts: dict[str, int], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old service does not look at what it is sent, and does not say which protocol it speaks."""
    answer = {**facts, "layer": "namespaces", "guarantees": []}
    monkeypatch.setattr(service_module._Handler, "_do", lambda handler, request: answer)
    with pytest.raises(SandboxUnavailable) as caught:
        Sandbox("remote", url=service.url)
    said = str(caught.value)
    assert named in said and f"this client protocol {remote.PROTOCOL}" in said
    assert "same version of marft" in said and "python -m marft_envs.sandbox serve" in said


@pytest.mark.parametrize(("body", "named"), [(b"{}", "before 2"), (b'{"protocol": 1}', "protocol 1")])
def test_a_client_of_another_protocol_gets_an_error_that_says_so(
    service: SandboxServer, body: bytes, named: str
) -> None:
    status, said = ask(service.server_address[1], body, {"Authorization": "Bearer a b/c"}, "/about")
    assert status == 400 and named in said and f"this service protocol {remote.PROTOCOL}" in said


def _request(**changes: Any) -> bytes:
    plain = {"limits": {}, "source": "", "entry_point": "f", "calls": [], "setup": "", "prelude": ""}
    return json.dumps(plain | changes).encode()


@pytest.mark.parametrize("path", ["/about", "/calls", "/stdio"])
@pytest.mark.parametrize("body", [b"[]", b"5", b"null", b'"x"'])
def test_a_body_that_is_no_object_is_answered_on_every_path(service: SandboxServer, body: bytes, path: str) -> None:
    status, said = ask(service.server_address[1], body, {"Authorization": "Bearer a b/c"}, path)
    assert status == 400 and "expected an object" in said


@pytest.mark.parametrize("stdin", ["!!!", "aGk", 5, None])
def test_standard_input_that_is_no_base64_is_refused(service: SandboxServer, stdin: Any) -> None:
    body = json.dumps({"limits": {}, "source": "print(1)", "prelude": "", "stdin": stdin}).encode()
    assert ask(service.server_address[1], body, {"Authorization": "Bearer a b/c"}, "/stdio")[0] == 400


GOOD = {"protocol": remote.PROTOCOL, "layer": "x", "guarantees": []}
ROW = ["ok", "1", "", 0.1, 0.1]


@pytest.mark.parametrize("answer", [
    {}, {"results": 5}, {"results": []}, {"results": [ROW, ROW]}, {"results": [5]}, {"results": [ROW[:4]]},
    {"results": [[["ok"], *ROW[1:]]]}, {"results": [["passed", *ROW[1:]]]}, {"results": [["ok", 1, *ROW[2:]]]},
    {"results": [["ok", "{", *ROW[2:]]]}, {"results": [["ok", "1", 5, 0.1, 0.1]]},
    {"results": [["ok", "1", "", "0.1", 0.1]]}, {"results": [["ok", "1", "", float("nan"), 0.1]]},
    {"results": [["ok", "1", "", 10**400, -1]]}, b"[" * 100_000, b"[]", b"9" * 5000,
])  # fmt: skip
def test_a_service_that_answers_nonsense_gives_no_verdict(
    service: SandboxServer, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    def do_post(handler: service_module._Handler) -> None:
        handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(text)

    with Sandbox("remote", url=service.url) as far:
        monkeypatch.setattr(service_module._Handler, "do_POST", do_post)
        says = "failed" if isinstance(answer, bytes) else "answered nonsense"
        with pytest.raises(SandboxError, match=says):
            far.run_calls("def f(x): return x", "f", [Call("call", "[1]")])
        with pytest.raises(SandboxError, match=says):
            far.run_stdio("print(1)", "")


@pytest.mark.parametrize("names", [5, None, "no_network", [5], {"no_network": 1}])
def test_a_service_whose_guarantees_are_no_names_is_refused(
    service: SandboxServer, names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module._Handler, "_do", lambda handler, request: GOOD | {"guarantees": names})
    with pytest.raises(SandboxUnavailable, match="names no guarantees"):
        Sandbox("remote", url=service.url)


@pytest.mark.parametrize(("body", "length", "status", "said"), [
    (b"{}", None, 400, "limits"), (b"[]", None, 400, "bad request"), (b"\xff", None, 400, "bad request"),
    (b"{}", str(1 << 40), 413, "Content-Length"), (b'{"limits": {"cpu_s": -1}}', None, 400, "cpu_s"),
    (b'{"limits": {}, "source": 3, "entry_point": "f", "calls": [], "setup": ""}', None, 400, "bad request"),
    (b"5", None, 400, "of type int; expected an object"), (b"null", None, 400, "of type NoneType"),
    (b'"x"', None, 400, "of type str"), (b"[" * 100_000, None, 400, "RecursionError"),
    (b"{}", "9" * 5000, 413, "Content-Length"), (b"{}", "-1", 413, "Content-Length"),
    (b"9" * 5000, None, 400, "bad request"),
    (_request(calls=[["poke", "[1]", []]]), None, 400, "'call' or 'expr'"),
    (_request(calls=[[["call"], "[1]", []]]), None, 400, "'call' or 'expr'"),
    (_request(calls=[["call", "[1]"]]), None, 400, "'call' or 'expr'"),
    (_request(calls=5), None, 400, "'calls' is no list"),
    (_request(calls=[["expr", "_0", [5]]]), None, 400, "BadValue"),
    (_request(entry_point=None), None, 400, "'entry_point' is NoneType; expected text"),
    (_request(limits=5), None, 400, "bad request"),
])  # fmt: skip
def test_bad_requests_are_answered(
    service: SandboxServer, body: bytes, length: str | None, status: int, said: str
) -> None:
    headers = {"Authorization": "Bearer a b/c", **({"Content-Length": length} if length else {})}
    got, text = ask(service.server_address[1], body, headers)
    assert got == status and said in text


def ask(port: int, body: bytes, headers: dict[str, str], path: str = "/calls") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["error"]
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["cpu_s", "wall_s", "total_s", "memory_mb", "output_bytes", "source_bytes"])
def test_a_client_does_not_choose_how_much_it_takes(service: SandboxServer, name: str) -> None:
    most = getattr(service.most, name)
    body = _request(limits={name: most + 1})
    status, said = ask(service.server_address[1], body, {"Authorization": "Bearer a b/c"})
    assert status == 400 and f"limit {name} is {most + 1}; this service grants {most}" in said


def test_connections_that_say_nothing_cost_few_threads_and_keep_nobody_out() -> None:
    with Sandbox() as sandbox, SandboxServer(sandbox, connections=8) as server:
        server.start()
        before = threading.active_count()
        silent = [socket.create_connection(("127.0.0.1", server.server_address[1])) for _ in range(40)]
        for half in silent[:20]:
            half.sendall(b"POST /calls HTTP/1.1\r\nContent-Le")
        far = Sandbox("remote", url=server.url)
        started = time.monotonic()
        assert far.run_stdio("print(1)", "").stdout == b"1\n"
        assert time.monotonic() - started < 20, "the timeout of a silent connection is 60 s"
        assert threading.active_count() - before <= 8
        for half in silent:
            half.close()
        server.shutdown()


def test_clients_that_go_leave_no_traceback(service: SandboxServer, capfd: pytest.CaptureFixture[str]) -> None:
    body = json.dumps(
        {"source": "import time; time.sleep(.5); print('x' * 60000)", "stdin": "", "limits": {}, "prelude": ""}
    ).encode()
    head = f"POST /stdio HTTP/1.1\r\nAuthorization: Bearer a b/c\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", service.server_address[1])) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends with a reset
            gone.sendall(head + body)
    with socket.create_connection(("127.0.0.1", service.server_address[1])) as gone:
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.sendall(head[:30])
    far = Sandbox("remote", url=service.url)
    assert far.run_stdio("print(2)", "").stdout == b"2\n"
    time.sleep(2.0)
    assert "Traceback" not in capfd.readouterr().err


def test_a_service_that_is_not_there() -> None:
    with pytest.raises(SandboxUnavailable, match="serve"):
        Sandbox("remote", url="http://t@127.0.0.1:1")


def test_a_service_that_goes_away_gives_no_verdict() -> None:
    with Sandbox() as sandbox:
        server = SandboxServer(sandbox)
        server.start()
        far = Sandbox("remote", url=server.url)
        server.shutdown()
        server.server_close()
        with pytest.raises(SandboxError, match="failed"):
            far.run_stdio("print(1)", "")


def test_the_command_line_serves(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-word\n")
    command = [sys.executable, "-m", "marft_envs.sandbox", "serve", "--token-file", str(tmp_path / "token")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"(\S+), 1 workers: http://TOKEN@127.0.0.1:(\d+)\n", line)
        assert found is not None and found[1] in HELD
        with Sandbox("remote", url=f"http://secret-word@127.0.0.1:{found[2]}") as far:
            assert far.run_stdio("print(2)", "").stdout == b"2\n"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_the_command_line_shows_what_holds() -> None:
    command = [sys.executable, "-m", "marft_envs.sandbox"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    rows = [line.split()[:2] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert done.returncode == 0 and [name for name, word in rows if word == "holds"] == HELD
    (bad,) = [
        subprocess.run([*command, "serve", "--token-file", "absent"], capture_output=True, text=True, check=False)
    ]
    assert bad.returncode == 1 and "absent" in bad.stderr


def test_values_of_expressions_and_times_go_through_the_service() -> None:
    odd = (float("inf"), {1: (2, frozenset({3}))}, 1 << 5000, "'\"é", b"\x00")
    with Sandbox() as local, SandboxServer(local) as server:
        server.start()
        with Sandbox(layer="remote", url=server.url) as far:
            (result,) = far.run_calls("def f(*xs): return xs", "f", [Call("expr", "f(*_0, _1)", (odd, "last"))])
            assert result.status == "ok" and result.value == (*odd, "last") and result.wall_s > 0
            assert far.run_stdio("print(1)", "").wall_s > 0
        server.shutdown()
