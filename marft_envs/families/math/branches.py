"""Points on every side of where an expression changes its branch: kinks of |·|, even roots, max and min, steps, poles.

Between two kinks an expression is analytic, so that a point or two tell whether another is equal to it there. Zeros of
what stands in such a function are looked for along lines in the direction of each variable.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import islice, pairwise, product

from marft_envs.families.math.evaluation import ABSOLUTE, ExpressionWalk, Undefined, Value, evaluate
from marft_envs.families.math.parse import Node, variables

Point = dict[str, Fraction]

ANYWHERE = 24
"""Points of all sizes from 1 to 10,000, with all signs and orders of the variables."""
BASES = 3
"""Lines in the direction of each of several variables."""
MAX_KINKS = 12
MAX_LINES = 24
"""Lines times kinks that are searched."""
MAX_BREAKS = 24
_STEPS = [1.5**k for k in range(-6, 60)]  # 0.09 to 25 billion
_GRID = sorted([*_STEPS, *(-t for t in _STEPS), *(0.0137 + k / 3 for k in range(-30, 30))])
_INSIDE = (Fraction(37, 100), Fraction(71, 100))


def kinks(node: Node) -> dict[Node, None]:
    """Expressions at whose zeros ``node`` may change its branch, in order."""
    kind = node[1] if node[0] == "fn" else node[0]
    inside: list[Node] = []
    if kind in ("max", "min"):
        inside = [("+", node[1], ("neg", node[2]))]
    elif kind in ("floor", "ceil"):
        inside = [("+", node[2], ("num", step)) for step in (-1, 0, 1)]
    elif kind in ("abs", "sgn") or kind.startswith("arc") or even_root(node):
        inside = list(_factors(node[2] if node[0] == "fn" else node[1]))
    found = dict.fromkeys(each for each in inside if variables(each))
    for child in node[1:]:
        found |= kinks(child) if isinstance(child, tuple) else {}
    return found


def even_root(node: Node) -> bool:
    """Whether ``node`` is a square root, a fourth root or a power with such an exponent."""
    if node[0] not in ("root", "^") or variables(node[2]):
        return False
    index = at(node[2], {})
    return isinstance(index, (int, Fraction)) and not (index.numerator if node[0] == "root" else index.denominator) % 2


def at(node: Node, point: Mapping[str, Value]) -> Value | None:
    """The value at a point, ``None`` where there is none. Raises ``TooBig``."""
    try:
        return evaluate(node, point)
    except Undefined:
        return None


def _factors(node: Node) -> Iterator[Node]:
    if node[0] not in ("*", "/", "^", "neg"):
        yield node
    else:
        for child in node[1:] if node[0] in "*/" else node[1:2]:
            yield from _factors(child)


@lru_cache(maxsize=4096)
def coordinate(name: str, k: int, sizes: int = 1) -> Fraction:
    """The ``k``-th number for a variable, of one of so many sizes: about 1, 10, 100."""
    mixed = zlib.crc32(f"{k}:{name}".encode("utf-8", "surrogatepass"))
    if sizes > 1:
        mixed = mixed**2 >> 20  # a checksum is linear: the signs of two names would go together
    value = Fraction(mixed % 1021 + 3, 509) * 10 ** ((mixed >> 11) % sizes)
    return -value if k and mixed & 1024 else value


def points(edges: list[Node], names: list[str]) -> Iterator[Point]:
    """Yields points anywhere, then those between the zeros of ``edges``."""
    anywhere: list[Point] = [{name: coordinate(name, k, 5) for name in names} for k in range(ANYWHERE)]
    yield from anywhere
    lines = product(anywhere[: BASES if len(names) > 1 else 1], names)
    for base, name in islice(lines, max(2, MAX_LINES // len(edges))):
        breaks = {zero for edge in edges if name in variables(edge) for zero in _zeros(edge, base, name)}
        for value in _between(sorted(sorted(breaks, key=abs)[:MAX_BREAKS])):
            yield {**base, name: value}


def _between(breaks: list[float]) -> Iterator[Fraction]:
    ends = [t for k, t in enumerate(breaks) if k == 0 or t - breaks[k - 1] > 1e-9 * (1 + abs(t))]
    if ends:
        ends = [ends[0] - 1 - abs(ends[0]), *ends, ends[-1] + 1 + abs(ends[-1])]
    for (low, high), share in product(pairwise(map(Fraction, ends)), _INSIDE):
        value = low + share * (high - low)
        yield value.limit_denominator(10**6) if high - low > Fraction(1, 1000) else value


def _zeros(edge: Node, base: Point, name: str) -> list[float]:
    """Zeros, poles and extrema of a real expression along a line."""
    inexact: dict[str, Value] = {other: complex(value) for other, value in base.items()}

    def value(t: float) -> float:
        number = at(edge, {**inexact, name: complex(t)})
        return complex(number).real if number is not None and real(number) else float("nan")

    def slope(t: float) -> float:
        step = 1e-5 * (1 + abs(t))
        return value(t + step) - value(t - step)

    first, second, *others = [(t, value(t)) for t in (-1e6, 1e6, -2.7, 0.9)]
    rise = (second[1] - first[1]) / (second[0] - first[0])
    if not kinks(edge) and all(abs(first[1] + rise * (t - first[0]) - v) <= 1e-6 * abs(rise) for t, v in others):
        return [first[0] - first[1] / rise] if rise else []
    extrema = list(_crossings(slope, _GRID))  # two zeros between two numbers of the grid have one between them
    return [*extrema, *_crossings(value, sorted([*_GRID, *extrema]))]


def _crossings(function: Callable[[float], float], grid: list[float]) -> Iterator[float]:
    """Yields where a function changes its sign."""
    for (low, first), (high, second) in pairwise((t, function(t)) for t in grid):
        if first * second < 0:
            for _ in range(60):
                middle = (low + high) / 2
                low, high = (middle, high) if function(middle) * first > 0 else (low, middle)
            yield low


class RealWalk(ExpressionWalk):
    """A walk that notes whether a root, a logarithm or the like of a real number was not real."""

    left = False

    def applied(self, name: str, function: Callable[..., Value], values: list[Value]) -> Value:
        """A function or operation on its values."""
        value: Value = super().applied(name, function, values)
        self.left = self.left or (not real(value) and all(map(real, values)))
        return value


def real(value: Value) -> bool:
    """Whether a value is real, as far as floats can tell."""
    return not isinstance(value, complex) or abs(value.imag) <= ABSOLUTE + 1e-9 * abs(value)
