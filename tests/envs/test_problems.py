"""Sets of problems are shared: many environments hold one, and equal conditions give the same."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import pytest

import marft_envs
from marft_envs import DataError
from marft_envs.code import data as code
from marft_envs.math import data as math


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
