"""A KL in the reward is charged token by token: returns against a brute force; episodes that stay as they were."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.flex import PlainTask, flex
from helpers.teams import Heads, Tabular, episode, put, random_team
from helpers.tiny import save_tiny
from marft_algos import credit
from marft_algos.algorithms import base as algorithm
from marft_algos.engines import NativeEngine
from marft_algos.functional import Discounts, lambda_returns
from marft_algos.learner.learner import Learner
from marft_algos.models.policy import PolicySet
from marft_algos.rollout.replay import Replayer, TreeCollector
from marft_algos.types import Estimates, SamplingParams, Trajectory, Transition
from marft_envs import ConfigError, Outcome
from marft_envs.core.vector import VectorEnv
from marft_envs.core.wrappers import TurnLimit

CHAINS = ("team", "agent")
ALGORITHMS = sorted(name for name in algorithm.pages() if algorithm.get(name).trains)


Charges = dict[Transition, np.ndarray]
"""Turn -> what each of its tokens is paid."""


def charged(seed: int, **fields: Any) -> tuple[Trajectory, Estimates]:
    """An episode of random layers in which some turns are charged, token by token, and some are not trained."""
    rng = np.random.default_rng(seed)
    layers = random_team(rng)
    d, found = episode(layers, seed=seed, rewards=rng.normal(size=len(layers)), **fields), Estimates()
    for t in d.transitions:
        t.turn.reward = float(rng.normal())
        if rng.random() < 0.7:
            found.penalties[t] = rng.normal(size=len(t.reply.action_ids)).astype(np.float32)
        put(t, trainable=t in found.penalties or bool(rng.random() < 0.5))
        found.values[t] = rng.normal(size=len(t.reply.action_ids) if t.trainable else 1).astype(np.float32)
    return d, found


def expected(
    d: Trajectory, charged: Charges, found: Estimates, kind: str, gamma: tuple[float, float], lam: tuple[float, float]
) -> list[list[float]]:
    """What each token's return is, by its definition; nothing here but sums over turns and tokens."""
    turns, charges = d.transitions, [charged.get(t) for t in d.transitions]
    values = [found.values[t] for t in d.transitions]

    def paid(k: int) -> float:
        """What comes after the turn's last token and before its successors."""
        t = turns[k]
        if kind == "team":
            beside = [j for j in d.layers[t.layer].turns if j != k]
            own = d.layers[t.layer].team_reward + sum(turns[j].turn.reward for j in d.layers[t.layer].turns)
            return own + sum(float(x.sum()) for x in (charges[j] for j in beside) if x is not None)
        later = [u.layer for u in turns if u.agent == t.agent and u.layer > t.layer]
        return t.turn.reward + sum(d.layers[i].team_reward for i in range(t.layer, min(later, default=len(d.layers))))

    def following(k: int) -> list[int]:
        t = turns[k]
        if kind == "team":
            return list(d.layers[t.layer + 1].turns) if t.layer + 1 < len(d.layers) else []
        return [u.index for u in turns if u.agent == t.agent and u.layer > t.layer][:1]

    def value_at(k: int, t: int) -> float:
        return float(values[k][t])

    def total(k: int, t: int) -> float:
        """G[k, t], by following it to the episode's end."""
        length, own = len(values[k]), charges[k]
        here = 0.0 if own is None else float(own[t] if len(own) == length else own.sum())
        if t + 1 < length:
            return here + gamma[0] * ((1 - lam[0]) * value_at(k, t + 1) + lam[0] * total(k, t + 1))
        ahead = [(1 - lam[1]) * value_at(j, 0) + lam[1] * total(j, 0) for j in following(k)]
        return here + paid(k) + gamma[1] * (sum(ahead) / len(ahead) if ahead else 0.0)

    return [[total(k, t) for t in range(len(values[k]))] for k in range(len(turns))]


