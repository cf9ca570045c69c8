"""The algorithms with critics: each formula against brute force, the identities between them, two iterations of each."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.references import gae
from helpers.runs import train
from helpers.teams import Heads, Tabular, episode, put, random_team
from marft_algos import functional as F
from marft_algos.algorithms import base as algorithm
from marft_algos.algorithms import needs, ppo
from marft_algos.algorithms.ppo import PPOConfig
from marft_algos.batching import pack
from marft_algos.config import settings as config
from marft_algos.learner import heads
from marft_algos.learner.learner import Learner
from marft_algos.ranks.reduction import ReductionSlots
from marft_algos.training.parts import build
from marft_algos.training.resolve import resolve
from marft_algos.training.trainer import Trainer
from marft_algos.types import Estimates, Trajectory, Transition
from marft_envs.errors import ConfigError

NAMES = ("ippo", "mappo", "happo", "a2po", "mat", "vapo")
THREE = (("a",), ("b",), ("c",))


def make(name: str, **settings: Any) -> Any:
    cls = algorithm.get(name)
    return cls(cls.Config(**settings))


def learner(name: str, policies: Tabular, heads: Heads | None = None, **settings: Any) -> Learner:
    return Learner(make(name, **settings), policies, heads or Heads(policies.policies))


def team(n: int = 12, layers: Any = THREE, seed: int = 0, **fields: Any) -> list[Trajectory]:
    rng = np.random.default_rng(seed)
    return [episode(layers, seed=seed, number=i, rewards=rng.normal(size=len(layers)), **fields) for i in range(n)]


def test_an_episodes_turns_are_read_in_one_lane() -> None:
    """What an agent reads in it extends what it has read."""
    read: list[list[int]] = []

    class Noting(Heads):
        def featurise(self, transitions: Sequence[Transition], **words: Any) -> Any:
            read.append([number[t] for t in transitions])
            return super().featurise(transitions, **words)

    number = {t: d.number for d in team(4, [["a"]] * 3) for t in d.transitions}
    reader = heads.Heads(Noting(["a"]), make("mappo").config, 0, ReductionSlots(count=2))
    reader.read(list(number), Estimates(), view="own", level="action")
    assert read == [[0, 0, 0, 2, 2, 2], [1, 1, 1, 3, 3, 3]]


def scored(data: list[Trajectory], seed: int = 1) -> Estimates:
    """Random values for every turn, one per token."""
    rng = np.random.default_rng(seed)
    return Estimates(values={t: rng.normal(size=len(t.reply.action_ids)).astype(np.float32) for t in turns(data)})


def turns(data: Sequence[Trajectory]) -> list[Transition]:
    return [t for d in data for t in d.transitions]


def shifted(by: dict[str, float]) -> Any:
    """A rescore under which every token of these policies' turns has gained so much log-probability."""
    return lambda rows: [t.reply.logprobs + np.float32(by[t.policy]) for t in rows]


# --- all of them ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_every_return_is_1_for_any_n_and_any_D(name: str, seed: int) -> None:
    """γ = λ = 1, one terminal reward 1, V ≡ c: a reward that is broadcast and bootstrapped would give 1.5."""
    rng = np.random.default_rng(seed)
    data = [episode(random_team(rng, agents=int(rng.integers(1, 5))), seed=seed)]
    algo = make(name, whiten="off")
    points = {t: len(t.reply.action_ids) if algo.level == "token" else 1 for t in turns(data)}
    found = Estimates(values={t: np.full(n, 0.37, np.float32) for t, n in points.items()})
    algo.credit(data, found)
    for t in turns(data):
        assert found.returns[t] == pytest.approx(1.0)
        if name != "vapo":  # its λ of the policy is below 1
            assert found.advantages[t] == pytest.approx(1.0 - 0.37, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_agents_buffer_is_written_and_holds_floats(name: str, n: int) -> None:
    algo, data = make(name), team(layers=[[f"a{i}"] for i in range(n)])
    policies, heads = Tabular([f"a{i}" for i in range(n)]), Heads([f"a{i}" for i in range(n)])
    trainer = Learner(algo, policies, heads)
    trainer.update(policies.play(data), 0)
    advantages, returns = trainer.estimates.advantages, trainer.estimates.returns
    for t in turns(data):
        points = len(t.reply.action_ids) if algo.level == "token" else 1
        assert advantages[t].dtype == returns[t].dtype == np.float32
        assert advantages[t].shape == (points,) and np.abs(advantages[t]).min() > 0
    whole = np.concatenate([advantages[t] for t in turns(data)])
    assert len(np.unique(np.modf(whole)[0])) > n, "fractions must survive"


@pytest.mark.parametrize("name", NAMES)
def test_an_episodes_returns_do_not_depend_on_the_episode_before_it(name: str) -> None:
    algo, data = make(name, whiten="off", level="token"), team(n=2)
    together = scored(data)
    alone = Estimates(values=together.values)
    algo.credit(data, together)
    algo.credit(data[1:], alone)
    assert set(alone.returns) == set(data[1].transitions)
    for t in data[1].transitions:
        assert alone.advantages[t].tolist() == together.advantages[t].tolist()
        assert alone.returns[t].tolist() == together.returns[t].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_and_frozen_partners_change_nothing_they_should_not(name: str) -> None:
    results = []
    for budget in (10**6, 20):
        policies, data = Tabular(["a", "b", "c"], frozen=["c"]), team()
        for d in data:
            d.episode.success = d.number % 2 == 0
        before = policies.tables["c"].clone()
        stats = learner(name, policies, lr=0.05, epochs=2, minibatches=2, micro_tokens=budget, value_warmup=0).update(
            policies.play(data), 0
        )
        assert torch.equal(policies.tables["c"], before) and "policy/c/loss" not in stats
        assert all(math.isfinite(v) for v in stats.values())
        results.append((policies.tables, stats))
    (one, first), (other, second) = results
    assert all(torch.allclose(one[p], other[p], atol=1e-4) for p in "ab")
    assert all(second[key] == pytest.approx(value, abs=1e-4) for key, value in first.items())


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_a_reason(name: str) -> None:
    for cls in (algorithm.get(name).Config, PPOConfig):
        for field, text in pairwise(ast.parse(inspect.getsource(cls)).body[0].body):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant), ast.unparse(field)


