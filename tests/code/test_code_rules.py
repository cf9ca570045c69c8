"""Public sets are graded by the rules of their own harnesses: numbers, tuples, names that are there, long integers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from marft_envs.families.code.checkers import output_agrees, value_agrees
from marft_envs.families.code.hub import rows_to_problems
from marft_envs.families.code.judge import Judge
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.sandbox import Limits, Sandbox, layers

HELD = [layer for layer in layers.LOCAL if not layers.check(layer)]
REAL = pytest.mark.skipif(not HELD, reason="no sandbox layer holds here; see python -m marft_envs.sandbox")
SUM = {"input": "[1, 2]", "output": "[3, 2]"}
ECHO = {"input": "1\n", "output": "3\n"}


def livecodebench(case: dict[str, str], name: str = "") -> CodeProblem:
    kind = "functional" if name else "stdin"
    tests = json.dumps([case | {"testtype": kind}])
    row = {"question_content": "Q", "public_test_cases": tests, "private_test_cases": tests, "difficulty": "easy",
           "question_id": "1", "metadata": json.dumps({"func_name": name} if name else {}),
           "starter_code": f"class Solution:\n    def {name}(self, x: List[int]):\n        " if name else ""}  # fmt: skip
    (problem,) = rows_to_problems("livecodebench", [row])
    return problem


def apps(set_name: str, stdin: Any, value: Any, name: str = "", starter: str = "") -> CodeProblem:
    cases = {"inputs": [stdin], "outputs": [value]} | ({"fn_name": name} if name else {})
    row = {"question": "Q", "input_output": json.dumps(cases), "solutions": "[]", "difficulty": "interview",
           "starter_code": starter}  # fmt: skip
    (problem,) = rows_to_problems(set_name, [row])
    return problem


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as best:
        yield best


def verdict(sandbox: Sandbox, problem: CodeProblem, program: str) -> str:
    return Judge(sandbox, Limits()).run(problem, program, problem.hidden)[0].verdict


OUTPUTS = [
    # expected, got, LiveCodeBench, APPS and TACO
    ("3", "3.0", True, True), ("7", "007", True, True), ("1", "1e0", True, True), ("3", "+3", True, True),
    ("3", "4", False, False), ("3", "3.0000001", False, False),
    ("12345678901234567890", "12345678901234567891", False, False),
    ("1" + "0" * 5000, "1" + "0" * 5000, True, True), ("1 2\n3\n", "  1   2.0 \n3\n\n", True, True),
    ("1 2\n3\n", "1\n2\n3\n", False, True), ("1\n\n2", "1\n2", False, True), ("0.5", "0.50", True, True),
    ("0.333333333", "0.333333", False, True), ("0.5", "0.51", False, False), ("1000.5", "1000.505", False, True),
    ("0.0001", "0", False, False), ("YES", "yes", False, False), ("x 3", "x 3.0", False, True),
    ("nan", "sNaN", False, False), ("1", "NaN", False, False), ("1.5", "inf", False, False),
    ("1.5", "9" * 400 + ".5", False, False), ("1", "1e999999999999999999999", False, False), ("1", "", False, False),
    ("1 2", "2 1", False, False),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "got", "decimal", "near"), OUTPUTS)
def test_outputs(expected: str, got: str, decimal: bool, near: bool) -> None:
    problem = livecodebench(ECHO)
    for check, right in (("livecodebench", decimal), ("apps", near)):
        assert output_agrees(got, Test("stdio", "", expected, check), problem) is right, check


@pytest.mark.parametrize(("expected", "got", "outermost", "within"), [
    ("[1, 2]", (1, 2), True, True), ("[1, 2]", [1, 2], True, True), ("[[1, 2]]", [(1, 2)], False, True),
    ("[[1, 2]]", ((1, 2),), False, True), ("[[[1]]]", [[(1,)]], False, False), ("[1, 2]", (2, 1), False, False),
    ("[1, 2]", {1, 2}, False, False), ("3", 3.0, True, True), ("'a'", "a", True, True),
])  # fmt: skip
def test_values(expected: str, got: Any, outermost: bool, within: bool) -> None:
    problem = livecodebench(SUM, "f")
    for check, right in (("livecodebench", outermost), ("apps", within)):
        assert value_agrees(got, Test("call", "[]", expected, check), problem) is right, check


@REAL
@pytest.mark.parametrize("body", [
    "return sum(x), len(x)", "return Counter(x).total() and [sum(x), isqrt(4)]",
    "return list(map(int, [reduce(add, x), gcd(2, 4)]))", "heapify(x); return [sum(x), bisect.bisect(x, 9)]",
    "return json.loads(dumps([sum(x), 2]))", "return [deque([sum(x)], maxlen=1)[0], pow(2, 1)]",
])  # fmt: skip
def test_livecodebench_programs_need_no_imports(sandbox: Sandbox, body: str) -> None:
    program = f"class Solution:\n    def f(self, x: List[int]) -> Optional[List[int]]:\n        {body}"
    assert verdict(sandbox, livecodebench(SUM, "f"), program) == "passed"
    future = f"from __future__ import annotations\n{program}"
    assert verdict(sandbox, livecodebench(SUM, "f"), future) == "passed"
    wrong = f"{program.rpartition('return')[0]}return [sum(x), 3]"
    assert verdict(sandbox, livecodebench(SUM, "f"), wrong) == "wrong_answer"


@REAL
def test_a_traceback_counts_the_programs_own_lines(sandbox: Sandbox) -> None:
    problem = livecodebench(ECHO)
    result = Judge(sandbox, Limits()).run(problem, "x = 1\nprint(1 // 0)\n", problem.hidden)[0]
    assert result.verdict == "runtime_error" and "line 2, in <module>" in result.message


@REAL
def test_livecodebench_programs_on_standard_input(sandbox: Sandbox) -> None:
    for program in ("print(3.0)", "print(comb(3, 1))", "print('003')", "print(2 + int(stdin.readline()))"):
        assert verdict(sandbox, livecodebench(ECHO), program) == "passed", program
    long = livecodebench({"input": "1\n", "output": f"{'7' * 6000}\n"})
    assert verdict(sandbox, long, "print(7 * (10**6000 - 1) // 9)") == "passed"
    assert verdict(sandbox, long, "print(int('7' * 6000))") == "passed"
    assert verdict(sandbox, long, "print(8 * (10**6000 - 1) // 9)") == "wrong_answer"


@REAL
@pytest.mark.parametrize("name", ["apps", "taco"])
def test_apps_and_taco_programs(sandbox: Sandbox, name: str) -> None:
    stdio = apps(name, "4\n", "2\n")
    for program in (
        "print(sqrt(int(input())))",
        "print(Counter('aab')['a'])",
        "n = int(stdin.readline()); print(n // 2)",
    ):
        assert verdict(sandbox, stdio, program) == "passed", program
    assert verdict(sandbox, stdio, "print(3)") == "wrong_answer"
    call = apps(name, [[3, 1]], [[[1, 3], [2]]], "f", "class Solution:\n    def f(self, x: List[int]):\n        ")
    program = "class Solution:\n    def f(self, x: List[int]) -> Optional[int]:\n        heapify(x)\n        return (tuple(x), [2])"
    assert verdict(sandbox, call, program) == "passed"


@REAL
def test_humaneval_programs_have_what_the_prompt_gives(sandbox: Sandbox) -> None:
    prompt = "from typing import List\n\n\ndef double(x):\n    return 2 * x\n\n\ndef f(xs: List[int]) -> int:\n"
    row = {"task_id": "HumanEval/900", "entry_point": "f", "canonical_solution": "    return double(xs[0])\n",
           "test": "def check(candidate):\n    assert candidate([2]) == 4\n    assert candidate([3]) == 6\n",
           "prompt": f'{prompt}    """ Doubles. """\n'}  # fmt: skip
    (problem,) = rows_to_problems("humaneval", [row])
    assert verdict(sandbox, problem, "def f(xs: List[int]) -> int:\n    return double(xs[0])") == "passed"


@REAL
def test_long_integers_have_the_time_of_any_program(sandbox: Sandbox) -> None:
    quick = Limits(cpu_s=0.3, wall_s=3.0, total_s=5.0)
    assert sandbox.run_stdio("print(10 ** 10_000_000)", "", limits=quick).status == "timeout"
    values = "def f(n): return int('9' * n)"
    (result,) = Judge(sandbox, Limits()).run(
        CodeProblem("a", "function", "", (), (Test("call", "[5000]", "1"),), entry_point="f"), values,
        [Test("call", "[5000]", "1")],
    )  # fmt: skip
    assert result.verdict == "wrong_answer" and "too long to write" in result.got


@REAL
def test_a_byte_order_mark_is_no_part_of_a_program(sandbox: Sandbox) -> None:
    assert sandbox.run_stdio("\ufeffprint(1)", "").stdout == b"1\n"
