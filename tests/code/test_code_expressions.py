"""Tests of kind ``expr``: text in, reward out. Nothing is decided where the program lives."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from helpers.fake_sandbox import FakeSandbox
from marft_envs.core.faults import is_infrastructure_error
from marft_envs.errors import DataError
from marft_envs.families.code import data
from marft_envs.families.code.data import rows_to_problems
from marft_envs.families.code.expressions import _CLEAN
from marft_envs.families.code.hub import last_tally
from marft_envs.families.code.judge import Judge
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.families.code.setup_code import read_setup
from marft_envs.sandbox import CallResult, Limits, Sandbox, SandboxError
from marft_envs.sandbox.types import KILLED


def row(entry: str, tests: list[tuple[str, str]], setup: str = "", **more: Any) -> dict[str, Any]:
    kinds = [{"kind": "expr", "expr": text, "expected": expected, "visibility": "hidden"} for text, expected in tests]
    return {"id": entry, "mode": "function", "prompt": "Do it.", "entry_point": entry, "tests": kinds,
            "metadata": {"test_setup_code": setup}, **more}  # fmt: skip


def reward_of(folder: Path, problem: dict[str, Any], program: str, reward: str = "fraction") -> float:
    """The reward of a program, through the public environment."""
    path = folder / "own.jsonl"
    path.write_text(json.dumps(problem))
    env = marft_envs.make("code-solo-v0", data=str(path), split="all", reward=reward)
    env.reset(seed=0)
    env.step(f"```python\n{program}\n```")
    return float(env.episode.team_return)


ENCODE = "def encode(s):\n    return ''.join(chr((ord(c) - 92) % 26 + 97) for c in s)\n"
DECODE = "def decode(s):\n    return ''.join(chr((ord(c) - 102) % 26 + 97) for c in s)\n"
ROUND_TRIPS = row("decode", [(f"decode(encode({text!r}))", repr(text)) for text in ("xy", "hello", "zebra")], ENCODE)
DECISIONS = row("near", [
    ("not not (near(3) in (4, 5))", "True"), ("not not (near(3) < 5)", "True"), ("not not (near(3) != 3)", "True"),
    ("not not all(near(x) > x for x in [1, 2, 3])", "True"), ("any(near(x) == 7 for x in range(9))", "True"),
    ("len(str(near(10))) == 2", "True"), ("sorted([near(2), near(1)]) == [2, 3]", "True"),
    ("not (near(0) - 1)", "True"), ("4 in {near(3)}", "True"), ("near(near(1)) == 3", "True"),
    ("list(map(near, [1, 2])) == [2, 3]", "True"), ("isinstance(near(1), int) and near(1) == 2", "True"),
])  # fmt: skip
NEAR = "def near(x):\n    return x + 1\n"

ALWAYS = """
class Always:
    def __eq__(self, other): return True
    __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __contains__ = __eq__
    __hash__ = lambda self: 5
    __sub__ = __add__ = __getitem__ = __iter__ = lambda self, *_: iter([])
    __len__ = lambda self: 2
    __str__ = lambda self: "11"
"""
HOSTILE = {
    "the constants of the test": "import sys\ndef {f}(s): return sys._getframe(1).f_code.co_consts[0]",
    "the last constant of the test": "import sys\ndef {f}(s): return sys._getframe(1).f_code.co_consts[-1]",
    "the constants of every frame": """
import sys
def {f}(s):
    frame = sys._getframe(1)
    while frame:
        for one in frame.f_code.co_consts:
            if isinstance(one, (str, tuple)) and one != s and one: return one[0] if isinstance(one, tuple) else one
        frame = frame.f_back
""",
    "what the collector and the frames know": """
import gc, sys
def {f}(s):
    frame, seen = sys._getframe(1), []
    while frame:
        seen += list(frame.f_locals.values()) + list(frame.f_globals.values())
        frame = frame.f_back
    for one in seen + gc.get_objects():
        if type(one) is dict and type(one.get("text")) is str:
            return one["text"].partition("'")[2].partition("'")[0]
