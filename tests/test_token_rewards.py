"""A KL in the reward is charged token by token: returns against a brute force, and episodes that stay as they were."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from teams import Heads, Tabular, episode, random_team

from marft_algos import algorithm, credit
from marft_algos.functional import Discounts, chain
from marft_algos.types import Trajectory
from marft_algos.update import Learner

CHAINS = ("team", "agent")


def charged(seed: int, **fields: Any) -> Trajectory:
    """An episode of random layers in which some turns are charged, token by token, and some are not trained."""
    rng = np.random.default_rng(seed)
    layers = random_team(rng)
    d = episode(layers, seed=seed, rewards=rng.normal(size=len(layers)), **fields)
    for t in d.transitions:
        t.reward = float(rng.normal())
        if rng.random() < 0.7:
            t.penalties = rng.normal(size=len(t.action_ids)).astype(np.float32)
        t.trainable = t.penalties is not None or bool(rng.random() < 0.5)
        t.values = rng.normal(size=len(t.action_ids) if t.trainable else 1).astype(np.float32)
    return d


def expected(d: Trajectory, kind: str, gamma: tuple[float, float], lam: tuple[float, float]) -> list[list[float]]:
    """What each token's return is, by its definition; nothing here but sums over turns and tokens."""
    turns = d.transitions

    def paid(k: int) -> float:
        """What comes after the turn's last token and before its successors."""
        t = turns[k]
        if kind == "team":
            beside = [j for j in d.layers[t.layer].turns if j != k]
            own = d.layers[t.layer].team + sum(turns[j].reward for j in d.layers[t.layer].turns)
            return own + sum(float(turns[j].penalties.sum()) for j in beside if turns[j].penalties is not None)
        later = [u.layer for u in turns if u.agent == t.agent and u.layer > t.layer]
        return t.reward + sum(d.layers[i].team for i in range(t.layer, min(later, default=len(d.layers))))

    def following(k: int) -> list[int]:
        t = turns[k]
        if kind == "team":
            return list(d.layers[t.layer + 1].turns) if t.layer + 1 < len(d.layers) else []
        return [u.index for u in turns if u.agent == t.agent and u.layer > t.layer][:1]

    def value_at(k: int, t: int) -> float:
        return float(turns[k].values[t])

    def total(k: int, t: int) -> float:
        """G[k, t], by following it to the episode's end."""
        length = len(turns[k].values)
        charges = turns[k].penalties
        here = 0.0 if charges is None else float(charges[t])
        if t + 1 < length:
            return here + gamma[0] * ((1 - lam[0]) * value_at(k, t + 1) + lam[0] * total(k, t + 1))
        ahead = [(1 - lam[1]) * value_at(j, 0) + lam[1] * total(j, 0) for j in following(k)]
        return here + paid(k) + gamma[1] * (sum(ahead) / len(ahead) if ahead else 0.0)

    return [[total(k, t) for t in range(len(turns[k].values))] for k in range(len(turns))]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("kind", CHAINS)
def test_tokens_are_paid_where_they_stand_against_a_brute_force(kind: str, seed: int) -> None:
    d = charged(seed)
    algo = algorithm.get("marft")
    settings = {"gamma_tok": 0.9, "gamma_turn": 0.8, "lambda_tok": 0.7, "lambda_turn": 0.6}
    made = algo(algo.Config(chain=kind, critic="team", whiten="off", **settings))
    made.credit([d])
    for t, returns in zip(d.transitions, expected(d, kind, (0.9, 0.8), (0.7, 0.6)), strict=True):
        assert t.returns == pytest.approx(np.array(returns), abs=1e-5)
        assert t.advantages == pytest.approx(np.array(returns) - t.values, abs=1e-5)


