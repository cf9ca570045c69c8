"""Training on episodes of older weights: who plays what, what a checkpoint keeps, and that nothing is too old."""

from __future__ import annotations

import dataclasses
import math
import shutil
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from helpers.marks import rest_in_ci
from helpers.runs import collector, quiet_display, settings, timeless, train
from helpers.thread_ranks import together
from marft_algos.batching import StaleError
from marft_algos.config.settings import TrainConfig
from marft_algos.learner.learner import Learner
from marft_algos.ranks.group import Alone, RankGroup
from marft_algos.rollout.collector import OnProgress
from marft_algos.runs import checkpoint
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.progress import RunProgress
from marft_algos.runs.read_only import seen
from marft_algos.training import packing
from marft_algos.training.collect import Collected, RolloutQueue
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_algos.types import StopReason, Trajectory
from marft_envs.core.vector import VectorEnv
from marft_envs.errors import ConfigError, DataError


def stale(model: Path, runs_dir: Path, staleness: int = 2, **changes: Any) -> Any:
    algorithm = {"old_logprobs": "learner", "tis_cap": 2.0, "vtrace": True, **changes.pop("algorithm", {})}
    return settings(model, runs_dir, staleness=staleness, **{"iterations": 6, "algorithm": algorithm, **changes})


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, RunFolder]:
    return train(stale(model, tmp_path_factory.mktemp("runs"), save_every=1, keep="all"))


class Watched:
    """What every update learns from: versions of the replies, and at which version."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.versions: list[set[int]] = []
        self.at: list[int] = []
        before = Learner.update

        def update(learner: Learner, trajectories: Sequence[Trajectory], iteration: int) -> dict[str, float]:
            self.versions.append({t.reply.version for d in trajectories for t in d.transitions})
            self.at.append(learner.policies.version)
            return before(learner, trajectories, iteration)

        monkeypatch.setattr(Learner, "update", update)


@pytest.mark.parametrize("staleness", rest_in_ci([0, 1, 2, 9], 2))
def test_iteration_i_learns_from_version_i_minus_s(
    staleness: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    _, run = train(stale(model, tmp_path, staleness))
    assert watched.at == list(range(6))
    assert watched.versions == [{max(0, i - staleness)} for i in range(6)]
    for i, line in enumerate(run.metrics()[1:]):
        age = min(i, staleness)
        shares = {key: value for key, value in line.items() if key.endswith("/share") and key.startswith("staleness")}
        assert shares == ({f"staleness/{age}/share": 1.0} if staleness else {})
        assert (line[f"staleness/{age}/gap"] < 1e-4) if age else "staleness/0/gap" not in line
    assert run.metrics()[-1]["tokens_total"] == sum(line["tokens_played"] for line in run.metrics()[1:])


@pytest.mark.ci
def test_problems_and_seeds_are_those_of_the_iteration_whoever_plays(
    finished: tuple[Trainer, RunFolder], model: Path, tmp_path: Path
) -> None:
    """Staleness changes who plays an iteration, not what: tasks are those of a run without."""
    _, run = finished
    _, fresh = train(stale(model, tmp_path, 0))
    for iteration in (2, 4):
        tasks = [[(e.seed, e.task_id) for e in r.episodes("train", iteration)] for r in (run, fresh)]
        assert tasks[0] == tasks[1]
    assert timeless(run)[3] != timeless(fresh)[3]


def back_to(run: RunFolder, step: int, folder: Path) -> RunFolder:
    """A copy of a run as it was when this checkpoint was its last."""
    shutil.copytree(run.root, folder)
    for later in checkpoint.steps(folder / "checkpoints"):
        if later > step:
            shutil.rmtree(checkpoint.step_dir(folder / "checkpoints", later))
    return RunFolder(folder)


def same(ours: Trainer, theirs: Trainer) -> bool:
    one, other = ours.policies.state_dict(), theirs.policies.state_dict()
    assert ours.critics is not None and theirs.critics is not None
    heads, others = ours.critics.state_dict(), theirs.critics.state_dict()
    return all(torch.equal(one[k], other[k]) for k in other) and all(torch.equal(heads[k], others[k]) for k in others)


@pytest.mark.parametrize("step", rest_in_ci([3, 0, 1, 5]))
def test_a_run_that_is_gone_on_with_is_the_undisturbed_run(
    step: int, finished: tuple[Trainer, RunFolder], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The episodes that waited are learnt from as they were; none of them is played again."""
    whole, run = finished
    part = back_to(run, step, tmp_path / "part")
    watched = Watched(monkeypatch)
    rest = Trainer(build(stale(model, tmp_path, save_every=1, keep="all", name="part")))
    rest.resume(part)
    with quiet_display() as display:
        rest.train(part, display)
    assert watched.versions == [{max(0, i - 2)} for i in range(step, 6)]
    assert timeless(part) == timeless(run) and same(rest, whole)


