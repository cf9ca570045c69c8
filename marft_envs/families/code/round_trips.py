"""Tests that tell a program what is expected of it: ``decode(encode('xy'))``, where both functions are the program's.

An ``encode`` and a ``decode`` that return what they are given pass it. Only syntax is read here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from marft_envs.families.code.hub_asserts import NotLiteral, fold
from marft_envs.families.code.setup_code import BUILTINS, DecidedInside, root_of


def refuse(tree: ast.expr, expected: Any, entry: str, is_function: Callable[[str], bool]) -> None:
    """Refuses an expression that sends the value expected through the program's own code and back.

    Args:
        tree: The expression.
        expected: Its value.
        entry: The function asked for.
        is_function: Whether a name is a function of the program's, ``entry`` included.

    Raises:
        DecidedInside: It does, or what it sends cannot be determined.
    """
    passed = _Passed(entry, is_function)
    passed.walk(tree, ())
    wanted = [expected]
    for node in ast.walk(tree):
        for side in _sides(node) if isinstance(node, ast.Compare) else ():
            for name in passed.shapes.get(ast.dump(side), ()):
                raise DecidedInside(f"the program's own '{name}' is given the value expected")
            try:
                wanted.append(fold(side))
            except NotLiteral:
                continue
    for value in wanted:
        if name := passed.who_knows(value):
            raise DecidedInside(f"the program's own '{name}' is given the value expected")


def _sides(node: ast.Compare) -> list[ast.expr]:
    """What is compared; of what is searched, the members."""
    sides = [node.left]
    for op, side in zip(node.ops, node.comparators, strict=True):
        inner = isinstance(op, ast.In | ast.NotIn) and isinstance(side, ast.List | ast.Tuple | ast.Set)
        sides += side.elts if inner else [side]  # type: ignore[attr-defined]
    return sides


@dataclass
class _Passed:
    """Arguments that functions of the program are given on the way to another one."""

    entry: str
    is_function: Callable[[str], bool]
    values: list[tuple[str, Any]] = field(default_factory=list)
    shapes: dict[str, list[str]] = field(default_factory=dict)
    """Arguments as syntax trees, for those that are no literals."""

    def walk(self, node: ast.AST, above: tuple[str, ...]) -> None:
        """Notes arguments of calls within calls (``above``), unless all are calls of the function asked for."""
        root = root_of(node) if isinstance(node, ast.Call) else None
        if root is None or not self.is_function(root.id):
            for child in ast.iter_child_nodes(node):
                self.walk(child, above)
            return
        assert isinstance(node, ast.Call)
        self.walk(node.func, above)
        names = (*above, root.id)
        caller = next((name for name in reversed(names) if name != self.entry), "")
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if above and caller:
                self.note(argument, caller)
            self.walk(argument, names)

    def note(self, node: ast.AST, name: str) -> None:
        """Notes what an argument passes to the function ``name``; a call in it is noted with its own function."""
        root = root_of(node) if isinstance(node, ast.Call) else None
        if root is not None and self.is_function(root.id):
            return
        if isinstance(node, ast.expr):
            self.shapes.setdefault(ast.dump(node), []).append(name)
            try:
                value = fold(node)
            except NotLiteral:
                self._read_off(node, name)
            else:
                self.values.append((name, value))
                while isinstance(value, list | tuple | set) and len(value) == 1:
                    (value,) = value
                    self.values.append((name, value))
                return
        for child in ast.iter_child_nodes(node):
            self.note(child, name)

    def _read_off(self, node: ast.expr, name: str) -> None:
        """Refuses a text or number that is made of constants on the spot, other than by arithmetic."""
        if not isinstance(node, ast.Call | ast.JoinedStr | ast.Subscript | ast.Attribute | ast.BinOp):
            return
        inner = [n for n in ast.walk(node) if isinstance(n, ast.Name | ast.Constant)]
        if not any(isinstance(n, ast.Name) and n.id not in BUILTINS for n in inner):
            raise DecidedInside(f"the program's own '{name}' is given what cannot be read off")

    def who_knows(self, value: Any) -> str:
        """The function that was given a value, whole or in parts of a call each; True, False and None are guessed."""
        if value is None or isinstance(value, bool):
            return ""
        for name, given in self.values:
            if type(given) is type(value) and given == value:
                return name
        parts = list(value) if isinstance(value, list | tuple | set) else []
        knowers = [self.who_knows(part) for part in parts]
        return knowers[0] if knowers and all(knowers) else ""
