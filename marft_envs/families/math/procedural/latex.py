"""Exact numbers and small expressions as LaTeX, each in one canonical form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

Number = int | Fraction


def frac(value: Number) -> str:
    r"""``3``, ``-\frac{3}{4}``: reduced, the sign in front."""
    value = Fraction(value)
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def square_part(n: int) -> tuple[int, int]:
    """``(k, m)`` with ``n = k * k * m`` and m squarefree, for n >= 1."""
    k, p = 1, 2
    while p * p <= n:
        while n % (p * p) == 0:
            n //= p * p
            k *= p
        p += 1
    return k, n


def surd(factor: Number, radicand: int) -> str:
    r"""``factor * sqrt(radicand)`` in lowest terms, e.g. ``\frac{3\sqrt{5}}{2}``."""
    value = Fraction(factor)
    if value == 0 or radicand == 0:
        return "0"
    k, m = square_part(radicand)
    value *= k
    if m == 1:
        return frac(value)
    sign = "-" if value < 0 else ""
    p, q = abs(value.numerator), value.denominator
    top = (str(p) if p != 1 else "") + rf"\sqrt{{{m}}}"
    return sign + (rf"\frac{{{top}}}{{{q}}}" if q != 1 else top)


def root_of(square: Number) -> str:
    """The square root of a non-negative rational, rationalised."""
    value = Fraction(square)
    return surd(Fraction(1, value.denominator), value.numerator * value.denominator)


def join(parts: Iterable[str]) -> str:
    """Signed pieces as a sum: ``["3x", "-2"]`` -> ``3x-2``; zeros are left out."""
    kept = [part for part in parts if part != "0"]
    if not kept:
        return "0"
    return kept[0] + "".join(part if part.startswith("-") else f"+{part}" for part in kept[1:])


def term(coefficient: Number, symbol: str) -> str:
    """``3x``, ``-x``, ``7`` (no symbol) or ``0``."""
    value = Fraction(coefficient)
    if value == 0:
        return "0"
    if symbol and abs(value) == 1:
        return symbol if value > 0 else f"-{symbol}"
    return frac(value) + symbol


def combination(coefficients: Sequence[Number], symbols: Sequence[str]) -> str:
    """A linear combination: ``([2, -1], ["x", "y"])`` -> ``2x-y``."""
    return join(term(c, s) for c, s in zip(coefficients, symbols, strict=True))


def power(base: str, exponent: int) -> str:
    """``""``, ``x``, ``x^2`` or ``x^{10}``."""
    if exponent < 2:
        return base if exponent else ""
    return f"{base}^{exponent}" if exponent < 10 else f"{base}^{{{exponent}}}"


def polynomial(coefficients: Sequence[Number], variable: str = "x") -> str:
    """Coefficients from the highest power down: ``[1, 0, -3]`` -> ``x^2-3``."""
    degree = len(coefficients) - 1
    return combination(coefficients, [power(variable, degree - i) for i in range(degree + 1)])


def signed(value: int) -> str:
    """``+3`` or ``-3``."""
    return f"{value:+d}"


def complex_number(real: Number, imaginary: Number) -> str:
    """``3-4i``."""
    return combination([real, imaginary], ["", "i"])


def point(*coordinates: Number) -> str:
    """``(1,-2)``."""
    return "(" + ",".join(frac(c) for c in coordinates) + ")"


def matrix(rows: Sequence[Sequence[Number]]) -> str:
    """A ``pmatrix``."""
    body = r" \\ ".join(" & ".join(frac(value) for value in row) for row in rows)
    return rf"\begin{{pmatrix}} {body} \end{{pmatrix}}"


def column(vector: Sequence[Number]) -> str:
    """A column vector."""
    return matrix([[value] for value in vector])
