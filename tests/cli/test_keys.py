"""Keys stay with the host they were named for, and what a server answers cannot hang, fill or break the client."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from helpers.fake_servers import chat
from marft_algos.config import endpoints, keys
from marft_algos.engines import http
from marft_algos.engines import server as starting
from marft_algos.engines.openai import OpenAIEngine
from marft_algos.engines.vllm import VLLMEngine
from marft_algos.types import GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError, MarftError
from tests.helpers.engine_tables import as_table

SECRET = "s3cret-value"
REQUEST = GenerationRequest("", [], 0, messages=[{"role": "user", "content": "hello"}])


class Raw:
    """A server that answers with bytes, and remembers keys."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str] | None = None, drip: float = 0.0) -> None:
        self.keys: list[str | None] = []
        raw = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw.keys.append(self.headers.get("Authorization"))
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(status)
                for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for i in range(0, len(body), 1 if drip else 1 << 20):
                        self.wfile.write(body[i : i + (1 if drip else 1 << 20)])
                        time.sleep(drip)
                except OSError:
                    return  # the client has seen enough

            do_GET = do_POST

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.setattr(keys, "_announced", set())


@pytest.fixture
def other() -> Iterator[Raw]:
    with Raw(200, b"{}") as made:
        yield made


# ---------------------------------------------------------------------- which variables, and where to


@pytest.mark.parametrize("name", [
    "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "SSH_PRIVATE_KEY", "DJANGO_SECRET_KEY", "HOME", "GITHUB_TOKEN", "PATH",
    "DB_PASSWORD", "A B_KEY", "",
])  # fmt: skip
def test_only_keys_of_apis_are_sent(name: str) -> None:
    for spec in (as_table(f"openai:m@http://h/v1?key_env={name}"), as_table(f"vllm:http://h?key_env={name}")):
        with pytest.raises(ConfigError, match="Expected the name of a key for an API"):
            endpoints.parse(spec)


def test_keys_of_apis_are_taken() -> None:
    for name in ("OPENAI_API_KEY", "VLLM_API_KEY", "TEAM_KEY", "REPLICATE_API_TOKEN", "HF_TOKEN"):
        assert endpoints.parse(as_table(f"openai:m@http://h/v1?key_env={name}")).key_env == name


def test_a_key_is_bound_to_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = (
        as_table("openai:m@https://one.example/v1?key_env=MY_KEY"),
        as_table("openai:m@https://other.example/v1?key_env=MY_KEY"),
    )
    with pytest.raises(ConfigError, match=r"MY_KEY would be sent to https://one.example and to https://other.example"):
        endpoints.parse_all({"a": near, "b": far})
    endpoints.parse_all({"a": near, "b": near, "c": {**far, "key_env": "HER_KEY"}, "d": "native"})
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):  # what goes to OpenAI by itself goes nowhere else
        endpoints.parse_all(
            {"a": as_table("openai:gpt"), "b": as_table("openai:m@https://other.example/v1?key_env=OPENAI_API_KEY")}
        )
    endpoints.parse_all(
        {"a": as_table("vllm:http://h:1?key_env=MY_KEY"), "b": as_table("vllm:http://h:2?key_env=MY_KEY")}
    )


