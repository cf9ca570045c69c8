"""Defects found in released code, ruled out one by one on real policies, engines and environments.

The rows that need nothing but arithmetic are in test_functional.py, test_chain.py, test_batching.py and
test_marft.py; ``python -m benchmarks mutations`` puts every defect in by hand and checks that its test fails.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

import marft_envs
from helpers.teams import episode, put, say
from helpers.tiny import save_tiny
from marft_algos import credit
from marft_algos.algorithms.base import fill_values
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.batching import UpdateError, pack
from marft_algos.engines.native import NativeEngine
from marft_algos.engines.scripted import ScriptedEngine
from marft_algos.functional import Discounts, lambda_returns
from marft_algos.learner.heads import Heads
from marft_algos.learner.learner import Learner
from marft_algos.models.assignment import assign
from marft_algos.models.critic import Critics
from marft_algos.models.policy import PolicySet
from marft_algos.ranks.reduction import ReductionSlots
from marft_algos.rollout.collector import Collector
from marft_algos.types import Estimates, Generation, GenerationRequest, SamplingParams, StopReason, Trajectory


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
            prompt = policies.renderer.render(
                t.policy, [{"role": "user", "content": "what is " + "1+" * (d.number + t.index)}]
            )
            request = GenerationRequest(t.policy, prompt, seed=1000 * seed + 2 * d.number + t.index)
            (reply,) = engine.generate([request], params)
            say(t, action_ids=reply.action_ids, logprobs=reply.logprobs, text=reply.text)
            put(t, prompt_ids=prompt, temperature=temperature, trainable=policies.trainable(t.policy))
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
            found = Estimates()
            MARFT(MARFTConfig(level=level, critic="none", whiten="off")).credit([trajectory], found)
            for t in trajectory.transitions:
                assert (found.advantages[t] == 1.0).all() and (found.returns[t] == 1.0).all()
                assert len(found.returns[t]) == (len(t.reply.action_ids) if level == "token" else 1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampler_and_trainer_agree_and_the_first_ratio_is_1(model: str, temperature: float) -> None:
    policies = build(model)
    learner = Learner(MARFT(MARFTConfig(critic="none", ratio_tolerance=1e-4, micro_tokens=128)), policies)
    stats = learner.update(play(policies, temperature=temperature), 0)
    assert stats["policy/a/ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert stats["policy/b/sampler_gap"] < 1e-5


def test_log_probs_that_are_no_numbers_do_not_agree_with_the_learners(model: str) -> None:
    policies = build(model)
    learner = Learner(MARFT(MARFTConfig(critic="none", old_logprobs="learner", ratio_tolerance=1e9)), policies)
    played = play(policies)
    played[0].transitions[0].reply.logprobs[0] = np.nan
    with pytest.raises(UpdateError, match="differ by nan per token"):
        learner.update(played, 0)


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
    assert [len(g["params"]) for g in second.optimizers["a"].adam.param_groups] == [len(resumed.parameters("a"))]
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


class Recording(NativeEngine):
    """Remembers what was asked of the engine and what it answered."""

    def __init__(self, policies: PolicySet) -> None:
        super().__init__(policies)
        self.log: list[tuple[GenerationRequest, Generation]] = []

    def generate(self, requests, params):
        replies = super().generate(requests, params)
        self.log += zip(copy.deepcopy(requests), copy.deepcopy(replies), strict=True)
        return replies


def collect(model: str, env: str = "relay-v0", episodes: int = 8, slots: int = 4, tokens: int = 8, **kwargs: object):
    """Plays episodes of a real environment with the tiny model; returns trajectories, policies and the engine's log."""
    vec = marft_envs.make_vec(env, slots, **kwargs)
    policies = PolicySet.build(model, assign(vec.agents, "own"), device="cpu")
    engine = Recording(policies)
    collector = Collector(vec, policies.renderer, engine, SamplingParams(max_new_tokens=tokens))
    try:
        return collector.collect(range(episodes)), policies, engine.log
    finally:
        vec.close()


@pytest.mark.parametrize("view", ["own", "team"])
def test_a_successors_value_changes_when_the_predecessors_message_changes(model: str, view: str) -> None:
    """V of a successor is read at its last prompt position, which has seen the message; its first has not."""
    (trajectory, *_), policies, _ = collect(model)
    first, second = trajectory.transitions
    critics = Critics(policies)
    with torch.no_grad():
        for p in critics.policies:
            for tensor in critics.parameters(p):
                torch.nn.init.normal_(tensor, generator=torch.Generator().manual_seed(1))
    heads = Heads(critics, MARFTConfig(), 0, ReductionSlots())
    links = credit.team_chain(trajectory, credit.broadcast(trajectory), Estimates())
    bootstrapped = []
    for message in ("1", "2"):
        prompt = policies.renderer.render(
            second.policy, [{"role": "user", "content": f"digit ?\n\n[planner]\n{message}"}]
        )
        put(second, prompt_ids=prompt, team_view=f"digit 3\n\n[planner]\n{message}")
        found = Estimates()
        fill_values([trajectory], heads, view, "action", found)
        values = [found.values[t] for t in trajectory.transitions]
        returns = lambda_returns(values, [1, 1], links.rewards, links.successors, Discounts(lambda_turn=0.0))[1]
        bootstrapped.append(returns[first.index][0])
    assert bootstrapped[0] != bootstrapped[1]