def test_a_stop_in_the_middle_of_playing_loses_no_episode(
    finished: tuple[Trainer, RunFolder], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while an iteration is played ahead: those that wait are kept, the broken one is played again."""
    whole, run = finished
    made = stale(model, tmp_path, save_every=1, keep="all", name="part")
    before = RolloutQueue._collect

    def stopped(episodes: RolloutQueue, iteration: int, *args: Any) -> Collected:
        if iteration == 4:
            raise KeyboardInterrupt
        return before(episodes, iteration, *args)

    monkeypatch.setattr(RolloutQueue, "_collect", stopped)
    first = Trainer(build(made))
    part = first.start()
    with pytest.raises(KeyboardInterrupt), quiet_display() as display:
        first.train(part, display)
    assert checkpoint.steps(part.checkpoints)[-1] == 2
    monkeypatch.setattr(RolloutQueue, "_collect", before)
    rest = Trainer(build(made))
    rest.resume(part)
    with quiet_display() as display:
        rest.train(part, display)
    assert timeless(part) == timeless(run) and same(rest, whole)


@pytest.mark.ci
def test_ranks_train_as_one_process_does_and_go_on_on_another_number(model: Path, tmp_path: Path) -> None:
    made = stale(model, tmp_path, iterations=4, reduction_slots=2, chunk=4, save_every=1, keep="all", name="alone")
    whole, run = train(made)
    one_by_one = threading.Lock()

    def trained(rank: RankGroup, folder: Path | None) -> Trainer:
        with one_by_one:  # transformers loads no two models at once in one process
            trainer = Trainer(build(dataclasses.replace(made, name="two")), rank)
        part = trainer.start() if folder is None else seen(RunFolder(folder), rank)
        if folder is not None:
            trainer.resume(part)
        with quiet_display() as display:
            trainer.train(part, display)
        return trainer

    both = together(2, lambda rank: trained(rank, None))
    assert same(both[0], whole) and same(both[1], whole)
    for number, source in ((2, run), (1, RunFolder(tmp_path / "two"))):
        part = back_to(source, 2, tmp_path / f"part{number}")
        rest = together(number, lambda rank, part=part: trained(rank, part.root))
        assert all(same(trainer, whole) for trainer in rest)
        assert timeless(part) == timeless(run)


def test_a_budget_of_tokens_ends_the_playing_too(model: Path, tmp_path: Path) -> None:
    """Everything that was sampled is learnt from, and the iteration that reaches the budget is the last."""
    _, run = train(stale(model, tmp_path, 3, iterations=50, token_budget=200))
    lines = run.metrics()[1:]
    totals = [line["tokens_total"] for line in lines]
    assert totals[-2] < 200 <= totals[-1] == sum(line["tokens_played"] for line in lines)
    assert len(lines) > 2


@pytest.mark.ci
def test_less_staleness_than_before_plays_again_what_has_become_too_old(
    finished: tuple[Trainer, RunFolder], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = finished
    watched = Watched(monkeypatch)
    for staleness, versions in ((0, [3, 4, 5]), (1, [3, 3, 4]), (3, [1, 2, 3])):
        part = back_to(run, 3, tmp_path / f"part{staleness}")
        rest = Trainer(build(stale(model, tmp_path, staleness, name=part.root.name)))
        rest.resume(part)
        with quiet_display() as display:
            rest.train(part, display)
        assert watched.versions[-3:] == [{v} for v in versions]


def test_replies_older_than_the_bound_end_the_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RolloutQueue, "_lacks", lambda queue, progress: len(queue._queue) < 3)
    with pytest.raises(StaleError, match="expected at most 1 updates between"):
        train(stale(model, tmp_path, 1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"full_finetune": True}, "Leave out full_finetune, or say --staleness 0"),
        ({"algo": "sft"}, "leave out --staleness"),
        ({"algo": "reinforce"}, "no ratio between who sampled a turn and who learns from it"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], words: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        build(settings(model, tmp_path, staleness=1, **changes, algorithm={"epochs": 1, "minibatches": 1}))


@pytest.mark.parametrize("algo", rest_in_ci(["reinforce", "a2po", "happo", "grpo", "at_grpo", "treerl"], 2))
def test_other_algorithms_learn_from_stale_turns(algo: str, model: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"group_size": 4} if "grpo" in algo else {"vtrace": algo == "a2po"} if "po" in algo else {}
    algorithm = {"epochs": 1, "minibatches": 1, "old_logprobs": "learner", "tis_cap": 2.0, **more}
    made = settings(model, tmp_path, staleness=1, iterations=3, algo=algo, algorithm=algorithm)
    _, run = train(made)
    assert [line.get("staleness/1/share", 0.0) for line in run.metrics()[1:]] == [0.0, 1.0, 1.0]
    assert all(math.isfinite(line["policy/solver_0/loss"]) for line in run.metrics()[1:])


# --- plain values -----------------------------------------------------------------------------------------------


def test_episodes_come_back_from_plain_values_to_the_bit(
    finished: tuple[Trainer, RunFolder], model: Path, tmp_path: Path
) -> None:
    """Through the file that a checkpoint is, whose reader makes no objects."""
    trainer = Trainer(build(stale(model, tmp_path)))
    with closing(VectorEnv([trainer.parts.make_env] * 4)) as vec:
        played = collector(trainer.parts, vec).collect(list(range(4)))
    played[0].episode.info["odd"] = {
        3: (1, [2.5, None]),
        "~class": "table",
        "there": frozenset("ab"),
        "x": np.float64(1),
    }
    torch.save(packing.pack(played), tmp_path / "played.pt")
    again = packing.unpack(torch.load(tmp_path / "played.pt", weights_only=True))
    assert packing.pack(again) == packing.pack(played)
    for before, after in zip(played, again, strict=True):
        assert dataclasses.asdict(before.episode) == dataclasses.asdict(after.episode)
        for t, u in zip(before.transitions, after.transitions, strict=True):
            assert u.turn is after.episode.turns[u.index] and u.request.messages == t.request.messages
            assert u.reply.stop_reason is t.reply.stop_reason and isinstance(u.reply.stop_reason, StopReason)
            assert u.reply.logprobs.dtype == np.float32 and u.reply.logprobs.tobytes() == t.reply.logprobs.tobytes()
            assert (u.reply.action_ids, u.request.prompt_ids) == (t.reply.action_ids, t.request.prompt_ids)
    assert again[0].episode.info["odd"]["there"] == frozenset("ab")
    assert again[0].episode.info["odd"]["~class"] == "table" and again[0].episode.info["odd"][3] == (1, [2.5, None])


def test_what_a_task_put_there_is_described_and_nothing_else_is_made() -> None:
    assert packing.unpack(packing.pack({"task": object})) == {"task": {"__repr__": "<class 'object'>"}}
    for odd in ({"~class": "Path", "~value": {}}, {"~class": "Trajectory", "~value": {"episodes": 1}}, {"~class": []}):
        with pytest.raises(DataError, match="No packed trajectory"):
            packing.unpack(odd)


class Counting(RolloutQueue):
    """Plays nothing; an iteration's tokens are its number."""

    def __init__(self) -> None:
        algorithm, backend = SimpleNamespace(group_size=1), SimpleNamespace(apart=False)
        parts = SimpleNamespace(algorithm=algorithm, problems=None, demonstrations=None, curriculum=None, followed=())
        super().__init__(cast(Any, parts), TrainConfig(iterations=9, staleness=2), cast(Any, backend), Alone())

    def _collect(self, iteration: int, before: Any, on_progress: OnProgress, weights: Any = None) -> Collected:
        return Collected([], {"tokens": iteration})


def test_a_queue_of_another_iteration_is_refused() -> None:
    queue = Counting()
    queue.fill(RunProgress(iteration=3, version=3), 3, lambda done, total, tokens: None)
    state = queue.state_dict()
    assert [row["iteration"] for row in state] == [3, 4, 5]
    Counting().load_state_dict(state, RunProgress(iteration=3, version=3))
    with pytest.raises(DataError, match="holds episodes of others: 3 and later"):
        Counting().load_state_dict(state, RunProgress(iteration=4, version=4))
    with pytest.raises(DataError, match="cannot be read"):
        Counting().load_state_dict([{"iteration": 4}], RunProgress(iteration=4, version=4))
