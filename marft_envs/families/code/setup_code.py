"""A row's own code before its tests, divided: what runs with the program, and what runs where it never is.

Only syntax is read here; nothing is executed.
"""

from __future__ import annotations

import ast
import builtins
import functools
import symtable
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

MODULES = frozenset(
    ("bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools",
     "json", "math", "operator", "random", "re", "statistics", "string")
)  # fmt: skip
"""Modules that an expression may name without an import."""
BUILTINS = frozenset(dir(builtins))


class DecidedInside(ValueError):
    """An expression whose truth only the program's own process could tell. The text says what keeps it there."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A row's own code before its tests, by where it belongs."""

    clean: str
    """All that can do without the program: it runs where the rest of an expression is evaluated."""
    inside: str
    """Definitions, imports, and what makes objects of the program's own classes: it runs after the program."""
    names: frozenset[str]
    """What ``clean`` binds."""
    catching: frozenset[str] = frozenset()
    """Those of them by which an expression gets to code that catches exceptions."""


def parse(text: str, where: str) -> ast.Module:
    """Python source as a tree.

    Raises:
        DecidedInside: It is no Python, or nested too deep.
    """
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise DecidedInside(f"{where} cannot be read ({type(error).__name__})") from None


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _used(source: str) -> set[str]:
    """Names that a statement takes from its module, in functions too."""
    top = symtable.symtable(source, "<setup>", "exec")
    used = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
    inner = (s for table in _tables(top) if table is not top for s in table.get_symbols())
    return used | {s.get_name() for s in inner if s.is_global()}


def _bound(statement: ast.stmt, source: str) -> set[str]:
    """Names that a statement binds, or whose objects it may change."""
    top = symtable.symtable(source, "<setup>", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    if _defines(statement):
        return bound
    roots = (root_of(n) for n in ast.walk(statement) if isinstance(n, ast.Attribute | ast.Subscript))
    return bound | {root.id for root in roots if root is not None}


def links_of(node: ast.expr) -> Iterator[ast.expr]:
    """Yields the links of ``root.left(3)[0]``, the last one first; the root is none."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        yield node
        node = node.func if isinstance(node, ast.Call) else node.value


def root_of(node: ast.expr) -> ast.Name | None:
    """``root`` of ``root.left(3)[0]``."""
    for link in links_of(node):
        node = link.func if isinstance(link, ast.Call) else link.value  # type: ignore[attr-defined]
    return node if isinstance(node, ast.Name) else None


def _catches(statement: ast.stmt) -> bool:
    """Is there a ``try`` or a ``with`` in it, other than around imports?

    Calls of the program are not made in there. An exception of the program would not be caught, and of what a call
    does (prints, sleeps) nothing but its value would be seen.
    """
    imports = ast.Import | ast.ImportFrom
    return any(
        isinstance(node, ast.With | ast.AsyncWith)
        or (isinstance(node, ast.Try | ast.TryStar) and not all(isinstance(one, imports) for one in node.body))
        for node in ast.walk(statement)
    )


def _reached(names: Iterable[str], used: Sequence[set[str]], bound: Sequence[set[str]]) -> set[int]:
    """Statements whose names these names lead to, by number."""
    reached: set[int] = set()
    left = set(names)
    while left:
        new = {i for i, names_bound in enumerate(bound) if names_bound & left} - reached
        reached |= new
        left = set[str]().union(*(used[i] for i in new))
    return reached


def _defines(statement: ast.stmt) -> bool:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
    return isinstance(statement, kinds)


@functools.lru_cache(maxsize=1024)
def read_setup(setup: str, function: str) -> Setup:
    """Divides a row's setup.

    What names something that is neither Python's nor the setup's own, as ``Node(1)``, needs the program, and so does
    what uses its result. Values travel with the program only where that needs them: a constant that a test expects may
    stand among them.

    Raises:
        DecidedInside: The setup cannot be read, or its own lines call the function where exceptions are caught.
    """
    statements = parse(setup, "the setup").body
    sources = [ast.unparse(statement) for statement in statements]
    used = [_used(source) for source in sources]
    bound = [_bound(statement, source) for statement, source in zip(statements, sources, strict=True)]
    needs = [False] * len(statements)
    clean = set[str]().union(*bound)
    known = BUILTINS | MODULES | {function}
    while True:  # until nothing more is found to need the program
        grown = [need or not names <= known | clean for need, names in zip(needs, used, strict=True)]
        clean -= set[str]().union(*(names for need, names in zip(grown, bound, strict=True) if need))
        if grown == needs:
            break
        needs = grown
    wanted = set[str]().union(*(names for need, names in zip(needs, used, strict=True) if need))
    inside = [need or _defines(statement) for need, statement in zip(needs, statements, strict=True)]
    for i in reversed(range(len(statements))):
        if not inside[i] and bound[i] & wanted:
            inside[i], wanted = True, wanted | used[i]
    stays = [i for i, need in enumerate(needs) if not need]
    return Setup(
        "\n".join(sources[i] for i in stays),
        "\n".join(source for here, source in zip(inside, sources, strict=True) if here),
        frozenset(clean),
        _catching(function, [statements[i] for i in stays], [used[i] for i in stays], [bound[i] for i in stays]),
    )


def _catching(
    function: str, statements: Sequence[ast.stmt], used: Sequence[set[str]], bound: Sequence[set[str]]
) -> frozenset[str]:
    """Names by which one gets to code that catches exceptions.

    Raises:
        DecidedInside: A line that is executed gets there, and to the function, too.
    """
    catches = {i for i, statement in enumerate(statements) if _catches(statement)}
    for i, statement in enumerate(statements):
        runs = {i} | _reached(used[i], used, bound)
        if not _defines(statement) and runs & catches and any(function in used[one] for one in runs):
            raise DecidedInside("the setup calls it where exceptions are caught, and calls are made elsewhere")
    names = set[str]().union(*bound)
    return frozenset(name for name in names if _reached([name], used, bound) & catches)
