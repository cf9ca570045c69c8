"""Everything that a run computes, on a GPU: no tensor is on the wrong device, and the host seldom waits.

Where torch has a GPU, it is that one; where torch is built without, a pretended one, which also counts what the host waits
for, and can be broken on purpose.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from helpers import runs
from helpers.marks import rest_in_ci
from helpers.pretend_gpu import Waits, counting, pretend_gpu
from helpers.sampling import AGENTS, disturb, requests
from helpers.tiny import save_tiny
from marft_algos import batching
from marft_algos.engines import EngineError, NativeEngine, native, sampler
from marft_algos.engines.sampler import Sampler
from marft_algos.models import attention
from marft_algos.models.forward import transformers_pass
from marft_algos.models.forward.text import TextPass
from marft_algos.models.policy import PolicySet
from marft_algos.runs.folder import RunFolder
from marft_algos.types import Generation, SamplingParams

REAL = torch.cuda.is_available()
pytestmark = pytest.mark.skipif(
    torch.backends.cuda.is_built() and not REAL,
    reason="this build of torch has CUDA, so none is pretended; no GPU here",
)
pretended = pytest.mark.skipif(REAL, reason="what only the pretended GPU shows; there is a real one here")
real = pytest.mark.skipif(not REAL, reason="no GPU here")
gpu = nullcontext if REAL else pretend_gpu
FEW: dict[str, Any] = {"episodes_per_iteration": 6, "eval_episodes": 3, "record_episodes": 1}


def sample(
    model: Path, device: str, tokens: int, endless: bool = False, graph: bool = False
) -> tuple[list[Generation], Waits]:
    disturbed = PolicySet.build(str(model), AGENTS, device="cpu", dtype="fp32")
    policies = PolicySet.build(str(model), AGENTS, device=device, dtype="fp32")
    for i, policy in enumerate(policies.policies):
        disturb(disturbed, policy, seed=i)
        if endless:
            policies.base(policy).chat.end_ids = ()
    policies.load_state_dict(disturbed.state_dict())
    engine = NativeEngine(policies, decode_graph=graph)
    with counting() as waits:
        return engine.generate(requests(policies), SamplingParams(tokens)), waits


@pytest.mark.parametrize("arch", ["qwen2", "gpt2"])  # the fused decoder, and transformers' pass
def test_a_gpu_samples_what_the_cpu_does(arch: str, tmp_path: Path) -> None:
    model = save_tiny(tmp_path / arch, arch)
    with gpu():
        sampled, _ = sample(model, "cuda", 20)
    expected, _ = sample(model, "cpu", 20)
    assert len({len(reply.action_ids) for reply in sampled}) > 1  # rows are dropped on the way
    equal(sampled, expected)


@pretended
@pytest.mark.parametrize("graph", [False, True])
def test_decoding_waits_less_than_once_in_eight_tokens(graph: bool, qwen: Path) -> None:
    with gpu():
        _, waits = sample(qwen, "cuda", 40, endless=True, graph=graph)
    assert waits.by_line == {
        "engines/sampler.py:run tolist": 4,
        "engines/sampler.py:replies tolist": 1,
        "engines/sampler.py:replies to cpu": 1,
    }


@real
@pytest.mark.parametrize("graph", [False, True])
def test_a_gpu_waits_once_more_every_eight_tokens(graph: bool, qwen: Path) -> None:
    """As torch itself counts; what a batch waits for at its beginning and end does not depend on its length."""
    waits = dict[int, int]()
    for tokens in (8, 40):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                sample(qwen, "cuda", tokens, endless=True, graph=graph)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits[tokens] = sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)
    assert waits[8] > 0
    assert waits[40] - waits[8] == 4, waits


@pytest.mark.parametrize("tokens", rest_in_ci([1, 8, 45]))
def test_replays_sample_what_the_cpu_does(tokens: int, qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "CAPTURED_COMPACT_BELOW", 0.9)
    with gpu():
        sampled, _ = sample(qwen, "cuda", tokens, graph=True)
    expected, _ = sample(qwen, "cpu", tokens)
    equal(sampled, expected)


def equal(sampled: list[Generation], expected: list[Generation]) -> None:
    for a, b in zip(sampled, expected, strict=True):
        assert a.action_ids == b.action_ids and a.stop_reason == b.stop_reason
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-5)


@pretended
def test_rows_that_end_are_dropped_and_other_shapes_captured(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "CAPTURED_COMPACT_BELOW", 0.9)
    graphs = list[Any]()
    capture = sampler.capture

    def listed(step: Any) -> Any:
        replay = capture(step)
        graphs.append(replay.__self__)
        return replay

    monkeypatch.setattr(sampler, "capture", listed)
    with pretend_gpu():
        sampled, waits = sample(qwen, "cuda", 45, graph=True)
    assert len(graphs) > 1
    assert len({len(reply.action_ids) for reply in sampled}) > 2
    looks = waits.by_line["engines/sampler.py:run tolist"]
    assert 1 + sum(graph.replays for graph in graphs) + len(graphs) in range(8 * looks, 8 * looks + 8)


class Captured:
    """An engine on the GPU, its requests, and how often it has captured a step."""

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch, full: bool = False, **settings: Any) -> None:
        self.policies = PolicySet.build(str(model), AGENTS, device="cuda", dtype="fp32", full_finetune=full)
        for i, policy in enumerate(self.policies.policies):
            self.policies.base(policy).chat.end_ids = ()
            disturb(self.policies, policy, seed=i)
        self.engine, self.count = NativeEngine(self.policies, **settings), 0
        self.requests = requests(self.policies)
        capture = sampler.capture

        def counted(step: Any) -> Any:
            self.count += 1
            return capture(step)

        monkeypatch.setattr(sampler, "capture", counted)

    def sample(self, n: int = 12, tokens: int = 10) -> list[Generation]:
        return self.engine.generate(self.requests[:n], SamplingParams(tokens))

    def expected(self, n: int = 12, tokens: int = 10) -> list[Generation]:
        """As an engine without graphs samples."""
        return NativeEngine(self.policies, decode_graph=False).generate(self.requests[:n], SamplingParams(tokens))


def test_a_second_batch_of_a_shape_captures_nothing(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even under other weights, or of a few rows fewer, which are rounded up; nor do replies differ."""
    with gpu():
        bench = Captured(qwen, monkeypatch)
        equal(bench.sample(tokens=2), bench.expected(tokens=2))
        assert bench.count == 0, "the last step of a batch is not worth it"
        equal(bench.sample(), first := bench.expected())
        assert bench.count == 1
        for policy in bench.policies.policies:
            disturb(bench.policies, policy, seed=7, size=0.3)
        equal(bench.sample(), second := bench.expected())
        assert [a.action_ids for a in first] != [a.action_ids for a in second]
        equal(bench.sample(11), bench.expected(11))
        assert bench.count == 1
        equal(bench.sample(5), bench.expected(5))
        equal(bench.sample(6), bench.expected(6))
        assert bench.count == 2
        equal(bench.sample(12, tokens=11), bench.expected(12, tokens=11))  # other sampling
        assert bench.count == 3
        equal(bench.sample(), bench.expected())