@pytest.mark.parametrize("ruled", [False, True])
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("kind", CHAINS)
def test_tokens_are_paid_where_they_stand_against_a_brute_force(kind: str, seed: int, ruled: bool) -> None:
    """A KL in the reward, and what a rule pays tokens of trained turns and of others: both are added up."""
    d, found = charged(seed)
    charges: Charges = dict(found.penalties)
    algo = algorithm.get("marft")
    settings = {"gamma_tok": 0.9, "gamma_turn": 0.8, "lambda_tok": 0.7, "lambda_turn": 0.6}
    made: Any = algo(algo.Config(chain=kind, critic="team", whiten="off", **settings))
    if ruled:
        rng = np.random.default_rng(seed)
        tokens = [rng.normal(size=len(t.reply.action_ids)) if rng.random() < 0.7 else None for t in d.transitions]
        paying = credit.Rewards(**{f: getattr(credit.broadcast(d), f) for f in ("turns", "team", "agents", "late")})
        made.rule = lambda trajectory: dataclasses.replace(paying, tokens=tokens)
        for t, x in zip(d.transitions, tokens, strict=True):
            charges[t] = np.zeros(len(t.reply.action_ids)) + (0.0 if x is None else x) + found.penalties.get(t, 0.0)
    made.credit([d], found)
    for t, returns in zip(d.transitions, expected(d, charges, found, kind, (0.9, 0.8), (0.7, 0.6)), strict=True):
        assert found.returns[t] == pytest.approx(np.array(returns), abs=1e-5)
        assert found.advantages[t] == pytest.approx(np.array(returns) - found.values[t], abs=1e-5)
    total = d.score + sum(float(x.sum()) for x in charges.values())
    assert credit.team_score(d, made.rule(d), found) == pytest.approx(total)
    assert credit.agent_score(d, made.rule(d), "a0", found) == pytest.approx(
        sum(x.team_reward for x in d.layers)
        + sum(t.turn.reward + float(charges.get(t, np.zeros(1)).sum()) for t in d.transitions if t.agent == "a0")
    )


@pytest.mark.parametrize("name", ["reinforce_pp", "vapo", "marft", "ippo"])
def test_what_a_rule_pays_a_token_is_over_when_the_next_one_is_drawn(name: str) -> None:
    d = episode([["a"], ["b"]], tokens=[3, 2], rewards=[0.0, 0.0])
    first, second = d.transitions
    made: Any = algorithm.get(name)()
    made.rule = credit.rewards.Plain("pays", lambda d: dataclasses.replace(
        credit.broadcast(d), tokens=[np.array([1.0, 0.0, 2.0]), np.array([0.0, 4.0])]
    ))  # fmt: skip
    found = Estimates()
    made.credit([d], found)
    later = 4.0 if made.chain == "team" else 0.0
    assert found.returns[first].tolist() == [3.0 + later, 2.0 + later, 2.0 + later]
    assert found.returns[second].tolist() == [4.0, 4.0]


@pytest.mark.parametrize(
    "tokens", [[np.zeros(2), None, None], [np.zeros(3)], [np.array([0.0, np.nan, 0.0]), None], [np.zeros((3, 1)), None]]
)
@pytest.mark.parametrize("kind", CHAINS)
def test_a_rule_that_pays_other_tokens_than_were_sampled_is_refused(kind: str, tokens: Any) -> None:
    d = episode([["a"], ["b"]], tokens=[3, 2])
    paid = dataclasses.replace(credit.broadcast(d), tokens=tokens)
    chained = {"team": credit.team_chain, "agent": credit.agent_chain}[kind]
    with pytest.raises(ConfigError, match=r"whose replies have .3, 2. tokens. Expected Rewards\.tokens"):
        chained(d, paid, Estimates())


def test_one_decision_point_is_paid_for_all_of_its_tokens() -> None:
    for seed in range(10):
        d, found = charged(seed)
        links = credit.team_chain(d, credit.broadcast(d), found)
        n = len(d.transitions)
        whole = lambda_returns(
            [None] * n,
            [1] * n,
            links.rewards,
            links.successors,
            Discounts(),
            token_rewards=links.token_rewards([1] * n),
        )[1]
        assert [g[0] for g in whole] == pytest.approx(credit.returns_to_go(d, links))
        every = sum(x.team_reward for x in d.layers) + sum(t.turn.reward for t in d.transitions)
        every += sum(float(x.sum()) for x in found.penalties.values())
        assert whole[0][0] == pytest.approx(every) == pytest.approx(credit.team_score(d, credit.broadcast(d), found))


