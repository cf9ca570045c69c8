"""Random numbers of a run: named streams, equal seeds give equal runs, also where users' tasks draw by themselves."""

from __future__ import annotations

import random
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marft_algos
import marft_envs
from helpers.runs import Letters, quiet_display, settings, timeless, train
from helpers.teams import Tabular, episode
from marft_algos import credit, seeds
from marft_algos.algorithms import base as algorithm
from marft_algos.evaluation.environments import evaluation_set
from marft_algos.models.chat import Renderer
from marft_algos.rollout import selfplay
from marft_algos.rollout.episodes import ProblemSplit, Prompts
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_algos.types import Estimates


class Drawing(Letters):
    """A user's task that knows no generator but the global ones, where it is built, and where it is played."""

    def __init__(self) -> None:
        self.made = random.randrange(1000)

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        drawn = (self.made, random.randrange(1000), int(np.random.randint(1000)), int(torch.randint(1000, ())))
        self.task_id = "/".join(map(str, drawn))

    def on_round(self, turns: Any) -> marft_envs.Outcome:
        paid = super().on_round(turns)
        paid.metrics = {"luck": random.random()}
        return paid


def make_drawing() -> marft_envs.FlexEnv:
    team = [marft_envs.AgentSpec("planner_0", "planner", "Plan."), marft_envs.AgentSpec("solver_0", "solver", "Solve.")]
    return marft_envs.FlexEnv(team, Drawing(), marft_envs.Chain())


marft_envs.register("test/drawing-v0", make_drawing)


def run_of(
    model: Path, folder: Path, **changes: Any
) -> tuple[list[dict[str, Any]], list[str], dict[str, torch.Tensor]]:
    """Metrics, the tasks that were played, and the weights at the end."""
    changes = {"env": "test/drawing-v0", "record_every": 1, "record_episodes": 12, **changes}
    trainer, run = train(settings(model, folder, **changes))
    played = [e.task_id for kind in ("train", "eval") for i in run.recorded(kind) for e in run.episodes(kind, i)]
    return timeless(run), played, trainer.policies.state_dict()


def test_equal_seeds_give_equal_runs_where_a_task_draws_from_the_global_generators(model: Path, tmp_path: Path) -> None:
    found = []
    for k in range(2):
        random.seed(k)
        np.random.seed(k)
        torch.manual_seed(k)
        found.append(run_of(model, tmp_path / str(k), iterations=2))
    assert found[0][0] == found[1][0] and found[0][1] == found[1][1]
    assert all(torch.equal(found[0][2][k], found[1][2][k]) for k in found[0][2])
    other = run_of(model, tmp_path / "other", iterations=2, seed=1)
    trained, evaluated = found[0][1][:24], found[0][1][24:]
    assert set(trained).isdisjoint(other[1][:24]), "another seed draws other problems"
    assert evaluated == other[1][24:], "what is evaluated on depends on no run"
    assert len(set(trained)) == 24 and len(evaluated) == 20 and evaluated[:10] == evaluated[10:]


@pytest.mark.ci
def test_a_resumed_run_draws_what_the_unbroken_one_would_have(model: Path, tmp_path: Path) -> None:
    whole = run_of(model, tmp_path / "whole", name="run")
    first = settings(model, tmp_path / "parts", name="run", env="test/drawing-v0", record_every=1, record_episodes=12)
    first = type(first)(**{**first.__dict__, "iterations": 2})
    _, run = train(first)
    random.seed(99)
    np.random.seed(99)
    rest = Trainer(build(type(first)(**{**first.__dict__, "iterations": 4})))
    random.seed(98)
    rest.resume(run)
    np.random.seed(97)
    with quiet_display() as display:
        rest.train(run, display)
    assert timeless(run)[1:] == whole[0][1:]
    ours = rest.policies.state_dict()
    assert all(torch.equal(ours[k], whole[2][k]) for k in ours)


# --- the streams ------------------------------------------------------------------------------------------------


def test_streams_start_from_these_words() -> None:
    """Literal: changing one of them changes the weights of every run that draws from it."""

    def same(words: tuple[int, ...], *literal: int) -> None:
        assert list(words) == list(literal)

    same(seeds.training_problems(7, 5), 7, 1, 5)
    same(seeds.training_problems(7, 5, 2), 7, 1, 5, 2)
    same(seeds.held_out(), 2)
    same(seeds.permuted_rewards(7, 5), 7, 3, 5)
    same(seeds.opponents(7, 5, 3), 7, 4, 5, 3)
    same(seeds.order(7, 5), 7, 12, 6)
    same(seeds.shuffled(), 0)
    same(seeds.minibatches(7, "actor_0", 5, 1), 7, zlib.crc32(b"actor_0"), 5, 1)
    same(seeds.minibatches(7, "actor_0", 5, 1, critic=True), 7, zlib.crc32(b"actor_0"), 5, 1, 1)
    assert ProblemSplit(Prompts([], []), None).train(7, 5, 3).seeds == [317246200, 1182001564, 251366555]
    assert evaluation_set(3, None).seeds == [1798679648, 561807780, 234731698]
    with seeds.initial_weights(3):
        drawn = torch.rand(2).tolist()
    assert drawn == torch.rand(2, generator=torch.Generator().manual_seed(3)).tolist()


