"""Groups of episodes: their statistics, the weights of rows, importance weights, and what a run must offer."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

import marft_envs
from helpers.runs import Letters, make_letters, quiet_display, settings, train
from helpers.teams import Tabular, episode, put, random_team, say
from marft_algos import credit
from marft_algos.algorithms import base as algorithm
from marft_algos.algorithms import groups, needs
from marft_algos.algorithms.base import Algorithm, GroupConfig, UpdateConfig
from marft_algos.algorithms.needs import RunFacts, check
from marft_algos.algorithms.reinforce import REINFORCE, REINFORCEConfig
from marft_algos.algorithms.rft import RFT, RFTConfig
from marft_algos.algorithms.sft import SFT, SFTConfig
from marft_algos.batching import Batch, learnable, micro_batches, pack, totals
from marft_algos.evaluation.environments import evaluation_set
from marft_algos.learner.learner import Learner, add_kl_penalty
from marft_algos.rollout.episodes import ProblemSplit
from marft_algos.training import environments
from marft_algos.training.parts import build
from marft_algos.training.resolve import resolve
from marft_algos.training.trainer import Trainer
from marft_algos.types import Estimates, Trajectory
from marft_envs.errors import ConfigError


def make_routed() -> marft_envs.FlexEnv:
    """Letters in a team whose schedule depends on what was said."""
    made = make_letters()
    return marft_envs.FlexEnv(
        made.team, Letters(), marft_envs.Router(lambda view: [] if view.history else ["planner_0"])
    )


marft_envs.register("test/routed-v0", make_routed)
RNG = np.random.default_rng(0)


# --- statistics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ddof", [0, 1])
def test_statistics_are_those_of_each_group(ddof: int) -> None:
    scores, keys = RNG.normal(size=30), [("g", int(k)) for k in RNG.integers(6, size=30)]
    found = groups.statistics(scores, keys, ddof)
    for i, key in enumerate(keys):
        own = [s for s, k in zip(scores, keys, strict=True) if k == key]
        assert found.mean[i] == pytest.approx(sum(own) / len(own)) and found.size[i] == len(own)
        spread = np.std(own, ddof=ddof) if len(own) > ddof else 0.0
        assert found.std[i] == pytest.approx(spread)
    assert found.count == len(set(keys))


def test_permuting_rows_leaves_group_statistics_unchanged() -> None:
    """To the last bit: a group's sums do not depend on the order in which its episodes stand."""
    scores, keys = RNG.normal(size=64), RNG.integers(9, size=64).tolist()
    found = groups.statistics(scores, keys, 1)
    order = RNG.permutation(64)
    again = groups.statistics(scores[order], [keys[i] for i in order], 1)
    for name in ("mean", "std", "size"):
        assert getattr(again, name).tolist() == getattr(found, name)[order].tolist()


def test_groups_of_equal_scores_are_counted_and_give_exact_zeros() -> None:
    scores = [0.1] * 3 + [0.0, 1.0, 0.0] + [7.3]
    found = groups.statistics(scores, [0, 0, 0, 1, 1, 1, 2], 1)
    assert found.flat == 2 and found.count == 3 and found.std[[0, 1, 2, 6]].tolist() == [0.0] * 4
    assert found.log() == {"group_flat": pytest.approx(2 / 3), "group_std": pytest.approx(np.sqrt(1 / 3) / 3)}
    assert (np.array(scores) - found.mean)[[0, 1, 2, 6]].tolist() == [0.0] * 4
    assert groups.leave_one_out(scores, found)[[0, 1, 2, 6]].tolist() == [0.0] * 4


def test_leave_one_out_is_the_score_minus_the_mean_of_the_others() -> None:
    scores = RNG.normal(size=12)
    keys = [i % 3 for i in range(12)]
    found = groups.leave_one_out(scores, groups.statistics(scores, keys))
    for i in range(12):
        assert found[i] == pytest.approx(
            scores[i] - np.mean([scores[j] for j in range(12) if j % 3 == i % 3 and j != i])
        )
    two = groups.leave_one_out([1.0, 5.0], groups.statistics([1.0, 5.0], [0, 0]))
    assert two.tolist() == [-4.0, 4.0], "with k = 2 the difference of the two scores"


