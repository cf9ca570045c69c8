"""Weights learn from what they themselves have said: episodes of older weights are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from helpers import runs
from helpers.teams import Tabular, episode, say
from helpers.tiny import save_tiny
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.batching import StaleError, UpdateError
from marft_algos.engines.native import NativeEngine
from marft_algos.learner.learner import Learner
from marft_algos.training import hosting
from marft_algos.types import FOREIGN, Generation


def learner(policies: Tabular, **settings: Any) -> Learner:
    return Learner(MARFT(MARFTConfig(critic="none", lr=1e-5, **settings)), policies)


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
    policies.version = 2
    made = learner(policies)
    made.max_staleness = 1
    with pytest.raises(StaleError, match="at most 1 updates between"):
        made.update(data, 0)
    made.max_staleness = 2
    made.update(data, 0)


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


def test_a_run_stops_when_its_sampler_missed_an_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_tiny(tmp_path / "model", hidden=16, layers=1)
    monkeypatch.setattr(hosting, "make_engine", lambda spec, policies: Stuck(policies, spec.config.engine_batch))
    settings = runs.settings(model, tmp_path, algorithm={"old_logprobs": "learner", "ratio_tolerance": 0.1})
    with pytest.raises(StaleError, match=r"sampled by version 0 of policy .* at version 1"):
        runs.train(settings)