def test_few_capacities_are_captured_for_rows_of_many_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixteenth of the next power of two apart, at least ``ALIGNED``, and within the context."""
    monkeypatch.setattr(native, "Sampler", lambda *_: None)
    asked = list[int]()
    forward = SimpleNamespace(cache=lambda _, rows, tokens, **__: asked.append(tokens))
    chat = SimpleNamespace(context=9000, end_ids=())
    policy = SimpleNamespace(base=SimpleNamespace(chat=chat), model=None, source=torch.nn.Linear(1, 1), tensors={})
    for tokens in (1, 3000, 3073, 5000, 8999):
        native.CapturedSteps().batch(forward, [policy], 2, tokens, SamplingParams(4))  # type: ignore[arg-type, list-item]
    assert asked == [native.ALIGNED, 3072, 3328, 5120, 9000]


def test_graphs_of_whole_models_that_are_trained_are_not_kept(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpu():
        bench = Captured(qwen, monkeypatch, full=True)
        for batches in (1, 2):
            equal(bench.sample(), bench.expected())
            assert bench.count == 2 * batches, "one of each policy"


def test_graphs_are_forgotten_with_the_memory_that_they_read(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpu():
        bench = Captured(qwen, monkeypatch)
        bench.sample(5)
        bench.sample(12)  # needs more memory for keys and values
        assert bench.count == 2
        equal(bench.sample(5), bench.expected(5))
        assert bench.count == 3
        bench.engine.sleep()
        equal(bench.sample(5), bench.expected(5))
        assert bench.count == 4
        weight = bench.policies.base("actor").model.get_input_embeddings().weight
        weight.data = weight.data + 0.1
        equal(bench.sample(5), bench.expected(5))
        assert bench.count == 5


def test_the_shapes_used_last_are_kept(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "MOST_CAPTURED", 2)
    with gpu():
        bench = Captured(qwen, monkeypatch)
        for n in (12, 5, 12, 3, 12):
            bench.sample(n)
        assert bench.count == 3
        bench.sample(5)
        assert bench.count == 4


def test_a_batch_is_written_over_and_what_is_kept_of_it_is_not(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpu():
        bench = Captured(qwen, monkeypatch)
        first = [replace(r, chain=i) for i, r in enumerate(bench.requests)]
        replies = bench.engine.generate(first, SamplingParams(10))
        later = [
            replace(r, prompt_ids=[*r.prompt_ids, *reply.action_ids, 5, 6])
            for r, reply in zip(first, replies, strict=True)
        ]
        expected = NativeEngine(bench.policies, cache_gb=0.0, decode_graph=False).generate(later, SamplingParams(10))
        for rows in (slice(0, 6), slice(6, 12)):
            found = bench.engine.generate(later[rows], SamplingParams(10))
            assert all(reply.kept for reply in found)
            equal(found, expected[rows])


def test_a_captured_step_is_the_step_uncaptured(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpu():
        sampled, _ = sample(qwen, "cuda", 20, graph=True)
        with monkeypatch.context() as patch:
            patch.setattr(sampler, "capture", lambda step: (step(), step)[1])
            uncaptured, _ = sample(qwen, "cuda", 20, graph=True)
    equal(sampled, uncaptured)


def test_a_step_that_the_host_looks_at_cannot_be_captured(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def curious(self: Sampler, hidden: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        token, logprob = pick(self, hidden, uniform)
        return token if bool((token >= 0).all()) else token - 1, logprob

    pick = Sampler.sample
    monkeypatch.setattr(Sampler, "sample", curious)
    with (
        gpu(),
        pytest.raises(EngineError, match=r"could not be captured in a CUDA graph: .*captur.* type --no-decode-graph"),
    ):
        sample(qwen, "cuda", 4, graph=True)


@pytest.mark.ci
@pretended
def test_memory_that_runs_out_in_a_capture_halves_the_batch(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_off(*_: Any, **__: Any) -> Any:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:  # as the end of a capture does
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    with gpu(), pytest.warns(UserWarning, match="going on with 6"):
        capture = torch.cuda.graph
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "graph", lambda *a, **k: (patch.undo(), broken_off())[1])
            sampled, _ = sample(qwen, "cuda", 12, graph=True)
        assert torch.cuda.graph is capture
    equal(sampled, sample(qwen, "cpu", 12)[0])


def test_a_graph_is_for_a_gpu_and_the_fused_decoder(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere the same setting decodes as without one."""
    gpt2 = save_tiny(tmp_path / "gpt2", "gpt2")
    expected = [sample(model, "cpu", 12, graph=False)[0] for model in (qwen, gpt2)]

    def never(*_: object) -> None:
        raise AssertionError("captured")

    monkeypatch.setattr(sampler, "capture", never)
    equal(sample(qwen, "cpu", 12, graph=True)[0], expected[0])
    with gpu():
        equal(sample(gpt2, "cuda", 12, graph=True)[0], expected[1])
        with pytest.raises(AssertionError, match="captured"):
            sample(qwen, "cuda", 12, graph=True)


