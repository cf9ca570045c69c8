"""SDPO: its gradient is that of a KL, prompts hold what is known afterwards, whole runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.runs import quiet_display, settings, timeless, train
from helpers.teams import VOCABULARY, Tabular, episode, put, say
from marft_algos.algorithms.sdpo import SDPO, Hindsight, SDPOConfig, feedback
from marft_algos.batching import pack, totals
from marft_algos.learner.learner import Learner
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_algos.types import Estimates, Trajectory, Transition

ONE = {"group_size": 4, "epochs": 1, "minibatches": 1}


# --- formula ------------------------------------------------------------------------------------------------------


def test_its_gradient_in_expectation_is_that_of_the_kl_to_who_knows_better() -> None:
    """Over all first tokens: Σ_v π(v) ∇(−log π(v) · A(v)) = ∇ KL(π ‖ stop-gradient q)."""
    policies, asked, shown = Tabular(["a"], seed=3), 1, 4
    data = []
    for token in range(VOCABULARY):
        d = episode([["a"]], number=token, tokens=[1])
        put(d.transitions[0], prompt_ids=[0, asked])
        say(d.transitions[0], action_ids=[token])
        put(d, hindsight={0: [0, asked, shown]})
        data.append(d)
    policies.play(data)
    made = SDPO(SDPOConfig())
    learner = Learner(made, policies, None, 0)
    estimates = Estimates()
    logged = made.credit(data, estimates)
    turns = [d.transitions[0] for d in data]
    prepared = made.before_step(turns, estimates, learner.rescore)
    table = policies.tables["a"]
    log_p, log_q = torch.log_softmax(table[asked], -1), torch.log_softmax(table[shown], -1).detach()
    gaps = (log_q - log_p).detach()
    for token, t in enumerate(turns):
        assert float(estimates.advantages[t][0]) == pytest.approx(float(gaps[token]), abs=1e-5)
    assert logged["hindsight"] == 1.0 and prepared["hindsight_gain"] == pytest.approx(float(gaps.mean()), abs=1e-5)
    (expected,) = torch.autograd.grad((log_p.exp() * (log_p - log_q)).sum(), table, retain_graph=True)
    found = torch.zeros_like(expected)
    for token, t in enumerate(turns):
        batch = pack([t], estimates, "token", minibatch=totals([t], estimates, 1))
        loss, _ = made.surrogate(policies.logprobs(*batch.scored)[0], batch)
        (gradient,) = torch.autograd.grad(loss, table)
        found += float(log_p[token].detach().exp()) * gradient
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_later_tokens_are_judged_after_those_before_and_unknown_turns_teach_nothing() -> None:
    policies = Tabular(["a", "b"])
    d = episode([["a"], ["b"]], tokens=[3, 2])
    put(d, hindsight={0: [*d.transitions[0].request.prompt_ids, 2]})
    policies.play([d])
    made = SDPO(SDPOConfig())
    estimates, learner = Estimates(), Learner(made, policies, None, 0)
    put(alone := episode([["a"]]), hindsight={0: [2]})
    assert made.credit([alone], Estimates())["hindsight"] == 1.0
    assert made.credit([d], estimates)["hindsight"] == 0.5
    first, second = d.transitions
    made.before_step([first], estimates, learner.rescore)
    made.before_step([second], estimates, learner.rescore)
    log = torch.log_softmax(policies.tables["a"].detach(), -1)
    ids = first.reply.action_ids
    gap = float(log[2, ids[0]] - log[first.request.prompt_ids[-1], ids[0]])
    assert estimates.advantages[first].tolist() == pytest.approx([gap, 0.0, 0.0], abs=1e-5), "a table sees one token"
    assert estimates.advantages[second].tolist() == [0.0, 0.0]


# --- prompts ------------------------------------------------------------------------------------------------------


def spoken(number: int, words: str, success: bool | None, result: str = "", group: int = 0) -> Trajectory:
    d = episode([["a"], ["b"]], number=number, group=group, success=success)
    for t in d.transitions:
        say(t, text=f"{words} of {t.agent}")
        t.turn.result = result
    return d


def test_what_is_told_is_somebody_elses_right_reply_and_what_came_of_a_wrong_one() -> None:
    wrong, right, other = spoken(0, "bad", False, "1 of 2"), spoken(1, "good", True, "2 of 2"), spoken(2, "fine", True)
    t = wrong.transitions[1]
    assert feedback(wrong, t, [right, other]) == (
        "A right reply:\ngood of b\n\nWhat came of your last reply:\n1 of 2\n\nNow reply rightly."
    )
    assert feedback(right, right.transitions[0], [other]) == "A right reply:\nfine of a\n\nNow reply rightly."
    assert feedback(right, right.transitions[0], []) == "", "nobody else was right, and it was no failure"
    short = episode([["b"]], number=3, success=True)
    assert feedback(wrong, wrong.transitions[0], [short]).startswith("What came"), "another agent spoke there"


class Noted:
    """Writes down what it is to render."""

    def prompt(self, t: Transition, words: str) -> list[int]:
        return [] if "too long" in words else [t.index, len(words)]


def test_only_the_group_is_shown_and_too_long_prompts_are_left_out() -> None:
    data = [spoken(0, "bad", False), spoken(1, "good", True), spoken(2, "bad", False, group=1), spoken(3, "x", True, group=2)]  # fmt: skip
    shown = Hindsight().replay(data, Noted(), 0)  # type: ignore[arg-type]
    assert [sorted(d.hindsight) for d in shown] == [[0, 1], [], [], []]
    say(data[1].transitions[0], text="too long")
    shown = Hindsight().replay(data, Noted(), 0)  # type: ignore[arg-type]
    assert sorted(shown[0].hindsight) == [1]
    put(data[0].transitions[1], trainable=False)
    assert not Hindsight().replay(data, Noted(), 0)[0].hindsight  # type: ignore[arg-type]


# --- runs ---------------------------------------------------------------------------------------------------------


def test_the_teacher_is_asked_with_the_prompt_and_the_feedback_behind_it(model: Path, tmp_path: Path) -> None:
    trainer = Trainer(build(settings(model, tmp_path, algo="sdpo", algorithm=ONE)))
    backend: Any = trainer.rollouts
    replayer, chat = backend._worker._replayer, trainer.policies.renderer
    d = episode([["solver_0"]], policies={"solver_0": "solver_0"})
    t = d.transitions[0]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}]
    t = dataclasses.replace(t, request=dataclasses.replace(t.request, messages=messages, prompt_ids=[7, 8, 9], begun=2))
    expected = chat.render("solver_0", [messages[0], {"role": "user", "content": "x\n\nf"}])
    assert replayer.prompt(t, "f") == [*expected, 8, 9]
    assert replayer.prompt(t, "word " * 10_000) == []


@pytest.mark.ci
def test_a_resumed_run_learns_from_what_one_that_was_not_did(tmp_path: Path) -> None:
    def made(where: str, iterations: int) -> Any:
        return settings(
            Path("embedded"), tmp_path / where, env="relay-v0", algo="sdpo", iterations=iterations, max_new_tokens=2,
            episodes_per_iteration=16, eval_episodes=4, algorithm=ONE,
        )  # fmt: skip

    _, whole = train(made("one", 3))
    _, run = train(made("two", 2))
    again = Trainer(build(made("two", 3)))
    again.resume(run)
    with quiet_display(3) as display:
        again.train(run, display)
    assert timeless(run) == timeless(whole)
    first = timeless(run)[1]
    assert 0 < first["hindsight"] <= 1 and first["policy/planner_0/hindsight_gain"] < 0, "minus a KL, in expectation"
    assert first["policy/planner_0/steps"] == 1
