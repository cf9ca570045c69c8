"""A worker that plays through a vLLM server of its own: it starts it, gives it weights, and does not outlive it."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import vllm_stand_in
from helpers.runs import settings
from helpers.tiny import save_tiny
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import EngineError
from marft_algos.extras.cluster.worker import RayWorker, pack
from marft_algos.rollout.episodes import Played, cut
from marft_algos.training.parts import build
from marft_envs import ConfigError
from marft_envs.consent import powers


def made(folder: Path, **changes: Any) -> TrainConfig:
    more = {"rollouts": "ray", "worker_vllm": str(folder / "venv"), "context": 128, "worker_start": 60.0, "lora_r": 8}
    model = save_tiny(folder / "tiny")
    return settings(model, folder, **{**more, **changes})


@pytest.mark.ci
def test_a_worker_plays_through_its_own_server_the_weights_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_stand_in.make(tmp_path / "venv")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    config = made(tmp_path)
    learner = build(dataclasses.replace(config, rollouts="here", worker_vllm=""))
    draws = torch.Generator().manual_seed(0)
    for policy in learner.policies.policies:
        for tensor in learner.policies.weights(policy).tensors.values():
            tensor.data.normal_(std=0.3, generator=draws)
    prompts = learner.problems.train(config.seed, 0, 4)
    (chunk,) = cut(prompts, 4, 0)
    played: list[Played] = []
    for served in (True, False):
        worker = RayWorker(config if served else dataclasses.replace(config, worker_vllm=""), 4)
        try:
            for policy in learner.policies.policies:
                worker.take(policy, 3, pack(learner.policies.weights(policy).tensors))
            packed, _ = worker.play(chunk)
            played.append(pickle.loads(packed.checked("chunk")))
        finally:
            worker.close()
    (log,) = (tmp_path / "tmp").glob("marft-vllm-*.log")
    assert log.stat().st_mode & 0o777 == 0o600, "a file of its own: nobody can have put another there"
    served, native = ([t.transitions for t in p.trajectories] for p in played)
    assert [[turn.reply.version for turn in turns] for turns in served] == [[3, 3]] * 4
    assert all(turn.reply.action_ids for turns in served for turn in turns)
    assert played[0].engine["requests"] == sum(map(len, served)) and "requests" not in played[1].engine
    # The stand-in samples with the same seeds from the same weights, where vLLM takes a seed: below 2 ** 63.
    pairs = [(a[0], b[0]) for a, b in zip(served, native, strict=True) if b[0].request.seed < 1 << 63]
    assert pairs and all(a.reply.action_ids == b.reply.action_ids for a, b in pairs)
    assert all(np.allclose(a.reply.logprobs, b.reply.logprobs, atol=1e-5) for a, b in pairs)


HEALTHY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Healthy).serve_forever()
"""


@pytest.mark.parametrize("killed", ["worker", "its processes"])
def test_a_server_does_not_outlive_a_worker_that_is_killed(tmp_path: Path, killed: str) -> None:
    """Ray kills the processes of a worker, and not those of these."""
    (tmp_path / "vllm_stand_in.py").write_text(HEALTHY)
    venv, model = tmp_path / "venv", tmp_path / "tiny"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/vllm_stand_in.py "$@"\n')
    (venv / "bin" / "python").chmod(0o755)
    code = f"""
import tempfile
import time
from marft_algos.engines import server
with server.serving(server.ServerSettings({str(model)!r}, venv={str(venv)!r}, port=0x7a13, context=128)) as process:
    print(process.pid, flush=True)
    time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    lines = [owner.stdout.readline() for _ in range(2)]  # the command, and the process
    pid = int(lines[-1])
    served = Path(f"/proc/{int(Path(f'/proc/{pid}/task/{pid}/children').read_text())}/cmdline")
    assert b"vllm_stand_in" in served.read_bytes()
    os.kill(owner.pid if killed == "worker" else pid, signal.SIGKILL)
    until = time.monotonic() + 20
    while served.exists() and b"vllm_stand_in" in served.read_bytes() and time.monotonic() < until:
        time.sleep(0.1)
    assert not served.exists() or not served.read_bytes(), "the server has ended, too"
    owner.kill()
    owner.wait()


def test_what_cannot_be_served_is_found_first(tmp_path: Path) -> None:
    for changes, words in (
        ({"rollouts": "here"}, "--rollouts ray"),
        ({"context": None}, "--context 4096"),
        ({"full_finetune": True}, "one base model"),
        ({"workers": 4, "max_workers": 2}, "--max-workers 4"),
    ):
        with pytest.raises(ConfigError, match=words):
            made(tmp_path, **changes)
    with pytest.raises(ConfigError, match="There is no interpreter"):
        RayWorker(made(tmp_path), 4)
    broken = tmp_path / "venv" / "bin" / "python"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(EngineError, match="ended with status 3"):
        RayWorker(made(tmp_path), 4)


def test_a_file_that_names_it_starts_nothing_unasked() -> None:
    assert [power.name for power in powers({"worker_vllm": "/elsewhere", "seed": 3})] == ["worker_vllm"]
    assert not powers({"worker_vllm": ""}) and os.name == "posix"
