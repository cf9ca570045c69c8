"""TreeRL: values and advantages against brute force, chains as GRPO to the bit, trees as they grow, whole runs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from helpers.branching import PARAMS, Trusting, engine
from helpers.flex import PlainTask, flex
from helpers.runs import quiet_display, settings, timeless, train
from helpers.teams import episode
from helpers.updates import data_for
from marft_algos.algorithms.groups import shape
from marft_algos.algorithms.grpo import GRPO, GRPOConfig
from marft_algos.algorithms.treerl import TreeRL, TreeRLConfig
from marft_algos.rollout.collector import Collector
from marft_algos.rollout.replay import Replayer
from marft_algos.seeds import row_seed
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_algos.types import Estimates, Trajectory, Transition
from marft_envs import Outcome, StaticDAG, TurnRecord
from marft_envs.core.vector import VectorEnv

CHAIN = StaticDAG([[0, 1, 0], [0, 0, 1], [0, 0, 0]])

# --- formulas -----------------------------------------------------------------------------------------------------


def random_paths(rng: np.random.Generator) -> tuple[list[list[tuple[int, ...]]], list[float]]:
    """The leaves of a tree of any shape."""
    paths: list[list[tuple[int, ...]]] = [[(0,), (0, 0, 0), (0, 0, 1), (0, 0, 2)]]
    for leaf in range(1, int(rng.integers(2, 9))):
        start = paths[int(rng.integers(len(paths)))]
        at = int(rng.integers(1, len(start)))
        paths.append([*start[:at], *((0, leaf, k) for k in range(at - 1, int(rng.integers(at, at + 3))))])
    return paths, rng.normal(size=len(paths)).tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("local", "siblings"), [(0.0, 0.0), (1.0, 0.0), (0.5, 0.3), (2.0, 1.0)])
def test_a_node_is_worth_the_mean_of_its_leaves_and_gains_on_parent_and_siblings(
    seed: int, local: float, siblings: float
) -> None:
    paths, scores = random_paths(np.random.default_rng(seed))
    shaped = shape(paths, scores, local, siblings)

    def value(node: tuple[int, ...]) -> float:
        return float(np.mean([score for path, score in zip(paths, scores, strict=True) if node in path]))

    nodes = {node for path in paths for node in path[1:]}
    assert set(shaped) == nodes
    for node in nodes:
        path = next(path for path in paths if node in path)
        parent = path[path.index(node) - 1]
        others = {p[p.index(parent) + 1] for p in paths if parent in p} - {node}
        beside = np.mean([value(other) for other in others]) if others else value(parent)
        expected = value(node) + local * (value(node) - (1 - siblings) * value(parent) - siblings * beside)
        assert shaped[node] == pytest.approx(expected)


def test_the_advantages_of_a_small_tree_are_those_of_the_paper() -> None:
    """Two episodes of a start; the second turn of the first is drawn again: leaves 1, 0 and 0; V(root) = 1/3."""
    first, second = (episode([["a"], ["b"]], number=i, rewards=[0.0, 1.0 - i], group=0) for i in range(2))
    again = put_leaf(first.transitions[1], 1)
    first = with_leaves(first, [again], [(0, 1, 0.0)])
    made = TreeRL(TreeRLConfig(std_ddof=0, std_eps=0.0))
    estimates = Estimates()
    logged = made.credit([first, second], estimates)
    std = np.std([1.0, 0.0, 0.0])
    found = [float(estimates.advantages[t][0]) * std for t in (*first.transitions, again, *second.transitions)]
    root, a, b, other, c = 1 / 3, 0.5, 1.0, 0.0, 0.0
    expected = [2 * (a - root), b - root + b - a, other - root + other - a, 2 * (c - root), c - root]
    assert found == pytest.approx(expected)
    assert logged["tree_leaves"] == 1.5 and logged["group_std"] == pytest.approx(std)
    assert made.credit([], Estimates()) == {}


def put_leaf(t: Transition, leaf: int) -> Transition:
    return dataclasses.replace(t, leaf=leaf)


def with_leaves(d: Trajectory, turns: list[Transition], leaves: list[tuple[int, int, float]]) -> Trajectory:
    return dataclasses.replace(d, candidates=turns, leaves=leaves)


@pytest.mark.parametrize("seed", range(4))
def test_a_chain_has_the_advantages_of_grpo_to_the_bit(seed: int) -> None:
    data, found = data_for("grpo", seed), []
    made: list[Any] = [GRPO(GRPOConfig(group_size=4)), TreeRL(TreeRLConfig(width=1, local=0.0))]
    for algorithm in made:
        estimates = Estimates()
        logged = algorithm.credit(data, estimates)
        found.append(([estimates.advantages[t].tobytes() for d in data for t in d.transitions], logged["group_std"]))
    assert found[0] == found[1] and made[1].rule.keep == "nothing"


def test_a_kl_in_the_reward_is_charged_to_the_leaves_below_its_turn() -> None:
    d = episode([["a"], ["b"]], rewards=[0.0, 1.0])
    again = put_leaf(d.transitions[1], 1)
    d = with_leaves(d, [again], [(0, 1, 0.25)])
    charges = {t: np.full(len(t.reply.action_ids), -x, np.float32) for t, x in zip((*d.transitions, again), (1, 2, 4), strict=True)}  # fmt: skip
    n = [len(t.reply.action_ids) for t in d.transitions]
    plain, charged = Estimates(), Estimates(penalties=charges)
    made = TreeRL(TreeRLConfig(local=0.0, std_ddof=0, std_eps=0.0))
    made.credit([d], charged)
    scores = [1.0 - n[0] - 2 * n[1], 0.25 - n[0] - 4 * n[1]]
    expected = [(score - np.mean(scores)) / np.std(scores) for score in scores]
    assert [float(charged.advantages[t][0]) for t in (d.transitions[1], again)] == pytest.approx(expected)
    assert float(charged.advantages[d.transitions[0]][0]) == pytest.approx(0.0)
    made.credit([d], plain)
    assert [float(plain.advantages[t][0]) for t in (d.transitions[1], again)] == pytest.approx([1.0, -1.0])


# --- growth -------------------------------------------------------------------------------------------------------


def pays(x: Mapping[str, float]) -> float:
    return x["a_0"] * x["b_0"] - x["c_0"] ** 2


def grown(**settings: Any) -> tuple[list[Trajectory], Replayer]:
    """Two episodes of three agents in a chain, who say numbers by their seeds, and their trees."""

    def judge(turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome(team_reward=pays({t.agent: float(t.text) for t in turns}), terminated=True)

    rule = TreeRL(TreeRLConfig(**settings)).rule
    vec = VectorEnv([lambda: flex(3, CHAIN, task=PlainTask(round=judge))])
    tries = Replayer(Trusting(), engine(), PARAMS)
    collector = Collector(vec, Trusting(), engine(), PARAMS, states=tries.states)
    played = collector.collect([0, 1], iteration=1, keep=rule.keep)
    return tries.add_costs(rule.replay(played, tries, 1)), tries


def paths(d: Trajectory) -> list[list[Transition]]:
    """The turns from the start to every leaf, by following who branches from whom."""
    turns = [*d.transitions, *d.candidates]
    found = [list(d.transitions)]
    for leaf, (parent, layer, _) in enumerate(d.leaves, 1):
        found.append([*found[parent][:layer], *(t for t in turns if t.leaf == leaf)])
    return found


def test_a_tree_is_played_from_every_state_and_each_leaf_is_paid_for_its_path() -> None:
    trees, _ = grown(width=3, expansions=99, rounds=3, expand="first")
    for d in trees:
        ends = paths(d)
        assert len(ends) == 3**3, "three layers, three replies at each state of each"
        for path, score in zip(ends, [d.score, *(x[2] for x in d.leaves)], strict=True):
            assert [t.layer for t in path] == [0, 1, 2]
            assert score == pytest.approx(pays({t.agent: float(t.turn.text) for t in path}))
        turns = [*d.transitions, *d.candidates]
        assert len(turns) == 3 + 9 + 27 and len(set(map(id, turns))) == len(turns), "each turn once"
        said = [t.turn.text for t in turns]
        drawn = {str(row_seed(0, 1, d.number, k, j) % 1000) for k in range(3) for j in range(len(ends))}
        assert set(said) <= drawn and d.replayed_tokens == 0, "they count as turns, and not as replays"
        assert d.tokens == sum(len(t.reply.action_ids) for t in turns)
        assert all(t.trainable and t.request.policy for t in turns)
        for path in ends:
            for before, t in itertools.pairwise(path):
                assert before.turn.text in t.request.messages[-1]["content"], "it answers what was said on its path"


def test_advantages_of_a_grown_tree_are_those_of_brute_force() -> None:
    trees, _ = grown(width=2, expansions=2, rounds=2, expand="random", group_size=1)
    estimates = Estimates()
    made = TreeRL(TreeRLConfig(width=2, group_size=1, std_ddof=0, std_eps=0.0))
    made.credit(trees, estimates)
    for d in trees:
        ends = paths(d)
        scores = [pays({t.agent: float(t.turn.text) for t in path}) for path in ends]
        assert len(scores) == 5
        for t in (*d.transitions, *d.candidates):
            below = np.mean([s for path, s in zip(ends, scores, strict=True) if any(u is t for u in path)])
            path = next(path for path in ends if any(u is t for u in path))
            before = path[path.index(t) - 1] if t.layer else None
            above = np.mean(
                [s for p, s in zip(ends, scores, strict=True) if before is None or any(u is before for u in p)]
            )
            expected = (below - np.mean(scores) + below - above) / np.std(scores)
            assert float(estimates.advantages[t][0]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_who_is_expanded_is_the_earliest_the_least_likely_or_drawn_by_the_seed() -> None:
    assert all(x[:2] == (0, 0) for d in grown(width=3, expansions=1, expand="first")[0] for x in d.leaves)
    drawn = [[[x[:2] for x in d.leaves] for d in grown(expansions=1, expand="random")[0]] for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_the_least_likely_layer_of_each_episode_is_expanded() -> None:
    class Noting:
        seed = 0
        started: ClassVar[list[int]] = []

        def state(self, d: Trajectory, layer: int) -> int:
            return layer

        def play(self, branches: Sequence[Any], *_: Any, **__: Any) -> list[None]:
            self.started.extend(branch.start for branch in branches)
            return [None] * len(branches)

    played = [episode([["a"], ["b"], ["c"]], seed=seed) for seed in range(8)]
    wanted = [int(np.argmin([t.reply.logprobs.mean() for t in d.transitions])) for d in played]
    rule = TreeRL(TreeRLConfig(width=2, expansions=1, rounds=1, expand="uncertain")).rule
    rule.replay(played, Noting(), 1)  # type: ignore[arg-type]
    assert Noting.started == wanted and len(set(wanted)) == 3


# --- runs ---------------------------------------------------------------------------------------------------------

TREES = {"width": 2, "expansions": 2, "rounds": 2, "group_size": 2, "epochs": 1, "minibatches": 1}


def test_a_run_on_chains_ends_with_the_weights_of_grpo(model: Path, tmp_path: Path) -> None:
    same = {"group_size": 2, "kl_coef": 0.0, "epochs": 1, "minibatches": 1}
    grpo, _ = train(settings(model, tmp_path, algo="grpo", iterations=2, algorithm=same))
    chains = {**same, "width": 1, "local": 0.0}
    tree, run = train(settings(model, tmp_path, algo="treerl", iterations=2, algorithm=chains))
    weights, others = grpo.policies.state_dict(), tree.policies.state_dict()
    assert weights.keys() == others.keys() and all(torch.equal(weights[k], others[k]) for k in weights)
    assert run.metrics()[-1]["tree_leaves"] == 1


@pytest.mark.ci
def test_a_resumed_run_grows_the_trees_of_one_that_was_not(model: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"algo": "treerl", "algorithm": {**TREES, "expand": "random"}}
    _, whole = train(settings(model, tmp_path / "one", iterations=3, **more))
    _, run = train(settings(model, tmp_path / "two", iterations=2, **more))
    again = Trainer(build(settings(model, tmp_path / "two", iterations=3, **more)))
    again.resume(run)
    with quiet_display(3) as display:
        again.train(run, display)
    assert timeless(run) == timeless(whole)
    last = timeless(run)[-1]
    assert last["tree_leaves"] > 1 and last["branches"] > 0 and last["tokens_replayed"] == 0
    assert last["tokens_played"] > last["tokens"]