@pytest.mark.parametrize(
    ("name", "policies", "says"),
    [("mat", "own", "--policies shared"), ("happo", "shared", "--policies own"), ("a2po", "shared", "--policies own")],
)
def test_a_combination_that_cannot_work_is_refused_before_a_model_is_loaded(
    name: str, policies: str, says: str
) -> None:
    table = {"algo": name, "env": "relay-v0", "policies": policies, "models": "/there/is/no/such/model"}
    with pytest.raises(ConfigError, match=says):
        Trainer(build(config.build(table)))


def test_a_policy_that_some_agents_share_is_a_block_among_others() -> None:
    import marft_envs

    env = marft_envs.make("route-v0")
    agents = list(env.unwrapped.possible_agents)
    assert len(agents) > 2
    sharing = dict.fromkeys(agents, "x") | {agents[0]: "y"}
    facts = resolve(config.build({"env": "route-v0", "policies": sharing}), env).facts
    needs.check(make("happo"), facts)
    with pytest.raises(ConfigError, match="one policy for all"):
        needs.check(make("mat"), facts)


def test_what_a_preset_changes_holds_for_every_algorithm() -> None:
    """Its learning rate does; an algorithm's own defaults stay where the preset says nothing."""
    base = config.build({"algorithm": {"lr": 0.125, "kl_coef": 0.25, "update": "agent"}})
    made = config.build({"algo": "vapo", "algorithm": {"kl_coef": 0.5}}, base).algorithm
    assert (made.lr, made.kl_coef, made.clip_high, made.value_warmup) == (0.125, 0.5, 0.28, 5)


# --- IPPO and MAPPO ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ippo", "mappo", "mat"])
@pytest.mark.parametrize("seed", range(5))
def test_agent_chains_are_gae_over_each_agents_own_turns(name: str, seed: int) -> None:
    """Reward from the turn to the agent's next turn or the end: the team's, the agent's own, and the turn's own."""
    rng = np.random.default_rng(seed)
    layers = random_team(rng, agents=3)
    (d,) = data = [episode(layers, seed=seed, rewards=rng.normal(size=len(layers)))]
    found = scored(data)
    names = sorted({t.agent for t in d.transitions})
    for layer in d.layers:
        layer.agent_rewards = {agent: float(rng.normal()) for agent in names}
    for t in d.transitions:
        t.turn.reward, found.values[t] = float(rng.normal()), found.values[t][:1]
        t.turn.sees = tuple(range(t.index))
        put(t, observation="the task")
    make(name, whiten="off", level="action", gamma_turn=0.9, lambda_turn=0.8).credit(data, found)
    for agent in names:
        own = [t for t in d.transitions if t.agent == agent]
        ends = [t.layer for t in own[1:]] + [len(d.layers)]
        paid = [
            t.turn.reward + sum(d.layers[i].team_reward + d.layers[i].agent_rewards[agent] for i in range(t.layer, end))
            for t, end in zip(own, ends, strict=True)
        ]
        expected, returns = gae(paid, [float(found.values[t][0]) for t in own], [True] * len(own), 0.9, 0.8)
        assert [float(found.advantages[t][0]) for t in own] == pytest.approx(expected.tolist(), abs=1e-5)
        assert [float(found.returns[t][0]) for t in own] == pytest.approx(returns.tolist(), abs=1e-5)


@pytest.mark.parametrize("level", ["action", "token"])
def test_MARFT_with_agent_chains_is_IPPO(level: str) -> None:
    """In a zero-sum game too, which its team chain refuses."""
    moved = []
    for name, extra in (("marft", {"chain": "agent", "value_clip": 0.2}), ("ippo", {})):
        policies, heads, data = Tabular(["a", "b"]), Heads(["a", "b"]), team(layers=[["a"], ["b"], ["a"]])
        for d in data:
            d.layers[-1].agent_rewards = {"a": d.layers[-1].team_reward, "b": -d.layers[-1].team_reward}
            d.layers[-1].team_reward = 0.0
        stats = learner(name, policies, heads, level=level, lr=0.05, epochs=2, minibatches=2, **extra).update(
            policies.play(data), 0
        )
        moved.append((policies.tables, stats))
    assert all(torch.equal(moved[0][0][p], moved[1][0][p]) for p in "ab") and moved[0][1] == moved[1][1]
    with pytest.raises(ConfigError, match="marft --chain agent"):
        make("marft").credit(data, Estimates())


def test_what_others_are_paid_is_nothing_to_an_independent_learner() -> None:
    def returns(other: float) -> list[float]:
        data = team(n=1, layers=[["a"], ["b"], ["a"]])
        data[0].layers[1].agent_rewards, data[0].transitions[1].turn.reward = {"b": other}, other
        make("ippo", critic_lr=0.0).credit(data, found := Estimates())
        return [float(g) for t in data[0].transitions if t.agent == "a" for g in found.returns[t]]

    assert returns(0.0) == returns(7.0)


def test_the_views_of_the_critics() -> None:
    for name, view in (("ippo", "own"), ("vapo", "own"), ("mappo", "team"), ("happo", "team"), ("a2po", "team")):
        policies, heads = Tabular(["a", "b", "c"]), Heads(["a", "b", "c"])
        learner(name, policies, heads).update(policies.play(team()), 0)
        assert {seen for seen, _ in heads.seen} == {view}, name


def test_bootstrapping_from_an_own_view_that_forgets_is_refused() -> None:
    data = team(layers=[["a"], ["b"], ["a"]])
    make("ippo", lambda_turn=0.9).credit(data, found := scored(data))
    data[0].transitions[2].turn.sees = (1,)  # a's second turn is not shown what a said first
    with pytest.raises(ConfigError, match="MAPPO"):
        make("ippo", lambda_turn=0.9).credit(data, found)
    make("mappo", lambda_turn=0.9).credit(data, found)


