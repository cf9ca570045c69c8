"""From replies to programs and to tests: which block counts, what is no program, hostile and huge replies."""

from __future__ import annotations

import dataclasses
import time

import pytest

from helpers.fake_sandbox import ADD
from marft_envs.families.code.extract import MAX_REPLY, MAX_TESTS, extract, proposed_tests
from marft_envs.families.code.problem import Test

F = "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    "reply",
    [
        f"```python\n{F}```",
        f"Here it is:\n```py\n{F}```\nIt returns x.",
        f"```\n{F}```",
        f"```Python3 title=f.py\n{F}```",
        f"~~~python\n{F}~~~",
        f"````python\n{F}````",
        f"```python\r\n{F}```\r\n".replace("\n", "\r\n").replace("\r\r", "\r"),
        "1. First:\n   ```python\n   def f(x):\n       return x\n   ```\n",
        f"First try:\n```python\nbroken(\n```\nBetter:\n```python\n{F}```",
        f"```python\n{F}```\nRun it:\n```sh\npython f.py\n```",
        f"```json\n{{}}\n```\n```python\n{F}```",
        f"```python\n{F}```\nAn empty one:\n```python\n\n```",
        f"```python\n{F}```\nAnd one cut off:\n```python\ndef g(",
        f"```python\n{F}``` ",
        f"It is ```inline```, then\n```python\n{F}```",
        f"```python\n{F}```\nOutput:\n```\n2\n```",
        f"```\nf(1)\n```\n```python\n{F}```\n~~~\n1\n~~~\n",
        f"```python\n{F}```\n```pycon\n>>> f(1)\n1\n```\n```python-repl\n>>> f(1)\n```",
        f"```python\n{F}``` That is it.",
        f"```python\n{F}``` It defines `f`.\n\n```text\n1\n```",
        f"Here it is: ```python\n{F}```",
        f"The program `f`: ```py\n{F}```\nOutput: ```\n2\n```",
        "- ```python\n  def f(x):\n      return x\n  ```",
        "2) Then:\n\n   * ```python\n     def f(x):\n         return x\n     ```",
        f"- ```python\n{F}```",
        "> Yes:\n> ```python\n> def f(x):\n>     return x\n> ```",
        f"\ufeff```python\n{F}```",
        f"\u200b```python\n{F}```",
        f"Text.\n\u200b```python\n{F}```",
        f"```python\n\ufeff{F}```",
        f"\ufeff{F}".join(("```\n", "```")),
        f"  ```python\n{F}  ```",
        f"```python\n{F}   ```",
        f"```python\nprint(1)\nBetter:\n```python\n{F}```",
        *(
            f"```{info}\n{F}```"
            for info in (
                "python:solution.py",
                "python3.11",
                "{python}",
                "{.python .numberLines}",
                "PYTHON",
                "python,norun",
                "Py3",
                " python title='f.py'",
                "src/main.py",
            )
        ),
    ],
)
def test_the_last_closed_python_block_is_the_program(reply: str) -> None:
    for code_block in ("lenient", "strict"):
        found = extract(reply, code_block)
        assert (found.program, found.status) == (F, "ok")


@pytest.mark.parametrize("indent", ["    ", "\t", "        "])
@pytest.mark.parametrize("mark", ["", "python"])
def test_a_fence_deep_in_a_docstring_belongs_to_the_program(indent: str, mark: str) -> None:
    doc = f'{indent}"""Adds.\n\n{indent}```{mark}\n{indent}add(1, 2)\n{indent}```\n{indent}"""\n'
    program = f"def add(a, b):\n{doc}{indent}return a + b\n"
    assert extract(f"```python\n{program}```\n").program == program
    assert extract(program).program == program
    if indent != "\t":  # which is one blank wide behind three
        listed = "".join(f"   {line}" for line in program.splitlines(keepends=True))
        assert extract(f"1. So:\n   ```python\n{listed}   ```\n").program.split() == program.split()


def test_a_fence_inside_a_longer_fence_and_backticks_inside_a_line_belong_to_the_program() -> None:
    inner = 'def f(x):\n    """\n```\n>>> f(1)\n```\n    """\n    s = "```"\n    return x\n'
    assert extract(f"````python\n{inner}````").program == inner


@pytest.mark.parametrize(("reply", "status"), [
    ("", "no_code"), ("I do not know.", "no_code"), ("The answer is f(x) = x.", "no_code"),
    ("For each x we return x, so the first step is a loop.", "no_code"),
    ("```json\n{}\n```", "no_code"), ("```python\n\n   \n```", "no_code"), (f"```python\n{F}", "unclosed"),
    (f"```python\n{F}``", "unclosed"), (f"````python\n{F}```", "unclosed"),
    (f"```json\n{{}}\n```\nSo\n```python\n{F}", "unclosed"), (f"```pycon\n>>> {F}```", "no_code"),
    (f"```python\n{F}~~~", "unclosed"), (f"```python\n{F}    ```", "unclosed"), ("\x00\ud800\u202e", "no_code"),
])  # fmt: skip
def test_replies_without_a_program_say_why(reply: str, status: str) -> None:
    found = extract(reply)
    assert (found.program, found.status) == ("", status)