@pytest.mark.parametrize("name", ["marft", "ippo", "mappo", "a2po", "reinforce_pp"])
def test_what_a_token_was_charged_is_over_when_the_next_one_is_drawn(name: str) -> None:
    """r = 1 and a KL of .2 on the first of two tokens: the second one's return is 1, not .8."""
    d = episode([["a"]], tokens=[2])
    (t,) = d.transitions
    found = Estimates(penalties={t: np.array([-0.2, 0.0], np.float32)})
    made = algorithm.get(name)()
    made.credit([d], found)
    assert found.returns[t] == pytest.approx([0.8, 1.0])
    assert t.turn.reward == 0.0


def test_vapo_sums_the_kl_to_go_under_its_own_lambda() -> None:
    d = episode([["a"]], tokens=[3])
    (t,) = d.transitions
    charges, values = np.array([-0.5, -0.25, -1.0], np.float32), np.array([0.1, 0.2, 0.3], np.float32)
    found = Estimates(penalties={t: charges}, values={t: values})
    made: Any = algorithm.get("vapo")
    made = made(made.Config(whiten="off"))
    made.credit([d], found)
    lam = 0.95
    last = 1.0 - 1.0
    middle = -0.25 + (1 - lam) * 0.3 + lam * last
    first = -0.5 + (1 - lam) * 0.2 + lam * middle
    assert found.returns[t] == pytest.approx([-0.75, -0.25, 0.0])
    assert found.advantages[t] == pytest.approx([first - 0.1, middle - 0.2, last - 0.3], abs=1e-6)


@pytest.mark.parametrize("rule", ["broadcast", "last", "local", "margin"])
def test_whoever_is_paid_the_kl_stays_with_its_tokens(rule: str) -> None:
    d = episode([["a"], ["b"]], tokens=[2, 2], rewards=[1.0, 2.0])
    charges = np.array([-0.25, -0.5], np.float32)
    links = credit.agent_chain(d, credit.get(rule)(d), Estimates(penalties={d.transitions[0]: charges}))
    assert links.tokens[0] is charges and links.tokens[1] is None
    plain = credit.agent_chain(d, credit.get(rule)(d), Estimates())
    assert links.rewards == plain.rewards
    assert np.subtract(links.totals, plain.totals) == pytest.approx([-0.75, 0.0])


def contents(found: Estimates) -> dict[str, dict[Any, list[float]]]:
    """All that an update has found out, as plain numbers."""
    tables = {f.name: getattr(found, f.name) for f in dataclasses.fields(found)}
    return {name: {t: np.asarray(x).tolist() for t, x in table.items()} for name, table in tables.items()}


