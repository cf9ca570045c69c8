"""A whole run on several ranks: episodes, replays, numbers and weights of one process, whatever the algorithm plays."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.marks import rest_in_ci
from helpers.runs import quiet_display, settings, timeless
from helpers.thread_ranks import together
from marft_algos.config.settings import TrainConfig
from marft_algos.ranks.consistency import RanksDiffer
from marft_algos.ranks.group import Alone
from marft_algos.rollout.episodes import cut
from marft_algos.runs import checkpoint
from marft_algos.training.parts import build
from marft_algos.training.rollouts import RolloutWorker
from marft_algos.training.trainer import Trainer

SHORT = {"iterations": 2, "num_envs": 3, "chunk": 4, "reduction_slots": 4}
ONE = {"epochs": 1, "minibatches": 1}
COUNTERFACTUAL = {"credit": {"rule": "counterfactual", "samples": 2}}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"algo": "marft"},
    "replayed and judged": {"algo": "marft", "algorithm": COUNTERFACTUAL, "credit_diagnostics": 6},
    "absent": {"algo": "mappo", "algorithm": {"credit": {"rule": "shapley", "absence": "start"}}},
    "candidates": {"algo": "at_grpo", "algorithm": {"candidates": 2, **ONE}},
    "trees": {"algo": "treerl", "algorithm": {"width": 2, "rounds": 2, "group_size": 2, **ONE}},
    "hindsight": {
        "algo": "sdpo",
        "env": "relay-v0",
        "episodes_per_iteration": 8,
        "algorithm": {"group_size": 4, **ONE},
    },
    "refilled": {"algo": "dapo", "algorithm": {"group_size": 3, "refills": 2, **ONE}},
    "wanted": {"algo": "rft", "algorithm": ONE},
    "against the past": {"algo": "ippo", "policies": "shared", "pool": 2, "pool_every": 1},
    "shown": {"algo": "sft", "env": "relay-v0", "algorithm": ONE},
}


def on(ranks: int, made: TrainConfig) -> tuple[Trainer, list[Trainer], Any]:
    """The first rank's trainer after the run, all of them, and the run."""
    lock = threading.Lock()

    def one(group: Any) -> tuple[Trainer, Any]:
        with lock:  # what makes the parts draws from generators of the process
            trainer = Trainer(build(made), group)
        run = trainer.start()
        with quiet_display(made.iterations) as display:
            trainer.train(run, display)
        return trainer, run

    done = [one(Alone())] if ranks == 1 else together(ranks, lambda rank: one(rank))
    return done[0][0], [trainer for trainer, _ in done], done[0][1]


@pytest.mark.parametrize("what", rest_in_ci(RUNS))
def test_a_run_on_two_ranks_is_that_of_one(what: str, model: Path, tmp_path: Path) -> None:
    more = {**SHORT, **RUNS[what]}
    alone, _, run = on(1, settings(model, tmp_path / "1", **more))
    _, both, again = on(2, settings(model, tmp_path / "2", **more))
    assert timeless(again) == timeless(run)
    weights = alone.policies.state_dict()
    for trainer in both:
        there = trainer.policies.state_dict()
        assert there.keys() == weights.keys() and all(torch.equal(there[name], weights[name]) for name in weights)
    last = timeless(run)[-1]
    line = again.metrics()[-1]
    if what != "shown":  # there nobody plays
        assert sum(player["tokens"] for player in line["time_players"]) == line["tokens_played"]
        assert len(line["time_ranks"]) == line["engine/ranks"] == 2
    if what in ("replayed and judged", "absent", "candidates", "trees"):
        assert last["branches"] > 0
    if "judged" in what:
        assert last["credit/replayed"] > 0
    for file in ("train-000002.jsonl", "eval-000002.jsonl"):
        assert (again.root / "episodes" / file).read_bytes() == (run.root / "episodes" / file).read_bytes()


@pytest.mark.ci
def test_chunks_are_those_of_the_settings_however_many_lanes_there_are(model: Path, tmp_path: Path) -> None:
    runs = []
    for i, more in enumerate(
        ({"reduction_slots": 1, "chunk": 4}, {"reduction_slots": 4, "chunk": 4}, {"reduction_slots": 1})
    ):
        runs.append(on(1, settings(model, tmp_path / str(i), iterations=1, **more))[2])
    files = [(run.root / "episodes" / "eval-000000.jsonl").read_bytes() for run in runs]
    assert files[0] == files[1]
    said = [[turn.text for e in run.episodes("eval", 0) for turn in e.turns] for run in runs]
    assert said[0] == said[2], "what is sampled does not depend on who is batched with whom"


@pytest.mark.ci
@pytest.mark.parametrize("where", ["adapter", "Adam", "value head"])
def test_a_rank_that_holds_another_bit_ends_the_run_and_nothing_of_it_is_saved(
    where: str, model: Path, tmp_path: Path
) -> None:
    made, lock = settings(model, tmp_path, **SHORT, save_every=1, keep="all", name="run"), threading.Lock()

    def one(group: Any) -> None:
        with lock:
            trainer = Trainer(build(made), group)
        update = trainer.learner.update

        def updated(trajectories: Any, iteration: int) -> Any:
            numbers = update(trajectories, iteration)
            if group.rank == 1 and iteration == 1:
                assert trainer.critics is not None
                tensor = {
                    "adapter": trainer.policies.parameters("solver_0")[0],
                    "Adam": next(iter(trainer.learner.optimizers["solver_0"].adam.state.values()))["exp_avg"],
                    "value head": trainer.critics.parameters("solver_0")[0],
                }[where]
                tensor.data.view(-1)[:1].view(torch.int32).bitwise_xor_(1)
            return numbers

        trainer.learner.update = updated  # type: ignore[method-assign]
        with quiet_display(made.iterations) as display:
            trainer.train(trainer.start(), display)

    with pytest.raises(RanksDiffer, match=r"rank 0 .*rank 1 .*--resume"):
        together(2, one)
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [0, 1]


def test_chunks_have_the_tokens_of_one_batch_and_its_log_probs_but_for_rounding(model: Path, tmp_path: Path) -> None:
    parts = build(settings(model, tmp_path, **{**SHORT, "num_envs": None}))
    worker = RolloutWorker(parts, 0)
    prompts = parts.problems.train(parts.config.seed, 0, 12)
    ways = [
        [turn for chunk in cut(prompts, size, 0) for t in worker.play(chunk).trajectories for turn in t.transitions]
        for size in (0, 4, 5)
    ]
    worker.close()
    assert len(ways[0]) >= 24
    for way in ways[1:]:
        assert [turn.reply.action_ids for turn in way] == [turn.reply.action_ids for turn in ways[0]]
        for mine, theirs in zip(way, ways[0], strict=True):
            np.testing.assert_allclose(mine.reply.logprobs, theirs.reply.logprobs, rtol=0, atol=1e-5)