def test_a_truncated_agent_chain_goes_on_with_the_agents_own_next_value() -> None:
    """Who is not in the layer that would have run takes that layer's value if rewards are the team's, else 0."""
    (cut,) = data = team(n=1, layers=[["a"], ["b"]], tokens=[1, 1])
    cut.episode.terminated, cut.episode.truncated = False, True
    for layer in cut.layers:
        layer.team_reward = 0.0
    put(cut, planned=[copy.deepcopy(cut.transitions[0])])
    found = Estimates(values={cut.planned[0]: np.array([0.25], np.float32)}, bootstraps={cut: 0.5})
    algo = make("mappo")
    algo.credit(data, found)
    assert [float(found.returns[t][-1]) for t in cut.transitions] == [0.25, 0.5]
    cut.layers[0].agent_rewards = {"a": 1.0, "b": -1.0}
    algo.credit(data, found)
    assert [float(found.returns[t][-1]) for t in cut.transitions] == [1.25, 0.0]


@pytest.mark.parametrize("level", ["action", "token"])
def test_MAPPO_with_a_constant_critic_is_REINFORCE_with_a_baseline(level: str) -> None:
    """One step on the first minibatch: the gradient of −mean(log π·(G − c)), written out without any batch."""
    policies, heads, data = Tabular(["a", "b", "c"]), Heads(["a", "b", "c"]), team()
    for weights in heads.weights.values():
        weights.data += 0.3
    before = {p: table.detach().clone() for p, table in policies.tables.items()}
    learner("mappo", policies, heads, level=level, norm="sum", lr=1e-3, max_grad_norm=None).update(
        policies.play(data), 0
    )
    gains = {id(t): sum(layer.team_reward for layer in d.layers[t.layer :]) - 0.3 for d in data for t in d.transitions}
    every = np.concatenate(
        [[gains[id(t)]] * (1 if level == "action" else len(t.reply.action_ids)) for t in turns(data)]
    )
    for p, table in before.items():
        table.requires_grad_()
        terms = []
        for t in (t for t in turns(data) if t.policy == p):
            ids = torch.tensor(t.request.prompt_ids[-1:] + t.reply.action_ids)
            logp = torch.log_softmax(table, -1)[ids[:-1], ids[1:]]
            weight = (gains[id(t)] - every.mean()) / every.std()
            terms.append(weight * (logp.sum()[None] if level == "action" else logp))
        (-torch.cat(terms).mean()).backward()
        torch.optim.Adam([table], lr=1e-3, eps=1e-5).step()
        assert torch.allclose(policies.tables[p], table, atol=1e-6), p


# --- HAPPO ------------------------------------------------------------------------------------------------------


def test_HAPPO_with_one_agent_is_PPO() -> None:
    settings = {"level": "action", "norm": "sum", "lr": 0.05, "epochs": 2, "minibatches": 2, "lambda_turn": 0.8}
    moved = []
    for name, extra in (("happo", {}), ("marft", {"critic": "team"})):
        policies, data = Tabular(["a"]), team(layers=[["a"], ["a"], ["a"]], rounds=[0, 1, 2])
        trainer = Learner(make(name, **settings, **extra), policies, heads := Heads(["a"]))
        trainer.update(policies.play(data), 0)
        advantages = [trainer.estimates.advantages[t] for t in turns(data)]
        moved.append((policies.tables["a"], heads.weights["a"], advantages))
    assert torch.equal(moved[0][0], moved[1][0]) and torch.equal(moved[0][1], moved[1][1])
    assert np.array_equal(moved[0][2], moved[1][2])


@pytest.mark.parametrize("level", ["action", "token"])
@pytest.mark.parametrize("seed", range(5))
def test_HAPPO_gives_a_round_one_joint_advantage(level: str, seed: int) -> None:
    """GAE over rounds, V read where the round starts; every turn and every token of the round has it."""
    rng = np.random.default_rng(seed)
    layers = random_team(rng, agents=3)
    rounds = np.cumsum([0, *rng.integers(0, 2, size=len(layers) - 1)]).tolist()
    (d,) = data = [episode(layers, seed=seed, rewards=rng.normal(size=len(layers)), rounds=rounds)]
    found = scored(data)
    for t in d.transitions:
        t.turn.reward, found.values[t] = float(rng.normal()), found.values[t][:1]
    make("happo", level=level, whiten="off", gamma_turn=0.9, lambda_turn=0.7).credit(data, found)
    paid, values = [0.0] * (rounds[-1] + 1), [math.nan] * (rounds[-1] + 1)
    for i, layer in reversed(list(enumerate(d.layers))):
        paid[rounds[i]] += layer.team_reward + sum(d.transitions[k].turn.reward for k in layer.turns)
        values[rounds[i]] = float(np.mean([found.values[d.transitions[k]][0] for k in layer.turns]))
    expected, returns = gae(paid, values, [True] * len(paid), 0.9, 0.7)
    for t in d.transitions:
        assert found.advantages[t] == pytest.approx(expected[t.round], abs=1e-5)
        assert found.returns[t] == pytest.approx(returns[t.round], abs=1e-5)
        assert len(found.advantages[t]) == (len(t.reply.action_ids) if level == "token" else 1)
        assert len(found.returns[t]) == 1


