"""Takes an expression over a program apart: the calls that only the program can answer, and the rest.

``not not (f([1, 2]) in (3, 4))`` must not be decided where the program lives: there it can read 3 and 4, return an
object that is equal to everything, or have put its own ``all`` in place of Python's. So the program is asked for the
value of ``f([1, 2])``; the rest is evaluated in a process that it never enters (``expressions``).
Only syntax is read here; nothing is executed.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from marft_envs.errors import DataError
from marft_envs.families.code import round_trips
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.families.code.setup_code import BUILTINS, MODULES, DecidedInside, Setup, links_of, read_setup, root_of

CALL = "_program"
"""Name by which the rest of an expression asks for a call: ``_program(0, x)`` is call 0 with ``_0 = x``."""
MAX_EXPRESSION = 1 << 16
"""Characters of an expression."""

_DATA_ATTRIBUTES = frozenset(
    name
    for kind in (int, float, complex, str, bytes, list, tuple, set, frozenset, dict, type(None))
    for name in dir(kind)
)


def refusal(where: str, reason: DecidedInside) -> DataError:
    """The error for a test that cannot be taken apart. It does not repeat the test, which may be hidden."""
    return DataError(
        f"{where}: a test of kind 'expr' would be decided where the program lives: {reason}. Expected calls of the "
        "function asked for, whose values are compared with literals; see 'Expressions' in docs/code-problems.md."
    )


@dataclass(frozen=True, slots=True)
class SplitExpression:
    """An expression, taken apart."""

    rest: str
    """What is evaluated without the program; empty where the one call's value is the expression's."""
    calls: tuple[str, ...]
    """What is evaluated with the program, one call each; ``_0``, ``_1``, … are values that the rest hands over."""


@functools.lru_cache(maxsize=1024)
def classes(*sources: str) -> frozenset[str]:
    """Classes that a canonical solution or starter code defines."""
    names: set[str] = set()
    for source in sources:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            continue  # a header without a body is no Python
        names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return frozenset(names)


def function_name(entry_point: str, known_classes: frozenset[str]) -> str:
    """The function asked for; empty if it is a class or one of its methods."""
    is_class = "." in entry_point or entry_point in known_classes or entry_point[:1].isupper()
    return "" if is_class else entry_point


def of_test(problem: CodeProblem, test: Test) -> SplitExpression:
    """How a test's expression is taken apart.

    Raises:
        DecidedInside: It cannot be.
    """
    return plan(test.input, test.expected, problem.entry_point, problem.setup, classes_of(problem))


def classes_of(problem: CodeProblem) -> frozenset[str]:
    """Classes of the program, as far as the problem tells."""
    return classes(problem.solution, problem.starter_code)


@functools.lru_cache(maxsize=8192)
def plan(
    expression: str, expected: str, entry_point: str, setup: str, known_classes: frozenset[str]
) -> SplitExpression:
    """Takes an expression apart.

    A value that the program gives is data, or an iterator over data, whatever the rest does with it. So what is done
    with anything else is done with the program: ``add(2)(3)`` and ``Stack(3).push().size()`` are one call each.

    Args:
        expression: Python, over the program's names and the setup's.
        expected: Its value, as literal text.
        entry_point: The function asked for.
        setup: The row's own code.
        known_classes: Names of the program's classes, as far as they are known; others begin with a capital.

    Raises:
        DecidedInside: It cannot be taken apart: it compares objects of the program's own classes, uses the program's
            names other than by calling them, makes an argument of both the program's objects and others, sends the
            value expected through the program's own code and back, or calls it where the setup catches exceptions.
    """
    if len(expression) > MAX_EXPRESSION:
        raise DecidedInside(f"it has more than {MAX_EXPRESSION:,} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
        read = read_setup(setup, function_name(entry_point, known_classes))
        return _Splitter(tree, expected, entry_point, read, known_classes).plan()
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        if isinstance(error, DecidedInside):
            raise
        raise DecidedInside(f"it cannot be read ({type(error).__name__})") from None


class _Splitter(ast.NodeTransformer):
    """One expression."""

    def __init__(
        self, tree: ast.expr, expected: str, entry_point: str, setup: Setup, known_classes: frozenset[str]
    ) -> None:
        self.tree, self.expected = tree, ast.literal_eval(expected)
        self.entry = entry_point.partition(".")[0]
        self.setup, self.classes = setup, known_classes
        if not function_name(entry_point, known_classes):
            self.classes |= {self.entry}
        self.local = _bound_within(tree)
        self.calls: list[str] = []

    def plan(self) -> SplitExpression:
        for name in sorted(self._names(self.tree) & self.setup.catching):
            raise DecidedInside(f"'{name}' of the setup catches exceptions, and calls are made elsewhere")
        round_trips.refuse(self.tree, self.expected, self.entry, self._is_function)
        rest = self.visit(self.tree)
        alone = isinstance(rest, ast.Call) and isinstance(rest.func, ast.Name) and rest.func.id == CALL
        if alone and len(rest.args) == 1:
            return SplitExpression("", tuple(self.calls))
        return SplitExpression(ast.unparse(ast.fix_missing_locations(rest)), tuple(self.calls))

    # Whose is a name?

    def _programs(self, name: str) -> bool:
        """Is it something of the program, other than the function asked for?"""
        if name == self.entry:
            return self._is_class(name)
        return name not in self.local | self.setup.names | BUILTINS | MODULES

    def _is_class(self, name: str) -> bool:
        return name in self.classes or (name not in self.setup.names and name[:1].isupper())

    def _is_function(self, name: str) -> bool:
        return (name == self.entry or self._programs(name)) and not self._is_class(name)

    def _names(self, node: ast.AST) -> set[str]:
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}

    # The walk

    def visit(self, node: ast.AST) -> Any:
        """The node for the rest of the expression, calls into the program replaced."""
        root = root_of(node) if isinstance(node, ast.expr) else None
        if root is not None and root is not node and (root.id == self.entry or self._programs(root.id)):
            return self._chain(node, root)
        if isinstance(node, ast.Name) and self._programs(node.id):
            raise DecidedInside(f"'{node.id}' is the program's own, and the test uses it other than by a call")
        return self.generic_visit(node)

    def _chain(self, node: Any, root: ast.Name) -> ast.expr:
        """``f(x).strip()[0]``: the part that needs the program becomes a call, the rest stays."""
        links = list(links_of(node))[::-1]  # from the root outwards
        is_class = self._is_class(root.id)
        if not is_class and not isinstance(links[0], ast.Call):
            raise DecidedInside(f"'{root.id}' is the program's own, and the test uses it other than by a call")
        if is_class and all(isinstance(link, ast.Call) for link in links):
            raise DecidedInside(f"an object of the program's class '{root.id}' takes part in it")
        last = len(links) - 1 if is_class else 0
        for i, link in enumerate(links):  # what no built-in value has is a method or attribute of the program's
            if isinstance(link, ast.Attribute) and link.attr not in _DATA_ATTRIBUTES:
                last = max(last, min(i + 1, len(links) - 1))
            if i and isinstance(link, ast.Call) and not isinstance(links[i - 1], ast.Attribute):
                last = max(last, i)  # no data can be called
        asks = self._site(links[last])
        if last + 1 == len(links):
            return asks
        above = links[last + 1]
        setattr(above, "func" if isinstance(above, ast.Call) else "value", asks)
        for link in links[last + 1 :]:  # arguments of what is left
            _change_arguments(link, self.visit)
        return links[-1]

    def _site(self, part: ast.expr) -> ast.expr:
        """Makes ``part`` a call of the program's process; returns what asks for it."""
        number = len(self.calls)
        self.calls.append("")
        arguments: list[ast.expr] = []
        for link in links_of(part):
            _change_arguments(link, lambda argument: self._argument(argument, arguments))
        self.calls[number] = ast.unparse(ast.fix_missing_locations(part))
        return ast.Call(ast.Name(CALL), [ast.Constant(number), *arguments], [])

    def _argument(self, node: ast.expr, arguments: list[ast.expr]) -> ast.expr:
        """An argument as the program's process sees it: as it stands, or a name for what the rest hands over."""
        if isinstance(node, ast.Starred):
            return ast.Starred(self._argument(node.value, arguments))
        names = self._names(node)
        if any(map(self._programs, names)):
            strange = names & (self.local | self.setup.names | {self.entry}) - _bound_within(node)
            if strange - ({self.entry} if self._programs(self.entry) else set()):
                raise DecidedInside(f"an argument mixes the program's objects with {', '.join(sorted(strange))}")
            return node
        if self._as_it_stands(node):
            return node
        arguments.append(self.visit(node))
        return ast.Name(f"_{len(arguments) - 1}")

    def _as_it_stands(self, node: ast.expr) -> bool:
        """Literals, Python's own types and functions, and functions made on the spot: they hold an input, no more."""
        if isinstance(node, ast.Lambda):
            return self._names(node) - _bound_within(node) <= BUILTINS
        if isinstance(node, ast.Name):
            return node.id in BUILTINS - self.setup.names - self.local
        quiet = ast.Constant | ast.List | ast.Tuple | ast.Set | ast.Dict | ast.UnaryOp | ast.BinOp | ast.Starred
        inner = (n for n in ast.walk(node) if isinstance(n, ast.expr))
        return all(isinstance(n, quiet) or (isinstance(n, ast.Name) and self._as_it_stands(n)) for n in inner)


def _bound_within(node: ast.AST) -> set[str]:
    """Names that comprehensions and functions in an expression bind."""
    stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def _change_arguments(link: ast.expr, change: Callable[[ast.expr], ast.expr]) -> None:
    """Replaces the arguments of a call, or what stands between the brackets of a subscript."""
    if isinstance(link, ast.Call):
        link.args = [change(argument) for argument in link.args]
        for keyword in link.keywords:
            keyword.value = change(keyword.value)
    elif isinstance(link, ast.Subscript):
        link.slice = change(link.slice)