def test_the_overlong_penalty_is_piecewise_linear() -> None:
    assert [groups.overlong(n, 20, 4) for n in (0, 16, 17, 18, 20, 25)] == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0]
    assert [groups.overlong(n, 20, 0) for n in (20, 21)] == [0.0, -1.0]


def test_a_running_mean_forgets_as_fast_as_one_step_per_score() -> None:
    b = 2.0
    for _ in range(40):
        b = 0.95 * b + 0.05 * 0.25
    assert groups.decayed(2.0, [0.25] * 40, 0.95) == pytest.approx(b)
    scores = RNG.normal(size=9)
    assert groups.decayed(1.0, scores, 0.9) == groups.decayed(1.0, scores[::-1].copy(), 0.9)
    assert groups.decayed(1.0, [], 0.9) == 1.0


# --- rows of an episode -------------------------------------------------------------------------------------------


def rows_of(data: list[Trajectory], policy: str = "one") -> list[Any]:
    return learnable(data, [policy])[0][policy]


def team_data(n: int = 8, seed: int = 3) -> list[Trajectory]:
    """Episodes of random schedules in which all agents share a policy."""
    rng = np.random.default_rng(seed)
    names = {f"a{i}": "one" for i in range(4)}
    return [episode(random_team(rng), number=i, policies=names) for i in range(n)]


def test_agents_who_act_a_different_number_of_times_weigh_the_same() -> None:
    data = team_data()
    rows, estimates = rows_of(data), Estimates(shares=learnable(data, ["one"])[1])
    batch = pack(rows, estimates, "action", minibatch=totals(rows, estimates, len(data)))
    x = torch.from_numpy(RNG.normal(size=len(rows)))
    value = {id(t): float(v) for t, v in zip(rows, x, strict=True)}
    means = []
    for d in data:
        for agent in {t.agent for t in d.transitions}:
            means.append(np.mean([value[id(t)] for t in d.transitions if t.agent == agent]))
    assert float(batch.episode_mean(x)) == pytest.approx(np.mean(means))
    assert float(batch.episode_sum(x)) == pytest.approx(float(x.sum()) / len(data))
    assert batch.totals.acted == pytest.approx(len(means))


def test_frozen_and_failed_turns_take_no_share() -> None:
    data = [episode([["a"], ["b"], ["a"], ["a"]], policies={"a": "one", "b": "one"})]
    put(data[0].transitions[2], trainable=False)
    _, found = learnable(data, ["one"])
    assert set(found) == set(rows_of(data))
    assert [(t.index, found[t]) for t in rows_of(data)] == [(0, 0.5), (1, 1.0), (3, 0.5)]


def test_summing_micro_batches_gives_the_minibatch_exactly() -> None:
    data = team_data()
    rows, estimates = rows_of(data), Estimates(shares=learnable(data, ["one"])[1])
    size = totals(rows, estimates, 8)
    whole = pack(rows, estimates, "action", minibatch=size)
    x = {id(t): float(i) for i, t in enumerate(rows)}

    def values(batch: Batch) -> torch.Tensor:
        return torch.tensor([x[id(t)] for t in batch.transitions], dtype=torch.float64)

    pieces = [pack(p, estimates, "action", minibatch=size) for p in micro_batches(rows, 24)]
    assert len(pieces) > 3
    for name in ("episode_mean", "episode_sum", "mean"):
        parts = sum(float(getattr(b, name)(values(b))) for b in pieces)
        assert parts == pytest.approx(float(getattr(whole, name)(values(whole))))


def test_row_means_and_sums_run_over_sampled_tokens_only() -> None:
    rows = rows_of(team_data())
    batch = pack(rows, Estimates(), "action")
    x = torch.where(batch.mask, batch.old_logprobs, torch.tensor(float("nan")))
    for i, t in enumerate(rows):
        assert float(batch.row_mean(x)[i]) == pytest.approx(float(t.reply.logprobs.mean()), abs=1e-6)
        assert float(batch.row_sum(x)[i]) == pytest.approx(float(t.reply.logprobs.sum()), abs=1e-5)


# --- importance weights -------------------------------------------------------------------------------------------


