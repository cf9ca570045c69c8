"""The procedural problem set: reproducible, disjoint splits, varied and independently right answers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from marft_envs.errors import ConfigError, DataError
from marft_envs.math import procedural


def test_level_0_is_exactly_the_two_step_problems() -> None:
    expected = set()
    for a in range(1, 16):
        for b in range(1, 16):
            for c in range(2, 10):
                expected.add((rf"Compute $({a}+{b})\cdot {c}$.", f"{a}+{b}={a + b}, {a + b}*{c}={(a + b) * c}.", (a + b) * c))
                if a > b:
                    expected.add((rf"Compute $({a}-{b})\cdot {c}$.", f"{a}-{b}={a - b}, {a - b}*{c}={(a - b) * c}.", (a - b) * c))
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
    for wrong in ("procedural/two_step/0", "procedural/nothing/0/1", "procedural/two_step/3/1", "procedural/two_step/0/2640"):
        with pytest.raises(DataError):
            procedural.from_id(wrong)
