"""What every generator shares: the draft of a problem, its two modes, inputs, the registry and the split rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, get_args

from marft_envs import tables
from marft_envs.families.code.problem import CodeProblem, Mode, Test
from marft_envs.problems.dice import Dice
from marft_envs.problems.generators import ProblemWriter
from marft_envs.problems.generators import split_of as split_of_text
from marft_envs.problems.words import filled

__all__ = ["VARIANTS", "Built", "Dice", "Draft", "ProblemWriter", "function", "split_of", "variant", "write"]


@lru_cache(maxsize=8192)
def function(args: str, code: str) -> Callable[..., Any]:
    """The function of these parameters that a generator's own expression is; it is no text of anybody else."""
    return eval(f"lambda {args}: {code}")


@dataclass(frozen=True, slots=True)
class Draft:
    """What a generator of levels 1 to 4 writes; both modes, tests and mutants are made from it."""

    task: str
    """The task in one line, the same in both modes; it names the parameters."""
    params: str
    """Names and kinds: ``"xs:ints k:int"``."""
    returns: str
    """Kind of the result."""
    body: str
    """Body of the gold function ``f``, without indentation of its own."""
    reference: Callable[..., Any]
    """The same function, written a second time: it makes the expected values."""
    inputs: Sequence[Any]
    """Arguments of the tests, in tuples where there are several parameters: two typical ones, which become public, then
    edges and more."""
    wrong: Sequence[tuple[str, str]]
    """Edits of ``body`` that each make it wrong: an off-by-one, a wrong operator, an edge case ignored."""

    def results(self) -> list[tuple[tuple[Any, ...], Any]]:
        """The different inputs, each with the reference's value."""
        one = len(self.params.split()) == 1
        unique = {repr(given): (given,) if one else given for given in self.inputs}
        return [(args, self.reference(*args)) for args in unique.values()]


@dataclass(frozen=True, slots=True)
class KindOf:
    """How a kind of value is named, read from standard input and printed."""

    name: str
    line: str
    read: str
    show: Callable[[Any], str]
    print_: str


def _rows(rows: Sequence[Sequence[int]]) -> str:
    return "\n".join([str(len(rows)), *(" ".join(map(str, row)) for row in rows)])


_READ_ROWS = "[[int(v) for v in input().split()] for _ in range(int(input()))]"

KINDS = {
    "int": KindOf("an integer", "an integer", "int(input())", str, "print({})"),
    "bool": KindOf("True or False", "yes or no", "input() == 'yes'", lambda v: "yes" if v else "no",
                   "print('yes' if {} else 'no')"),
    "str": KindOf("a string", "a string", "input()", str, "print({})"),
    "ints": KindOf("a list of integers", "integers separated by spaces", "[int(v) for v in input().split()]",
                   lambda v: " ".join(map(str, v)), "print(*{})"),
    "words": KindOf("a list of words", "words separated by spaces", "input().split()", " ".join, "print(*{})"),
    "grid": KindOf("a list of rows of integers", "their number, then one row a line", _READ_ROWS, _rows, ""),
    "pairs": KindOf("a list of pairs of integers", "their number, then one pair a line", _READ_ROWS, _rows, ""),
}  # fmt: skip


def _indented(body: str) -> str:
    return "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))


def program(draft: Draft, mode: Mode, body: str) -> str:
    """A whole program with this body of ``f``."""
    params = [part.split(":") for part in draft.params.split()]
    header = f"def f({', '.join(name for name, _ in params)}):\n"
    if mode == "function":
        return header + _indented(body)
    reading = "".join(f"{name} = {KINDS[kind].read}\n" for name, kind in params)
    call = f"f({', '.join(name for name, _ in params)})"
    return f"{header}{_indented(body)}\n\n{reading}{KINDS[draft.returns].print_.format(call)}\n"


def _prompt(draft: Draft, mode: Mode) -> str:
    params = [part.split(":") for part in draft.params.split()]
    names = ", ".join(name for name, _ in params)
    if mode == "function":
        inputs = "; ".join(f"{name} is {KINDS[kind].name}" for name, kind in params)
        return f"{draft.task}\nWrite the function f({names}): {inputs}. It returns {KINDS[draft.returns].name}."
    inputs = "; ".join(f"{name}: {KINDS[kind].line}" for name, kind in params)
    return f"{draft.task}\nInput, each on a new line: {inputs}.\nOutput: {KINDS[draft.returns].line}."


def write(
    draft: Draft, mode: Mode, problem_id: str, level: int, results: Sequence[tuple[tuple[Any, ...], Any]]
) -> CodeProblem:
    """The draft as a problem of one mode: two public tests, then the hidden ones; ``results`` are the draft's."""
    kinds = [part.split(":")[1] for part in draft.params.split()]
    tests = []
    for args, value in results:
        if mode == "function":
            tests.append(Test("call", repr(list(args)), repr(value)))
        else:
            stdin = "".join(KINDS[kind].show(arg) + "\n" for kind, arg in zip(kinds, args, strict=True))
            tests.append(Test("stdio", stdin, KINDS[draft.returns].show(value) + "\n"))
    return CodeProblem(
        id=problem_id,
        mode=mode,
        prompt=_prompt(draft, mode),
        public=tuple(tests[:2]),
        hidden=tuple(tests[2:]),
        starter_code=program(draft, mode, "").split("\n")[0] if mode == "function" else "",
        entry_point="f" if mode == "function" else "",
        solution=program(draft, mode, draft.body),
        level=level,
        source="procedural",
    )


Built = tuple[Mapping[str, Any], Callable[..., Any], Sequence[Any]]
"""What a generator makes: values for its words in ``programs.toml``, and reference and inputs of a :class:`Draft`."""
Build = Callable[[Dice, int], Built]

_WORDS: Mapping[str, Mapping[str, Any]] = tables.read(__package__, "programs")


def _draft(name: str, build: Build, dice: Dice, level: int) -> Draft:
    """The draft of a generator: its words with the values that it has made; a value ``kind`` names words of its own."""
    made, reference, inputs = build(dice, level)
    table = _WORDS[name]
    words = {**table, **table.get(str(level), {}), **table.get(made.get("kind", ""), {})}
    task, body, wrong = (words.pop(part) for part in ("task", "body", "wrong"))
    values = {part: filled(text, made) for part, text in words.items() if isinstance(text, str)} | dict(made)
    edits = [(filled(old, values), filled(new, values)) for old, new in wrong]
    texts = filled(task, values), values["params"], values["returns"], filled(body, values)
    return Draft(*texts, reference, inputs, [edit for edit in edits if edit[0]])


VARIANTS: dict[tuple[str, Mode, int], ProblemWriter] = {}
"""(generator, mode, level) -> what writes its problems, in the order in which the modules register them."""


def variant(name: str, levels: Sequence[int]) -> Callable[[Build], Build]:
    """Registers a builder of both modes, called with dice and level. Names and levels are parts of ids, for ever."""

    def add(build: Build) -> Build:
        for level in levels:
            for mode in get_args(Mode):
                VARIANTS[name, mode, level] = ProblemWriter(partial(_draft, name, build))
        return build

    return add


def split_of(problem: CodeProblem) -> str:
    """``"test"`` for a quarter of all tasks, else ``"train"``: by the task's text: no task is in both, in any mode."""
    return split_of_text(problem.prompt.split("\n")[0])