def test_truncated_weights_weigh_every_tokens_loss() -> None:
    learner, sampler = (torch.from_numpy(RNG.normal(size=(4, 5))).float() for _ in range(2))
    w = groups.truncated_weights(learner, sampler, 2.0)
    assert torch.allclose(w, torch.minimum(torch.exp(learner - sampler), torch.tensor(2.0)))
    assert (w == 2.0).any() and (w < 2.0).any()
    x = torch.from_numpy(RNG.normal(size=(4, 5))).float().requires_grad_()
    scaled = groups.scale_gradient(x, w)
    assert torch.equal(scaled, x), "the value stays"

    def per_token(y: torch.Tensor) -> torch.Tensor:
        return torch.minimum(y.exp() * 0.7, y.exp().clamp(0.8, 1.2) * 0.7)

    per_token(scaled).sum().backward()
    ours, x.grad = x.grad, None
    (w * per_token(x)).sum().backward()
    assert torch.allclose(ours, x.grad), "as the gradient of the weighted loss"


def update_with(data: list[Trajectory], **config: Any) -> tuple[Tabular, dict[str, float]]:
    policies = Tabular(["one"])
    for t in (t for d in data for t in d.transitions):
        policies.score(t)
    stats = Learner(REINFORCE(REINFORCEConfig(lr=0.1, **config)), policies).update(data, 0)
    return policies, stats


def test_the_update_weighs_by_the_gap_between_learner_and_sampler() -> None:
    """A sampler whose log-probs are log 2 too low weighs 2, capped at 1.5; the first ratio stays 1."""

    def gap(data: list[Trajectory]) -> None:
        score = Tabular.score

        class Off(Tabular):
            def score(self, turn: Any) -> None:
                score(self, turn)
                say(turn, logprobs=(turn.reply.logprobs - np.log(2.0)).astype(np.float32))

        policies = Off(["one"])
        for t in (t for d in data for t in d.transitions):
            policies.score(t)
        config = REINFORCEConfig(lr=0.1, old_logprobs="learner", tis_cap=1.5, ratio_tolerance=1.0)
        stats = Learner(REINFORCE(config), policies).update(data, 0)
        assert stats["policy/one/tis_weight"] == pytest.approx(1.5)
        assert stats["policy/one/sampler_gap"] == pytest.approx(np.log(2.0), abs=1e-5)

    gap(team_data())
    with pytest.raises(ConfigError, match="old_logprobs='learner'"):
        check(REINFORCE(REINFORCEConfig(tis_cap=2.0)), RunFacts(frozenset(), 8))


def test_demonstrations_weigh_one_whatever_the_cap() -> None:
    """Nobody sampled them: their log-probs are zeros, and the weight would be π itself."""
    learnt = []
    for cap in (None, 2.0):
        policies, data = Tabular(["one"]), team_data()
        policies.play(data)
        for t in (t for d in data for t in d.transitions):
            say(t, logprobs=np.zeros(len(t.reply.action_ids), np.float32))
        config = SFTConfig(lr=0.1, minibatches=1, old_logprobs="learner", tis_cap=cap)
        stats = Learner(SFT(config), policies).update(data, 0)
        assert "policy/one/tis_weight" not in stats
        learnt.append(policies.tables["one"].detach().clone())
    assert torch.equal(*learnt) and not torch.equal(learnt[0], Tabular(["one"]).tables["one"])


# --- KL as reward -------------------------------------------------------------------------------------------------


def test_kl_as_reward_is_paid_before_credit_token_by_token() -> None:
    data = team_data(4)
    rows, estimates = rows_of(data), Estimates()
    expected = {}
    for t in rows:
        reference = (t.reply.logprobs - RNG.normal(size=len(t.reply.logprobs))).astype(np.float32)
        estimates.reference_logprobs[t] = reference
        expected[id(t)] = -0.3 * (t.reply.logprobs - reference)
    before = {id(t): t.turn.reward for t in rows}
    add_kl_penalty(rows, estimates, 0.3)
    for t in rows:
        assert estimates.penalties[t].dtype == np.float32
        assert estimates.penalties[t] == pytest.approx(expected[id(t)], abs=1e-6)
        assert t.turn.reward == before[id(t)], "what the task paid stays as it is"
    data = team_data(4)
    _, stats = update_with(data, kl_reward_coef=0.3)
    assert stats["kl_reward"] == pytest.approx(0.0, abs=1e-6), "a policy that has not moved pays nothing"


