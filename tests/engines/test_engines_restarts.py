"""vLLM servers that die, start again, come late, or have other weights than are trained."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import torch
from engines.test_engines_remote import PARAMS, asked, model, policies, ready, servers

from helpers.fake_servers import FakeVLLM
from marft_algos.engines import EngineError, Publisher, agreement
from marft_algos.engines.conformance import _disturb
from marft_algos.models.policy import PolicySet
from marft_algos.types import StopReason
from marft_envs.errors import ConfigError

pytestmark = pytest.mark.ci
__all__ = ["model", "policies", "servers"]  # fixtures


def test_a_server_that_dies_in_mid_rollout_loses_nothing(
    policies: PolicySet, servers: list[FakeVLLM], tmp_path: Path
) -> None:
    engine = ready(policies, servers, tmp_path)
    whole = engine.generate(asked(policies), PARAMS)
    engine.metrics()
    servers[0].dies_after = servers[0].completions + 2
    again = engine.generate(asked(policies), PARAMS)
    assert [r.action_ids for r in again] == [r.action_ids for r in whole]
    counted = engine.metrics()
    assert counted["requests"] == 8 and counted["failed"] == 0 and counted["retries"] >= 2
    assert counted["servers_down"] == 1
    third = engine.generate(asked(policies), PARAMS)
    assert [r.action_ids for r in third] == [r.action_ids for r in whole] and engine.metrics()["retries"] == 0


def test_when_every_server_is_dead_each_request_is_a_recorded_failure(
    policies: PolicySet, servers: list[FakeVLLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marft_algos.engines.vllm.BACKOFF", 0.0)
    engine = ready(policies, servers, tmp_path, retries=2, restart_timeout=0)
    for server in servers:
        server.dies_after = 0
    replies = engine.generate(asked(policies, 3), PARAMS)
    assert [reply.stop_reason for reply in replies] == [StopReason.ERROR] * 3
    assert all("no vLLM server answered" in reply.error and reply.action_ids == [] for reply in replies)
    counted = engine.metrics()
    assert (counted["failed"], counted["retries"], counted["servers_down"]) == (3, 6, 2)
    with pytest.raises(EngineError, match="No vLLM server took version 2"):
        Publisher(engine, policies, tmp_path).publish(["a"], 2)


def test_a_server_that_was_started_again_gets_its_adapters_back(
    policies: PolicySet, servers: list[FakeVLLM], tmp_path: Path
) -> None:
    engine = ready(policies, servers[:1], tmp_path)
    whole = engine.generate(asked(policies), PARAMS)
    servers[0].forget()
    assert [r.action_ids for r in engine.generate(asked(policies), PARAMS)] == [r.action_ids for r in whole]


def test_a_server_that_was_started_again_with_another_key_gets_its_adapters_back(
    policies: PolicySet, servers: list[FakeVLLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is drawn for a server changes at each of its starts."""
    servers[0].key = "first"
    found = servers[:1]
    monkeypatch.setattr("marft_algos.config.keys.of_server", lambda url: found[0].key if found else "lost")
    engine = ready(policies, servers[:1], tmp_path)
    whole = engine.generate(asked(policies), PARAMS)
    servers[0].forget()
    servers[0].key = "second"
    assert [r.action_ids for r in engine.generate(asked(policies), PARAMS)] == [r.action_ids for r in whole]
    assert engine.metrics()["failed"] == 0
    found.clear()
    servers[0].key = "third"
    with pytest.raises(ConfigError, match="401"):
        Publisher(engine, policies, tmp_path).publish(["a"], 2)


def test_replies_wait_for_a_server_that_is_started_again(
    policies: PolicySet, servers: list[FakeVLLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marft_algos.engines.replicas.POLL", 0.05)
    engine = ready(policies, servers, tmp_path)
    publisher = Publisher(engine, policies, tmp_path)
    whole = engine.generate(asked(policies), PARAMS)
    said = list[str]()

    def say(text: str, *, error: bool) -> None:
        said.append(text)
        for server in servers if "Waiting" in text else ():  # once it is waited for, each is started again
            server.forget()
            server.dies_after = None

    monkeypatch.setattr("marft_algos.engines.replicas.say", say)
    for again in (lambda: engine.generate(asked(policies), PARAMS), lambda: publisher.publish(["a", "b"], 2)):
        for server in servers:
            server.dies_after = 0
        again()
    assert [r.action_ids for r in engine.generate(asked(policies), PARAMS)] == [r.action_ids for r in whole]
    assert engine.metrics()["failed"] == 0
    assert [sum(part in text for text in said) for part in ("Waiting 600 s.", "a vLLM server answers again")] == [2, 2]


def test_a_replica_that_comes_late_is_used_once_it_is_there(
    policies: PolicySet, servers: list[FakeVLLM], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = servers[1]
    late.dies_after = 0
    engine = ready(policies, servers, tmp_path)
    assert f"no vLLM server answers at {late.url} yet" in capsys.readouterr().err
    engine.generate(asked(policies), PARAMS)
    assert late.completions == 0
    late.dies_after = None
    assert {reply.stop_reason for reply in engine.generate(asked(policies), PARAMS)} <= {
        StopReason.LENGTH,
        StopReason.EOS,
    }
    assert late.completions > 0 and all("@1-" in name for name in late.loaded)


def test_who_closes_an_engine_does_not_wait_for_its_servers(
    policies: PolicySet, servers: list[FakeVLLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marft_algos.engines.vllm.BACKOFF", 0.0)
    engine = ready(policies, servers, tmp_path)
    for server in servers:
        server.dies_after = 0
    threading.Timer(0.5, engine.close).start()
    assert {reply.stop_reason for reply in engine.generate(asked(policies), PARAMS)} == {StopReason.ERROR}


@pytest.mark.parametrize("fault", ["base", "adapter", "stale"])
def test_a_replica_with_other_weights_stops_the_run_and_is_named(
    policies: PolicySet, servers: list[FakeVLLM], tmp_path: Path, fault: str
) -> None:
    wrong = servers[1]
    if fault == "base":
        with torch.no_grad():
            for weight in wrong.base.parameters():
                weight.mul_(1 + 0.1 * torch.randn_like(weight))
        with pytest.raises(ConfigError, match=f"'a' on the vLLM server at {wrong.url} .*Its base model is another"):
            ready(policies, servers, tmp_path)
        assert ready(policies, servers, tmp_path, weights_tolerance=1.0).metrics()["gap_max"] > 1e-3
        return
    at_first, ids = policies.state_dict(), agreement.text(policies, "a")
    scores = agreement.learner(policies, "a", ids)
    _disturb(policies, "a", seed=1)
    moved = agreement.Agreement.of(scores, agreement.learner(policies, "a", ids))
    policies.load_state_dict(at_first)
    rounding = 1.5 * moved.mean if fault == "stale" else None  # in bf16, an update may be smaller than rounding
    engine = ready(policies, servers, tmp_path, weights_tolerance=rounding)
    gaps = engine.metrics()
    assert 0 <= gaps["gap_mean"] <= gaps["gap_p99"] <= gaps["gap_max"] < 1e-5
    shutil.copytree(next(tmp_path.glob("*/a@1")), tmp_path / "first")
    wrong.reads = tmp_path / "first"  # a folder of another machine, in which the first version still is
    _disturb(policies, "a", seed=1)
    says = "Its adapter is another" if fault == "adapter" else "those of the version before, bit for bit"
    with pytest.raises(ConfigError, match=f"version 2 of policy 'a' on the vLLM server at {wrong.url} .*{says}"):
        Publisher(engine, policies, tmp_path).publish(["a"], 2)
