"""Weights on a Tinker server become what they would have become here, for every algorithm's loss."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marft_envs
from helpers.marks import rest_in_ci
from helpers.tinker_pairs import POLICIES, pair
from helpers.tinker_server import TinkerServer
from marft_envs.records import trajectory

RATE = 1e-3
"""Adam's steps have the size of the rate, whatever the gradient is: differences of weights grow with it."""
CASES: dict[str, dict[str, Any]] = {
    "marft, tokens": {"algo": "marft", "algorithm": {"level": "token", "critic": "none"}},
    "marft, actions": {"algo": "marft", "algorithm": {"level": "action", "critic": "none"}},
    "marft, a critic here": {"algo": "marft", "algorithm": {"level": "token"}, "critic": True},
    "mappo": {"algo": "mappo", "critic": True},
    "happo": {"algo": "happo", "critic": True},
    "a2po": {"algo": "a2po", "critic": True},
    "grpo": {"algo": "grpo", "algorithm": {"group_size": 4}, "episodes_per_iteration": 8},
    "dr_mas": {"algo": "dr_mas", "algorithm": {"group_size": 2}},
    "rloo": {"algo": "rloo", "algorithm": {"group_size": 2, "minibatches": 1, "epochs": 1}},
    "rft": {"algo": "rft"},
    "tis and old log-probs again": {
        "algo": "marft",
        "algorithm": {"critic": "none", "level": "token", "tis_cap": 1.5, "old_logprobs": "learner", "kl_coef": 0.1},
    },
}
APART = {"a2po": 3e-6}
"""A2PO's advantages of the second policy hold the ratio of the first one's step, which is the weights' rounding."""


BOTH = [("grpo", "mean"), ("a2po", "mean"), *((case, "sum") for case in CASES)]
"""A dialect changes what is sent, not what it is made of: two algorithms show it."""


@pytest.mark.parametrize(("case", "loss"), rest_in_ci(BOTH, 3))
def test_two_updates_are_those_of_training_here(case: str, loss: str, server: TinkerServer, tmp_path: Path) -> None:
    server.loss = loss
    settings = {name: value for name, value in CASES[case].items() if name != "critic"}
    settings = {"episodes_per_iteration": 4, **settings, "algorithm": {"lr": RATE, **settings.get("algorithm", {})}}
    both = pair(server, tmp_path, {"critic": server.base} if "critic" in CASES[case] else {}, **settings)
    start = {policy: both.weights(policy)[0] for policy in POLICIES}
    for iteration in range(2):
        assert both.update(iteration) < APART.get(case, 1e-6)
    for policy in POLICIES:
        here = both.weights(policy)[0]
        assert max(float((here[n] - start[policy][n]).abs().max()) for n in here) > RATE, "it has moved"
        assert both.apart(policy) < 1e-5


@pytest.mark.ci
def test_preferences(server: TinkerServer, tmp_path: Path) -> None:
    episodes = []
    for seed in range(6):
        for last in ("{}", "hello"):
            env = marft_envs.make("relay-v0")
            env.reset(seed=seed)
            gold = env.unwrapped.task.gold_turns()[-1][1]
            for text in (str(seed), last.format(gold)):
                env.step(text)
            episodes.append(env.episode)
    trajectory.write(tmp_path / "pairs.jsonl", episodes)
    algorithm = {"demonstrations": str(tmp_path / "pairs.jsonl"), "lr": RATE, "epochs": 2, "minibatches": 1}
    both = pair(server, tmp_path, algo="dpo", env="relay-v0", max_new_tokens=8, algorithm=algorithm)
    for iteration in range(2):
        both.update(iteration)
    assert both.apart("solver_0") < 1e-5 and both.apart("planner_0") < 1e-5
    assert server.count("optim_step") > 3


@pytest.mark.ci
def test_a_policy_is_untouched_by_the_steps_of_another(server: TinkerServer, tmp_path: Path) -> None:
    both = pair(server, tmp_path, algo="grpo", algorithm={"group_size": 4, "lr": {"planner_0": 1e-2, "solver_0": 0.0}})
    before = both.weights("solver_0")[1]
    rows = [t for d in both.collect(0) for t in d.transitions if t.policy == "solver_0"]
    scores = both.remote.learner.rescore(rows)
    both.update(0)
    after, planner = both.weights("solver_0")[1], both.weights("planner_0")
    assert all(torch.equal(before[name], after[name]) for name in before)
    for a, b in zip(scores, both.remote.learner.rescore(rows), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)  # by the sampler that wrote them, and by the trainer
    assert both.apart("planner_0") < 1e-4 and planner[0].keys() == planner[1].keys()


@pytest.mark.ci
@pytest.mark.parametrize("gap", [0.0, 0.01])
def test_what_was_just_sampled_is_not_scored_again(gap: float, server: TinkerServer, tmp_path: Path) -> None:
    """Unless samplers round otherwise than the trainer; what is learnt is the same."""
    both = pair(server, tmp_path, algo="grpo", algorithm={"group_size": 4, "lr": RATE, "epochs": 2, "kl_coef": 0.0})
    for policy in both.team.remote.values():
        assert policy.dialect.gap < 1e-5
        policy.dialect = dataclasses.replace(policy.dialect, gap=gap)
        policy.publish(0)
    before = len(server.asked)
    both.update(0)
    asked = [body["forward_only"] for path, body in server.asked[before:] if path == "forward_backward"]
    assert asked.count(False) == 8 and asked.count(True) == (6 if gap == 0.0 else 8), "two minibatches, two epochs"
    assert all(both.apart(policy) < 1e-6 for policy in POLICIES)


def test_a_text_that_was_written_in_part_is_scored_where_more_of_it_counts(
    server: TinkerServer, tmp_path: Path
) -> None:
    both = pair(server, tmp_path, algo="grpo", algorithm={"group_size": 4})
    team = both.team
    both.collect(0)
    turn = team.remote["solver_0"].sampler
    assert turn is not None
    row, heard = next(iter(turn.heard.items()))
    start, ids = int(np.isnan(heard).sum()), torch.tensor([row])
    for first, sent in ((start + 1, 0), (start - 1, 1), (start - 1, 0)):
        before, mask = server.count("forward_backward"), torch.zeros_like(ids, dtype=torch.bool)
        mask[0, first:] = True
        scored = team.logprobs("solver_0", ids, mask)[0]
        assert server.count("forward_backward") - before == sent and bool(scored.isfinite().all())
        if first > start:
            np.testing.assert_allclose(scored[0, first - 1 :].detach(), heard[first - 1 :], atol=1e-6)
