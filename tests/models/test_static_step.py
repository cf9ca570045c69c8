"""A step of decoding with tensors of fixed shape: what the engine captures compiles whole, and samples the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.marks import rest_in_ci
from helpers.sampling import CONFIGS, build, requests, save
from marft_algos.engines.base import uniforms
from marft_algos.engines.sampler import Sampler, TokenStep
from marft_algos.models.forward.decode import FusedCache
from marft_algos.models.policy import PolicySet
from marft_algos.types import SamplingParams

TOKENS = 10


class Start:
    """A batch of ragged prompts, behind its first pass."""

    def __init__(self, policies: PolicySet, n: int, fixed: bool = False) -> None:
        names = policies.policies[:n]
        prompts = [[r.prompt_ids for r in requests(policies, 8) if r.policy == name] for name in names]
        rows = sum(map(len, prompts))
        assert len({len(row) for row in prompts[0]}) > 1  # there are pads
        capacity = max(len(row) for part in prompts for row in part) + TOKENS
        cache = policies.forward_pass(names[0]).cache(
            [policies.weights(name) for name in names], rows, capacity, fixed=fixed
        )
        assert isinstance(cache, FusedCache)
        self.cache, self.hidden = cache, cache.prefill(prompts)
        base = policies.base(names[0])
        self.sampler = Sampler(base.model, SamplingParams(TOKENS, 0.7), base.chat)
        self.uniforms = torch.from_numpy(uniforms(list(range(rows)), TOKENS))

    def step(self) -> TokenStep:
        return TokenStep(self.sampler, self.cache, self.hidden, self.uniforms)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("family", rest_in_ci(CONFIGS))
@torch.no_grad()
def test_what_the_engine_captures_compiles_whole_and_samples_the_same(family: str, n: int, tmp_path: Path) -> None:
    policies = build(save(tmp_path / family, CONFIGS[family]))
    start = Start(policies, n)
    expected = start.sampler.run(start.cache, start.hidden, start.uniforms)
    step = Start(policies, n, fixed=True).step()
    torch.compiler.reset()
    compiled = torch.compile(lambda: step(), fullgraph=True, backend="eager")
    for _ in range(TOKENS - 1):  # the first token is sampled already
        compiled()
    ids, logprobs = start.sampler.replies(step.ids, step.logprobs)
    assert ids == expected[0]
    for a, b in zip(logprobs, expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
