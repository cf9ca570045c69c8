"""The figures of ``python -m benchmarks house``, on graphs and sources that can be counted by hand."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
from collections.abc import Iterable, Mapping

import pytest

from benchmarks.correctness import rooms

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


def test_a_cycle_is_as_many_floors_as_it_has_rooms() -> None:
    assert house.floors({"a": {"b"}, "b": {"c"}, "c": set()}) == 3
    assert house.floors({"a": {"b"}, "b": {"a", "c"}, "c": set()}) == 3
    assert house.floors({"a": {"c"}, "b": {"c"}, "c": set()}) == 2
    assert house.backward({"a": {"b"}, "b": {"a", "c"}, "c": set()}) == ["a -> b", "b -> a"]
    assert house.backward({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_each_family_is_a_room() -> None:
    arrows = {
        "marft_envs": {"marft_envs.core.env"},
        "marft_envs.families": set(),
        "marft_envs.families.docs": {"marft_envs.families.math.hub", "marft_envs.families.docs.task"},
        "marft_algos.types": {"marft_envs.errors", "marft_algos.ranges"},
    }
    assert house.rooms(arrows, "marft_envs") == {"families.docs": {"families.math"}}
    assert house.rooms(arrows, "marft_algos") == {"types": {"ranges"}}


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


def test_a_positional_boolean_is_annotated_so_or_has_such_a_default() -> None:
    source = "def f(a: bool, b=True, /, c: bool = False, d=0, e: bool | None = None, *, g: bool, h=False): ...\n"
    counted = house.positional_booleans({"m.py": ast.walk(ast.parse(source))})
    assert counted == [f"m.py:1 f({name})" for name in "abc"]
    imported = "import os, sys\nfrom a.b import c, d\ndef f():\n from a import b\n import os\n"
    assert house._imported(ast.walk(ast.parse(imported))) == {"os", "sys", "a.b", "a"}


def test_what_is_over_its_cap_is_named() -> None:
    assert house.larger({"files": 3}, {"files": 3, "gone": 2}) == []
    assert house.larger({"files": 4, "arrows": 1}, {"files": 3}) == ["files: 4, at most 3", "arrows: 1, at most 0"]


def test_no_figure_of_this_project_is_over_its_cap() -> None:
    pytest.importorskip("torch", reason="an iteration of the quickstart is walked, which needs torch (extra train)")
    today, caps = house.measure(), rooms.read_caps()
    assert today.keys() == caps.keys(), "every figure has a cap"
    assert today["files of an iteration"] > 40 and today["arrows of marft_algos"] > 40, today
    assert today["import cycles"] == 0, "no two modules import each other, inside functions neither"
    assert house.larger(today, caps) == [], "make it smaller (AGENTS.md, rule 2; python -m benchmarks house --names)"


def test_the_promise_imports_no_more_of_extras_than_its_cap_says() -> None:
    for name in rooms.EXTRA_NAMES:
        assert name in house.imports(), f"benchmarks/correctness/rooms.py: there is no {name}"
    planted = {"marft_algos.training.trainer": {"marft_algos.extras.view.api", "marft_algos.types"}}
    assert house.climbs(planted) == ["marft_algos.training.trainer imports marft_algos.extras.view.api"]
    assert house.climbs({"marft_algos.extras.view": {"marft_algos.extras.bench", "marft_algos.types"}}) == []
    assert not rooms.is_extra("marft_envs.families.tools.tau_else"), "a name that only begins like one of them"


def test_only_training_knows_both_learner_and_rollout() -> None:
    known = {module: {house._room(other, "marft_algos") for other in used} for module, used in house.imports().items()}
    both = {house._room(module, "marft_algos") for module, each in known.items() if {"learner", "rollout"} <= each}
    assert both == {"training"}


# A raise is a commit of its own ---------------------------------------------------------------------


def complaints(before: Mapping[str, int], after: Mapping[str, int], files: Iterable[str], message: str) -> list[str]:
    """What is wrong with a commit that changes the caps; a cap that goes is a raise, too."""
    if not (raised := [figure for figure, cap in before.items() if after.get(figure, cap + 1) > cap]):
        return []
    others = [name for name in files if name.endswith(".py")]
    wrong = [f"raises {raised}, and changes {others}: a raise is a commit of its own"] * bool(others)
    said = re.search(r"^In exchange: \S", message, re.MULTILINE)
    return wrong + [f"raises {raised}, and has no line 'In exchange: …': what went for it?"] * (not said)


@pytest.mark.parametrize(("after", "files", "message", "expected"), [
    ({"a": 3, "b": 2, "new": 9}, ["marft_envs/x.py", "caps.toml"], "Less", 0),
    ({"a": 5, "b": 2}, ["caps.toml", "docs/x.md"], "More\n\nIn exchange: two modules", 0),
    ({"a": 5, "b": 2}, ["caps.toml"], "More", 1),
    ({"a": 5, "b": 2}, ["caps.toml", "tests/x.py"], "More\n\nIn exchange: two modules", 1),
    ({"a": 4}, ["caps.toml", "marft_algos/x.py"], "One less to look at", 2),
])  # fmt: skip
def test_a_raise_is_noticed(after: dict[str, int], files: list[str], message: str, expected: int) -> None:
    assert len(complaints({"a": 4, "b": 2}, after, files, message)) == expected


def test_every_raise_in_the_history_is_a_commit_of_its_own() -> None:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=rooms.ROOT, capture_output=True, text=True, timeout=60).stdout

    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("no git checkout with its whole history")
    name = rooms.CAPS.relative_to(rooms.ROOT).as_posix()
    for commit in git("log", "--format=%H", "--no-merges", "--", name).split():
        before, after = (rooms.read_caps(git("show", f"{each}:{name}")) for each in (f"{commit}^", commit))
        files = git("show", "--name-only", "--format=", commit).splitlines()
        assert complaints(before, after, files, git("log", "-1", "--format=%B", commit)) == [], commit
