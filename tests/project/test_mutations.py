"""The defects of ``python -m benchmarks mutations`` can be planted: each row's place and test are there."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.correctness import mutations
from benchmarks.correctness.operators import LIST, ROOT, SEED, Defect, candidates, defects, planted

SOURCE = """
def f(a, b):
    if not a and b > 1:
        return max(a, b) - g(a, b)
    raise Error(a + b)
"""


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return {file: (ROOT / file).read_text(encoding="utf-8") for file in {row.file for row in defects()}}


@pytest.mark.parametrize("row", defects(), ids=lambda row: row.row)
def test_a_defect_has_one_place_and_leaves_a_file_that_can_be_read(row: Defect, sources: dict[str, str]) -> None:
    changed, line = planted(sources[row.file], row)
    ast.parse(changed)
    assert changed != sources[row.file] and row.old.strip().split("\n")[0] in sources[row.file].splitlines()[line - 1]
    if row.test:
        path, _, test = row.test.partition("::")
        tests = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8")).body
        assert test in {node.name for node in tests if isinstance(node, ast.FunctionDef)}


def test_no_row_is_there_twice_and_operators_made_most_of_them() -> None:
    rows = defects()
    assert max(Counter((row.file, row.scope, row.old, row.new) for row in rows).values()) == 1
    assert max(Counter(row.row for row in rows).values()) == 1
    made = Counter(row.operator for row in rows)
    assert made.total() - made["by hand"] >= 150 and len(made) == 8
    assert json.loads(LIST.read_text(encoding="utf-8"))["seed"] == SEED


def test_operators_change_what_they_are_named_for() -> None:
    found = {(row.operator, row.new) for row in candidates("f.py", SOURCE)}
    assert found == {
        ("dropped term", "if (b > 1):"), ("dropped term", "if (not a):"), ("dropped not", "if a and b > 1:"),
        ("comparison", "if not a and b >= 1:"), ("off by one", "if not a and b > 2:"),
        ("sign", "return max(a, b) + g(a, b)"), ("dropped term", "return max(a, b)"),
        ("min for max", "return min(a, b) - g(a, b)"), ("swapped arguments", "return max(a, b) - g(b, a)"),
    }  # fmt: skip


def test_a_place_that_is_not_one_place_is_refused() -> None:
    with pytest.raises(LookupError, match=r"'a' stands 6 times in f of f.py; expected: once"):
        planted("def g():\n    a\n" + "def f(a):\n    a + a\n    a + a, a\n", Defect("", "f.py", "f", "a", "b"))
    assert planted("def g():\n    a\ndef f():\n    a\n", Defect("", "f.py", "f", "a", "b")) == (
        "def g():\n    a\ndef f():\n    b\n",
        4,
    )


def test_the_fastest_tests_come_first_and_whole_files_after_them() -> None:
    seconds = {"tests/a.py::x": 1.0, "tests/b.py::y": 0.5, "tests/a.py::z": mutations.FIRST_S}
    first, files = mutations.reaching(seconds)
    assert first == (mutations.FIRST_S, ["tests/b.py::y", "tests/a.py::x"])
    assert files == (mutations.FIRST_S + 1.5, ["tests/b.py", "tests/a.py"])
    assert list(mutations.reaching({})) == []


def test_a_probe_stands_in_front_of_the_statement_of_its_line() -> None:
    tree = ast.parse("def f():\n    if a:\n        b\n    elif (\n        c\n    ):\n        d\n")
    found = {line: mutations.statement(tree, line) for line in (2, 3, 5, 7)}
    assert {line: block[at].lineno for line, (block, at) in found.items()} == {2: 2, 3: 3, 5: 4, 7: 7}


def test_a_defect_is_planted_and_taken_out_and_what_cannot_be_collected_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect, file = Defect("", "f.py", "f", "a", "b"), tmp_path / "f.py"
    file.write_text("def f():\n    a\n")
    asked = list[list[str]]()

    def run(folder: Path, arguments: list[str], limit: float) -> tuple[int, str]:
        assert folder == tmp_path and file.read_text() == "def f():\n    b\n" and limit > 60
        asked.append(arguments[1:])
        if "tests/x.py::one" in arguments:
            return 2, "ERROR tests/x.py - NameError: b\n"
        return (1, "FAILED tests/y.py::two[3] - assert 1 == 2\n") if "tests/y.py::two" in arguments else (0, "")

    monkeypatch.setattr(mutations, "run", run)
    plan = [(1.0, ["tests/z.py::none"]), (2.0, ["tests/x.py::one", "tests/y.py::two"])]
    assert mutations.attempt(tmp_path, defect, plan) == "tests/y.py::two[3]"
    assert asked == [["tests/z.py::none"], ["tests/x.py::one", "tests/y.py::two"], ["tests/y.py::two"]]
    assert mutations.attempt(tmp_path, defect, plan[:1]) == "" and file.read_text() == "def f():\n    a\n"


def test_the_page_says_how_many_there_are_and_how_many_are_noticed() -> None:
    page = " ".join((ROOT / "docs/results.md").read_text(encoding="utf-8").split())
    rows, found = defects(), mutations.stored()
    assert found.keys() <= {row.row for row in rows if not row.equivalent} and all(found.values())
    hand, same = sum(bool(row.test) for row in rows), sum(bool(row.equivalent) for row in rows)
    assert f"plants {len(rows)} defects" in page and f"time: {hand} made by hand" in page
    assert f"and {len(rows) - hand} that operators made" in page and f"{same} of them change nothing" in page
    assert f"Of the other {len(rows) - same} the fast suite notices {len(found)}." in page
