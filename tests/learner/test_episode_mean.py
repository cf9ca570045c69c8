"""(1/E) Σ over episodes, as REINFORCE, RLOO, MAGRPO, SPIRAL and Dr. GRPO write it, against a loop over numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from helpers.teams import Tabular, episode
from marft_algos.algorithms import base as algorithm
from marft_algos.learner.learner import Learner
from marft_algos.types import Estimates, SamplingParams, Trajectory

NAMES = ("reinforce", "rloo", "magrpo", "spiral", "dr_grpo")
LONGEST = 10


def data_of(layers: list[list[list[str]]], shared: bool) -> tuple[Tabular, list[Trajectory]]:
    """Episodes of these layers, in groups of two, each with a score of its own."""
    agents = sorted({a for d in layers for layer in d for a in layer})
    policies = Tabular(["one"] if shared else agents)
    owners = dict.fromkeys(agents, "one") if shared else None
    data = [
        episode(d, number=i, policies=owners, rewards=[0.0] * (len(d) - 1) + [float(i % 3)], group=i // 2)
        for i, d in enumerate(layers)
    ]
    return policies, policies.play(data)


def gradients(
    name: str, policies: Tabular, data: list[Trajectory], **settings: Any
) -> tuple[dict[str, torch.Tensor], Estimates]:
    """What the first step of each policy follows, without clipping; and what the update found out."""
    kind = algorithm.get(name)
    made = kind(kind.Config(max_grad_norm=None, **settings), SamplingParams(max_new_tokens=LONGEST))
    learner, found = Learner(made, policies), {}

    for label, optimiser in learner.optimizers.items():

        def note(label: str = label) -> float:
            found.setdefault(label, []).append(policies.tables[label].grad.clone())
            return 0.0

        optimiser.step = note
    learner.update(data, 0)
    return {label: torch.stack(steps).mean(0) for label, steps in found.items()}, learner.estimates


def by_hand(name: str, policies: Tabular, data: list[Trajectory], policy: str, estimates: Estimates) -> torch.Tensor:
    """−(1/E) Σ_episodes Σ_turns Σ_tokens A · ∇ log π, with ∇ log π of a table: one-hot − softmax in the token's row."""
    table = policies.tables[policy].detach().double()
    total = torch.zeros_like(table)
    for d in data:
        for t in d.transitions:
            if t.policy != policy:
                continue
            ids = [*t.request.prompt_ids, *t.reply.action_ids]
            for place in range(len(t.request.prompt_ids), len(ids)):
                row = -torch.softmax(table[ids[place - 1]], -1)
                row[ids[place]] += 1.0
                total[ids[place - 1]] += -float(estimates.advantages[t][0]) * row
    return total / len(data) / (LONGEST if name == "dr_grpo" else 1)


@pytest.mark.parametrize("name", NAMES)
def test_agents_that_share_a_policy_add_up(name: str) -> None:
    """Three agents on one policy: its gradient is the sum of theirs, not their mean."""
    policies, data = data_of([[["a"], ["b"], ["c"]] for _ in range(6)], shared=True)
    found, estimates = gradients(name, policies, data)
    assert torch.allclose(found["one"].double(), by_hand(name, policies, data, "one", estimates), atol=1e-6)
    assert found["one"].abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_a_specialist_that_is_seldom_called_is_divided_by_all_episodes(name: str) -> None:
    seldom = [[["router"], ["expert"]] if i in (0, 1) else [["router"]] for i in range(8)]
    policies, data = data_of(seldom, shared=False)
    found, estimates = gradients(name, policies, data)
    for policy in ("router", "expert"):
        expected = by_hand(name, policies, data, policy, estimates)
        assert torch.allclose(found[policy].double(), expected, atol=1e-6), policy
    assert found["expert"].abs().max() > 1e-3


def test_minibatches_share_out_the_episodes() -> None:
    """Dr. GRPO may make several steps: their mean, at one policy, is the whole batch's gradient."""
    policies, data = data_of([[["a"], ["b"], ["a"]] for _ in range(6)], shared=True)
    parts, _ = gradients("dr_grpo", policies, data, minibatches=3)
    whole, _ = gradients("dr_grpo", policies, data)
    assert torch.allclose(parts["one"], whole["one"], atol=1e-6)


def test_entropy_and_kl_are_summed_like_the_surrogate() -> None:
    """A bonus keeps its weight against the surrogate, whoever shares the policy."""
    policies, data = data_of([[["a"], ["b"]] for _ in range(4)], shared=True)
    own, apart = data_of([[["a"], ["b"]] for _ in range(4)], shared=False)
    own.tables = {p: policies.tables["one"].detach().clone().requires_grad_() for p in ("a", "b")}
    own.play(apart)
    shared, _ = gradients("reinforce", policies, data, entropy_coef=0.3)
    each, _ = gradients("reinforce", own, apart, entropy_coef=0.3)
    together = shared["one"]
    assert torch.allclose(together, each["a"] + each["b"], atol=1e-6)
    assert np.isfinite(together.numpy()).all()
