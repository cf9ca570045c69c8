"""Whether a program's value or output is the one expected. All of it runs in the host, on decoded built-in values.

The exception is a data set's own checker program, which somebody else wrote: it runs in the sandbox.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from marft_envs.errors import DataError, did_you_mean
from marft_envs.families.code import schema
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.sandbox import Limits, Sandbox, SandboxError, StdioResult

TOLERANCE = 1e-6
"""Absolute, and above 1 relative, of tokens for which the expected output writes a decimal point: the usual tolerance
of programming contests."""
MAX_DEPTH = 100
"""Values nested deeper are equal to nothing."""
CHECKER_CPU_S = 10.0
"""CPU seconds of a data set's own checker for one output."""

_NUMBER = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,4})?", re.ASCII)


def literal(text: str, problem: CodeProblem) -> Any:
    """Returns the value of a literal of the data.

    Raises:
        DataError: It is none. The message names the problem and does not repeat the text, which may be hidden.
    """
    try:
        return _literal(text) if len(text) <= 10_000 else ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise DataError(
            f"Problem '{problem.id}': a test's arguments or expected value is no Python literal "
            f"({type(error).__name__}). Fix the data; the expected value of kind 'expr' is a literal, too."
        ) from None


@functools.lru_cache(maxsize=4096)
def _literal(text: str) -> Any:
    return ast.literal_eval(text)


# Values of calls --------------------------------------------------------------------------------------


def equal(got: Any, expected: Any) -> bool:
    """Python's ``==`` on built-in values: numbers by value (``1 == 1.0 == True``), NaN equal to nothing."""
    try:
        return bool(got == expected)
    except RecursionError:
        return False


def _exact(got: Any, expected: Any, depth: int = 0) -> bool:
    """Equal, and of the same types throughout: 1 is neither 1.0 nor True."""
    if type(got) is not type(expected) or depth > MAX_DEPTH:
        return False
    if isinstance(expected, list | tuple):
        pairs = zip(got, expected, strict=False)
        return len(got) == len(expected) and all(_exact(a, b, depth + 1) for a, b in pairs)
    if isinstance(expected, dict):
        same = _typed(frozenset(got)) == _typed(frozenset(expected))
        return same and all(_exact(got[key], value, depth + 1) for key, value in expected.items())
    if isinstance(expected, set | frozenset):
        return bool(_typed(frozenset(got)) == _typed(frozenset(expected)))
    return equal(got, expected)


def _typed(value: Any) -> Any:
    """A hashable value with its types spelled out, so that ``==`` tells 1 from 1.0 and True."""
    if isinstance(value, tuple):
        return tuple, tuple(map(_typed, value))
    if isinstance(value, frozenset):
        return frozenset, frozenset(map(_typed, value))
    return type(value), value


def _approx(got: Any, expected: Any, test: Test, *, loose: bool = False, depth: int = 0) -> bool:
    """Numbers within the test's tolerances, anywhere in lists, tuples (the two alike) and the values of dicts.

    Args:
        got: What came back.
        expected: What the test expects.
        test: With its tolerances.
        loose: Where one side is a set, order and repetition do not count: for data whose types were flattened on their
            way through JSON.
        depth: How deep in the values these two are.
    """

    def same(one: Any, other: Any) -> bool:
        return _approx(one, other, test, loose=loose, depth=depth + 1)

    if depth > MAX_DEPTH:
        return False
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return _near(got, expected, test.atol, test.rtol)
    rows, sets = list | tuple, set | frozenset
    if loose and (isinstance(got, sets) or isinstance(expected, sets)):
        if isinstance(got, rows | sets) and isinstance(expected, rows | sets):
            return all(any(same(a, b) for b in expected) for a in got) and all(
                any(same(b, a) for a in got) for b in expected
            )
    elif isinstance(expected, rows) and isinstance(got, rows):
        return len(got) == len(expected) and all(map(same, got, expected))
    elif isinstance(expected, dict) and isinstance(got, dict):
        return len(got) == len(expected) and all(key in got and same(got[key], b) for key, b in expected.items())
    return equal(got, expected)


def _near(got: float, expected: float, atol: float, rtol: float) -> bool:
    if got == expected:
        return True
    try:
        finite = math.isfinite(got) and math.isfinite(expected)
        return finite and abs(got - expected) <= atol + rtol * abs(expected)
    except OverflowError:
        return False  # an int beyond the floats, and not the one expected


def _any_order(got: Any, expected: Any) -> bool:
    """The same elements, as often, in any order; whether list, tuple or set does not matter."""
    kinds = list | tuple | set | frozenset
    if not (isinstance(got, kinds) and isinstance(expected, kinds) and len(got) == len(expected)):
        return equal(got, expected)
    try:  # where all elements can be hashed, the time is linear: an answer may have tens of thousands
        return Counter(got) == Counter(expected)
    except TypeError:
        left = list(got)
    for wanted in expected:
        place = next((i for i, one in enumerate(left) if equal(one, wanted)), None)
        if place is None:
            return False
        del left[place]
    return True


