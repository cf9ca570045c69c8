"""Gradients of replies, one by one, and the baselines that are compared on them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from benchmarks.learning import gradients
from helpers.teams import Tabular, episode
from marft_envs.errors import MarftError


def test_every_replys_gradient_is_that_of_its_own_log_probability() -> None:
    """Of a table of logits: where a word was said, the unit vector less the probabilities, added up by row."""
    policies = Tabular(["a", "b"])
    played = [episode((("a",), ("b",)), number=i, success=i == 0) for i in range(3)]
    policies.play(played)
    found = gradients.rows(policies, played)  # type: ignore[arg-type]
    for policy, place in (("a", 0), ("b", 1)):
        for d, (succeeded, squared, surprise, tokens) in zip(played, found[policy], strict=True):
            t = d.transitions[place]
            chances = torch.softmax(policies.tables[policy].detach(), -1).double().numpy()
            gradient, said = np.zeros_like(chances), [t.request.prompt_ids[-1], *t.reply.action_ids]
            for before, word in pairwise(said):
                gradient[before] += np.eye(len(chances))[word] - chances[before]
            own = [chances[before, word] for before, word in pairwise(said)]
            assert squared == pytest.approx((gradient**2).sum(), rel=1e-4)
            assert surprise == pytest.approx(((1 - np.array(own)) ** 2).sum(), rel=1e-4)
            assert (succeeded, tokens) == (d is played[0], len(t.reply.action_ids))


def test_no_baseline_has_less_variance_than_the_best_one() -> None:
    rng = np.random.default_rng(0)
    paid = rng.integers(0, 2, 400).astype(float)
    length = rng.exponential(np.where(paid > 0, 1.0, 5.0))
    found = np.column_stack([paid, length, length * rng.uniform(0.5, 1.0, 400), np.ones(400)])
    values, baselines = gradients.variances(found), gradients.baselines(found)
    assert values["mean"] == 1.0
    assert values["b*"] <= values["optimal"] < 0.9
    at = [np.mean((paid - b) ** 2 * length) for b in np.linspace(-1, 2, 301)]
    assert min(at) >= values["b*"] * np.mean((paid - paid.mean()) ** 2 * length) - 1e-12
    assert baselines["b*"] < baselines["mean"] / 2
    assert f"{paid.mean():.3f}, n = 400" in gradients.page({"a": found.tolist()})


@pytest.mark.parametrize("paid", [0.0, 1.0])
def test_replies_that_all_ended_alike_are_refused(paid: float) -> None:
    with pytest.raises(MarftError, match=f"{3 * paid:.0f} of 3 replies of 'a' succeeded.*--episodes"):
        gradients.page({"a": [[paid, 1.0, 0.5, 4.0]] * 3})
