"""Dependency functions: each kind's layers and visibility, cycles, deaths, bad routing; random D against brute force."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marft_envs
from helpers.flex import PlainTask, flex, order, play
from marft_envs import (
    Chain,
    ConfigError,
    DependencyError,
    DependencyFunction,
    FlexEnv,
    Independent,
    InvalidRouting,
    Layered,
    Orchestrator,
    Outcome,
    Router,
    Scheduled,
    StaticDAG,
    Turn,
    View,
)
from marft_envs.core.dependency import as_dependency
from marft_envs.core.routing import parse_names
from marft_envs.records import trajectory
from marft_envs.testing import invariants


def sees(env: object) -> list[tuple[int, ...]]:
    return [turn.sees for turn in env.episode.turns]  # type: ignore[attr-defined]


def killer(**when: int) -> PlainTask:
    """Kills an agent once so many turns have been committed: ``killer(b_0=1)``."""

    def layer(turns: Sequence[object]) -> Outcome:
        count = turns[-1].index + 1  # type: ignore[attr-defined]
        return Outcome(dead=frozenset(name for name, at in when.items() if at <= count))

    return PlainTask(layer)


# Fixed organisations ------------------------------------------------------------------------------------


def test_chain_sees_all_before_or_the_previous() -> None:
    assert sees(play(flex(4, Chain()))) == [(), (0,), (0, 1), (0, 1, 2)]
    assert sees(play(flex(4, Chain(sees="previous")))) == [(), (0,), (1,), (2,)]
    assert order(play(flex(4, Chain("d_0", "a_0")))) == ["d", "a"]


def test_visibility_starts_anew_each_round() -> None:
    assert sees(play(flex(2, Chain(), max_rounds=2))) == [(), (0,), (), (2,)]


def test_layered_and_independent() -> None:
    env = play(flex(4, Layered([["b_0", "a_0"], ["d_0"], ["c_0"]])))
    assert order(env) == ["ab", "d", "c"] and sees(env) == [(), (), (0, 1), (0, 1, 2)]
    env = play(flex(3, Independent(), max_rounds=2))
    assert order(env) == ["abc", "abc"] and sees(env) == [()] * 6
    assert env.episode.rounds[0].D == [[0] * 3] * 3


def test_static_dag_from_a_matrix_or_a_mapping() -> None:
    d = np.array([[0, 0, 1], [0, 0, 1], [0, 0, 0]])
    for dag in (StaticDAG(d), StaticDAG(d.tolist()), StaticDAG({"c_0": ["a_0", "b_0"]})):
        env = play(flex(3, dag))
        assert order(env) == ["ab", "c"] and sees(env) == [(), (), (0, 1)]
        assert d.tolist() == env.episode.rounds[0].D
    assert sees(play(flex(2, StaticDAG({"b_0": "a_0"})))) == [(), (0,)]


@pytest.mark.parametrize(("dag", "words"), [
    (StaticDAG({"a_0": ["x_0"]}), "agent 'x_0', which is not in the team"),
    (StaticDAG({"actor": ["a_0"]}), "agent 'actor'"), (StaticDAG([[0, 1], [0, 0]]), "3 x 3 matrix"),
    (StaticDAG([[0, 2, 0], [0, 0, 0], [0, 0, 0]]), "of 0 and 1"),
    (Chain("a_0", "a_0"), "twice"), (Chain("a_0", "z_0"), "agent 'z_0'"), (Layered([["a_0"], ["a_0"]]), "twice"),
    (Layered([["q_0"]]), "agent 'q_0'"), (Orchestrator("z_0"), "agent 'z_0'"),
    (Orchestrator("a_0", default="z_0"), "agent 'z_0'"),
    (StaticDAG([[0, 1, 0], [1, 0, 0], [0, 0, 0]]), r"cycle among a_0, b_0.*on_cycle='lag'"),
    (StaticDAG([[1, 0, 0], [0, 0, 0], [0, 0, 0]]), "cycle among a_0"),
    (StaticDAG([[0, 1, 0], [0]]), r"D\[i\]\[j\] = 1: agent j sees agent i.*those it sees"),
    (StaticDAG([("a_0", "b_0")]), r"mapping from the agent who sees to those whom it sees: \{'b_0': \['a_0'\]\}"),
    (Layered([["a_0", "b_0"], ["b_0", "c_0"]]), "Edges: a mapping"),
])  # fmt: skip
def test_organisations_that_do_not_fit_the_team(dag: DependencyFunction, words: str) -> None:
    with pytest.raises(DependencyError, match=words):
        flex(3, dag)


def test_a_list_of_edges_is_no_list_of_layers() -> None:
    """Graph libraries write edges as tuples of two; read as layers they would say the opposite."""
    for edges in ([("a_0", "b_0"), ("a_0", "c_0")], {("a_0", "b_0")}, (("a_0", "b_0"),), {("a_0", "b_0"): {}}):
        with pytest.raises(DependencyError, match=r"'b_0': \['a_0'\].*For layers.*\['a_0', 'b_0'\]"):
            flex(3, edges)
    for layers in ([["a_0", "b_0"], ["c_0"]], [{"b_0", "a_0"}, {"c_0"}], [("a_0", "b_0"), ("c_0",)]):
        assert order(play(flex(3, layers))) == ["ab", "c"]


def test_a_d_without_the_answer_is_refused() -> None:
    for dependency in ([["reasoner_0"]], Chain("reasoner_0")):
        with pytest.raises(DependencyError, match=r"reasoner_0 acts, and actor_0 would answer"):
            marft_envs.make("math-dual-v0", dependency=dependency)
    assert marft_envs.make("math-dual-v0", dependency=[["actor_0"]]).dependency.acting == {"actor_0"}
    later = lambda: marft_envs.make("math-dual-v0", dependency=Scheduled(lambda view: [["reasoner_0"]]))  # noqa: E731
    assert later().dependency.acting is None
    assert "no agent that answers has acted" in str(invariants.order_invariance(later))
    assert flex(2, [["a_0"]]).dependency.acting == {"a_0"}, "a team in which no one is said to answer may leave any out"


def test_settings_of_kinds_that_cannot_be() -> None:
    for build, words in (
        (lambda: StaticDAG([], on_cycle="unroll:0"), "unroll:k"),
        (lambda: Chain(sees="some"), "'all' or 'previous'"),
        (lambda: Orchestrator("a_0", hops=0), "at least 1"),
        (lambda: as_dependency("chian"), "Did you mean 'chain'"),
        (lambda: as_dependency(3), "Cannot read a dependency function"),
        (lambda: as_dependency(["a_0", "b_0"]), "Cannot read a dependency function"),
        (
            lambda: as_dependency(unknown),
            r"unknown is no dependency function yet. Next: Router\(unknown\), asked after",
        ),
        (lambda: flex(2, Independent), r"Independent is a class. Next: Independent\(\)."),
    ):
        with pytest.raises(ConfigError, match=words):
            build()


def test_what_a_configuration_file_can_say() -> None:
    assert order(play(flex(3, as_dependency("independent")))) == ["abc"]
    assert order(play(flex(3, as_dependency([["a_0", "b_0"], ["c_0"]])))) == ["ab", "c"]
    assert order(play(flex(2, as_dependency([[0, 0], [1, 0]])))) == ["b", "a"]
    assert order(play(flex(2, as_dependency("chain")))) == ["a", "b"]
    line = flex(3, as_dependency("previous"))
    assert order(play(line)) == ["a", "b", "c"]
    assert [t.sees for t in line.episode.turns] == [(), (0,), (1,)]


# Cycles -------------------------------------------------------------------------------------------------


def test_lag_reads_the_previous_round() -> None:
    env = play(flex(2, StaticDAG([[0, 1], [1, 0]], on_cycle="lag"), max_rounds=3))
    assert order(env) == ["a", "b"] * 3
    assert sees(env) == [(), (0,), (1,), (2,), (3,), (4,)]
    assert [r.D for r in env.episode.rounds] == [[[0, 1], [0, 0]], [[0, 1], [1, 0]], [[0, 1], [1, 0]]]


def test_lag_leaves_edges_outside_cycles_alone() -> None:
    # b and c see each other; a sees c, and is in no cycle.
    env = play(flex(3, StaticDAG({"b_0": ["c_0"], "c_0": ["b_0"], "a_0": ["c_0"]}, on_cycle="lag"), max_rounds=2))
    assert order(env) == ["b", "c", "a"] * 2
    assert sees(env) == [(), (0,), (1,), (1,), (3,), (4,)]


def test_unroll_repeats_the_cycle_and_nothing_else() -> None:
    # a → (b ⇄ c) → d
    dag = StaticDAG({"b_0": ["a_0", "c_0"], "c_0": ["b_0"], "d_0": ["c_0"]}, on_cycle="unroll:2")
    env = play(flex(4, dag))
    assert order(env) == ["a", "b", "c", "b", "c", "d"]
    assert sees(env) == [(), (0,), (1,), (0, 2), (3,), (4,)]


def test_unroll_takes_cycles_in_the_order_of_their_dependence() -> None:
    # (c ⇄ d) → b → (a ⇄ e)
    d = {"c_0": ["d_0"], "d_0": ["c_0"], "b_0": ["d_0"], "a_0": ["b_0", "e_0"], "e_0": ["a_0"]}
    env = play(flex(5, StaticDAG(d, on_cycle="unroll:2")))
    assert order(env) == ["c", "d", "c", "d", "b", "a", "e", "a", "e"]
    assert env.episode.turns[5].sees == (4,)


# Kinds that decide while the episode runs ------------------------------------------------------------------


def test_scheduled_takes_anything_and_skips_whom_it_leaves_out() -> None:
    plans = [[["a_0"], ["b_0"]], np.array([[0, 0, 0], [0, 0, 0], [1, 1, 0]]), Chain("c_0", "a_0")]
    env = play(flex(3, Scheduled(lambda view: plans[view.round]), max_rounds=3))
    assert order(env) == ["a", "b", "c", "ab", "c", "a"]
    assert sees(env)[2:] == [(), (2,), (2,), (), (5,)]


def test_scheduled_does_not_share_a_plan_between_environments() -> None:
    plan = StaticDAG({"b_0": ["a_0"], "c_0": ["b_0"]})
    d = Scheduled(lambda view: plan)
    mourning, whole = flex(3, d, killer(b_0=1)), flex(3, d)
    mourning.reset(seed=0)
    whole.reset(seed=0)
    mourning.step("x")
    whole.step("x")
    mourning.select("c_0")
    mourning.step("x")
    whole.step("x")
    whole.step("x")
    assert order(mourning) == ["a", "c"] and order(whole) == ["a", "b", "c"]


def test_router_goes_by_what_the_task_said() -> None:
    def until_good(view: View) -> list[str]:
        if view.layer == 0:
            return ["a_0"]
        return [] if view.outcome.metrics.get("good") else ["a_0"]

    task = PlainTask(lambda turns: Outcome(metrics={"good": float(turns[0].text == "3")}))
    env = play(flex(1, Router(until_good), task), say=lambda env, agent: str(len(env.view.history)))
    assert [t.text for t in env.episode.turns] == ["0", "1", "2", "3"]
    assert sees(env) == [(), (0,), (0, 1), (0, 1, 2)]


def test_repeats_in_a_layer_go_to_later_layers() -> None:
    env = play(
        flex(3, Router(lambda view: ["b_0", "a_0", "b_0", "b_0"] if view.layer == 0 else ["c_0"] * (view.layer < 2)))
    )
    assert order(env) == ["ab", "b", "b", "c"] and env.episode.invalid == 0
    assert sees(env) == [(), (), (), (), (0, 1, 2, 3)]


def test_repeats_of_the_dead_do_not_act() -> None:
    env = play(flex(2, Router(lambda view: [["a_0", "a_0"], ["b_0"], []][min(view.layer, 2)]), killer(a_0=1)))
    assert order(env) == ["a", "b"]


def test_orchestrator_follows_the_bosss_words() -> None:
    def say(env: object, agent: str) -> str:
        replies = ["let b do it", "done", "now c_0, not b... c", "done", "finish"]
        return replies[len(env.view.history)]  # type: ignore[attr-defined]

    env = play(flex(3, Orchestrator("a_0", hops=3)), say=say)
    assert order(env) == ["a", "b", "a", "c", "a"]
    assert sees(env) == [(), (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)] and env.episode.invalid == 0


@pytest.mark.parametrize(("text", "names"), [
    ("ask expert_1", ["expert_1"]), ("expert_10 knows", ["expert_10"]), ("not the judge but EXPERT_1", ["expert_1"]),
    ("the judge", ["judge_0"]), ("expert", None), ("judges", None), ("finish", []), ("", None),
])  # fmt: skip
def test_parse_names(text: str, names: list[str] | None) -> None:
    assert parse_names(text, ["expert_1", "expert_10", "judge_0"]) == names


# Deaths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dependency", "layers"), [
    (Chain(), ["a", "c", "a", "c"]),
    (Layered([["a_0"], ["b_0"], ["c_0"]]), ["a", "c", "a", "c"]),
    (Layered([["a_0"], ["b_0", "c_0"]]), ["a", "c", "a", "c"]),
    (StaticDAG({"b_0": ["c_0"], "c_0": ["b_0"]}, on_cycle="unroll:2"), ["a", "c", "c", "a", "c", "c"]),
    (Router(lambda view: [n for n in view.agents if n not in view.dead][view.layer : view.layer + 1]), ["a"]),
])  # fmt: skip
def test_the_dead_are_skipped(dependency: DependencyFunction, layers: list[str]) -> None:
    env = play(flex(3, dependency, killer(b_0=1), max_rounds=2))
    assert order(env)[: len(layers)] == layers and "b" not in "".join(order(env))


def test_nobody_sees_the_dead_in_later_rounds() -> None:
    env = play(flex(3, Chain(), killer(b_0=2), max_rounds=2))
    assert order(env) == ["a", "b", "c", "a", "c"] and sees(env) == [(), (0,), (0, 1), (), (3,)]


def test_an_orchestrator_that_names_the_dead_falls_back_on_its_default() -> None:
    d = Orchestrator("a_0", hops=2, default="c_0")
    env = play(flex(3, d, killer(b_0=2)), say=lambda env, agent: "b")
    assert order(env) == ["a", "b", "a", "c"] and env.episode.invalid == 1


# Bad routing --------------------------------------------------------------------------------------------


def unknown(view: View) -> list[str]:
    return [["a_0"], ["b_0", "nobody_7"], ["c_0"], []][view.layer]


@pytest.mark.parametrize(
    ("policy", "layers", "reward"),
    [("fallback", ["a", "b", "c"], 0.0), ("end_round", ["a"], 0.0), (0.25, ["a", "b", "c"], -0.25)],
)
def test_bad_routing_follows_on_invalid_and_is_counted(policy: str | float, layers: list[str], reward: float) -> None:
    env = play(flex(3, Router(unknown, from_words=True), on_invalid=policy))
    assert order(env) == layers and env.episode.invalid == 1
    assert env.episode.team_return == reward


@pytest.mark.parametrize(("policy", "layers"), [("fallback", ["a"]), ("end_round", ["a"]), (0.5, ["a"])])
def test_an_unparsable_boss_without_default_ends_the_round(policy: str | float, layers: list[str]) -> None:
    env = play(flex(2, Orchestrator("a_0"), on_invalid=policy), say=lambda env, agent: "hm")
    assert order(env) == layers and env.episode.invalid == 1


def test_an_unparsable_boss_with_default() -> None:
    env = play(flex(3, Orchestrator("a_0", default="b_0"), on_invalid=0.5), say=lambda env, agent: "hm")
    assert order(env) == ["a", "b"] and env.episode.team_return == -0.5


def test_a_penalty_before_anybody_acted_is_booked_to_the_first_layer() -> None:
    d = Router(lambda view: ["nobody_1", "a_0"] if view.layer == 0 else [], from_words=True)
    env = flex(2, d, on_invalid=2.0)
    env.reset(seed=0)
    env.step("x")
    assert env.episode.layers[0].team_reward == -2.0 and env.rewards == {"a_0": -2.0, "b_0": -2.0}


def test_a_penalty_does_not_hide_the_tasks_last_word() -> None:
    seen = []

    def fn(view: View) -> list[str]:
        seen.append(dict(view.outcome.metrics))
        return [["a_0"], ["nobody_0", "b_0"], []][view.layer]

    task = PlainTask(lambda turns: Outcome(metrics={"turn": float(turns[0].index)}))
    play(flex(2, Router(fn, from_words=True), task, on_invalid=1.0))
    assert seen == [{}, {"turn": 0.0}, {"turn": 1.0}]


def test_a_fallback_is_checked_too() -> None:
    def fn(view: View) -> list[str]:
        if view.layer:
            return []
        raise InvalidRouting("hm", [Turn("ghost_0"), Turn("b_0")])

    assert order(play(flex(2, Router(fn)))) == ["b"]


def misnamed(view: View) -> list[str]:
    return ["a_0"] if view.layer == 0 else ["b_1"]


@pytest.mark.parametrize(("d", "words"), [
    (Router(misnamed), "Router names the agent 'b_1', which is not in the team. Did you mean 'b_0'?"),
    (Router(lambda view: ["a_0"] if view.layer == 0 else None), "returned None in round 0, layer 1; expected a list"),
    (Router(lambda view: ["a_0"] if view.layer == 0 else "b_0"), "returned 'b_0' in round 0, layer 1; expected a list"),
    (Router(lambda view: ["a_0"] if view.layer == 0 else [3]), "gave 3; expected Turn"),
])  # fmt: skip
def test_a_router_that_is_wrong_is_an_error_that_says_what(d: Router, words: str) -> None:
    with pytest.raises(DependencyError, match=re.escape(words)):
        play(flex(3, d))


def test_naming_the_dead_in_code_is_an_error_of_the_code() -> None:
    d = Router(lambda view: [["a_0"], ["b_0"], []][view.layer])
    with pytest.raises(DependencyError, match=r"names the agent 'b_0', which has left the episode: see view\.dead"):
        play(flex(2, d, killer(b_0=1)))


def test_ones_own_kind_of_d_is_held_to_the_same() -> None:
    class Mine(DependencyFunction):
        def __init__(self, answer: object) -> None:
            self.answer = answer

        def next_layer(self, view: View) -> list[Turn]:
            return [Turn("a_0")] if view.layer == 0 else self.answer  # type: ignore[return-value]

    for answer, words in ((None, "Mine.next_layer gave None"), (["b_0"], "Mine.next_layer gave 'b_0'"),
                          ([Turn("z_0")], "Mine names the agent 'z_0', which is not in the team.")):  # fmt: skip
        with pytest.raises(DependencyError, match=re.escape(words)):
            play(flex(2, Mine(answer)))


def test_the_record_says_what_a_models_words_named() -> None:
    """Names out of a model's text are data: which round and turn, and what was named."""

    def fn(view: View) -> list[str]:
        return [view.history[-1].text] if view.layer == 1 else ["a_0"] * (view.layer == 0)

    env = flex(2, Router(fn, from_words=True), max_rounds=2)
    env = play(env, say=lambda env, agent: "b_7" if not env.view.history else "b_0")
    assert order(env) == ["a", "a", "b"] and env.episode.invalid == 1
    assert env.episode.invalid_routes == [{"round": 0, "turn": 0, "named": ["b_7"], "reason": "unknown or dead agent"}]
    boss = play(flex(2, Orchestrator("a_0", parse=lambda text, workers: [text])), say=lambda env, agent: "nobody")
    assert [(r["round"], r["turn"], r["named"]) for r in boss.episode.invalid_routes] == [(0, 0, ["nobody"])]
    mute = play(flex(2, Orchestrator("a_0")), say=lambda env, agent: "hm")
    assert [(r["turn"], r["named"]) for r in mute.episode.invalid_routes] == [(0, [])]
    again = trajectory.from_dict(trajectory.to_dict(env.episode))
    assert again.invalid_routes == env.episode.invalid_routes and env.fork()[0].episode.invalid == 1