def test_HAPPO_factor_is_the_product_of_clipped_ratios_of_the_round() -> None:
    """Two policies are updated; x speaks for two agents, whose log-ratios of a round add up before the clip."""
    data = team(n=6, layers=[["a", "b"], ["c"], ["d"]] * 2, rounds=[0, 0, 0, 1, 1, 1], policies={"a": "x", "b": "x"})
    algo, move = make("happo", level="action"), {"x": 0.11, "c": -0.05}
    algo.credit(data, found := Estimates())
    before = [found.advantages[t].copy() for t in turns(data)]
    for policy in ("x", "c"):
        logged = algo.after_block([policy], data, found, shifted(move))
    factors = []
    for d in data:
        for t in (t for t in d.transitions if t.agent == "d"):
            deltas = [
                sum(move[p] * len(u.reply.action_ids) for u in d.transitions if (u.policy, u.round) == (p, t.round))
                for p in ("x", "c")
            ]
            factors.append(math.prod(min(max(math.exp(delta), 0.5), 2.0) for delta in deltas))
            assert algo.factors[t] == pytest.approx(factors[-1], rel=1e-5)
    assert min(factors) < 0.99 * max(factors) and max(factors) > 1.5
    share = sum(factors) ** 2 / len(factors) / sum(m * m for m in factors)
    assert logged == {"policy/d/factor_ess": pytest.approx(share)} and share < 1
    assert np.array_equal(before, [found.advantages[t] for t in turns(data)]), "whitened once, before the factor"
    rows = [t for t in turns(data) if t.agent == "d"]
    batch = pack(rows, found, "action")
    new = torch.where(batch.mask, batch.old_logprobs + 0.2, 0.0)
    loss, stats = algo.surrogate(new, batch)
    assert stats["factor"] == pytest.approx(np.mean(factors), rel=1e-5)
    rho, a, m = math.exp(0.2), batch.advantages, torch.tensor(factors, dtype=torch.float32)
    assert loss.item() == pytest.approx(-(m * torch.minimum(rho * a, a.new_tensor(1.2) * a)).mean().item(), rel=1e-5)


def test_HAPPO_normalised_factor_takes_the_mean_log_ratio() -> None:
    data = team(n=1, layers=[["a"], ["b"]], tokens=[5, 2])
    algo = make("happo", factor="token")
    algo.credit(data, found := Estimates())
    algo.after_block(["a"], data, found, shifted({"a": 0.1}))
    assert algo.factors == {data[0].transitions[1]: pytest.approx(math.exp(0.1), rel=1e-5)}


def test_HAPPO_factor_is_1_after_a_zero_lr_update() -> None:
    policies, data = Tabular(["a", "b", "c"]), team()
    still = learner("happo", policies, lr=0.0, epochs=3)
    stats, factors = still.update(policies.play(data), 0), still.algorithm.factors
    assert len({t.policy for t in factors}) == 2, "those of the first block have none: nobody moved before them"
    assert all(factors.get(t, 1.0) == pytest.approx(1.0, abs=1e-5) for t in turns(data))
    assert all(stats[f"policy/{p}/factor_ess"] == pytest.approx(1.0) for p in "abc")
    moving = Tabular(["a", "b", "c"])
    stats = learner("happo", moving, lr=0.3, epochs=3).update(moving.play(data), 1)
    assert min(stats[f"policy/{p}/factor_ess"] for p in "abc") < 1.0


def test_HAPPO_order_is_random_whole_and_the_runs_own() -> None:
    rows: dict[str, list[Transition]] = {p: [] for p in "abcd"}

    def orders(seed: int) -> list[str]:
        algo = make("happo")
        algo.seed = seed
        return ["".join(p for (p,) in algo.order(rows, Estimates(), iteration)) for iteration in range(30)]

    assert all(sorted(o) == list("abcd") for o in orders(0)) and len(set(orders(0))) > 10
    assert {o[0] for o in orders(0)} == set("abcd")
    assert orders(0) == orders(0) != orders(1)