def test_one_decision_point_is_paid_for_all_of_its_tokens() -> None:
    for seed in range(10):
        d = charged(seed)
        links = credit.team_chain(d, credit.broadcast(d))
        n = len(d.transitions)
        whole = chain(
            [None] * n, [1] * n, links.rewards, links.successors, Discounts(), token_rewards=links.token_rewards([1] * n)
        )[1]
        assert [g[0] for g in whole] == pytest.approx(credit.returns_to_go(d, links))
        every = sum(x.team for x in d.layers) + sum(t.reward for t in d.transitions)
        every += sum(float(t.penalties.sum()) for t in d.transitions if t.penalties is not None)
        assert whole[0][0] == pytest.approx(every) == pytest.approx(credit.team_score(d, credit.broadcast(d)))


@pytest.mark.parametrize("name", ["marft", "ippo", "mappo", "a2po", "reinforce_pp"])
def test_what_a_token_was_charged_is_over_when_the_next_one_is_drawn(name: str) -> None:
    """r = 1 and a KL of .2 on the first of two tokens: the second one's return is 1, not .8."""
    d = episode([["a"]], tokens=[2])
    (t,) = d.transitions
    t.penalties = np.array([-0.2, 0.0], np.float32)
    made = algorithm.get(name)()
    made.credit([d])
    assert t.returns == pytest.approx([0.8, 1.0])
    assert t.reward == 0.0


def test_vapo_sums_the_kl_to_go_under_its_own_lambda() -> None:
    d = episode([["a"]], tokens=[3])
    (t,) = d.transitions
    t.penalties, t.values = np.array([-0.5, -0.25, -1.0], np.float32), np.array([0.1, 0.2, 0.3], np.float32)
    made: Any = algorithm.get("vapo")
    made = made(made.Config(whiten="off"))
    made.credit([d])
    lam = 0.95
    last = 1.0 - 1.0
    middle = -0.25 + (1 - lam) * 0.3 + lam * last
    first = -0.5 + (1 - lam) * 0.2 + lam * middle
    assert t.returns == pytest.approx([-0.75, -0.25, 0.0])
    assert t.advantages == pytest.approx([first - 0.1, middle - 0.2, last - 0.3], abs=1e-6)


@pytest.mark.parametrize("rule", ["broadcast", "last", "local", "margin"])
def test_whoever_is_paid_the_kl_stays_with_its_tokens(rule: str) -> None:
    d = episode([["a"], ["b"]], tokens=[2, 2], rewards=[1.0, 2.0])
    d.transitions[0].penalties = np.array([-0.25, -0.5], np.float32)
    links = credit.agent_chain(d, credit.get(rule)(d))
    assert links.tokens[0] is d.transitions[0].penalties and links.tokens[1] is None
    free = copy.deepcopy(d)
    free.transitions[0].penalties = None
    plain = credit.agent_chain(free, credit.get(rule)(free))
    assert links.rewards == plain.rewards
    assert np.subtract(links.totals, plain.totals) == pytest.approx([-0.75, 0.0])


@pytest.mark.parametrize("name", ["marft", "grpo", "spiral", "marshal", "happo"])
def test_the_same_episodes_can_be_learnt_from_twice(name: str) -> None:
    """The update leaves what the task paid as it is: a second pass sees the same rewards and finds the same returns."""
    policies = Tabular(["a", "b"])
    policies.reference = {p: x + 0.5 for p, x in Tabular(["a", "b"], seed=1).reference.items()}
    made = algorithm.get(name)
    config = made.Config(lr=0.0, critic_lr=0.0, kl_reward_coef=0.5)
    data = policies.play([episode([["a"], ["b"]], number=i, rewards=[0.0, float(i % 2)]) for i in range(4)])
    before = [t.reward for d in data for t in d.transitions]
    heads = Heads(["a", "b"]) if name in ("marft", "happo") else None
    found = []
    for _ in range(2):
        learner = Learner(made(config), policies, heads)
        numbers = learner.update(data, 0)
        assert numbers["kl_reward"] != 0.0
        assert [t.reward for d in data for t in d.transitions] == before
        found.append([t.advantages.tolist() for d in data for t in d.transitions])
    assert found[0] == found[1]
    Learner(made(made.Config(lr=0.0)), policies, heads).update(data, 0)
    assert all(t.penalties is None for d in data for t in d.transitions), "a learner without a KL charges none"