def test_a_plan_read_from_words_may_be_invalid_too() -> None:
    def plan(view: View) -> object:
        if view.round == 0:
            return [["a_0"]]
        if view.round == 1:
            raise InvalidRouting("no plan in the words", [Turn("a_0")], named=["zz"])
        return "chain"

    env = play(flex(2, Scheduled(plan), max_rounds=3))  # type: ignore[arg-type]
    assert order(env) == ["a", "a", "a", "b"]
    assert [(r["round"], r["named"]) for r in env.episode.invalid_routes] == [(1, ["zz"])]


# What a D is, by its properties ---------------------------------------------------------------------------


@pytest.mark.parametrize("history", ["deps", "own", "public", "team"])
def test_one_d_is_one_experiment_however_it_is_spelled(history: str) -> None:
    spelled = [Independent(), "independent", [[0, 0], [0, 0]], np.zeros((2, 2)), [["a_0", "b_0"]], Layered([["b_0", "a_0"]]),
               Layered([[], ["a_0", "b_0"]]), {}, StaticDAG({}), Scheduled(lambda view: "independent")]  # fmt: skip
    plays = []
    for d in spelled:
        env = play(flex(2, d, max_rounds=3, history=history))  # type: ignore[arg-type]
        static = not isinstance(d, Scheduled)
        assert env.metadata["is_parallelizable"] is env.dependency.is_static is static
        if static or history != "team":
            plays.append((env.episode.turns, env.episode.rounds, env.episode.layers))
    assert all(one == plays[0] for one in plays)


