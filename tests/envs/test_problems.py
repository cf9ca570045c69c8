"""Sets of problems are shared: many environments hold one, and equal conditions give the same."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marft_envs
from marft_envs import DataError
from marft_envs.families.code import data as code
from marft_envs.families.math import data as math
from marft_envs.problems import rows


@pytest.mark.parametrize("env_id", ["math-dual-v0", "code-dual-v0", "tools-dual-v0"])
def test_an_environment_more_costs_little_memory(env_id: str) -> None:
    """The first one makes the problems; thirty more must not make them again, nor an index over them."""
    marft_envs.make(env_id).close()
    gc.collect()
    tracemalloc.start()
    vec = marft_envs.make_vec(env_id, 30)
    each = tracemalloc.get_traced_memory()[0] / 30
    tracemalloc.stop()
    vec.close()
    assert each < 100_000, f"{each / 1000:.0f} KB an environment"


@pytest.mark.parametrize("loader", [math, code])
def test_equal_conditions_give_one_set_and_others_another(loader: object) -> None:
    load = loader.load  # type: ignore[attr-defined]
    one = load("procedural", levels=[0], limit=50)
    assert load("procedural", levels=(0,), limit=50) is one is load("procedural", levels=0, limit=50)
    assert len(load("procedural", levels=[0], limit=40)) == 40
    assert load("procedural", "test", levels=[0], limit=50)[0] != one[0]
    odd = load("procedural", levels=[0], filter=lambda p: p is one[1])
    assert list(odd) == [one[1]]


def test_a_file_that_was_edited_is_another_set(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"problem": "1+1", "answer": "2"}) + "\n")
    before = math.load(path)
    assert math.load(path) is before
    path.write_text(json.dumps({"problem": "1+2", "answer": "3 apples"}) + "\n")
    assert [p.problem for p in math.load(path)] == ["1+2"] and [p.problem for p in before] == ["1+1"]


def test_what_was_refused_once_is_refused_again() -> None:
    for _ in range(2):
        with pytest.raises(DataError, match="no problem of levels"):
            math.load("procedural", levels=[9])


# Files that are too large to be held by each process ------------------------------------------------


def math_rows(count: int) -> list[dict[str, Any]]:
    levels = [{"level": i % 3 + 1, "subject": f"part {i % 2}", "split": ("train", "test")[i % 2]} for i in range(count)]
    return [{"id": f"p{i}", "problem": f"What is {i} + é?", "answer": f"{i}", **more} for i, more in enumerate(levels)]


def code_rows(count: int) -> list[dict[str, Any]]:
    test = [{"kind": "call", "args": f"[{n}]", "expected": f"{n}"} for n in (1, 2, 3)]
    rows = [{"id": f"p{i}", "mode": "function", "prompt": f"Return {i}.", "entry_point": "f"} for i in range(count)]
    more = [{"tests": test, "difficulty": i % 3, "split": ("train", "test")[i % 2]} for i in range(count)]
    return [row | extra for row, extra in zip(rows, more, strict=True)]


@pytest.fixture(params=["math", "code"])
def both(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Path, Any]:
    """A family's ``load``, a file, and the set that holds all of it; from now on the file counts as large."""
    load = {"math": math.load, "code": code.load}[request.param]
    text = "".join(json.dumps(row) + "\n\n" for row in {"math": math_rows, "code": code_rows}[request.param](30))
    (tmp_path / "held.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    held = load(tmp_path / "held.jsonl", "all")
    monkeypatch.setattr(rows, "LARGE", 1)
    path = tmp_path / "large" / "held.jsonl"
    path.parent.mkdir()
    shutil.copy(tmp_path / "held.jsonl", path)
    return load, path, held


def test_problems_of_a_large_file_stay_in_it_and_are_the_same(both: tuple[Any, Path, Any]) -> None:
    load, path, held = both
    large = load(path, "all")
    assert isinstance(large._problems, rows.Lazy) and not isinstance(held._problems, rows.Lazy)
    assert list(large) == list(held) and large.get("p7") == held.get("p7") and large[-1] == held[-1]
    assert list(large[3:9:2]) == list(held[3:9:2])
    draws = [np.random.default_rng(3) for _ in range(2)]
    assert large.draw(draws[0]) == held.draw(draws[1])
    again = pickle.loads(pickle.dumps(large._problems))
    assert list(again) == list(held) and copy.deepcopy(large) is large
    assert load(path, "all") is large, "all environments share one"


def test_conditions_choose_from_a_large_file_as_from_any(both: tuple[Any, Path, Any]) -> None:
    load, path, held = both
    assert [p.id for p in load(path, "all", levels=1)] == [p.id for p in held if p.level == 1]
    assert [p.id for p in load(path, "all", filter=lambda p: p.id.endswith("5"))] == ["p5", "p15", "p25"]
    assert len(load(path, "all", limit=7)) == 7
    if load is code.load:
        assert [p.id for p in load(path, "test")] == [f"p{i}" for i in range(1, 30, 2)]
    with pytest.raises(DataError, match="no problem of levels"):
        load(path, "all", levels=9)
    with pytest.raises(DataError, match="has no problem with the id 'p99'"):
        load(path, "all").get("p99")


def test_a_large_file_that_changes_is_an_error_and_not_another_problem(both: tuple[Any, Path, Any]) -> None:
    load, path, _ = both
    large = load(path, "all")
    with path.open("ab") as file:
        file.write(b"\n")
    with pytest.raises(DataError, match="has changed since it was read"):
        large[0]
    with path.open("ab") as file:
        file.write(b"{nonsense\n")
    with pytest.raises(DataError, match=r"held\.jsonl, line 62: not JSON"):
        load(path, "all")
