"""Numbers about how a team worked together, on episodes small enough to count by hand."""

from __future__ import annotations

import pytest
from flex import PlainTask, flex, play

from marft_envs import Chain, Episode, Independent, Layered, Outcome, Router
from marft_envs import metrics as m


def said(texts: list[str], dependency: object = None, **kwargs: object) -> Episode:
    env = flex(3, dependency, **kwargs)  # type: ignore[arg-type]
    return play(env, say=lambda env, agent: texts[len(env.view.history) + list(env.layer).index(agent)]).episode


def routed(script: str, texts: list[str] | None = None) -> Episode:
    d = Router(lambda view: [f"{script[view.layer]}_0"] if view.layer < len(script) else [])
    return said(texts or list(map(str, range(len(script)))), d)


def test_turns_and_lengths_per_agent() -> None:
    episode = said(["xx", "yyyy", "xxxx", "y"], Chain("a_0", "b_0"), max_rounds=2)
    assert m.turns_per_agent(episode) == {"a_0": 2, "b_0": 2, "c_0": 0}
    assert m.message_lengths(episode) == {"a_0": 3.0, "b_0": 2.5}


def test_duplicates_are_of_one_agent_blanks_and_case_apart() -> None:
    episode = said(["Yes  I do", "yes i do", "no", " yes I\ndo ", "new", "NO"], max_rounds=2)
    assert m.duplicate_share(episode) == pytest.approx(2 / 6)


def test_copies_are_of_what_was_shown() -> None:
    assert m.copy_share(said(["four", "Four", "five"])) == pytest.approx(1 / 3)
    assert m.copy_share(said(["four", "four", "four"], Independent())) == 0.0


def test_handoffs_and_loops() -> None:
    episode = routed("abababc")
    assert m.handoffs(episode) == [[("a_0", "b_0"), ("b_0", "a_0")] * 2 + [("a_0", "b_0"), ("b_0", "c_0")]]
    assert m.handoff_loops(episode) == 3
    assert m.handoff_loops(routed("aabbcc")) == 0
    assert m.handoff_loops(said(list("123456"), max_rounds=2)) == 0
    assert m.handoffs(said(["1", "2", "3"], Layered([["a_0", "b_0"], ["c_0"]]))) == [[]]


def test_errors_as_the_caller_judges() -> None:
    episode = said(["ok", "Error: no", "ok"])
    assert m.error_share(episode, lambda turn: turn.text.startswith("Error")) == pytest.approx(1 / 3)


def test_step_efficiency() -> None:
    won = said(list("123"), task=PlainTask(round=lambda turns: Outcome(success=True)))
    assert m.step_efficiency(won, 3) == 1.0 and m.step_efficiency(won, 1) == pytest.approx(1 / 3)
    assert m.step_efficiency(said(list("123")), 3) == 0.0


def test_words_that_nobody_read() -> None:
    assert m.unused_share(said(list("123"))) == 0.0
    assert m.unused_share(said(list("123"), Chain(sees="previous"))) == 0.0
    assert m.unused_share(said(list("123456"), Independent(), max_rounds=2)) == 1.0
    assert m.unused_share(said(list("123"), Independent())) == 0.0


def test_summary_is_flat_and_numeric() -> None:
    summary = m.summary(routed("abab"))
    assert summary["turns"] == 4 and summary["handoff_loops"] == 1 and summary["turns/c_0"] == 0
    assert all(isinstance(value, float) for value in summary.values())