@pytest.mark.parametrize(("d", "static", "simultaneous", "edges"), [
    (Chain(), True, False, {("a_0", "b_0"), ("a_0", "c_0"), ("b_0", "c_0")}),
    (Chain(sees="previous"), True, False, {("a_0", "b_0"), ("b_0", "c_0")}),
    (Chain("b_0"), True, False, set()),
    (Layered([["a_0"], ["c_0"]]), True, False, {("a_0", "c_0")}),
    (StaticDAG([[0, 1, 0], [1, 0, 0], [0, 0, 0]], on_cycle="lag"), True, False, {("a_0", "b_0"), ("b_0", "a_0")}),
    (StaticDAG(np.eye(3, dtype=int), on_cycle="lag"), True, True, set()),
    (Scheduled(lambda view: []), False, False, None), (Router(lambda view: []), False, False, None),
    (Orchestrator("a_0"), False, False, None),
])  # fmt: skip
def test_a_d_says_what_it_is(d: DependencyFunction, static: bool, simultaneous: bool, edges: set | None) -> None:
    d.bind(["a_0", "b_0", "c_0"])
    assert (d.is_static, d.is_simultaneous, d.possible_edges) == (static, simultaneous, edges)
    assert d.is_empty is (edges == set())


def test_a_d_of_ones_own_promises_nothing_unless_it_says_so() -> None:
    class Mine(DependencyFunction):
        def next_layer(self, view: View) -> list[Turn]:
            return [Turn(name) for name in view.agents] if view.layer == 0 else []

    class Known(Mine):
        is_static = is_simultaneous = True
        possible_edges = frozenset()

    env = play(flex(2, Mine(), max_rounds=2, history="team"))
    assert not env.metadata["is_parallelizable"] and env.episode.rounds[1].D == [[0, 1], [1, 0]]
    env = play(flex(2, Known(), max_rounds=2, history="team"))
    assert env.metadata["is_parallelizable"] and env.episode.rounds[1].D == [[0, 0], [0, 0]]


