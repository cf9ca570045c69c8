"""Loading mathematics problems: hub schemas, local files, selection, and what goes wrong."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marft_envs.errors import DataError, MissingExtraError
from marft_envs.families.math import data, hub
from marft_envs.families.math.hub import HUB, last_boxed, rows_to_problems

# One invented row in the schema of each hub set, and what it must become: (statement, answer, subject, level).
ROWS: dict[str, tuple[dict[str, Any], tuple[str, str, str, int | None]]] = {
    "math": (
        {"problem": "What is $1+1$?", "level": "Level 3", "type": "Prealgebra",
         "solution": r"First \boxed{9}, no: $\boxed{\frac{4}{2}}$."},
        ("What is $1+1$?", r"\frac{4}{2}", "Prealgebra", 3),
    ),
    "math500": (
        {"problem": "What is $2+2$?", "solution": r"\boxed{4}", "answer": "4", "subject": "Algebra", "level": 2,
         "unique_id": "test/algebra/1.json"},
        ("What is $2+2$?", "4", "Algebra", 2),
    ),
    "gsm8k": (
        {"question": "Ann has 500 and gets 600.", "answer": "500+600=<<500+600=1100>>1100\n#### 1,100"},
        ("Ann has 500 and gets 600.", "1100", "Grade School", None),
    ),
    "aime24": (
        {"id": 60, "problem": "Find $n$.", "solution": "It is 33.", "answer": "033", "url": "https://example.org",
         "year": "2024"},
        ("Find $n$.", "33", "AIME", None),
    ),
    "aime25": ({"problem": "Find $m$.", "answer": "70", "id": "0"}, ("Find $m$.", "70", "AIME", None)),
    "amc23": (
        {"id": 0, "question": "How far?", "answer": 27.0, "url": "https://example.org"},
        ("How far?", "27", "AMC", None),
    ),
    "olympiadbench": (
        {"id": 1606, "question": "Find all $x$.", "solution": ["One way.", "Another way."],
         "final_answer": ["$2$", "$-2$"], "context": None, "modality": "Text-only", "difficulty": "Competition",
         "is_multiple_answer": True, "unit": None, "answer_type": "Numerical", "error": None,
         "question_type": "Open-ended", "subfield": "Algebra", "subject": "Math", "language": "English"},
        ("Find all $x$.", "2, -2", "Algebra", None),
    ),
    "cmath": (
        {"grade": 4, "question": "小明有3个苹果，又买了4个。", "golden": "7", "reasoning_step": 1, "num_digits": 1},
        ("小明有3个苹果，又买了4个。", "7", "Elementary (zh)", 4),
    ),
    "gaokao": (
        {"question": "Evaluate it.", "answer": r"$\frac{\pi}{6}$", "source": "gaokao", "lang": "en"},
        ("Evaluate it.", r"\frac{\pi}{6}", "Gaokao", None),
    ),
    "svamp": (
        {"ID": "chal-1", "Body": "Each pack costs 76 dollars.", "Question": "How much is one after 25 off?",
         "Equation": "( 76.0 - 25.0 )", "Answer": "51.0", "Type": "Subtraction",
         "question_concat": "Each pack costs 76 dollars. How much is one after 25 off?"},
        ("Each pack costs 76 dollars. How much is one after 25 off?", "51", "Subtraction", None),
    ),
}  # fmt: skip


def test_every_hub_set_has_a_row_here() -> None:
    assert set(ROWS) == set(HUB)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_row_in_the_hub_schema_becomes_a_problem(name: str) -> None:
    row, expected = ROWS[name]
    (problem,) = rows_to_problems(name, [row])
    assert (problem.problem, problem.answer, problem.subject, problem.level) == expected
    assert problem.source == name and problem.id.startswith(f"{name}/test/")


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_row_without_gold_or_column_is_refused_by_number(name: str) -> None:
    row, _ = ROWS[name]
    column = HUB[name].columns.answer
    for empty in ("", "  "):
        with pytest.raises(DataError, match=r"row 1.*no gold answer"):
            rows_to_problems(name, [row, {**row, column: empty}])
    with pytest.raises(DataError, match=f"row 0.*no column '{column}'"):
        rows_to_problems(name, [{key: row[key] for key in row if key != column}])


def test_load_asks_the_hub_for_the_right_set_config_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the 'data' extra is not installed")
    asked: list[tuple[str, str | None, str]] = []
    names = {known.hub_id: name for name, known in HUB.items()}

    def load_dataset(hub_id: str, config: str | None, *, split: str) -> Any:
        asked.append((hub_id, config, split))
        return datasets.Dataset.from_list([ROWS[names[hub_id]][0]])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for name in HUB:
        loaded = data.load(name, split="test")
        assert len(loaded) == len(HUB[name].configs)
        assert loaded[0].answer == ROWS[name][1][1]
    assert ("openai/gsm8k", "main", "test") in asked
    assert ("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train") in asked
    assert sum(hub_id == "EleutherAI/hendrycks_math" for hub_id, _, _ in asked) == 7
    assert data.load("openai/gsm8k", split="train")[0].id == "gsm8k/train/0"
    with pytest.raises(DataError, match=r"'math500' has no split 'train'\. It has: test"):
        data.load("math500", split="train")


def test_an_unreachable_hub_names_the_three_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the 'data' extra is not installed")

    def load_dataset(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError) as caught:
        data.load("gsm8k")
    for way in ("online", "JSONL", "procedural"):
        assert way in str(caught.value)


def test_without_datasets_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[data\]'"):
        data.load("gsm8k")


def test_importing_the_loader_stays_light() -> None:
    code = (
        "import sys, marft_envs.families.math.data as d; d.load('procedural', levels=0);"
        "print([m for m in ('datasets', 'torch', 'transformers', 'sympy', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _write(path: Path, *rows: Mapping[str, Any] | str) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return path


def test_a_local_file_needs_only_problem_and_answer(tmp_path: Path) -> None:
    path = _write(tmp_path / "mine.jsonl", {"problem": "What is $1+1$?", "answer": 2}, "", {
        "problem": "Half of 1?", "answer": 0.5, "id": "own", "level": "Level 4", "subject": "Algebra",
    }, {"question": "Raw?", "answer": "Steps.\n#### 1,080"},
       {"problem": "Renamed?", "answer": "Steps.\n#### 72"})  # fmt: skip
    loaded = data.load(path, split="test")
    assert [p.id for p in loaded] == ["mine/1", "own", "mine/4", "mine/5"]
    assert [p.answer for p in loaded] == ["2", "0.5", "1080", "72"]
    assert loaded[2].solution == "Steps.\n#### 1,080" and loaded[1].level == 4 and loaded[0].level is None
    assert loaded[0].source == "mine"


@pytest.mark.parametrize(("row", "message"), [
    ({"problem": "No gold?", "answer": ""}, "line 2: no gold answer"),
    ({"problem": "No gold?", "answer": None}, "line 2: no gold answer"),
    ({"problem": "No gold?"}, "line 2: no column 'answer'"),
    ({"question": "No number?", "answer": "Steps.\n#### "}, "line 2: no gold answer"),
    ({"problem": " ", "answer": "1"}, "line 2: the problem is empty"),
    ({"answer": "1"}, "line 2: no column 'problem'"),
    ({"problem": "How hard?", "answer": "1", "level": "hard"}, "line 2: level is 'hard'"),
    ("{not json", "line 2: not JSON"), ("[1, 2]", "line 2: expected a JSON object"),
])  # fmt: skip
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, row: dict[str, Any] | str, message: str) -> None:
    path = _write(tmp_path / "bad.jsonl", {"problem": "Fine?", "answer": "1"}, row)
    with pytest.raises(DataError, match=f"bad.jsonl, {message}"):
        data.load(path)


def test_empty_binary_and_repeated_files_are_refused_and_edits_are_seen(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="holds no rows"):
        data.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        data.load(path)
    _write(path, {"problem": "?", "answer": "1", "id": "x"}, {"problem": "!", "answer": "1", "id": "x"})
    with pytest.raises(DataError, match="the id 'x' twice"):
        data.load(path)
    _write(path, {"problem": "?", "answer": "1", "id": "x"})
    assert len(data.load(path)) == 1


def test_unknown_names_splits_and_conditions_name_the_nearest_word() -> None:
    with pytest.raises(DataError, match="Did you mean 'gsm8k'"):
        data.load("gsm8")
    with pytest.raises(DataError, match="Did you mean 'Algebra'"):
        data.load("procedural", subjects="algebra", levels=1)
    with pytest.raises(DataError, match="no problem of levels"):
        data.load("procedural", levels=[7])
    with pytest.raises(DataError, match="limit is 0"):
        data.load("procedural", levels=0, limit=0)
    with pytest.raises(DataError, match="meets all the conditions"):
        data.load("procedural", levels=0, filter=lambda p: False)


def test_the_procedural_set_is_selected_drawn_and_found_again() -> None:
    train, test = data.load("procedural", levels=0), data.load("procedural", split="test", levels=(0,))
    assert len(train) + len(test) == 2640
    assert not {p.problem for p in train} & {p.problem for p in test}
    drawn = [test.draw(np.random.default_rng(seed)) for seed in range(20)]
    assert drawn == [test.draw(np.random.default_rng(seed)) for seed in range(20)]
    assert len(set(drawn)) > 10 and set(drawn) <= set(test)
    for problem in drawn:
        assert test.get(problem.id) == train.get(problem.id) == problem
    with pytest.raises(DataError, match="has no problem with the id 'gsm8k/1'"):
        test.get("gsm8k/1")
    few = data.load("procedural", levels=0, limit=10)
    assert len(few) == 10 and len(set(few)) == 10
    even = data.load("procedural", levels=0, filter=lambda p: int(p.answer) % 2 == 0)
    assert 0 < len(even) < len(train) and all(int(p.answer) % 2 == 0 for p in even)


def test_a_set_is_shared_by_forks_and_survives_pickling() -> None:
    loaded = data.load("procedural", levels=0)
    assert copy.deepcopy(loaded) is loaded
    assert list(pickle.loads(pickle.dumps(loaded))) == list(loaded)


def test_last_boxed_reads_nested_unclosed_and_braceless_boxes() -> None:
    assert last_boxed(r"\boxed{1} then \boxed{\sqrt{\frac{1}{2}}}.") == r"\sqrt{\frac{1}{2}}"
    assert last_boxed(r"so $x=\boxed 9$.") == "9"
    assert last_boxed(r"\fbox{3}") == "3"
    assert last_boxed(r"\boxed{3} and \boxed{4") == "3"
    assert last_boxed("nothing") == last_boxed(r"\boxedx{3}") == ""


def test_real_files_load(shared_data: Path) -> None:
    folder = shared_data / "math"
    sizes = {"gsm8k_train": 7473, "gsm8k_test": 1319, "svamp": 1000, "cmath_dev": 600}
    for name, size in sizes.items():
        loaded = data.load(folder / f"{name}.jsonl")
        assert len(loaded) == size and all(p.answer and p.problem for p in loaded)
    test = data.load(str(folder / "gsm8k_{split}.jsonl"), split="test")
    assert len(test) == 1319 and test.get("gsm8k/test/00000").answer == "18"
    assert hub.after_hashes(test[0].solution) == test[0].answer
    assert {p.level for p in data.load(folder / "cmath_dev.jsonl", levels=[1, 2])} == {1, 2}


@pytest.mark.parametrize(("row", "message"), [
    ('{"problem": "?", "answer": ' + "[" * 100_000 + "]" * 100_000 + "}", "line 2: nested too deeply"),
    ('{"problem": "?", "answer": "1", "x": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}", "line 2: nested"),
    ('{"problem": "?", "answer": ' + "9" * 5000 + "}", "line 2: not JSON"),
    ('{"problem": "?", "answer": NaN}', "line 2: 'answer' is nan; expected text or a finite number"),
    ('{"problem": "?", "answer": -Infinity}', "line 2: 'answer' is -inf"),
    ('{"problem": "?", "answer": 1e999}', "line 2: 'answer' is inf"),
    ({"problem": "?", "answer": True}, "line 2: 'answer' is True"),
    ({"problem": "?", "answer": [1, 2]}, "line 2: 'answer' is a list"),
    ({"problem": "?", "answer": {"value": 1}}, "line 2: 'answer' is an object"),
    ({"question": "?", "answer": ["#### 1"]}, "line 2: 'answer' is a list"),
    ({"problem": "?", "answer": "{}"}, "line 2: 'answer': the gold answer"),
    ({"problem": "?", "answer": "1" * 2001}, "line 2: the gold answer in 'answer' has 2,001 characters"),
    ({"problem": {"text": "?"}, "answer": "1"}, "line 2: 'problem' is an object; expected text"),
    ({"problem": ["?"], "answer": "1"}, "line 2: 'problem' is a list"),
    ({"problem": 7, "answer": "1"}, "line 2: 'problem' is 7"),
    ({"problem": "?", "answer": "1", "solution": {"a": 1}}, "line 2: 'solution' is an object"),
    ({"problem": "?", "answer": "1", "subject": ["Algebra"]}, "line 2: 'subject' is a list"),
    ({"problem": "?", "answer": "1", "level": "9" * 5000}, "line 2: level is '9999"),
    ({"problem": "?", "answer": "1", "level": int("9" * 4000)}, "line 2: level is a huge integer"),
    ({"problem": "?", "answer": "1", "level": True}, "line 2: level is True"),
    ({"problem": "?", "answer": "1", "level": {"a": 1}}, "line 2: level is an object"),
    ({"problem": "?", "answer": "1", "id": {"a": 1}}, "line 2: 'id' is an object"),
    ({"problem": "?", "answer": "1", "source": [1]}, "line 2: 'source' is a list"),
])  # fmt: skip
def test_a_hostile_row_is_named_by_file_line_and_field(tmp_path: Path, row: dict[str, Any] | str, message: str) -> None:
    path = _write(tmp_path / "bad.jsonl", {"problem": "Fine?", "answer": "1"}, row)
    with pytest.raises(DataError, match=f"bad.jsonl, {message}") as caught:
        data.load(path)
    assert len(str(caught.value)) < 500


def test_hub_rows_of_another_kind_are_refused_too() -> None:
    row = ROWS["svamp"][0]
    for column, value in (("Answer", float("nan")), ("Answer", [1]), ("Body", {"a": 1}), ("Equation", 3.5)):
        with pytest.raises(DataError, match=rf"row 1: '{column}' is"):
            rows_to_problems("svamp", [row, {**row, column: value}])
    math = ROWS["math"][0]
    with pytest.raises(DataError, match="row 0: 'solution' is a list"):
        rows_to_problems("math", [{**math, "solution": [1]}])


def test_zero_and_whole_floats_are_ids_and_levels(tmp_path: Path) -> None:
    rows = [{"id": number, "problem": "1+1?", "answer": "2", "level": 5.0} for number in (0, 1.0, 2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    problems = data.load(tmp_path / "rows.jsonl")
    assert [problem.id for problem in problems] == ["0", "1", "2"]
    assert {problem.level for problem in problems} == {5}


def test_a_key_that_stands_twice_is_refused_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "2+2?", "answer": "4", "answer": "5"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2: the key 'answer' stands twice"):
        data.load(path)
