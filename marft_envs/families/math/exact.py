"""Whether two expressions have the same value, decided exactly where that is possible.

Two expressions with variables are compared at fixed points, where they are exact too as long as they are rational
functions. Floats only ever say no: values that are equal in floats, or beyond their range, are compared with fifty and
with a hundred digits (``precise``), relative to their size, so that tiny and huge constants are distinguished.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import partial

from marft_envs.families.math.branches import MAX_KINKS, RealWalk, at, coordinate, even_root, kinks, real
from marft_envs.families.math.branches import points as branch_points
from marft_envs.families.math.evaluation import OutOfRange, TooBig, Undefined, Value, checked, close, divided, evaluate
from marft_envs.families.math.parse import Node, ParseError, parse, variables

ROUGHLY = 0.05
"""How far both sides of an ``≈`` may be apart: π ≈ 3 is."""
POINTS = 3
ROOT_POINTS = 6
SIGN_POINTS = 64
WHOLE_POINTS = 12


_DECIMAL = re.compile(r"-?\d*\.(\d+)")


def points(names: frozenset[str], whole: frozenset[str] = frozenset()) -> list[dict[str, Value]]:
    """The fixed points: the first has positive coordinates only; those in ``whole`` have whole ones."""
    count = WHOLE_POINTS if whole else POINTS if names else 1
    return [{name: k + 1 if name in whole else coordinate(name, k) for name in names} for k in range(count)]


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
    """Whether two expressions are equal, or ``None`` if that cannot be decided here. Raises ``TooBig``."""
    try:
        nodes = parse(first), parse(second)
    except ParseError:
        return None
    common = variables(nodes[0]) | variables(nodes[1])
    whole = _whole(nodes[0]) | _whole(nodes[1])
    verdicts = [_same_at(nodes, point) for point in points(common, whole)]
    agree = [verdict for verdict in verdicts if verdict is not None]
    if (agree and not agree[0]) or (whole and not all(agree)):
        return False
    if agree and not whole and _differ_elsewhere(nodes, common):
        return False
    if agree and all(agree) and len(agree) == len(verdicts):
        return True
    return True if agree and _same_where_real(nodes, common) else None  # branches of roots and logarithms


def _whole(node: Node) -> frozenset[str]:
    """Variables that are whole numbers, because a negative number is raised to them."""
    if node[0] == "^" and not variables(node[1]) and variables(node[2]):
        base = at(node[1], {})
        if isinstance(base, (int, Fraction)) and base < 0:
            return variables(node[2])
    return frozenset().union(*(_whole(child) for child in node[1:] if isinstance(child, tuple)))


def _differ_elsewhere(nodes: tuple[Node, Node], common: frozenset[str]) -> bool:
    """Whether two expressions that are equal at some fixed points differ on another side of a kink.

    Forms of one root (``√(a/b)`` and ``√(ab)/b``) are compared where what both take a root of is positive.
    """
    edges = list(kinks(nodes[0]) | kinks(nodes[1]))[:MAX_KINKS]
    if not edges:
        return False
    first, second = map(_radicands, nodes)
    rooted = _signed(first - second) & _signed(second - first)
    everywhere = branch_points(edges, sorted(common))
    return any(_differ_at(nodes, {x: abs(t) if x in rooted else t for x, t in point.items()}) for point in everywhere)


def _differ_at(nodes: tuple[Node, Node], point: Mapping[str, Value]) -> bool:
    """Whether both have values at a point, and different ones; real ones are not compared with what left the reals."""
    walks = RealWalk(point), RealWalk(point)
    try:
        a, b = (walk.value(node) for walk, node in zip(walks, nodes, strict=True))
        reals = [walk for walk, value in zip(walks, (a, b), strict=True) if real(value)]
        if close(a, b) or not reals or any(walk.left for walk in reals):
            return False
        from marft_envs.families.math import precise

        return precise.same(nodes, (point, point)) is False
    except (ArithmeticError, ValueError):
        return False


def _same_where_real(nodes: tuple[Node, Node], common: frozenset[str]) -> bool:
    """Whether two forms of a root are equal where what both take a root of is positive: ``√(a/b)`` and ``√(ab)/b``."""
    rooted = _signed(_radicands(nodes[0])) & _signed(_radicands(nodes[1]))
    signed = ({name: coordinate(name, k) for name in common} for k in range(ROOT_POINTS))
    positive = [{name: abs(x) if name in rooted else x for name, x in point.items()} for point in signed]
    return bool(rooted) and all(_same_at(nodes, point) for point in positive)


def _signed(radicands: Iterable[Node]) -> frozenset[str]:
    """Variables of what is below 0 somewhere, but for those whose sign does not matter, as x in ``x^2 y``."""
    rooted = set[str]()
    for inside in radicands:
        point, *others = ({name: coordinate(name, k, 2) for name in variables(inside)} for k in range(SIGN_POINTS))
        reals = (value for value in map(partial(at, inside), others) if value is not None and real(value))
        if any(complex(value).real < 0 for value in reals):
            mirrored = (name for name in point if _same_at((inside, inside), point, {**point, name: -point[name]}))
            rooted |= variables(inside) - set(mirrored)
    return frozenset(rooted)


def _radicands(node: Node) -> frozenset[Node]:
    """What even roots are taken of, if it has variables."""
    below = frozenset[Node]().union(*(_radicands(child) for child in node[1:] if isinstance(child, tuple)))
    return below | {node[1]} if even_root(node) and variables(node[1]) else below


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
    """Whether ``first = second`` or ``first ≈ second``, two constants, is true; True also if it cannot be decided.

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
    if not all(close(ratios[0], other) for other in ratios):
        return None
    gaps = [("+", parse(left), ("neg", parse(right))) for left, right in (first, second)]
    times = ("float", ratios[0].real) if isinstance(ratios[0], complex) else ("num", ratios[0])
    return None if _differ_elsewhere((gaps[0], ("*", times, gaps[1])), common) else ratios[0]
