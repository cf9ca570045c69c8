"""Algorithms without a critic: advantages and losses against closed forms, identities, and a run of each."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.runs import settings, train
from helpers.teams import Tabular, episode, put, random_team, say
from marft_algos import credit
from marft_algos import functional as F
from marft_algos.algorithms import base as algorithm
from marft_algos.algorithms.base import Algorithm
from marft_algos.algorithms.dapo import DAPO, DAPOConfig
from marft_algos.algorithms.dr_grpo import DrGRPO, DrGRPOConfig
from marft_algos.algorithms.dr_mas import DrMAS, DrMASConfig
from marft_algos.algorithms.grpo import GRPO, GRPOConfig
from marft_algos.algorithms.gspo import GSPO, GSPOConfig
from marft_algos.algorithms.magrpo import MAGRPO, MAGRPOConfig
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.algorithms.marshal import MARSHAL, MARSHALConfig
from marft_algos.algorithms.needs import RunFacts, check
from marft_algos.algorithms.reinforce import REINFORCE, REINFORCEConfig
from marft_algos.algorithms.reinforce_pp import REINFORCEPP, REINFORCEPPConfig
from marft_algos.algorithms.rft import RFT
from marft_algos.algorithms.rloo import RLOO
from marft_algos.algorithms.spiral import SPIRAL, SPIRALConfig
from marft_algos.batching import Batch, learnable, pack, totals
from marft_algos.learner.learner import Learner
from marft_algos.types import Estimates, SamplingParams, StopReason, Trajectory
from marft_envs.errors import ConfigError

NAMES = [
    "reinforce", "reinforce_pp", "rloo", "grpo", "dr_grpo", "dapo", "gspo", "dr_mas", "magrpo", "at_grpo", "treerl",
    "sdpo", "marshal", "spiral", "rft",
]  # fmt: skip


def group_data(
    scores: Sequence[Sequence[float]], shape: Sequence[Sequence[str]] = (("a",), ("b",))
) -> list[Trajectory]:
    """One group of episodes for each row of scores."""
    data: list[Trajectory] = []
    for g, row in enumerate(scores):
        for score in row:
            data.append(episode(shape, number=len(data), rewards=[0.0] * (len(shape) - 1) + [score], group=g))
    return data


def dynamic_data(seed: int = 0, groups: int = 4, size: int = 4) -> list[Trajectory]:
    """Groups of episodes in which other agents act, and another number of times, in each."""
    rng = np.random.default_rng(seed)
    data = []
    for i in range(groups * size):
        team = random_team(rng)
        rewards = rng.choice([0.0, 0.5, 1.0], len(team)).tolist()
        data.append(episode(team, number=i, rewards=rewards, group=i // size))
    return data


def credited(made: Algorithm, data: Sequence[Trajectory]) -> Estimates:
    """What the algorithm finds out about these episodes."""
    estimates = Estimates()
    made.credit(data, estimates)
    return estimates


def advantages_of(data: Sequence[Trajectory], estimates: Estimates) -> list[float]:
    """Each turn's first advantage, in play order."""
    return [float(estimates.advantages[t][0]) for d in data for t in d.transitions]


def first(data: Sequence[Trajectory], estimates: Estimates) -> list[float]:
    """The advantage of each episode; all of its turns must carry it."""
    for d in data:
        assert len(set(advantages_of([d], estimates))) == 1
    return [advantages_of([d], estimates)[0] for d in data]


def batch_of(
    data: Sequence[Trajectory], algo: Any, estimates: Estimates, moved: float = 0.3
) -> tuple[Batch, torch.Tensor]:
    """All turns of policy a, packed, and log-probs that have moved away from the old ones."""
    learnt, estimates.shares = learnable(data, ["a"])
    rows = learnt["a"]
    batch = pack(rows, estimates, algo.level, minibatch=totals(rows, estimates, len(data)))
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(batch.old_logprobs.shape, generator=generator) * moved
    return batch, (batch.old_logprobs + torch.where(batch.mask, noise, 0.0)).requires_grad_()