def panel(policies: Tabular, candidates: int) -> list[Trajectory]:
    """Two groups of two episodes; a limit cut one of them. First turns had so many candidates."""
    data = [
        episode([["a"], ["b"]], number=i, group=i // 2, rewards=[0.0, float(i % 2)], success=i % 2 == 1)
        for i in range(4)
    ]
    data[1].episode.terminated, data[1].episode.truncated = False, True
    put(data[1], planned=[put_off(episode([["a"]], number=9).transitions[0])])
    for d in data if candidates > 1 else ():
        rivals = [episode([["a"]], number=10 * d.number + k).transitions[0] for k in range(1, candidates)]
        for t, worth in zip((d.transitions[0], *rivals), (d.score, 0.25, 0.5, 0.75), strict=True):
            policies.score(t)
            put(t, worth=worth)
        put(d, candidates=rivals)
    return policies.play(data)


def put_off(t: Transition) -> Transition:
    """A turn that is planned and not played."""
    return dataclasses.replace(t, reply=dataclasses.replace(t.reply, action_ids=[], logprobs=t.reply.logprobs[:0]))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_episodes_can_be_learnt_from_twice(name: str) -> None:
    """The update leaves every record as it is: a second pass sees the same rewards and finds the same returns."""
    policies, heads = Tabular(["a", "b"]), Heads(["a", "b"])
    for weights in heads.weights.values():
        weights.data += 0.3
    policies.reference = {p: x + 0.5 for p, x in Tabular(["a", "b"], seed=1).reference.items()}
    made: Any = algorithm.get(name)
    charged = made.Config.rewarded
    algo = made(made.Config(lr=0.0, critic_lr=0.0, value_warmup=0, kl_reward_coef=0.5 * charged))
    data = panel(policies, algo.candidates)
    before = pickle.dumps(data)
    learner = Learner(algo, policies, heads if algo.view != "none" else None)
    start, found = copy.deepcopy(learner.state_dict()), []
    for _ in range(2):
        learner.load_state_dict(start)  # running means of the first pass
        numbers = learner.update(data, 0)
        assert bool(numbers.get("kl_reward")) == charged
        assert pickle.dumps(data) == before
        found.append((numbers, contents(learner.estimates)))
    assert found[0] == found[1]
    numbers, estimates = found[0]
    assert set(estimates["advantages"]) >= {t for d in data for t in d.transitions}
    assert bool(estimates["penalties"]) == charged
    assert bool(estimates["reference_logprobs"]) == algo.config.needs_reference
    assert bool(estimates["values"]) == bool(estimates["bootstraps"]) == (algo.view != "none")
    free = Learner(
        made(made.Config(lr=0.0, critic_lr=0.0, kl_reward_coef=0.0)), policies, heads if algo.view != "none" else None
    )
    free.update(data, 0)
    assert not free.estimates.penalties, "a learner without a KL charges none"
    assert (contents(free.estimates)["advantages"] != estimates["advantages"]) == charged, "the KL is learnt from"
    assert pickle.dumps(data) == before


class Plain(pickle.Pickler):
    """Writes records, numbers and text, and says what else it was given."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.strangers: set[str] = set()

    def persistent_id(self, obj: Any) -> None:
        """Called for every object on the way."""
        known = ("builtins", "enum", "numpy", "numpy.dtypes", "marft_algos.types", "marft_envs.core.types")
        if type(obj).__module__ not in known:
            self.strangers.add(repr(type(obj)))


def as_text(d: Trajectory) -> str:
    return json.dumps(dataclasses.asdict(d), default=lambda x: x.tolist(), sort_keys=True)


def test_collected_episodes_can_be_written_and_read_and_hold_no_environment(tmp_path: Path) -> None:
    """Candidates, a layer that a limit kept from running, and states to go on from: all but the states are in them."""
    names = {"a_0": "a", "b_0": "b"}
    policies = PolicySet.build(str(save_tiny(tmp_path / "model", hidden=16, layers=1)), names, device="cpu")
    engine, params = NativeEngine(policies), SamplingParams(max_new_tokens=3)
    replayer = Replayer(policies.renderer, engine, params)
    task = PlainTask(round=lambda turns: Outcome(team_reward=float(len(turns[-1].text)), metrics={"turns": 2.0}))
    collector = TreeCollector(
        VectorEnv([lambda: TurnLimit(flex(2, task=copy.copy(task), max_rounds=4), 3)] * 2),
        policies.renderer,
        engine,
        params,
        replayer=replayer,
        candidates=2,
        worth=lambda branch, index: branch.score,
        states=replayer.states,
    )
    data = collector.collect([1, 2, 3], keep="decisions")
    assert {d.number: sorted(replayer.states[d.number]) for d in data} == {n: [0, 1, 2] for n in range(3)}
    for d in replayer.add_costs(data):
        assert d.truncated and d.planned and d.candidates and d.replayed_tokens
        writer = Plain(written := io.BytesIO())
        writer.dump(d)
        assert not writer.strangers
        loaded = pickle.loads(written.getvalue())
        assert as_text(loaded) == as_text(d) and len(as_text(d)) > 1000
        assert all(t.turn is turn for t, turn in zip(loaded.transitions, loaded.episode.turns, strict=True))
