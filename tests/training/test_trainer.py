"""The loop: what it writes, what it trains, what it refuses before it starts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import teams
from helpers.marks import rest_in_ci
from helpers.runs import quiet_display, settings, timeless, train
from helpers.tiny import save_tiny
from marft_algos import memory
from marft_algos.rollout.episodes import permuted
from marft_algos.runs import checkpoint
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.loggers import Display
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_algos.types import Trajectory
from marft_envs.errors import ConfigError, MarftError
from marft_envs.records import trajectory as episodes


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, RunFolder]:
    return train(settings(model, tmp_path_factory.mktemp("runs")))


def test_a_run_writes_a_line_an_iteration_and_whole_episodes(finished: tuple[Trainer, RunFolder]) -> None:
    _, run = finished
    lines = run.metrics()
    assert [line["iteration"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["iteration"] for line in lines if "eval/success" in line] == [0, 2, 4]
    for line in lines[1:]:
        assert line["episodes"] == 12 and line["tokens"] > 0
        assert {"return", "success", "agent/solver_0/length", "policy/solver_0/kl", "time_total"} <= set(line)
    assert run.recorded("eval") == [0, 2, 4] and run.recorded("train") == [2, 4]
    assert all(len(run.evaluation(i)) == 10 for i in run.recorded("eval"))
    gain = run.gain()
    assert gain is not None and gain[2].n == 10
    for played in run.episodes("train", 2):
        assert episodes.replay(played).turns == played.turns
        for turn in played.turns:
            assert {"value", "advantage", "return", "tokens"} <= set(turn.extras or {})
            assert turn.extras and len(turn.extras["pieces"]) == len(turn.extras["advantages"]) == turn.extras["tokens"]
            assert len(turn.extras["values"]) == turn.extras["tokens"] == len(turn.extras["logprobs"])
            assert sum(turn.extras["logprobs"]) == pytest.approx(turn.extras["logprob"], abs=1e-3)


def test_equal_settings_give_equal_runs_whatever_the_number_of_environments(
    finished: tuple[Trainer, RunFolder], model: Path, tmp_path: Path
) -> None:
    _, run = finished
    _, other = train(settings(model, tmp_path))
    assert timeless(run) == timeless(other)
    # Fewer slots make other batches, and so other last bits: the texts agree.
    _, narrow = train(settings(model, tmp_path, num_envs=5))
    said = [[t.text for e in r.episodes("train", 2) for t in e.turns] for r in (run, narrow)]
    assert said[0] == said[1]


def test_training_changes_trained_policies_and_no_frozen_one(model: Path, tmp_path: Path) -> None:
    trainer, run = train(settings(model, tmp_path, frozen=["planner_0"], keep="all"))
    files = {
        (policy, step): (checkpoint.step_dir(run.checkpoints, step) / "policies" / policy / "adapter_model.safetensors")
        for policy in ("planner_0", "solver_0")
        for step in (0, 4)
    }
    assert files["planner_0", 0].read_bytes() == files["planner_0", 4].read_bytes()
    assert files["solver_0", 0].read_bytes() != files["solver_0", 4].read_bytes()
    assert trainer.policies.version == 4 and list(trainer.learner.optimizers) == ["solver_0"]


def test_a_run_starts_from_a_saved_policy(model: Path, tmp_path: Path) -> None:
    first, run = train(settings(model, tmp_path, iterations=2))
    saved = checkpoint.pick(run.checkpoints) / "policies" / "solver_0"
    second = Trainer(build(settings(model, tmp_path, adapters={"planner_0": str(saved)}, frozen=["planner_0"])))
    ours, theirs = (t.policies.state_dict() for t in (second, first))
    names = [n.removeprefix("planner_0/") for n in ours if n.startswith("planner_0/")]
    assert names and all(torch.equal(ours[f"planner_0/{n}"], theirs[f"solver_0/{n}"]) for n in names)


@pytest.mark.parametrize("changes", rest_in_ci([
    {"policies": "shared"},
    {"policies": {"planner": "one", "solver": "two"}, "algorithm": {"lr": {"one": 1e-2, "two": 0.0}}},
    {"full_finetune": True, "algorithm": {"level": "action"}}, {"algorithm": {"critic": "none"}},
    {"algorithm": {"critic": "team", "update": "agent"}},
], 2), ids=["shared", "rates per policy", "full, action level", "no critic", "team critic, by agent"])  # fmt: skip
def test_ways_to_train_run_and_resume(changes: dict[str, Any], model: Path, tmp_path: Path) -> None:
    changes = {"iterations": 2, "save_every": 1, "eval_every": 1, **changes}
    whole, run = train(settings(model, tmp_path, name="whole", **changes))
    _, other = train(settings(model, tmp_path, name="part", **{**changes, "iterations": 1}))
    rest = Trainer(build(settings(model, tmp_path, name="part", **changes)))
    rest.resume(other)
    with quiet_display() as display:
        rest.train(other, display)
    assert timeless(run) == timeless(other)
    ours, theirs = rest.policies.state_dict(), whole.policies.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.ci
def test_two_different_models_in_one_team(model: Path, tmp_path: Path) -> None:
    llama = save_tiny(tmp_path / "llama", "llama", hidden=24, layers=2)
    _, run = train(settings(model, tmp_path, models={"planner_0": str(model), "solver_0": str(llama)}))
    assert run.metrics()[-1]["policy/planner_0/tokens"] > 0


def test_tensorboard_gets_every_number(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard comes with the track extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, run = train(settings(model, tmp_path, iterations=2, loggers=["tensorboard"]))
    events = EventAccumulator(str(run.root / "tensorboard"))
    events.Reload()
    scores = events.Scalars("return")
    assert [e.step for e in scores] == [1, 2]
    assert scores[1].value == pytest.approx(run.metrics()[2]["return"])


def test_permuted_rewards_keep_the_sum_and_break_the_link() -> None:
    def played(score: float) -> Trajectory:
        return teams.episode([["a"], ["b"]], rewards=[0.25, score - 0.25], success=score >= 25)

    found = [played(float(i)) for i in range(50)]
    control = permuted(found, np.random.default_rng(0))
    paid = [sum(layer.team_reward for layer in t.layers) for t in control]
    assert sorted(paid) == [float(i) for i in range(50)]
    assert sum(a == t.score for a, t in zip(paid, found, strict=True)) < 5
    assert [t.success for t in control] == [a >= 25 for a in paid], "a verdict is worth what the reward is"
    assert [t.score for t in found] == [float(i) for i in range(50)], "what was played stays as it was"


@pytest.mark.ci
def test_the_control_learns_from_permuted_rewards(model: Path, tmp_path: Path) -> None:
    (plain, _), (permuted, run) = (train(settings(model, tmp_path, permute_rewards=p)) for p in (False, True))
    assert plain.progress.iteration == permuted.progress.iteration == 4
    for played in run.episodes("train", 2):  # recorded is what was played
        assert episodes.replay(played).layers == played.layers


def bare(tmp_path: Path, **kwargs: Any) -> str:
    return str(save_tiny(tmp_path / "bare", hidden=16, layers=1, **kwargs))


@pytest.mark.parametrize(("changes", "message"), [
    ({"env": "relai-v0"}, "Did you mean 'relay-v0'"), ({"env": "relay-v7"}, "no version 7"),
    ({"env": "relay-v0", "env_kwargs": {"dependancy": "independent"}}, "takes no 'dependancy'|unexpected keyword"),
    ({"models": {"solver_0": "embedded"}}, "No model was given for policy 'planner_0'"),
    ({"policies": {"solvr": "a", "planner": "b"}}, "Did you mean 'solver"),
    ({"frozen": ["solver"]}, "Did you mean 'solver_0'"), ({"adapters": {"solver_0": "nowhere"}}, "nowhere"),
    ({"algorithm": {"lr": {"solver_0": 1.0}}}, "lr has no value for"), ({"loggers": ["tensorbord"]}, "loggers"),
    ({"context": 8}, "context"), ({"device": "gpu"}, "Unknown device"),
    ({"env": "math-dual-v0", "env_kwargs": {"data": "gsm9k"}}, "Did you mean 'gsm8k'"),
])  # fmt: skip
def test_what_cannot_work_is_an_error_before_anything_is_written(
    changes: dict[str, Any], message: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises((MarftError, TypeError), match=message):
        Trainer(build(settings(model, tmp_path / "runs", **changes))).start()
    assert not (tmp_path / "runs").exists()


def test_models_that_cannot_be_trained_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no chat template"):
        Trainer(build(settings(Path(bare(tmp_path, chat_template=None)), tmp_path)))


def test_a_name_that_is_taken_is_refused(model: Path, tmp_path: Path) -> None:
    made = settings(model, tmp_path, name="run")
    Trainer(build(made)).start()
    with pytest.raises(ConfigError, match="--resume"):
        Trainer(build(made)).start()


def test_the_display_shows_progress_time_left_and_scores(finished: tuple[Trainer, RunFolder]) -> None:
    from rich.console import Console

    _, run = finished
    console = Console(record=True, width=120, force_terminal=True)
    display = Display(4, 0, "relay", console)
    for line in run.metrics():
        display.log(line)
    gain = run.gain()
    assert gain is not None
    display.evaluated(0, gain[0], None, "8 held-out problems")
    display.evaluated(4, gain[1], gain[2], "8 held-out problems")
    console.print(display)
    shown = console.export_text()
    assert "4/4" in shown and "left" in shown and "solver_0" in shown
    assert "evaluated on 8 held-out problems" in shown and "against untrained" in shown


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is frozen, as in a program that has just begun; the suite freezes what it has collected."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_the_collector_passes_over_what_stays_and_finds_what_does_not(thawed: None) -> None:
    class Ring:
        def __init__(self) -> None:
            self.me = self

    before = Ring()
    with memory.settled():
        assert gc.get_freeze_count() > 0
        assert all(thing is not before for thing in gc.get_objects())
        ring = weakref.ref(Ring())
        gc.collect()
        assert ring() is None, "a cycle of the block's own is freed"
    assert gc.get_freeze_count() == 0


def test_what_a_caller_has_frozen_stays_frozen(thawed: None) -> None:
    gc.freeze()
    made = ["after the freeze"]
    with memory.settled():
        assert any(thing is made for thing in gc.get_objects())
    assert gc.get_freeze_count() > memory.FROZEN_BY_PYTHON
