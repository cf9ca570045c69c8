"""Defects found in released code, ruled out one by one on real policies, engines and environments.

The rows that need nothing but arithmetic are in test_functional.py, test_chain.py, test_batching.py and
test_marft.py; ``python -m benchmarks.mutations`` puts every defect in by hand and checks that its test fails.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from teams import episode
from tiny import save_tiny

from marft_algos.algos.marft import MARFT, MARFTConfig
from marft_algos.engines.native import NativeEngine
from marft_algos.policy import PolicySet
from marft_algos.types import GenerationRequest, SamplingParams, Trajectory
from marft_algos.update import Learner


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny")))


def build(model: str, **settings: object) -> PolicySet:
    return PolicySet.build(model, {"a": "a", "b": "b"}, device="cpu", **settings)


def play(policies: PolicySet, n: int = 8, temperature: float = 1.0, seed: int = 0) -> list[Trajectory]:
    """Episodes a → b of replies sampled by the native engine to prompts of different lengths."""
    params = SamplingParams(max_new_tokens=6, temperature=temperature)
    data = [episode([["a"], ["b"]], number=i, seed=seed, rewards=[0.0, float(i % 2)]) for i in range(n)]
    engine = NativeEngine(policies)
    for d in data:
        for t in d.transitions:
            t.prompt_ids = policies.render(
                t.policy, [{"role": "user", "content": "what is " + "1+" * (d.episode + t.index)}]
            )
            request = GenerationRequest(t.policy, t.prompt_ids, seed=1000 * seed + 2 * d.episode + t.index)
            (reply,) = engine.generate([request], params)
            t.action_ids, t.logprobs, t.text = reply.action_ids, reply.logprobs, reply.text
            t.temperature, t.trainable = temperature, policies.trainable(t.policy)
    return data


def train(policies: PolicySet, iterations: range = range(1), **config: object) -> Learner:
    learner = Learner(MARFT(MARFTConfig(critic="none", **config)), policies)
    for i in iterations:
        learner.update(play(policies, seed=i), i)
    return learner


def logits(policies: PolicySet, policy: str) -> torch.Tensor:
    """Log-probs of a fixed text as the trainer scores it."""
    ids = torch.arange(5, 25)[None]
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False
    with torch.no_grad():
        return policies.logprobs(policy, ids, mask)[0]


def sampled(policies: PolicySet, policy: str) -> np.ndarray:
    """Log-probs of a greedy reply as the sampler sees it."""
    request = GenerationRequest(policy, list(range(5, 15)), seed=0)
    return NativeEngine(policies).generate([request], SamplingParams(max_new_tokens=1, greedy=True))[0].logprobs


def test_every_agents_buffer_is_written() -> None:
    """n = 2, 3, 4: a leaked loop variable left agent 0 of 3 without advantages."""
    for n in (2, 3, 4):
        for level in ("action", "token"):
            trajectory = episode([[f"a{i}"] for i in range(n)])
            MARFT(MARFTConfig(level=level, critic="none", whiten="off")).credit([trajectory])
            for t in trajectory.transitions:
                assert t.advantages is not None and (t.advantages == 1.0).all() and (t.returns == 1.0).all()
                assert len(t.returns) == (len(t.action_ids) if level == "token" else 1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampler_and_trainer_agree_and_the_first_ratio_is_1(model: str, temperature: float) -> None:
    policies = build(model)
    learner = Learner(MARFT(MARFTConfig(critic="none", ratio_tolerance=1e-4, micro_tokens=128)), policies)
    stats = learner.update(play(policies, temperature=temperature), 0)
    assert stats["policy/a/ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert stats["policy/b/sampler_gap"] < 1e-5


def test_an_update_reaches_the_sampler_of_the_trained_agent_only(model: str) -> None:
    policies = build(model, frozen=["b"])
    before = {p: (logits(policies, p), sampled(policies, p)) for p in ("a", "b")}
    train(policies, lr=1e-2, whiten="policy")
    assert not torch.equal(logits(policies, "a"), before["a"][0]) and sampled(policies, "a") != before["a"][1]
    assert torch.equal(logits(policies, "b"), before["b"][0]) and sampled(policies, "b") == before["b"][1]


def test_a_saved_adapter_reloads_to_identical_logits(model: str, tmp_path: Path) -> None:
    policies = build(model)
    train(policies, range(2), lr=1e-2)
    first = policies.save_adapter("a", tmp_path / "a")
    names = sorted(str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*"))
    assert policies.save_adapter("a", tmp_path / "a") == first
    assert sorted(str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*")) == names, "paths are stable over two saves"
    fresh = build(model, seed=1)
    assert not torch.equal(logits(fresh, "a"), logits(policies, "a"))
    fresh.load_adapter("a", first)
    assert torch.equal(logits(fresh, "a"), logits(policies, "a"))


def test_resume_keeps_adapters_trainable_and_continues(model: str) -> None:
    whole = build(model)
    learner = train(whole, range(2), lr=1e-2)
    weights, state = whole.state_dict(), copy.deepcopy(learner.state_dict())
    for i in (2, 3):
        learner.update(play(whole, seed=i), i)
    resumed = build(model, seed=5)
    second = Learner(MARFT(MARFTConfig(critic="none", lr=1e-2)), resumed)
    resumed.load_state_dict(weights)
    second.load_state_dict(state)
    assert all(p.requires_grad for p in resumed.parameters("a"))
    assert [len(g["params"]) for g in second.optimizers["a"].param_groups] == [len(resumed.parameters("a"))]
    for i in (2, 3):
        second.update(play(resumed, seed=i), i)
    final, again = whole.state_dict(), resumed.state_dict()
    assert final.keys() == again.keys() and all(torch.equal(final[k], again[k]) for k in final)


def test_share_of_trained_elements_that_change_at_a_small_step(model: str) -> None:
    """lr 1e-6 under bf16 compute: fp32 weights move, half-precision ones would stay where they are."""
    policies = build(model, dtype="bf16")
    train(policies, range(1), lr=1e-2, max_grad_norm=None, ratio_tolerance=0.5)  # B starts at 0, where any step shows
    before = [p.detach().clone() for p in policies.parameters("a")]
    learner = Learner(MARFT(MARFTConfig(critic="none", lr=1e-6, adam_eps=1e-12, ratio_tolerance=0.5)), policies)
    learner.update(play(policies, seed=1), 1)
    moved = sum((p.detach() != q).sum().item() for p, q in zip(policies.parameters("a"), before, strict=True))
    assert moved / sum(q.numel() for q in before) > 0.45