@pytest.mark.parametrize("program", [
    F, "# adds\n\ndef f(a,b):return a+b\n", "import sys\nprint(sys.stdin.read())\n", "from math import gcd\nf = gcd\n",
    "class Solution:\n    def f(self, x): return x\n", "a, b = map(int, input().split())\nprint(a + b)\n",
    "n=int(input())\nprint(n)\n", "print(sum(map(int, input().split())))\n",
    "for _ in range(int(input())):\n    print(1)\n", "f = lambda x: x\n", "x: int = 3\n",
    "@cache\ndef f(x): return x\n",
])  # fmt: skip
def test_a_bare_program_counts_when_lenient_and_does_not_when_strict(program: str) -> None:
    assert extract(program).program == program
    assert extract("\n\n" + program).status == "ok"
    assert extract(program, "strict").status == "no_code"


def test_a_bare_program_does_not_count_beside_a_fence() -> None:
    assert extract(f"{F}\n```json\n{{}}\n```").status == "no_code"


@pytest.mark.parametrize("text", [
    "x" * 10_000_000, "```python\n" + "x = 1\n" * 1_700_000 + "```", "```\n" * (MAX_REPLY // 4),
    "```" + " " * (MAX_REPLY - 10) + "`", "`" * MAX_REPLY, "\n" * MAX_REPLY, "a, " * (MAX_REPLY // 3), "a" * MAX_REPLY,
    "(" * MAX_REPLY, "x = " + "-" * (MAX_REPLY - 10) + "1", "> " * (MAX_REPLY // 2 - 10) + "```python",
    "- " * (MAX_REPLY // 2 - 10) + "```python", "```python\n" * (MAX_REPLY // 10),
    "`x` " * (MAX_REPLY // 4 - 10) + "```python", "``` `" * (MAX_REPLY // 5),
], ids=range(15))  # fmt: skip
def test_huge_replies_are_answered_quickly(text: str) -> None:
    start = time.perf_counter()
    found = extract(text)
    proposed_tests(text, ADD)
    assert time.perf_counter() - start < 20.0  # a second at most; quadratic work would take hours
    assert (found.status == "too_large") == (len(text) > MAX_REPLY)


# Tests that a tester proposes ---------------------------------------------------------------------------


def test_lines_with_literals_are_tests_and_everything_else_is_prose() -> None:
    reply = """Consider these:
    add(2, 3) == 5
    - `add(-1, 1) == 0`
    ```python
    assert add(0.5, 1) == 1.5
    ```
    add(2, 3) == 5
    add([1], {'a': (2,)}) == "x == y"
    add(a, 2) == 3
    add(__import__('os').getpid(), 2) == 3
    add(2, 3) == add(3, 2)
    add(a=2, b=3) == 5
    sub(2, 3) == -1
    add(2, 3) == 5 == 5
    add(2, 3) != 6
    add(2, 3) ==
    """
    assert [(test.input, test.expected) for test in proposed_tests(reply, ADD)] == [
        ("[2, 3]", "5"), ("[-1, 1]", "0"), ("[0.5, 1]", "1.5"), ("[[1], {'a': (2,)}]", "'x == y'"),
    ]  # fmt: skip


def test_tests_of_a_method_use_its_name_and_tests_of_a_program_are_two_strings() -> None:
    method = dataclasses.replace(ADD, entry_point="Solution.add")
    assert proposed_tests("add(1, 2) == 3", method) == [Test("call", "[1, 2]", "3")]
    program = dataclasses.replace(ADD, mode="stdio", entry_point="")
    reply = '"1 2\\n" == "3\\n"\n"1" == 3\nadd(1, 2) == 3'
    assert proposed_tests(reply, program) == [Test("stdio", "1 2\n", "3\n")]


def test_tests_are_capped_in_number_and_length_and_survive_hostile_lines() -> None:
    assert len(proposed_tests("\n".join(f"add({i}, 1) == {i + 1}" for i in range(50)), ADD)) == MAX_TESTS
    hostile = ["add(" + "[" * 140 + "]" * 140 + ") == 1", "add(" + "-" * 280 + "1) == 1", "add('\x00', 1) == 1"]
    hostile += ["add('" + "x" * 300 + "', 1) == 1", "add(9**9**9**9, 1) == 1", "add(1e999, 1) == 1"]
    found = proposed_tests("\n".join([*hostile, "add(1, 1) == 2"]), ADD)
    assert found[-1] == Test("call", "[1, 1]", "2")
    assert all("**" not in test.input for test in found)
