"""Long documents from files and from rows in the formats of published sets."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from marft_envs import DataError
from marft_envs.errors import UnsolvedError
from marft_envs.families.docs import data, hub

ROWS: dict[str, tuple[dict[str, Any], str, str]] = {
    "hotpotqa": (
        {"id": "5a7a", "question": "Which river?", "answer": "Po", "type": "bridge", "level": "hard",
         "supporting_facts": {"title": ["A"], "sent_id": [0]},
         "context": {"title": ["A", "B"], "sentences": [["One. ", "Two."], ["Three."]]}},
        "A: One. Two.\nB: Three.", "Po",
    ),
    "musique": (
        {"id": "2hop__1", "question": "Who?", "answer": "Ann", "answer_aliases": ["Anna"], "answerable": True,
         "paragraphs": [{"idx": 0, "title": "T", "paragraph_text": "Text.", "is_supporting": True}]},
        "T: Text.", "Anna",
    ),
    "babilong-4k": (
        {"question": "Where is Mary?", "target": "office", "input": "Mary went.\nFiller."},
        "Mary went.\nFiller.", "office",
    ),
    "longbench-v2": (
        {"_id": "66f", "domain": "Code", "sub_domain": "x", "difficulty": "easy", "length": "short",
         "question": "Which?", "choice_A": "one", "choice_B": "two", "choice_C": "three", "choice_D": "four",
         "answer": "B", "context": "Long text."},
        "Long text.", "b",
    ),
    "infinitebench": (
        {"id": 3, "context": "The pass key is 71432.", "input": "What is the pass key?", "answer": ["71432"],
         "options": []},
        "The pass key is 71432.", "71432",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows_in_the_published_format(name: str) -> None:
    row, text, answer = ROWS[name]
    split = hub.HUB[name].splits["test"][0]
    (document,) = hub.rows_to_documents(name, [row], split, 100)
    assert document.text(0, len(document.entries)) == text and document.id.startswith(f"{name}/{split}/")
    assert marft_envs.families.docs.task.right(document, rf"\boxed{{{answer}}}")  # type: ignore[attr-defined]
    column = next(column for column in row if column in ("context", "input", "paragraphs"))
    with pytest.raises(DataError, match=rf"{hub.HUB[name].hub_id}.*row 0"):
        hub.rows_to_documents(name, [{k: v for k, v in row.items() if k != column}], split, 100)


def test_a_set_is_fetched_split_by_split_and_played(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(hub_id: str, config: str | None, *, split: str, **more: Any) -> list[dict[str, Any]]:
        asked.append((hub_id, config, split, *more))
        return [ROWS["infinitebench"][0]]

    fake = types.SimpleNamespace(load_dataset=load_dataset, Value=str, Sequence=lambda x: [x], Features=dict)
    monkeypatch.setitem(sys.modules, "datasets", fake)  # type: ignore[arg-type]
    env = marft_envs.make("docs-map-v0", data="infinitebench", split="test", kinds="kv_retrieval", readers=2)
    assert [a[2] for a in asked] == ["passkey", "number_string", "kv_retrieval"] and asked[0][3:] == ("features",)
    env.reset(seed=0)
    assert env.task.task_id == "infinitebench/kv_retrieval/3"
    with pytest.raises(UnsolvedError, match="not made here"):
        env.task.expert("mapper_0")
    with pytest.raises(DataError, match=r"no split 'train'\. It has: test"):
        marft_envs.make("docs-map-v0", data="infinitebench")


def test_unanswerable_rows_are_left_out() -> None:
    row = ROWS["musique"][0]
    assert not hub.rows_to_documents("musique", [row | {"answerable": False}], "validation", 100)


def test_files_are_read_paged_and_played(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    lines = "\n".join(f"Line {i} of the text." for i in range(40))
    rows = [
        {"document": lines, "question": "Which?", "answer": ["Forty", 40]},
        {"document": ["Part one.", "Part two."], "question": "What?", "answer": "two", "kind": "parts", "id": "second"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = marft_envs.make("docs-memory-v0", data=str(path), window=200)
    env.reset(seed=0, options={"task_id": "long/1"})
    first = env.task.problem
    assert (
        len(first.pages) == 10 == env.rules.max_rounds
        and max(len(first.text(*first.page(i))) for i in range(10)) <= 100
    )
    for _ in range(9):
        env.step("")
    env.step(r"\boxed{40}")
    assert env.episode.success and not env.episode.cuts
    assert data.load(str(path), "test", "parts")[0].id == "second"
    with pytest.raises(DataError, match=r"no document of the kinds \['part'\]"):
        data.load(str(path), "test", "part")


@pytest.mark.parametrize(("row", "message"), [
    ({"question": "Q", "answer": "a"}, "line 1: the document is None"),
    ({"document": "D", "question": " ", "answer": "a"}, "line 1: the question is"),
    ({"document": "D", "question": "Q", "answer": []}, "line 1: the answer is a list"),
    ({"document": "D", "question": "Q", "answer": "{x}"}, "cannot be given in a box"),
    ({"document": "D", "question": "Q", "answer": "."}, "cannot be given in a box"),
    ({"document": " \n", "question": "Q", "answer": "a"}, "line 1: The document is empty"),
    ({"document": ["D", 3], "question": "Q", "answer": "a"}, "expected text, or a list of texts"),
    ({"document": "D", "question": "Q", "answer": "a", "kind": 3}, "'kind' is 3"),
    ({"document": "D", "question": "Q", "answer": "a", "id": True}, "'id' is True"),
])  # fmt: skip
def test_bad_rows_name_file_line_and_field(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=message):
        data.load(str(path), "test")


def test_unknown_names_are_not_taken_for_files() -> None:
    with pytest.raises(DataError, match="Did you mean 'hotpotqa'"):
        data.load("hotpot_qa", "test")