def test_recomputed_log_probs_are_those_that_pay() -> None:
    (turn, *_) = rows_of(team_data(1))
    estimates = Estimates(
        old_logprobs={turn: turn.reply.logprobs - 1.0}, reference_logprobs={turn: turn.reply.logprobs}
    )
    assert add_kl_penalty([turn], estimates, 0.5) == pytest.approx(-1.0)
    assert (
        float(estimates.penalties[turn].sum()) == pytest.approx(0.5 * len(turn.reply.action_ids))
        and turn.turn.reward == 0.0
    )


# --- what a run must offer ----------------------------------------------------------------------------------------


class Picky(Algorithm):
    name = "picky"
    Config = GroupConfig
    needs = frozenset({"groups", "unshared", "branches"})


OFFERS = frozenset({"groups", "unshared", "branches"})


def test_needs_are_checked_with_what_why_and_what_to_type() -> None:
    check(Picky(), RunFacts(OFFERS, 16))
    with pytest.raises(ConfigError, match=r"picky needs a policy for each agent.*--policies own"):
        check(Picky(), RunFacts(OFFERS - {"unshared"}, 16))
    with pytest.raises(ConfigError, match="picky needs several replies at one state"):
        check(Picky(), RunFacts(OFFERS - {"branches"}, 16))
    with pytest.raises(ConfigError, match="--episodes-per-iteration 16"):
        check(Picky(), RunFacts(OFFERS, 20))
    with pytest.raises(ConfigError, match="expected at least 2"):
        check(Picky(GroupConfig(group_size=1)), RunFacts(OFFERS, 16))
    with pytest.raises(ConfigError, match="refills is -1; expected 0 or more"):
        check(Picky(GroupConfig(refills=-1)), RunFacts(OFFERS, 16))
    assert Algorithm(UpdateConfig()).group_size == 1
    assert set(needs.NEEDS) == set(get_args(algorithm.Need)), "every need says what it is, and what to type"


def test_facts_are_told_without_a_model(model: Path, tmp_path: Path) -> None:
    config = settings(model, tmp_path)
    env = environments.make_env(config, {})
    assert {"unshared", "groups", "critic"} <= resolve(config, env).facts.offers
    assert not resolve(config, env).facts.repeats
    assert "unshared" not in resolve(dataclasses.replace(config, policies="shared"), env).facts.offers
    routed = settings(model, tmp_path, env="test/routed-v0")
    assert resolve(routed, environments.make_env(routed, {})).facts.repeats


