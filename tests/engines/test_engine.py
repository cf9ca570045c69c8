"""The native engine against the learner's scoring, softmax, and itself in other batches; the scripted engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.sampling import AGENTS, PARAMS, disturb, requests, rescore
from helpers.tiny import save_tiny
from marft_algos.engines import EngineError, NativeEngine, ScriptedEngine, row_seed
from marft_algos.engines import sampler as sampler_module
from marft_algos.engines.base import uniforms
from marft_algos.engines.sampler import BLOCK, sample_inverse_cdf
from marft_algos.models.policy import PolicySet
from marft_algos.models.scoring import head_of
from marft_algos.types import GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError


@pytest.fixture
def policies(qwen: Path) -> PolicySet:
    built = PolicySet.build(str(qwen), AGENTS, device="cpu")
    for i, policy in enumerate(built.policies):
        disturb(built, policy, seed=i)
    return built


# ---------------------------------------------------------------------- one distribution for sampling and scoring


@pytest.mark.parametrize("arch", ["qwen2", "llama", "gpt2"])
@pytest.mark.parametrize("params", [PARAMS, SamplingParams(12, temperature=0.6), SamplingParams(12, greedy=True)])
def test_sampled_logprobs_equal_the_learners(arch: str, params: SamplingParams, tmp_path: Path) -> None:
    policies = PolicySet.build(str(save_tiny(tmp_path / arch, arch)), AGENTS, device="cpu")
    for policy in policies.policies:
        disturb(policies, policy)
    asked = requests(policies)
    for request, reply in zip(asked, NativeEngine(policies).generate(asked, params), strict=True):
        again = rescore(policies, request, reply, params.temperature)
        assert len(reply.action_ids) == len(reply.logprobs) > 0
        assert reply.logprobs.dtype == np.float32
        np.testing.assert_allclose(reply.logprobs, again.numpy(), rtol=0, atol=1e-5)


def test_different_base_models_sample_side_by_side(qwen: Path, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "llama", "llama", hidden=48, seed=1)
    policies = PolicySet.build({"reasoner": str(qwen), "actor": str(other)}, AGENTS, device="cpu")
    asked = requests(policies)
    for request, reply in zip(asked, NativeEngine(policies).generate(asked, PARAMS), strict=True):
        np.testing.assert_allclose(reply.logprobs, rescore(policies, request, reply, 1.0).numpy(), rtol=0, atol=1e-5)


def test_bf16_sampling_stays_near_the_learner(qwen: Path) -> None:
    policies = PolicySet.build(str(qwen), AGENTS, device="cpu", dtype="bf16")
    asked = requests(policies)
    gaps = [
        np.abs(reply.logprobs - rescore(policies, request, reply, 1.0).numpy()).mean()
        for request, reply in zip(asked, NativeEngine(policies).generate(asked, PARAMS), strict=True)
    ]
    assert np.mean(gaps) < 0.05


def test_one_step_follows_softmax(policies: PolicySet) -> None:
    prompt = policies.renderer.render("actor", [{"role": "user", "content": "1+1"}])
    n = 4000
    asked = [GenerationRequest("actor", prompt, seed=row_seed(0, 0, i, 0)) for i in range(n)]
    params = SamplingParams(max_new_tokens=1, temperature=0.8)
    replies = NativeEngine(policies).generate(asked, params)
    with policies.running("actor") as (trunk, head), torch.no_grad():
        logits = head(trunk(input_ids=torch.tensor([prompt])).last_hidden_state[0, -1])
    expected = torch.softmax(logits / 0.8, -1).double().numpy() * n
    counts = np.bincount([reply.action_ids[0] for reply in replies], minlength=len(expected))
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    assert common.sum() > 5
    chi_square, freedom = ((observed - wanted) ** 2 / wanted).sum(), len(wanted) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5  # mean and deviations of a chi-square


# ---------------------------------------------------------------------- a row depends on its own seed only


def test_rows_sample_the_same_in_any_batch(policies: PolicySet, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(policies)
    engine = NativeEngine(policies)
    together = engine.generate(asked, PARAMS)
    alone = [engine.generate([request], PARAMS)[0] for request in asked]
    shuffled = engine.generate(asked[::-1], PARAMS)[::-1]
    small = NativeEngine(policies, max_batch=3).generate(asked, PARAMS)
    monkeypatch.setattr(sampler_module, "COMPACT_BELOW", 0.0)
    uncompacted = engine.generate(asked, PARAMS)
    assert len({len(reply.action_ids) for reply in together}) > 1  # ragged, so that rows were dropped on the way
    for others in (alone, shuffled, small, uncompacted):
        for a, b in zip(together, others, strict=True):
            assert a.action_ids == b.action_ids and a.text == b.text
            np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-5)


def test_seeds_decide_the_sample(policies: PolicySet) -> None:
    prompt = policies.renderer.render("actor", [{"role": "user", "content": "1+1"}])
    engine = NativeEngine(policies)

    def ask(*seeds: int) -> list[list[int]]:
        return [g.action_ids for g in engine.generate([GenerationRequest("actor", prompt, s) for s in seeds], PARAMS)]

    torch.manual_seed(1)
    first = ask(5, 6, 5)
    torch.manual_seed(2)
    assert ask(5, 6, 5) == first
    assert first[0] == first[2] != first[1]


def test_row_seeds_are_stateless_and_distinct() -> None:
    seeds = {row_seed(r, i, e, t) for r in range(3) for i in (-1, 0, 1) for e in range(20) for t in range(5)}
    assert len(seeds) == 3 * 3 * 20 * 5
    assert row_seed(1, 2, 3, 4) == row_seed(1, 2, 3, 4) == 15374388949593934587


def test_uniforms_are_uniform_and_each_row_its_own() -> None:
    seeds = [row_seed(0, 0, i, 0) for i in range(500)]
    draws = uniforms(seeds, 40)
    n = draws.size
    gap = np.abs(np.sort(draws.ravel()) - (np.arange(n) + 0.5) / n).max()
    assert gap < 1.95 / n**0.5  # Kolmogorov-Smirnov at 0.1 %
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < 0.15
    np.testing.assert_array_equal(uniforms(seeds[3:4], 7)[0], draws[3, :7])


# ---------------------------------------------------------------------- stopping


def test_replies_stop_at_the_end_token_or_at_the_limit(policies: PolicySet) -> None:
    end = policies.renderer.tokenizer("actor").eos_token_id
    with torch.no_grad():
        head_of(policies.base("actor").model).weight[end] *= 3
    asked = requests(policies, 40)
    reasons = set()
    for reply in NativeEngine(policies).generate(asked, PARAMS):
        reasons.add(reply.stop_reason)
        if reply.stop_reason == StopReason.EOS:
            assert reply.action_ids[-1] == end and end not in reply.action_ids[:-1]
            assert "<|im_end|>" not in reply.text
        else:
            assert len(reply.action_ids) == PARAMS.max_new_tokens and end not in reply.action_ids
    assert reasons == {StopReason.EOS, StopReason.LENGTH}


def test_text_is_decoded_from_the_sampled_ids(policies: PolicySet) -> None:
    for reply in NativeEngine(policies).generate(requests(policies), PARAMS):
        assert reply.text == policies.renderer.tokenizer("actor").decode(reply.action_ids, skip_special_tokens=True)


def test_one_token_prompts_and_replies_work(policies: PolicySet) -> None:
    asked = [GenerationRequest("actor", [7], 1), GenerationRequest("actor", [7, 8, 9], 2)]
    for request, reply in zip(asked, NativeEngine(policies).generate(asked, SamplingParams(1)), strict=True):
        assert len(reply.action_ids) == 1
        np.testing.assert_allclose(reply.logprobs, rescore(policies, request, reply, 1.0).numpy(), rtol=0, atol=1e-5)
    assert NativeEngine(policies).generate([], PARAMS) == []


# ---------------------------------------------------------------------- weights


def test_an_update_reaches_the_sampler_and_spares_the_frozen(qwen: Path) -> None:
    policies = PolicySet.build(str(qwen), AGENTS, device="cpu", frozen=["reasoner"])
    engine, asked = NativeEngine(policies), requests(policies)
    greedy = dataclasses.replace(PARAMS, greedy=True)
    before = engine.generate(asked, greedy)
    optimizer = torch.optim.Adam(policies.parameters("actor"), lr=0.02)
    ids = torch.tensor([asked[1].prompt_ids + before[1].action_ids])
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, len(asked[1].prompt_ids) :] = True
    for _ in range(3):
        optimizer.zero_grad()
        policies.logprobs("actor", ids, mask)[0].sum().backward()
        optimizer.step()
    policies.version += 1
    engine.publish("actor", policies.version)
    after = engine.generate(asked, greedy)
    assert after[1].action_ids != before[1].action_ids
    for request, a, b in zip(asked, before, after, strict=True):
        assert (a.version, b.version) == (0, 1)
        if request.policy == "reasoner":
            assert a.action_ids == b.action_ids
            np.testing.assert_array_equal(a.logprobs, b.logprobs)
        else:
            assert a.action_ids != b.action_ids or np.abs(a.logprobs - b.logprobs).max() > 1e-3


# ---------------------------------------------------------------------- bad input


def test_an_empty_prompt_is_an_error(policies: PolicySet) -> None:
    with pytest.raises(EngineError, match="empty prompt"):
        NativeEngine(policies).generate([GenerationRequest("actor", [], 0)], PARAMS)


def test_a_prompt_beyond_the_context_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies = PolicySet.build(str(save_tiny(tmp_path / "short", context=32)), AGENTS, device="cpu")
    asked = [GenerationRequest("actor", [5] * n, n) for n in (20, 21)]
    fits, refused = NativeEngine(policies).generate(asked, PARAMS)
    assert fits.stop_reason in (StopReason.EOS, StopReason.LENGTH)
    assert refused.stop_reason == StopReason.REFUSED and refused.action_ids == []
    assert "context of 32" in refused.error and "max_chars" in refused.error
    assert "note: the prompt has 21 tokens" in capsys.readouterr().err


def test_settings_without_a_distribution_are_refused(policies: PolicySet) -> None:
    engine = NativeEngine(policies)
    with pytest.raises(ConfigError, match="greedy = true"):
        engine.generate(requests(policies), SamplingParams(temperature=0.0))
    with pytest.raises(ConfigError, match="max_new_tokens"):
        engine.generate(requests(policies), SamplingParams(max_new_tokens=0))
    with pytest.raises(ConfigError, match="Did you mean 'actor'"):
        engine.generate([GenerationRequest("acter", [5], 0)], PARAMS)


# ---------------------------------------------------------------------- scripts


def test_scripts_are_texts_choices_or_functions(policies: PolicySet) -> None:
    engine = ScriptedEngine(
        {"gold": "42", "noisy": ["a", "b"], "*": lambda request: request.messages[-1]["content"].upper()}
    )
    asked = [
        GenerationRequest("p", [], 0, agent="gold"),
        GenerationRequest("p", [], 3, agent="noisy"),
        GenerationRequest("p", [], 0, agent="echo", messages=[{"role": "user", "content": "hi"}]),
    ]
    replies = engine.generate(asked, PARAMS)
    assert [reply.text for reply in replies] == ["42", "b", "HI"]
    assert all(reply.action_ids == [] and reply.stop_reason == StopReason.EOS for reply in replies)
    tokenizer = policies.renderer.tokenizer("actor")
    spoken = ScriptedEngine({"gold": "42"}, tokenizer).generate(asked[:1], PARAMS)[0]
    assert tokenizer.decode(spoken.action_ids) == "42<|im_end|>" and len(spoken.logprobs) == 3


def test_a_script_that_raises_is_a_typed_failure_and_a_missing_one_an_error() -> None:
    def broken(request: GenerationRequest) -> str:
        raise ValueError("no idea")

    reply = ScriptedEngine({"a": broken}).generate([GenerationRequest("p", [], 0, agent="a")], PARAMS)[0]
    assert reply.stop_reason == StopReason.ERROR and reply.error == "ValueError: no idea"
    with pytest.raises(ConfigError, match="Did you mean 'actor_0'"):
        ScriptedEngine({"actor_0": "1"}).generate([GenerationRequest("p", [], 0, agent="actor_1")], PARAMS)


@pytest.mark.parametrize("n", [50, BLOCK * BLOCK, BLOCK * BLOCK + 1, 3 * BLOCK * BLOCK])
def test_a_draw_finds_its_place_among_long_rows_as_among_short_ones(n: int) -> None:
    torch.manual_seed(n)
    chances = torch.softmax(3 * torch.randn(200, n), -1) * (torch.rand(200, n) < 0.3)  # most have none
    draw = torch.tensor([0.0, *torch.rand(198).tolist(), 1 - 2**-53], dtype=torch.float64)
    cdf = chances.double().numpy().cumsum(-1)
    found = sample_inverse_cdf(chances, draw)
    assert (chances[torch.arange(200), found] > 0).all()
    for row, token, share in zip(cdf, found.tolist(), draw.tolist(), strict=True):
        below = row[token - 1] if token else 0.0
        assert below - 1e-6 <= share * row[-1] <= row[token] + 1e-6
