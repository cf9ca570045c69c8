"""Written now, asked later: the answerer has the note and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import marft_envs
from marft_envs.errors import ConfigError, DataError
from marft_envs.records import experts


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("kind", ["total", "count", "largest", "ever", "lookup", "conflict"])
def test_who_keeps_everything_can_be_asked_anything(kind: str, level: int) -> None:
    env = marft_envs.make("docs-recall-v0", kinds=kind, level=level, lengths=2, window=0)
    assert all(experts.play(env, seed).success for seed in range(5))


def test_the_writer_does_not_know_the_question_and_the_answerer_has_the_note_alone() -> None:
    env = marft_envs.make("docs-recall-v0", kinds="lookup", lengths=2, window=0, note_chars=5)
    env.reset(seed=1)
    document, seen = env.task.problem, []
    while not env.done:
        seen.append((env.agent_selection, env.last()[0]["messages"]))
        env.step(r"\boxed{kept of it}")
    *writers, (name, asked) = seen
    assert name == "answerer_0" and len(writers) == len(document.pages)
    for i, (writer, messages) in enumerate(writers):
        text = messages[-1]["content"]
        assert writer == "writer_0" and document.question not in str(messages) and len(messages) == 2
        assert text.startswith("kept \n") is bool(i) and document.text(*document.page(i)) in text
    assert asked[-1]["content"] == f"{document.question}\nkept " and len(asked) == 2
    assert not any(turn.sees for turn in env.episode.turns)
    metrics = env.episode.metrics
    assert metrics["written"] == sum(turn.processed for turn in env.episode.turns[:-1]) > metrics["recalled"] > 0


def test_a_note_without_a_box_is_lost() -> None:
    env = marft_envs.make("docs-recall-v0", kinds="total", level=0, lengths=1)
    env.reset(seed=0)
    env.step("I keep nothing.")
    assert env.last()[0]["messages"][-1]["content"] == env.task.problem.text(*env.task.problem.page(1))


def rows(folder: Path) -> Path:
    """A set of two scenarios in the published form."""
    data = folder / "bfcl_eval" / "data"
    for name in ("possible_answer", "memory_prereq_conversation"):
        (data / name).mkdir(parents=True)
    turn = [[{"role": "user", "content": "I am Michael."}], [{"role": "user", "content": "I live in Lima."}]]
    talk = [{"id": f"p{i}", "scenario": "shop", "question": turn} for i in range(3)]
    asked = [[{"role": "user", "content": "Who am I?"}]]
    questions = [{"id": f"memory_{i}", "scenario": "shop", "question": asked} for i in range(6)]
    golds = [{"id": f"memory_{i}", "ground_truth": ["Michael", "Mike"]} for i in range(6)]
    for file, lines in (
        ("memory_prereq_conversation/memory_shop.json", talk),
        ("BFCL_v4_memory.json", questions),
        ("possible_answer/BFCL_v4_memory.json", golds),
    ):
        (data / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return data


def test_sessions_are_pages_and_an_answer_counts_wherever_it_stands(tmp_path: Path) -> None:
    data = rows(tmp_path)
    env = marft_envs.make("docs-recall-v0", data=str(tmp_path), window=0)
    assert (
        len(env.task.problems) == 4
        and len(marft_envs.make("docs-recall-v0", data=str(data), split="test").task.problems) == 2
    )
    for reply, counts in (("You are Mike, surely.", True), ("You are Mikey.", False), ("michael", True)):
        env.reset(seed=0)
        for _ in range(3):
            assert env.last()[0]["messages"][-1]["content"].endswith("I am Michael.\nI live in Lima.")
            env.step(r"\boxed{Michael}")
        env.step(reply)
        assert env.done and env.episode.success is counts
    (data / "possible_answer" / "BFCL_v4_memory.json").write_text('{"id": "memory_9", "ground_truth": ["Mike"]}\n')
    with pytest.raises(DataError, match="'memory_0' has no conversation, or no answer"):
        marft_envs.make("docs-recall-v0", data=str(tmp_path))


def test_bad_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="keeps a note of 1 or more"):
        marft_envs.make("docs-chain-v0", note_chars=5)
    with pytest.raises(ConfigError, match="keeps a note of 1 or more"):
        marft_envs.make("docs-recall-v0", note_chars=0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install --no-deps bfcl-eval"):
        marft_envs.make("docs-recall-v0", data="bfcl-memory")
