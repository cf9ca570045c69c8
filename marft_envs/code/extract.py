"""From a reply to a program, and from a tester's reply to tests.

Replies are untrusted text of any length, so everything here is linear in it, and nothing parses more than a short line
with Python's own parser: deep nesting can exhaust the C stack of the process that parses it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Literal

from marft_envs.code.problem import Problem, Test

Status = Literal["ok", "no_code", "unclosed", "too_large"]

MAX_REPLY = 1 << 20
"""Characters of a reply that is still searched for a program; a longer one is ``too_large``."""
MAX_TESTS = 8
"""Tests of one tester's reply that are run; further ones are ignored."""
MAX_TESTS_TEXT = 1 << 14
"""Characters of a tester's reply that are searched for tests."""
MAX_TEST_LINE = 300
"""Characters of a line that may propose a test."""

_PYTHON = frozenset(("", "python", "py", "python3", "py3"))
# What the first line of a bare program looks like. Prose seldom does; where it does, the verdict is `compile_error`
# instead of `no_code`, and both pay nothing.
_STATEMENT = re.compile(
    r"(?:async )?def \w+ ?\(|class \w+ ?[(:]|import \w|from [\w.]+ import |@\w|print\(|try:|'''|\"\"\""
    r"|(?:for|while|if|with) [^\n]*:[ \t]*(?:#[^\n]*)?$"
    r"|\w+(?:, ?\w+)* ?(?:: ?[\w\[\], .]+)?[-+*/%&|^]?= ?[^=\s]"
)


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a reply holds."""

    program: str
    """The program, or an empty string."""
    status: Status
    """``ok``; ``no_code``; ``unclosed``: the only block has no closing fence; ``too_large``: not searched."""


def extract(reply: str, code_block: str = "lenient") -> Extraction:
    """Returns the program in a reply: the last closed block fenced by ``` or ~~~ and marked python, py or nothing.

    Blank blocks, blocks in another language and earlier blocks are ignored. A block without its closing fence is no
    program, since most such replies were cut in mid-sentence.

    Args:
        reply: What an agent said.
        code_block: ``lenient``: a reply without any fence whose first line that is no comment is a statement of Python
            is the program as a whole; ``strict``: without a block there is no program.
    """
    if len(reply) > MAX_REPLY:
        return Extraction("", "too_large")
    reply = reply.replace("\r\n", "\n")
    blocks, fenced, closed = _blocks(reply)
    if blocks:
        return Extraction(blocks[-1], "ok")
    if not closed:
        return Extraction("", "unclosed")
    if code_block == "lenient" and not fenced and _looks_like_code(reply):
        return Extraction(reply.strip("\n") + "\n", "ok")
    return Extraction("", "no_code")


def _blocks(reply: str) -> tuple[list[str], bool, bool]:
    """The closed Python blocks that are not blank, whether there is any fence, and whether all are closed."""
    blocks: list[str] = []
    lines: list[str] = []
    fence, indent, wanted, fenced = "", 0, False, False
    for line in reply.split("\n"):
        bare = line.strip(" \t\r")
        if not fence:
            mark = bare[:3]
            if mark not in ("```", "~~~"):
                continue
            label = bare.lstrip(mark[0])
            if "`" in label:
                continue  # inline code, as in ```x```
            fence, indent, fenced = bare[: len(bare) - len(label)], len(line) - len(line.lstrip(" \t")), True
            wanted, lines = (label.split() or [""])[0].lower() in _PYTHON, []
        elif len(bare) >= len(fence) and not bare.strip(fence[0]):
            text = "\n".join(lines)
            if wanted and text.strip():
                blocks.append(text + "\n")
            fence = ""
        else:
            # A fence that is indented, as in a list, takes its indentation off its lines.
            lines.append(line[min(indent, len(line) - len(line.lstrip(" \t"))) :] if indent else line)
    return blocks, fenced, not fence


def _looks_like_code(reply: str) -> bool:
    for line in reply.split("\n"):
        if line.strip() and not line.lstrip().startswith("#"):
            return _STATEMENT.match(line[:MAX_TEST_LINE].rstrip()) is not None
    return False


def proposed_tests(reply: str, problem: Problem) -> list[Test]:
    r"""Returns the tests that a tester's reply proposes, at most ``MAX_TESTS`` of them; other lines are ignored.

    One a line: ``f(2, 3) == 7`` with literals for arguments and value, or ``"2 3\n" == "5\n"`` (standard input and
    output) for a program. ``assert``, a list's dash and backticks around a line may stand there.
    """
    out: list[Test] = []
    for line in reply[:MAX_TESTS_TEXT].split("\n"):
        bare = line.strip().lstrip("-*").strip().strip("`").removeprefix("assert ").strip()
        if "==" in bare and len(bare) <= MAX_TEST_LINE:
            test = _test(bare, problem)
            if test is not None and test not in out:
                out.append(test)
                if len(out) == MAX_TESTS:
                    break
    return out


def _test(line: str, problem: Problem) -> Test | None:
    """Reads one short line; nothing of it is evaluated but literals."""
    try:
        tree = ast.parse(line, mode="eval").body
        if not (isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq)):
            return None
        left, right = tree.left, tree.comparators[0]
        expected = ast.literal_eval(right)
        if problem.mode == "stdio":
            stdin = ast.literal_eval(left)
            both = isinstance(stdin, str) and isinstance(expected, str)
            return Test("stdio", stdin, expected) if both else None
        name = problem.entry_point.rpartition(".")[2]
        if not (isinstance(left, ast.Call) and isinstance(left.func, ast.Name) and left.func.id == name):
            return None
        if left.keywords:
            return None
        for argument in left.args:
            ast.literal_eval(argument)
        arguments = ", ".join(map(ast.unparse, left.args))
        return Test("call", f"[{arguments}]", ast.unparse(right))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None  # no test: the line is prose, or names something that is no literal
