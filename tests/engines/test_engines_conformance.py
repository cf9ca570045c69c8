"""The conformance suite: engines that pass it, and engines that break one promise each and are caught."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.fake_servers import FakeVLLM
from helpers.tiny import save_tiny
from marft_algos.engines import NativeEngine
from marft_algos.engines.conformance import EngineCheckError, check_engine
from marft_algos.engines.vllm import VLLMEngine
from marft_algos.models.policy import PolicySet
from marft_algos.models.scoring import head_of
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError

AGENTS = {"reasoner_0": "reasoner", "actor_0": "actor"}
SMALL = {"tokens": 16, "rows": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that ends its turns now and then."""
    folder = save_tiny(tmp_path_factory.mktemp("models") / "qwen")
    policies = PolicySet.build(str(folder), {"a": "a"}, device="cpu")
    base = policies.base("a")
    with torch.no_grad():
        head_of(base.model).weight[base.chat.end_ids[0]] *= 3
    base.model.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def policies(model: str) -> PolicySet:
    return PolicySet.build(model, AGENTS, device="cpu")


@pytest.fixture
def servers(model: str) -> Iterator[list[FakeVLLM]]:
    made = [FakeVLLM(model), FakeVLLM(model)]
    yield made
    for server in made:
        server.fake.close()


def test_the_native_engine_conforms_and_gets_its_weights_back(policies: PolicySet) -> None:
    before = policies.state_dict()
    assert "11 checks passed" in str(check_engine(NativeEngine(policies), policies, **SMALL))
    after = policies.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.ci
def test_a_client_of_two_servers_conforms(policies: PolicySet, servers: list[FakeVLLM], tmp_path: Path) -> None:
    engine = VLLMEngine(policies, [server.url for server in servers])
    check_engine(engine, policies, folder=tmp_path, **SMALL)
    assert all(server.completions > 100 for server in servers)
    engine.close()
    assert [server.loaded for server in servers] == [[], []]
    assert not list(tmp_path.iterdir())


class Bent(NativeEngine):
    """Native, but with one thing wrong."""

    def __init__(self, policies: PolicySet, fault: str) -> None:
        super().__init__(policies)
        self.fault = fault
        self.own = policies
        self.first: str | None = None

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        if self.fault == "empty" and any(not request.prompt_ids for request in requests):
            return [Generation([1], np.zeros(1, np.float32), StopReason.EOS, 0)] * len(requests)
        if self.fault == "batch":
            requests = [dataclasses.replace(r, seed=r.seed + i) for i, r in enumerate(requests)]
        if self.fault == "alone" and threading.current_thread() is not threading.main_thread():
            requests = [dataclasses.replace(requests[0], seed=requests[0].seed + 1)]
        if self.fault == "seed":
            requests = [dataclasses.replace(r, seed=1) for r in requests]
        if self.fault == "mixed" and len({r.policy for r in requests}) > 1:
            requests = [dataclasses.replace(r, policy=requests[0].policy) for r in requests]
        if self.fault == "greedy":
            params = dataclasses.replace(params, greedy=False)
        if self.fault == "top" and params.max_new_tokens == 1:
            requests = [dataclasses.replace(r, seed=r.seed % 3) for r in requests]
        return [self._bent(reply, params) for reply in super().generate(requests, params)]

    def _bent(self, reply: Generation, params: SamplingParams) -> Generation:
        if self.fault == "raw" and params.temperature != 1.0:
            return dataclasses.replace(reply, logprobs=reply.logprobs * np.float32(params.temperature))
        if self.fault == "version":
            return dataclasses.replace(reply, version=0)
        if self.fault == "stop" and reply.action_ids:
            return dataclasses.replace(reply, stop_reason=StopReason.EOS)
        if self.fault == "text":
            return dataclasses.replace(reply, text=reply.text.strip() + " ")
        if self.fault == "overflow" and reply.stop_reason is StopReason.REFUSED:
            return dataclasses.replace(reply, stop_reason=StopReason.EOS, text="")
        return reply

    @property
    def one_by_one(self) -> bool:  # type: ignore[override]
        return self.fault == "alone"


@pytest.mark.parametrize(("fault", "says"), [
    ("raw", "temperature 0.7 the learner differ"),
    ("batch", "not the same for a batch and its reverse|not the same for policy"),
    ("seed", "Eight seeds gave one sample|standard errors"), ("mixed", "the learner differ"),
    ("greedy", "Greedy replies"), ("top", "standard errors"), ("version", "the same version"),
    ("stop", "has the stop reason"), ("text", "not that of the tokens"), ("overflow", "as long as the context"),
    ("empty", "An empty prompt was answered"), ("alone", "one call and one by one"),
])  # fmt: skip
def test_a_broken_promise_is_named(policies: PolicySet, fault: str, says: str) -> None:
    with pytest.raises(EngineCheckError, match=says):
        check_engine(Bent(policies, fault), policies, **SMALL)


@pytest.mark.ci
def test_weights_that_never_arrive_are_found(policies: PolicySet, servers: list[FakeVLLM], tmp_path: Path) -> None:
    class Deaf(VLLMEngine):
        def publish(self, policy: str, version: int, adapter: Path | None = None) -> None:
            if version == 1:
                super().publish(policy, version, adapter)

    engine = Deaf(policies, [server.url for server in servers])
    with pytest.raises(EngineCheckError, match="after a publish the learner"):
        check_engine(engine, policies, folder=tmp_path, **SMALL)
    engine.close()


def test_the_checks_need_a_team(model: str) -> None:
    alone = PolicySet.build(model, {"a": "a"}, device="cpu")
    with pytest.raises(ConfigError, match="two trainable policies"):
        check_engine(NativeEngine(alone), alone)