@pytest.mark.parametrize(("name", "values", "biased"), [
    ("grpo", {}, ""), ("grpo", {"turn_mean": "episode"}, "turn_mean='episode'"),
    ("gspo", {"turn_mean": "episode"}, "turn_mean='episode'"), ("dr_mas", {}, ""), ("dapo", {}, ""),
    ("marshal", {}, "centring='reward'"), ("marshal", {"centring": "position"}, ""), ("magrpo", {}, ""),
])  # fmt: skip
def test_a_bias_by_length_is_a_warning_where_policies_choose_it(name: str, values: dict[str, str], biased: str) -> None:
    made = algorithm.get(name)(algorithm.get(name).Config(**values))
    facts = RunFacts(frozenset({"groups"}), 16, repeats=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(made, facts)
        check(made, dataclasses.replace(facts, repeats=False))
    assert [biased in str(warning.message) for warning in caught] == [True] * bool(biased)


# --- groups in a run ----------------------------------------------------------------------------------------------

PLAIN = {"epochs": 1, "minibatches": 1}


class Seen(REINFORCE):
    """Remembers what it was asked and given."""

    @dataclasses.dataclass(frozen=True)
    class Config(GroupConfig, REINFORCEConfig):
        """Groups for REINFORCE."""

    def wanted(self, group: Any) -> bool:
        asked.append(list(group))
        return len(asked) % 3 != 1

    def credit(self, trajectories: Any, estimates: Estimates) -> dict[str, float]:
        given.append(list(trajectories))
        return super().credit(trajectories, estimates)


asked: list[list[Trajectory]] = []
given: list[list[Trajectory]] = []


def test_groups_share_the_start_and_differ_in_the_sample_only(model: Path, tmp_path: Path) -> None:
    asked.clear()
    given.clear()
    made = settings(
        model,
        tmp_path,
        algo="test_groups:Seen",
        iterations=1,
        max_new_tokens=8,
        algorithm={**PLAIN, "group_size": 4, "refills": 4},
    )
    _, run = train(made)
    line = run.metrics()[-1]
    # Groups 1, 4 and 7 that were asked about are not wanted: 3 starts, then a fresh one for the first, and its like.
    assert [len(g) for g in asked] == [4] * len(asked) and len(asked) == 5
    assert len({d.number for g in asked for d in g}) == 20, "every episode has its own number, and so its own sample"
    for group in asked:
        assert len({(d.episode.seed, d.task_id, d.group) for d in group}) == 1
        assert len({tuple(t.turn.text for t in d.transitions) for d in group}) > 1
    assert len({g[0].episode.seed for g in asked}) == 5 and [g[0].group for g in asked] == [0, 1, 2, 3, 4]
    assert [d.group for d in given[0]] == [1] * 4 + [2] * 4 + [4] * 4
    assert line["episodes"] == 12 and line["episodes_played"] == 20
    assert (line["groups"], line["groups_dropped"]) == (3, 2)
    assert line["tokens_played"] == sum(len(t.reply.action_ids) for g in asked for d in g for t in d.transitions)
    assert line["tokens"] == sum(len(t.reply.action_ids) for g in asked[:3] for d in g for t in d.transitions)


class Never(Seen):
    """Wants nothing."""

    def wanted(self, group: Any) -> bool:
        return False


def test_an_iteration_without_a_wanted_group_takes_no_step_and_counts_what_it_played(
    model: Path, tmp_path: Path
) -> None:
    changes = {**PLAIN, "group_size": 3, "refills": 1}
    trainer, run = train(settings(model, tmp_path, algo="test_groups:Never", iterations=1, algorithm=changes))
    line = run.metrics()[-1]
    assert (line["groups"], line["groups_dropped"], line["episodes_played"]) == (0, 8, 24)
    assert line["policy/solver_0/steps"] == 0 and not trainer.learner.optimizers["solver_0"].adam.state


def test_a_run_with_groups_and_refills_resumes_to_the_same_numbers(model: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"algo": "dapo", "algorithm": {"group_size": 3, "refills": 2, "overlong": 0.0}}
    _, whole = train(settings(model, tmp_path, name="whole", **changes))
    _, part = train(settings(model, tmp_path, name="part", **{**changes, "iterations": 2}))
    rest = Trainer(build(settings(model, tmp_path, name="part", **changes)))
    rest.resume(part)
    with quiet_display() as display:
        rest.train(part, display)
    ours, theirs = part.metrics(), whole.metrics()
    for a, b in zip(ours, theirs, strict=True):
        assert {k: v for k, v in a.items() if "time" not in k} == {k: v for k, v in b.items() if "time" not in k}


def test_panels_repeat_each_start_in_a_row_and_refills_are_fresh() -> None:
    problems = ProblemSplit(evaluation_set(2, None), ("x", "y", "z"))
    prompts = problems.train(1, 5, 3)
    repeated = prompts.repeated(4)
    assert repeated.seeds == [s for s in prompts.seeds for _ in range(4)]
    assert repeated.options == [o for o in prompts.options for _ in range(4)]
    again = [problems.train(1, 5, 3, refill).seeds for refill in (0, 1, 2)]
    assert again[0] == prompts.seeds and len({s for seeds in again for s in seeds}) == 9


def test_team_and_agent_scores() -> None:
    d = episode([["a"], ["b", "c"], ["a"]], rewards=[0.0, 0.5, 1.0])
    for t, r in zip(d.transitions, (0.1, 0.2, 0.3, 0.4), strict=True):
        t.turn.reward = r
    d.layers[1].agent_rewards = {"a": 2.0, "b": 2.0, "c": 2.0}
    assert credit.team_score(d, credit.broadcast(d)) == pytest.approx(1.5 + 1.0 + 2.0)
    assert credit.agent_score(d, credit.broadcast(d), "a", Estimates()) == pytest.approx(1.5 + 0.5 + 2.0)
    d.layers[1].agent_rewards = {"b": 1.0}
    with pytest.raises(ConfigError, match="rewards agents differently"):
        credit.team_score(d, credit.broadcast(d))
    assert Counter(t.agent for t in d.transitions)["a"] == 2


# --- imitation, by success or by what was paid -------------------------------------------------------------------


def test_imitation_takes_successes_alone_or_weighs_every_episode_by_what_it_was_paid() -> None:
    """Weights against exp((R - max R)/beta), the price of tokens being part of R."""
    team = [["a"], ["b"]]
    played = [
        episode(team, number=i, success=i != 2, rewards=[0.0, paid], tokens=[1 + i, 2])
        for i, paid in enumerate((1.0, 1.0, 0.5))
    ]
    for config, wanted in (
        (RFTConfig(), [1.0, 1.0, 0.0]),
        (
            RFTConfig(weight_temperature=0.5, costs={"tokens": 0.1}),
            [np.exp((r - 0.7) / 0.5) for r in (1 - 0.3, 1 - 0.4, 0.5 - 0.5)],
        ),
    ):
        rule, estimates = RFT(config), Estimates()
        rule.credit(played, estimates)
        assert [rule.wanted([d]) for d in played] == [True, True, config.weight_temperature is not None]
        for d, weight in zip(played, wanted, strict=True):
            assert [float(estimates.advantages[t][0]) for t in d.transitions] == pytest.approx([weight] * 2)
    with pytest.raises(ConfigError, match="successes alone"):
        RFTConfig(costs={"tokens": 0.1})


@pytest.mark.parametrize(
    ("setting", "success", "wanted"),
    [
        # left's first turn and right's only one are paid; left's second is not; the joiner stands for the success
        ({"rule": "local"}, True, [1, 1, 0, 1]),
        ("local", False, [1, 1, 0, 0]),  # the success counts for who has no paid turn, not for who has one
        ({"rule": "local", "alpha": 0.0}, True, [1, 1, 0, 0]),  # the joiner is paid nothing by the rule
        ({"rule": "local", "costs": {"tokens": 0.1}}, False, [1, 0, 0, 0]),  # .25 − .1·1, and .25 − .1·3
        ({"rule": "local", "costs": {"tokens": 0.6}}, True, [0, 0, 0, 0]),  # the price is above all pay
    ],
)
def test_imitation_of_paid_turns(setting: Any, success: bool, wanted: list[float]) -> None:
    """Weights by hand: own pay above 0, or a success that an agent without such a turn is paid for."""
    d = episode([["left", "right"], ["left"], ["joiner"]], success=success, rewards=[0, 0, 1], tokens=[1, 3, 2, 2])
    d.transitions[0].turn.reward = d.transitions[1].turn.reward = 0.25
    d.layers[1].late_rewards = {1: 0.25}  # paid a layer later: it is still that turn's
    rule, estimates = RFT(RFTConfig(credit=setting)), Estimates()
    assert rule.wanted([d]) and rule.credit([d], estimates) == {}
    assert [float(estimates.advantages[t][0]) for t in d.transitions] == wanted


def test_a_talk_paid_at_its_end_is_imitated_as_a_whole_and_weights_of_episodes_are_refused_beside_turns() -> None:
    ends = [episode([["a"], ["b"], ["a"]], number=i, success=not i, rewards=[0, 0, 1 - i]) for i in range(2)]
    estimates = Estimates()
    RFT(RFTConfig(credit="local")).credit(ends, estimates)
    assert [[float(estimates.advantages[t][0]) for t in d.transitions] for d in ends] == [[1] * 3, [0] * 3]
    for others, said in (
        ({"weight_temperature": 0.3}, "set one"),
        ({"costs": {"tokens": 0.1}}, "with credit, costs are set in it: credit "),
    ):
        with pytest.raises(ConfigError, match=said):
            RFTConfig(credit="local", **others)
