"""Trees of joiners: their structure by brute force, at ragged ends too, what they refuse, and trees that a boss spawns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from helpers.flex import PlainTask, flex, play
from helpers.marks import rest_in_ci
from marft_envs import AgentSpec, ConfigError, DependencyError, FlexEnv, Outcome, Spawn, Tree, check_env
from marft_envs.core.tree import joiners_of, joins


def depth(leaves: int, arity: int) -> int:
    """The smallest d with arity^d >= leaves; a root joins even one leaf."""
    return next(d for d in range(1, 99) if arity**d >= leaves)


@pytest.mark.parametrize("arity", [2, 3, 4])
@pytest.mark.parametrize("n", range(1, 21))
def test_every_leaf_is_read_once_in_order_and_no_joiner_is_idle(n: int, arity: int) -> None:
    leaves = [f"leaf_{i}" for i in range(n)]
    joiners = [f"joiner_{i}" for i in range(joiners_of(n, arity))]
    layers = joins(leaves, joiners, arity)
    heard = {name: children for layer in layers for name, children in layer}
    assert sorted(heard) == sorted(joiners) and len(layers) == depth(n, arity)
    assert [name for name, _ in layers[-1]] == [joiners[-1]], "the last joiner is the root"
    assert sorted(c for children in heard.values() for c in children) == sorted([*leaves, *joiners[:-1]])
    assert all(2 <= len(c) <= arity for name, c in heard.items()) or n == 1

    def under(name: str) -> list[str]:
        return [leaf for child in heard[name] for leaf in under(child)] if name in heard else [name]

    assert under(joiners[-1]) == leaves
    done = set(leaves)
    for layer in layers:
        assert all(done >= set(children) for _, children in layer), "a joiner waits for earlier layers alone"
        done |= {name for name, _ in layer}


@pytest.mark.parametrize("arity", [2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9, 13])
def test_as_a_d_readers_act_side_by_side_and_joiners_see_their_children_alone(n: int, arity: int) -> None:
    names = [*(f"leaf_{i}" for i in range(n)), *(f"joiner_{i}" for i in range(joiners_of(n, arity)))]
    team = [AgentSpec(name, name.split("_")[0]) for name in names]
    for made in (Tree(*names[:n], arity=arity), Tree(arity=arity)):
        env = play(FlexEnv(team, PlainTask(), made))
        tree = env.dependency
        assert isinstance(tree, Tree)
        above = joins(names[:n], names[n:], arity)
        expected = [names[:n], *([name for name, _ in layer] for layer in above)]
        turns = env.episode.turns
        assert [[turns[i].agent for i in layer.turns] for layer in env.episode.layers] == expected
        children = {name: seen for layer in above for name, seen in layer}
        for turn in turns:
            assert tuple(turns[i].agent for i in turn.sees) == tuple(
                c for c in names if c in children.get(turn.agent, ())
            )
            assert tree.children(turn.agent) == children.get(turn.agent, ())
        assert tree.is_static and not tree.is_empty and not tree.is_simultaneous
        assert tree.possible_edges == {(c, name) for name, seen in children.items() for c in seen}


def test_agents_that_the_tree_does_not_need_do_not_act() -> None:
    env = play(flex(6, Tree("a_0", "b_0", "c_0")))
    assert [turn.agent for turn in env.episode.turns] == ["a_0", "b_0", "c_0", "d_0", "f_0"], "the root is the last"
    assert [turn.agent for turn in play(flex(1, Tree())).episode.turns] == ["a_0"]
    assert len(play(flex(4, Tree())).episode.layers) == 2, "two leaves: three would need two joiners"


def test_one_who_is_dead_is_left_out() -> None:
    task = PlainTask(layer=lambda turns: Outcome(dead=frozenset({"e_0"})) if turns[0].agent == "a_0" else Outcome())
    turns = play(flex(7, Tree(), task)).episode.turns
    assert [turn.agent for turn in turns] == ["a_0", "b_0", "c_0", "d_0", "f_0", "g_0"]
    assert turns[-1].sees == (4,), "what the dead one would have joined is lost"


@pytest.mark.parametrize(("tree", "message"), [
    (Tree("a_0", "q_0"), "'q_0'"), (Tree("a_0", "a_0"), "twice"),
    (Tree("a_0", "b_0", "c_0", "d_0"), "over 4 leaves needs 3 joiners; got 1"),
])  # fmt: skip
def test_trees_that_cannot_be_are_refused(tree: Tree, message: str) -> None:
    with pytest.raises(DependencyError, match=message):
        flex(5, tree)


@pytest.mark.parametrize("arity", [1, 0, 2.0, True, None])
def test_an_arity_is_a_whole_number_from_2(arity: int) -> None:
    with pytest.raises(ConfigError, match="arity is"):
        Tree(arity=arity)


def spawning(assignments: int, joiner: Sequence[str], arity: int = 2) -> FlexEnv:
    """A boss that spawns so many of five workers."""
    extra = [name for name in joiner if name != "boss_0"]
    names = ["boss_0", *(f"worker_{i}" for i in range(5)), *extra]
    team = [AgentSpec(name, name.split("_")[0], with_answer=name == joiner[-1]) for name in names]
    env = FlexEnv(
        team, PlainTask(round=lambda turns: Outcome(terminated=True)), Spawn("boss_0", joiner=joiner, arity=arity)
    )
    return play(env, say=lambda env, agent: "; ".join("x" * assignments) if not env.view.history else agent)


@pytest.mark.parametrize("k", rest_in_ci(range(1, 6), 2))
@pytest.mark.parametrize("root", ["joiner_3", "boss_0"])
def test_a_boss_chooses_how_wide_and_deep_the_tree_is(k: int, root: str) -> None:
    joiners = ["joiner_0", "joiner_1", "joiner_2", root]
    env = spawning(k, joiners)
    turns, above = env.episode.turns, joins([f"worker_{i}" for i in range(k)], joiners, 2)
    assert [turn.agent for turn in turns[1 : k + 1]] == [f"worker_{i}" for i in range(k)]
    assert [turn.agent for turn in turns[k + 1 :]] == [name for layer in above for name, _ in layer]
    for turn, children in zip(turns[k + 1 :], (seen for layer in above for _, seen in layer), strict=True):
        boss = ("boss_0",) if turn.agent == "boss_0" else ()
        assert tuple(turns[i].agent for i in turn.sees) == (
            *boss,
            *sorted(children, key=lambda c: names_of(turns).index(c)),
        )
    edges = env.dependency.possible_edges
    assert edges is not None and all(
        (turns[i].agent, turn.agent) in edges or turns[i].agent == turn.agent for turn in turns for i in turn.sees
    )
    check_env(lambda: FlexEnv(env.episode.agents, PlainTask(), Spawn("boss_0", joiner=joiners, arity=2)))


def names_of(turns: Sequence) -> list[str]:
    """Who acted, by their last turn's order."""
    return [turn.agent for turn in turns]


def test_spawned_trees_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="Give arity="):
        Spawn("boss_0", joiner=["a_0", "b_0"])
    with pytest.raises(DependencyError, match="over 5 leaves needs 4 joiners; got 2"):
        spawning(1, ["joiner_0", "joiner_1"])
