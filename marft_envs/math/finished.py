"""Is an answer worked out? One rule for arithmetic that was left undone.

Where the gold answer is a number written out (12, -0.5, 3/4, 2 1/2, 50 %, 1.5 · 10^3), an answer that still holds a
sum, a difference or a product is a calculation on the way to it, and wrong: ``20+4``, ``5^2-1`` and ``2^3·3`` are not
yet 24. Everything else that names a number counts by its value: fractions (reduced or not), powers, roots,
factorials, binomials, values of functions; so do the sum and the product inside a mixed number and in front of a
power of ten. Where the gold is no written-out number, any form of it will do.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from marft_envs.math.parse import Node, ParseError, mixed, parse, variables


@lru_cache(maxsize=4096)
def written_out(text: str) -> bool:
    """Whether ``text`` is one number without any work left in it."""
    try:
        return _numeral(parse(text))
    except ParseError:
        return False


@lru_cache(maxsize=4096)
def undone(text: str) -> bool:
    """Whether ``text`` is a number with a sum, a difference or a product left in it."""
    try:
        node = parse(text)
    except ParseError:
        return False
    return not variables(node) and _has_work(node)


def _has_work(node: Node) -> bool:
    if _numeral(node):
        return False
    return node[0] in ("+", "*") or any(_has_work(child) for child in node[1:] if isinstance(child, tuple))


def _numeral(node: Node) -> bool:
    kind = node[0]
    if kind == "neg" or (kind == "fn" and node[1] in ("percent", "degree")):
        return _numeral(node[-1])
    if kind == "/":
        return all(_integer(child) for child in node[1:])
    if kind == "*":
        return _numeral(node[1]) and _power_of_ten(node[2])
    return kind in ("num", "float") or mixed(node)


def _integer(node: Node) -> bool:
    return _integer(node[1]) if node[0] == "neg" else node[0] == "num" and not isinstance(node[1], Fraction)


def _power_of_ten(node: Node) -> bool:
    return node == ("num", 10) or (node[0] == "^" and node[1] == ("num", 10) and _integer(node[2]))