""",
    "an object that is equal to all": ALWAYS + "def {f}(s): return Always()",
    "a str and int that are equal to all": ALWAYS + "class S(Always, int): pass\ndef {f}(s): return S(4)",
    "shadowed functions": """
def all(x): return True
any = bool = isinstance = len = sorted = list = map = str = encode = lambda *x: True
def {f}(s): return None
""",
    "patched builtins": """
import builtins
for name in "all any bool len sorted list map isinstance str repr eval exec compile".split():
    setattr(builtins, name, lambda *x, **y: True)
def {f}(s): return None
""",
    "its caller's locals": """
import sys
def {f}(s):
    frame = sys._getframe(1)
    while frame:
        frame.f_globals["_program"] = frame.f_globals["evaluate"] = lambda *x: True
        frame = frame.f_back
    return True
""",
    "the name by which it is asked": "_program = evaluate = lambda *x: True\ndef {f}(*x): return True",
    "everything it was ever given": "given = []\ndef {f}(s):\n    given.append(s)\n    return given[0]",
}


def test_honest_programs_are_rewarded(sandbox: Sandbox, tmp_path: Path) -> None:
    assert reward_of(tmp_path, ROUND_TRIPS, ENCODE + DECODE) == reward_of(tmp_path, ROUND_TRIPS, DECODE) == 1.0
    assert reward_of(tmp_path, DECISIONS, NEAR) == 1.0
    assert reward_of(tmp_path, DECISIONS, NEAR + "def helper(): pass\n__all__ = ['near']\n") == 1.0


@pytest.mark.parametrize("name", HOSTILE)
def test_no_program_is_rewarded_for_what_it_reads_or_renames(name: str, sandbox: Sandbox, tmp_path: Path) -> None:
    assert reward_of(tmp_path, ROUND_TRIPS, HOSTILE[name].replace("{f}", "decode")) == 0.0
    near = HOSTILE[name].replace("{f}", "near")
    assert reward_of(tmp_path, DECISIONS, near, "all") == 0.0
    assert reward_of(tmp_path, DECISIONS, near) < 0.5  # a constant is right now and then: True - 1 is 0, 3 is below 5


@pytest.mark.parametrize("name", ["HumanEval/38", "HumanEval/50"])
def test_round_trips_of_the_hubs_humaneval_rows(name: str, sandbox: Sandbox) -> None:
    """The form of the hub's rows: the encoder is in the prompt, the test draws random texts."""
    kind = "cyclic" if name.endswith("38") else "shift"
    prompt = (
        f"def encode_{kind}(s: str):\n    return s[::-1] + '!'\n\n\ndef decode_{kind}(s: str):\n    '''Undo it.'''\n"
    )
    test = "def check(candidate):\n    from random import choice\n    for _ in range(100):\n        text = str(choice('ab'))\n" \
        f"        assert candidate(encode_{kind}(text)) == text\n"  # fmt: skip
    given = {"task_id": name, "prompt": prompt, "canonical_solution": "    return s[:-1][::-1]\n", "test": test,
             "entry_point": f"decode_{kind}"}  # fmt: skip
    (problem,) = rows_to_problems("humaneval", [given])
    every = [*problem.public, *problem.hidden]
    judge = Judge(sandbox, Limits())
    assert len(every) == 9 and judge.report(problem, problem.solution, every).all_passed
    for source in HOSTILE.values():
        done = judge.report(problem, prompt + "    pass\n" + source.replace("{f}", problem.entry_point), every)
        assert done.passed <= 1, source  # one of the texts is empty, which is soon guessed