def test_variable_and_host_are_shown_once_before_the_first_request(
    other: Raw, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_API_KEY", SECRET)
    for _ in range(2):
        OpenAIEngine(endpoints.Endpoint("openai", other.url, "m", key_env="MY_API_KEY")).close()
    said = capsys.readouterr().err
    assert said == "key:     MY_API_KEY is sent to http://127.0.0.1\n" and not other.keys
    endpoints.Endpoint("openai", "http://far.example", "m", key_env="MY_API_KEY").key()
    assert "is sent to http://far.example (unencrypted)" in capsys.readouterr().err


# ---------------------------------------------------------------------- what a server answers


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int, other: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", SECRET)
    with Raw(status, b"", {"Location": other.url + "/v1/there"}) as raw:
        server = http.EngineServer(raw.url, 5.0, SECRET)
        for ask in (lambda: server.get("/v1/models"), lambda: server.post("/v1/completions", {})):
            with pytest.raises(http.ServerRefused, match="redirects are not followed"):
                ask()
        assert not server.healthy()
        engine = OpenAIEngine(endpoints.parse(as_table(f"openai:m@{raw.url}?key_env=MY_API_KEY&retries=0")))
        (reply,) = engine.generate([REQUEST], SamplingParams(4))
        assert reply.stop_reason is StopReason.ERROR
        engine.close()
        assert len(raw.keys) >= 4
    assert not other.keys, "nothing arrived where the redirects point to"


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe\x00", b"[" * 200_000, b"9" * 5_000, b'{"choices": "text"}', b'{"choices": [null]}', b'"words"',
        b'{"choices": [{"message": "x"}]}', b'{"choices": [{"message": {"content": 5}}], "usage": "none"}', b"", b"<html>",
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_read_is_a_recorded_failure(body: bytes) -> None:
    with Raw(200, body) as raw:
        engine = OpenAIEngine(endpoints.parse(as_table(f"openai:m@{raw.url}?retries=0")))
        (reply,) = engine.generate([REQUEST], SamplingParams(4))
        assert reply.stop_reason is StopReason.ERROR and reply.error
        engine.close()
        with pytest.raises(ConfigError, match="No vLLM server answers"):
            VLLMEngine(_Team(), [raw.url])  # type: ignore[arg-type]
        try:
            http.EngineServer(raw.url, 5.0).post("/v1/completions", {})
        except MarftError as error:
            assert raw.url in str(error)


class _Team:
    """As much of a team as an engine asks for before it talks to its server."""

    policies = ("a",)

    def base(self, policy: str) -> None:
        return None


@pytest.mark.parametrize("zipped", [False, True])
def test_an_endless_answer_is_cut(zipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    body = b'"' + b"x" * (8 << 20) + b'"'
    monkeypatch.setattr(http, "ANSWER_BYTES", 1 << 20)
    headers = {"Content-Encoding": "gzip"} if zipped else {}
    with Raw(200, gzip.compress(body) if zipped else body, headers) as raw:
        if not zipped:  # our own client asks for no compression, and undoes none
            with pytest.raises(http.ServerDown, match="more than 1 MiB"):
                http.EngineServer(raw.url, 5.0).get("/")
        engine = OpenAIEngine(endpoints.parse(as_table(f"openai:m@{raw.url}?retries=0")))
        (reply,) = engine.generate([REQUEST], SamplingParams(4))
        assert reply.stop_reason is StopReason.ERROR and "more than 1 MiB came" in reply.error
        engine.close()


def test_an_answer_that_drips_ends_at_the_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    with Raw(200, b"x" * 1000, drip=0.05) as raw:
        started = time.monotonic()
        with pytest.raises(http.ServerDown, match="in time"):
            http.EngineServer(raw.url, 0.5).get("/")
        engine = OpenAIEngine(endpoints.parse(as_table(f"openai:m@{raw.url}?retries=1&timeout=0.5")))
        (reply,) = engine.generate([REQUEST], SamplingParams(4))
        assert reply.stop_reason is StopReason.ERROR
        engine.close()
        assert time.monotonic() - started < 10
    assert capsys.readouterr().err.count("no whole answer in 0.5 seconds (timeout)") == 1, "said, and said once"


@pytest.mark.parametrize("piece", [b"a", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["header", "continue"])
@pytest.mark.parametrize("client", ["own", "openai"])
def test_a_header_that_drips_ends_at_the_timeout(piece: bytes, client: str) -> None:
    """Measured before: a timeout of 1 s took 32 s, and as long as the server likes."""
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    line, _ = listening.accept()
                except OSError:
                    return
                taken.append(line)
                threading.Thread(target=drip, args=(line,), daemon=True).start()

        def drip(line: socket.socket) -> None:
            try:
                line.sendall(b"HTTP/1.1 200 OK\r\nX: " if piece == b"a" else b"")
                for _ in range(300):
                    line.sendall(piece)
                    time.sleep(0.05)
            except OSError:
                line.close()

        threading.Thread(target=serve, daemon=True).start()
        url, started = f"http://127.0.0.1:{listening.getsockname()[1]}", time.monotonic()
        if client == "own":
            with pytest.raises(http.ServerDown, match="in time"):
                http.EngineServer(url, 0.4).get("/")
        else:
            engine = OpenAIEngine(endpoints.parse(as_table(f"openai:m@{url}?retries=1&timeout=0.4")))
            (reply,) = engine.generate([REQUEST], SamplingParams(4))
            assert reply.stop_reason is StopReason.ERROR and "timed out" in reply.error
            engine.close()
        assert time.monotonic() - started < 8, "the whole drip takes 15 s"
        listening.shutdown(socket.SHUT_RDWR)
    assert len(taken) == (1 if client == "own" else 2), "as often as it may be tried again"


# ---------------------------------------------------------------------- the vLLM launcher

VLLM = """#!/bin/sh
echo "arguments: $*"
exec {python} -c '
import http.server as h, os
class A(h.BaseHTTPRequestHandler):
    def do_GET(self):
        good = self.headers.get("Authorization") == "Bearer " + os.environ["VLLM_API_KEY"]
        self.send_response(200 if good or not self.path.startswith("/v1") else 401)
        self.end_headers()
        self.wfile.write(b"fine" if good else b"no key")
    def log_message(self, *args): pass
h.HTTPServer(("127.0.0.1", {port}), A).serve_forever()'
"""


@pytest.mark.parametrize("own", [False, True])
def test_the_launcher_gives_its_server_a_key_that_runs_here_find(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(VLLM.format(python=sys.executable, port=port))
    python.chmod(0o755)
    if own:
        monkeypatch.setenv("VLLM_API_KEY", SECRET)
    settings = starting.ServerSettings("m", str(tmp_path), port=port)
    with starting.serving(settings, timeout=60, log=tmp_path / "log"):
        found = keys.of_server(settings.url)
        assert (found is None) if own else (found is not None and len(found) >= 32)
        key = SECRET if own else found
        with pytest.raises(http.ServerRefused, match="no key"):
            http.EngineServer(settings.url, 5.0).get("/v1/models")
        assert http.EngineServer(settings.url, 5.0, key).get("/v1/models") == "fine"
        if not own:
            files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
            assert [path.stat().st_mode & 0o077 for path in files] == [0], "nobody else can read it"
            assert keys.of_server(f"http://localhost:{port}/v1") == found
            assert keys.of_server(f"http://localhost:{port + 1}") is None
    said = capsys.readouterr()
    assert key and key not in said.out + said.err + (tmp_path / "log").read_text(), "neither shown nor in an argument"
    assert keys.of_server(settings.url) is None


def test_a_hosted_agent_finds_the_key_of_a_server_of_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of one that was started again meanwhile."""
    with Raw(200, json.dumps(chat("fine")).encode()) as raw:
        keys_of = [""]
        monkeypatch.setattr("marft_algos.config.keys.of_server", lambda url: keys_of[0])
        engine = OpenAIEngine(endpoints.parse({"kind": "openai", "model": "m", "url": raw.url}))
        for key in ("first", "second"):
            keys_of[0] = key
            (reply,) = engine.generate([REQUEST], SamplingParams(4))
            assert reply.text == "fine" and raw.keys[-1] == f"Bearer {key}"
        engine.close()


def test_settings_hold_no_key() -> None:
    assert "key" not in json.dumps(starting.environment(starting.ServerSettings("m"))).lower()
