"""The defects of ``python -m benchmarks mutations`` can be put in: each row's line and test are there."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from benchmarks.correctness.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("row", MUTATIONS, ids=lambda row: row.row)
def test_a_defect_can_be_put_in(row: Mutation) -> None:
    source = (ROOT / row.file).read_text(encoding="utf-8")
    assert source.count(row.old) == 1, f"'{row.old}' occurs {source.count(row.old)} times in {row.file}"
    ast.parse(source.replace(row.old, row.new))
    path, _, test = row.test.partition("::")
    tests = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8")).body
    assert test in {node.name for node in tests if isinstance(node, ast.FunctionDef)}


def test_no_row_is_there_twice_and_the_page_says_how_many_there_are() -> None:
    assert max(Counter((row.file, row.old, row.new) for row in MUTATIONS).values()) == 1
    page = " ".join((ROOT / "docs/results.md").read_text(encoding="utf-8").split())
    n = len(MUTATIONS)
    assert f"mutations` puts {n} defects," in page and f"All {n} are caught." in page
