"""Credit from replays, its diagnostics, and AT-GRPO: against closed forms, and in a run."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marft_envs
from helpers import noisy
from helpers.branching import PARAMS, Trusting, engine
from helpers.flex import PlainTask, flex
from helpers.runs import quiet_display, settings, timeless, train
from helpers.teams import episode, put
from marft_algos import credit
from marft_algos.algorithms.at_grpo import ATGRPO, ATGRPOConfig
from marft_algos.algorithms.base import get
from marft_algos.credit import diagnostics
from marft_algos.engines.base import row_seed
from marft_algos.rollout.collector import Collector
from marft_algos.rollout.replay import Replayer
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_algos.types import Estimates, Trajectory
from marft_envs import Independent, Outcome, StaticDAG, TurnRecord
from marft_envs.core.vector import VectorEnv
from marft_envs.errors import ConfigError

Pay = Callable[[dict[str, float]], float]


def pays(pay: Pay) -> PlainTask:
    """A task that pays by what each agent said, a number or nothing."""

    def judge(turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome(team_reward=pay({t.agent: float(t.text or 0) for t in turns}), terminated=True)

    return PlainTask(round=judge)


def play(n: int, pay: Pay, rule: credit.Rule, dependency: Any = None, **scripts: Any) -> list[Trajectory]:
    """Three episodes of agents that say a number by their seed, with the rule's replays."""
    vec = VectorEnv([lambda: flex(n, dependency or Independent(), task=pays(pay))])
    tries = Replayer(Trusting(), engine(**scripts), PARAMS)
    collector = Collector(vec, Trusting(), engine(**scripts), PARAMS, states=tries.states)
    played = collector.collect([0, 1, 2], iteration=1, keep=rule.keep)
    return tries.add_costs(rule.replay(played, tries, 1))


def said(d: Trajectory) -> dict[str, float]:
    return {t.agent: float(t.turn.text or 0) for t in d.transitions}


# --- rules --------------------------------------------------------------------------------------------------------


def test_counterfactual_credit_is_the_return_minus_the_siblings_mean() -> None:
    rule = credit.get({"rule": "counterfactual", "samples": 3})
    played = play(3, lambda x: x["a_0"] * x["b_0"] + x["c_0"], rule)
    for d in played:
        others = said(d)
        for t in d.transitions:
            rewards = []
            for j in (1, 2, 3):
                x = {**others, t.agent: float(row_seed(0, 1, d.number, t.index, j) % 1000)}
                rewards.append(x["a_0"] * x["b_0"] + x["c_0"])
            assert rule(d).rewards[t.index] == pytest.approx(d.score - np.mean(rewards))
        assert d.replayed_tokens > 0


def test_blame_is_what_a_turn_cost_and_a_state_is_played_on_from_once() -> None:
    rule, chain = credit.get({"rule": "blame", "samples": 3}), StaticDAG([[0, 1], [0, 0]])
    for d in play(2, lambda x: x["a_0"] * x["b_0"], rule, chain):
        now, anew = said(d), [[float(row_seed(0, 1, d.number, k, j) % 1000) for k in (0, 1)] for j in (1, 2, 3)]
        start, after_a = np.mean([a * b for a, b in anew]), np.mean([now["a_0"] * b for _, b in anew])
        assert rule(d).rewards == pytest.approx([after_a - start, d.score - after_a])
        assert d.replayed_tokens == sum(len(f"{int(x)}") + 1 for a, b in anew for x in (a, b, b))
    for d in play(2, lambda x: x["a_0"] * x["b_0"], rule):  # at once: neither is given where the other is drawn
        now, anew = said(d), [[float(row_seed(0, 1, d.number, k, j) % 1000) for k in (0, 1)] for j in (1, 2, 3)]
        kept = np.mean([now["a_0"] * b - a * b for a, b in anew]), np.mean([a * now["b_0"] - a * b for a, b in anew])
        assert rule(d).rewards == pytest.approx(kept)