# Rounds -------------------------------------------------------------------------------------------------


def test_one_empty_round_passes_and_two_are_an_error() -> None:
    def every_other(view: View) -> list[list[str]]:
        return [["a_0"]] if view.round % 2 == 0 else []

    env = play(flex(1, Scheduled(every_other), max_rounds=4))
    assert [t.round for t in env.episode.turns] == [0, 2] and len(env.episode.rounds) == 4
    with pytest.raises(DependencyError, match="two rounds in a row in which no agent acts"):
        play(flex(1, Scheduled(lambda view: [["a_0"]] if view.round == 0 else []), max_rounds=4))


def test_an_episode_in_which_nobody_acts_is_an_error() -> None:
    with pytest.raises(DependencyError, match="before anybody acted"):
        flex(1, Router(lambda view: [])).reset(seed=0)


@pytest.mark.parametrize("index", [1, 5, -1])
def test_sees_of_a_turn_that_is_not_there_yet(index: int) -> None:
    env = flex(2, Router(lambda view: [Turn("a_0")] if view.layer == 0 else [Turn("b_0", (index,))]))
    env.reset(seed=0)
    with pytest.raises(DependencyError, match=rf"b_0 is to see the action {index}, but only 1"):
        env.step("x")


def test_turns_of_one_layer_cannot_see_each_other() -> None:
    with pytest.raises(DependencyError, match="only 0 have been committed"):
        flex(2, Router(lambda view: [Turn("a_0"), Turn("b_0", (0,))])).reset(seed=0)