def test_tokens_trained_are_the_tokens_sampled(model: str) -> None:
    """Text is for the environment only: tokenising it again would give other ids."""
    data, policies, log = collect(model, episodes=16)
    asked = {(tuple(r.prompt_ids), tuple(g.action_ids)): g for r, g in log}
    again = 0
    for t in (t for d in data for t in d.transitions):
        generation = asked[tuple(t.request.prompt_ids), tuple(t.reply.action_ids)]
        assert t.reply.logprobs.tolist() == generation.logprobs.tolist() and t.turn.text == generation.text
        again += (
            policies.renderer.tokenizer(t.policy).encode(t.turn.text, add_special_tokens=False) != t.reply.action_ids
        )
    assert again > 0, "the samples must hold something that does not survive the way through text"
    stats = Learner(MARFT(MARFTConfig(critic="none", ratio_tolerance=1e-4)), policies).update(data, 0)
    assert stats["policy/solver_0/ratio_max"] == pytest.approx(1.0, abs=1e-4)


def test_the_prompt_scored_is_the_prompt_sampled_from_when_the_context_overflows(tmp_path: Path) -> None:
    """Long inputs are cut once, before sampling, never the profile; what cannot fit is a typed failure."""
    model = str(save_tiny(tmp_path / "short", context=200))
    data, policies, log = collect(model, max_chars=40, tokens=60)
    assert any(d.episode.cuts for d in data), "the case must occur"
    assert sorted(tuple(t.request.prompt_ids) for d in data for t in d.transitions) == sorted(
        tuple(r.prompt_ids) for r, _ in log
    )
    for t in (t for d in data for t in d.transitions):
        batch = pack([t], Estimates(), "token")
        assert batch.input_ids[0].tolist() == t.request.prompt_ids + t.reply.action_ids
    (long,) = NativeEngine(policies).generate(
        [GenerationRequest("solver_0", [5] * 180, 0)], SamplingParams(max_new_tokens=40)
    )
    assert long.stop_reason is StopReason.REFUSED and long.action_ids == [] and "context" in long.error


def test_equal_seeds_give_equal_problems_for_1_2_and_8_workers(model: str) -> None:
    panels = []
    for slots in (1, 2, 8):
        data, *_ = collect(model, slots=slots)
        panels.append(
            [
                (d.number, d.episode.seed, d.task_id, [(t.agent, t.observation, t.turn.text) for t in d.transitions])
                for d in data
            ]
        )
    assert panels[0] == panels[1] == panels[2]
    assert len({task for _, _, task, _ in panels[0]}) > 1


def test_a_failed_generation_is_a_typed_event(model: str) -> None:
    class Flaky(NativeEngine):
        def generate(self, requests, params):
            replies = super().generate(requests, params)
            for i, request in enumerate(requests):
                if request.agent == "solver_0" and request.seed % 2:
                    empty = replies[i].logprobs[:0]
                    replies[i] = Generation([], empty, StopReason.ERROR, replies[i].version, error="out of memory")
            return replies

    vec = marft_envs.make_vec("relay-v0", 4)
    policies = PolicySet.build(model, assign(vec.agents, "own"), device="cpu")
    data = Collector(vec, policies.renderer, Flaky(policies), SamplingParams(max_new_tokens=4)).collect(range(12))
    failed = [d for d in data if d.episode.stop_reason == "error: out of memory"]
    assert 0 < len(failed) < len(data) == 12
    for d in failed:
        assert len(d.transitions) == 1 and not d.episode.terminated, (
            "the failed turn is no action, and certainly not an empty one"
        )
    assert all(len(d.transitions) == 2 for d in data if d not in failed)


@pytest.mark.parametrize("env", [spec.id for spec in marft_envs.list_envs() if "data" not in spec.kwargs])
def test_every_registered_id_runs_an_episode(env: str) -> None:
    vec = marft_envs.make_vec(env, 2)
    try:
        data = Collector(vec, None, ScriptedEngine({"*": "0"}), SamplingParams()).collect([0, 1, 2])
    finally:
        vec.close()
    assert [d.number for d in data] == [0, 1, 2]
    for d in data:
        assert d.episode.terminated and not d.episode.stop_reason.startswith("error") and d.transitions