def test_blame_of_failures_is_unbiased_for_a_team_without_tokens() -> None:
    """Against enumeration: minus what ``marft blame`` estimates, of hosted agents too."""
    by, rule = noisy.player(relay), credit.get({"rule": "blame", "samples": 400, "failures": 2})
    tries = Replayer(by.renderer, by.engine, by.sampling)
    collector = Collector(VectorEnv([relay]), by.renderer, by.engine, by.sampling, states=tries.states)
    played = rule.replay(collector.collect(range(8), keep=rule.keep), tries, 0)
    asked = [d for d in played if not d.success][:2]
    assert len(asked) == 2 < len(played)
    for d in played:
        v = [noisy.chance(noisy.before(d.episode, relay, k), lambda *_: None) for k in (0, 1)] + [
            float(bool(d.success))
        ]
        expected = [v[1] - v[0], v[2] - v[1]] if d in asked else [0.0, 0.0]
        assert d.replayed == pytest.approx(expected, abs=3 * 0.5 / math.sqrt(400))


def relay() -> Any:
    return marft_envs.make("relay-v0")


def test_a_dummy_gets_no_counterfactual_credit_where_its_successors_are_deterministic() -> None:
    rule = credit.get("counterfactual")
    chain = StaticDAG([[0, 1], [0, 0]])
    for d in play(2, lambda x: x["b_0"], rule, chain, b_0="7"):
        assert rule(d).rewards == [0.0, 0.0], "nor does b, who always says the same"
    copies = play(2, lambda x: x["b_0"], rule, chain, b_0=lambda r: r.messages[-1]["content"].rsplit("\n", 1)[-1])
    assert any(rule(d).rewards[0] != 0.0 for d in copies), "a successor that repeats it makes a matter"
    assert all(rule(d).rewards[1] == 0.0 for d in copies)


def test_agents_that_are_paid_differently_are_compared_by_their_own_pay() -> None:
    def judge(turns: Sequence[TurnRecord]) -> Outcome:
        a, b = (float(t.text or 0) for t in turns)
        return Outcome(agent_rewards={"a_0": a - b, "b_0": b - a}, terminated=True)

    rule = credit.get({"rule": "counterfactual", "samples": 1})
    vec = VectorEnv([lambda: flex(2, Independent(), task=PlainTask(round=judge))])
    tries = Replayer(Trusting(), engine(), PARAMS)
    played = Collector(vec, Trusting(), engine(), PARAMS, states=tries.states).collect([0], iteration=1, keep=rule.keep)
    (d,) = rule.replay(played, tries, 1)
    drawn = [float(row_seed(0, 1, 0, k, 1) % 1000) for k in (0, 1)]
    assert rule(d).rewards == pytest.approx([said(d)[name] - x for name, x in zip(("a_0", "b_0"), drawn, strict=True)])
    vec = VectorEnv([lambda: flex(2, Independent(), task=PlainTask(round=judge))])
    tries = Replayer(Trusting(), engine(), PARAMS)
    played = Collector(vec, Trusting(), engine(), PARAMS, states=tries.states).collect([0], iteration=1, keep="start")
    with pytest.raises(ConfigError, match="rewards agents differently"):
        credit.get("shapley").replay(played, tries, 1)


def worth(x: dict[str, float]) -> float:
    """No sum of single worths: pairs count."""
    names = sorted(x)
    return sum(x[i] * x[j] for i, j in itertools.pairwise(names)) + max(x.values())


def without(d: Trajectory, absent: frozenset[str], instead: float = 0.0) -> float:
    return worth({name: instead if name in absent else number for name, number in said(d).items()})