# --- advantages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ddof", "eps"), [(0, 1e-6), (1, 1e-4)])
def test_grpo_standardises_the_scores_of_a_group(ddof: int, eps: float) -> None:
    scores = [[0.0, 1.0, 1.0, 0.25], [0.5, 0.5, 0.5, 0.5], [3.0, -1.0, 0.0, 0.0]]
    data = group_data(scores)
    estimates = Estimates()
    stats = GRPO(GRPOConfig(std_ddof=ddof, std_eps=eps)).credit(data, estimates)
    expected = [(r - np.mean(row)) / (np.std(row, ddof=ddof) + eps) for row in scores for r in row]
    assert first(data, estimates) == pytest.approx(expected, rel=1e-6)
    assert first(data, estimates)[4:8] == [0.0] * 4 and stats["group_flat"] == pytest.approx(1 / 3)
    assert all(estimates.advantages[t].dtype == np.float32 for d in data for t in d.transitions), "float buffers"


def test_dr_grpo_only_centres_and_rloo_leaves_one_out() -> None:
    scores = [[0.0, 1.0, 1.0, 0.25], [3.0, -1.0, 0.0, 0.0]]
    data = group_data(scores)
    centred = credited(DrGRPO(), data)
    assert first(data, centred) == pytest.approx([r - np.mean(row) for row in scores for r in row])
    expected = [r - (sum(row) - r) / (len(row) - 1) for row in scores for r in row]
    assert first(data, credited(RLOO(), data)) == pytest.approx(expected)
    pair = group_data([[1.0, 0.25]])
    alone = credited(RLOO(), pair)
    assert first(pair, alone) == pytest.approx([0.75, -0.75]), "with k = 2 the difference of the two scores"


@pytest.mark.parametrize("name", NAMES)
def test_permuting_rows_leaves_group_advantages_unchanged(name: str) -> None:
    made = algorithm.get(name)
    data = dynamic_data()
    before = credited(made(), data)
    shuffled = [data[i] for i in np.random.default_rng(1).permutation(len(data))]
    after = credited(made(), shuffled)
    for d in shuffled:
        for t in d.transitions:
            assert after.advantages[t] == pytest.approx(before.advantages[t], abs=1e-6)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"marshal", "spiral", "reinforce", "reinforce_pp"}))
def test_a_groups_advantages_do_not_depend_on_the_group_before_it(name: str) -> None:
    data = dynamic_data()
    alone = credited(algorithm.get(name)(), data[:4])
    whole = credited(algorithm.get(name)(), data)
    for t in (t for d in data[:4] for t in d.transitions):
        assert whole.advantages[t].tolist() == alone.advantages[t].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_every_agents_buffer_is_written(name: str) -> None:
    for n in (2, 3, 4):
        data = group_data([[0.0, 1.0], [1.0, 0.5]], [[f"a{i}"] for i in range(n)])
        made = algorithm.get(name)()
        estimates = credited(made, data)
        for t in (t for d in data for t in d.transitions):
            assert estimates.advantages[t].dtype == np.float32
            assert len(estimates.advantages[t]) == (len(t.reply.action_ids) if made.level == "token" else 1)


def test_dr_mas_takes_one_score_per_episode_and_agent_that_acted() -> None:
    """Agent b acts twice in one episode and not at all in another: it counts once, or not."""
    shapes = ([["a"], ["b"], ["b"]], [["a"], ["b"]], [["a"]], [["a"], ["b"], ["c"]])
    scores = (1.0, 0.0, 0.5, 0.25)
    data = []
    for i, (shape, score) in enumerate(zip(shapes, scores, strict=True)):
        data.append(episode(shape, number=i, rewards=[0.0] * (len(shape) - 1) + [score]))
    estimates = Estimates()
    stats = DrMAS(DrMASConfig(std_ddof=0)).credit(data, estimates)
    own = {"a": scores, "b": (1.0, 0.0, 0.25), "c": scores}
    for d, score in zip(data, scores, strict=True):
        for t in d.transitions:
            expected = (score - np.mean(own[t.agent])) / (np.std(own[t.agent]) + 1e-6)
            assert estimates.advantages[t][0] == pytest.approx(expected, rel=1e-6), t.agent
    assert stats["group_alone"] == 1.0, "agent c acted once: the team's statistics, and counted"


