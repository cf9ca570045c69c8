"""The defects of ``python -m benchmarks mutations`` can be planted: each row's place and test are there."""

from __future__ import annotations

import ast
import json
from collections import Counter

import pytest

from benchmarks.correctness import operators
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
        ("dropped term", "if (b > 1):"),
        ("dropped term", "if (not a):"),
        ("dropped not", "if a and b > 1:"),
        ("comparison", "if not a and b >= 1:"),
        ("off by one", "if not a and b > 2:"),
        ("sign", "return max(a, b) + g(a, b)"),
        ("dropped term", "return max(a, b)"),
        ("min for max", "return min(a, b) - g(a, b)"),
        ("swapped arguments", "return max(a, b) - g(b, a)"),
    }


def test_a_place_that_is_not_one_place_is_refused() -> None:
    with pytest.raises(LookupError, match=r"'a' stands 6 times in f of f.py; expected: once"):
        planted("def g():\n    a\n" + "def f(a):\n    a + a\n    a + a, a\n", Defect("", "f.py", "f", "a", "b"))
    assert planted("def g():\n    a\ndef f():\n    a\n", Defect("", "f.py", "f", "a", "b")) == (
        "def g():\n    a\ndef f():\n    b\n",
        4,
    )


def test_the_page_says_how_many_there_are() -> None:
    page = " ".join((ROOT / "docs/results.md").read_text(encoding="utf-8").split())
    n = sum(1 for row in operators.defects() if row.test)
    assert f"mutations` puts {n} defects," in page and f"All {n} are caught." in page
