"""Verdicts: how values and outputs are compared, what each status of the sandbox becomes, whose fault a failure is."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.fake_sandbox import ADD, CRASH, GOLD, SCRIPT, WRONG, ZERO, FakeSandbox, calls, in_containers, stdio
from marft_algos.runs.intervals import pass_at_k, pass_hat_k
from marft_envs.core.faults import is_infrastructure_error
from marft_envs.errors import ConfigError, DataError
from marft_envs.families.code.checkers import output_agrees, value_agrees
from marft_envs.families.code.judge import Judge, Report, TestResult, written
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.families.code.rewards import score
from marft_envs.families.code.schema import OUTPUT_CHECKS, VALUE_CHECKS
from marft_envs.sandbox import CallResult, Limits, Sandbox, SandboxError, StdioResult, values

LIMITS = Limits()
SUM = CodeProblem("sum/0", "stdio", "Print the sum.", stdio(("1 2", "3")), stdio(("70 7", "77"), ("-5 5", "0")))


def verdicts(does: Any, test: Test) -> str:
    """The verdict of one test for a program that does this."""
    problem = dataclasses.replace(ADD if test.kind != "stdio" else SUM, public=(), hidden=(test,))
    return Judge(FakeSandbox({"program": does}), LIMITS).run(problem, "program", [test])[0].verdict


# Comparison of values -----------------------------------------------------------------------------------

NAN = float("nan")
DEEP: Any = []
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize(("check", "expected", "right", "wrong"), [
    ("", "1", [1, 1.0, True, 1 + 0j], [2, "1", None, [1], NAN]),
    ("", "True", [True, 1], [False, "True"]),
    ("", "[1, 2]", [[1, 2], [1.0, 2]], [(1, 2), [2, 1], [1, 2, 3], {1, 2}]),
    ("", "(1, 2)", [(1, 2)], [[1, 2]]),
    ("", "{1, 2}", [{2, 1}, frozenset((1, 2))], [[1, 2], {1}]),
    ("", "{'a': 1}", [{"a": 1.0}], [{"a": 2}, {}, {"a": 1, "b": 2}]),
    ("", "0.3", [0.3], [0.1 + 0.2]), ("", "None", [None], [0, "", False]), ("", "[[]]", [[[]]], [DEEP]),
    ("equal", "'a'", ["a"], ["A", b"a"]),
    ("approx", "0.3", [0.1 + 0.2, 0.3 + 1e-7], [0.31, NAN, math.inf, "0.3", None, 10**400]),
    ("approx", "(1.0, [2.0])", [(1, [2]), [1.0, (2.0 + 1e-9,)]], [(1.0, [2.1]), (1.0,), (1.0, [2.0], 3)]),
    ("approx", "{'a': 1.0}", [{"a": 1 + 1e-9}], [{"b": 1.0}, {"a": 1.1}]),
    ("approx", "1e999", [math.inf], [-math.inf, 1e308]), ("exact", "1", [1], [1.0, True]),
    ("exact", "[1, {'a': 2}]", [[1, {"a": 2}]], [[1, {"a": 2.0}], [1.0, {"a": 2}], (1, {"a": 2})]),
    ("exact", "{1: 2}", [{1: 2}], [{True: 2}, {1.0: 2}]),
    ("set", "[1, 2, 2]", [[2, 1, 2], (2, 2, 1)], [[1, 2], [1, 1, 2], {1, 2}]),
    ("set", "[[1], [2]]", [[[2], [1]]], [[[2], [2]]]),
    ("loose", "[1, [2, 3]]", [(1, (2, 3)), [1, [2, 3]], [1, {3, 2}]], [[1, [3, 2]], [1, 2, 3]]),
    ("loose", "[1, 2, 2]", [{1, 2}, [1, 2, 2]], [[1, 2], {1}, {1, 2, 3}]),
    ("loose", "{'a': (1,)}", [{"a": [1]}], [{"a": [2]}]), ("yesno", "'YES'", ["yes", "Yes"], ["no", True]),
    ("lines", "'a\\nb'", ["a \nb\n"], ["a b"]),
])  # fmt: skip
def test_values(check: str, expected: str, right: list[Any], wrong: list[Any]) -> None:
    test = Test("call", "[]", expected, check, 1e-6, 1e-7)
    for value in right:
        assert value_agrees(value, test, ADD), value
    for value in wrong:
        assert not value_agrees(value, test, ADD), value


def test_a_root_of_a_polynomial_is_right_whichever_it_is() -> None:
    test = Test("call", "[[-1, 0, 1]]", "1.0", "poly_root", 1e-4)
    assert value_agrees(1.0, test, ADD) and value_agrees(-1.00001, test, ADD) and value_agrees(1, test, ADD)
    assert not any(value_agrees(x, test, ADD) for x in (0.0, 1.01, NAN, math.inf, 1e300, "1", None))


@pytest.mark.parametrize(("check", "expected", "right", "wrong"), [
    ("", "1 2\n", ["1 2", " 1\n2 \n\n", "1\t2\r\n"], ["1", "1 2 3", "12", "", "1 2.0", "01 2"]),
    ("", "0.5", ["0.5", "0.5000004", "5e-1", ".5", "+0.5"], ["0.50001", "nan", "inf", "0.5x", "0_5.0", "1_0.5", "½"]),
    ("", "1000000.0", ["1000000.5", "1000000"], ["1000002.0"]),
    ("", "2.0", ["2", "2.0000001"], ["two", "2.1"]), ("", "nan", ["nan"], ["NaN", "inf"]),
    ("", "1.2.3", ["1.2.3"], ["1.2.4"]), ("", "1e999", ["1e999"], ["1e998"]),
    ("", "1.5e999", ["1.5e999"], ["1.6e999", "inf"]), ("", "", ["", "\n"], ["0"]),
    ("yesno", "YES 3", ["yes 3", "Yes 3"], ["no 3", "yes 4", "yes", "y 3"]),
    ("lines", "a b\nc", ["a b\nc\n", "a b  \nc\n\n"], ["a  b\nc", "a b c", " a b\nc", "a b\n\nc"]),
    ("set", "1 2\n3 4", ["3 4\n1 2", "1  2\n3 4\n"], ["2 1\n3 4", "1 2\n1 2", "1 2 3 4"]),
    ("set", "1 2 2", ["2 1 2", "2\n2\n1"], ["1 2", "1 1 2"]),
    ("approx", "3 x 0.5", ["3.0001 x 0.5"], ["3.1 x 0.5", "3 y 0.5", "3 x", "nan x 0.5"]),
    ("exact", "a\n", ["a\n"], ["a", "a \n", "a\r\n"]),
])  # fmt: skip
def test_outputs(check: str, expected: str, right: list[str], wrong: list[str]) -> None:
    test = Test("stdio", "", expected, check, 1e-3)
    for text in right:
        assert output_agrees(text, test, SUM), text
    for text in wrong:
        assert not output_agrees(text, test, SUM), text


def test_data_that_cannot_be_compared_is_an_error_that_names_the_problem_and_keeps_its_secret() -> None:
    secret = "HIDDEN-CANARY"
    for test in (Test("call", "[]", f"open('{secret}')"), Test("call", "[]", f"'{secret}'", "aprox")):
        with pytest.raises(DataError, match="add/0") as caught:
            value_agrees(1, test, ADD)
        assert secret not in str(caught.value) and caught.value.__cause__ is None
    with pytest.raises(DataError, match="Did you mean 'lines'"):
        output_agrees("", Test("stdio", "", secret, "line"), SUM)
    with pytest.raises(DataError, match="kind 'stdio'"):
        Judge(FakeSandbox(SCRIPT), LIMITS).run(ADD, GOLD, stdio(("", "")))
    with pytest.raises(DataError, match="kind 'call'"):
        Judge(FakeSandbox(SCRIPT), LIMITS).run(SUM, GOLD, calls(("[]", "1")))


# Verdicts -----------------------------------------------------------------------------------------------

STATUSES = {
    "ok": "passed", "runtime_error": "runtime_error", "timeout": "timeout", "memory_limit": "memory_limit",
    "output_limit": "output_limit", "bad_value": "wrong_answer", "compile_error": "compile_error",
    "no_entry_point": "no_entry_point", "exited": "runtime_error", "too_large": "too_large",
}  # fmt: skip


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_of_the_sandbox_has_a_verdict(status: Any) -> None:
    (call,), (run,) = calls(("[]", "1")), stdio(("", "1"))
    assert verdicts(lambda: CallResult(status, 1), call) == STATUSES[status]
    assert verdicts(lambda stdin: StdioResult(status, b"1"), run) == STATUSES[status]


def test_a_right_output_does_not_excuse_a_failure() -> None:
    (run,) = stdio(("", "1"))
    assert verdicts(lambda stdin: StdioResult("runtime_error", b"1", "boom"), run) == "runtime_error"


def test_a_report_counts_and_its_verdict_is_the_first_failure() -> None:
    report = Judge(FakeSandbox(SCRIPT), LIMITS).report(ADD, ZERO, [*ADD.public, *ADD.hidden])
    assert [result.verdict for result in report.results] == ["wrong_answer", "passed", "wrong_answer", "passed"]
    assert (report.passed, report.fraction, report.all_passed) == (2, 0.5, False)
    assert report.verdict == "wrong_answer" and report.counts == {"wrong_answer": 2, "passed": 2}
    assert report.results[0].got == "0"
    assert Report(()).all_passed is False and Report(()).fraction == 0.0


@pytest.mark.parametrize(
    ("program", "verdict"),
    [("x" * 10_000_000, "too_large"), ("x = '\0'", "compile_error"), ("x = '\ud800'", "compile_error")],
    ids=["10 MB", "NUL", "half a surrogate pair"],
)
def test_programs_that_no_interpreter_could_take_are_not_started(program: str, verdict: str) -> None:
    fake = FakeSandbox(SCRIPT)
    for problem in (ADD, SUM):
        assert Judge(fake, LIMITS).report(problem, program, problem.hidden).counts == {verdict: 2}
    assert fake.runs == []


def test_undecodable_output_is_a_wrong_answer_and_can_be_shown() -> None:
    fake = FakeSandbox({"program": lambda stdin: b"\xff\xfe3\x00"})
    (result,) = Judge(fake, LIMITS).run(SUM, "program", SUM.public)
    assert result.verdict == "wrong_answer"
    assert result.got.encode("utf-8").decode("utf-8") == "\ufffd\ufffd3\x00"


def test_a_value_that_python_refuses_to_write_can_be_shown_and_a_long_one_is_cut() -> None:
    assert written(10**5000) == "<a value of type int that is too long to write>"
    assert written(DEEP).startswith("<a value of type list")
    assert len(written("x" * 60_000)) < 3_000


def test_stdio_runs_test_by_test_but_a_program_that_cannot_start_once() -> None:
    fake = FakeSandbox({"program": lambda stdin: 77 if stdin == "70 7" else StdioResult("timeout", b"", "", 2.0)})
    report = Judge(fake, LIMITS).report(SUM, "program", SUM.hidden)
    assert [result.verdict for result in report.results] == ["passed", "timeout"] and len(fake.runs) == 2
    assert Judge(fake, LIMITS).report(SUM, "not scripted", SUM.hidden).counts == {"compile_error": 2}
    assert len(fake.runs) == 3


def test_a_program_that_hangs_on_every_test_does_not_get_the_limit_for_each() -> None:
    fake = FakeSandbox({"program": lambda stdin: StdioResult("timeout", b"", "", 2.0)})
    many = stdio(*((str(i), "") for i in range(100)))
    assert Judge(fake, LIMITS).report(SUM, "program", many).counts == {"timeout": 100}
    assert len(fake.runs) == 11  # 20 seconds in all


def test_a_program_that_sleeps_through_two_tests_is_not_tried_again() -> None:
    fake = FakeSandbox({"program": lambda stdin: StdioResult("timeout", b"", "", 0.01, 6.0)})
    many = stdio(*((str(i), "") for i in range(40)))
    assert Judge(fake, LIMITS).report(SUM, "program", many).counts == {"timeout": 40}
    assert len(fake.runs) == 2  # 12 seconds of a worker, not 240


def test_limits_of_the_problem_take_precedence_and_its_setup_is_passed_on() -> None:
    fake = FakeSandbox(SCRIPT)
    own = dataclasses.replace(ADD, cpu_s=4.0, memory_mb=1024, setup="x = 1")
    Judge(fake, LIMITS).run(own, GOLD, own.hidden)
    assert fake.limits[0] == Limits(cpu_s=4.0, wall_s=12.0, total_s=40.0, memory_mb=1024)
    assert fake.setups == ["x = 1"]
    Judge(fake, LIMITS).run(dataclasses.replace(ADD, cpu_s=1e9, memory_mb=16), GOLD, own.hidden)
    assert fake.limits[1] is not None and fake.limits[1].cpu_s == 60.0 and fake.limits[1].memory_mb == 512


def test_a_program_is_not_run_twice_on_the_same_tests_unless_time_ran_out() -> None:
    fake, other = FakeSandbox(SCRIPT), FakeSandbox(SCRIPT)
    first = Judge(fake, LIMITS).run(ADD, WRONG, ADD.hidden)
    assert Judge(fake, Limits()).run(ADD, WRONG, ADD.hidden) == first and len(fake.runs) == 1
    Judge(fake, LIMITS).run(ADD, WRONG, ADD.public)
    Judge(fake, Limits(cpu_s=1.0)).run(ADD, WRONG, ADD.hidden)
    Judge(fake, LIMITS).run(dataclasses.replace(ADD, setup="x = 1"), WRONG, ADD.hidden)
    assert len(fake.runs) == 4
    Judge(other, LIMITS).run(ADD, WRONG, ADD.hidden)
    assert len(other.runs) == 1
    slow = FakeSandbox({"program": lambda a, b: CallResult("timeout")})
    for _ in range(2):
        Judge(slow, LIMITS).run(ADD, "program", ADD.hidden)
    assert len(slow.runs) == 2


# A data set's own checker -------------------------------------------------------------------------------

EVEN = """
import sys
given, answer, output = (open(name).read() for name in sys.argv[1:4])
assert sys.stdin.read() == output
n = int(output)
print("checking", n, "for", given, answer)
print(1 if n % 2 == 0 else 0)
"""


def own(checker: str) -> CodeProblem:
    return dataclasses.replace(SUM, hidden=stdio(("7", "2")), checker=checker, solution="print(2)")


@pytest.mark.parametrize(("program", "verdict"), [
    ("print(4)", "passed"), ("print(3)", "wrong_answer"), ("print('none of your business')", "wrong_answer"),
    ("print('x' * 50_000)", "wrong_answer"), ("print()", "wrong_answer"),
])  # fmt: skip
def test_a_checker_runs_in_the_sandbox_and_breaking_it_has_no_reward(
    sandbox: Sandbox, program: str, verdict: str
) -> None:
    problem = own(EVEN)
    assert Judge(sandbox, LIMITS).run(problem, program, problem.hidden)[0].verdict == verdict


@pytest.mark.parametrize(
    "checker", ["import nowhere", "def (", "print('perhaps')", "", "raise SystemExit(3)"], ids=range(5)
)
def test_a_checker_that_does_not_work_is_an_error_and_no_verdict(sandbox: Sandbox, checker: str) -> None:
    problem = own(checker or "pass")
    with pytest.raises(DataError, match="Problem 'sum/0': its own checker does not work"):
        Judge(sandbox, LIMITS).run(problem, "print(3)", problem.hidden)


@pytest.mark.parametrize(("cpu_s", "whose"), [(0.2, SandboxError), (21.0, DataError)])
def test_a_checker_that_the_machine_keeps_from_its_work_gives_no_verdict(cpu_s: float, whose: type[Exception]) -> None:
    fake = FakeSandbox({"program": lambda stdin: "5"})
    real = fake.run_stdio
    fake.run_stdio = lambda source, stdin, *, prelude="", limits=None: (  # type: ignore[method-assign]
        real(source, stdin) if source == "program" else StdioResult("timeout", b"", "hidden text", cpu_s, 90.0)
    )
    problem = own("the checker")
    with pytest.raises(whose, match="Problem 'sum/0': its own checker") as caught:
        Judge(fake, LIMITS).run(problem, "program", problem.hidden)
    assert is_infrastructure_error(caught.value) is (whose is SandboxError) and "hidden text" not in str(caught.value)


@pytest.mark.parametrize(("said", "right"), [("100", True), ("ok", True), ("0.5", False), ("Wrong", False)])
def test_words_of_a_checker(said: str, right: bool) -> None:
    fake = FakeSandbox({"program": lambda stdin: "5"})
    real = fake.run_stdio
    fake.run_stdio = lambda source, stdin, *, prelude="", limits=None: (  # type: ignore[method-assign]
        real(source, stdin, limits=limits) if source == "program" else StdioResult("ok", f"hm\n{said}\n".encode())
    )
    problem = own("the checker")
    verdict = Judge(fake, LIMITS).run(problem, "program", problem.hidden)[0].verdict
    assert verdict == ("passed" if right else "wrong_answer")


# The real sandbox ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("program", "verdict"), [
    (GOLD, "passed"), (WRONG, "wrong_answer"), (CRASH, "runtime_error"),
    ("def add(a, b):\n    while True: pass", "timeout"),
    ("def add(a, b):\n    return [0] * 10**10", "memory_limit"),
    ("def add(a, b):\n    return object()", "wrong_answer"),
    ("def add(a, b):\n    return 'x' * 10**6", "output_limit"),
    ("def add(a, b) return", "compile_error"), ("def sub(a, b):\n    return a + b", "no_entry_point"),
    ("add = 3", "no_entry_point"),
    ("import os\ndef add(a, b):\n    os._exit(0)", "runtime_error"),
    ("raise ValueError('no')", "runtime_error"),
    ("class Same(int):\n    def __eq__(self, other): return True\ndef add(a, b):\n    return Same(3)", "wrong_answer"),
])  # fmt: skip
def test_functions_in_the_sandbox(sandbox: Sandbox, program: str, verdict: str) -> None:
    judge = Judge(sandbox, Limits(cpu_s=0.5, wall_s=3.0))
    assert judge.report(ADD, program, ADD.hidden).verdict == verdict


@pytest.mark.parametrize(("program", "verdict"), [
    ("print(sum(map(int, input().split())))", "passed"), ("print(77)", "wrong_answer"),
    ("import sys; sys.stdout.buffer.write(b'\\xff\\x00')", "wrong_answer"),
    ("print(1 / 0)", "runtime_error"), ("while True: pass", "timeout"), ("print(", "compile_error"),
    ("while True: print('x' * 1000)", "output_limit"),
    ("import sys; print(sum(map(int, input().split()))); sys.exit(0)", "passed"),
    ("import sys; print(sum(map(int, input().split()))); sys.exit(1)", "runtime_error"),
])  # fmt: skip
def test_programs_in_the_sandbox(sandbox: Sandbox, program: str, verdict: str) -> None:
    judge = Judge(sandbox, Limits(cpu_s=0.5, wall_s=3.0))
    assert judge.report(SUM, program, SUM.hidden).verdict == verdict


def test_a_method_and_an_expression_with_setup(sandbox: Sandbox) -> None:
    program = "class Solution:\n    def add(self, a, b):\n        return a + b\n"
    method = dataclasses.replace(ADD, entry_point="Solution.add")
    assert Judge(sandbox, LIMITS).report(method, program, method.hidden).all_passed
    expression = dataclasses.replace(ADD, setup="x = add(1, 1)", hidden=(Test("expr", "add(x, 3)", "5"),))
    assert Judge(sandbox, LIMITS).report(expression, GOLD, expression.hidden).all_passed


# Scores -------------------------------------------------------------------------------------------------


def test_scores_of_a_report() -> None:
    half = Report((TestResult("passed"), TestResult("timeout")))
    whole = Report((TestResult("passed"),) * 2)
    for reward, of_half in (("mixed", 0.15), ("fraction", 0.5), ("all", 0.0), ("difference", 0.15)):
        assert score(reward, half) == of_half
        assert score(reward, whole) == 1.0
        assert score(reward, Report.same("no_code", 2)) == 0.0


def test_pass_at_k_and_pass_hat_k_are_the_chances_over_all_draws() -> None:
    for n in range(1, 8):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            draws = list(itertools.combinations([i < c for i in range(n)], k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))
            assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, draws)) / len(draws))
    assert pass_at_k(10_000, 1, 5_000) == pass_hat_k(10_000, 9_999, 5_000) == pytest.approx(0.5)
    for bad in ((5, 6, 1), (5, -1, 1), (5, 1, 0), (5, 1, 6)):
        with pytest.raises(ConfigError, match="pass@k"):
            pass_at_k(*bad)
        with pytest.raises(ConfigError, match=r"pass\^k"):
            pass_hat_k(*bad)


# Every value has a verdict ------------------------------------------------------------------------------

HUGE = st.sampled_from([1300, 40_000]).map(lambda bits: 1 << bits)  # beyond the floats; beyond 4,300 digits
NUMBERS = st.integers() | st.floats() | st.booleans() | HUGE | HUGE.map(lambda one: -one)
LEAVES = NUMBERS | st.none() | st.complex_numbers() | st.text(max_size=4) | st.binary(max_size=4)
CONTAINERS = in_containers(LEAVES, 3, 8)


def nested(value: Any, depth: int, make: Any) -> Any:
    for _ in range(depth):
        value = make(value)
    return value


DECODABLE = CONTAINERS | st.builds(
    nested,
    CONTAINERS,
    st.integers(0, 95),
    st.sampled_from([lambda one: [one], lambda one: (one,), lambda one: {1: one}]),
)
EXPECTED = ("1", "1.5", "1e999", "'a'", "[1, 2.0]", "(1,)", "{1, 'a'}", "{1: [2]}", "True", "None", "[[[]]]", "1j",
            hex(10**400), f"[{hex(1 << 40_000)}]", f"{{{hex(1 << 40_000)}}}", f"{{{hex(1 << 40_000)}: 1.0}}")  # fmt: skip


@settings(max_examples=250, deadline=None)
@example(10**400, "poly_root", "1.5", (1e-6, 1e-3))
@example({1 << 40_000}, "exact", "{1, 'a'}", (0.0, 0.0))
@example({1 << 40_000: 1}, "exact", "{1: [2]}", (0.0, 0.0))
@given(DECODABLE, st.sampled_from(VALUE_CHECKS), st.sampled_from(EXPECTED), st.sampled_from([(0.0, 0.0), (1e-6, 1e-3)]))
def test_every_check_of_every_value_that_can_come_back_is_a_bool(
    value: Any, check: str, expected: str, near: tuple[float, float]
) -> None:
    value = values.decode(values.encode(value, 1 << 20))
    arguments = "[[-6, 11.0, -6, 1]]" if check == "poly_root" else "[]"
    assert value_agrees(value, Test("call", arguments, expected, check, *near), ADD) in (True, False)
    assert isinstance(written(value), str)


@settings(max_examples=100, deadline=None)
@given(
    st.text(max_size=30) | st.from_regex(r"[0-9.e+\- \n]{0,60}"), st.sampled_from(OUTPUT_CHECKS), st.text(max_size=8)
)
def test_every_check_of_every_output_is_a_bool(text: str, check: str, expected: str) -> None:
    for wanted in (expected, "1.5 2", "9" * 399 + ".0", "1e999", "yes\n1 2"):
        assert output_agrees(text, Test("stdio", "", wanted, check, 1e-6, 1e-6), SUM) in (True, False)


def test_values_of_thousands_of_digits_are_compared_by_type_and_value() -> None:
    huge = 1 << 40_000
    for expected, right, wrong in (
        (f"{{{hex(huge)}}}", {huge}, [{huge + 1}, {1}, {1.0}]),
        (f"{{{hex(huge)}: 1}}", {huge: 1}, [{huge: 1.0}, {huge + 1: 1}]),
        ("{1, (2, 3)}", {(2, 3), 1}, [{True, (2, 3)}, {1, (2.0, 3)}, {1}]),
        ("{1: 2}", {1: 2}, [{True: 2}]),
    ):
        test = Test("call", "[]", expected, "exact")
        assert value_agrees(right, test, ADD)
        assert not any(value_agrees(one, test, ADD) for one in wrong)


def test_a_long_answer_in_another_order_is_compared_quickly() -> None:
    many = list(range(30_000))
    start = time.process_time()
    assert value_agrees(many[::-1], Test("call", "[]", repr(many), "set"), ADD)
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
    "test",
    [
        Test("call", "[1, 2]", "0.0", "poly_root", 1e-4),
        Test("call", "[['a']]", "0.0", "poly_root", 1e-4),
        Test("call", "[[]]", "0.0", "poly_root", 1e-4),
        Test("call", "[]", "1", "approx", "1e-6"),  # type: ignore[arg-type]
        Test("call", "[]", "1", "loose", 0.0, math.nan),
        Test("call", "[]", "1", "approx", 10**400),
    ],
)
def test_a_malformed_test_is_an_error_of_the_data_that_names_the_problem(test: Test) -> None:
    with pytest.raises(DataError, match="add/0"):
        value_agrees(1.0, test, ADD)
