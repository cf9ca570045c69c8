"""Loading programming problems: hub schemas, local files, public and hidden tests, and what goes wrong."""

from __future__ import annotations

import base64
import copy
import json
import logging
import pickle
import subprocess
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marft_envs.errors import DataError, MissingExtraError
from marft_envs.families.code import data, hub
from marft_envs.families.code.hub import HUB, last_tally, rows_to_problems
from marft_envs.families.code.hub_rows import MAX_STDIO_TESTS, MAX_TEST, Refused, unpack
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.families.code.schema import content_key, split_tests

ROW: dict[str, Any] = {
    "id": "own/1", "mode": "function", "prompt": "Double a.", "entry_point": "f",
    "tests": [{"kind": "call", "args": f"[{a}]", "expected": str(2 * a)} for a in range(6)],
}  # fmt: skip


def every_test(problem: CodeProblem) -> list[Test]:
    return [*problem.public, *problem.hidden]


def pairs(problem: CodeProblem) -> set[tuple[str, str]]:
    return {(test.input, test.expected) for test in every_test(problem)}


def write(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def packed(cases: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


# --- real files -------------------------------------------------------------------------------------------------------


def test_both_real_files_load_completely(shared_data: Path) -> None:
    humaneval = data.load(shared_data / "code" / "humaneval.jsonl", "all")
    mbpp = data.load(shared_data / "code" / "mbpp.jsonl", "all")
    assert (len(humaneval), len(mbpp)) == (164, 974)
    kinds = [test.kind for problem in mbpp for test in every_test(problem)]
    assert (kinds.count("call"), kinds.count("expr")) == (2917, 21)
    assert sum(len(every_test(problem)) for problem in humaneval) == 1570
    assert all(problem.solution and problem.hidden and len(problem.public) <= 2 for problem in [*humaneval, *mbpp])
    assert "Node(1)" in mbpp.get("mbpp/367").setup
    assert {test.expected for test in every_test(mbpp.get("mbpp/596"))} == {
        "88",
        "72",
    }  # they depend on the interpreter
    assert {test.check for test in every_test(humaneval.get("humaneval/32"))} == {"poly_root"}


def test_the_splits_that_rows_name_are_honoured(shared_data: Path) -> None:
    path = shared_data / "code" / "mbpp.jsonl"
    sizes = {split: len(data.load(path, split)) for split in ("train", "test", "validation", "prompt")}
    assert sizes == {"train": 374, "test": 500, "validation": 90, "prompt": 10}
    with pytest.raises(DataError, match=r"no row of the split 'train'\. It has: test"):
        data.load(shared_data / "code" / "humaneval.jsonl", "train")


def test_no_public_test_of_the_real_files_tells_a_hidden_one(shared_data: Path) -> None:
    for name in ("humaneval", "mbpp"):
        for problem in data.load(shared_data / "code" / f"{name}.jsonl", "all"):
            shown, kept = ({content_key(test) for test in side} for side in (problem.public, problem.hidden))
            assert not shown & kept, problem.id


def test_humaneval_rows_of_the_hub_give_the_tests_of_the_real_file(shared_data: Path) -> None:
    rows, own = [], {}
    for problem in data.load(shared_data / "code" / "humaneval.jsonl", "all"):
        own["humaneval/test/HumanEval-" + problem.id.split("/")[1]] = problem
    for line in (shared_data / "code" / "humaneval.jsonl").read_text().splitlines():
        row = json.loads(line)
        header, gold = row["starter_code"], row["canonical_solution"]
        rows.append({"task_id": row["source_id"], "prompt": header, "canonical_solution": gold[len(header):],
                     "test": row["metadata"]["official_test"], "entry_point": row["entry_point"]})  # fmt: skip
    read = rows_to_problems("humaneval", rows)
    assert len(read) == 164
    same = sum(pairs(problem) <= pairs(own[problem.id]) for problem in read)
    assert same >= 145  # the rest are other forms of the same assertions: tuple(f(x)) == …, not f(x), random loops
    assert all(problem.solution == own[problem.id].solution for problem in read)


# --- the split into public and hidden ---------------------------------------------------------------------------------


def calls(*inputs: int) -> list[Test]:
    return [Test("call", f"[{a}]", str(a)) for a in inputs]


def test_one_test_is_hidden_two_are_shown_and_order_does_not_matter() -> None:
    assert split_tests("p", calls(1)) == ((), tuple(calls(1)))
    public, hidden = split_tests("p", calls(1, 2))
    assert (len(public), len(hidden)) == (1, 1)
    public, hidden = split_tests("p", calls(*range(9)))
    assert (len(public), len(hidden)) == (2, 7)
    assert set(split_tests("p", calls(*reversed(range(9))))[0]) == set(public)
    assert len({split_tests(f"p{i}", calls(*range(9)))[0] for i in range(20)}) > 5


def test_equal_inputs_share_a_side_whatever_their_spacing() -> None:
    for i in range(30):
        tests = [*calls(1, 2, 3, 4), Test("call", "[ 1 ]", "1"), Test("call", "[2,]", "2")]
        public, hidden = split_tests(f"p{i}", tests)
        assert not {t.input.strip("[], ") for t in public} & {t.input.strip("[], ") for t in hidden}
        assert hidden and len(public) <= 2 and len(public) + len(hidden) == len(tests)


def test_ints_of_thousands_of_digits_are_read_and_split() -> None:
    tests = [Test("call", f"[{hex(1 << 40_000)}, {n}]", "1") for n in range(3)]
    public, hidden = split_tests("p", tests)
    assert {*public, *hidden} == {*tests} and hidden


def test_marks_decide_and_an_input_marked_both_ways_is_public_while_others_are_hidden() -> None:
    public, hidden = split_tests("p", calls(1, 1, 2, 3), ["public", "hidden", "", "hidden"])
    assert (public, hidden) == (tuple(calls(1, 1)), tuple(calls(2, 3)))
    assert split_tests("p", calls(1, 1), ["public", "hidden"]) == ((), tuple(calls(1, 1)))


# --- local files ------------------------------------------------------------------------------------------------------


def test_a_row_in_the_unified_schema_becomes_a_problem(tmp_path: Path) -> None:
    tests = [
        {"kind": "stdio", "input": "1 2\n", "expected": "3\n", "visibility": "public"},
        {"kind": "stdio", "input": "2 2\n", "expected": "4.0\n", "check": "approx", "atol": 0.1,
         "visibility": "hidden"},
    ]  # fmt: skip
    row: dict[str, Any] = {"mode": "stdio", "prompt": "Add.", "tests": tests, "difficulty": "hard", "time_limit_s": 2,
        "memory_limit_mb": 64,
           "checker": "print(1)", "canonical_solution": "print(sum(map(int, input().split())))"}  # fmt: skip
    (problem,) = data.load(write(tmp_path / "own.jsonl", [row]))
    assert problem == CodeProblem(
        id="own/1", mode="stdio", prompt="Add.", public=(Test("stdio", "1 2\n", "3\n"),),
        hidden=(Test("stdio", "2 2\n", "4.0\n", "approx", 0.1),), solution=row["canonical_solution"],
            checker="print(1)",
        level=3, source="own", cpu_s=2.0, memory_mb=64,
    )  # fmt: skip


def bad(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (ROW | changes).items() if value is not ...}


def one(**changes: Any) -> dict[str, Any]:
    return bad(tests=[ROW["tests"][0] | changes])


BAD = {
    "no tests": (bad(tests=[]), "has no tests"), "tests left out": (bad(tests=...), "has no tests"),
    "no entry point": (bad(entry_point=...), "no 'entry_point'"),
    "an entry point that is code": (bad(entry_point="f()"), "name of a function"),
    "no mode": (bad(mode=...), "mode is None"), "empty prompt": (bad(prompt=" "), "prompt is empty"),
    "a list": ([1], "expected a JSON object"), "wrong kind": (one(kind="stdio"), "kind is 'stdio'"),
    "no expected": (one(expected=None), "needs a string 'expected'"),
    "a call for a literal": (one(args="[open('x')]"), "no Python literal"),
    "arguments that are no list": (one(args="3"), "positional arguments|list of the arguments"),
    "expected that is no literal": (one(expected="2 +"), "no Python literal"),
    "expression that is none": (bad(tests=[{"kind": "expr", "expr": "f(", "expected": "1"}]), "no Python expression"),
    "unknown checker": (one(check="aprox"), "Did you mean 'approx'"),
    "negative tolerance": (one(atol=-1), "not negative"),
    "a tolerance beyond the floats": (one(atol=10**400), "'atol' is 1000.*not negative"),
    "a tolerance that is text": (one(rtol="0.1"), "'rtol' is '0.1'"),
    "a tolerance that is an empty text": (one(atol=""), "'atol' is ''"),
    "a tolerance that is true": (one(atol=True), "'atol' is True"),
    "a tolerance that is NaN": (one(atol=float("nan")), "'atol' is nan"),
    "a check of standard output": (
        bad(mode="stdio", tests=[{"kind": "stdio", "input": "", "expected": "", "check": "poly_root"}]),
        "no checker 'poly_root' for a stdio test",
    ),
    "roots of no polynomial": (one(check="poly_root", args="[1, 2]"), "one argument, a list of numbers"),
    "roots of words": (one(check="poly_root", args="[['x']]"), "one argument, a list of numbers"),
    "unknown visibility": (one(visibility="secret"), "visibility is 'secret'"),
    "nothing hidden": (bad(tests=[t | {"visibility": "public"} for t in ROW["tests"]]), "every test is public"),
    "unknown difficulty": (bad(difficulty="brutal"), "difficulty is 'brutal'"),
    "time limit": (bad(time_limit_s=0), "positive number"),
    "time without end": (bad(time_limit_s=1e308), "'time_limit_s' is 1e.308; expected a positive number up to 3,600"),
    "time beyond the floats": (bad(time_limit_s=10**400), "'time_limit_s' is 1000"),
    "time that is no number": (bad(time_limit_s=float("nan")), "'time_limit_s' is nan"),
    "infinite memory": (bad(memory_limit_mb=float("inf")), "'memory_limit_mb' is inf"),
    "absurd memory": (
        bad(memory_limit_mb=1e300), "'memory_limit_mb' is 1e.300; expected a positive number up to 16,384",
    ),
    "negative memory": (bad(memory_limit_mb=-1), "'memory_limit_mb' is -1"),
    "memory that is text": (bad(memory_limit_mb="64"), "'memory_limit_mb' is '64'"),
    "deep JSON": ("[" * 50_000, "nested too deeply"),
    "an int of 5,000 digits": ('{"difficulty": ' + "9" * 5000 + "}", "not JSON"),
    "a problem in a list": (bad(prompt=["x"]), "'prompt' is list"),
    "tests that are numbers": (bad(tests=[3]), "a test is int"),
    "a test of lists": (one(kind=["call"]), "kind is"),
    "a check that is a list": (one(check=["approx"]), "'check' is list"),
    "metadata that is text": (bad(metadata="x"), "'metadata' is str"),
    "a split that is a list": (bad(split=["train"]), "'split' is list"),
    "an id that is a list": (bad(id=["x"]), "'id' is list"),
    "deep nesting": (one(args="[" * 5000 + "]" * 5000), "no Python literal"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named_by_file_and_line(name: str, tmp_path: Path) -> None:
    row, says = BAD[name]
    path = write(tmp_path / "own.jsonl", [ROW, row])
    with pytest.raises(DataError, match=says) as caught:
        data.load(path)
    assert f"{path}, line 2" in str(caught.value)


@pytest.mark.parametrize(("content", "says"), [
    (b"", "holds no rows"), (b"{\n", "line 1: not JSON"),
    (json.dumps(ROW).encode() + b"\n\xff\xfe\n", "line 2: not UTF-8"),
    (json.dumps(ROW | {"prompt": "\ud800"}).encode(), "line 1: half a surrogate pair"),
    (2 * (json.dumps(ROW).encode() + b"\n"), "line 2: the id 'own/1' is that of line 1"),
])  # fmt: skip
def test_a_bad_file_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        data.load(path)


def test_unknown_names_and_conditions_that_nothing_meets_say_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Did you mean 'humaneval'"):
        data.load("humanevla")
    path = write(tmp_path / "own.jsonl", [ROW])
    with pytest.raises(DataError, match="no problem of levels"):
        data.load(path, levels=3)
    with pytest.raises(DataError, match="no problem of the tag 'stdio'"):
        data.load(path, tags="stdio")
    with pytest.raises(DataError, match="has no problem with the id 'x'"):
        data.load(path).get("x")
    with pytest.raises(DataError, match="limit is 0"):
        data.load(path, limit=0)


HOSTILE_ROWS = [
    ("mbpp", {"text": 1, "code": [], "test_list": 3, "test_setup_code": None, "task_id": 1}),
    ("humaneval", {"prompt": None, "canonical_solution": 1, "test": [], "entry_point": "f", "task_id": "a"}),
    ("code_contests", {"name": "x", "description": "", "public_tests": None, "private_tests": {}, "generated_tests": {}}),
    ("codeforces", {"id": "x", "title": "", "description": "", "examples": [{}], "official_tests": [3]}),
    ("apps", {"id": 1, "question": "", "input_output": '{"inputs": 3, "outputs": 4}', "starter_code": 3, "difficulty": ""}),
    ("livecodebench", {"question_id": 1, "question_content": "", "public_test_cases": "3", "private_test_cases": "[]",
                       "starter_code": "", "difficulty": [], "metadata": "[]"}),
    ("mbpp", [1, 2]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "row"), HOSTILE_ROWS)
def test_a_hostile_row_of_a_hub_set_is_an_error_that_names_the_row(name: str, row: Any) -> None:
    with pytest.raises(DataError, match=r"row 0"):
        rows_to_problems(name, [row])


def test_a_problem_of_a_hub_set_with_absurd_limits_is_left_out_and_counted() -> None:
    row = {"id": 1, "question": "Add.", "starter_code": "", "difficulty": "EASY", "time_limit": "9" * 500 + " seconds",
           "input_output": '{"inputs": ["1", "2"], "outputs": ["1", "2"]}', "memory_limit": "256 megabytes"}  # fmt: skip
    assert rows_to_problems("apps", [row]) == []
    assert rows_to_problems("apps", [row | {"time_limit": "1.0", "memory_limit": "1" + 30 * "0"}]) == []
    assert last_tally("apps", "test") == {"problems: a limit beyond 3,600 s or 16,384 MiB": 1}


def test_an_edited_file_is_read_again_and_sets_are_shared_by_forks(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", [ROW])
    first = data.load(path)
    assert copy.deepcopy(first) is first and first.draw(np.random.default_rng(0)) is first[0]
    write(path, [ROW, ROW | {"id": "own/2"}])
    assert len(data.load(path)) == 2


# --- the hub ----------------------------------------------------------------------------------------------------------

_CHECK = """
METADATA = {'author': 'x'}

def check(candidate):
    assert candidate([1, 2], 3) == [3, 6], "message " + str(candidate([1, 2], 3))
    assert candidate([], -1) == []
    assert abs(candidate([0.5], 2)[0] - 1.0) < 1e-6
    assert candidate([True], 1) is True
    assert not candidate([0], 0)
    for n in range(2, 4):
        assert candidate([n], n + 1) == [n * (n + 1)]
    for _ in range(100):
        k = random.randint(0, 9)
        assert candidate([k], 1) == [k]
"""
_HUMANEVAL = {
    "task_id": "HumanEval/900", "entry_point": "scale", "test": _CHECK,
    "canonical_solution": "    return [k * x for x in xs]\n",
    "prompt": 'def scale(xs, k):\n    """ Multiply all by k.\n    >>> scale([1], 2)\n    [2]\n    """\n',
}  # fmt: skip


def test_humaneval_assertions_become_calls_and_what_is_lost_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        (problem,) = rows_to_problems("humaneval", [_HUMANEVAL])
    found = {(t.kind, t.input, t.expected, t.check) for t in every_test(problem)}
    assert found == {
        ("call", "[[1, 2], 3]", "[3, 6]", ""), ("call", "[[], -1]", "[]", ""),
        ("expr", "scale([0.5], 2)[0]", "1.0", "approx"), ("call", "[[True], 1]", "True", ""),
        ("expr", "not (scale([0], 0))", "True", ""), ("call", "[[2], 3]", "[6]", ""), ("call", "[[3], 4]", "[12]", ""),
    }  # fmt: skip
    assert (problem.id, problem.entry_point) == ("humaneval/test/HumanEval-900", "scale")
    assert problem.prompt.startswith("Multiply all by k.") and problem.starter_code == _HUMANEVAL["prompt"]
    assert last_tally("humaneval", "test") == {"loops that cannot be unrolled": 1}
    assert "1 loops that cannot be unrolled" in caplog.text


def test_a_value_that_only_the_reference_knows_comes_from_it_or_is_counted() -> None:
    row = _HUMANEVAL | {"test": "def check(candidate):\n    assert tuple(candidate([1], 2)) == tuple(scale([1], 2))\n"
                                "    assert candidate([2], 2) == [4]\n"}  # fmt: skip
    (problem,) = rows_to_problems("humaneval", [row])
    assert len(every_test(problem)) == 1 and last_tally("humaneval", "test").total() == 1
    asked = []

    def reference(program: str, name: str, arguments: Any) -> list[str | None]:
        asked.append((program, name, list(arguments)))
        return ["[2]"] * len(arguments)

    (problem,) = rows_to_problems("humaneval", [row], reference=reference)
    assert pairs(problem) == {("[[1], 2]", "[2]"), ("[[2], 2]", "[4]")}
    assert asked[0][0].startswith("def scale") and asked[0][1] == "scale"


_ASSERTION = """
import numpy as np

def assertion(out, exp, atol):
    assert out == exp
"""


def test_evalplus_lists_of_inputs_and_results_become_calls() -> None:
    loop = "    for i, (inp, exp) in enumerate(zip(inputs, results)):\n        assertion(candidate(*inp), exp, 0)\n"
    test = _ASSERTION + "def check(candidate):\n    inputs = [[[1], 2], [[2 ** 3], 10 ** 2], [[0.5], 2], [[float('nan')], 1]]\n" \
        "    results = [[2], [800], [1.0], []]\n" + loop  # fmt: skip
    (problem,) = rows_to_problems("humaneval_plus", [_HUMANEVAL | {"test": test}])
    found = {(t.input, t.expected, t.check, t.atol) for t in every_test(problem)}
    assert found == {
        ("[[1], 2]", "[2]", "", 0.0),
        ("[[8], 100]", "[800]", "", 0.0),
        ("[[0.5], 2]", "[1.0]", "approx", 1e-6),
    }
    assert last_tally("humaneval_plus", "test") == {"inputs or values that are no literals": 1}


def test_mbpp_rows_keep_setup_and_expressions_that_can_be_taken_apart(caplog: pytest.LogCaptureFixture) -> None:
    row = {"task_id": 11, "text": "Length of a box.",
        "code": "def box(n):\n    return [n]\n\ndef size(b):\n    return b[0]",
           "test_list": ["assert size(box(3)) == 3", "assert size(box([4])) == [2 + 2]", "assert size([-1]) == -1"],
           "test_setup_code": "root = box(1)", "challenge_test_list": ["assert size(root) == 1", "assert size(box((2, 3)))[1] == 3"]}  # fmt: skip
    (problem,) = rows_to_problems("mbpp", [row], "train")
    assert (problem.id, problem.entry_point, problem.setup) == ("mbpp/train/11", "size", "root = box(1)")
    found = {(t.kind, t.input, t.expected) for t in every_test(problem)}
    assert found == {("expr", "size(box((2, 3)))[1]", "3"), ("call", "[[-1]]", "-1"), ("expr", "size(root)", "1")}
    # What `box` of the program is given and `size` of the program gives back says nothing about either.
    assert last_tally("mbpp", "train") == {"tests decided inside the program's process": 2}
    assert "mbpp/train/11 (the program's own 'box' is given the value expected)" in caplog.text


def test_mbpp_plus_compares_flattened_sequences_loosely() -> None:
    test = _ASSERTION + "inputs = [[(3, 4), {1, 2}], [[1.5], set()]]\nresults = [(3, 4), 1.5]\n" \
        "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion(common(*inp), exp, 0)\n"  # fmt: skip
    row = {"task_id": 2, "code": "def common(a, b):\n    return tuple(a)", "prompt": "Common ones.",
        "source_file": "x.py",
           "test_imports": [], "test_list": ["assert set(common((3, 4), {1, 2})) == set((3, 4))"],
           "test": test}  # fmt: skip
    (problem,) = rows_to_problems("mbpp_plus", [row])
    found = {(t.input, t.expected, t.check) for t in every_test(problem)}
    assert found == {("[(3, 4), {1, 2}]", "(3, 4)", "loose"), ("[[1.5], set()]", "1.5", "approx")}


_LCB = {
    "question_title": "T", "question_content": "Add.", "platform": "atcoder", "question_id": "abc1_a",
    "contest_id": "abc1",
    "contest_date": "2024-01-01", "starter_code": "", "difficulty": "hard", "metadata": "{}",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
    "private_test_cases": packed([{"input": f"{a} 0\n", "output": f"{a}\n", "testtype": "stdin"} for a in range(3)]),
}  # fmt: skip


def test_livecodebench_unpacks_private_tests_and_calls_methods() -> None:
    leet = _LCB | {
        "question_id": "1", "metadata": '{"func_name": "total"}', "difficulty": "easy",
        "starter_code": "class Solution:\n    def total(self, xs: List[int], k: int) -> int:\n        ",
        "public_test_cases": json.dumps([{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]),
        "private_test_cases": json.dumps([{"input": '["a"]\n0', "output": "true", "testtype": "functional"}]),
    }  # fmt: skip
    stdio, method = rows_to_problems("livecodebench", [_LCB, leet])
    assert (stdio.mode, stdio.level, len(stdio.public), len(stdio.hidden)) == ("stdio", 3, 1, 3)
    assert (method.mode, method.entry_point, method.level) == ("function", "Solution.total", 1)
    assert pairs(method) == {("[[1, 2], 3]", "6"), ("[['a'], 0]", "True")} and len(method.hidden) == 1
    assert method.starter_code == leet["starter_code"]  # the set's own, whose `List` the prelude imports
    assert {test.check for test in (*stdio.hidden, *method.hidden)} == {"livecodebench"}


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("a pickle must not run anything",)


@pytest.mark.parametrize("text", [
    base64.b64encode(zlib.compress(pickle.dumps(_Evil()))).decode(),
    base64.b64encode(zlib.compress(b"0" * (1 << 28), 1)).decode(),
    base64.b64encode(zlib.compress(pickle.dumps("[]"))[:-4]).decode(),
    "@@@", "",
], ids=["class", "bomb", "cut off", "no base64", "nothing"])  # fmt: skip
def test_packed_tests_that_are_not_plain_text_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused):
        unpack(text)
    assert "must not run" not in capsys.readouterr().out
    assert rows_to_problems("livecodebench", [_LCB | {"private_test_cases": text}]) == []
    assert sum(last_tally("livecodebench", "test").values()) == 1


def test_apps_and_taco_read_both_modes() -> None:
    stdio = {"id": 7, "question": "Add.", "solutions": '["print(1)"]', "difficulty": "interview", "url": "",
        "starter_code": "",
             "input_output": json.dumps({"inputs": ["1 2\n", ["3", "4"]], "outputs": ["3\n", ["7"]]})}  # fmt: skip
    call = stdio | {"id": 8, "starter_code": "def f(a, b):\n\t", "difficulty": "introductory",
                    "input_output": json.dumps({"fn_name": "f", "inputs": [[1, 2], [3, 4]], "outputs": [[3],
                    [7]]})}  # fmt: skip
    empty = stdio | {"id": 9, "input_output": ""}
    one, two = rows_to_problems("apps", [stdio, call, empty], "train")
    assert pairs(one) == {("1 2\n", "3\n"), ("3\n4\n", "7\n")} and (one.level, one.solution) == (2, "print(1)")
    assert pairs(two) == {("[1, 2]", "3"), ("[3, 4]", "7")} and (two.entry_point, two.level) == ("f", 1)
    assert last_tally("apps", "train") == {"problems: no usable test": 1}
    keyed = call | {"input_output": '{"fn_name": "f", "inputs": [[{"1": 2}]], "outputs": [[{"3": 4}]]}'}
    (problem,) = rows_to_problems("apps", [keyed])  # JSON has no other keys than text
    assert pairs(problem) == {("[{1: 2}]", "{3: 4}")}
    taco = {k: v for k, v in stdio.items() if k != "id"} | {"difficulty": "MEDIUM_HARD", "time_limit": "2.0 seconds",
                                                            "memory_limit": "256.0 megabytes"}  # fmt: skip
    (problem,) = rows_to_problems("taco", [taco], "train")
    assert (problem.id, problem.level, problem.cpu_s, problem.memory_mb) == ("taco/train/0", 3, 2.0, 256)


def _contest(name: str, **changes: Any) -> dict[str, Any]:
    def cases(*inputs: str) -> dict[str, list[str]]:
        return {"input": list(inputs), "output": [f"{i}!" for i in inputs]}

    return {"name": name, "description": "Shout.", "public_tests": cases("a"), "private_tests": cases("b"),
            "generated_tests": cases("c", "a"), "source": 2, "difficulty": 7, "cf_rating": 1700, "input_file": "",
            "output_file": "", "solutions": {"language": [2, 3], "solution": ["int main", "print(input() + '!')"]},
            "time_limit": {"seconds": 1, "nanos": 500_000_000}, "memory_limit_bytes": 256 << 20} | changes  # fmt: skip


def test_code_contests_rows() -> None:
    huge = {"input": ["b", "x"], "output": ["b!", "y" * (MAX_TEST + 1)]}
    many = {"input": [str(i) for i in range(200)], "output": ["x"] * 200}
    rows = [
        _contest("1_A", private_tests=huge),
        _contest("1_B", input_file="in.txt"),
        _contest("1_C", generated_tests=many),
    ]
    first, third = rows_to_problems("code_contests", rows, "validation")
    assert {t.input for t in first.public} == {"a"} and {t.input for t in first.hidden} == {"b", "c"}
    assert (first.level, first.cpu_s, first.memory_mb, first.solution) == (3, 1.5, 256, "print(input() + '!')")
    assert len(every_test(third)) == MAX_STDIO_TESTS and [t.input for t in third.public] == ["a"]
    left_out = last_tally("code_contests", "validation")
    assert left_out["problems: reads or writes files"] == left_out["tests too large"] == 1
    assert left_out["tests beyond the limit"] == 202 - MAX_STDIO_TESTS


def test_codeforces_rows_bring_checkers_and_refuse_interaction() -> None:
    row = {"id": "1/A", "title": "Any", "description": "Print any.", "input_format": "n", "output_format": "m",
        "note": None,
           "interaction_format": None, "examples": [{"input": "1\n", "output": "2\n"}], "rating": 800,
           "input_mode": "stdio",
           "official_tests": [{"input": "5\n", "output": "6\n"}, {"input": "1\n", "output": "2\n"}], "time_limit": 2.0,
           "official_tests_complete": True, "memory_limit": 256.0,
           "generated_checker": "import sys\nprint(1)"}  # fmt: skip
    (problem,) = rows_to_problems("codeforces", [row, row | {"id": "1/B", "interaction_format": "ask"}])
    assert (problem.id, problem.level, problem.checker) == ("codeforces/test/1-A", 1, "import sys\nprint(1)")
    assert (
        {t.input for t in problem.hidden} == {"5\n"}
        and "## Input\nn" in problem.prompt
        and "Note" not in problem.prompt
    )
    assert last_tally("codeforces", "test") == {"problems: is interactive": 1}


def test_a_row_without_a_column_names_the_row() -> None:
    with pytest.raises(DataError, match=r"openai/openai_humaneval \(test\), row 1: no column 'test'"):
        rows_to_problems("humaneval", [_HUMANEVAL, {k: v for k, v in _HUMANEVAL.items() if k != "test"}])
    with pytest.raises(DataError, match="taken"):
        rows_to_problems("humaneval", [_HUMANEVAL, _HUMANEVAL])


def test_the_hub_table_and_names_agree() -> None:
    assert set(data.NAMES) == {"procedural", "humaneval", "humaneval_plus", "mbpp", "mbpp_plus", "livecodebench",
        "apps",
                               "code_contests", "taco", "codeforces"}  # fmt: skip
    with pytest.raises(DataError, match=r"no split 'train'\. It has: test"):
        data.load("livecodebench")


def test_an_unreachable_hub_names_the_three_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    monkeypatch.setattr(hub, "_download", refuse)
    for name in ("humaneval", "apps"):
        with pytest.raises(DataError, match=r"no route[\s\S]*three ways"):
            data.load(name, "test")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"-e '.\[data\]'"):
        data.load("mbpp", "test")


def test_files_of_script_repositories_are_read_directly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    row = {"question": "Add.", "solutions": "[]", "difficulty": "EASY", "starter_code": "",
           "input_output": json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["1\n", "2\n"]})}  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist([row, row]), tmp_path / "test-00000-of-00001.parquet")
    asked = []

    def download(hub_id: str, pattern: str) -> list[str]:
        asked.append((hub_id, pattern))
        return [str(tmp_path / "test-00000-of-00001.parquet")]

    monkeypatch.setattr(hub, "_download", download)
    assert [p.id for p in data.load("BAAI/TACO", "test")] == ["taco/test/0", "taco/test/1"]
    assert asked == [("BAAI/TACO", "ALL/test-*.parquet")]
    assert all(set(known.files) <= set(known.splits) for known in HUB.values())


def test_loading_imports_no_hub_library() -> None:
    script = "import sys; from marft_envs.families.code import data; print('datasets' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"