_TUPLES = {"livecodebench": 1, "apps": 2}
"""Levels at which the rules of a set take a tuple for the list that its values in JSON have instead."""


def _listed(value: Any, levels: int) -> Any:
    """A value with lists in place of its tuples, down to so many levels."""
    return value if not levels or not isinstance(value, list | tuple) else [_listed(item, levels - 1) for item in value]


def _poly_root(got: Any, test: Test, problem: CodeProblem) -> bool:
    """A root, within ``atol``, of the polynomial whose coefficients, the lowest first, are the only argument."""
    coefficients = schema.coefficients(literal(test.input, problem), f"Problem '{problem.id}'")
    if not isinstance(got, int | float):
        return False
    try:
        return math.isfinite(got) and abs(sum(c * math.pow(got, i) for i, c in enumerate(coefficients))) < test.atol
    except OverflowError:
        return False  # an int, or a power of it, beyond the floats


def value_agrees(got: Any, test: Test, problem: CodeProblem) -> bool:
    """Returns whether the value of a call or an expression is the one that the test expects.

    A bool for every value that the sandbox can return, however large or deep.

    Raises:
        DataError: The expected value is no literal, a tolerance is no number, or the test names no known check.
    """
    schema.check_tolerances(test.atol, test.rtol, f"Problem '{problem.id}'")
    expected = literal(test.expected, problem)
    if test.check in ("", "equal"):
        return equal(got, expected)
    if test.check == "approx":
        return _approx(got, expected, test)
    if test.check == "exact":
        return _exact(got, expected)
    if test.check == "set":
        return _any_order(got, expected)
    if test.check == "loose":
        return _approx(got, expected, test, loose=True)
    if test.check == "poly_root":
        return _poly_root(got, test, problem)
    if test.check in _TUPLES:
        return equal(_listed(got, _TUPLES[test.check]), expected)
    if test.check in OUTPUT_CHECKS and isinstance(got, str) and isinstance(expected, str):
        return OUTPUT_CHECKS[test.check](got, expected, test)
    if test.check in OUTPUT_CHECKS:
        return equal(got, expected)
    raise _unknown(test.check, problem, ("equal", "set", "loose", "poly_root", *OUTPUT_CHECKS))


def _unknown(check: str, problem: CodeProblem, known: tuple[str, ...]) -> DataError:
    return DataError(f"Problem '{problem.id}': there is no check '{check}'. {did_you_mean(check, set(known))}")


# Standard output --------------------------------------------------------------------------------------


