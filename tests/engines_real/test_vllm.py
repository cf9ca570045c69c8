"""Trained by a real vLLM: log-probs, adapters that are swapped, servers that die, and servers with other weights."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines_real.conftest import Serve, running
from transformers import AutoModelForCausalLM

import marft_algos
from marft_algos import check_engine
from marft_algos.config.endpoints import Endpoint
from marft_algos.engines import Publisher
from marft_algos.engines.server import ServerSettings
from marft_algos.engines.vllm import VLLMEngine
from marft_algos.models.policy import PolicySet
from marft_algos.runs.folder import RunFolder
from marft_algos.types import GenerationRequest, SamplingParams
from marft_envs import ConfigError

AGENTS = {"reasoner_0": "a", "actor_0": "b"}
SMALL: dict[str, Any] = {
    "env": "math-dual-v0", "dtype": "fp32", "context": 512, "max_new_tokens": 8, "episodes_per_iteration": 8, "eval_episodes": 4,
    "eval_every": 0, "iterations": 2,
}  # fmt: skip


def trained(model: str, folder: Path, name: str, urls: tuple[str, ...] = (), **options: Any) -> RunFolder:
    """Both policies are played by the servers, or by the native engine."""
    engine = Endpoint("vllm", urls) if urls else "native"
    engines = dict.fromkeys(AGENTS, engine)
    settings = {**SMALL, "models": model, "engines": engines, "runs_dir": str(folder), "name": name, **options}
    return marft_algos.train(**settings)


def test_it_conforms_and_answers_64_long_seeded_prompts_at_once(serve: Serve, tiny: str) -> None:
    server = serve(tiny)
    policies = PolicySet.build(tiny, AGENTS, device="cpu")
    engine = VLLMEngine(policies, [server.url])
    assert len(check_engine(engine, policies, tokens=64).passed) == 11
    publisher = Publisher(engine, policies)
    publisher.publish(policies.policies, 1)
    rng = np.random.default_rng(0)
    requests = [
        GenerationRequest("ab"[i % 2], rng.integers(4, 90, 100 + 5 * i).tolist(), seed=i, agent="reasoner_0")
        for i in range(64)
    ]
    one, two = (engine.generate(requests, SamplingParams(32)) for _ in range(2))
    assert [reply.action_ids for reply in one] == [reply.action_ids for reply in two], "seeds hold"
    counted = engine.metrics()
    assert counted["failed"] == counted["retries"] == 0 and counted["gap_max"] < 1e-4
    publisher.close()
    engine.close()


def test_a_run_ends_though_its_server_is_killed_three_times(tiny: str, vllm_env: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = 8000 + os.getpid() % 1000
        settings = ServerSettings(tiny, str(vllm_env), policies=2, context=512, dtype="float32", port=port)
        pid = stack.enter_context(running(settings, tmp_path))
        run = tmp_path / "runs" / "killed"
        ended, left = threading.Event(), list[bool]()

        def kill() -> None:
            """After iterations 2, 4 and 6; the same command again."""
            nonlocal pid
            for iteration in (2, 4, 6):
                while not ended.is_set() and lines(run) < iteration:
                    time.sleep(0.2)
                group = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
                os.kill(group, signal.SIGKILL)
                stack.close()
                left.append(alive(group))
                pid = stack.enter_context(running(settings, tmp_path))
            ended.wait()  # the kernel ends a server with the thread that has started it

        (killer := threading.Thread(target=kill)).start()
        try:
            found = trained(tiny, tmp_path / "runs", "killed", (settings.url,), iterations=10)
        finally:
            ended.set()
            killer.join()
        rows = [line for line in found.metrics() if "return" in line]
        assert len(rows) == 10 and sum(row["infrastructure_errors"] for row in rows) == 0, "no episode is lost"
        assert left == [False] * 3, "its engine and workers, with their gigabytes, are gone"


def alive(group: int) -> bool:
    """Whether a process of the group is left after ten seconds."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True


def lines(run: Path) -> int:
    """Iterations that a run has written."""
    file = run / "metrics.jsonl"
    return sum('"return"' in line for line in file.read_text().splitlines()) if file.is_file() else 0


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_replica_with_another_base_stops_the_run_and_is_named(
    dtype: str, serve: Serve, tiny: str, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 0.1 * torch.randn_like(weight))
    other = tmp_path / "other"
    other.mkdir()
    for file in Path(tiny).iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    model.save_pretrained(other)
    on = "float32" if dtype == "fp32" else "bfloat16"
    right, wrong = serve(tiny, dtype=on), serve(str(other), dtype=on)
    bf16 = {"old_logprobs": "learner", "ratio_tolerance": 0.1} if dtype == "bf16" else {}
    with pytest.raises(ConfigError, match=f"on the vLLM server at {wrong.url} .*Its base model is another"):
        trained(tiny, tmp_path, "wrong", (right.url, wrong.url), dtype=dtype, **bf16)
    assert trained(tiny, tmp_path, "right", (right.url,), dtype=dtype, **bf16).metrics()


def test_a_stale_run_is_evaluated_by_the_server_as_by_the_native_engine(
    serve: Serve, tiny: str, tmp_path: Path
) -> None:
    server = serve(tiny, staleness=1)
    run = trained(tiny, tmp_path, "stale", (server.url,), staleness=1, iterations=3)
    assert sum(row["infrastructure_errors"] for row in run.metrics() if "return" in row) == 0
    there = {"kind": "vllm", "url": server.url}
    here, away = (
        marft_algos.evaluate(run, episodes=4, out=tmp_path / f"{i}", **engines).episodes
        for i, engines in enumerate(({}, {"engines": dict.fromkeys(AGENTS, there)}))
    )
    assert [turn.text for e in here for turn in e.turns] == [turn.text for e in away for turn in e.turns]


def test_two_workers_on_ray_have_a_server_each(tiny: str, vllm_env: Path, tmp_path: Path) -> None:
    run = trained(tiny, tmp_path, "ray", rollouts="ray", workers=2, chunk=4, worker_gpus=0, worker_vllm=str(vllm_env))
    rows = [line for line in run.metrics() if "return" in line]
    assert len(rows) == 2 and sum(row["infrastructure_errors"] for row in rows) == 0
    assert rows[0]["policy/reasoner_0/sampler_gap"] < 1e-5
    end = time.monotonic() + 60
    while servers := [p for p in Path("/proc").glob("[0-9]*/comm") if p.is_file() and "VLLM" in p.read_text()]:
        assert time.monotonic() < end, f"left of Ray's workers, which it kills: {servers}"
        time.sleep(1)
