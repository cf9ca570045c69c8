"""Preferences: which episodes make a pair, the loss against brute force, and the way from imitation to preferences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marft_algos
import marft_envs
from helpers.relay import AGENTS, ENV, embedded_team, prompts
from helpers.runs import settings
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.models.policy import PolicySet
from marft_algos.rollout.preferences import Preferences
from marft_algos.runs.folder import RunFolder
from marft_algos.training.trainer import Trainer
from marft_algos.types import Trajectory
from marft_envs import ConfigError, DataError, Episode
from marft_envs.records import trajectory


@pytest.fixture(scope="module")
def policies() -> PolicySet:
    return embedded_team()


def play(seed: int, *texts: str, **extras: Any) -> Episode:
    """One episode of the relay; ``{}`` in a text is the digit that is asked for."""
    env = marft_envs.make(ENV)
    env.reset(seed=seed)
    gold = env.unwrapped.task.gold_turns()[-1][1]
    for text in texts:
        if extras:
            env.attach(env.agent_selection, extras)
        env.step(text.format(gold))
    assert env.done
    return env.episode


def good(seed: int, word: str = "7") -> Episode:
    """The planner's word differs, so it says nothing; what it passes on decides nothing in a scripted episode."""
    episode = play(seed, word, "{}")
    assert episode.success
    return episode


def bad(seed: int, word: str = "7") -> Episode:
    episode = play(seed, word, "hello")
    assert not episode.success
    return episode


def preferences(policies: PolicySet, path: Path, episodes: list[Episode], **kwargs: Any) -> Preferences:
    (path / "some.jsonl").unlink(missing_ok=True)  # episodes are added to a file
    trajectory.write(path / "some.jsonl", episodes)
    return Preferences(str(path / "some.jsonl"), lambda: marft_envs.make(ENV), policies.renderer, 8, **kwargs)


# Pairs ----------------------------------------------------------------------------------------------


def test_a_pair_is_two_episodes_of_one_start_the_better_one_first(policies: PolicySet, tmp_path: Path) -> None:
    env = marft_envs.make(ENV)
    starts: dict[str, list[int]] = {}
    for seed in range(40):
        env.reset(seed=seed)
        starts.setdefault(env.unwrapped.task.task_id, []).append(seed)
    one, two, three = [seeds for seeds in starts.values()][:3]
    episodes = [bad(one[0], "1"), good(one[0], "2"), good(one[0], "3"), bad(two[0], "4"), good(two[1], "5")]
    episodes += [good(three[0]), good(three[0], "1")]
    source = preferences(policies, tmp_path, episodes)
    seen = []
    for iteration in range(12):
        drawn = source.draw(prompts(4), iteration, version=3)
        assert [t.group for t in drawn] == [0, 0, 1, 1] and [t.number for t in drawn] == [0, 1, 2, 3]
        for better, worse in zip(drawn[::2], drawn[1::2], strict=True):
            assert better.success and not worse.success and better.task_id == worse.task_id
            assert all(t.reply.version == 3 for t in better.transitions)
            seen.append((better.task_id, better.episode.turns[0].text, worse.episode.turns[0].text))
    ids = {episode.task_id for episode in episodes[:5]}
    assert {key for key, *_ in seen} == ids, "where all end alike there is nothing to prefer"
    matched = {(b, w) for key, b, w in seen if key == episodes[0].task_id}
    assert matched == {("2", "1"), ("3", "1")}, "matched anew in each pass"
    assert source.metrics()["rejected"] == 0


def test_what_cannot_be_compared_is_counted_by_reason(policies: PolicySet, tmp_path: Path) -> None:
    held, other = good(3), next(seed for seed in range(99) if good(seed).task_id != good(3).task_id)
    source = preferences(policies, tmp_path, [good(other), bad(other), held, bad(3)], held_out=[held.task_id])
    assert len(source.draw(prompts(4), 0, 0)) == 2
    assert source.metrics()["rejected/a held-out problem"] == 1.0
    assert source.metrics()["skipped/the same words"] == 1.0, "the planner said the same in both"
    with pytest.raises(DataError, match=r"no pair among the 2 episodes.*--record-every 1"):
        preferences(policies, tmp_path, [good(0), good(0, "1")])
    with pytest.raises(DataError, match=r"None of 1 pairs can be learnt from: a held-out problem \(1, such as"):
        preferences(policies, tmp_path, [held, bad(3)], held_out=[held.task_id]).draw(prompts(2), 0, 0)
    with pytest.raises(ConfigError, match="Raise --episodes-per-iteration"):
        source.draw(prompts(1), 0, 0)
    for nothing in ("", "expert"):
        with pytest.raises(ConfigError, match="--demonstrations runs/NAME"):
            Preferences(nothing, lambda: marft_envs.make(ENV), policies.renderer, 8)