# --- A2PO -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mover", ["a", "b", "c"])
@pytest.mark.parametrize("level", ["action", "token"])
def test_A2PO_with_the_others_fixed_and_one_clip_for_all_is_PPO(mover: str, level: str) -> None:
    """The others' ratio is 1 (they take no step) and w_c = 0: what is left is PPO for that agent, wherever it stands."""
    settings: dict[str, Any] = {
        "level": level,
        "norm": "sum",
        "lr": {p: 0.1 if p == mover else 0.0 for p in "abc"},
        "epochs": 3,
        "minibatches": 2,
        "lambda_turn": 0.8,
        "clip": 0.05,
    }
    moved = []
    for name, extra in (("a2po", {"clip_anneal": 0.0}), ("marft", {"critic": "team"})):
        policies, data = Tabular(["a", "b", "c"]), team()
        stats = learner(name, policies, **settings, **extra).update(policies.play(data), 0)
        moved.append(policies.tables)
        assert stats[f"policy/{mover}/clip_share"] > 0
    for p in "abc":
        assert torch.allclose(moved[0][p], moved[1][p], atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_A2PO_corrects_advantages_by_the_trace(seed: int) -> None:
    """The definition as a recursion: c = min(1, ρ of the whole turn) where the policy has moved, 1 elsewhere."""
    rng = np.random.default_rng(seed)
    layers = [*random_team(rng, agents=4), ["a0"], ["a1", "a2"], ["a3"]]
    data = [episode(layers, seed=seed, number=i, rewards=rng.normal(size=len(layers))) for i in range(3)]
    found = scored(data)
    move = {"a1": -0.2, "a3": 0.1}
    algo = make("a2po", whiten="off", gamma_tok=0.99, lambda_tok=0.95, gamma_turn=0.9, lambda_turn=0.8)
    algo.credit(data, found)
    own = [t for t in turns(data) if t.policy == "a1"]
    kept = [found.returns[t].copy() for t in own]
    for policy in move:
        algo.after_block([policy], data, found, shifted(move))
    assert np.array_equal(np.concatenate(kept), np.concatenate([found.returns[t] for t in own]))

    def value(d: Trajectory, k: int, t: int) -> float:
        turn, v = d.transitions[k], found.values[d.transitions[k]]
        if t < len(v) - 1:
            return 0.99 * (0.05 * v[t + 1] + 0.95 * value(d, k, t + 1))
        ahead = d.layers[turn.layer + 1].turns if turn.layer + 1 < len(d.layers) else ()
        total = d.layers[turn.layer].team_reward
        for j in ahead:
            after = d.transitions[j]
            weight = 0.8 * min(1.0, math.exp(move.get(after.policy, 0.0) * len(after.reply.action_ids)))
            total += 0.9 * ((1 - weight) * found.values[after][0] + weight * value(d, j, 0)) / len(ahead)
        return float(total)

    for d in data:
        for t in (t for t in d.transitions if t.policy in ("a0", "a2")):
            expected = [value(d, t.index, i) for i in range(len(t.reply.action_ids))]
            assert found.returns[t] == pytest.approx(expected, abs=1e-4)
            assert found.advantages[t] == pytest.approx(np.array(expected) - found.values[t], abs=1e-4)


def test_A2PO_trace_with_ratio_one_leaves_GAE_as_it_was() -> None:
    found = scored(data := [*team(), *team(1, [["b"]], seed=1)])  # in the last one nobody is still to come
    algo = make("a2po", lambda_turn=0.8, lambda_tok=0.9)
    algo.credit(data, found)
    before = [(found.advantages[t].copy(), found.returns[t].copy()) for t in turns(data)]
    logged = algo.after_block(["b"], data, found, shifted({"b": 0.0}))
    assert logged == {"policy/b/trace": 1.0}
    for t, (a, g) in zip(turns(data), before, strict=True):
        assert found.advantages[t] == pytest.approx(a, abs=1e-6) and found.returns[t] == pytest.approx(g, abs=1e-6)


def test_A2PO_whitens_anew_and_keeps_what_a_block_was_trained_on() -> None:
    found = scored(data := team(n=40))

    def advantages(policy: str) -> np.ndarray:
        return np.concatenate([found.advantages[t] for t in turns(data) if t.policy == policy])

    algo = make("a2po", lambda_turn=0.8)
    algo.credit(data, found)
    trained = advantages("c")
    algo.after_block(["c"], data, found, shifted({"c": -0.5}))
    assert np.array_equal(trained, advantages("c"))
    corrected = advantages("a")
    raw = make("a2po", lambda_turn=0.8, whiten="off")
    raw.credit(data, found)
    before, stale = advantages("a"), advantages("c")
    raw.after_block(["c"], data, found, shifted({"c": -0.5}))
    plain = {p: advantages(p) for p in "abc"}
    assert np.abs(plain["a"] - before).max() > 0.1 and np.array_equal(plain["c"], stale)
    # c's own advantages do not change when only c has moved: nobody speaks after it.
    every = np.concatenate(list(plain.values()))
    assert corrected == pytest.approx((plain["a"] - every.mean()) / every.std(), abs=1e-5)


def test_A2PO_outer_ratio_takes_updated_turns_of_the_round_up_to_the_layer() -> None:
    data = team(n=2, layers=[["a"], ["b", "x"], ["c"]] * 2, rounds=[0, 0, 0, 1, 1, 1])
    algo, move = make("a2po", clip_outer=0.3), {"c": 0.9, "a": -0.02, "x": 0.03}
    algo.credit(data, found := Estimates())
    for policy in move:
        algo.after_block([policy], data, found, shifted(move))
    for d in data:
        for t in (t for t in d.transitions if t.agent == "b"):
            same = [u for u in d.transitions if u.round == t.round and u.agent in ("a", "x")]
            product = math.exp(sum(move[u.agent] * len(u.reply.action_ids) for u in same))
            assert algo.outer[t] == pytest.approx(min(max(product, 0.7), 1.3), rel=1e-5), "c comes later"
    rows = [t for t in turns(data) if t.agent == "b"]
    batch, algo.scale = pack(rows, found, "token"), 0.6
    new = torch.where(batch.mask, batch.old_logprobs + 0.15, 0.0)
    loss, stats = algo.surrogate(new, batch)
    outer = torch.tensor([algo.outer[t] for t in rows])[:, None]
    w, a = (math.exp(0.15) * outer).expand_as(batch.advantages), batch.advantages
    expected = -torch.minimum(w * a, w.clamp(1 - 0.12, 1 + 0.12) * a)[batch.mask].mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5) and stats["clip_eps_max"] == pytest.approx(0.12)
    assert stats["outer"] == pytest.approx(outer.mean().item(), rel=1e-5)


def test_A2PO_order_is_semi_greedy_and_the_clip_widens_with_the_position() -> None:
    def blocks(sizes: dict[str, float], iteration: int, after: dict[str, float] | None = None) -> tuple[list, list]:
        algo = make("a2po", clip_anneal=0.5)
        rows = {p: team(n=1, layers=[[p]])[0].transitions if p != "idle" else [] for p in [*sizes, "idle"]}
        order, scales, found = [], [], Estimates()
        for p, size in sizes.items():
            found.advantages[rows[p][0]] = np.array([size, -size], np.float32)
        for block in algo.order(rows, found, iteration):
            order.append("".join(block))
            scales.append(algo.scale)
            for p, size in (after or {}).items():
                found.advantages[rows[p][0]] = np.array([size], np.float32)
        return order, scales

    sizes = {"a": 0.5, "b": 2.0, "c": 1.0, "d": 0.1}
    seen = [blocks(sizes, i) for i in range(20)]
    assert all(order[0] == "b" and order[-1] == "idle" and sorted(order[:4]) == list("abcd") for order, _ in seen)
    assert len({order[1] for order, _ in seen}) == 3, "the second place is anybody's"
    for order, scales in seen:
        assert order[2] == max(order[2:4], key=sizes.__getitem__)
        assert scales[:4] == pytest.approx([0.625, 0.75, 0.875, 1.0])
    later = [blocks(sizes, i, after={"d": 9.0})[0] for i in range(20)]
    assert all("d" in order[1:3] for order in later), "the third place goes by the corrected advantages"


# --- MAT and VAPO -----------------------------------------------------------------------------------------------


