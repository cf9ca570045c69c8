"""From a reply to a program, and from a tester's reply to tests.

Replies are untrusted text of any length, so everything here is linear in it, and nothing parses more than a short line
with Python's own parser: deep nesting can exhaust the C stack of the process that parses it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Literal

from marft_envs.families.code.problem import CodeProblem, Test

Status = Literal["ok", "no_code", "unclosed", "too_large"]

MAX_REPLY = 1 << 20
"""Characters of a reply that is still searched for a program; a longer one is ``too_large``."""
MAX_TESTS = 8
"""Tests of one tester's reply that are run; further ones are ignored."""
MAX_TESTS_TEXT = 1 << 14
"""Characters of a tester's reply that are searched for tests."""
MAX_TEST_LINE = 300
"""Characters of a line that may propose a test."""

# An info string: `python`, `Py3`, `python3.11`, `{.python}`, `python:solution.py`, `solution.py`; not `pycon`.
_PYTHON = re.compile(r"\{?\.?(?:python|py)[\d.]*(?![\w-])|[\w./-]+\.py(?!\w)", re.IGNORECASE)
_FENCE = re.compile(r"(`{3,}+|~{3,}+)(.*)")
# Blanks, characters without width, and the marks of lists and quotes may stand before a fence.
_BEFORE = re.compile(r"(?:[ \t\ufeff\u200b]|>|(?:[-*+]|\d{1,9}[.)])[ \t])*+")
# Words may, too, as in "Here it is: ```python", and among them `code`, but not ```code```.
_WORDS = re.compile(r"[^`]*+(?:`[^`]++`[^`]*+)*+")
_NO_WIDTH = "\ufeff\u200b"
_INDENT = 3
"""Most blanks of a closing fence beyond its block's own."""
# What the first line of a bare program looks like. Prose seldom does; where it does, the verdict is `compile_error`
# instead of `no_code`, and both have the reward 0.
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
    """Returns the program in a reply: the last closed block marked as Python, else the last without a mark.

    Blocks are those of CommonMark, fenced by ``` or ~~~, in lists and quotes, too. Beyond it, words may stand before a
    fence that is marked as Python and behind one that closes, and a line that opens a block of Python ends an open one,
    which is then no block. Blank blocks and blocks in another language are ignored. A block without its closing fence
    is no program, since most such replies were cut in mid-sentence.

    Args:
        reply: What an agent said.
        code_block: ``lenient``: a reply without any fence whose first line that is no comment is a statement of Python
            is the program as a whole; ``strict``: without a block there is no program.
    """
    if len(reply) > MAX_REPLY:
        return Extraction("", "too_large")
    reply = reply.replace("\r\n", "\n").lstrip(_NO_WIDTH)
    blocks, fenced, closed = _blocks(reply)
    if code_block == "lenient" and not fenced and _looks_like_code(reply):
        return Extraction(reply.strip("\n") + "\n", "ok")
    programs = [b for b in blocks if b.python] or [b for b in blocks if not b.info]
    return Extraction(programs[-1].text(), "ok") if programs else Extraction("", "no_code" if closed else "unclosed")


@dataclass(slots=True)
class _Block:
    """A fenced block, from its first line on."""

    fence: str
    info: str
    indent: int
    """Blanks that are taken off each line: those before the fence, at most those of the first line."""
    quotes: int
    """Marks of quotes before each line."""
    lines: list[str] = field(default_factory=list)
    blank: bool = True

    @property
    def python(self) -> bool:
        """Whether it is marked as Python."""
        return _PYTHON.match(self.info) is not None

    def within(self, line: str) -> str:
        """Returns a line without the marks of quotes."""
        parts = line.split(">", self.quotes) if self.quotes else [line]
        return parts[-1].removeprefix(" ") if len(parts) > 1 and not "".join(parts[:-1]).strip() else line

    def take(self, line: str) -> None:
        """Takes a line of its text."""
        line = self.within(line)
        if self.blank and line.strip():
            self.blank, self.indent = False, min(self.indent, _width(line[: -len(line.lstrip(" \t"))]))
        self.lines.append(line)

    def closed_by(self, line: str) -> bool:
        """Whether a line ends it: a fence of the same kind, as long or longer, and perhaps words behind it."""
        line = self.within(line)
        found = _FENCE.match(line.lstrip(" \t"))
        if not found or not found[1].startswith(self.fence) or not self.near(line[: line.index(found[1])]):
            return False
        words = found[2].rstrip(" \t\r")
        return not words or (" " in words and not _PYTHON.match(words.strip()))

    def near(self, before: str) -> bool:
        """Whether what stands before a fence is short enough for it to be a fence of this block."""
        return _width(before) <= self.indent + _INDENT

    def text(self) -> str:
        """Returns its lines as a program."""
        lines = (_dedented(line, self.indent) for line in self.lines) if self.indent else self.lines
        return ("\n".join(lines) + "\n").lstrip(_NO_WIDTH)


def _width(blanks: str) -> int:
    return len(blanks.expandtabs(4))


def _dedented(line: str, width: int) -> str:
    """A line without so many of its first blanks."""
    bare = line.lstrip(" \t")
    return line[: len(line) - len(bare)].expandtabs(4)[width:] + bare


def _opening(line: str) -> tuple[_Block, str] | None:
    """The block that a line opens, and what stands before the fence."""
    if "```" not in line and "~~~" not in line:
        return None
    start = _BEFORE.match(line)
    words = _WORDS.match(line)
    assert start is not None and words is not None  # both match nothing, too
    for before in (start[0], words[0]):
        found = _FENCE.fullmatch(line, len(before))
        if found and "`" not in found[2]:
            block = _Block(found[1], found[2].strip(), _width(before.rpartition(">")[2]), start[0].count(">"))
            if before == start[0] or block.python:
                return block, before
    return None


def _blocks(reply: str) -> tuple[list[_Block], bool, bool]:
    """The closed blocks that are not blank, whether there is any that is not deep in a text, and whether all close."""
    blocks: list[_Block] = []
    block: _Block | None = None
    fenced = False
    for line in reply.split("\n"):
        if block and block.closed_by(line):
            if not block.blank:
                blocks.append(block)
            block = None
            continue
        opening = _opening(line)
        if opening and (block is None or _supersedes(*opening, block)):
            block, before = opening
            fenced = fenced or bool(before.strip()) or _width(before) <= _INDENT
        elif block:
            block.take(line)
    return blocks, fenced, block is None


def _supersedes(opened: _Block, before: str, block: _Block) -> bool:
    same = opened.fence.startswith(block.fence) and block.near(before)
    return opened.python and same and not before.strip(" \t>")


def _looks_like_code(reply: str) -> bool:
    first = next((line for line in reply.split("\n") if line.strip() and not line.lstrip().startswith("#")), "")
    return _STATEMENT.match(first[:MAX_TEST_LINE].rstrip()) is not None


def proposed_tests(reply: str, problem: CodeProblem) -> list[Test]:
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


def _test(line: str, problem: CodeProblem) -> Test | None:
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
        if not isinstance(left, ast.Call) or left.keywords or ast.unparse(left.func) != name:
            return None
        for argument in left.args:
            ast.literal_eval(argument)
        arguments = ", ".join(map(ast.unparse, left.args))
        return Test("call", f"[{arguments}]", ast.unparse(right))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None  # no test: the line is prose, or names something that is no literal