# Random D against brute force ---------------------------------------------------------------------------


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    n = draw(st.integers(1, 6))
    cells = draw(st.lists(st.booleans(), min_size=n * n, max_size=n * n))
    return np.array(cells, int).reshape(n, n)


def reachable(d: np.ndarray) -> np.ndarray:
    """Brute force: whether j depends on i along any path, by powers of the matrix."""
    total, power = np.zeros_like(d), np.eye(len(d), dtype=int)
    for _ in range(len(d)):
        power = (power @ d > 0).astype(int)
        total |= power
    return total


@settings(max_examples=150, deadline=None)
@given(matrices())
def test_any_acyclic_d_is_executed_exactly(matrix: np.ndarray) -> None:
    n = len(matrix)
    order_of = np.random.default_rng(int(matrix.sum())).permutation(n)
    d = np.zeros_like(matrix)
    for i in range(n):
        for j in range(n):
            if order_of[i] < order_of[j]:
                d[i, j] = matrix[i, j]
    env = play(flex(n, StaticDAG(d), max_rounds=2))
    names = env.possible_agents
    for record in env.episode.rounds:
        assert d.tolist() == record.D
    depth = [0] * n
    for _ in range(n):
        depth = [max([depth[i] + 1 for i in range(n) if d[i, j]], default=0) for j in range(n)]
    for turn in env.episode.turns:
        assert turn.layer - turn.round * (max(depth) + 1) == depth[names.index(turn.agent)]
        seen = {env.episode.turns[i].agent for i in turn.sees}
        assert seen == {names[i] for i in range(n) if d[i, names.index(turn.agent)]}
        assert all(env.episode.turns[i].round == turn.round for i in turn.sees)


