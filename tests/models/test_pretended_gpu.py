"""Everything that a run computes, on a pretended GPU: no tensor is on the wrong device, and the host seldom waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import runs
from helpers.pretend_gpu import Waits, counting, pretend_gpu
from helpers.sampling import AGENTS, disturb, requests
from helpers.tiny import save_tiny
from marft_algos import batching
from marft_algos.engines import NativeEngine
from marft_algos.models import weights
from marft_algos.models.kernels.fused import FusedModel
from marft_algos.models.policy import PolicySet
from marft_algos.runs.folder import RunFolder
from marft_algos.types import Generation, SamplingParams

pytestmark = pytest.mark.skipif(torch.backends.cuda.is_built(), reason="pretends what this build of torch has")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "qwen")


def sample(model: Path, device: str, tokens: int, endless: bool = False) -> tuple[list[Generation], Waits]:
    disturbed = PolicySet.build(str(model), AGENTS, device="cpu", dtype="fp32")
    policies = PolicySet.build(str(model), AGENTS, device=device, dtype="fp32")
    for i, policy in enumerate(policies.policies):
        disturb(disturbed, policy, seed=i)
        if endless:
            policies.base(policy).chat.end_ids = ()
    policies.load_state_dict(disturbed.state_dict())
    engine = NativeEngine(policies)
    with counting() as waits:
        return engine.generate(requests(policies), SamplingParams(tokens)), waits


@pytest.mark.parametrize("arch", ["qwen2", "gpt2"])  # the fused decoder, and transformers' pass
def test_the_pretended_gpu_samples_what_the_cpu_does(arch: str, tmp_path: Path) -> None:
    model = save_tiny(tmp_path / arch, arch)
    with pretend_gpu():
        sampled, _ = sample(model, "cuda", 20)
    expected, _ = sample(model, "cpu", 20)
    assert len({len(reply.action_ids) for reply in sampled}) > 1  # rows are dropped on the way
    for a, b in zip(sampled, expected, strict=True):
        assert a.action_ids == b.action_ids
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-5)


def test_decoding_waits_less_than_once_in_eight_tokens(qwen: Path) -> None:
    with pretend_gpu():
        _, waits = sample(qwen, "cuda", 40, endless=True)
    assert waits.by_line == {"engines/native.py:run tolist": 5, "engines/native.py:run to cpu": 1}  # 4 looks, 2 results


def test_a_tensor_on_the_cpu_is_found_in_decoding(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    angles = FusedModel.angles

    def on_the_cpu(self: FusedModel, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = angles(self, length)
        return cos.cpu(), sin.cpu()

    monkeypatch.setattr(FusedModel, "angles", on_the_cpu)
    with pretend_gpu(), pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        sample(qwen, "cuda", 4)


def test_a_batch_on_the_cpu_is_found_in_the_update(qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(rows: Any, estimates: Any, level: Any, device: Any, *rest: Any) -> batching.Batch:
        return batching.pack(rows, estimates, level, "cpu", *rest)

    monkeypatch.setattr("marft_algos.learner.learner.pack", forgetful)
    with pretend_gpu(), pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        runs.train(runs.settings(qwen, tmp_path, device="cuda", dtype="fp32", iterations=1))


NEAR = ("loss", "kl", "entropy", "grad_norm", "ess", "value_loss")


def near(run: RunFolder, other: RunFolder) -> None:
    lines = list(zip(runs.timeless(run), runs.timeless(other), strict=True))
    assert lines
    for a, b in lines:
        assert a.keys() == b.keys()
        for key in a:
            if key.endswith(NEAR):
                assert a[key] == pytest.approx(b[key], rel=1e-3, abs=1e-5), key


@pytest.mark.parametrize("small", [True, False])  # the fused pass of small models, and transformers' own
def test_a_run_on_the_pretended_gpu_is_the_cpus(
    small: bool, qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not small:
        monkeypatch.setattr(weights, "SMALL_MODEL", 0)
    changes: dict[str, Any] = {"dtype": "fp32", "iterations": 2, "algorithm": {"kl_coef": 0.1, "entropy_coef": 0.01}}
    with pretend_gpu(), counting() as waits:
        _, run = runs.train(runs.settings(qwen, tmp_path / "gpu", device="cuda", **changes))
    # Two policies, two iterations of two epochs of two minibatches, whatever the pieces.
    assert waits.by_line["learner/numbers.py:read tolist"] == 16
    assert not any(line.startswith("algorithms/base.py:clipped") for line in waits.by_line)
    assert waits.by_line["models/finite.py:_not_finite tolist"] <= 16
    _, expected = runs.train(runs.settings(qwen, tmp_path / "cpu", device="cpu", **changes))
    near(run, expected)
