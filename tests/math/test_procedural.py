"""The procedural problem set: reproducible, disjoint splits, varied and independently right answers."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from marft_envs.errors import ConfigError, DataError
from marft_envs.families.math import procedural


def test_level_0_is_exactly_the_two_step_problems() -> None:
    expected = set()
    for a in range(1, 16):
        for b in range(1, 16):
            for c in range(2, 10):
                expected.add(
                    (rf"Compute $({a}+{b})\cdot {c}$.", f"{a}+{b}={a + b}, {a + b}*{c}={(a + b) * c}.", (a + b) * c)
                )
                if a > b:
                    expected.add(
                        (rf"Compute $({a}-{b})\cdot {c}$.", f"{a}-{b}={a - b}, {a - b}*{c}={(a - b) * c}.", (a - b) * c)
                    )
    both = procedural.enumerate_level0()
    assert {(p.problem, p.solution, p.answer) for p in both} == {
        (text, rf"{steps} \boxed{{{value}}}", str(value)) for text, steps, value in expected
    }
    assert len(both) == len(expected) == 2640
    train, test = procedural.enumerate_level0("train"), procedural.enumerate_level0("test")
    assert not {p.problem for p in train} & {p.problem for p in test}
    assert len(train) + len(test) == 2640 and len(test) >= 500
    assert all(p.level == 0 and p.subject == "Prealgebra" for p in both)


def test_generate_is_a_function_of_the_generator_and_an_id_regenerates_the_problem() -> None:
    for split in ("train", "test"):
        drawn = [procedural.generate(np.random.default_rng(seed), level=None, split=split) for seed in range(50)]
        again = [procedural.generate(np.random.default_rng(seed), level=None, split=split) for seed in range(50)]
        assert drawn == again
        assert drawn == [procedural.from_id(p.id) for p in drawn]
        assert {procedural.split_of(p.problem) for p in drawn} == {split}


def test_errors_name_the_nearest_word() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError, match="Did you mean 'two_step'"):
        procedural.generate(rng, generator="two_stp")
    with pytest.raises(ConfigError, match="Did you mean 'Geometry'"):
        procedural.generate(rng, level=1, subject="geometry")
    with pytest.raises(ConfigError, match=re.escape("levels [0]")):
        procedural.generate(rng, level=9, generator="two_step")
    with pytest.raises(ConfigError, match="Did you mean 'test'"):
        procedural.generate(rng, split="tests")
    for wrong in (
        "procedural/two_step/0",
        "procedural/nothing/0/1",
        "procedural/two_step/3/1",
        "procedural/two_step/0/2640",
    ):
        with pytest.raises(DataError):
            procedural.from_id(wrong)


def test_every_subject_has_every_level() -> None:
    cells = procedural.variants()
    assert len(procedural.GENERATORS) >= 12 and len(cells) == len(set(cells))
    for subject in procedural.SUBJECTS:
        assert {level for _, level in procedural.variants(subject=subject)} >= {1, 2, 3, 4, 5}
    assert procedural.variants(level=0) == [("two_step", 0)]


@pytest.mark.parametrize(("name", "level"), procedural.variants())
def test_a_variant_is_large_varied_and_well_formed(name: str, level: int) -> None:
    problems = procedural.listed(name, level)
    assert len(problems) >= 500
    assert len({p.problem for p in problems}) == len({p.id for p in problems}) == len(problems)
    assert Counter(p.answer for p in problems).most_common(1)[0][1] <= 0.1 * len(problems)
    tests = sum(procedural.split_of(p.problem) == "test" for p in problems)
    assert 0.17 <= tests / len(problems) <= 0.33  # 1/4, within 4.5 standard deviations of 600 draws
    for p in problems:
        assert p.solution.endswith(rf"\boxed{{{p.answer}}}") and p.answer == p.answer.strip() != ""
        for text in (p.problem, p.solution):
            assert text.count("{") == text.count("}") and text.count("$") % 2 == 0
            assert not re.search(r"[+-][+-]|(?<!\d)[10][xyzi]|\{\}", text), text  # no +-3, 1x, 0x


def _digest() -> str:
    """A few problems of every variant, hashed."""
    problems = [procedural.build(name, level, key) for name, level in procedural.variants() for key in (0, 1, 599)]
    texts = [repr(problem).replace("MathProblem(", "Problem(", 1) for problem in problems]  # the class's name of then
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def test_problems_are_the_same_in_every_process_version_and_release() -> None:
    # Ids name problems for ever. A change of this number is a change of the data set: give generators new names.
    assert _digest() == "753eafaa07a0d8d9"
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_procedural as t; print(t._digest())"
    done = subprocess.run([
        sys.executable, "-c", code, str(Path(__file__).parent),
    ], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})  # fmt: skip
    assert done.stdout.strip() == _digest()
