"""V-trace over layers: against eq. 1 of its paper, brute force over all episodes, a known fixed point, and A2PO."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from helpers.marks import rest_in_ci
from helpers.references import gae
from helpers.teams import Heads, Tabular, episode, put, random_team, say
from marft_algos import functional as F
from marft_algos.algorithms import base as algorithms
from marft_algos.batching import learnable
from marft_algos.learner.learner import Learner
from marft_algos.types import Estimates, Trajectory, Transition
from marft_envs.errors import ConfigError

FREE = 1e9
"""A cap that truncates nothing."""


def weights(logs: Sequence[np.ndarray], rho_bar: float, c_bar: float) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(F.truncate(x, rho_bar), F.truncate(x, c_bar)) for x in logs]


@pytest.mark.parametrize(("rho_bar", "c_bar", "lam"), [(1.0, 1.0, 1.0), (2.0, 0.5, 1.0), (FREE, 1.0, 0.8)])
def test_returns_are_equation_1(rho_bar: float, c_bar: float, lam: float) -> None:
    """v_s = V_s + Σ_t γ^(t−s) (Π_(s≤i<t) c_i) ρ_t (r_t + γV_(t+1) − V_t), with λ in c."""
    rng = np.random.default_rng(0)
    n, gamma, tail = 6, 0.9, 0.3
    values, rewards, logs = rng.normal(size=n), rng.normal(size=n), rng.normal(size=n)
    rho, c = np.minimum(np.exp(logs), rho_bar), lam * np.minimum(np.exp(logs), c_bar)
    following = np.append(values[1:], tail)
    delta = rho * (rewards + gamma * following - values)
    expected = [values[s] + sum(gamma ** (t - s) * c[s:t].prod() * delta[t] for t in range(s, n)) for s in range(n)]
    advantages, returns = F.lambda_returns(
        [np.array([v]) for v in values],
        [1] * n,
        list(rewards),
        [(k + 1,) for k in range(n - 1)] + [()],
        F.Discounts(gamma_turn=gamma, lambda_turn=lam),
        bootstraps=[tail] * n,
        truncated=weights([np.array([x]) for x in logs], rho_bar, c_bar),
    )
    assert [g[0] for g in returns] == pytest.approx(expected)
    ahead = np.append(expected[1:], tail)
    goals = rewards + gamma * ((1 - lam) * following + lam * ahead)
    assert [a[0] for a in advantages] == pytest.approx(list(goals - values))


def graph(seed: int) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Arguments of ``lambda_returns`` for a random layered graph of turns of several tokens, and log-ratios of its tokens."""
    rng = np.random.default_rng(seed)
    layers = [[0]]
    for _ in range(4):
        layers.append(list(range(layers[-1][-1] + 1, layers[-1][-1] + 1 + int(rng.integers(1, 4)))))
    lengths = [int(x) for x in rng.integers(1, 4, layers[-1][-1] + 1)]
    successors = [tuple(layers[i + 1]) if i + 1 < len(layers) else () for i, layer in enumerate(layers) for _ in layer]
    arguments = {
        "values": [rng.normal(size=n) for n in lengths],
        "lengths": lengths,
        "rewards": list(rng.normal(size=len(lengths))),
        "successors": successors,
        "discounts": F.Discounts(0.95, 0.9, 0.8, 0.7),
        "token_rewards": [rng.normal(size=n) for n in lengths],
    }
    return arguments, [rng.normal(size=n) for n in lengths]


@pytest.mark.parametrize("seed", range(5))
def test_on_policy_it_is_the_lambda_return(seed: int) -> None:
    arguments, _ = graph(seed)
    ones = weights([np.zeros(n) for n in arguments["lengths"]], 1.0, 1.0)
    for plain, traced in zip(F.lambda_returns(**arguments), F.lambda_returns(**arguments, truncated=ones), strict=True):
        for x, y in zip(plain, traced, strict=True):
            assert x == pytest.approx(y, abs=1e-12)


def test_on_policy_it_is_gae() -> None:
    rng = np.random.default_rng(1)
    n, values, rewards = 7, rng.normal(size=7), rng.normal(size=7)
    advantages, returns = F.lambda_returns(
        [np.array([v]) for v in values],
        [1] * n,
        list(rewards),
        [(k + 1,) for k in range(n - 1)] + [()],
        F.Discounts(gamma_turn=0.9, lambda_turn=0.8),
        bootstraps=[0.5] * n,
        truncated=[(np.ones(1), np.ones(1))] * n,
    )
    expected, targets = gae(rewards.tolist(), values.tolist(), [True] * n, 0.9, 0.8, 0.5)
    assert np.concatenate(advantages) == pytest.approx(expected) and np.concatenate(returns) == pytest.approx(targets)


