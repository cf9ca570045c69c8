"""Our pass over whole texts against transformers': states, values and gradients of every family; what it leaves out."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from helpers.marks import rest_in_ci
from helpers.sampling import CONFIGS, build, save
from helpers.tiny import save_tiny
from marft_algos.engines import NativeEngine
from marft_algos.engines.base import GenerationRequest
from marft_algos.memory import passes, share, shared_passes
from marft_algos.models import embedded_path
from marft_algos.models.forward.families import Unsupported
from marft_algos.models.forward.text import TextPass
from marft_algos.models.loading import ModelSettings
from marft_algos.models.policy import LoraSettings, PolicySet
from marft_algos.types import SamplingParams
from marft_envs.errors import ConfigError

PREFIX = list(range(5, 17))
PARAMS = SamplingParams(max_new_tokens=1)


def texts(shared: bool, chains: bool = False) -> tuple[Tensor, Tensor]:
    """Three padded rows that start alike or not, and what was sampled in them: a piece, one token, all but the first.

    With chains eight more: two groups of two that start alike, and four of which each begins with the one before.
    """
    torch.manual_seed(0)
    if chains:
        (ids, sampled), (more, wanted) = texts(shared), texts(True)
        groups = torch.cat([ids[:2].flip(1), more[:1], ids[:2].flip(1)])
        groups[[0, 1], 20:] += 1
        chain = more[1:2].roll(1, 1).expand(4, -1).clone()
        spoken = torch.zeros(9, 24, dtype=torch.bool)
        spoken[:2, 20:], spoken[2], spoken[3:5, 19:22] = True, wanted[0], True
        for row, (first, end) in enumerate([(3, 6), (6, 7), (11, 16), (20, 24)], 5):
            spoken[row, first:end] = True
            chain[row - 5, end:] = row  # pads of any id
        order = torch.randperm(12)
        return torch.cat([ids, groups, chain])[order], torch.cat([sampled, spoken])[order]
    ids = torch.randint(5, 40, (3, 24))
    if shared:
        ids[:, : len(PREFIX)] = torch.tensor(PREFIX)
    sampled = torch.zeros_like(ids, dtype=torch.bool)
    sampled[0, 15:22], sampled[1, 23], sampled[2, 14 if shared else 1 : 20] = True, True, True
    return ids, sampled


PASSES = {"kept": {}, "checkpointed": {"settings": ModelSettings(gradient_checkpointing=True)}}
"""What the backward pass needs: kept, or computed again from the blocks' inputs."""


def both(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: object) -> tuple[PolicySet, PolicySet]:
    """The same policies twice: with transformers' pass, and with ours."""
    with monkeypatch.context() as patch:
        patch.setenv("MARFT_KERNELS", "decode,merge")
        plain = build(folder, **settings)
    return plain, build(folder, **settings)


def test_on_a_cpu_attention_is_float32_where_it_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16 torch's gradient of it takes up to five times as long; prompts are read in bf16, as they are decoded."""
    seen, plain = list[tuple[torch.dtype, bool]](), torch.nn.functional.scaled_dot_product_attention

    def watched(query: Tensor, *others: Tensor, **options: object) -> Tensor:
        seen.append((query.dtype, query.requires_grad))
        return plain(query, *others, **options)

    policies = build(save_tiny(tmp_path / "qwen"), dtype="bf16")
    engine, request = NativeEngine(policies), GenerationRequest("actor", PREFIX, 0)
    (ids, sampled), one = texts(shared=True), torch.ones(3)
    policies.logprobs("actor", ids, sampled, one), engine.generate([request], PARAMS)  # passes are made, and judged
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    scored, _ = policies.logprobs("actor", ids, sampled, one)
    assert set(seen) == {(torch.float32, True)}
    scored.sum().backward()
    seen.clear()
    engine.generate([request], PARAMS)
    assert {dtype for dtype, _ in seen} == {torch.bfloat16}