@pytest.mark.parametrize(("absence", "instead"), [("silent", 0.0), ("start", 5.0)])
def test_leave_one_out_and_shapley_equal_brute_force(absence: str, instead: float) -> None:
    for name in ("leave_one_out", "shapley"):
        rule = credit.get({"rule": name, "absence": absence})
        vec = VectorEnv([lambda: flex(4, Independent(), task=pays(worth))])
        tries = Replayer(Trusting(), engine(), PARAMS, start=engine(**{"*": "5"}))
        collector = Collector(vec, Trusting(), engine(), PARAMS, states=tries.states)
        played = collector.collect([0, 1], iteration=1, keep=rule.keep)
        for d in rule.replay(played, tries, 1):
            agents = frozenset(said(d))
            expected = dict.fromkeys(agents, 0.0)
            if name == "leave_one_out":
                expected = {i: d.score - without(d, frozenset({i}), instead) for i in agents}
            else:
                for order in itertools.permutations(sorted(agents)):
                    for k, i in enumerate(order):
                        before, after = agents - set(order[:k]), agents - set(order[: k + 1])
                        gain = without(d, after, instead) - without(d, before, instead)
                        expected[i] += gain / math.factorial(len(agents))
                assert sum(expected.values()) == pytest.approx(d.score - without(d, agents, instead))
            assert rule(d).rewards == pytest.approx([expected[t.agent] for t in d.transitions])


@pytest.mark.slow
def test_above_six_agents_orders_are_drawn_and_shares_still_add_up() -> None:
    rule = credit.get({"rule": "shapley", "orders": 4})
    played = play(7, lambda x: sum(x.values()) ** 0.5, rule)
    for d in played:
        assert sum(rule(d).rewards) == pytest.approx(d.score), "the team that says nothing earns nothing"
        tokens = [len(t.turn.text) + 1 for t in d.transitions]
        assert d.replayed_tokens < 2**6 * sum(tokens) / 2, "not all coalitions are played"
    again = play(7, lambda x: sum(x.values()) ** 0.5, credit.get({"rule": "shapley", "orders": 4}))
    assert [rule(d).rewards for d in again] == [rule(d).rewards for d in played], "drawn by the episode, not by history"


def breaks_without_a(error: Exception) -> Pay:
    """The sum of what is said; whoever speaks while a is silent cannot be judged."""

    def pay(x: dict[str, float]) -> float:
        if x["a_0"] == 0 and x["b_0"] != 0:
            raise error
        return sum(x.values())

    return pay


def test_an_episode_whose_replay_an_outage_breaks_credits_nobody() -> None:
    rule = credit.get("shapley")
    played = play(2, breaks_without_a(ConnectionError("gone")), rule)
    assert all(rule(d).rewards == [0.0, 0.0] for d in played)
    assert all(d.score > 0 and d.replayed_tokens > 0 for d in played), "the episodes themselves are whole"


def test_a_coalition_whose_words_break_the_judge_is_worth_the_worst() -> None:
    """v(b) is the lowest of what was played, here the silent team's 0: no more, and no reason to credit nobody."""
    rule = credit.get("shapley")
    for d in play(2, breaks_without_a(RuntimeError("cannot be judged")), rule):
        a, b = said(d).values()
        assert b > 0 and rule(d).rewards == pytest.approx([a + b / 2, b / 2])


# --- diagnostics --------------------------------------------------------------------------------------------------


def test_diagnostics_tell_who_matters_and_whether_the_credit_is_right() -> None:
    def pay(x: dict[str, float]) -> float:
        return x["a_0"]

    vec = VectorEnv([lambda: flex(2, StaticDAG([[0, 1], [0, 0]]), task=pays(pay))])
    tries = Replayer(Trusting(), engine(), PARAMS)
    collector = Collector(vec, Trusting(), engine(), PARAMS, states=tries.states)
    played = collector.collect(list(range(12)), iteration=1, keep="decisions")
    judged = diagnostics.judge(played, tries, 1)
    assert diagnostics.metrics(judged, played, Estimates()) == {}, "before the turns have advantages"
    for sign in (1.0, -1.0):
        estimates = Estimates()
        for d in played:
            a, b = d.transitions
            estimates.advantages[a] = np.array([sign * (d.score - 500), 0.0], np.float32)
            estimates.advantages[b] = np.zeros(1, np.float32)
        found = diagnostics.metrics(judged, played, estimates)
        assert sign * found["credit/rank_correlation"] > 0.8 and found["credit/replayed"] == 24
    assert found["credit/influence/a_0"] == 1.0 and found["credit/influence/b_0"] == 0.0
    # Outcomes are uniform on 0..999 at a's states, constant at b's.
    assert found["credit/context_variance"] == pytest.approx((1000**2 - 1) / 12 / 2, rel=0.3)
    assert all(spent.tokens > 0 for spent in tries.spent.values()) and tries.branches == 24 * 16 and not tries.lost