def test_a_policy_learns_only_from_pairs_in_which_it_said_something_else(policies: PolicySet, tmp_path: Path) -> None:
    better, worse = preferences(policies, tmp_path, [good(0), bad(0)]).draw(prompts(2), 0, 0)
    for side in (better, worse):
        assert [t.trainable for t in side.transitions] == [False, True]
    better, worse = preferences(policies, tmp_path, [good(0, "1"), bad(0, "2")]).draw(prompts(2), 0, 0)
    assert all(t.trainable for side in (better, worse) for t in side.transitions)


def test_a_reply_that_was_cut_is_not_closed(policies: PolicySet, tmp_path: Path) -> None:
    better, worse = preferences(policies, tmp_path, [good(0), play(0, "1", "hello", stop_reason="length")]).draw(
        prompts(2), 0, 0
    )
    ends = policies.renderer.chat("solver_0").end_ids
    assert all(t.reply.action_ids[-1] in ends for t in better.transitions)
    assert not any(set(t.reply.action_ids) & set(ends) for t in worse.transitions)


def test_returns_are_compared_where_nobody_says_what_success_is(policies: PolicySet, tmp_path: Path) -> None:
    episodes = [good(0, "1"), bad(0, "2")]
    for episode in episodes:
        episode.success = None
    better, worse = preferences(policies, tmp_path, episodes)._starts[0]
    assert [e.turns[0].text for e in (*better, *worse)] == ["1", "2"]


# The loss -------------------------------------------------------------------------------------------


def trained(tmp_path: Path, **algorithm: Any) -> tuple[Trainer, list[Trajectory]]:
    """A trainer whose policies have left the reference, and pairs of episodes of different lengths."""
    pairs = [e for seed in range(6) for e in (good(seed, str(seed)), bad(seed, "hm"))]
    trajectory.write(tmp_path / "pairs.jsonl", pairs)
    model = save_tiny(tmp_path / "model", hidden=16, layers=1)
    algorithm = {"demonstrations": str(tmp_path / "pairs.jsonl"), "epochs": 1, "minibatches": 1, **algorithm}
    config = settings(model, tmp_path, algo="dpo", env=ENV, max_new_tokens=8, iterations=0, algorithm=algorithm)
    trainer = Trainer(marft_algos.build(config))
    with torch.no_grad():
        for policy in AGENTS:
            for tensor in trainer.policies.parameters(policy):
                tensor.add_(0.2 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)))
    assert trainer.parts.demonstrations is not None
    return trainer, trainer.parts.demonstrations.draw(prompts(8), 0, 0)


def brute_force(
    trainer: Trainer, drawn: list[Trajectory], policy: str, beta: float
) -> tuple[torch.Tensor, list[float]]:
    """The definition, turn by turn, with autograd through all of it."""
    margins = []
    for better, worse in zip(drawn[::2], drawn[1::2], strict=True):
        sums = []
        for side in (better, worse):
            total = torch.zeros(())
            for t in (t for t in side.transitions if t.policy == policy):
                ids = torch.tensor([[*t.request.prompt_ids, *t.reply.action_ids]])
                acted = torch.zeros_like(ids, dtype=torch.bool)
                acted[0, len(t.request.prompt_ids) :] = True
                now = trainer.policies.logprobs(policy, ids, acted)[0]
                total = total + (now - trainer.policies.reference_logprobs(policy, ids, acted)).sum()
            sums.append(total)
        margins.append(beta * (sums[0] - sums[1]))
    loss = torch.stack([-torch.nn.functional.logsigmoid(m) for m in margins]).mean()
    return loss, [float(m.detach()) for m in margins]