def _token(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if "." not in expected or not (_NUMBER.fullmatch(got) and _NUMBER.fullmatch(expected)):
        return False
    a, b = float(got), float(expected)
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= TOLERANCE * max(1.0, abs(b))


def _tokens(got: str, expected: str, test: Test) -> bool:
    a, b = got.split(), expected.split()
    return len(a) == len(b) and all(map(_token, a, b))


def _yesno(got: str, expected: str, test: Test) -> bool:
    a, b = got.split(), expected.split()
    words = ("yes", "no")
    return len(a) == len(b) and all(
        x.lower() == y.lower() if y.lower() in words else _token(x, y) for x, y in zip(a, b, strict=True)
    )


def _lines(got: str, expected: str, test: Test) -> bool:
    """Line by line, blanks inside a line included; blanks at a line's end and blank lines at the end do not count."""
    a, b = ([line.rstrip() for line in text.rstrip().splitlines()] for text in (got, expected))
    return a == b


def _set(got: str, expected: str, test: Test) -> bool:
    """Lines of tokens in any order; where one line is expected, its tokens in any order."""
    a, b = ([line.split() for line in text.splitlines() if line.strip()] for text in (got, expected))
    return sorted(got.split()) == sorted(b[0]) if len(b) == 1 else sorted(a) == sorted(b)


def _approx_tokens(got: str, expected: str, test: Test) -> bool:
    """Tokens that are numbers on both sides within the test's tolerances, the others as they are."""
    a, b = got.split(), expected.split()
    return len(a) == len(b) and all(
        x == y
        or bool(_NUMBER.fullmatch(x) and _NUMBER.fullmatch(y) and _near(float(x), float(y), test.atol, test.rtol))
        for x, y in zip(a, b, strict=True)
    )


def _livecodebench(got: str, expected: str, test: Test) -> bool:
    """LiveCodeBench's rule: line by line, as text, or else as decimal numbers without any tolerance."""
    a, b = ([line.strip() for line in text.strip().split("\n")] for text in (got, expected))
    return len(a) == len(b) and all(x == y or _same_decimals(x, y) for x, y in zip(a, b, strict=True))


def _same_decimals(got: str, expected: str) -> bool:
    try:
        a, b = ([Decimal(token) for token in line.split()] for line in (got, expected))
        return a == b
    except InvalidOperation:  # no number, or the NaN that cannot be compared
        return False


def _apps(got: str, expected: str, test: Test) -> bool:
    a, b = got.split(), expected.split()
    return len(a) == len(b) and all(map(_apps_token, a, b))


def _apps_token(got: str, expected: str) -> bool:
    """The rule of APPS, without what accepts wrong outputs: as ``tokens``, or as numbers, to 1e-5 with a point."""
    if _token(got, expected):
        return True
    if not (_NUMBER.fullmatch(got) and _NUMBER.fullmatch(expected)):
        return False
    return _near(float(got), float(expected), 1e-8, 1e-5) if "." in expected else _same_decimals(got, expected)


OUTPUT_CHECKS: dict[str, Callable[[str, str, Test], bool]] = {
    "tokens": _tokens, "yesno": _yesno, "lines": _lines, "set": _set, "approx": _approx_tokens,
    "exact": lambda got, expected, test: got == expected, "livecodebench": _livecodebench, "apps": _apps,
}  # fmt: skip
"""Checks of standard output by name; ``tokens`` is the default."""


def output_agrees(got: str, test: Test, problem: CodeProblem) -> bool:
    """Returns whether an output is the one that the test expects, by one of :data:`OUTPUT_CHECKS`.

    Raises:
        DataError: The test names no known check, or a tolerance is no number.
    """
    schema.check_tolerances(test.atol, test.rtol, f"Problem '{problem.id}'")
    check = test.check or "tokens"
    if check not in OUTPUT_CHECKS:
        raise _unknown(check, problem, tuple(OUTPUT_CHECKS))
    return OUTPUT_CHECKS[check](got, test.expected, test)


# A data set's own checker ------------------------------------------------------------------------------

# The three files exist only in the checker's memory, so it needs no file system. Its standard input is the output.
_HARNESS = """\
import builtins, io, json, sys

given = json.loads(sys.stdin.read())
files, real_open = given["files"], builtins.open


def open_given(file, mode="r", *args, **kwargs):
    if file in files and not set(mode) & set("wax+"):
        text = files[file]
        return io.BytesIO(text.encode("utf-8", "replace")) if "b" in mode else io.StringIO(text)
    return real_open(file, mode, *args, **kwargs)


builtins.open = io.open = open_given
sys.argv = ["checker.py", *files]
sys.stdin = io.TextIOWrapper(io.BytesIO(files["output.txt"].encode("utf-8", "replace")), "utf-8")
exec(compile(given["source"], "checker.py", "exec"), {"__name__": "__main__"})
"""
_ACCEPTED = frozenset(("1", "1.0", "100", "100.0", "ok", "yes", "true", "accepted", "correct"))
_REJECTED = frozenset(("0", "0.0", "no", "false", "wrong", "wrong_answer", "rejected", "incorrect"))


def program_accepts(sandbox: Sandbox, got: str, test: Test, problem: CodeProblem, limits: Limits) -> bool:
    """Asks the data set's own checker, in the sandbox, about an output.

    The checker is a Python program. ``sys.argv[1:4]`` name three files that it may open: the test's input, the
    expected output and the output to judge, which also is its standard input. Its last line decides: 1, 100, ok, yes,
    true, accepted or correct; or a number in between, 0, no, false, wrong, rejected or incorrect.

    A checker that breaks on an output which it should have rejected has rejected it, if it accepts the expected one.

    Raises:
        DataError: The checker does not accept the expected output either; the message names the problem.
        SandboxError: The machine kept it from judging the expected output.
    """
    verdict, _ = _ask(sandbox, got, test, problem, limits)
    if verdict is not None:
        return verdict
    verdict, ended = _ask(sandbox, test.expected, test, problem, limits)
    if verdict:
        return False
    if ended.cut_short(limits):
        raise SandboxError(
            f"Problem '{problem.id}': its own checker was cut short on the expected output ({ended.status}). No "
            "verdict follows. Give the machine less to do; if it stays so, the checker waits for something: fix it."
        )
    status = ended.status if ended.status != "ok" else "it printed no verdict"
    raise DataError(
        f"Problem '{problem.id}': its own checker does not work ({status}), and does not accept the expected output "
        "either. Expected: a Python program that prints 1 or 0 last. Fix or remove 'checker' in the data."
    )


def _ask(
    sandbox: Sandbox, got: str, test: Test, problem: CodeProblem, limits: Limits
) -> tuple[bool | None, StdioResult]:
    """The checker's word (None: it has none), and its run. Its output may hold hidden text: never shown."""
    files = {"input.txt": test.input, "answer.txt": test.expected, "output.txt": got}
    result = sandbox.run_stdio(_HARNESS, json.dumps({"files": files, "source": problem.checker}), limits=limits)
    if result.status != "ok":
        return None, result
    words = result.stdout.decode("utf-8", "replace").split()
    word = words[-1].strip(".!").lower() if words else ""
    if word in _ACCEPTED:
        return True, result
    if word in _REJECTED or (_NUMBER.fullmatch(word) and 0 <= float(word) < 100):
        return False, result
    return None, result