def test_MAT_is_MAPPO_on_whole_turns_with_one_policy_for_all() -> None:
    moved = []
    for name, extra in (("mat", {}), ("mappo", {"level": "action"})):
        policies, data = Tabular(["x"]), team(policies=dict.fromkeys("abc", "x"))
        trainer = learner(name, policies, lr=0.05, epochs=2, **extra)
        trainer.update(policies.play(data), 0)
        moved.append(policies.tables["x"])
        found = trainer.estimates
        assert all(len(found.values[t]) == len(found.advantages[t]) == 1 for t in turns(data))
    assert torch.equal(*moved)


def test_MAT_logs_how_much_of_the_transcript_turns_are_not_shown() -> None:
    def unseen(data: list[Trajectory]) -> float:
        return make("mat").credit(data, Estimates(values={t: np.zeros(1, np.float32) for t in turns(data)}))["unseen"]

    data = team(n=2, rounds=[0, 0, 0])
    assert unseen(data) == 0.0
    for d in data:
        d.transitions[2].turn.sees = (1,)
    assert unseen(data) == pytest.approx(1 / 3)
    assert unseen(team(n=1, layers=[["a"]])) == 0.0


def test_VAPO_lambda_follows_the_length_of_the_reply() -> None:
    assert [F.length_adaptive_lambda(n, 0.05) for n in (1, 19, 400)] == [0.95] * 3
    assert F.length_adaptive_lambda(1000, 0.05) == pytest.approx(0.98)
    lambdas = [F.length_adaptive_lambda(n, 0.05) for n in range(1, 3000)]
    assert all(0.95 <= a <= b < 1 for a, b in pairwise(lambdas))


def test_VAPO_targets_are_monte_carlo_and_advantages_use_the_policys_lambda() -> None:
    found = scored(data := team(n=4, tokens=[3, 9, 30]))
    logged = make("vapo", whiten="off", alpha=2.0).credit(data, found)
    lambdas = []
    for d in data:
        for t in d.transitions:
            n, paid = len(t.reply.action_ids), sum(layer.team_reward for layer in d.layers[t.layer :])
            lambdas.append(max(0.95, 1 - 1 / (2.0 * n)))
            expected, _ = gae([0.0] * (n - 1) + [paid], list(found.values[t]), [True] * n, 1.0, lambdas[-1])
            assert found.returns[t] == pytest.approx(paid, abs=1e-5)
            assert found.advantages[t] == pytest.approx(expected, abs=1e-5)
    assert logged["lambda"] == pytest.approx(np.mean(lambdas)) and max(lambdas) > 0.98 > min(lambdas)


def test_VAPO_adds_the_likelihood_of_correct_replies_as_a_mean_over_their_tokens() -> None:
    found = scored(data := team(n=6))
    for d, success in zip(data, (True, False, None, True, False, False), strict=True):
        d.episode.success = success
    algo = make("vapo", nll_coef=0.1)
    assert algo.credit(data, found)["correct"] == pytest.approx(2 / 6)
    rows = [t for t in turns(data) if t.policy == "b"]
    batch = pack(rows, found, "token")
    new = torch.where(batch.mask, batch.old_logprobs - 0.3, 0.0)
    loss, stats = algo.surrogate(new, batch)
    correct = np.concatenate([d.transitions[1].reply.logprobs for d in data if d.success]) - 0.3
    a, rho = batch.advantages[batch.mask], math.exp(-0.3)
    clipped = -torch.minimum(rho * a, torch.tensor(0.8) * a).mean()
    assert stats["nll"] == pytest.approx(-correct.mean(), rel=1e-5)
    assert loss.item() == pytest.approx(clipped.item() - 0.1 * correct.mean(), rel=1e-5)
    for d in data:
        d.episode.success = None
    algo.credit(data, found)
    assert algo.surrogate(new, pack(rows, found, "token"))[1]["nll"] == 0.0


def test_VAPO_learns_from_episodes_with_candidates_whose_replies_are_not_correct_ones() -> None:
    data = [dataclasses.replace(d, candidates=[dataclasses.replace(d.transitions[1])]) for d in team(n=4)]
    for d in data:
        d.episode.success = True
    algo, found = make("vapo", nll_coef=0.1), scored(data)
    algo.credit(data, found)
    rows = [t for d in data for t in (*d.transitions, *d.candidates) if t.policy == "b"]
    batch = pack(rows, found, "token")
    expected = np.concatenate([d.transitions[1].reply.logprobs for d in data]).mean()
    assert algo.surrogate(batch.old_logprobs, batch)[1]["nll"] == pytest.approx(-expected, rel=1e-5)


def test_VAPO_trains_its_critic_first_and_refuses_what_has_no_meaning() -> None:
    policies, heads = Tabular(["a", "b", "c"]), Heads(["a", "b", "c"])
    trainer = learner("vapo", policies, heads, value_warmup=2, lr=0.1)
    before = {p: table.detach().clone() for p, table in policies.tables.items()}
    for iteration in range(3):
        assert all(torch.equal(before[p], policies.tables[p]) for p in "abc")
        trainer.update(policies.play(team(seed=iteration)), iteration)
    assert not torch.equal(before["a"], policies.tables["a"]) and heads.weights["a"].abs().max() > 0
    with pytest.raises(ConfigError, match="expected 'token'"):
        make("vapo", level="action")
    with pytest.raises(ConfigError, match="more than 0"):
        make("vapo", alpha=0.0)


# --- functions, ValueNorm ---------------------------------------------------------------------------------------