def test_dr_mas_is_grpo_where_everybody_acts_in_every_episode() -> None:
    data = group_data([[0.0, 1.0, 0.3], [0.2, 0.4, 0.9]], [["a"], ["b", "c"], ["a"]])
    own, team = credited(DrMAS(), data), credited(GRPO(), data)
    assert advantages_of(data, own) == pytest.approx(advantages_of(data, team))


def test_magrpo_compares_each_turn_with_the_same_turn_of_the_group() -> None:
    rng = np.random.default_rng(0)
    paid = rng.normal(size=(4, 3))
    data = [episode([["a"], ["b"], ["a"]], number=i, rewards=row.tolist()) for i, row in enumerate(paid)]
    estimates = credited(MAGRPO(), data)
    to_go = paid[:, ::-1].cumsum(1)[:, ::-1]
    for i, d in enumerate(data):
        assert advantages_of([d], estimates) == pytest.approx(to_go[i] - to_go.mean(0), abs=1e-6)
    for i, d in enumerate(data):
        put(d, group=i // 2)
    estimates = credited(MAGRPO(MAGRPOConfig(gamma_turn=0.5)), data)
    discounted = np.stack(
        [paid[:, 0] + 0.5 * paid[:, 1] + 0.25 * paid[:, 2], paid[:, 1] + 0.5 * paid[:, 2], paid[:, 2]], 1
    )
    for i, d in enumerate(data):
        mean = discounted[i // 2 * 2 : i // 2 * 2 + 2].mean(0)
        assert advantages_of([d], estimates) == pytest.approx(discounted[i] - mean, abs=1e-6)


def test_magrpo_compares_episodes_of_unequal_length_with_those_that_got_as_far() -> None:
    data = [
        episode([["a"], ["b"]] * rounds, number=i, rewards=[0.0] * (2 * rounds - 1) + [float(i)])
        for i, rounds in enumerate((1, 2, 2))
    ]
    estimates = credited(MAGRPO(), data)
    assert advantages_of(data[:1], estimates) == pytest.approx([-1.0, -1.0])
    assert advantages_of(data[2:], estimates) == pytest.approx([1.0, 1.0, 0.5, 0.5])
    check(MAGRPO(), RunFacts(frozenset({"groups"}), 8))


@pytest.mark.parametrize("centring", ["reward", "position"])
def test_marshal_centres_sums_to_go_and_normalises_player_by_player(centring: Any) -> None:
    """Against loops: rewards of an agent's turn are what it and the team are paid until its next one."""
    data = dynamic_data(5)
    rng = np.random.default_rng(2)
    for t in (t for d in data for t in d.transitions):
        t.turn.reward = float(rng.normal())
    estimates = credited(MARSHAL(MARSHALConfig(std_eps=1e-6, centring=centring)), data)
    found = {(d.number, t.index): float(estimates.advantages[t][0]) for d in data for t in d.transitions}
    owner = {(d.number, t.index): t.agent for d in data for t in d.transitions}
    for player in ("a0", "a1", "a2", "a3"):
        rewards, sums = [], []
        for d in data:
            own = [t for t in d.transitions if t.agent == player]
            for n, t in enumerate(own):
                end = own[n + 1].layer if n + 1 < len(own) else len(d.layers)
                paid = t.turn.reward + sum(layer.team_reward for layer in d.layers[t.layer : end])
                rewards.append(((d.number, t.index), paid))
        mean = np.mean([r for _, r in rewards]) if centring == "reward" else 0.0
        for i, ((number, index), _) in enumerate(rewards):
            later = [r - mean for (e, _), r in rewards[i:] if e == number]
            sums.append(((number, index), sum(later)))
        if centring == "position":
            nth = {(e, i): sum(x < i for d, x in found if d == e and owner[d, x] == player) for (e, i), _ in sums}
            means = {n: np.mean([s for key, s in sums if nth[key] == n]) for n in set(nth.values())}
            sums = [(key, s - means[nth[key]]) for key, s in sums]
        values = np.array([s for _, s in sums])
        for key, s in sums:
            assert found[key] == pytest.approx((s - values.mean()) / (values.std() + 1e-6), abs=1e-5)
        own_advantages = [found[key] for key, _ in sums]
        assert np.mean(own_advantages) == pytest.approx(0, abs=1e-5) and np.std(own_advantages) == pytest.approx(
            1, abs=1e-4
        )


def test_spirals_baselines_are_each_roles_own() -> None:
    """The first mover wins more often: that is no merit of either player's words."""
    data = []
    for i, won in enumerate((1.0, 1.0, 1.0, -1.0)):
        d = episode([["first"], ["second"]], number=i, rewards=[0.0, 0.0])
        d.layers[1].agent_rewards = {"first": won, "second": -won}
        data.append(d)
    made = SPIRAL(SPIRALConfig(decay=0.5))
    made.baselines = {"first": 0.5}
    estimates = Estimates()
    stats = made.credit(data, estimates)
    b = {"first": 0.5**4 * 0.5 + (1 - 0.5**4) * 0.5, "second": (1 - 0.5**4) * -0.5}
    assert stats == pytest.approx({f"baseline/{role}": value for role, value in b.items()})
    for d, won in zip(data, (1.0, 1.0, 1.0, -1.0), strict=True):
        assert advantages_of([d], estimates) == pytest.approx([won - b["first"], -won - b["second"]])
    again = SPIRAL()
    again.load_state_dict(made.state_dict())
    assert again.baselines == made.baselines


def test_reinforce_subtracts_the_mean_of_earlier_iterations() -> None:
    made = REINFORCE(REINFORCEConfig(momentum=0.75))
    data = group_data([[0.0, 1.0, 0.5]])
    assert made.credit(data, Estimates()) == {"baseline": pytest.approx(0.5)}, "the first iteration's own mean"
    later = group_data([[1.0, 1.0]])
    assert first(later, credited(made, later)) == pytest.approx([0.5, 0.5])
    resumed = REINFORCE()
    resumed.load_state_dict(made.state_dict())
    assert resumed.baseline == pytest.approx(0.75 * 0.5 + 0.25 * 1.0)


@pytest.mark.parametrize("chain", ["team", "agent"])
def test_reinforce_credits_a_turn_with_what_is_paid_after_it(chain: str) -> None:
    d = episode([["a"], ["b"], ["a"]], rewards=[1.0, 2.0, 4.0])
    for t, own in zip(d.transitions, (10.0, 20.0, 40.0), strict=True):
        t.turn.reward = own
    estimates = credited(REINFORCE(REINFORCEConfig(chain=chain)), [d])
    expected = {"team": [77.0, 66.0, 44.0], "agent": [57.0, 26.0, 44.0]}[chain]
    assert [estimates.returns[t][0] for t in d.transitions] == pytest.approx(expected)


def test_reinforce_pp_sums_the_kl_to_go_and_whitens_the_whole_batch() -> None:
    rng = np.random.default_rng(0)
    data = [episode([["a"]], number=i, rewards=[float(rng.normal())], tokens=[4]) for i in range(6)]
    raw, estimates = [], Estimates()
    for d in data:
        (t,) = d.transitions
        estimates.penalties[t] = penalties = (-0.1 * rng.normal(size=4)).astype(np.float32)
        raw += [d.layers[0].team_reward + float(penalties[s:].sum()) for s in range(4)]
    REINFORCEPP().credit(data, estimates)
    found = np.concatenate([estimates.advantages[d.transitions[0]] for d in data])
    assert found == pytest.approx((np.array(raw) - np.mean(raw)) / np.std(raw), abs=1e-5)


def test_reinforce_pps_floor_of_sigma_holds_rare_errors_small() -> None:
    data = [episode([["a"]], number=i, rewards=[float(i > 0)], tokens=[1]) for i in range(100)]
    found = [advantages_of(data, credited(REINFORCEPP(REINFORCEPPConfig(std_floor=f)), data)) for f in (0.0, 0.05, 0.2)]
    assert found[0] == found[1] and found[0][0] == pytest.approx(-math.sqrt(99))
    assert found[2] == pytest.approx(np.array([-0.99, *[0.01] * 99]) / 0.2, abs=1e-6)


def test_a_frozen_agents_turns_are_outside_reinforce_pps_statistics() -> None:
    data = group_data([[0.0, 1.0, 5.0]])
    for d in data:
        put(d.transitions[0], trainable=False)
    estimates = credited(REINFORCEPP(), data)
    flat = np.concatenate([estimates.advantages[d.transitions[1]] for d in data])
    assert flat.mean() == pytest.approx(0, abs=1e-6) and flat.std() == pytest.approx(1, abs=1e-6)


# --- DAPO's sampling, RFT's ---------------------------------------------------------------------------------------


def test_dapo_wants_groups_in_which_not_all_scores_are_alike() -> None:
    made = DAPO()
    assert [made.wanted(group_data([row])) for row in ([0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [])] == [
        True,
        False,
        False,
        False,
    ]


def test_dapos_overlong_penalty_is_in_the_score() -> None:
    made = DAPO(DAPOConfig(overlong=0.5, std_eps=0.0), SamplingParams(max_new_tokens=8))
    data = group_data([[1.0, 1.0, 0.0]], [["a"]])
    for d, (length, stop) in zip(data, ((8, StopReason.LENGTH), (8, StopReason.EOS), (4, StopReason.EOS)), strict=True):
        (t,) = d.transitions
        say(t, action_ids=[1] * length, logprobs=np.zeros(length, np.float32), stop_reason=stop)
    assert made.scores(data).tolist() == [0.0, 0.25, 0.0], "text lengths 8, 7 and 3 of 8, free up to 4"
    assert DAPO(DAPOConfig(overlong=0.0)).scores(data).tolist() == [1.0, 1.0, 0.0]


def test_rft_imitates_successful_episodes_only() -> None:
    made = RFT()
    data = group_data([[1.0, 0.0, 1.0, 0.0]])
    for d, verdict in zip(data, (True, True, False, None), strict=True):
        d.episode.success = verdict
    assert [made.wanted([d]) for d in data] == [True, True, False, False]
    estimates = credited(made, data)
    batch, logprobs = batch_of(data, made, estimates)
    loss, _ = made.surrogate(logprobs, batch)
    kept = [i for i, t in enumerate(batch.transitions) if estimates.advantages[t][0]]
    chosen = F.masked_sum(logprobs, batch.mask)[kept].sum()
    assert len(kept) == 2 and float(loss.detach()) == pytest.approx(-float(chosen.detach()) / batch.totals.tokens)


# --- losses -------------------------------------------------------------------------------------------------------


def loops(
    batch: Batch, logprobs: torch.Tensor, estimates: Estimates
) -> list[tuple[Any, float, list[float], list[float]]]:
    """Per row: the turn, its advantage, new and old log-probs of its tokens as plain numbers."""
    found = []
    for i, t in enumerate(batch.transitions):
        start = len(t.request.prompt_ids) - 1
        new = [float(x) for x in logprobs.detach()[i, start : start + len(t.reply.action_ids)]]
        found.append((t, float(estimates.advantages[t][0]), new, [float(x) for x in t.reply.logprobs]))
    return found


def clipped(ratio: float, advantage: float, low: float, high: float, dual: float = math.inf) -> float:
    surrogate = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return -max(surrogate, dual * advantage) if advantage < 0 else -surrogate


def per_episode(terms: Sequence[tuple[Any, float]], data: Sequence[Trajectory], summed: bool) -> float:
    """Mean over episodes in which agent a acted of the mean over its turns, or over all episodes of their sum."""
    value = {id(t): v for t, v in terms}
    own = [[value[id(t)] for t in d.transitions if t.agent == "a"] for d in data]
    acted = [sum(x) if summed else sum(x) / len(x) for x in own if x]
    return sum(acted) / (len(data) if summed else len(acted))


def turns_of_a(seed: int = 0) -> list[Trajectory]:
    """Agent a acts between no times and three times an episode."""
    shapes = ([["a"], ["b"]], [["a"], ["b"], ["a"], ["a"]], [["b"]], [["a", "b"], ["a"]])
    return [
        episode(s, number=i, seed=seed, rewards=[0.0] * (len(s) - 1) + [float(i % 3)], group=i // 4)
        for i, s in enumerate([*shapes, *shapes])
    ]


@pytest.mark.parametrize("dual", [None, 1.25])
@pytest.mark.parametrize(("name", "per"), [
    ("grpo", "batch"), ("grpo", "episode"), ("dr_grpo", ""), ("dapo", ""), ("gspo", "batch"), ("gspo", "episode"),
    ("dr_mas", "batch"), ("dr_mas", "episode"),
])  # fmt: skip
def test_clipped_losses_of_groups_against_loops(name: str, per: str, dual: float | None) -> None:
    config: dict[str, Any] = {"clip": 0.1, "clip_high": 0.2, "dual_clip": dual} | ({"turn_mean": per} if per else {})
    cls = algorithm.get(name)
    made: Any = cls(cls.Config(**config), SamplingParams(max_new_tokens=7))
    data = turns_of_a()
    estimates = credited(made, data)
    batch, logprobs = batch_of(data, made, estimates)
    loss, stats = made.surrogate(logprobs, batch)
    terms, bound, tokens, every = [], 0, 0, 0.0
    for t, a, new, old in loops(batch, logprobs, estimates):
        ratios = [np.exp(x - y) for x, y in zip(new, old, strict=True)]
        if name == "gspo":
            ratios = [float(np.exp(np.mean(new) - np.mean(old)))]
        most = dual or math.inf
        losses = [clipped(r, a, 0.1, 0.2, most) for r in ratios]
        bound += sum((a > 0 and r > 1.2) or (a < 0 and (r < 0.9 or r > most)) for r in ratios)
        tokens, every = tokens + len(losses), every + sum(losses)
        terms.append((t, sum(losses) / (7 if name == "dr_grpo" else len(losses))))
    over_turns = sum(x for _, x in terms) / len(terms)
    over_episodes = per_episode(terms, data, summed=name == "dr_grpo")
    expected = every / tokens if name == "dapo" else over_turns if per == "batch" else over_episodes
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-5)
    assert bound and stats["clip_share"] == pytest.approx(bound / tokens)


@pytest.mark.parametrize("name", ["reinforce", "rloo", "magrpo", "spiral"])
def test_policy_gradient_losses_against_loops(name: str) -> None:
    made = algorithm.get(name)()
    data = turns_of_a()
    estimates = credited(made, data)
    batch, logprobs = batch_of(data, made, estimates)
    terms = [(t, -a * sum(new)) for t, a, new, _ in loops(batch, logprobs, estimates)]
    assert float(made.surrogate(logprobs, batch)[0].detach()) == pytest.approx(
        per_episode(terms, data, summed=True), abs=1e-5
    )


@pytest.mark.parametrize("dual", [None, 1.25])
@pytest.mark.parametrize("name", ["reinforce_pp", "marshal", "marft", "ippo"])
def test_token_means_of_clipped_losses_against_loops(name: str, dual: float | None) -> None:
    cls = algorithm.get(name)
    made = cls(cls.Config(dual_clip=dual))  # type: ignore[call-arg]
    data = turns_of_a()
    estimates = credited(made, data)
    batch, logprobs = batch_of(data, made, estimates)
    losses = []
    for t, _, new, old in loops(batch, logprobs, estimates):
        advantages = np.broadcast_to(estimates.advantages[t], len(new))
        losses += [
            clipped(float(np.exp(x - y)), float(a), 0.2, 0.2, dual or math.inf)
            for x, y, a in zip(new, old, advantages, strict=True)
        ]
    assert float(made.surrogate(logprobs, batch)[0].detach()) == pytest.approx(np.mean(losses), abs=1e-5)


WITH_RATIO = sorted(n for n in algorithm.names() if "surrogate" in {f.name for f in fields(algorithm.get(n).Config)})


def test_every_algorithm_with_a_clip_has_the_other_surrogates_and_no_other_has() -> None:
    critics = {"a2po", "advantage_alignment", "happo", "ippo", "mappo", "marft", "mat", "vapo"}
    groups = {"at_grpo", "dapo", "dr_grpo", "dr_mas", "grpo", "gspo", "marshal", "reinforce_pp", "treerl"}
    assert critics | groups == set(WITH_RATIO)


@pytest.mark.parametrize(
    ("name", "level"),
    [(name, "token") for name in WITH_RATIO]
    + [(n, "action") for n in ("marft", "ippo", "mappo", "mat", "a2po", "happo")],
)
def test_surrogates_have_one_gradient_at_ratio_1_and_bounded_ones_far_from_it(name: str, level: str) -> None:
    cls, data, gradients = algorithm.get(name), turns_of_a(), dict[tuple[str, float], torch.Tensor]()
    table = {"level": level} if "level" in {f.name for f in fields(cls.Config)} else {}
    for kind in ("clip", "cispo", "sapo"):
        made: Any = cls(cls.Config(surrogate=kind, **table))  # type: ignore[call-arg]
        estimates = Estimates()
        rng = np.random.default_rng(0)
        for t in (t for d in data for t in (*d.transitions, *d.candidates)):
            size = len(t.reply.action_ids) if made.level == "token" else 1
            estimates.advantages[t] = rng.normal(size=size).astype(np.float32)
            estimates.values[t] = estimates.returns[t] = np.zeros(size, np.float32)
        made.weights = dict.fromkeys(estimates.advantages, 0.0)
        for moved in (0.0, 3.0):
            batch, logprobs = batch_of(data, made, estimates, moved)
            loss, stats = made.surrogate(logprobs, batch)
            (gradients[kind, moved],) = torch.autograd.grad(loss, logprobs)
            assert 0.0 <= float(stats["clip_share"]) <= 1.0 and torch.isfinite(gradients[kind, moved]).all()
    assert gradients["clip", 0.0].abs().sum() > 0
    for kind in ("cispo", "sapo"):
        torch.testing.assert_close(gradients[kind, 0.0], gradients["clip", 0.0])
    assert (gradients["cispo", 3.0][batch.mask] != 0).all(), "every token is learnt from"
    most = gradients["clip", 0.0].abs()
    assert (gradients["cispo", 3.0].abs() <= 1.28 * most + 1e-6).all()
    assert (gradients["sapo", 3.0].abs() <= 2.0 * most + 1e-6).all()


@pytest.mark.parametrize("kind", ["cispo", "sapo"])
def test_dual_clip_beside_a_surrogate_that_bounds_every_sample_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match=f"surrogate='{kind}'.*Leave out dual_clip, or set surrogate='clip'"):
        GRPOConfig(dual_clip=3.0, surrogate=kind)


def test_gspos_ratio_is_marfts_token_normalised_action_ratio() -> None:
    data = group_data([[0.0, 1.0, 0.5, 0.25]], [["a"]])
    ours = GSPO(GSPOConfig(clip=0.05, clip_high=0.05))
    marft = MARFT(MARFTConfig(level="action", norm="token", critic="none", clip=0.05))
    batch, logprobs = batch_of(data, ours, credited(ours, data))
    one, other = ours.surrogate(logprobs, batch), marft.surrogate(logprobs, batch)
    assert float(one[0].detach()) == pytest.approx(float(other[0].detach()), rel=1e-6)
    assert {k: float(v) for k, v in one[1].items()} == pytest.approx({k: float(v) for k, v in other[1].items()})
    gradients = [torch.autograd.grad(loss, logprobs)[0] for loss in (one[0], other[0])]
    assert torch.allclose(*gradients)


def test_reinforce_is_rloo_up_to_the_baseline_and_grpo_at_ratio_1_is_its_direction() -> None:
    """At ratio 1 the clipped surrogate's gradient is the plain policy gradient's."""
    data = group_data([[0.0, 1.0, 0.5, 0.25]], [["a"]])
    made = DrGRPO(DrGRPOConfig(), SamplingParams(max_new_tokens=1))
    batch, logprobs = batch_of(data, made, credited(made, data), moved=0.0)
    clip = torch.autograd.grad(made.surrogate(logprobs, batch)[0], logprobs)[0]
    plain = torch.autograd.grad(RLOO().surrogate(logprobs, batch)[0], logprobs)[0]
    assert torch.allclose(clip, plain) and plain.abs().sum() > 0


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo"])
def test_the_kl_term_is_averaged_like_the_surrogate(name: str) -> None:
    """One update at β = 1 and advantages 0 follows the gradient of the reduced k3 alone."""
    cls = algorithm.get(name)
    data = turns_of_a()
    policies = Tabular(["a", "b"], frozen=["b"])
    policies.tables["a"].data += 0.3 * torch.randn(
        policies.tables["a"].shape, generator=torch.Generator().manual_seed(0)
    )
    policies.play(data)
    for d in data:
        for layer in d.layers:
            layer.team_reward = 0.0
    made: Any = cls(cls.Config(kl_coef=1.0, max_grad_norm=None), SamplingParams(max_new_tokens=7))
    learner = Learner(made, policies)
    stats = learner.update(data, 0)
    batch, _ = batch_of(data, made, learner.estimates, 0.0)
    k3 = F.kl_k3(batch.reference_logprobs, batch.old_logprobs)
    assert stats["policy/a/loss"] == pytest.approx(float(made.reduce(k3, batch)), rel=1e-4)
    assert stats["policy/a/kl_reference"] == pytest.approx(float(batch.mean(k3)), rel=1e-4)


def test_scores_that_differ_between_agents_are_refused_by_team_methods() -> None:
    data = group_data([[0.0, 1.0]])
    data[0].layers[1].agent_rewards = {"a": 1.0}
    for made in (GRPO(), RLOO(), MAGRPO(), DrMAS(), DAPO()):
        with pytest.raises(ConfigError, match="rewards agents differently"):
            credited(made, data)
    credited(SPIRAL(), data)
    credited(MARSHAL(), data)
    assert credit.agent_score(data[0], credit.broadcast(data[0]), "a", Estimates()) == 1.0


# --- a run of each ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_trains_a_team(name: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"epochs": 1, "minibatches": 1, "lr": 1e-3}
    if issubclass(algorithm.get(name).Config, algorithm.GroupConfig):
        changes |= {"group_size": 1 if name == "rft" else 4}
    made = settings(
        Path("embedded"),
        tmp_path,
        env="relay-v0",
        algo=name,
        iterations=2,
        max_new_tokens=2,
        episodes_per_iteration=16,
        eval_episodes=4,
        record_episodes=0,
        algorithm=changes,
    )
    trainer, run = train(made)
    lines = run.metrics()[1:]
    assert len(lines) == 2 and all(line["tokens_played"] >= line["tokens"] > 0 for line in lines)
    for policy in trainer.learner.trainable:
        assert sum(line[f"policy/{policy}/steps"] for line in lines) > 0
        assert all(np.isfinite(v) for line in lines for v in line.values() if isinstance(v, float))


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_a_reason_and_every_file_names_its_departures(name: str) -> None:
    """A docstring stands under each field: that is ``marft train NAME --help``."""
    source = Path(inspect.getfile(algorithm.get(name)))
    tree = ast.parse(source.read_text())
    assert "Departures" in (ast.get_docstring(tree) or "") and len(source.read_text().splitlines()) <= 150
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.endswith("Config")):
        for field, text in pairwise(cls.body):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant), ast.unparse(field)
    page = source.parents[2] / "docs" / "algorithms" / f"{name}.md"
    assert f"marft train {name} " in page.read_text()