def letter(index: int) -> str:
    """What turn ``index`` says is this character alone, so that any rest of it shows whose it is."""
    return chr(0x4E00 + index)


@st.composite
def organisations(draw: st.DrawFn) -> tuple[int, DependencyFunction]:
    """A team's size and a D of any kind: fixed, lagged, unrolled, of layers, drawn anew in every round or layer."""
    matrix = draw(matrices())
    n = len(matrix)
    names = [f"{chr(97 + i)}_0" for i in range(n)]
    groups = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    layers = [[name for name, g in zip(names, groups, strict=True) if g == k] for k in range(3)]

    def walk(view: View) -> list[Turn]:
        rng = np.random.default_rng([view.round, len(view.history), int(matrix.sum())])
        if view.layer > rng.integers(3):
            return []
        past = range(len(view.history))
        acting = rng.choice(names, int(rng.integers(1, n + 1)), replace=False).tolist()
        return [Turn(name, tuple(i for i in past if rng.random() < 0.4)) for name in acting]

    lagged = StaticDAG(matrix, on_cycle="lag")
    kinds = [Independent(), Chain(), Layered(layers), lagged, StaticDAG(matrix, on_cycle="unroll:2"), Router(walk)]
    return n, draw(st.sampled_from([*kinds, Scheduled(lambda view: kinds[view.round % 5])]))