@pretended
def test_a_tensor_on_the_cpu_is_found_in_decoding(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    angles = TextPass.angles

    def on_the_cpu(self: TextPass, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = angles(self, length)
        return cos.cpu(), sin.cpu()

    monkeypatch.setattr(TextPass, "angles", on_the_cpu)
    with gpu(), pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        sample(qwen, "cuda", 4)


@pretended
def test_a_batch_on_the_cpu_is_found_in_the_update(qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(rows: Any, estimates: Any, level: Any, device: Any, *rest: Any) -> batching.Batch:
        return batching.pack(rows, estimates, level, "cpu", *rest)

    monkeypatch.setattr("marft_algos.learner.learner.pack", forgetful)
    with gpu(), pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        runs.train(runs.settings(qwen, tmp_path, device="cuda", dtype="fp32", iterations=1))


@pytest.mark.ci
@pytest.mark.parametrize("again", [False, True])
def test_a_run_in_bf16_with_all_that_a_gpu_has(again: bool, qwen: Path, tmp_path: Path) -> None:
    """As the presets for bf16, with a captured step and the head in fp32; activations kept, or computed again."""
    learns = {"old_logprobs": "learner", "ratio_tolerance": 0.1, "tis_cap": 2.0, "adam_eps": 1e-8}
    settings: dict[str, Any] = {"dtype": "bf16", "head_dtype": "fp32", "decode_graph": True, "iterations": 2}
    settings |= FEW | {"gradient_checkpointing": again}
    with gpu():
        _, run = runs.train(runs.settings(qwen, tmp_path, device="cuda", algorithm=learns, **settings))
    lines = [line for line in run.metrics() if "policy/planner_0/sampler_gap" in line]
    assert len(lines) == 2
    for line in lines:
        assert 1e-4 < line["policy/planner_0/sampler_gap"] < 0.1  # bf16 rounds
        assert line["policy/planner_0/tis_weight"] == pytest.approx(1.0, abs=0.05)
        assert line["policy/planner_0/grad_norm"] > 0


def test_a_gpu_scores_and_trains_by_our_own_pass(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters beside the weights."""
    ids = torch.arange(3, 27).reshape(2, 12)
    ids[:, :9] = ids[0, :9]
    mask = torch.arange(12).expand(2, 12) >= 10
    found = list[tuple[torch.Tensor, torch.Tensor]]()
    monkeypatch.setattr(transformers_pass, "hidden_states", lambda *_, **__: pytest.fail("transformers' pass ran"))
    with gpu():
        for device in ("cuda", "cpu"):
            policies = PolicySet.build(str(qwen), AGENTS, device=device, dtype="fp32")
            policy = policies.policies[0]
            disturb(policies, policy, seed=0)
            where = policies.device
            logprobs, _ = policies.logprobs(policy, ids.to(where), mask.to(where), 0.7)
            logprobs.sum().backward()
            grads = torch.cat([p.grad.flatten() for p in policies.parameters(policy) if p.grad is not None])
            found.append((logprobs.detach().cpu(), grads.cpu()))
    for ours, expected in zip(*found, strict=True):
        assert expected.abs().max() > 0.01
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)


NEAR = ("loss", "kl", "entropy", "grad_norm", "ess", "value_loss")


def near(run: RunFolder, other: RunFolder) -> None:
    lines = list(zip(runs.timeless(run), runs.timeless(other), strict=True))
    assert lines
    for a, b in lines:
        assert a.keys() == b.keys()
        for key in a:
            if key.endswith(NEAR):
                assert a[key] == pytest.approx(b[key], rel=1e-3, abs=1e-5), key


@pytest.mark.ci
@pytest.mark.parametrize("passes", ["forward,decode,merge,attention,prefix", "none"])  # ours, and transformers' own
def test_a_run_on_a_gpu_is_the_cpus(passes: str, qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARFT_KERNELS", passes)
    learns = {"kl_coef": 0.1, "entropy_coef": 0.01}
    changes: dict[str, Any] = FEW | {"dtype": "fp32", "iterations": 2, "algorithm": learns}
    with gpu(), counting() as waits:
        _, run = runs.train(runs.settings(qwen, tmp_path / "gpu", device="cuda", **changes))
    if not REAL:  # two policies, two iterations of two epochs of two minibatches, whatever the pieces
        assert waits.by_line["learner/steps.py:read tolist"] == 16
        assert not any(line.startswith("algorithms/base.py:clipped") for line in waits.by_line)
        assert waits.by_line["models/finite_weights.py:_not_finite tolist"] <= 16
    _, expected = runs.train(runs.settings(qwen, tmp_path / "cpu", device="cpu", **changes))
    near(run, expected)


def written_out(q: torch.Tensor, kv: torch.Tensor, position: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """What the kernel for many rows computes."""
    columns, (keys, values) = torch.arange(kv.shape[2], device=kv.device), kv.chunk(2, 1)
    seen = (columns > column - 1 - position) & (columns <= column)
    group = q.shape[1] // keys.shape[1]
    score = q[:, :, None] @ keys.repeat_interleave(group, 1).mT / q.shape[-1] ** 0.5
    weights = score.masked_fill(~seen[:, None, None], -torch.inf).softmax(-1)
    return (weights @ values.repeat_interleave(group, 1))[:, :, 0]


@pytest.mark.ci
@pretended
def test_many_rows_attend_by_a_kernel_of_their_own_to_what_they_hold(
    qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[int]()

    def counted(*args: torch.Tensor) -> torch.Tensor:
        calls.append(len(args[0]))
        return written_out(*args)

    monkeypatch.setattr(attention, "rows_fit", lambda *_: True)
    monkeypatch.setattr(attention, "attend_rows", counted)
    monkeypatch.setattr(attention, "PROGRAMS", 24)  # twelve rows of two heads of keys
    monkeypatch.setattr(sampler, "CAPTURED_COMPACT_BELOW", 0.9)
    with gpu():
        sampled, _ = sample(qwen, "cuda", 45, graph=True)
    equal(sampled, sample(qwen, "cpu", 45)[0])
    assert {12, 8} <= set(calls)  # also once few are left of many
    calls.clear()
    with gpu():
        Captured(qwen, monkeypatch, max_batch=11).sample(11)
    assert calls.count(11) == 0


@pretended
def test_a_kernel_that_cannot_be_compiled_is_told_of_and_not_used(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: torch.Tensor) -> torch.Tensor:
        raise OSError("no C compiler")

    monkeypatch.setattr(attention, "rows_fit", lambda *_: True)
    monkeypatch.setattr(attention, "attend_rows", broken)
    monkeypatch.setattr(attention, "PROGRAMS", 1)
    with gpu(), pytest.warns(UserWarning, match=r"many rows attend \(no C compiler\): .* MARFT_KERNELS=forward"):
        sampled, _ = sample(qwen, "cuda", 8, graph=True)
    equal(sampled, sample(qwen, "cpu", 8)[0])
