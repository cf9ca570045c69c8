"""Weights learn from what they themselves have said: episodes of older weights are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import runs
from helpers.teams import Tabular, episode, say
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.batching import StaleError, UpdateError, learnable
from marft_algos.engines.native import NativeEngine
from marft_algos.learner.learner import Learner
from marft_algos.training import hosting
from marft_algos.types import FOREIGN, Generation, Trajectory, Transition


def learner(policies: Tabular, staleness: int = 0, **settings: Any) -> Learner:
    return Learner(MARFT(MARFTConfig(critic="none", lr=1e-5, **settings)), policies, staleness=staleness)


def test_the_same_episodes_are_not_learnt_from_after_the_next_update() -> None:
    """The learner's own log-probs as denominator would hide it: the ratio is 1 whoever sampled."""
    policies = Tabular(["a"])
    data = policies.play([episode([["a"]], number=i, rewards=[float(i % 2)]) for i in range(4)])
    made = learner(policies, old_logprobs="learner", ratio_tolerance=0.1)
    made.update(data, 0)
    policies.version += 1
    before = policies.tables["a"].detach().clone()
    with pytest.raises(StaleError, match="sampled by version 0 of policy 'a', which is at version 1") as error:
        made.update(data, 1)
    assert isinstance(error.value, UpdateError)
    assert (policies.tables["a"] == before).all()


def test_replies_of_the_future_are_refused_too() -> None:
    policies = Tabular(["a"])
    data = policies.play([episode([["a"]], number=i) for i in range(2)])
    say(data[1].transitions[0], version=3)
    with pytest.raises(StaleError, match="sampled by version 3"):
        learner(policies).update(data, 0)


def test_staleness_is_a_number() -> None:
    policies = Tabular(["a"])
    data = policies.play([episode([["a"]], number=i) for i in range(2)])
    made = learner(policies, staleness=1)
    made.past.keep(0)
    policies.version = 2
    with pytest.raises(StaleError, match="at most 1 updates between"):
        made.update(data, 0)
    made = learner(policies, staleness=2)
    made.past.keep(0)
    made.update(data, 0)


def stale(old: str = "sampler", **settings: Any) -> tuple[Learner, Tabular, list[Trajectory]]:
    """Episodes of version 0, and a learner at version 1, whose weights are others."""
    policies = Tabular(["a", "b"])
    data = policies.play([episode([["a"], ["b"]], number=i, rewards=[0.0, float(i % 2)]) for i in range(12)])
    made = learner(policies, staleness=2, old_logprobs=old, **settings)
    made.past.keep(0)
    for table in policies.tables.values():
        table.data += torch.randn(table.shape, generator=torch.Generator().manual_seed(3))
    policies.version = 1
    return made, policies, data


def test_older_turns_are_checked_under_the_weights_that_sampled_them() -> None:
    """Their ratio to the present weights is not 1, and that ends no run; a sampler that is off still does."""
    for old in ("sampler", "learner"):
        made, policies, data = stale(old)
        before = {p: table.detach().clone() for p, table in policies.tables.items()}
        metrics = made.past.measure(learnable(data, ["a", "b"])[0], behind_by_one(data), made.rescore, 0.02)
        assert metrics["staleness/1/share"] == 1.0 and metrics["staleness/1/gap"] < 1e-6
        allowed = metrics["staleness/1/gap"]
        assert made.past.measure(learnable(data, ["a", "b"])[0], behind_by_one(data), made.rescore, allowed) == metrics
        assert all((policies.tables[p] == table).all() for p, table in before.items())
        metrics = made.update(data, 0)
        assert metrics["staleness/1/gap"] < 1e-6 and "policy/a/sampler_gap" not in metrics
    for off, said in ((0.1, r"0\.1000"), (np.nan, "nan")):
        made, _, data = stale("learner")
        for turn in (t for d in data for t in d.transitions):
            say(turn, logprobs=turn.reply.logprobs + np.float32(off))
        with pytest.raises(UpdateError, match=rf"sampled 1 updates ago are {said} per token off"):
            made.update(data, 0)


def behind_by_one(data: list[Trajectory]) -> dict[Transition, int]:
    return {t: 1 for d in data for t in d.transitions}


