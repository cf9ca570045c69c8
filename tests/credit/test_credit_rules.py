"""Credit rules that read the record, what episodes cost, and the mathematics of coalitions: against closed forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest

from helpers.teams import Tabular, episode, put
from marft_algos import credit
from marft_algos.algorithms.happo import HAPPO, HAPPOConfig
from marft_algos.algorithms.ippo import IPPO, IPPOConfig
from marft_algos.algorithms.magrpo import MAGRPO, MAGRPOConfig
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.algorithms.needs import RunFacts, check
from marft_algos.algorithms.reinforce import REINFORCE, REINFORCEConfig
from marft_algos.algorithms.spiral import SPIRAL, SPIRALConfig
from marft_algos.credit import formulas
from marft_algos.credit.recorded import outcome
from marft_algos.learner.learner import Learner
from marft_algos.types import Estimates, Trajectory
from marft_envs import AgentSpec
from marft_envs.errors import ConfigError

EVERYTHING = frozenset({"groups", "critic", "team_state", "blocks", "unshared", "branches", "start"})
TEAM = tuple(AgentSpec(name, name, "") for name in "abc")


def turn_by_turn() -> Trajectory:
    """Two rounds of a (writes), b (criticises); the team is paid .2 and .9, turns their own."""
    d = episode([["a"], ["b"], ["a"], ["b"]], rewards=[0.0, 0.2, 0.0, 0.9], rounds=[0, 0, 1, 1])
    for t, reward in zip(d.transitions, [0.1, 0.0, 0.05, 0.0], strict=True):
        t.turn.reward = reward
    return d


# --- rules --------------------------------------------------------------------------------------------------------


def test_an_outcome_is_what_the_team_its_turns_and_the_agent_were_paid() -> None:
    d = turn_by_turn()
    put(d.layers[1], agent_rewards={"b": 3.0})
    assert outcome(d, "a") == pytest.approx(0.2 + 0.9 + 0.1 + 0.05) and outcome(d, "b") == outcome(d, "a") + 3.0


def test_difference_pays_producers_what_they_added_and_critics_what_came_of_it() -> None:
    paid = credit.get({"rule": "difference", "critics": ["b"]})(turn_by_turn())
    first, second = 0.1 + 0.2, 0.05 + 0.9
    assert paid.turns == pytest.approx([first, second - first, second - first, 0.0])
    assert paid.team == [0.0] * 4
    chain = credit.agent_chain(turn_by_turn(), paid, Estimates())
    assert chain.rewards == pytest.approx(paid.turns) and chain.successors == [(2,), (3,), (), ()]
    alone = credit.get("difference")(turn_by_turn())
    assert sum(alone.turns) == pytest.approx(0.9), "without critics the differences add up to the last quality"


def test_difference_pays_once_for_a_span_and_counts_what_was_paid_before_anything_was_made() -> None:
    d = episode([["b"], ["a", "c"], ["b"], ["b"]], rewards=[0.5, 0.0, 1.0, 0.25])
    paid = credit.get({"rule": "difference", "critics": ["b"]})(d)
    assert paid.turns == pytest.approx([1.25 - 0.5, 1.25 - 0.5, 1.25 - 0.5, 0.0, 0.0])


def test_improvement_pays_feedback_only_for_the_change() -> None:
    paid = credit.get({"rule": "improvement", "critics": ["b"]})(turn_by_turn())
    assert paid.turns == pytest.approx([0.3, 0.95 - 0.3, 0.95, 0.0])


def test_local_scales_the_teams_reward_only() -> None:
    d = turn_by_turn()
    d.layers[1].agent_rewards = {"b": 0.5}
    paid = credit.get({"rule": "local", "alpha": 0.25})(d)
    assert paid.team == [0.0, 0.05, 0.0, 0.225] and paid.turns == [0.1, 0.0, 0.05, 0.0]
    assert paid.agents[1] == {"b": 0.5}
    chain = credit.agent_chain(d, paid, Estimates())
    assert chain.rewards == pytest.approx([0.1 + 0.05, 0.05 + 0.5, 0.05 + 0.225, 0.225])


def test_margin_compares_with_the_mean_of_the_others_of_the_round() -> None:
    d = episode([["a", "b", "c"], ["c"]], rewards=[0.0, 7.0])
    for t, reward in zip(d.transitions, [1.0, 0.0, 0.25, 0.25], strict=True):
        t.turn.reward = reward
    d.layers[0].agent_rewards = {"b": 0.5}
    paid = credit.get("margin")(d)
    assert paid.turns == pytest.approx([1 - (0.5 + 0.5) / 2, 0.5 - (1 + 0.5) / 2, 0.0, 0.5 - (1 + 0.5) / 2])
    assert paid.team == [0.0, 0.0], "the team's reward pays nobody"
    single = episode([["a"]], rewards=[1.0])
    single.transitions[0].turn.reward = 0.5
    assert credit.get("margin")(single).turns == [0.5]


def test_rank_weighs_the_teams_reward_by_how_the_ranks_agree() -> None:
    group = [episode([["a", "b"]], number=i, rewards=[team]) for i, team in enumerate([0.0, 1.0, 2.0, 4.0])]
    for d, (a, b) in zip(group, [(0.1, 0.3), (0.2, 0.1), (0.3, 0.2), (0.4, 0.0)], strict=True):
        d.transitions[0].turn.reward, d.transitions[1].turn.reward = a, b
    rule = credit.get("rank")
    logged = rule.prepare(group)
    assert logged == {"credit/rank_weight/a": 2.0, "credit/rank_weight/b": 0.0}, "a: ρ = 1, b: ρ < 0"
    assert credit.agent_chain(group[3], rule(group[3]), Estimates()).rewards == pytest.approx([0.4 + 2 * 4.0, 0.0])
    for d in group:
        for t in d.transitions:
            t.turn.reward = 0.5
    assert set(rule.prepare(group).values()) == {1.0}, "ranks that say nothing leave the team's reward as it is"
    for i, d in enumerate(group):
        put(d, group=i // 2)
    group[0].transitions[1].turn.reward = 0.0
    rule.prepare(group)
    assert rule(group[1]).agents[0] == {"a": 0.0, "b": 2.0} and rule(group[3]).agents[0] == {"a": 4.0, "b": 4.0}


def test_the_kl_to_the_reference_stays_with_its_turn() -> None:
    d = turn_by_turn()
    put(d, replayed=[1.0, 2.0, 3.0, 4.0])
    estimates = Estimates(penalties={d.transitions[0]: np.array([-0.25, -0.5], np.float32)})
    for name, expected in (("difference", 0.1 - 0.75), ("margin", 0.1 - 0.0 - 0.75), ("counterfactual", 0.25)):
        assert credit.agent_chain(d, credit.get(name)(d), estimates).totals[0] == pytest.approx(expected)


def test_settled_credit_is_a_whole_return_on_every_chain() -> None:
    d = turn_by_turn()
    put(d, replayed=[1.0, 2.0, 3.0, 4.0])
    paid = credit.get("shapley")(d)
    for chain in (credit.team_chain, credit.agent_chain):
        assert credit.returns_to_go(d, chain(d, paid, Estimates())) == [1.0, 2.0, 3.0, 4.0]
    put(d, replayed=())
    with pytest.raises(ConfigError, match=r"rule\.replay"):
        credit.get("shapley")(d)


# --- what fits what -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["difference", "local", "margin", "rank", {"rule": "improvement", "critics": ["b"]}])
def test_rules_that_tell_agents_apart_need_agent_chains(rule: str | dict[str, object]) -> None:
    facts = RunFacts(EVERYTHING, 8, TEAM)
    check(IPPO(IPPOConfig(credit=rule)), facts)
    check(SPIRAL(SPIRALConfig(credit=rule)), facts)
    check(REINFORCE(REINFORCEConfig(credit=rule, chain="agent")), facts)
    for made in (
        MARFT(MARFTConfig(credit=rule)),
        HAPPO(HAPPOConfig(credit=rule)),
        REINFORCE(REINFORCEConfig(credit=rule)),
    ):
        with pytest.raises(ConfigError, match="agent"):
            check(made, facts)


@pytest.mark.parametrize("rule", ["blame", "counterfactual", "leave_one_out", "shapley"])
def test_rules_that_replay_need_an_environment_that_can_be_copied(rule: str) -> None:
    facts = RunFacts(EVERYTHING, 8, TEAM)
    for made in (MARFT(MARFTConfig(credit=rule)), IPPO(IPPOConfig(credit=rule)), MAGRPO(MAGRPOConfig(credit=rule))):
        check(made, facts)
    with pytest.raises(ConfigError, match=f"credit rule '{rule}' needs several replies at one state"):
        check(MARFT(MARFTConfig(credit=rule)), RunFacts(EVERYTHING - {"branches"}, 8, TEAM))
    for other in (HAPPO(HAPPOConfig(credit=rule)), SPIRAL(SPIRALConfig(credit=rule))):
        with pytest.raises(ConfigError, match="works along agent and team chains"):
            check(other, facts)


def test_playing_absent_agents_as_they_started_needs_their_weights() -> None:
    made = MARFT(MARFTConfig(credit={"rule": "shapley", "absence": "start", "costs": {"calls": 0.1}}))
    check(made, RunFacts(EVERYTHING, 8, TEAM))
    with pytest.raises(ConfigError, match="weights that the run started from"):
        check(made, RunFacts(EVERYTHING - {"start"}, 8, TEAM))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("counterfactal", "Did you mean 'counterfactual'"),
        ({"rule": "shapley", "order": 3}, "no setting 'order'. Did you mean 'orders'"),
        ({"rule": "shapley", "absence": "quiet"}, "'absence' cannot be 'quiet'"),
        ({"rule": "broadcast", "alpha": 1}, "takes no arguments"),
        ({"rule": "last", "costs": {"token": 1.0}}, "'costs' cannot be"),
        ({"costs": {"tokens": -1.0}}, r"costs\[tokens\] is -1.0; expected 0 or more"),
        ({"costs": {"tokens": 1.0}, "multiplier_lr": 0.0}, "multiplier_lr is 0.0; expected more than 0"),
    ],
)
def test_settings_that_cannot_work_name_the_right_word(setting: credit.Setting, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        credit.get(setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"rule": "difference", "critics": ["d"]}, "names 'd'"),
        ({"rule": "difference", "critics": ["a", "b", "c"]}, "somebody must produce"),
        ("improvement", "name who gives it"),
        ({"rule": "counterfactual", "samples": 0}, "samples is 0; expected at least 1"),
        ({"rule": "shapley", "orders": 0}, "orders is 0; expected at least 1"),
    ],
)
def test_arguments_that_do_not_fit_the_team_are_refused(setting: credit.Setting, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        credit.get(setting).check(TEAM)


def test_a_rule_of_ones_own_is_a_function_or_a_class() -> None:
    @credit.register("test_half")
    def half(trajectory: Trajectory) -> credit.Rewards:
        paid = credit.broadcast(trajectory)
        paid.team = [r / 2 for r in paid.team]
        return paid

    assert credit.get("test_half")(turn_by_turn()).team == [0.0, 0.1, 0.0, 0.45]
    assert "test_half" in credit.rules() and half(turn_by_turn()).team[1] == 0.1


# --- costs --------------------------------------------------------------------------------------------------------


def test_costs_are_taken_off_the_turns_that_cause_them() -> None:
    d = episode([["a", "b"], ["a"], ["b"]], tokens=[2, 3, 4, 1], rewards=[0.0, 0.0, 1.0])
    put(d.transitions[3], policy="")
    rule = credit.get({"rule": "broadcast", "costs": {"tokens": 0.01, "calls": 0.1, "handoffs": 1.0}})
    rule.prepare([d])
    # a hands over when somebody else acts next; nobody acts after the last.
    expected = [-(0.02 + 0.1), -(0.03 + 0.1 + 1), -(0.04 + 0.1 + 1), -0.01]
    assert rule(d).turns == pytest.approx(expected) and rule(d).team == [0.0, 0.0, 1.0]
    assert credit.team_score(d, rule(d)) == pytest.approx(1.0 + sum(expected))


def test_the_multiplier_follows_its_closed_form_and_survives_a_restart() -> None:
    setting = {"costs": {"tokens": 0.02}, "budgets": {"tokens": 5.0, "calls": 9.0}, "multiplier_lr": 0.1}
    rule, lengths = credit.get(setting), [(4, 6), (2, 1), (8, 8), (5, 5)]
    price, halfway = 0.02, None
    for i, (x, y) in enumerate(lengths):
        panel = [episode([["a"]], number=0, tokens=[x]), episode([["a"]], number=1, tokens=[y])]
        logged = rule.prepare(panel)
        assert (
            logged["credit/multiplier/tokens"] == pytest.approx(price) and logged["credit/cost/tokens"] == (x + y) / 2
        )
        assert logged["credit/multiplier/calls"] == 0.0, "below its budget a cost is free"
        assert rule(panel[0]).turns[0] == pytest.approx(-price * x), "this iteration's price, not the next one's"
        price = max(0.0, price + 0.1 * ((x + y) / 2 - 5.0))
        if i == 1:
            halfway = rule.state_dict()
    assert price > 0.0 and halfway is not None
    resumed = credit.get(setting)
    resumed.load_state_dict(halfway)
    for x, y in lengths[2:]:
        resumed.prepare([episode([["a"]], number=0, tokens=[x]), episode([["a"]], number=1, tokens=[y])])
    assert resumed.state_dict() == rule.state_dict()


def test_the_learner_prepares_the_rule_and_keeps_its_state() -> None:
    setting = {"costs": {"tokens": 0.5}, "budgets": {"tokens": 1.0}}
    policies = Tabular(["a", "b"])
    data = policies.play([episode([["a"], ["b"]], number=i) for i in range(4)])
    learner = Learner(REINFORCE(REINFORCEConfig(credit=setting)), policies)
    logged = learner.update(data, 0)
    tokens = np.mean([sum(len(t.reply.action_ids) for t in d.transitions) for d in data])
    assert logged["credit/cost/tokens"] == pytest.approx(tokens)
    returns = [float(learner.estimates.returns[t][0]) for t in data[0].transitions]
    first, second = (0.5 * len(t.reply.action_ids) for t in data[0].transitions)
    assert returns == pytest.approx([1.0 - first - second, 1.0 - second])
    other = Learner(REINFORCE(REINFORCEConfig(credit=setting)), policies)
    other.load_state_dict(learner.state_dict())
    assert other.algorithm.rule.state_dict() == learner.algorithm.rule.state_dict()
    assert other.algorithm.rule.state_dict()["multipliers"]["tokens"] == pytest.approx(0.5 + 0.01 * (tokens - 1.0))


# --- coalitions ---------------------------------------------------------------------------------------------------


def random_game(n: int, seed: int = 0) -> tuple[list[str], dict[frozenset[str], float]]:
    names = [f"p{i}" for i in range(n)]
    rng = np.random.default_rng(seed)
    return names, {c: float(rng.normal()) for c in formulas.coalitions(names)}


def by_permutations(names: list[str], value: Mapping[frozenset[str], float]) -> dict[str, float]:
    """The definition, n! orders long."""
    found = dict.fromkeys(names, 0.0)
    for order in itertools.permutations(names):
        for i, name in enumerate(order):
            found[name] += value[frozenset(order[: i + 1])] - value[frozenset(order[:i])]
    return {name: total / math.factorial(len(names)) for name, total in found.items()}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_shapley_is_the_mean_over_all_orders_and_efficient(n: int) -> None:
    names, value = random_game(n, n)
    found = formulas.shapley(names, value)
    assert found == pytest.approx(by_permutations(names, value))
    assert sum(found.values()) == pytest.approx(value[frozenset(names)] - value[frozenset()])
    assert formulas.shapley(names[::-1], value) == found, "the order in which agents are named does not matter"
    assert len(formulas.coalitions(names)) == len(set(formulas.coalitions(names))) == 2**n


def test_shapley_treats_equals_alike_and_gives_a_dummy_what_it_brings() -> None:
    names = ["a", "b", "c", "d"]
    value = {
        c: 3.0 * ({"a", "b"} <= c) + ("c" in c) * len(c & {"a", "b"}) + 0.5 * ("d" in c)
        for c in formulas.coalitions(names)
    }
    found = formulas.shapley(names, value)
    assert found["a"] == pytest.approx(found["b"]), "symmetry"
    assert found["d"] == pytest.approx(0.5), "a dummy brings its own worth, and nothing to others"
    assert found["c"] == pytest.approx(1.0) and found["a"] == pytest.approx(1.5 + 0.5)


def test_drawn_orders_converge_to_the_exact_value_and_are_efficient_as_they_are() -> None:
    names, value = random_game(6, 3)
    exact = formulas.shapley(names, value)
    errors = []
    for number in (4, 4000):
        drawn = formulas.orders(names, number, np.random.default_rng(0))
        assert len(drawn) == number and drawn[1] == drawn[0][::-1]
        found = formulas.shapley_of(drawn, value)
        assert sum(found.values()) == pytest.approx(sum(exact.values()))
        errors.append(max(abs(found[i] - exact[i]) for i in names))
    assert errors[1] < 0.05 < errors[0]
    again = formulas.orders(names[::-1], 4, np.random.default_rng(0))
    assert again == formulas.orders(names, 4, np.random.default_rng(0))
    # Worth that pairs have together is met exactly by an order and its reverse.
    pairs = {c: float(sum((hash((i, j)) % 7) for i, j in itertools.combinations(sorted(c), 2))) for c in value}
    assert formulas.shapley_of(again[:2], pairs) == pytest.approx(formulas.shapley(names, pairs))


def test_rank_without_its_weights_says_what_to_call() -> None:
    with pytest.raises(ConfigError, match=r"rule\.prepare"):
        credit.get("rank")(episode([["a"], ["b"]]))


def test_spearman_is_the_correlation_of_ranks() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.permutation(20).astype(float), rng.permutation(20).astype(float)
    closed = 1 - 6 * float(((x - y) ** 2).sum()) / (20 * (20**2 - 1))
    assert formulas.spearman(x.tolist(), y.tolist()) == pytest.approx(closed)
    assert formulas.spearman(np.exp(x).tolist(), y.tolist()) == pytest.approx(closed), "monotone maps change nothing"
    tied = formulas.spearman([1.0, 1.0, 2.0], [3.0, 5.0, 5.0])
    assert tied == pytest.approx(np.corrcoef([1.5, 1.5, 3.0], [1.0, 2.5, 2.5])[0, 1])
    assert math.isnan(formulas.spearman([1.0, 1.0], [0.0, 1.0])) and math.isnan(formulas.spearman([1.0], [1.0]))
