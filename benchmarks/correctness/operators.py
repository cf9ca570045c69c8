"""Defects for ``python -m benchmarks mutations``: what they are, how they are planted, and what makes them.

A defect changes one text of one function. Its place is the file, the function and the text, which stands there once:
no number of a line, so that it can still be planted when code above it has changed.
"""

from __future__ import annotations

import ast
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutations.json")
SEED = 0
CHOSEN = {
    "marft_algos/functional.py": 26,
    "marft_algos/credit/*.py": 26,
    "marft_algos/batching.py": 14,
    "marft_algos/learner/*.py": 22,
    "marft_algos/engines/sampler.py marft_algos/engines/native.py": 14,
    "marft_algos/algorithms/*.py": 14,
    "marft_envs/core/schedule.py marft_envs/core/planner.py marft_envs/core/dependency.py": 22,
    "marft_envs/families/math/[_cegpqs]*.py": 22,
    "marft_algos/runs/checkpoint.py marft_algos/training/state.py marft_envs/artefacts.py": 12,
}
"""How many defects of each part the operators make, where they find so many."""
PER_FUNCTION = 3
"""At most so many in one function, and one a line."""
UNCHANGED = ("Error", "say", "isinstance", "issubclass", "hasattr", "getattr", "setattr", "cast", "field")
"""Calls in which nothing is changed: messages, and what only Python's own errors would notice."""
UNSWAPPED = ("get", "min", "max", "minimum", "maximum", "range")
"""Calls whose arguments are not swapped: in any order the same, or an error at once."""
SIGNS: dict[type[ast.operator], tuple[str, str]] = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
TWINS = {"min": "max", "minimum": "maximum", "amin": "amax", "any": "all", "argmin": "argmax"}
TWINS |= {other: one for one, other in TWINS.items()}
WORDS = (ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict)
"""What is joined by a + without being numbers."""
COMPOUND = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.UnaryOp, ast.Lambda, ast.NamedExpr)


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect: ``old``, which stands once in ``scope`` of ``file`` (in all of it if empty), becomes ``new``."""

    row: str
    """Its name in the table."""
    file: str
    scope: str
    old: str
    new: str
    operator: str = "by hand"
    test: str = ""
    """The test that is named for a defect made by hand: it alone must notice it."""
    equivalent: str = ""
    """Why no test can notice it."""


def defects() -> list[Defect]:
    """Reads the list."""
    return [Defect(**row) for row in json.loads(LIST.read_text(encoding="utf-8"))["rows"]]


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yields every function and class with its qualified name, inner ones after those around them."""
    nodes: list[tuple[str, ast.AST]] = [("", tree)]
    while nodes:
        name, node = nodes.pop()
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}".lstrip(".")
                yield inner, child
            nodes.append((inner, child))


def planted(source: str, defect: Defect) -> tuple[str, int]:
    """The source with the defect, and the line where it is.

    Raises:
        LookupError: There is not exactly one place for it.
    """
    lines = source.splitlines(keepends=True)
    spans = [(0, len(lines))]
    if defect.scope:
        found = [node for name, node in functions(ast.parse(source)) if name == defect.scope]
        spans = [(node.lineno - 1, node.end_lineno or 0) for node in found]  # type: ignore[attr-defined]
    texts = ["".join(lines[start:end]) for start, end in spans]
    if (n := sum(text.count(defect.old) for text in texts)) != 1:
        raise LookupError(
            f"'{defect.old}' stands {n} times in {defect.scope or 'all'} of {defect.file}; expected: once"
        )
    (start, end), text = next((s, t) for s, t in zip(spans, texts, strict=True) if defect.old in t)
    line = start + text[: text.index(defect.old)].count("\n") + 1
    return "".join([*lines[:start], text.replace(defect.old, defect.new), *lines[end:]]), line


def candidates(file: str, source: str) -> Iterator[Defect]:
    """Yields every defect that an operator makes in functions of a file, whether it can be planted or not."""
    lines = source.encode().splitlines()
    for scope, function in functions(ast.parse(source)):
        if isinstance(function, ast.ClassDef):
            continue
        for node in _changed(function):
            for operator, new in _made(node, source):
                start, end, line = node.col_offset, node.end_col_offset or 0, lines[node.lineno - 1]
                old, after = line.strip(), (line[:start] + new.encode() + line[end:]).strip()
                yield Defect(
                    f"{Path(file).stem}.{scope}: {operator}", file, scope, old.decode(), after.decode(), operator
                )