@settings(max_examples=150, deadline=None)
@given(
    organisations(), st.sampled_from(["deps", "own", "public", "team"]), st.integers(1, 3), st.booleans(),
    st.none() | st.integers(1, 250), st.integers(0, 5),
)  # fmt: skip
def test_d_as_recorded_is_what_observations_showed(
    organisation: tuple[int, DependencyFunction], history: str, rounds: int, results: bool, limit: int | None, seed: int
) -> None:
    """Any D, history, length limit and task: words planted in actions are looked for in what agents were shown."""
    n, d = organisation
    shown: dict[int, set[int]] = {}

    def say(env: FlexEnv, agent: str) -> str:
        index = len(env.view.history) + list(env.layer).index(agent)
        seen = "".join(message["content"] for message in env.messages(agent)[1:])
        shown[index] = {ord(c) - 0x4E00 for c in seen if 0x4E00 <= ord(c) < 0x5E00}
        return letter(index) * (1 + (index * 7 + seed) % 20)

    came = PlainTask(lambda turns: Outcome(results={t.index: letter(t.index) * 3 for t in turns if t.index % 2}))
    try:
        env = play(
            flex(n, d, came if results else None, max_rounds=rounds, history=history, max_chars=limit), seed, say
        )
    except DependencyError as error:
        assert "no agent acts" in str(error) or "before anybody acted" in str(error)
        return
    order_of = env.possible_agents.index
    turns = env.episode.turns
    for record in env.episode.rounds:
        edges = [(i, t.index) for t in turns if t.round == record.index for i in sorted(shown[t.index])]
        assert record.edges == edges
        matrix = np.zeros((n, n), int)
        for i, j in edges:
            matrix[order_of(turns[i].agent), order_of(turns[j].agent)] = 1
        np.fill_diagonal(matrix, 0)
        assert matrix.tolist() == record.D
        if history == "deps" and limit is None:
            assert record.asked == record.D
        if limit is None:
            assert (np.array(record.asked) <= matrix).all()
    assert trajectory.from_dict(trajectory.to_dict(env.episode)) == env.episode