def test_assertions_of_the_hubs_mbpp_rows_are_decided_outside(sandbox: Sandbox) -> None:
    lines = ["assert near(3) in (4, 5)", "assert near(3) < 5", "assert all(near(x) > x for x in (1, 2))"]
    given = {"task_id": 1, "text": "Near.", "code": NEAR, "test_list": lines, "test_setup_code": ""}
    (problem,) = rows_to_problems("mbpp", [given])
    every, judge = [*problem.public, *problem.hidden], Judge(sandbox, Limits())
    assert len(every) == 3 and judge.report(problem, NEAR, every).all_passed
    for source in HOSTILE.values():
        assert judge.report(problem, source.replace("{f}", "near"), every).passed <= 1, source  # 3 is below 5


# What can be taken apart --------------------------------------------------------------------------------

SUM = "def add(a, b=1):\n    return a + b\n"
STACK = "class Stack:\n    def __init__(self, n=0):\n        self.n = n\n    def size(self):\n        return self.n\n"
STACK += "    def push(self):\n        self.n += 1\n        return self\n"
ADDER = "def add(m):\n    return lambda n: m + n\n"
COUNT = """
def count(n=None):
    if n is not None and type(n) is not int and n != 'slow':
        assert iter(n) is n
        yield from n
        return
    i = 0
    while n is None or n == 'slow' or i < n:
        yield i
        i += 1
        while n == 'slow' and i == 4: pass
"""
RIGHT = [
    ("add(2, 3)", "5", "", SUM), ("add(2, b=3) * 2", "10", "", SUM), ("add(*[1, 2])", "3", "", SUM),
    ("[add(x, y) for x in range(3) for y in (1, 2) if x]", "[2, 3, 3, 4]", "", SUM),
    ("sum(map(add, [1, 2, 3]))", "9", "", SUM), ("(lambda x: add(x, x))(4)", "8", "", SUM),
    ("add(x, 3)", "5", "x = add(1, 1)", SUM),
    ("twice(4)", "9", "def twice(n):\n    return add(n, add(n))", SUM),
    ("math.floor(add(0.5, 1))", "1", "", SUM), ("f'{add(1, 2)}!'", "'3!'", "", SUM),
    ("add(float('inf'), 1) == float('inf')", "True", "", SUM), ("add({1: [2]}[1], [3])", "[2, 3]", "", SUM),
    ("sorted({add(1): 'a', add(2): 'b'}.items())[0][1]", "'a'", "", SUM),
    ("keep((1, 'a', 2.0), int)", "['a', 2.0]", "",
     "def keep(xs, kind): return [x for x in xs if not isinstance(x, kind)]"),
    ("keep(list(range(4)), lambda x: x % 2)", "[1, 3]", "", "def keep(xs, f): return [x for x in xs if f(x)]"),
    ("total(range(4))", "6", "", "def total(xs):\n    assert type(xs) is range\n    return sum(xs)"),
    (
        "height(root)", "2", "root = Node(1)\nroot.left = Node(2)",
        "class Node:\n    left = None\n    def __init__(self, x): self.x = x\ndef height(n): return n and 1 + (height(n.left) or 0)",
    ),
    ("first([Pair(1, 2)], 4)", "1", "",
     "class Pair:\n    def __init__(self, a, b): self.a = a\ndef first(xs, n): return xs[0].a"),
    ("add(2)(3)", "5", "", ADDER), ("add(2)(add(1)(2)) * 2", "10", "", ADDER),
    ("len(str(add(7)(n=3)))", "2", "", ADDER), ("add(2).__call__(3) + 1", "6", "", ADDER),
    ("keep(3)[1](4)", "7", "", "def keep(n): return [str, lambda m: n + m]"),
    ("keep(3).get('x')(4) < 8", "True", "", "def keep(n): return {'x': lambda m: n + m}"),
    ("list(count(4))", "[0, 1, 2, 3]", "", COUNT), ("sum(count(300))", "44850", "", COUNT),
    ("len(sorted(count(2000)))", "2000", "", COUNT), ("[n * 2 for n in count(3)]", "[0, 2, 4]", "", COUNT),
    ("next(count(4))", "0", "", COUNT), ("next(count(0), 'none')", "'none'", "", COUNT),
    ("(lambda it: (next(it), next(it), list(it)))(count(4))", "(0, 1, [2, 3])", "", COUNT),
    ("list(zip(count(), 'ab'))", "[(0, 'a'), (1, 'b')]", "", COUNT),
    ("list(itertools.islice(count(), 5))", "[0, 1, 2, 3, 4]", "", COUNT),
    ("take(7)", "[0, 1, 2, 3, 4, 5, 6]", "def take(n): return [x for _, x in zip(range(n), count())]", COUNT),
    ("count(3) == [0, 1, 2]", "False", "", COUNT), ("list(count(count(3)))", "[0, 1, 2]", "", COUNT),
    ("list(count(str(n) for n in range(2)))", "['0', '1']", "", COUNT),
    ("list(itertools.islice(count('slow'), 4))", "[0, 1, 2, 3]", "", COUNT),
    ("list(add(1, 2))", "['1', '2']", "", "list = type = isinstance = None\ndef add(a, b): return map(str, (a, b))"),
    ("total(map(int, '123'))", "5", "", "def total(xs):\n    next(xs)\n    return sum(xs)"),
    ("Stack(3).push().size()", "4", "", STACK), ("Stack(3).push().size() in (4, 5)", "True", "", STACK),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected", "setup", "program"), RIGHT)
def test_what_can_be_taken_apart_is_evaluated_as_a_whole(
    text: str, expected: str, setup: str, program: str, sandbox: Sandbox
) -> None:
    entry = next(
        name for name in ("add", "keep", "total", "count", "height", "first", "Stack") if f" {name}" in program
    )
    test = Test("expr", text, expected)
    problem = CodeProblem("own/1", "function", "x", (), (test,), entry_point=entry, setup=setup, solution=program)
    (result,) = Judge(sandbox, Limits()).run(problem, program, [test])
    assert result.verdict == "passed", result


RAISES = "def raises(n):\n    try:\n        f(n)\n    except ValueError:\n        return True\n    return False\n"
QUIET = "import contextlib\ndef quiet(g, n):\n    with contextlib.suppress(BaseException):\n        return g(n)\n"
REFUSED = [
    ("f(1) == Pair(1, 2)", "True", "", "class 'Pair'"),
    ("Pair(1, 2) in f(3)", "True", "", "class 'Pair'"),
    ("f(root) is root.left", "True", "root = Node(1)", "'root' is the program's own"),
    ("check is f(2)", "True", "", "'check' is the program's own"),
    ("f(g('xy'))", "'xy'", "", "'g' is given the value expected"),
    ("f(g('xy')) == 'xy'", "True", "", "'g' is given the value expected"),
    ("[f(Pair(x, 1)) for x in range(3)]", "[1]", "", "mixes"),
    ("f(g(f(1)))", "3", "", "mixes"),
    ("f(g(s='xy'))", "'xy'", "", "'g' is given the value expected"),
    ("f(h(g('xy')))", "'xy'", "", "'g' is given the value expected"),
    ("f(g('x' + 'y'))", "'xy'", "", "'g' is given the value expected"),
    ("f([g('xy')])", "['xy']", "", "'g' is given the value expected"),
    ("f([g('xy')])", "'xy'", "", "'g' is given the value expected"),
    ("f([g('x'), g('y')])", "['x', 'y']", "", "'g' is given the value expected"),
    ("f(g(['xy'], n=2)) == 'x' + 'y'", "True", "", "'g' is given the value expected"),
    ("f(g('xy')) in ('xy', 'yx')", "True", "", "'g' is given the value expected"),
    ("f(g('XY'.lower()))", "'xy'", "", "'g' is given what cannot be read off"),
    ("f(g(f'x{1}'))", "'x1'", "", "'g' is given what cannot be read off"),
    ("g(f('xy'))", "'xy'", "", "'g' is given the value expected"),
    ("all(g(f(x)) == x for x in ('ab', 'xy'))", "True", "", "'g' is given the value expected"),
    ("raises(-1)", "True", RAISES, "'raises' of the setup"),
    ("f(1) + 0 if quiet(f, 1) else 1", "True", QUIET, "'quiet' of the setup"),
    ("twice(1) + 0", "2", RAISES + "def twice(n): return raises(n) and f(n)", "'twice' of the setup"),
    ("f(2) + 0", "2", RAISES + "x = raises(1)", "the setup calls it where exceptions are caught"),
    ("f(2) + 0", "2", "try:\n    x = f(1)\nexcept:\n    x = 2", "the setup calls it where exceptions are caught"),
    ("f(1)", "1", "def broken(:", "the setup cannot be read"),
    ("f(" + "(" * 5000 + "1" + ")" * 5000 + ")", "1", "", "no Python expression"),
]


@pytest.mark.parametrize(("text", "expected", "setup", "says"), REFUSED)
def test_what_cannot_be_taken_apart_is_refused_at_load(
    text: str, expected: str, setup: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(row("f", [("f(1)", "1"), (text, expected)], setup)))
    with pytest.raises(DataError, match=says) as caught:
        data.load(path, "all")
    assert f"{path}, line 1, test" in str(caught.value)


KEPT = [
    ("f(reverse([1, 2, 3]))", "[3, 2, 1]", ""), ("f(g([3, 4], key=True), 1)", "True", ""), ("f(g(4)) == 5", "True", ""),
    ("f(g(lambda x: x + 1))", "3", ""), ("f(g(sorted([2, 1])))", "3", ""),
    ("[f(f(x)) == x for x in (1, 2)]", "[True, True]", ""),
    ("f(int(3))", "1", "try:\n    import numpy\nexcept ImportError:\n    numpy = None"),
    ("f(2) + 0", "2", RAISES),
    ("f(number('3'))", "3", "def number(s): return int(s)\ntry:\n    n = number('x')\nexcept ValueError:\n    n = 0"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected", "setup"), KEPT)
def test_what_only_looks_like_it_is_not_refused(text: str, expected: str, setup: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(row("f", [("f(1)", "1"), (text, expected)], setup)))
    assert len(data.load(path, "all")) == 1


def test_setup_that_catches_is_counted_in_a_hub_set() -> None:
    lines = ["assert near(3) == 4", "assert raises(-1)", "assert near(3) + 0 == 4"]
    setup = RAISES.replace("f(", "near(")
    given = {"task_id": 1, "text": "Near.", "code": NEAR, "test_list": lines, "test_setup_code": setup}
    given["test_list"] = [*lines, "assert raises(near(2))"]
    (problem,) = rows_to_problems("mbpp", [given])
    assert len([*problem.public, *problem.hidden]) == 2
    assert last_tally("mbpp", "test")["tests decided inside the program's process"] == 1


def test_a_request_that_something_swallows_is_not_lost(sandbox: Sandbox) -> None:
    """A thread swallows every exception, and no syntax tells."""
    setup = """
import threading
def apart(n):
    out = []
    thread = threading.Thread(target=lambda: out.append(near(n)))
    thread.start()
    thread.join()
    return out
"""
    test = Test("expr", "apart(3)", "[4]")
    problem = CodeProblem("own/1", "function", "x", (), (test,), entry_point="near", setup=setup)
    assert Judge(sandbox, Limits()).run(problem, NEAR, [test])[0].verdict == "passed"


def test_what_cannot_be_taken_apart_in_a_hub_set_is_left_out_counted_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = ["assert near(3) == 4", "assert near(3) in [Pair(4, 5), 4]", "assert other(near(2)) == 4"]
    given = {"task_id": 1, "text": "Near.", "code": NEAR, "test_list": lines, "test_setup_code": ""}
    with caplog.at_level(logging.WARNING):
        (problem,) = rows_to_problems("mbpp", [given])
    assert len([*problem.public, *problem.hidden]) == 2
    assert last_tally("mbpp", "test") == {"tests decided inside the program's process": 1}
    assert "mbpp/test/1 (an object of the program's class 'Pair' takes part in it)" in caplog.text


def test_a_row_built_in_python_that_cannot_be_taken_apart_is_an_error_that_names_the_problem(sandbox: Sandbox) -> None:
    test = Test("expr", "f(1) == Pair(1, 2)", "True")
    problem = CodeProblem("own/1", "function", "x", (), (test,), entry_point="f")
    with pytest.raises(DataError, match="own/1"):
        Judge(sandbox, Limits()).run(problem, "def f(x): return x", [test])


@pytest.mark.parametrize(("text", "value", "verdict"), [
    ("f(1) + 1", "None", "runtime_error"), ("f(1)[0]", "[]", "runtime_error"), ("range(f(1))", "3", "wrong_answer"),
    ("[0] * f(1)", "1 << 40", "memory_limit"), ("'x' * f(1)", "1 << 26", "output_limit"),
    ("[f(x) for x in range(f(0))]", "10 ** 9", "timeout"), ("f(f(1))", "object()", "wrong_answer"),
    ("f(f(1))", "__import__('os')._exit(0)", "runtime_error"), ("f(1) + 0", "1 / 0", "runtime_error"),
    ("f(1) + 0", "10 ** 5000", "wrong_answer"), ("[f(1)]", "deep", "wrong_answer"),
    ("[f(f(1))]", "deep", "wrong_answer"),
])  # fmt: skip
def test_what_a_program_gives_to_the_rest_is_a_verdict_on_the_program(
    text: str, value: str, verdict: str, sandbox: Sandbox
) -> None:
    program = f"deep = []\nfor _ in range(99): deep = [deep]\ndef f(x): return {value}"
    test = Test("expr", text, "[]")
    problem = CodeProblem("own/1", "function", "x", (), (test,), entry_point="f")
    assert Judge(sandbox, Limits(cpu_s=2.0, wall_s=6.0)).run(problem, program, [test])[0].verdict == verdict


@pytest.mark.parametrize("then", ["5", "'ab'", "{}", "None", "iter('zz')", "iter([])", "1 / 0", "iter([0, object()])"])
def test_an_iterator_that_is_another_one_when_more_is_wanted_is_a_verdict(then: str, sandbox: Sandbox) -> None:
    """It sees in its caller's code how many items are asked for."""
    program = f"""
import sys
def f(n):
    asked = [one for one in sys._getframe(1).f_code.co_consts if hasattr(one, "co_consts")]
    return iter([0]) if asked and 1 in asked[0].co_consts else {then}
"""
    test = Test("expr", "list(f(3))", "[0, 1, 2]")
    problem = CodeProblem("own/1", "function", "x", (), (test,), entry_point="f")
    assert Judge(sandbox, Limits()).run(problem, program, [test])[0].verdict in ("wrong_answer", "runtime_error")


@pytest.mark.parametrize("name", HOSTILE)
def test_there_is_no_reward_for_what_is_not_in_a_closure_or_an_iterator(
    name: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    tests = [
        ("list(near(3))", "[3, 4]"),
        ("next(near(7)) in (7, 8)", "True"),
        ("near(2)(5)", "7"),
        ("near(2)(6) > 7", "True"),
    ]
    honest = "def near(n):\n    class Both:\n        def __call__(self, m): return n + m\n        " \
        "def __iter__(self): return self\n        def __next__(self):\n            " \
        "self.i = getattr(self, 'i', -1) + 1\n            if self.i > 1: raise StopIteration\n            return n + self.i\n" \
        "    return Both()\n"  # fmt: skip
    assert reward_of(tmp_path, row("near", tests), honest) == 1.0
    assert reward_of(tmp_path, row("near", tests), HOSTILE[name].replace("{f}", "near")) == 0.0


def test_a_test_that_fails_before_the_program_is_called_is_the_datas_fault(sandbox: Sandbox) -> None:
    for text, setup in (
        ("f([1, 2][5])", ""),
        ("f(helper(1))", "def helper(x): return x / 0"),
        ("f(x)", "x = int('y')"),
    ):
        test = Test("expr", text, "1")
        problem = CodeProblem("own/1", "function", "x", (), (test,), entry_point="f", setup=setup)
        with pytest.raises(DataError, match=r"own/1.*before the program is called"):
            Judge(sandbox, Limits()).run(problem, "def f(x): return 1", [test])


@pytest.mark.parametrize(("said", "whose"), [
    (CallResult("timeout", message="more than 6 s by the clock", cpu_s=0.4, wall_s=6.0), SandboxError),
    (CallResult("timeout", message="the run took more than 20 s"), SandboxError),
    (CallResult("runtime_error", message=KILLED, cpu_s=0.1), SandboxError),
    (CallResult("timeout", message="more than 2 s of CPU time", cpu_s=2.03, wall_s=2.5), DataError),
    (CallResult("memory_limit", message="MemoryError", cpu_s=0.1), DataError),
    (CallResult("runtime_error", message="ValueError: no", cpu_s=0.1), DataError),
])  # fmt: skip
def test_a_clean_child_that_the_machine_keeps_from_its_work_is_an_infrastructure_error(
    said: CallResult, whose: type[Exception]
) -> None:
    """The clean child runs no program, so nothing that ends it is an agent's, and the clock's end is no datum's."""
    test = Test("expr", "f(1) + 1", "2")
    problem = CodeProblem("own/1", "function", "x", (), (test,), entry_point="f")
    fake = FakeSandbox({_CLEAN: lambda text: said})
    with pytest.raises(whose, match=r"own/1.*before the program (is|was) called") as caught:
        Judge(fake, Limits()).run(problem, "def f(x): return 1", [test])  # type: ignore[arg-type]
    assert is_infrastructure_error(caught.value) is (whose is SandboxError)


def test_set_up_code_that_takes_too_long_is_the_datas_and_one_that_waits_an_infrastructure_error(
    sandbox: Sandbox,
) -> None:
    for line, whose in (("while True: pass", DataError), ("import time\ntime.sleep(60)", SandboxError)):
        test = Test("expr", "f(1) + 1", "2")
        problem = CodeProblem("own/1", "function", "x", (), (test,), entry_point="f", setup=line)
        with pytest.raises(whose, match="own/1"):
            Judge(sandbox, Limits(cpu_s=0.3, wall_s=1.5)).run(problem, "def f(x): return 1", [test])


def test_tests_that_are_too_slow_together_are_the_datas_fault() -> None:
    tests = [Test("expr", f"f({n}) + 1", "2") for n in range(12)]
    problem = CodeProblem("own/1", "function", "x", (), tuple(tests), entry_point="f")
    spent = iter([CallResult("ok", ("call", 0, [], {}), cpu_s=1.9)] * 11 + [CallResult("timeout", message="over")])
    fake = FakeSandbox({_CLEAN: lambda text: next(spent)})
    with pytest.raises(DataError, match="own/1"):
        Judge(fake, Limits()).run(problem, "def f(x): return 1", tests)  # type: ignore[arg-type]


def test_values_of_the_setup_travel_with_the_program_only_where_it_makes_its_own_objects_of_them() -> None:
    setup = "import math\nsecret = 'xy'\ndef encode(s): return s[::-1]\ncoded = encode(secret)\nn = 3\nroot = Node(n)"
    read = read_setup(setup, "f")
    assert "secret" in read.clean and "coded" in read.clean and "Node" not in read.clean
    assert "secret" not in read.inside and "root = Node(n)" in read.inside and "n = 3" in read.inside
    assert "def encode" in read.inside and "import math" in read.inside


def test_every_expression_of_the_real_sets_is_taken_apart(shared_data: Path, sandbox: Sandbox) -> None:
    judge, n = Judge(sandbox, Limits()), 0
    for problem in data.load(shared_data / "code" / "mbpp.jsonl", "all"):
        tests = [test for test in (*problem.public, *problem.hidden) if test.kind == "expr"]
        n += len(tests)
        assert not tests or judge.report(problem, problem.solution, tests).all_passed, problem.id
    assert n == 21