def fits(source: str, defect: Defect) -> bool:
    """Whether a defect has one place, and leaves a file that can be read."""
    try:
        ast.parse(planted(source, defect)[0])
    except (LookupError, SyntaxError):
        return False
    return True


def _changed(function: ast.AST) -> Iterator[ast.expr]:
    """Expressions of a function on one line each: none of inner functions, signatures, messages or annotations."""
    nodes = list(getattr(function, "body", []))
    while nodes:
        node = nodes.pop()
        called = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
        skipped = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Raise, ast.Assert, ast.JoinedStr)
        if isinstance(node, skipped) or called.endswith(UNCHANGED):
            continue
        if isinstance(node, ast.expr) and node.lineno == node.end_lineno:
            yield node
        nodes += [node.value] * bool(node.value) if isinstance(node, ast.AnnAssign) else ast.iter_child_nodes(node)


def _made(node: ast.expr, source: str) -> Iterator[tuple[str, str]]:
    """Yields what each operator makes of an expression: its name and the new text."""

    def text(part: ast.expr) -> str:
        found = ast.get_source_segment(source, part) or ""
        return f"({found})" if isinstance(part, COMPOUND) else found

    def joined(first: ast.expr, second: ast.expr, old: str, new: str) -> str:
        own, begin = (ast.get_source_segment(source, node) or "").encode(), node.col_offset
        between = slice((first.end_col_offset or 0) - begin, second.col_offset - begin)
        changed = own[between].replace(old.encode(), new.encode(), 1)
        return (own[: between.start] + changed + own[between.stop :]).decode()

    match node:
        case ast.BinOp(left, op, right):
            if any(isinstance(part, WORDS) or isinstance(getattr(part, "value", 0), str) for part in (left, right)):
                return
            if type(op) in SIGNS:
                yield "sign", joined(left, right, *SIGNS[type(op)])
            if isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div):
                yield "dropped term", text(left)
                if isinstance(op, ast.Add | ast.Mult):
                    yield "dropped term", text(right)
        case ast.UnaryOp(ast.USub(), operand) if not isinstance(operand, ast.Constant):
            yield "sign", text(operand)
        case ast.UnaryOp(ast.Not(), operand):
            yield "dropped not", text(operand)
        case ast.BoolOp(_, values):
            for part in values:
                sign = " and " if isinstance(node.op, ast.And) else " or "
                yield "dropped term", sign.join(text(other) for other in values if other is not part)
        case ast.Compare(left, [op], [right]):
            yield "comparison", joined(left, right, *COMPARISONS[type(op)])
        case ast.Constant(int() as value) if not isinstance(value, bool):
            yield "off by one", str(value + 1)
        case ast.Call(called, arguments):
            name = getattr(called, "id", getattr(called, "attr", ""))
            if name in TWINS:
                own = (text(called), text(called).removesuffix(name) + TWINS[name])
                yield "min for max", (ast.get_source_segment(source, node) or "").replace(*own, 1)
            two = len(arguments) > 1 and not any(isinstance(part, ast.Starred) for part in arguments[:2])
            if two and name not in UNSWAPPED:
                first, second = arguments[:2]
                segment, begin = (ast.get_source_segment(source, node) or "").encode(), node.col_offset
                a, b, c, d = (at - begin for x in (first, second) for at in (x.col_offset, x.end_col_offset or 0))
                swapped = segment[:a] + segment[c:d] + segment[b:c] + segment[a:b] + segment[d:]
                yield "swapped arguments", swapped.decode()


def chosen(seed: int = SEED) -> list[Defect]:
    """Chooses defects of every part with a fixed seed, one operator after the other."""
    dice, rows, names = random.Random(seed), list[Defect](), Counter[str]()
    for patterns, n in CHOSEN.items():
        files = sorted(file for pattern in patterns.split() for file in ROOT.glob(pattern))
        sources = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}
        found = [defect for file, source in sources.items() for defect in candidates(file, source)]
        dice.shuffle(found)
        queues = {name: [c for c in found if c.operator == name] for name in sorted({c.operator for c in found})}
        lines, places, until = set[tuple[str, str]](), Counter[tuple[str, str]](), len(rows) + n
        for name in itertools.cycle(queues):
            if len(rows) == until or not any(queues.values()):
                break
            while queues[name]:
                one = queues[name].pop()
                line, place = (one.file, one.old), (one.file, one.scope)
                if line not in lines and places[place] < PER_FUNCTION and fits(sources[one.file], one):
                    lines.add(line)
                    places[place] += 1
                    names[one.row] += 1
                    rows.append(replace(one, row=f"{one.row} {names[one.row]}") if names[one.row] > 1 else one)
                    break
    return rows