def test_effective_samples_and_outer_factor() -> None:
    assert F.effective_samples(np.full(7, 0.3)) == pytest.approx(1.0)
    assert F.effective_samples(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert F.outer_factor(0.05, 0.1) == pytest.approx(math.exp(0.05))
    assert (F.outer_factor(5.0, 0.1), F.outer_factor(-5.0, 0.1)) == (1.1, 0.9)
    assert F.outer_factor(1e6, 0.1) == 1.1


def test_log_ratios_are_against_the_old_logprobs_of_the_ratio() -> None:
    data = team(n=1)
    a, b, c = data[0].transitions
    found = Estimates(old_logprobs={a: a.reply.logprobs - np.float32(0.5)})
    moved = ppo.log_ratios(["a", "b"], data, found, shifted({"a": 0.0, "b": 0.1}))
    assert moved[a] == pytest.approx(np.full(len(a.reply.action_ids), 0.5), rel=1e-5)
    assert moved[b] == pytest.approx(np.full(len(b.reply.action_ids), 0.1), rel=1e-5) and c not in moved


def test_value_norm_not_yet_updated_is_the_identity_and_then_follows_the_returns() -> None:
    def run(beta: float | None, iterations: int) -> tuple[list[Trajectory], Learner]:
        policies, heads = Tabular(["a", "b"]), Heads(["a", "b"])
        for weights in heads.weights.values():
            weights.data += 0.5
        trainer = learner("mappo", policies, heads, value_norm=beta, lr=0.0, value_clip=None)
        for i in range(iterations):
            data = [episode([["a"], ["b"]], number=k, rewards=[0.0, 100.0 + k]) for k in range(8)]
            trainer.update(policies.play(data), i)
        return data, trainer

    (first, normed), (plain, bare) = run(0.9, 1), run(None, 1)
    one, other = normed.estimates, bare.estimates
    for t, u in zip(turns(first), turns(plain), strict=True):
        assert one.values[t].tolist() == other.values[u].tolist()
        assert one.returns[t].tolist() == other.returns[u].tolist()
        assert one.returns[t] == pytest.approx(103.5, abs=4.0), "targets stay in rewards' units"
    second, trainer = run(0.9, 2)
    values = np.concatenate([trainer.estimates.values[t] for t in turns(second)])
    assert np.abs(values - 103.5).max() < 5.0, "one update has put the heads where the returns are"
    fresh = learner("mappo", Tabular(["a", "b"]), value_norm=0.9)
    fresh.load_state_dict(copy.deepcopy(trainer.state_dict()))
    assert fresh.state_dict()["value_norm"] == trainer.state_dict()["value_norm"]


# --- others' code -----------------------------------------------------------------------------------------------


def test_gae_agrees_with_stable_baselines3() -> None:
    buffers = pytest.importorskip("stable_baselines3.common.buffers", reason="pip install stable-baselines3")
    gym = pytest.importorskip("gymnasium")
    rng = np.random.default_rng(0)
    n, box = 50, gym.spaces.Box(-1, 1, (1,))
    buffer = buffers.RolloutBuffer(n, box, box, device="cpu", gae_lambda=0.9, gamma=0.97, n_envs=1)
    rewards, values, tail = rng.normal(size=n), rng.normal(size=n), float(rng.normal())
    for r, v in zip(rewards, values, strict=True):
        zero = np.zeros((1, 1))
        buffer.add(zero, zero, np.array([r]), np.zeros(1), torch.tensor([v]), torch.zeros(1))
    buffer.compute_returns_and_advantage(torch.tensor([tail]), np.zeros(1))
    advantages, returns = gae(rewards, values, [True] * n, 0.97, 0.9, tail)
    assert buffer.advantages[:, 0] == pytest.approx(advantages, abs=1e-5)
    assert buffer.returns[:, 0] == pytest.approx(returns, abs=1e-5)
    chained, _ = F.lambda_returns(
        list(values[:, None]),
        [1] * n,
        list(rewards),
        [(i + 1,) if i + 1 < n else () for i in range(n)],
        F.Discounts(1.0, 0.97, 1.0, 0.9),
        bootstraps=[tail] * n,
    )
    assert np.concatenate(chained) == pytest.approx(buffer.advantages[:, 0], abs=1e-5)


def test_gae_and_the_clipped_surrogate_agree_with_torchrl() -> None:
    functional = pytest.importorskip("torchrl.objectives.value.functional", reason="pip install torchrl")
    objectives = pytest.importorskip("torchrl.objectives", reason="pip install torchrl")
    tensordict = pytest.importorskip("tensordict", reason="pip install torchrl")
    rng = np.random.default_rng(1)
    n = 40
    rewards, values, tail = rng.normal(size=n), rng.normal(size=n), float(rng.normal())
    column = {k: torch.tensor(v, dtype=torch.float64)[:, None] for k, v in (("r", rewards), ("v", values))}
    after = torch.cat([column["v"][1:], torch.tensor([[tail]], dtype=torch.float64)])
    end = torch.zeros(n, 1, dtype=torch.bool)
    theirs, targets = functional.generalized_advantage_estimate(0.97, 0.9, column["v"], after, column["r"], end, end)
    advantages, returns = gae(rewards, values, [True] * n, 0.97, 0.9, tail)
    assert theirs[:, 0].numpy() == pytest.approx(advantages, abs=1e-5)
    assert targets[:, 0].numpy() == pytest.approx(returns, abs=1e-5)

    from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule

    logits = torch.nn.Linear(3, 5)
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(logits, in_keys=["observation"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"], out_keys=["action"], distribution_class=torch.distributions.Categorical
        ),
    )
    loss = objectives.ClipPPOLoss(actor, None, clip_epsilon=0.2, entropy_bonus=False, critic_coeff=None)
    observation, action = torch.randn(64, 3), torch.randint(5, (64,))
    new = torch.log_softmax(logits(observation), -1).gather(-1, action[:, None])[:, 0].detach()
    old, advantage = new + 0.4 * torch.randn(64), torch.randn(64)
    data = tensordict.TensorDict(
        {"observation": observation, "action": action, "advantage": advantage[:, None], "action_log_prob": old}, [64]
    )
    data["sample_log_prob"] = old
    expected = loss(data)["loss_objective"]
    ours = F.clipped_surrogate(F.ratio(new, old), advantage, 0.2, 0.2).mean()
    assert ours.item() == pytest.approx(expected.item(), abs=1e-5)


# --- two iterations of each -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_two_iterations_with_the_embedded_model(name: str, tmp_path: Path) -> None:
    table = {
        "algo": name,
        "env": "relay-v0",
        "models": "embedded",
        "device": "cpu",
        "dtype": "fp32",
        "policies": "shared" if name == "mat" else "own",
        "max_new_tokens": 2,
        "iterations": 2,
        "episodes_per_iteration": 8,
        "eval_episodes": 8,
        "record_episodes": 2,
        "runs_dir": str(tmp_path),
        "algorithm": {"lr": 1e-3, "epochs": 2, **({"value_warmup": 1} if name == "vapo" else {})},
    }
    trainer, run = train(config.build(table))
    lines = run.metrics()
    assert trainer.progress.iteration == 2 and [line["iteration"] for line in lines] == [0, 1, 2]
    for p in trainer.policies.policies:
        assert lines[-1][f"policy/{p}/steps"] >= 1 and math.isfinite(lines[-1][f"policy/{p}/loss"])
        assert f"policy/{p}/value_loss" in lines[-1]
    assert dataclasses.asdict(config.load(run.config_file).algorithm) == dataclasses.asdict(trainer.config.algorithm)


@pytest.mark.parametrize("whiten", ["global", "policy"])
@pytest.mark.parametrize("baseline", ["mean", "optimal"])
@pytest.mark.parametrize("name", ["marft", "ippo", "mappo", "happo", "a2po"])
def test_a_batch_in_which_everybody_is_paid_alike_moves_nobody_whatever_the_critic_says(
    name: str, baseline: str, whiten: str
) -> None:
    """Whitening would make the critic's errors as large as a signal: a team that has solved its task unlearnt it.

    Nor do Adam's running means carry on with the update before, which had something to learn from.
    """
    policies, heads = Tabular(["a", "b"]), Heads(["a", "b"])
    for weights in heads.weights.values():
        weights.data.normal_(generator=torch.Generator().manual_seed(3))
    trainer = learner(name, policies, heads, whiten=whiten, baseline=baseline, lr=0.1)
    updates = (([1.0] * 6, False), ([1.0] * 5 + [0.0], True), ([0.0] * 6, False), ([0.0] * 6, False))
    for iteration, (paid, moved) in enumerate(updates):
        data = [episode((("a",), ("b",)), number=i, rewards=[0.0, reward]) for i, reward in enumerate(paid)]
        policies.play(data)
        before = {p: t.detach().clone() for p, t in policies.tables.items()}
        stats = trainer.update(data, iteration)
        assert all(torch.equal(t, before[p]) != moved for p, t in policies.tables.items())
        assert all(stats[f"policy/{p}/steps"] == moved for p in policies.tables)


CRITICS = ["marft", "ippo", "mappo", "happo", "a2po", "mat", "vapo"]
VIEWS: dict[str, dict[str, Any]] = {"marft": {"critic": "team"}, "vapo": {"value_warmup": 0, "nll_coef": 0.0}}
LEANING = {"lambda_tok": 0.7, "lambda_turn": 0.8, "gamma_tok": 0.9, "gamma_turn": 0.9}
"""Under these, returns hold V, and depend on how long replies are."""


def paid_at_places(
    name: str, extra: Sequence[float], settings: dict[str, Any]
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """One update over episodes of two rounds, in which b and a's second turn are paid, and a's first turn ``extra``.

    Returns the numbers of the update, and the advantages of each policy's turns.
    """
    owners = dict.fromkeys("ab", "a") if name == "mat" else None
    policies, heads = Tabular(["a"] if owners else ["a", "b"]), Heads(["a"] if owners else ["a", "b"])
    for weights in heads.weights.values():
        weights.data.normal_(generator=torch.Generator().manual_seed(3))
    data = []
    for i, reward in enumerate(extra):
        d = episode((("a",), ("b",), ("a",)), number=i, rewards=[0.0, 0.5, 0.25], rounds=[0, 0, 1], policies=owners)
        d.transitions[0].turn.reward = reward
        data.append(d)
    trainer = learner(name, policies, heads, **{**VIEWS.get(name, {}), **settings})
    stats = trainer.update(policies.play(data), 0)
    found = trainer.estimates.advantages
    return stats, {p: np.concatenate([found[t] for t in turns(data) if t.policy == p]) for p in policies.tables}


@pytest.mark.filterwarnings("ignore:gamma_tok")
@pytest.mark.parametrize("settings", [*({key: value} for key, value in LEANING.items()), LEANING])
@pytest.mark.parametrize("name", CRITICS)
def test_paid_alike_is_about_pay_whatever_lambda_and_discounts_make_of_it(name: str, settings: dict[str, Any]) -> None:
    """Turns are paid differently, but at each place the same: nothing was good or bad, and nobody moves."""
    if name == "happo":
        settings = {key: value for key, value in settings.items() if "turn" in key}
    stats, advantages = paid_at_places(name, [0.125] * 6, settings)
    assert all(stats[f"policy/{p}/steps"] == 0.0 and not x.any() for p, x in advantages.items())
    stats, advantages = paid_at_places(name, [0.125] * 5 + [0.0], settings)
    assert all(stats[f"policy/{p}/steps"] == 1.0 and x.any() for p, x in advantages.items()), "one was paid less"


@pytest.mark.parametrize("name", CRITICS)
def test_a_floor_of_sigma_holds_advantages_of_nearly_solved_batches_small(name: str) -> None:
    settings = {"whiten": "global", "baseline": "mean"}
    sizes = []
    for floor in (0.0, 1e-3, 2.0):
        _, advantages = paid_at_places(name, [0.125] * 31 + [0.0], {**settings, "std_floor": floor})
        sizes.append(np.concatenate([*advantages.values()]))
    assert sizes[0].std() == pytest.approx(1.0, abs=1e-5)
    assert sizes[1].tolist() == sizes[0].tolist(), "a floor below σ changes nothing"
    assert sizes[2].std() < 1.0
    assert sizes[2] * (sizes[0].std() / sizes[2].std()) == pytest.approx(sizes[0], abs=1e-4)