@pytest.mark.parametrize(("family", "changes", "reason"), [
    ("mistral", {"sliding_window": 4}, "attends to a sliding window"), ("llama", {"hidden_act": "gelu"}, ""),
    ("llama", {}, ""),
])  # fmt: skip
def test_one_line_says_why_a_model_is_scored_by_transformers_pass(
    family: str, changes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    folder = save(tmp_path / family, CONFIGS[family], **changes)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        policies = build(folder)
        for _ in range(2):
            policies.logprobs("actor", *texts(True))
            policies.logprobs("reasoner", *texts(False))
            policies.reference_logprobs("actor", *texts(True))
    instead = "it is scored and trained by transformers' own forward pass, which is slower."
    assert [str(w.message) for w in said] == ([f"'{folder}' {reason}: {instead}"] if reason else [])


@pytest.mark.parametrize("ours", PASSES)
@pytest.mark.parametrize(
    ("shared", "chains"), rest_in_ci([(True, False), (False, True), (False, False), (True, True)], 2)
)
@pytest.mark.parametrize("family", CONFIGS)
def test_scores_and_gradients_are_transformers(
    family: str, shared: bool, chains: bool, ours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marft_algos.memory.GROUP_TOKENS", 0)  # several groups
    if chains:  # as texts of usual length attend
        monkeypatch.setattr("marft_algos.models.forward.text.LONG", 0)
    compare(monkeypatch, save(tmp_path / family, CONFIGS[family]), shared, chains, **PASSES[ours])


@pytest.mark.parametrize("act", ["gelu", "gelu_pytorch_tanh", "relu", "linear"])
def test_so_they_are_with_other_activations(act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(monkeypatch, save(tmp_path / act, CONFIGS["llama"], hidden_act=act), shared=True)


def compare(
    monkeypatch: pytest.MonkeyPatch, folder: Path, shared: bool, chains: bool = False, **settings: object
) -> None:
    ids, sampled = texts(shared, chains)
    weights = torch.randn(2, *ids[:, 1:].shape)
    found = []
    for policies in both(monkeypatch, folder, **settings):
        logprobs, entropies = policies.logprobs("actor", ids, sampled, 0.8, entropy_grad=True)
        (weights[0] * logprobs + weights[1] * entropies).sum().backward()
        assert all(p.grad is None for p in policies.parameters("reasoner"))
        grads = [p.grad for p in policies.parameters("actor") if p.grad is not None]
        assert len(grads) == len(policies.parameters("actor"))
        found.append((logprobs.detach(), entropies.detach(), policies.reference_logprobs("actor", ids, sampled), grads))
    for expected, value in zip(found[0][:3], found[1][:3], strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-5)
    for expected, value in zip(found[0][3], found[1][3], strict=True):
        assert (value - expected).norm() <= 1e-4 * expected.norm()


@pytest.mark.parametrize("family", CONFIGS)
def test_features_are_the_base_models_states(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[*PREFIX, 7, 9], [*PREFIX, 8], PREFIX, [6], [*PREFIX, *range(20, 39)]]
    spans = [range(12, 14), range(12, 13), range(3, 12), range(1), range(30, 31)]
    monkeypatch.setattr("marft_algos.memory.PASS_TOKENS", 4)  # several passes
    plain, ours = both(monkeypatch, save(tmp_path / family, CONFIGS[family]))
    expected, found = plain.features("actor", rows, spans), ours.features("actor", rows, spans)
    model = plain.base("actor").model
    for row, span, one, other in zip(rows, spans, expected, found, strict=True):
        alone = model.base_model(input_ids=torch.tensor([row])).last_hidden_state[0, span.start : span.stop]
        torch.testing.assert_close(one, alone, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(other, alone, rtol=1e-5, atol=1e-5)


def test_log_probs_round_like_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a pass in double precision, on the embedded model, whose logits are large: see docs/engines.md."""
    plain, ours, exact = *both(monkeypatch, embedded_path("embedded")), build(embedded_path("embedded"))
    exact.base("actor").model.double()
    for tensor in exact.parameters("actor"):
        tensor.data = tensor.data.double()
    asked = [
        GenerationRequest("actor", ours.renderer.render("actor", [{"role": "user", "content": f"7 + {i} * 3"}]), seed=i)
        for i in range(16)
    ]
    wrong: dict[str, list[Tensor]] = {"engine": [], "ours": [], "transformers": []}
    for request, reply in zip(asked, NativeEngine(ours).generate(asked, SamplingParams(40, 0.7)), strict=True):
        first, actions = len(request.prompt_ids) - 1, torch.tensor(reply.action_ids)
        ids = torch.tensor([[*request.prompt_ids, *reply.action_ids]])
        sampled = torch.arange(ids.shape[1])[None] > first
        with torch.no_grad(), exact.running("actor") as (trunk, head):
            logits = head(trunk(input_ids=ids).last_hidden_state)[0, first:-1] / 0.7
        assert logits.dtype == torch.float64
        truth = logits.log_softmax(-1).gather(1, actions[:, None])[:, 0]
        wrong["engine"].append(torch.from_numpy(reply.logprobs) - truth)
        wrong["transformers"].append(plain.logprobs("actor", ids, sampled, 0.7)[0][0, first:] - truth)
        wrong["ours"].append(ours.logprobs("actor", ids, sampled, 0.7)[0][0, first:] - truth)
    rms = {name: torch.cat(gaps).square().mean().sqrt().item() for name, gaps in wrong.items()}
    print({name: (f"{rms[name]:.1e}", f"{torch.cat(gaps).abs().max().item():.1e}") for name, gaps in wrong.items()})
    assert 1e-7 < rms["transformers"] < 1e-5  # the judge itself: it rounds, and computes the same
    assert rms["engine"] < 2 * rms["transformers"] and rms["ours"] < 2 * rms["transformers"], rms


def test_adapters_on_some_layers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, sampled = texts(shared=True)
    lora = LoraSettings(targets=("v_proj", "down_proj"))
    plain, ours = both(monkeypatch, save_tiny(tmp_path / "qwen"), lora=lora)
    values = []
    for policies in (plain, ours):
        values.append(policies.logprobs("actor", ids, sampled)[0])
        values[-1].sum().backward()
    torch.testing.assert_close(*values, rtol=0, atol=1e-5)
    for expected, value in zip(plain.parameters("actor"), ours.parameters("actor"), strict=True):
        assert expected.grad is not None and value.grad is not None
        assert (value.grad - expected.grad).norm() <= 1e-4 * expected.grad.norm()


def test_adapters_on_embeddings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="adapter on the embeddings"):
        build(save_tiny(tmp_path / "qwen"), lora=LoraSettings(targets=("embed_tokens", "q_proj")))


def test_what_it_does_not_compute_or_computes_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="GPT2Model"):
        TextPass(AutoModelForCausalLM.from_pretrained(save_tiny(tmp_path / "gpt2", "gpt2")), torch.float32)
    model = AutoModelForCausalLM.from_pretrained(save_tiny(tmp_path / "qwen"))
    model.base_model.layers[1].mlp.register_forward_hook(lambda module, given, output: 1.01 * output)
    with pytest.raises(Unsupported, match="differs from its family"):
        TextPass(model, torch.float32)


def test_nothing_is_kept_of_the_last_layer_where_nothing_was_sampled(tmp_path: Path) -> None:
    """Its feed-forward is 48 wide: with one token sampled behind 23, the first of two layers holds 23 rows of gate and
    up, and the other one."""
    policies = build(save(tmp_path / "qwen2", CONFIGS["qwen2"]))
    ids = torch.randint(5, 40, (1, 24))
    sampled = torch.zeros_like(ids, dtype=torch.bool)
    sampled[0, 23] = True
    held: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(tuple(t.shape)) or t, lambda t: t):
        policies.logprobs("actor", ids, sampled)
    assert [shape for shape in held if len(shape) == 3 and shape[-1] == 48] == [(2, 23, 48), (2, 1, 48)]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_shared_is_a_beginning_and_nothing_is_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random trees of texts: what is computed, group by group, gives every text back; alone, each is computed whole."""
    monkeypatch.setattr("marft_algos.memory.GROUP_TOKENS", 0)
    rng, trees = np.random.default_rng(seed), [list[int]()]
    for _ in range(24):
        trees.append([*trees[rng.integers(len(trees))], *rng.integers(3, size=rng.integers(1, 30)).tolist()])
    rows = [trees[i] for i in rng.integers(1, 25, size=16)]
    free = [int(rng.integers(len(row) + 1)) for row in rows]
    found = share(rows, free)
    assert sorted(i for group, _ in found.groups for i in group) == sorted(set(found.within))
    for i, host in enumerate(found.within):
        assert rows[host][: len(rows[i])] == rows[i] and found.within[host] == host
    for group, tokens in found.groups:
        assert len({tuple(rows[i][:tokens]) for i in group}) == 1
        assert all(tokens <= free[i] for i, host in enumerate(found.within) if host in group) or not tokens
    for i, j in itertools.permutations(set(found.within), 2):
        assert rows[i][: len(rows[j])] != rows[j]  # nothing that is computed begins with another
    for budget in (1, 64, 10**6):
        pieces = shared_passes(rows, found, budget)
        assert sorted(i for piece in pieces for i in piece) == list(range(16))
        for piece in pieces:
            own = share([rows[i] for i in piece], [free[i] for i in piece])
            computed = sum(n + sum(len(rows[piece[i]]) - n for i in group) for group, n in own.groups)
            assert computed <= budget or len(set(own.within)) == 1


def test_groups_are_those_of_the_starts() -> None:
    """Four starts of four episodes, and two agents' chains of eight rounds: each context once."""
    rng = np.random.default_rng(0)
    prompts, tails = rng.integers(9, size=(4, 200)).tolist(), rng.integers(9, size=(16, 20)).tolist()
    rows = [[*prompts[i % 4], *tail] for i, tail in enumerate(tails)]
    found = share(rows, [199] * 16)
    assert found.within == list(range(16))
    assert found.groups == [([i, i + 4, i + 8, i + 12], 199) for i in range(4)]
    talks = rng.integers(9, size=(2, 400)).tolist()
    rows = [talks[agent][: 50 * (round_ + 1)] for round_ in range(8) for agent in range(2)]
    found = share(rows, [len(row) - 10 for row in rows])
    assert found.within == [14, 15] * 8 and found.groups == [([14, 15], 0)]


def test_passes_hold_similar_lengths_within_the_budget_and_few_pads() -> None:
    lengths = [100, 20, 900, 910, 905, 21, 300, 90] * 4
    found = passes(lengths, 4000)
    assert sorted(i for rows in found for i in rows) == list(range(32))
    for rows in found:
        own = [lengths[i] for i in rows]
        padded = len(rows) * max(own)
        assert padded <= 4000 and padded - sum(own) <= max(256, padded / 8)
    assert passes([5, 4000, 3], 10) == [[1], [0, 2]]
    assert passes([], 10) == []
