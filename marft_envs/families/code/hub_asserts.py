"""Assertions in the test programs of data sets, as tests with values to compare outside. Nothing is executed."""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from marft_envs.families.code.problem import Test

MAX_SOURCE = 1 << 23
"""Characters of a test program that are parsed; longer ones are refused."""
_MAX_LENGTH = 100_000
"""Items of a sequence, or bits of a number, that folding may make."""
_MAX_ROUNDS = 300

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_BUILTINS: dict[str, Callable[..., Any]] = {
    "set": set, "frozenset": frozenset, "list": list, "tuple": tuple, "dict": dict, "int": int, "float": float,
    "str": str, "len": len, "sorted": sorted, "round": round, "abs": abs, "range": range, "bool": bool, "sum": sum,
}  # fmt: skip
_MATHS = ("math", "np", "numpy")
_NAMES = {"inf": math.inf, "nan": math.nan, "True": True, "False": False, "None": None}


class NotLiteral(ValueError):
    """An expression that is no literal and cannot be folded into one."""


def fold(node: ast.expr) -> Any:
    """The value of an expression made of literals, arithmetic and a few built-ins.

    Raises:
        NotLiteral: it has other names or calls, fails, or makes something huge.
    """
    try:
        return _fold(node)
    except NotLiteral:
        raise
    except (ValueError, TypeError, ArithmeticError, KeyError, RecursionError, MemoryError) as error:
        raise NotLiteral(f"{type(error).__name__}: {error}") from error


def _fold(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and not isinstance(node.value, type(...)):
        return node.value
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        make: Callable[[Any], Any] = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return make(_fold(item) for item in node.elts)
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {_fold(key): _fold(value) for key, value in zip(node.keys, node.values, strict=True) if key is not None}
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in _MATHS:
        return {"inf": math.inf, "nan": math.nan, "pi": math.pi, "e": math.e}[node.attr]
    if isinstance(node, ast.UnaryOp):
        unary: dict[type[ast.unaryop], Callable[[Any], Any]] = {
            ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_, ast.Invert: operator.invert,
        }  # fmt: skip
        return unary[type(node.op)](_fold(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _fold(node.left), _fold(node.right)
        _bounded(node.op, left, right)
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        value = _BUILTINS[node.func.id](*(_fold(argument) for argument in node.args))
        if isinstance(value, range):
            if len(value) > _MAX_LENGTH:
                raise NotLiteral("a range too long")
            return list(value)
        return value
    raise NotLiteral(ast.dump(node)[:80])


def _bounded(op: ast.operator, left: Any, right: Any) -> None:
    """Refuses arithmetic that could make something huge."""
    if isinstance(op, ast.Pow):
        if not (isinstance(left, int | float) and isinstance(right, int | float) and abs(right) < 10_000):
            raise NotLiteral("a power too high")
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MAX_LENGTH:
            raise NotLiteral("a power too high")
    if isinstance(op, ast.Mult):
        for one, other in ((left, right), (right, left)):
            if hasattr(one, "__len__") and isinstance(other, int) and len(one) * other > _MAX_LENGTH:
                raise NotLiteral("a sequence too long")


def to_text(value: Any) -> str:
    """A value as literal text that ``ast.literal_eval`` reads; infinity becomes ``1e999``.

    Raises:
        NotLiteral: there is no such text (NaN, objects).
    """
    if isinstance(value, float):
        if math.isnan(value):
            raise NotLiteral("NaN has no literal")
        return repr(value) if math.isfinite(value) else ("1e999" if value > 0 else "-1e999")
    if isinstance(value, int) and value.bit_length() > 4096:
        return hex(value)  # Python refuses to write, and to read, ints of thousands of digits otherwise
    if value is None or isinstance(value, bool | int | str | bytes | complex):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(to_text, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(to_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(to_text, value)))}}}" if value else "set()"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{to_text(k)}: {to_text(v)}' for k, v in value.items())}}}"
    raise NotLiteral(f"a {type(value).__name__} has no literal")


def calls(node: ast.AST, name: str) -> bool:
    """Does a call of this name occur?"""
    return any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == name for n in ast.walk(node))