@pytest.mark.parametrize("micro", [16384, 60], ids=["whole", "in pieces"])
def test_loss_gradient_and_numbers_are_those_of_the_definition(tmp_path: Path, micro: int) -> None:
    trainer, drawn = trained(tmp_path, beta=0.7, lr=1e-9, micro_tokens=micro, max_grad_norm=None)
    expected: dict[str, Any] = {}
    for policy in AGENTS:
        loss, margins = brute_force(trainer, drawn, policy, 0.7)
        gradients = torch.autograd.grad(loss, trainer.policies.parameters(policy))
        norm = float(torch.cat([g.flatten() for g in gradients]).norm())
        expected |= {
            f"policy/{policy}/loss": float(loss.detach()),
            f"policy/{policy}/margin": float(np.mean(margins)),
            f"policy/{policy}/accuracy": float(np.mean(np.array(margins) > 0)),
            f"policy/{policy}/grad_norm": norm,
            f"policy/{policy}/pairs": 4.0,
        }
        assert max(map(abs, margins)) > 0.05 and norm > 1e-3
        direction = torch.cat([g.flatten() for g in gradients])
        trainer.policies.parameters(policy)[0].grad = None
        expected[policy] = direction / norm
    seen: dict[str, torch.Tensor] = {}
    for name, optimiser in trainer.learner.optimizers.items():

        def watched(name: str = name, step: Any = optimiser.step) -> float:
            seen[name] = torch.cat([p.grad.flatten() for p in trainer.policies.parameters(name)])
            return float(step())

        optimiser.step = watched
    metrics = trainer.learner.update(drawn, 0)
    for policy in AGENTS:
        torch.testing.assert_close(seen[policy] / seen[policy].norm(), expected.pop(policy), atol=1e-4, rtol=1e-3)
    for key, value in expected.items():
        assert metrics[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


def test_minibatches_keep_pairs_whole_and_every_step_sees_the_weights_as_they_are(tmp_path: Path) -> None:
    trainer, drawn = trained(tmp_path, minibatches=2, epochs=2, lr=0.01)
    parts: list[set[int]] = []
    margins: list[float] = []
    before_step = trainer.learner.algorithm.before_step

    def watched(part: Any, *rest: Any) -> dict[str, float]:
        numbers = before_step(part, *rest)
        sides = trainer.learner.algorithm._sides  # type: ignore[attr-defined]
        assert len(part) == 2 * len({sides[t][0] for t in part}), "both sides"
        parts.append({sides[t][0] for t in part})
        margins.append(numbers["margin"])
        return numbers

    trainer.learner.algorithm.before_step = watched  # type: ignore[method-assign]
    metrics = trainer.learner.update(drawn, 0)
    for policy in range(2):
        mine, told = parts[4 * policy :][:4], margins[4 * policy :][:4]
        assert mine[0] | mine[1] == mine[2] | mine[3] == {0, 1, 2, 3}
        assert np.mean(told[2:]) > np.mean(told[:2]), "the second pass finds what the first has done"
    assert metrics["policy/solver_0/steps"] == 4.0


# The pipeline ---------------------------------------------------------------------------------------


@pytest.mark.ci
def test_from_imitation_to_reinforcement_to_preferences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run begins where the one before ended; preferences are learnt from what reinforcement has recorded."""
    top = ["--eval-episodes", "30", "--runs-dir", str(tmp_path), "--episodes-per-iteration", "64"]
    few = ["--iterations", "1", "--lr", "2e-3"]
    assert main(["sft", "--preset", "toy", "--env", ENV, *top, *few, "--name", "warm"]) == 0
    record = ["--record-every", "1", "--record-episodes", "64"]
    assert main(["train", "marft", "--start", str(tmp_path / "warm"), *top, *few, *record, "--name", "rl"]) == 0
    stored = ["--demonstrations", str(tmp_path / "rl"), "--iterations", "4", "--lr", "2e-3"]
    assert main(["dpo", "--start", str(tmp_path / "rl"), *top, *stored, "--eval-every", "0", "--name", "dpo"]) == 0
    warm, rl, dpo = (RunFolder.open(tmp_path / name).metrics() for name in ("warm", "rl", "dpo"))
    assert warm[-1]["eval/success"] > warm[0]["eval/success"] + 0.2
    assert rl[0]["eval/success"] == warm[-1]["eval/success"] and dpo[0]["eval/success"] == rl[-1]["eval/success"]
    for policy in AGENTS:
        first, last = (line[f"policy/{policy}/margin"] for line in (dpo[1], dpo[-1]))
        assert abs(first) < 0.02 and last > 0.02, "it begins at the reference and learns to tell better from worse"
        assert dpo[-1][f"policy/{policy}/accuracy"] > 0.7
    assert dpo[-1]["eval/success"] >= dpo[0]["eval/success"] - 0.05
    assert main(["train", "--resume", str(tmp_path / "dpo"), "--iterations", "5"]) == 0
    capsys.readouterr()
    assert main(["dpo", "--start", str(tmp_path / "rl"), *top]) == 1
    assert "--demonstrations runs/NAME" in capsys.readouterr().err
