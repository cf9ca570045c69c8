"""One pass gives the critic's features and log-probs: the frozen base's the reference's, the policies' own the old."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.team import Stage, build
from helpers.sampling import disturb
from helpers.tiny import save_tiny
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.algorithms.needs import RunFacts, check
from marft_algos.learner.learner import Learner
from marft_algos.models.critic import Critics
from marft_algos.models.forward import ForwardPass
from marft_algos.models.policy import PolicySet
from marft_algos.ranks.group import Alone
from marft_algos.ranks.reduction import ReductionSlots
from marft_algos.types import Trajectory, Transition
from marft_envs.errors import ConfigError

NEW, EPISODES = 10, 4


class Bench:
    """A team whose adapters are not the base, the episodes that it played, and the rows of passes over the base."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.policies = build(str(save_tiny(folder / "qwen", context=1024)), 2)
        for i, policy in enumerate(self.policies.policies):
            disturb(self.policies, policy, seed=i)
        stage = Stage(self.policies, EPISODES, 60, NEW, None, 2)
        self.played: list[Trajectory] = stage.play(0)
        stage.close()
        self.turns: list[Transition] = [t for x in self.played for t in x.transitions]
        self.rows = 0
        hidden_states = ForwardPass.hidden_states

        def counted(this: ForwardPass, ids: torch.Tensor, wanted: torch.Tensor, weights: object = None) -> torch.Tensor:
            self.rows += len(ids) * (weights is None)
            return hidden_states(this, ids, wanted, weights)  # type: ignore[arg-type]

        monkeypatch.setattr(ForwardPass, "hidden_states", counted)

    def learner(self, reduction: ReductionSlots | None = None, **settings: object) -> Learner:
        config = MARFTConfig(epochs=1, minibatches=1, lr=1e-9, **settings)  # type: ignore[arg-type]
        critics = Critics(self.policies, features=config.critic_features)
        return Learner(MARFT(config), self.policies, critics, 0, reduction)


@pytest.mark.parametrize("reduction", [1, 4])
@pytest.mark.parametrize("level", ["action", "token"])
@pytest.mark.parametrize("coef", ["kl_coef", "kl_reward_coef"])
def test_the_base_runs_once_over_every_turn(
    level: str, coef: str, reduction: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    learner = bench.learner(ReductionSlots(Alone(), reduction), level=level, critic="own", **{coef: 0.1})
    learner.update(bench.played, 0)
    assert bench.rows == len(bench.turns) > 8
    for policy in bench.policies.policies:
        mine = [t for t in bench.turns if t.policy == policy]
        expected = learner.rescore(mine, reference=True)
        for t, logprobs in zip(mine, expected, strict=True):
            found = learner.estimates.reference_logprobs[t]
            np.testing.assert_allclose(found, logprobs, rtol=0, atol=4e-6)
            assert np.abs(found - t.reply.logprobs).max() > 1e-3
    features = Critics(bench.policies).featurise(bench.turns, view="own", level=level)  # type: ignore[arg-type]
    reference = dict[Transition, torch.Tensor]()
    again = Critics(bench.policies).featurise(bench.turns, view="own", level=level, logprobs=reference)  # type: ignore[arg-type]
    assert reference.keys() == set(bench.turns)
    for t in bench.turns:
        torch.testing.assert_close(again[t], features[t], rtol=0, atol=4e-6)
        assert again[t].untyped_storage().nbytes() == again[t].nbytes or level == "token"


OWN = {"critic_features": "policy", "old_logprobs": "learner"}


@pytest.mark.parametrize("reduction", [1, 4])
@pytest.mark.parametrize("level", ["action", "token"])
def test_the_policies_own_pass_gives_features_and_old_logprobs(
    level: str, reduction: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    learner = bench.learner(ReductionSlots(Alone(), reduction), level=level, critic="own", **OWN)
    rescored, rescore = list[Transition](), learner.rescore
    monkeypatch.setattr(learner, "rescore", lambda turns: rescored.extend(turns) or rescore(turns))
    learner.update(bench.played, 0)
    assert bench.rows == 0 and not rescored
    for policy in bench.policies.policies:
        mine = [t for t in bench.turns if t.policy == policy]
        for t, logprobs in zip(mine, rescore(mine), strict=True):
            np.testing.assert_allclose(learner.estimates.old_logprobs[t], logprobs, rtol=0, atol=4e-6)
    base, own = (
        Critics(bench.policies, features=features).featurise(bench.turns, view="own", level=level)  # type: ignore[arg-type]
        for features in ("base", "policy")
    )
    assert all(own[t].shape == base[t].shape and (own[t] - base[t]).abs().max() > 1e-3 for t in bench.turns)


@pytest.mark.parametrize("settings", [{"critic": "team"}, {"critic": "none"}, {"old_logprobs": "sampler"}])
def test_features_that_no_pass_gives_are_refused(settings: dict[str, str]) -> None:
    algorithm = MARFT(MARFTConfig(**{"critic": "own", **OWN, **settings}))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="set old_logprobs='learner' and critic='own', or leave it out"):
        check(algorithm, RunFacts(frozenset(), 8))


@pytest.mark.parametrize("critic", ["team", "none"])
def test_other_prompts_than_the_turns_own_give_no_reference(
    critic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    bench.learner(critic=critic, kl_coef=0.1).update(bench.played, 0)
    assert bench.rows == len(bench.turns) * (2 if critic == "team" else 1)


def test_a_policy_that_began_elsewhere_is_scored_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch)
    names = {f"{policy}_0": policy for policy in bench.policies.policies}
    started = PolicySet.build(str(tmp_path / "qwen"), names, device="cpu", starts=bench.policies.policies[:1])
    assert [started.starts_as_base(policy) for policy in started.policies] == [False, True]
    reference = dict[Transition, torch.Tensor]()
    Critics(started).featurise(bench.turns, view="own", level="token", logprobs=reference)
    assert {t.policy for t in reference} == {started.policies[1]}