def test_the_ratio_of_fresh_turns_is_checked_beside_stale_ones() -> None:
    """Mixed ages: fresh turns' gap is averaged over fresh tokens alone, and stops the run where it is not 0."""
    made, policies, data = stale()
    fresh = policies.play([episode([["a"], ["b"]], number=20 + i, rewards=[0.0, 1.0]) for i in range(4)])
    for turn in (t for d in fresh for t in d.transitions):
        say(turn, version=1)
    metrics = made.update([*data, *fresh], 0)
    assert (metrics["staleness/0/share"], metrics["staleness/1/share"]) == (0.25, 0.75)
    assert metrics["policy/a/sampler_gap"] < 1e-6

    made, policies, data = stale()
    fresh = policies.play([episode([["a"], ["b"]], number=20 + i, rewards=[0.0, 1.0]) for i in range(4)])
    for turn in (t for d in fresh for t in d.transitions):
        say(turn, version=1, logprobs=turn.reply.logprobs + np.float32(0.1))
    with pytest.raises(UpdateError, match=r"learner and sampler differ by 0\.1000 per token"):
        made.update([*data, *fresh], 0)


def test_stale_turns_without_their_weights_are_refused() -> None:
    made, _, data = stale()
    made.past.load_state_dict({})
    with pytest.raises(UpdateError, match="The weights of version 0 are not kept"):
        made.update(data, 0)


def test_truncated_weights_bring_stale_turns_to_the_present_policy() -> None:
    """Decoupled PPO: the ratio starts at 1 against the learner, and each token's gradient has min(π/μ, cap)."""
    made, policies, data = stale("learner", tis_cap=1.5, whiten="off")
    optimizer = made.optimizers["a"].adam
    seen: list[torch.Tensor] = []
    optimizer.step = lambda *_: seen.append(policies.tables["a"].grad.clone())  # type: ignore[assignment, union-attr, method-assign]
    rows = [t for d in data for t in d.transitions if t.policy == "a"]
    table = policies.tables["a"].detach().clone().requires_grad_()
    logp, count = torch.log_softmax(table, -1), sum(len(t.reply.action_ids) for t in rows)
    loss = torch.zeros(())
    for d in data:
        t = d.transitions[0]
        ids = torch.tensor([*t.request.prompt_ids, *t.reply.action_ids])
        n = len(t.request.prompt_ids)
        new = logp[ids[n - 1 : -1], ids[n:]]
        weight = (new.detach() - torch.from_numpy(t.reply.logprobs)).exp().clamp(max=1.5)
        loss = loss - (weight * new * d.score).sum() / count
    loss.backward()
    metrics = made.update(data, 0)
    assert metrics["policy/a/ratio_max"] == pytest.approx(1.0, abs=1e-6)
    expected = table.grad
    assert expected is not None and len(seen) == 1
    norm = float(expected.norm())
    torch.testing.assert_close(seen[0], expected * min(1.0, 0.5 / norm), rtol=1e-5, atol=1e-7)


def test_only_what_learns_must_be_fresh() -> None:
    """Frozen partners, past opponents and hosted models have versions of their own, and nobody learns from them."""
    policies = Tabular(["a", "b"], frozen=["b"])
    policies.version = 5
    data = policies.play([episode([["a"], ["b"]], number=i) for i in range(2)])
    for d in data:
        say(d.transitions[0], version=5)
    learner(policies).update(data, 0)
    for d in data:
        say(d.transitions[0], version=FOREIGN)  # another server's weights, which never were this policy's
    learner(policies, old_logprobs="learner").update(data, 0)


class Stuck(NativeEngine):
    """Goes on sampling from the first weights it was given, and says so."""

    held: int | None = None

    def publish(self, policy: str, version: int, adapter: Path | None = None) -> None:
        self.held = version if self.held is None else self.held

    def generate(self, *args: Any) -> list[Generation]:
        return [dataclasses.replace(reply, version=self.held or 0) for reply in super().generate(*args)]


def test_a_run_stops_when_its_sampler_missed_an_update(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "make_engine", lambda spec, policies, **_: Stuck(policies, spec.config.engine_batch))
    settings = runs.settings(model, tmp_path, algorithm={"old_logprobs": "learner", "ratio_tolerance": 0.1})
    with pytest.raises(StaleError, match=r"sampled by version 0 of policy .* at version 1"):
        runs.train(settings)
