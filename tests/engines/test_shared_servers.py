"""vLLM servers that several ranks ask, and those that play a run's own adapters afterwards."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import marft_algos
from helpers import preloaded
from helpers.fake_servers import FakeVLLM
from helpers.thread_ranks import ThreadRank, together
from marft_algos.cli import main
from marft_algos.engines.base import EngineError, Publisher
from marft_algos.extras.cluster import vllm_ranks
from marft_algos.extras.cluster.vllm_ranks import RanksVLLMEngine
from marft_algos.models.policy import PolicySet
from marft_algos.types import GenerationRequest, SamplingParams
from tests.helpers.engine_tables import as_table

pytestmark = pytest.mark.slow

TEAM = ("reasoner_0", "actor_0")
SMALL = ("--iterations", "2", "--episodes-per-iteration", "16", "--eval-episodes", "8", "--eval-every", "0")


@pytest.fixture
def servers() -> Iterator[list[FakeVLLM]]:
    made = [FakeVLLM("embedded", context=2048), FakeVLLM("embedded", context=2048)]
    yield made
    for server in made:
        server.fake.close()


def engines(servers: list[FakeVLLM]) -> list[str]:
    table = json.dumps(as_table("vllm:" + ",".join(server.url for server in servers)))
    return ["--engines", *(f"{policy}={inline(table)}" for policy in TEAM)]


def inline(table: str) -> str:
    return table.replace('": ', '" = ')


def loads(server: FakeVLLM) -> list[str]:
    return [body["lora_name"].split("-")[0] for body in server.fake.paths("/v1/load_lora_adapter")]


def said(file: Path) -> list[list[str]]:
    return [[turn["text"] for turn in json.loads(line)["turns"]] for line in file.read_text().splitlines()]


def played(run: Path) -> list[Any]:
    """What every episode of a run said and was rewarded."""
    rows = [json.loads(line) for file in sorted(run.glob("episodes/*.jsonl")) for line in file.read_text().splitlines()]
    assert rows
    return [[row.get(key) for key in ("task_id", "success", "turns", "rounds", "total_return")] for row in rows]


def test_a_run_through_servers_has_the_same_episodes_and_weights_on_any_number_of_ranks(
    tmp_path: Path, servers: list[FakeVLLM]
) -> None:
    words = ["train", *SMALL, "--runs-dir", str(tmp_path), *engines(servers)]
    assert main([*words, "--reduction-slots", "8", "--name", "one"]) == 0
    alone = [loads(server) for server in servers]
    done = preloaded.Started(Path.cwd(), "-m", "marft_algos", *words, "--nproc", "2", "--name", "two").wait()
    assert done.returncode == 0, done.stderr
    assert played(tmp_path / "one") == played(tmp_path / "two")
    files = sorted((tmp_path / "one/checkpoints/step_000002").rglob("*.safetensors"))
    assert len(files) == 2
    for file in files:
        assert file.read_bytes() == Path(str(file).replace("/one/", "/two/")).read_bytes()
    for server, once in zip(servers, alone, strict=True):
        # The second rank finds everything loaded.
        assert sorted(loads(server)[len(once) :]) == sorted([*once, *once]) and server.loaded == []


def team() -> PolicySet:
    return PolicySet.build("embedded", {name: name for name in TEAM}, device="cpu")


def on_ranks(servers: list[FakeVLLM], folder: Path, forgetful: bool = False) -> list[tuple[list[str], list[Any]]]:
    """Publishes two versions on two ranks, and lets each ask; returns the replies' tokens, and what was loaded."""

    teams = [team(), team()]

    def work(rank: ThreadRank) -> tuple[list[str], list[Any]]:
        policies = teams[rank.rank]
        engine = RanksVLLMEngine(rank, policies, [server.url for server in servers])
        publisher = Publisher(engine, policies, folder)
        for version in (1, 2):
            publisher.publish(TEAM, version)
        rank.agree(False)
        if forgetful and rank.rank == 0:
            servers[0].forget()
        rank.agree(False)
        prompt = policies.renderer.render("actor_0", [{"role": "user", "content": "1+1"}])
        asked = [GenerationRequest("actor_0", prompt, seed=seed) for seed in range(4)]
        replies = engine.generate(asked, SamplingParams(max_new_tokens=4))
        assert not any(reply.error for reply in replies)
        rank.agree(False)
        held = servers[0].loaded
        rank.agree(False)
        engine.close()
        rank.agree(False)
        return held, [reply.action_ids for reply in replies]

    return together(2, work)


