"""A step of decoding with tensors of fixed shape: the same samples, compiled without a break."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.sampling import AGENTS, disturb
from helpers.tiny import save_tiny
from marft_algos.models.kernels.decode import FusedCache
from marft_algos.models.policy import PolicySet
from marft_algos.models.scoring import head_of, logits


@pytest.mark.parametrize("policies_in_batch", [1, 2])
def test_a_static_step_compiles_whole_and_samples_the_same(policies_in_batch: int, tmp_path: Path) -> None:
    policies = PolicySet.build(str(save_tiny(tmp_path / "qwen")), AGENTS, device="cpu", dtype="fp32")
    names = policies.policies[:policies_in_batch]
    for i, name in enumerate(names):
        disturb(policies, name, seed=i)
    prompts = [[[5, 6, 7, 8], [9, 10], [11, 12, 13]]] * policies_in_batch  # ragged: there are pads
    kernel, head = policies.kernel(names[0]), head_of(policies.base(names[0]).model)

    def start() -> tuple[FusedCache, torch.Tensor]:
        cache = kernel.cache([policies.weights(name) for name in names], 3 * len(names), 16)
        assert isinstance(cache, FusedCache)
        return cache, cache.prefill(prompts)

    with torch.no_grad():
        cache, hidden = start()
        expected = []
        for _ in range(8):
            token = logits(head, hidden, None).argmax(-1)
            hidden = cache.decode(token)
            expected.append((token, hidden))
        cache, hidden = start()
        step = cache.static_step()
        compiled = torch.compile(lambda token: step(token), fullgraph=True, backend="eager")
        torch.compiler.reset()
        for token, states in expected:
            sampled = logits(head, hidden, None).argmax(-1)
            assert torch.equal(sampled, token)
            hidden = compiled(sampled)
            torch.testing.assert_close(hidden, states, rtol=1e-4, atol=1e-4)
