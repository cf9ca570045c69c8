"""Whether two expressions have the same value, decided exactly where that is possible.

Two expressions with variables are compared at fixed points, where they are exact too as long as they are rational
functions. Floats only ever say no: what is equal in floats, or beyond their range, is decided with fifty digits and a
hundred (``precise``), relative to its size, so that tiny and huge constants are told apart.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from marft_envs.families.math.evaluation import OutOfRange, TooBig, Undefined, Value, checked, close, divided, evaluate
from marft_envs.families.math.parse import Node, ParseError, parse, variables

ROUGHLY = 0.05
"""How far both sides of an ``≈`` may be apart: π ≈ 3 is."""
POINTS = 3
ROOT_POINTS = 6


_DECIMAL = re.compile(r"-?\d*\.(\d+)")


@lru_cache(maxsize=4096)
def _coordinate(name: str, index: int) -> Fraction:
    mixed = zlib.crc32(f"{index}:{name}".encode("utf-8", "surrogatepass"))
    value = Fraction(mixed % 1021 + 3, 509)
    return -value if index and mixed & 1024 else value


def points(names: frozenset[str]) -> list[dict[str, Value]]:
    """The fixed points: the first has positive coordinates only."""
    return [{name: _coordinate(name, k) for name in names} for k in range(POINTS if names else 1)]


def values(text: str, names: frozenset[str]) -> list[Value | None]:
    """Values of an expression at the fixed points, ``None`` where it has none. Raises ``ParseError``, ``TooBig``."""
    node = parse(text)
    return [_value(node, point)[0] for point in points(names)]


def _value(node: Node, point: Mapping[str, Value]) -> tuple[Value | None, bool]:
    """The value, and whether it is beyond the range of floats. Raises ``TooBig``."""
    try:
        return evaluate(node, point), False
    except Undefined as error:
        return None, isinstance(error, OutOfRange)


def names(text: str) -> frozenset[str]:
    """Variables of an expression. Raises ``ParseError``."""
    return variables(parse(text))


def same_value(first: str, second: str) -> bool | None:
    """Whether two expressions are equal, or ``None`` if that cannot be told here. Raises ``TooBig``."""
    try:
        nodes = parse(first), parse(second)
    except ParseError:
        return None
    common = variables(nodes[0]) | variables(nodes[1])
    verdicts = [_same_at(nodes, point) for point in points(common)]
    agree = [verdict for verdict in verdicts if verdict is not None]
    if not agree:
        return None
    if all(agree) and len(agree) == len(verdicts):
        return True
    if not agree[0] or not any(agree):
        return False
    return True if _same_where_real(nodes, common) else None  # equal at some points: branches of roots and logarithms


def _same_where_real(nodes: tuple[Node, Node], common: frozenset[str]) -> bool:
    """Whether two forms of a root are equal where what both take a root of is positive: ``√(a/b)`` and ``√(ab)/b``."""
    rooted = _rooted(nodes[0]) & _rooted(nodes[1])
    signed = ({name: _coordinate(name, k) for name in common} for k in range(ROOT_POINTS))
    positive = [{name: abs(x) if name in rooted else x for name, x in point.items()} for point in signed]
    return bool(rooted) and all(_same_at(nodes, point) for point in positive)


def _rooted(node: Node) -> frozenset[str]:
    """Variables of which an even root is taken, but for those whose sign does not matter there, as in ``√(x^2)``."""
    below: frozenset[str] = frozenset().union(*(_rooted(child) for child in node[1:] if isinstance(child, tuple)))
    even = (node[0] == "root" and node[2] == ("num", 2)) or (node[0] == "^" and _halves(node[2]))
    if not even or not variables(node[1]):
        return below
    point = points(variables(node[1]))[0]
    mirrored = (name for name in point if _same_at((node[1], node[1]), point, {**point, name: -point[name]}))
    return below | (variables(node[1]) - set(mirrored))


def _halves(exponent: Node) -> bool:
    value = None if variables(exponent) else _value(exponent, {})[0]
    return isinstance(value, Fraction) and value.denominator == 2


def _same_at(
    nodes: tuple[Node, Node], point: Mapping[str, Value], other: Mapping[str, Value] | None = None
) -> bool | None:
    """Whether two expressions are equal at a point, the second perhaps at another; ``None`` where one has no value."""
    pair = (point, point if other is None else other)
    (a, far_a), (b, far_b) = (_value(node, each) for node, each in zip(nodes, pair, strict=True))
    if not (far_a or far_b):
        if a is None or b is None:
            return None
        if not (isinstance(a, complex) or isinstance(b, complex)):
            return a == b
        if not close(a, b):
            return False
    elif (a is None and not far_a) or (b is None and not far_b):
        return None
    from marft_envs.families.math import (
        precise,  # mpmath takes a tenth of a second to import, and most answers are exact
    )

    return precise.same(nodes, pair)


def holds(operator: str, first: str, second: str) -> bool:
    """Whether ``first = second`` or ``first ≈ second``, two constants, is true; what cannot be told is believed.

    A decimal on the right may be rounded: ``1/3 = 0.33``.
    """
    decimal = _DECIMAL.fullmatch(second.strip())
    absolute = 0.5000001 * 10.0 ** -len(decimal.group(1)) if decimal else 0.0
    try:
        if same_value(first, second) is not False:
            return True
        (a,), (b,) = (values(text, frozenset()) for text in (first, second))
        if a is None or b is None:
            return True
        a, b = complex(a), complex(b)
    except (TooBig, ParseError):
        return True
    except OverflowError:
        return False
    relative = ROUGHLY if operator == "≈" else 0.0
    return abs(a - b) <= max(absolute, relative * max(abs(a), abs(b)))


def ratio(first: tuple[str, str], second: tuple[str, str]) -> Value | None:
    """The constant c with ``left - right`` of the first relation = c times that of the second, if there is one.

    Raises:
        ParseError: A side is no expression.
        TooBig: A side is out of bounds.
    """
    common = frozenset().union(*(names(side) for side in (*first, *second)))
    sides = [values(side, common) for side in (*first, *second)]
    ratios: list[Value] = []
    for a, b, c, d in zip(*sides, strict=True):
        if a is None or b is None or c is None or d is None:
            return None
        try:
            above, below = checked(a - b), checked(c - d)
            if close(below, 0) or close(above, 0):
                return None
            ratios.append(checked(divided(above, below)))
        except (OverflowError, Undefined):
            return None
    return ratios[0] if all(close(ratios[0], other) for other in ratios) else None
