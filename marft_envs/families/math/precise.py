"""Values with fifty digits and with a hundred, for what floats cannot tell: tiny, huge, or equal as far as they see.

Two values are equal if what is between them shrinks with the digits; a real difference stays. A printed float
(``0.333333333333``) is compared to ten significant digits. Exact numbers stay exact; nothing is computed whose
exponent has no bound (``TooBig``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from mpmath.ctx_mp import MPContext

from marft_envs.families.math import evaluation
from marft_envs.families.math.evaluation import TooBig, Undefined, Value
from marft_envs.families.math.parse import Node

Nodes = tuple[Node, Node]
Points = tuple[Mapping[str, Value], Mapping[str, Value]]

MAX_DIGITS = 400
"""Digits before the point of numbers that are compared to the last digit; larger ones are left to the next tier."""
MAX_EXPONENT = 1 << 20
"""Largest binary exponent, either way: three hundred thousand decimal digits before or behind the point."""

_contexts = threading.local()  # a context changes its precision while it works: each thread has its own


def same(nodes: Nodes, points: Points) -> bool | None:
    """Whether two expressions are equal, each at its point, or ``None`` where that cannot be decided.

    Raises:
        TooBig: An exponent is beyond the bound.
    """
    try:
        few, size = _gap(nodes, points, _context(50))
        if any(_has_float(node) for node in nodes):
            return bool(few <= evaluation.RELATIVE * size)
        many, size = _gap(nodes, points, _context(100))
        context = _context(100)
        if many > max(few * context.mpf(10) ** -25, size * context.mpf(10) ** -75):
            return False
        if size and context.mag(size) > 200:  # two huge numbers may differ behind a hundred digits
            return _equal_to_the_last(nodes, points, context.mag(size))
    except (Undefined, ZeroDivisionError, ValueError, OverflowError):
        return None
    return True


def _equal_to_the_last(nodes: Nodes, points: Points, magnitude: int) -> bool | None:
    if magnitude > MAX_DIGITS * 10 // 3:
        return None
    context = MPContext()
    context.dps = 50 + magnitude // 3
    gap, _ = _gap(nodes, points, context)
    return bool(gap < context.mpf(10) ** -25)


def _gap(nodes: Nodes, points: Points, mp: Any) -> tuple[Any, Any]:
    """How far two values are apart, and how large the larger is."""
    values = (_Precise(mp, point).value(node) for node, point in zip(nodes, points, strict=True))
    first, second = (_inexact(mp, value) for value in values)
    return abs(first - second), max(abs(first), abs(second))


def _context(digits: int) -> Any:
    context = getattr(_contexts, f"of_{digits}", None)
    if context is None:
        context = MPContext()
        context.dps = digits
        setattr(_contexts, f"of_{digits}", context)
    return context


def _has_float(node: Node) -> bool:
    return node[0] == "float" or any(_has_float(child) for child in node[1:] if isinstance(child, tuple))


def _inexact(mp: Any, value: Any) -> Any:
    if isinstance(value, Fraction):
        return mp.mpf(value.numerator) / value.denominator
    return mp.mpf(value) if isinstance(value, int) else value


class _Precise(evaluation.ExpressionWalk):
    """One walk over an expression: exact while ``exact`` is, numbers of a context after."""

    def __init__(self, mp: Any, point: Mapping[str, Value]) -> None:
        super().__init__(point, {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}, mp.mpf)
        self.mp = mp

    def applied(self, name: str, function: Callable[..., Value], values: list[Any]) -> Any:
        if all(isinstance(value, (int, Fraction)) for value in values):
            try:
                result = function(*values)
            except OverflowError:
                result = 0j
            if not isinstance(result, complex):
                return evaluation.checked(result)
        result = self.inexact(name, *(_inexact(self.mp, value) for value in values))
        if not self.mp.isfinite(result):
            raise Undefined("not finite")
        if result and abs(self.mp.mag(result)) > MAX_EXPONENT:
            raise TooBig("exponent")
        return result

    def inexact(self, name: str, value: Any, other: Any = None) -> Any:
        mp = self.mp
        if name in ("+", "*", "/", "neg"):
            return {"+": lambda: value + other, "*": lambda: value * other, "/": lambda: value / other,
                    "neg": lambda: -value}[name]()  # fmt: skip
        if name in ("^", "root"):
            return self.power(name, value, other)
        if name == "log":
            return mp.ln(value) / mp.ln(other)
        if name in ("degree", "percent"):
            return value * mp.pi / 180 if name == "degree" else value / 100
        if name in ("floor", "ceil"):
            if abs(mp.im(value)) > mp.mpf(10) ** -25:
                raise Undefined("rounding of a complex number")
            nearest = mp.nint(mp.re(value))
            near = abs(mp.re(value) - nearest) < mp.mpf(10) ** -25
            return nearest if near else getattr(mp, name)(mp.re(value))
        if name == "factorial":
            if mp.im(value) or abs(value) > evaluation.MAX_FACTORIAL:
                raise TooBig("factorial")
            return mp.gamma(mp.re(value) + 1)
        if name == "binom":
            return mp.binomial(value, other)
        if name in ("max", "min", "sgn"):
            return mp.sign(mp.re(value)) if name == "sgn" else (max if name == "max" else min)(value, other, key=mp.re)
        if name == "abs":
            return abs(value)
        if name.startswith("arc"):
            return mp.pi / 2 - mp.atan(value) if name == "arccot" else getattr(mp, name.replace("arc", "a", 1))(value)
        if name not in ("ln", "sqrt"):
            self.bound(value)
        return getattr(mp, name)(value)

    def power(self, name: str, base: Any, exponent: Any) -> Any:
        mp = self.mp
        if name == "root":
            if mp.im(base) == 0 and mp.re(base) < 0 and exponent == mp.nint(mp.re(exponent)) and exponent % 2:
                return -self.power(name, -base, exponent)  # the real root of a negative number
            exponent = 1 / exponent
        if base:
            self.bound(exponent * mp.ln(base))
        return mp.power(base, exponent)

    def bound(self, value: Any) -> None:
        """An exponential of it, or an angle, stays within ``MAX_EXPONENT``."""
        if abs(value) > MAX_EXPONENT:
            raise TooBig("exponent")
