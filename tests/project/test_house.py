"""The figures of ``python -m benchmarks house``, on graphs and sources that can be counted by hand."""

from __future__ import annotations

import ast
import itertools

import pytest

house = pytest.importorskip("benchmarks.correctness.house", reason="grimp is not installed (extra dev)")


def test_cycles_are_the_sets_that_reach_each_other() -> None:
    nodes = "abcd"
    pairs = list(itertools.permutations(nodes, 2))
    for chosen in range(1 << len(pairs)):
        arrows: dict[str, set[str]] = {node: set() for node in nodes}
        for i, (a, b) in enumerate(pairs):
            if chosen >> i & 1:
                arrows[a].add(b)
        reach = {(a, b) for a, b in pairs if b in arrows[a]}
        for k, a, b in itertools.product(nodes, repeat=3):
            if (a, k) in reach and (k, b) in reach:
                reach.add((a, b))
        together = {frozenset([a, *(b for b in nodes if (a, b) in reach and (b, a) in reach)]) for a in nodes}
        assert {frozenset(each) for each in house.cycles(arrows)} == {each for each in together if len(each) > 1}


def test_a_cycle_is_one_floor() -> None:
    assert house.floors({"a": {"b"}, "b": {"c"}, "c": set()}) == 3
    assert house.floors({"a": {"b"}, "b": {"a", "c"}, "c": set()}) == 2
    assert house.floors({"a": {"c"}, "b": {"c"}, "c": set()}) == 2


def test_lines_of_code_leave_out_blanks_comments_and_docstrings() -> None:
    source = '"""A module."""\n\n# why\nx = 1  # one\n\ndef f():\n    """Says\n    what."""\n    return (\n        x\n    )\n'
    assert house._code(source) == 5


def test_a_field_is_annotated_assigned_or_a_property() -> None:
    source = (
        "class A:\n x: float\n def __init__(self):\n  self.y = 1\n"
        " @property\n def z(self) -> str: ...\n def w(self): ...\n"
    )
    [node] = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    assert house._fields(node) == {"x", "y", "z"}


def test_what_is_larger_than_stored_is_named() -> None:
    stored = {"files": 3, "lines": {"a": 5, "gone": 2}}
    assert house.grown({"files": 3, "lines": {"a": 5}}, stored) == []
    assert house.grown({"files": 4, "arrows": 1, "lines": {"a": 6, "b": 1}}, stored) == [
        "files: 4, stored 3",
        "arrows: 1, stored 0",
        "lines of a: 6, stored 5",
        "lines of b: 1, stored 0",
    ]


def test_this_project_is_no_larger_than_stored() -> None:
    pytest.importorskip("torch", reason="an iteration of the quickstart is walked, which needs torch (extra train)")
    today = house.measure()
    assert min(count for figure, count in today.items() if figure not in ("lines", "import cycles")) > 1, today
    assert today["import cycles"] == 0, "no two modules import each other, inside functions neither"
    assert house.grown(today, house.read_stored()) == [], "say why in the commit: python -m benchmarks house --write"