# --- AT-GRPO ------------------------------------------------------------------------------------------------------


def test_at_grpo_standardises_the_candidates_of_a_turn() -> None:
    made = ATGRPO(ATGRPOConfig(candidates=3, std_ddof=0, std_eps=1e-6))
    data = [episode([["a"], ["b"]], number=i) for i in range(2)]
    worths = {(0, 0): [1.0, 0.0, 0.25], (0, 1): [2.0, 2.0, 2.0], (1, 0): [0.5, 3.0, 1.0]}
    for d in data:
        rivals = []
        for t in d.transitions:
            own = worths.get((d.number, t.index))
            if own is None:
                continue
            put(t, worth=own[0])
            rivals += [dataclasses.replace(t, worth=w) for w in own[1:]]
        put(d, candidates=rivals)
    estimates = Estimates()
    logged = made.credit(data, estimates)
    for (number, index), own in worths.items():
        rows = [t for t in (*data[number].transitions, *data[number].candidates) if t.index == index]
        expected = [(w - np.mean(own)) / (np.std(own) + 1e-6) for w in own]
        assert [float(estimates.advantages[t][0]) for t in rows] == pytest.approx(expected)
    assert float(estimates.advantages[data[1].transitions[1]][0]) == 0.0, "a turn without candidates teaches nothing"
    assert logged["group_flat"] == pytest.approx(1 / 3) and logged["candidate_worth"] == pytest.approx(
        np.mean([*worths.values()])
    )
    assert made.credit([episode([["a"]])], Estimates()) == {}
    best = max((*data[1].transitions, *data[1].candidates), key=lambda t: t.worth or 0.0)
    estimates.penalties = {best: np.full(1, -9.0)}
    made.credit(data, estimates)
    assert float(estimates.advantages[best][0]) < 0, "kl_reward_coef is a part of the reward"


def test_at_grpos_reward_is_alpha_team_plus_local_from_the_candidates_layer_on() -> None:
    d = episode([["a"], ["b"], ["a"]], rewards=[8.0, 1.0, 2.0])
    for t, reward in zip(d.transitions, [16.0, 0.5, 32.0], strict=True):
        t.turn.reward = reward
    d.layers[2].agent_rewards = {"b": 0.25, "a": 64.0}
    made = ATGRPO(ATGRPOConfig(alpha=0.1))
    assert made.worth(d, 1) == pytest.approx(0.1 * (1.0 + 2.0) + 0.5 + 0.25)
    with pytest.raises(ConfigError, match="at least 2"):
        ATGRPO(ATGRPOConfig(candidates=1))


# --- runs ---------------------------------------------------------------------------------------------------------


def on_relay(tmp_path: Path, algo: str, changes: dict[str, Any], **more: Any) -> dict[str, Any]:
    made = settings(
        Path("embedded"), tmp_path, env="relay-v0", algo=algo, iterations=1, max_new_tokens=2, episodes_per_iteration=8,
        eval_episodes=4, record_episodes=2, record_every=1,
        algorithm={"epochs": 1, "minibatches": 1, "lr": 1e-3, **changes}, **more,
    )  # fmt: skip
    trainer, run = train(made)
    line = run.metrics()[1]
    assert all(np.isfinite(v) for v in line.values() if isinstance(v, float))
    assert sum(line[f"policy/{p}/steps"] for p in trainer.learner.trainable) > 0
    return line


