"""Procedural programming problems: golds score 1, mutants less; ids, splits, counts."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from marft_envs.errors import ConfigError, DataError
from marft_envs.families.code import data, procedural
from marft_envs.families.code.judge import Judge
from marft_envs.families.code.problem import CodeProblem
from marft_envs.families.code.procedural import enumerate_level0, from_id, listed, mutants, split_of, variants
from marft_envs.families.code.procedural.base import VARIANTS
from marft_envs.sandbox import Limits, Sandbox, SandboxUnavailable

HIGHER = [cell for cell in variants() if cell[2] > 0]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    try:
        sandbox = Sandbox("auto")
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    with sandbox:
        yield Judge(sandbox, Limits())


def hidden_share(judge: Judge, problem: CodeProblem, program: str) -> float:
    results = judge.run(problem, program, problem.hidden)
    return sum(result.verdict == "passed" for result in results) / len(results)


def test_there_are_at_least_twenty_generators_over_both_modes_and_all_levels() -> None:
    assert len(procedural.GENERATORS) >= 40
    both = {name for name, mode, _ in VARIANTS if mode == "stdio"}
    assert len(both) >= 20
    assert {level for _, _, level in VARIANTS} == {0, 1, 2, 3, 4}


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["function", "stdio"])
def test_golds_of_every_variant_pass_all_their_tests_in_the_sandbox(judge: Judge, mode: str) -> None:
    for name, how, level in HIGHER:
        if how != mode:
            continue
        for key in (0, 11) if mode == "function" else (5,):
            problem = procedural.build(name, how, level, key)
            verdicts = [r.verdict for r in judge.run(problem, problem.solution, problem.public + problem.hidden)]
            assert set(verdicts) == {"passed"}, (problem.id, verdicts)


def test_golds_of_level_0_pass_all_their_tests_in_the_sandbox(judge: Judge) -> None:
    for problem in enumerate_level0()[::12]:
        results = judge.run(problem, problem.solution, problem.public + problem.hidden)
        assert {r.verdict for r in results} == {"passed"}, problem.id


def test_an_empty_program_scores_nothing(judge: Judge) -> None:
    for problem in (from_id("procedural/linear/function/0/7"), from_id("procedural/robot/stdio/2/3")):
        assert hidden_share(judge, problem, "") == 0.0


@pytest.mark.ci
def test_three_mutants_of_every_variant_score_below_one(judge: Judge) -> None:
    for name, mode, level in variants(mode="function"):
        problem = procedural.build(name, mode, level, 21 if level else 2)
        wrong = mutants(problem)
        assert len(wrong) >= 3 and problem.solution not in wrong
        for program in wrong:
            assert hidden_share(judge, problem, program) < 1.0, (problem.id, program)


def test_mutants_are_programs_of_the_mode(judge: Judge) -> None:
    problem = from_id("procedural/count_if/stdio/1/4")
    for program in mutants(problem)[:3]:
        ast.parse(program)
        assert 0.0 <= hidden_share(judge, problem, program) < 1.0


def test_every_problem_has_two_public_and_six_hidden_tests_that_share_no_input() -> None:
    problems = [procedural.build(*cell, key) for cell in HIGHER for key in range(3)] + enumerate_level0()
    for problem in problems:
        assert len(problem.public) == 2 and len(problem.hidden) >= 6, problem.id
        inputs = [test.input for test in problem.public + problem.hidden]
        assert len(set(inputs)) == len(inputs), problem.id


def test_an_id_regenerates_the_same_problem_in_another_process() -> None:
    ids = ["procedural/larger/function/0/77", "procedural/regions/function/4/12345", "procedural/robot/stdio/3/9"]
    script = (
        "import hashlib; from marft_envs.families.code.procedural import from_id\n"
        f"print(hashlib.sha256(repr([from_id(i) for i in {ids!r}]).encode()).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    problems = [from_id(i) for i in ids]
    assert [p.id for p in problems] == ids
    assert hashlib.sha256(repr(problems).encode()).hexdigest() == other


def test_every_version_writes_the_same_problems() -> None:
    problems = [procedural.build(*cell, key) for cell in HIGHER for key in range(3)] + enumerate_level0()
    fields = repr([dataclasses.astuple(problem) for problem in problems])
    assert hashlib.sha256(fields.encode()).hexdigest()[:16] == "ef74e97ec92201f2"


@pytest.mark.parametrize(("bad", "says"), [
    ("procedural/linear/0/7", "procedural/<generator>/<mode>"),
    ("procedural/linaer/function/0/7", "Did you mean 'linear'"),
    ("procedural/linear/function/0/999999", "keys below 306"), ("procedural/linear/stdio/0/7", "out of range"),
])  # fmt: skip
def test_a_wrong_id_says_what_there_is(bad: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        from_id(bad)


def test_level_0_is_an_enumerable_space_of_short_problems() -> None:
    problems = enumerate_level0()
    assert len(problems) == 3116 == len({p.id for p in problems})
    assert len({(p.prompt, p.solution) for p in problems}) == len(problems)
    for problem in problems:
        assert len(problem.prompt) <= 60 and len(problem.solution) <= 60
        assert problem.solution.startswith(problem.starter_code + "\n    return ")
        assert max(len(test.input) + len(test.expected) for test in problem.public) <= 60


def test_level_0_splits_are_disjoint_and_balanced_over_families() -> None:
    train, test = enumerate_level0("train"), enumerate_level0("test")
    assert len(train) + len(test) == 3116 and len(test) >= 600
    assert not {p.prompt for p in train} & {p.prompt for p in test}
    shares = Counter(p.id.split("/")[1] for p in test)
    for name in {p.id.split("/")[1] for p in train}:
        assert 0.15 <= shares[name] / VARIANTS[name, "function", 0].keys <= 0.35, name


def test_level_0_tests_settle_what_the_words_leave_open() -> None:
    by_prompt: dict[str, list[CodeProblem]] = {}
    for problem in enumerate_level0():
        by_prompt.setdefault(problem.prompt, []).append(problem)
    shared = [problems for problems in by_prompt.values() if len(problems) > 1]
    assert len(shared) >= 40
    for problems in shared:  # a program right for one meaning fails a public test of the other
        tests = [{(t.input, t.expected) for t in p.public} for p in problems]
        assert len({frozenset(t) for t in tests}) == len(problems), problems[0].prompt


def test_no_two_level_0_problems_that_differ_in_tests_share_all_hidden_ones() -> None:
    for name in {p.id.split("/")[1] for p in enumerate_level0()}:
        seen: dict[object, str] = {}
        for problem in listed(name, "function", 0):
            seen.setdefault((problem.prompt, problem.hidden), problem.id)
        assert len(seen) == VARIANTS[name, "function", 0].keys


def test_listed_problems_are_distinct_and_splits_agree_over_modes() -> None:
    for name, mode, level in [("count_if", "stdio", 1), ("shift", "function", 3), ("coins", "stdio", 3)]:
        problems = listed(name, mode, level)
        assert len({p.prompt for p in problems}) == len(problems) >= 100
        other = listed(name, "function" if mode == "stdio" else "stdio", level)
        assert [split_of(p) for p in problems] == [split_of(p) for p in other]


def test_generate_draws_from_the_split_and_variant_asked_for() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        problem = procedural.generate(rng, level=2, mode="stdio", split="test")
        assert (problem.level, problem.mode, split_of(problem)) == (2, "stdio", "test")
    with pytest.raises(ConfigError, match="Did you mean 'count_if'"):
        procedural.generate(rng, generator="count-if")
    with pytest.raises(ConfigError, match="no split 'tset'"):
        procedural.enumerate_level0("tset")


def test_load_selects_levels_and_tags() -> None:
    problems = data.load("procedural", "test", levels=0)
    assert len(problems) == len(enumerate_level0("test"))
    assert problems.get("procedural/robot/stdio/2/3").mode == "stdio"  # any procedural id is regenerated
    some = data.load("procedural", levels=0, tags="branch", limit=10)
    assert len(some) == 10 and {p.id.split("/")[1] for p in some} == {"branch"}
    with pytest.raises(DataError, match="the tag 'brnch'"):
        data.load("procedural", levels=0, tags="brnch")