def direct(node: ast.AST, name: str) -> str | None:
    """Arguments as text, if the expression is just ``name(literals)``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name) or node.keywords:
        return None
    try:
        return to_text([fold(argument) for argument in node.args])
    except NotLiteral:
        return None


class _Rename(ast.NodeTransformer):
    """Replaces names by other expressions."""

    def __init__(self, by: dict[str, ast.expr]) -> None:
        self.by = by

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.by.get(node.id, node)


def substituted(node: ast.AST, by: dict[str, ast.expr]) -> Any:
    """A copy of the statement with names replaced by expressions."""
    return _Rename(by).visit(ast.parse(ast.unparse(node)).body[0])


def _test(call: ast.expr, value: Any, name: str, check: str = "", atol: float = 0.0, rtol: float = 0.0) -> Test:
    """Makes the test that ``call``, which calls ``name``, has the value."""
    if (args := direct(call, name)) is not None:
        return Test("call", args, to_text(value), check, atol, rtol)
    return Test("expr", ast.unparse(call), to_text(value), check, atol, rtol)


def _near(test: ast.expr, name: str) -> Test | None:
    """``abs(f(x) - y) < tol`` and ``math.isclose(f(x), y, …)``."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Lt | ast.LtE) and isinstance(test.left, ast.Call):
        call, inner = test.left, test.left.args[0] if test.left.args else None
        absolute = ast.unparse(call.func) in ("abs", "math.fabs") and isinstance(inner, ast.BinOp)
        if absolute and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub) and calls(inner.left, name):
            return _test(inner.left, fold(inner.right), name, "approx", float(fold(test.comparators[0])))
    if isinstance(test, ast.Call) and ast.unparse(test.func) in ("math.isclose", "isclose") and len(test.args) == 2:
        options = {str(keyword.arg): float(fold(keyword.value)) for keyword in test.keywords}
        atol, rtol = options.get("abs_tol", 0.0), options.get("rel_tol", 1e-9)
        return _test(test.args[0], fold(test.args[1]), name, "approx", atol, rtol)
    return None


def read_assert(test: ast.expr, name: str) -> Test | None:
    """One assertion about the function ``name`` as a test; None for one that says nothing about it.

    ``f(x) == y`` compares outside; another form becomes an expression whose truth is the value compared.

    Raises:
        NotLiteral: the value expected cannot be read off, e.g. because the reference makes it.
    """
    if not calls(test, name):
        return None
    if (near := _near(test, name)) is not None:
        return near
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is):
        left, right = test.left, test.comparators[0]
        if not calls(left, name):
            left, right = right, left
        if calls(right, name):
            raise NotLiteral("both sides call the function")
        return _test(left, fold(right), name)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return Test("expr", f"not ({ast.unparse(test.operand)})", "True")
    return Test("expr", f"not not ({ast.unparse(test)})", "True")


def read_asserts(body: list[ast.stmt], name: str, lost: Counter[str]) -> Iterator[Test]:
    """Tests from the assertions of a block, loops over literals unrolled; ``lost`` counts what cannot be read."""
    for statement in body:
        if isinstance(statement, ast.Assert):
            try:
                test = read_assert(statement.test, name)
            except NotLiteral:
                lost["assertions whose value cannot be read off"] += 1
                continue
            if test is not None:
                yield test
        elif isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
            assigned = any(isinstance(n, ast.Assign | ast.AugAssign) for n in ast.walk(statement))
            try:
                rounds = None if assigned else list(fold(statement.iter))
            except (NotLiteral, TypeError):
                rounds = None
            if rounds is None or len(rounds) > _MAX_ROUNDS:
                lost["loops that cannot be unrolled"] += 1
                continue
            for value in rounds:
                by: dict[str, ast.expr] = {statement.target.id: ast.parse(to_text(value), mode="eval").body}
                yield from read_asserts([substituted(inner, by) for inner in statement.body], name, lost)
        elif isinstance(statement, ast.For | ast.While | ast.If | ast.With | ast.Try):
            lost["blocks that cannot be read"] += 1


def parse(source: str) -> ast.Module:
    """A test program, parsed.

    Raises:
        NotLiteral: no Python, or too long.
    """
    if len(source) > MAX_SOURCE:
        raise NotLiteral(f"a test program of {len(source):,} characters")
    try:
        return ast.parse(source.replace("\r\n", "\n"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotLiteral(f"no Python: {error}") from error