@pytest.mark.slow
def test_marft_trains_on_counterfactual_credit(tmp_path: Path) -> None:
    line = on_relay(tmp_path, "marft", {"credit": {"rule": "counterfactual", "samples": 2}}, credit_diagnostics=2)
    assert line["tokens_played"] == line["tokens"] + line["tokens_replayed"] == line["tokens_total"]
    assert line["branches"] >= 16 * 4 and line["branches_lost"] == 0
    assert line["credit/replayed"] == 4 and 0.0 <= line["credit/influence/solver_0"] <= 1.0


@pytest.mark.slow
def test_at_grpo_trains_on_all_candidates(tmp_path: Path) -> None:
    line = on_relay(tmp_path, "at_grpo", {"candidates": 3})
    assert line["policy/planner_0/rows"] == line["policy/solver_0/rows"] == 8 * 3
    assert line["tokens_played"] > line["tokens"] + line["tokens_replayed"] > line["tokens"], "candidates count, too"
    assert get("at_grpo").needs == {"branches"}


class Counted:
    """Counts every token that an engine reads or writes while training."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.prompts, self.replies = engine, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, requests: Any, params: Any) -> Any:
        made = self._engine.generate(requests, params)
        if not params.greedy:
            self.prompts += sum(len(r.prompt_ids) for r in requests)
            self.replies += sum(len(r.action_ids) for r in made)
        return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "own"),
    [
        ("at_grpo", {"candidates": 3}),
        ("treerl", {"width": 2, "rounds": 2, "group_size": 2}),
        ("marft", {"credit": {"rule": "counterfactual", "samples": 2}}),
        ("grpo", {"group_size": 4, "refills": 1}),
    ],
)
def test_every_token_that_is_read_or_written_for_training_is_counted(
    algo: str, own: dict[str, Any], tmp_path: Path
) -> None:
    made = settings(
        Path("embedded"), tmp_path, env="relay-v0", algo=algo, iterations=1, max_new_tokens=2, episodes_per_iteration=8,
        eval_episodes=4, algorithm={"epochs": 1, "minibatches": 1, **own},
    )  # fmt: skip
    parts = build(made)
    parts.engine = counted = Counted(parts.engine)  # type: ignore[assignment]
    trainer = Trainer(parts)
    run = trainer.start()
    with quiet_display() as display:
        trainer.train(run, display)
    line = run.metrics()[1]
    assert line["tokens_played"] == counted.replies
    assert line["tokens_processed"] == counted.replies + counted.prompts


@pytest.mark.slow
def test_a_resumed_run_replays_as_one_that_was_not(model: Path, tmp_path: Path) -> None:
    changes = {"credit": {"rule": "shapley", "absence": "start", "costs": {"tokens": 0.01}, "budgets": {"tokens": 4.0}}}

    _, whole = train(settings(model, tmp_path / "one", algorithm=changes))
    short = settings(model, tmp_path / "two", iterations=2, algorithm=changes)
    _, run = train(short)
    again = Trainer(build(settings(model, tmp_path / "two", algorithm=changes)))
    again.resume(run)
    with quiet_display(4) as display:
        again.train(run, display)
    assert timeless(run)[-1] == timeless(whole)[-1] and "credit/multiplier/tokens" in timeless(run)[-1]


@pytest.mark.slow
def test_rewards_that_are_permuted_cannot_be_replayed(tmp_path: Path) -> None:
    for algo, changes in (("marft", {"credit": "counterfactual"}), ("at_grpo", {})):
        made = settings(Path("embedded"), tmp_path, env="relay-v0", algo=algo, permute_rewards=True, algorithm=changes)
        with pytest.raises(ConfigError, match="several replies at one state"):
            Trainer(build(made))