@pytest.mark.parametrize("seed", range(3))
def test_with_one_cap_its_advantages_are_those_of_a2pos_trace(seed: int) -> None:
    """A_k = δ_k + γλ·mean_j c_j·A_j (A2PO, eq. 3): decisions of one token."""
    arguments, logs = graph(seed)
    arguments = {**arguments, "lengths": [1] * len(logs), "values": [v[:1] for v in arguments["values"]]}
    del arguments["token_rewards"]
    ratios = [x[:1] for x in logs]
    traced = F.lambda_returns(**arguments, truncated=weights(ratios, 1.0, 1.0))[0]
    a2po = F.lambda_returns(**arguments, traces=[F.trace(float(x[0])) for x in ratios])[0]
    assert np.concatenate(traced) == pytest.approx(np.concatenate(a2po))


# --- brute force over all episodes of a small team --------------------------------------------------------------

TEAM = (("a", "b"), ("c",), ("a", "b"))
"""Two agents at once, then one, then the two again; every token is a coin whose bias hangs on what was said before."""


class Coins:
    """A tabular team: who has heard what decides each token; ``theta`` moves one of a turn's coins."""

    def __init__(self, tokens: int, seed: int) -> None:
        self.tokens, self.seed = tokens, seed
        self.size = tokens * sum(map(len, TEAM))

    @functools.cache  # noqa: B019
    def logit(self, heard: tuple[int, ...], place: int, said: tuple[int, ...], which: str) -> float:
        rng = np.random.default_rng([self.seed, place, len(which), *heard, 9, *said])
        return float(rng.normal())

    def logp(self, heard: tuple[int, ...], place: int, said: tuple[int, ...], which: str, nudge: float = 0.0) -> float:
        """log-prob of the last token said, by ``pi`` or ``old``; ``nudge`` is added to the logit of a 1."""
        logit = self.logit(heard, place, said[:-1], which) + nudge
        return -math.log1p(math.exp(-logit if said[-1] else logit))

    @functools.cache  # noqa: B019
    def value(self, heard: tuple[int, ...], place: int, said: tuple[int, ...]) -> float:
        """Some critic: right about nothing, but blind to what has not been said yet."""
        return float(np.random.default_rng([self.seed, 77, place, *heard, 9, *said]).normal())

    @functools.cached_property
    def table(self) -> np.ndarray:
        return np.random.default_rng([self.seed, 5]).normal(size=(len(TEAM), 1 << self.size))

    @functools.cache  # noqa: B019
    def reward(self, bits: tuple[int, ...]) -> list[float]:
        ends = np.cumsum([self.tokens * len(layer) for layer in TEAM])
        return [float(self.table[i, int("".join(map(str, bits[:end])), 2)]) for i, end in enumerate(ends)]

    @functools.cache  # noqa: B019
    def turns(self, bits: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Per turn what it has heard, and what it says."""
        found, first = [], 0
        for layer in TEAM:
            for i in range(len(layer)):
                start = first + i * self.tokens
                found.append((bits[:first], bits[start : start + self.tokens]))
            first += len(layer) * self.tokens
        return found

    @functools.cache  # noqa: B019
    def logps(self, bits: tuple[int, ...], which: str, nudged: int = -1, nudge: float = 0.0) -> list[np.ndarray]:
        """Per turn [tokens]; the first token of turn ``nudged`` has its logit moved."""
        rows = []
        for k, (heard, said) in enumerate(self.turns(bits)):
            moves = [nudge if k == nudged and t == 0 else 0.0 for t in range(self.tokens)]
            rows.append([self.logp(heard, k, said[: t + 1], which, moves[t]) for t in range(self.tokens)])
        return [np.array(row) for row in rows]

    def probability(self, bits: tuple[int, ...], which: str, nudged: int = -1, nudge: float = 0.0) -> float:
        return math.exp(sum(float(x.sum()) for x in self.logps(bits, which, nudged, nudge)))

    def episodes(self) -> list[tuple[int, ...]]:
        return list(itertools.product((0, 1), repeat=self.size))

    def worth(self, nudged: int = -1, nudge: float = 0.0) -> float:
        """V^π of the start."""
        return sum(self.probability(b, "pi", nudged, nudge) * sum(self.reward(b)) for b in self.episodes())

    def record(self, bits: tuple[int, ...], level: str) -> tuple[Trajectory, Estimates]:
        played = episode(TEAM, rewards=self.reward(bits), tokens=[self.tokens] * sum(map(len, TEAM)))
        found = Estimates(shares=learnable([played], ["a", "b", "c"])[1])
        rows = zip(played.transitions, self.turns(bits), self.logps(bits, "old"), self.logps(bits, "pi"), strict=True)
        for k, (t, (heard, said), old, now) in enumerate(rows):
            say(t, action_ids=list(said), logprobs=old.astype(np.float32))
            points = range(self.tokens) if level == "token" else range(1)
            found.values[t] = np.array([self.value(heard, k, said[:i]) for i in points], np.float32)
            found.current_logprobs[t] = now.astype(np.float32)
        return played, found


@pytest.mark.parametrize(("tokens", "level"), rest_in_ci([(2, "token"), (1, "action"), (2, "action")]))
@pytest.mark.parametrize("lam", [1.0, 0.0])
def test_without_caps_it_is_unbiased_for_the_present_team(tokens: int, level: str, lam: float) -> None:
    """Over all episodes of the old team: the first return is V^π, though no value is right (λ = 1), and advantages
    under the turn's own ratio are the gradient of V^π. The layers' own agents, who act at once, are in each other's
    ratio. At λ = 0 the critic is believed: the return is one step of it, under the new team."""
    coins, name = Coins(tokens, seed=3), "marft"
    settings = {"whiten": "off", "vtrace": True, "rho_bar": FREE, "c_bar": FREE, "level": level, "critic": "team"}
    discounts = {"lambda_tok": lam, "lambda_turn": lam}
    algo = algorithms.get(name)(algorithms.get(name).Config(**settings, **discounts))
    total, firsts = sum(map(len, TEAM)), 0.0
    slopes, one_step = np.zeros(total), 0.0
    for bits in coins.episodes():
        played, found = coins.record(bits, level)
        algo.credit([played], found)
        chance = coins.probability(bits, "old")
        turns = played.transitions
        firsts += chance * float(found.returns[turns[0]][0])
        if lam == 0.0 and tokens == 1:
            after = np.mean([found.values[t][0] for t in turns if t.layer == 1])
            one_step += coins.probability(bits, "pi") * (coins.reward(bits)[0] + float(after))
        for k, t in enumerate(turns):
            ratio = np.exp((found.current_logprobs[t] - t.reply.logprobs).astype(np.float64))
            own = float(ratio[0] if level == "token" else ratio.prod())
            reach = coins.logps(bits, "pi")
            before = math.exp(  # a turn is reached by the old team, and weighs as the new one reaches it
                sum(float((reach[j] - coins.logps(bits, "old")[j]).sum()) for j in range(k) if turns[j].layer < t.layer)
            )
            heard, said = coins.turns(bits)[k]
            up = said[0] - 1 / (1 + math.exp(-coins.logit(heard, k, (), "pi")))
            slopes[k] += chance * before * own * float(found.advantages[t][0]) * up
    if lam == 1.0:
        assert firsts == pytest.approx(coins.worth(), abs=1e-5)
        h = 1e-4
        expected = [(coins.worth(k, h) - coins.worth(k, -h)) / (2 * h) for k in range(total)]
        assert slopes == pytest.approx(expected, abs=1e-5)
    elif tokens == 1:
        assert firsts == pytest.approx(one_step, abs=1e-5)


def test_without_the_layer_mates_ratio_it_would_be_biased() -> None:
    """The control of the test above: each turn's own ratio alone gives another return."""
    coins = Coins(1, seed=1)
    alone = 0.0
    for bits in coins.episodes():
        played, found = coins.record(bits, "action")
        turns = played.transitions
        logs = [(found.current_logprobs[t] - t.reply.logprobs).astype(np.float64) for t in turns]
        successors = [(2,), (2,), (3, 4), (), ()]
        rewards = [coins.reward(bits)[t.layer] for t in turns]
        values = [found.values[t] for t in turns]
        returns = F.lambda_returns(
            values, [1] * 5, rewards, successors, F.Discounts(), truncated=weights(logs, FREE, FREE)
        )[1]
        alone += coins.probability(bits, "old") * float(returns[0][0])
    assert abs(alone - coins.worth()) > 0.01


@pytest.mark.parametrize("rho_bar", [0.6, 1.0, FREE])
def test_values_converge_to_the_policy_that_the_cap_names(rho_bar: float) -> None:
    """Two states, two actions. The fixed point is V of π_ρ̄ ∝ min(ρ̄·μ, π) (arXiv 1802.01561, theorem 1)."""
    mu, pi = np.array([[0.7, 0.3], [0.2, 0.8]]), np.array([[0.1, 0.9], [0.6, 0.4]])
    reward, nxt, gamma, n = np.array([[1.0, -0.5], [0.3, 2.0]]), np.array([[0, 1], [1, 0]]), 0.7, 3
    values = np.zeros(2)
    for _ in range(200):
        fresh = np.zeros(2)
        for state, actions in itertools.product((0, 1), itertools.product((0, 1), repeat=n)):
            path = [state]
            for action in actions:
                path.append(int(nxt[path[-1], action]))
            steps = list(zip(path[:-1], actions, strict=True))
            logs = [np.array([math.log(pi[s, a] / mu[s, a])]) for s, a in steps]
            returns = F.lambda_returns(
                [values[[s]] for s, _ in steps],
                [1] * n,
                [float(reward[s, a]) for s, a in steps],
                [(k + 1,) for k in range(n - 1)] + [()],
                F.Discounts(gamma_turn=gamma),
                bootstraps=[float(values[path[-1]])] * n,
                truncated=weights(logs, rho_bar, min(rho_bar, 1.0)),
            )[1]
            fresh[state] += math.prod(mu[s, a] for s, a in steps) * float(returns[0][0])
        values = fresh
    target = np.minimum(rho_bar * mu, pi)
    target /= target.sum(1, keepdims=True)
    moves = np.zeros((2, 2))
    for s, a in itertools.product((0, 1), repeat=2):
        moves[s, nxt[s, a]] += target[s, a]
    expected = np.linalg.solve(np.eye(2) - gamma * moves, (target * reward).sum(1))
    assert values == pytest.approx(expected, abs=1e-6)


# --- in an update -----------------------------------------------------------------------------------------------


def update(
    name: str,
    *,
    stale: bool = False,
    moved: float = 0.0,
    one_by_one: bool = False,
    alike: bool = False,
    **settings: Any,
) -> tuple[Learner, Tabular, Heads, list[Trajectory], dict[str, float]]:
    """One update over episodes of version 0, at version 0 or 1, whose weights differ by ``moved``."""
    shared = name == "mat"
    rng, one = np.random.default_rng(0), dict.fromkeys("abc", "a") if shared else None
    layers = [["a0"], ["a1"], ["a2"], ["a0"], ["a1"]] if one_by_one else random_team(rng, agents=3)
    renamed = [[{"a0": "a", "a1": "b", "a2": "c"}[agent] for agent in layer] for layer in layers]
    policies, heads = Tabular(["a"] if shared else ["a", "b", "c"]), Heads(["a"] if shared else ["a", "b", "c"])
    rewards = [rng.normal(size=len(renamed)) for _ in range(16)]
    data = [episode(renamed, number=i, rewards=rewards[i * (not alike)], policies=one) for i in range(16)]
    policies.play(data)
    cls = algorithms.get(name)
    made = Learner(cls(cls.Config(lr=0.05, **settings)), policies, heads, staleness=2)
    made.past.keep(0)
    for table in policies.tables.values():
        table.data += moved * torch.randn(table.shape, generator=torch.Generator().manual_seed(1))
    policies.version = int(stale)
    metrics = made.update(data, 0)
    return made, policies, heads, data, metrics


@pytest.mark.parametrize("name", ["marft", "ippo", "mappo", "mat"])
@pytest.mark.parametrize("level", ["token", "action"])
def test_on_fresh_turns_it_changes_nothing(name: str, level: str) -> None:
    """To the bit, and at no further forward pass."""
    one, other = (update(name, level=level, vtrace=on) for on in (False, True))
    assert one[1].forwards == other[1].forwards
    for p, table in one[1].tables.items():
        assert torch.equal(table, other[1].tables[p]) and torch.equal(one[2].weights[p], other[2].weights[p])


def test_a2pos_trace_between_blocks_is_the_same_number() -> None:
    """Where agents act one by one and a decision is a turn: fresh turns of policies that have moved in this update."""
    one, other = (update("a2po", one_by_one=True, level="action", norm="sum", vtrace=on) for on in (False, True))
    assert any(one[4][f"policy/{p}/trace"] < 0.999 for p in "abc" if f"policy/{p}/trace" in one[4])
    for p, table in one[1].tables.items():
        torch.testing.assert_close(table, other[1].tables[p], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(one[2].weights[p], other[2].weights[p], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["marft", "ippo", "mappo", "a2po", "mat"])
def test_on_stale_turns_of_equal_weights_it_changes_nothing_either(name: str) -> None:
    one, other = (update(name, stale=True, one_by_one=True, level="action", vtrace=on) for on in (False, True))
    assert other[4]["vtrace/c"] == pytest.approx(1.0, abs=1e-5)
    for p, table in one[1].tables.items():
        torch.testing.assert_close(table, other[1].tables[p], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["marft", "ippo", "mappo", "a2po", "mat"])
def test_stale_turns_that_were_paid_alike_move_nobody(name: str) -> None:
    """V-trace leaves V in their returns, but everybody was paid the same at the same place."""
    critic = {"critic": "team"} if name == "marft" else {}
    made, policies, _, _, metrics = update(name, stale=True, moved=0.7, vtrace=True, alike=True, **critic)
    assert metrics["vtrace/c"] < 0.9
    assert len({float(x[0]) for x in made.estimates.returns.values()}) > 16
    assert all(metrics[f"policy/{p}/steps"] == 0.0 for p in policies.tables)
    assert not any(a.any() for a in made.estimates.advantages.values())


@pytest.mark.parametrize("old", ["sampler", "learner"])
def test_stale_turns_are_scored_under_the_present_weights(old: str) -> None:
    """Both ways of having them give the same credit: π/μ of the weights at the start of the update."""
    cap = {"tis_cap": 2.0} if old == "learner" else {}
    made, _, _, data, metrics = update("mappo", stale=True, moved=0.7, vtrace=True, old_logprobs=old, **cap)
    reference = update("mappo", stale=True, moved=0.7, vtrace=True)[0]
    first, second = (list(m.estimates.returns.values()) for m in (made, reference))
    assert all(x == pytest.approx(y, abs=1e-5) for x, y in zip(first, second, strict=True))
    assert 0.0 < metrics["vtrace/turn"] < metrics["vtrace/c"] < 1.0
    plain = update("mappo", stale=True, moved=0.7)[0]
    assert any(abs(x - y).max() > 1e-3 for x, y in zip(first, plain.estimates.returns.values(), strict=True))
    assert len(data) == 16


def test_a_turn_weighs_what_its_layer_mates_would_say_now() -> None:
    """Advantages: the mates' whole ratio, truncated at ρ̄, on the last decision, after whitening."""
    made, _, _, data, _ = update("marft", stale=True, moved=0.7, vtrace=True, critic="team", rho_bar=1.3)
    found = made.estimates
    plain = dataclasses.replace(found, advantages={}, returns={})
    made.algorithm.run_returns(data, plain)  # type: ignore[attr-defined]
    made.algorithm.whiten(data, plain)  # type: ignore[attr-defined]
    mated = 0
    for d in data:
        for t in d.transitions:
            mates = [u for u in d.transitions if u.layer == t.layer and u is not t]
            factor = min(1.3, math.exp(sum(drift(u, found) for u in mates)))
            mated += bool(mates)
            assert found.advantages[t][:-1].tolist() == plain.advantages[t][:-1].tolist()
            assert found.advantages[t][-1] == pytest.approx(plain.advantages[t][-1] * factor, rel=1e-5)
    assert mated


def drift(t: Transition, found: Estimates) -> float:
    return float((found.current(t) - t.reply.logprobs).sum(dtype=np.float64))


def test_hosted_turns_pass_corrections_on() -> None:
    """A turn that nobody here has weights for has no V and no ratio: what follows it goes through to those before."""
    played = episode([["a"], ["host"], ["b"]], rewards=[0.0, 0.0, 1.0], tokens=[1, 1, 1])
    a, host, b = played.transitions
    put(host, trainable=False)
    found = Estimates(values={t: np.array([0.25], np.float32) for t in (a, b)}, shares={a: 1.0, b: 1.0})
    found.current_logprobs[b] = b.reply.logprobs + np.float32(math.log(0.5))
    algo = algorithms.get("marft")
    algo(algo.Config(whiten="off", vtrace=True, critic="team")).credit([played], found)
    corrected = 0.25 + 0.5 * (1.0 - 0.25)
    assert found.returns[b][0] == pytest.approx(corrected)
    assert found.returns[host][0] == pytest.approx(corrected) and found.returns[a][0] == pytest.approx(corrected)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("happo", {}, "no trace from turn to turn"),
        ("vapo", {}, "no trace from turn to turn"),
        ("marft", {"critic": "none"}, "critic='none' has none"),
        ("mappo", {"c_bar": 2.0}, "expected c_bar at most rho_bar"),
        ("mappo", {"old_logprobs": "learner"}, "Set tis_cap=2"),
    ],
)
def test_what_cannot_work_is_refused(name: str, settings: dict[str, Any], words: str) -> None:
    cls = algorithms.get(name)
    with pytest.raises(ConfigError, match=words):
        cls(cls.Config(vtrace=True, **settings))