@pytest.mark.parametrize("forgetful", [False, True])
def test_rank_0_publishes_to_a_server_of_all_machines_and_a_server_that_was_started_again_is_helped_by_any(
    servers: list[FakeVLLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetful: bool
) -> None:
    monkeypatch.setattr(vllm_ranks, "_loopback", lambda url: False)
    (held, first), (_, second) = on_ranks(servers[:1], tmp_path, forgetful)
    assert first == second and {name.split("-")[0] for name in held} <= {"reasoner_0@2", "actor_0@2"}
    assert len(held) == (1 if forgetful else 2) and servers[0].loaded == []
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} == {"reasoner_0@2", "actor_0@2"}


def test_the_first_rank_of_a_machine_publishes_to_its_own_server(servers: list[FakeVLLM], tmp_path: Path) -> None:
    """Two ranks that no launcher counts: each is the first of a machine."""
    (held, first), (_, second) = on_ranks(servers[:1], tmp_path)
    assert first == second and len(held) == 4 and len(list(tmp_path.iterdir())) == 2


def test_what_one_rank_cannot_publish_stops_all(
    servers: list[FakeVLLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_ranks, "_loopback", lambda url: False)

    teams = [team(), team()]

    def work(rank: ThreadRank) -> str:
        policies = teams[rank.rank]
        engine = RanksVLLMEngine(rank, policies, [servers[0].url])
        rank.agree(False)
        servers[0].dies_after = 0
        with pytest.raises(EngineError, match="No vLLM server took version 1") as caught:
            Publisher(engine, policies, tmp_path).publish(TEAM, 1)
        return str(caught.value)

    first, second = together(2, work)
    assert first == second


def test_a_runs_own_adapters_are_scored_by_a_server(
    tmp_path: Path, servers: list[FakeVLLM], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained_with = inline(json.dumps(as_table(f"vllm:{servers[1].url}")))
    assert main(["train", *SMALL, "--lr", "1e-2", "--name", "run", "--engines", f"reasoner_0={trained_with}"]) == 0
    asked = servers[1].completions

    def scores(*words: str) -> list[str]:
        capsys.readouterr()
        assert main(["eval", "run", "--episodes", "8", *words]) == 0
        return capsys.readouterr().out.splitlines()

    here = scores("--out", "here.jsonl")
    table = inline(json.dumps(as_table(f"vllm:{servers[0].url}")))
    there = scores("--out", "there.jsonl", "--engines", table)
    assert [line for line in here if "jsonl" not in line] == [line for line in there if "jsonl" not in line]
    assert said(Path("here.jsonl")) == said(Path("there.jsonl"))
    assert sorted(loads(servers[0])) == ["actor_0@0", "actor_0@1", "reasoner_0@0", "reasoner_0@1"]
    assert servers[0].loaded == [] and servers[0].completions == 32
    engines = dict.fromkeys(("actor_0", "reasoner_0"), as_table(f"vllm:{servers[0].url}"))
    result = marft_algos.evaluate("run", episodes=8, engines=engines, out="there")
    assert said(result.folder / "episodes.jsonl") == said(Path("here.jsonl"))
    asked_before = servers[0].completions
    scores("--engines", f"actor_0={table}", "--checkpoint", "2")
    assert servers[0].completions == asked_before + 16 and servers[1].completions == asked > 0, (
        "the other policy is played here"
    )
    for words, error in (
        (["--engines", f"actor={table}"], "--engines names an unknown policy 'actor'. Did you mean 'actor_0'"),
        (
            ["--engines", f"actor_0={table}", "reasoner_0=embedded"],
            "vLLM servers play a run's own adapters: marft eval",
        ),
        (["--engines", table, "--samples", "4"], "--samples belongs to --engines"),
        (["--engines", inline(json.dumps(as_table("vllm:http://127.0.0.1:9")))], "No vLLM server answers"),
    ):
        assert main(["eval", "run", *words]) == 1
        assert re.search(re.escape(error), " ".join(capsys.readouterr().err.split()))
    assert "WORLD_SIZE" not in os.environ