@settings(max_examples=150, deadline=None)
@given(matrices(), st.sampled_from(["error", "lag", "unroll:1", "unroll:3"]))
def test_any_cyclic_d_is_refused_lagged_or_unrolled(d: np.ndarray, on_cycle: str) -> None:
    n, reach = len(d), reachable(d)
    cyclic = bool(np.trace(reach))
    if cyclic and on_cycle == "error":
        with pytest.raises(DependencyError, match="cycle"):
            flex(n, StaticDAG(d))
        return
    env = play(flex(n, StaticDAG(d, on_cycle=on_cycle), max_rounds=2))
    names, turns = env.possible_agents, env.episode.turns
    at = {name: i for i, name in enumerate(names)}
    for turn in turns:
        for i in turn.sees:
            assert d[at[turns[i].agent], at[turn.agent]]
    times = int(on_cycle.partition(":")[2] or 1) if on_cycle.startswith("unroll") else 1
    for j, name in enumerate(names):
        acts = [t for t in turns if t.agent == name and t.round == 1]
        assert len(acts) == (times if reach[j, j] else 1)
        for i in range(n):
            if d[i, j] and i != j:
                latest = [t.index for t in turns[: acts[-1].index] if t.agent == names[i]]
                lagged = on_cycle == "lag" and reach[j, i] and i >= j
                here = [t for t in latest if turns[t].round == 1]
                before = [
                    t for t in latest if turns[t].round == 0
                ]  # what a lagged edge reads, even if i has acted again
                wanted = before[-1] if lagged else (here[-1] if here else None)
                assert wanted is None or wanted in acts[-1].sees
                assert wanted is not None or (reach[j, i] and times == 1 and on_cycle != "lag")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=5), min_size=1, max_size=6), st.integers(0, 3))
def test_any_routing_keeps_the_rules(script: list[list[str]], seed: int) -> None:
    """For any names: an agent acts once in a layer, sees the past only, and order of arrival changes nothing."""

    def fn(view: View) -> list[str]:
        return [f"{x}_0" for x in script[view.layer]] if view.layer < len(script) and script[view.layer] else []

    if not script[0]:
        return
    d = Router(fn)
    env, other = flex(4, d), flex(4, copy.copy(d))
    play(env, seed)
    rng = np.random.default_rng(seed)
    other.reset(seed=seed)
    while not other.done:
        start = len(other.view.history)
        texts = {agent: f"{agent} says {start + i}" for i, agent in enumerate(other.ready_agents)}
        for agent in rng.permutation(list(texts)):
            other.select(str(agent))
            other.step(texts[str(agent)])
    assert env.episode.turns == other.episode.turns and env.episode.rounds == other.episode.rounds
    for layer in env.episode.layers:
        agents = [env.episode.turns[i].agent for i in layer.turns]
        assert agents == sorted(set(agents))
        assert all(max(env.episode.turns[i].sees, default=-1) < layer.turns[0] for i in layer.turns)
    said = [name for names in script[: script.index([]) if [] in script else None] for name in names]
    assert sorted(said) == sorted(turn.agent[0] for turn in env.episode.turns)