def every_stream() -> Iterator[tuple[str, tuple[int, ...]]]:
    """All places of some runs, each with the words that its numbers start from."""
    yield "held out", seeds.held_out()
    yield "shuffled", seeds.shuffled()
    yield "tasks at evaluation", seeds.tasks_at_evaluation()
    for seed in (0, 1, 2, 3, 4, 5, 6, 7, 1000, 2**32 - 1):
        for iteration in range(9):
            yield "order", seeds.order(seed, iteration)
            yield "permuted", seeds.permuted_rewards(seed, iteration)
            yield "demonstrations", seeds.demonstrations(seed, iteration)
            yield "parents", seeds.parents(seed, iteration)
            for k in range(4):
                yield "problems", seeds.training_problems(seed, iteration, k)
                yield "opponents", seeds.opponents(seed, iteration, k)
                yield "coalitions", seeds.coalitions(seed, iteration, k)
                yield "tasks", seeds.tasks(seed, iteration, k)
                yield "curriculum", seeds.curriculum(seed, iteration, k)
                yield "expansions", seeds.expansions(seed, iteration, k, 1)
                yield "expansions", seeds.expansions(seed, iteration, k, 2)
                for policy in ("actor_0", "shared", "a"):
                    yield "minibatches", seeds.minibatches(seed, policy, iteration, k)
                    yield "critic's minibatches", seeds.minibatches(seed, policy, iteration, k, critic=True)
        yield "tasks", seeds.tasks(seed, -1)


def test_no_two_streams_share_numbers() -> None:
    starts: dict[tuple[int, ...], set[tuple[str, tuple[int, ...]]]] = defaultdict(set)
    for name, words in every_stream():
        starts[tuple(np.random.SeedSequence(words).generate_state(4).tolist())].add((name, words))
    assert not [sorted(places) for places in starts.values() if len({name for name, _ in places}) > 1]
    assert all(len(places) == 1 for places in starts.values()), "and no place of a stream draws what another does"


def test_only_this_page_makes_generators() -> None:
    """Analyses of results, typed-in play and the makers of embedded models draw on their own; a run does not."""
    root = Path(marft_algos.__file__).parent
    own = {
        "seeds.py", "runs/intervals.py", "evaluation/differences.py", "extras/audit/update.py", "extras/bench/statistics.py",
        "extras/bench/versus/forecast.py", "extras/play.py", "engines/conformance.py",
    }  # fmt: skip
    making = re.compile(r"default_rng\(|manual_seed\(|random\.seed\(|SeedSequence\(|RandomState\(")
    found = {str(f.relative_to(root)) for f in root.rglob("*.py") if making.search(f.read_text())}
    assert {f for f in found if not f.startswith("models/")} <= own


def test_drawn_coalitions_follow_the_runs_seed() -> None:
    """Shapley values of teams of more than six agents: runs of other seeds draw other orders."""

    class Note:
        tokens: dict[int, int]

        def __init__(self, seed: int) -> None:
            self.seed, self.asked = seed, []

        def state(self, trajectory: Any, layer: int | None = None) -> object:
            return object()

        def play(self, branches: Any, iteration: int) -> list[None]:
            self.asked = [sorted(branch.absent) for branch in branches]
            return [None] * len(branches)

    def drawn(seed: int, iteration: int = 3) -> list[list[str]]:
        d = episode([[f"a{i}"] for i in range(8)])
        note: Any = Note(seed)
        credit.get({"rule": "shapley", "orders": 2}).replay([d], note, iteration)
        return note.asked

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1) and drawn(0) != drawn(0, iteration=4)


@pytest.mark.parametrize("name", ["happo", "a2po"])
def test_orders_of_policies_follow_seed_and_iteration(name: str) -> None:
    made = algorithm.get(name)()
    made.seed = 5
    names = list("abcdef")
    rows = {p: [t for t in episode([[p]]).transitions] for p in names}
    ones = {own[0]: np.ones(len(own[0].reply.action_ids), np.float32) for own in rows.values()}
    found = [block[0] for block in made.order(rows, Estimates(advantages=ones), 2) if block]
    rng = np.random.default_rng([5, 12, 3])
    if name == "happo":
        assert found == rng.permutation(names).tolist()
    else:  # equal sizes: the first of those left at odd positions, any at even ones
        left, expected = list(names), []
        for position in range(1, 7):
            expected.append(left.pop(0 if position % 2 else int(rng.integers(len(left)))))
        assert found == expected


def test_the_pool_draws_as_ever() -> None:
    pool = selfplay.Pool.__new__(selfplay.Pool)
    policies: Any = Tabular(["a", "b"])
    policies.renderer = Renderer(dict.fromkeys("ab"), {"a": "a", "b": "b"})  # type: ignore[arg-type]
    pool._seed, pool._share, pool._size, pool._policies = 3, 0.5, 4, policies
    rng = np.random.default_rng([3, 4, 6, 2])
    expected = (
        ("", 0) if rng.random() >= 0.5 else (policies.renderer.agents[int(rng.integers(2))], int(rng.integers(4)))
    )
    assert pool.drawn(6, 2) == expected
