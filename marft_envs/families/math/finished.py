r"""Is an answer worked out? One rule for calculations that were left undone.

Where the gold answer is a number with no work left in it (12, 3/4, 176π, 6√3, 1 − 2i), an answer that still holds some
is a calculation on the way to it, and wrong. Otherwise a policy learns to name calculations instead of doing them. Work
is

* two numbers to be added, or two multiples of the same root, constant or i: ``20+4``, ``\sqrt{35^2+26^2}``, ``2i+3i``;
* two numbers to be multiplied: ``4·6``, ``2^3·3``, ``π·4^2·11``; and any sum or product, where the gold is one numeral
  (``\sqrt9+\sqrt{16}``);
* a product of complex sums, a quotient of two complex numbers or a power of one: ``(4+2i)(1-i)``, ``(1-i)/(1+i)``,
  ``(1+i)^5``;
* a value of a function, a factorial, a binomial, a determinant, a sum: ``\sin 30°``, ``4!``, ``\gcd(12,18)``.

Everything else that names a number counts by its value: fractions (reduced or not), powers and roots of one number,
mixed numbers, numbers in front of a power of ten. Where the gold itself holds work (``2^3·3``, ``10!``, ``\ln 2``) or
variables, any form of it will do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

from marft_envs.families.math import canonical
from marft_envs.families.math.parse import Node, ParseError, parse, proper, variables

_I = ("const", "i")
_CALCULATIONS = re.compile(
    r"\\(?:gcd|lcm|det|sum|prod|int|lim|mod|bmod|pmod|lfloor|lceil|begin)(?![a-zA-Z])"
    r"|\\(?:min|max)\s*[({\\]|\\operatorname\s*\{(?:gcd|lcm|det|min|max|sgn|tr)\}"
)
_MATRICES = re.compile(r"\\begin.*\\begin|\\end\s*\{\w+\}\s*[\])]?\s*\^", re.S)
_MATH = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.S)
_RELATION = re.compile(r"[=≤≥<>≠≈∈]")


def unfinished(pred: str, gold: str) -> bool:
    """Whether ``pred`` only names a calculation, where ``gold`` is worked out."""
    wanted, node = _parsed(gold), _parsed(pred)
    if wanted is None or variables(wanted) or _has_work(wanted):
        return False
    return undone(pred) or (node is not None and numeral(wanted) and _has_sum_or_product(node))


def undone(text: str) -> bool:
    """Whether ``text`` is a number with work left in it, which may be of a kind that ``parse`` does not know."""
    node = _parsed(text)
    if node is None:
        return _CALCULATIONS.search(text) is not None
    return not variables(node) and _has_work(node)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Node | None:
    try:
        return parse(text)
    except ParseError:
        return None


def matrices_undone(text: str) -> bool:
    """Whether ``text`` holds a product or a power of matrices."""
    return _MATRICES.search(text) is not None


def _children(node: Node) -> Iterator[Node]:
    return (child for child in node[1:] if isinstance(child, tuple))


def _has_sum_or_product(node: Node) -> bool:
    return not numeral(node) and (node[0] in ("+", "*") or any(map(_has_sum_or_product, _children(node))))


def _has_work(node: Node) -> bool:
    if numeral(node):
        return False
    kind = node[0]
    if kind == "+":
        likes = [_like(term) for term in _terms(node)]
        work = len({*likes}) < len(likes)
    elif kind in ("*", "/"):
        above, below = _factors(node)
        work = max(sum(_rational(x) and not _scale(x) for x in side) for side in (above, below)) > 1
        sums = sum(factor[0] in ("+", "neg", "^") and complex_number(factor) for factor in above)
        work = work or sums > 1 or (any(map(complex_number, below)) and any(map(complex_number, above)))
    elif kind == "^":
        work = complex_number(node[1])
    else:
        work = kind in ("binom", "log", "max", "min") or (kind == "fn" and node[1] not in ("percent", "degree", "exp"))
    return work or any(map(_has_work, _children(node)))


def _terms(node: Node) -> Iterator[Node]:
    """Yields what a sum adds, without signs; a mixed number is one term."""
    if node[0] == "neg":
        yield from _terms(node[1])
    elif node[0] == "+" and not mixed(node):
        yield from _terms(node[1])
        yield from _terms(node[2])
    else:
        yield node


def _factors(node: Node) -> tuple[list[Node], list[Node]]:
    """Returns what is multiplied above and below the bar, without signs; a written number is one factor."""
    if node[0] == "neg":
        return _factors(node[1])
    if node[0] not in ("*", "/") or numeral(node):
        return [node], []
    (above, below), (right, under) = _factors(node[1]), _factors(node[2])
    return (above + right, below + under) if node[0] == "*" else (above + under, below + right)


def _like(term: Node) -> str:
    """What two terms have in common if they add up to one: all but their rational factors."""
    return repr([sorted(repr(factor) for factor in side if not _rational(factor)) for side in _factors(term)])


def _rational(node: Node) -> bool:
    if numeral(node):
        return True
    kind = node[0]
    if kind == "^":
        return _rational(node[1]) and _integer(node[2])
    if kind == "root":  # of a square: a number that is not written as one
        kind, value = node[1][0], node[1][-1]
        return node[2] == ("num", 2) and kind == "num" and _integer(node[1]) and math.isqrt(value) ** 2 == value
    if kind in ("binom", "+", "*", "/", "neg") or (kind == "fn" and node[1] == "factorial"):
        return all(map(_rational, _children(node)))
    return False


def complex_number(node: Node) -> bool:
    """Whether ``node`` holds i."""
    return node == _I or any(map(complex_number, _children(node)))


def numeral(node: Node) -> bool:
    """Whether ``node`` is one number as it is written: signed, a fraction, a percentage, mixed, scientific."""
    kind = node[0]
    if kind == "neg" or (kind == "fn" and node[1] in ("percent", "degree")):
        return numeral(node[-1])
    if kind == "/":
        return all(_integer(child) for child in node[1:])
    if kind == "*":
        return numeral(node[1]) and (node[2] == ("num", 10) or _power_of_ten(node[2]))
    return kind in ("num", "float") or mixed(node)


def _integer(node: Node) -> bool:
    return _integer(node[1]) if node[0] == "neg" else node[0] == "num" and not isinstance(node[1], Fraction)


def mixed(node: Node) -> bool:
    """Whether ``node`` is a mixed number: a whole one and a fraction below 1."""
    return node[0] == "+" and node[1][0] == "num" and isinstance(node[1][1], int) and proper(node[2])


def _scale(node: Node) -> bool:
    """Whether ``node`` is 10 to a power that nobody is asked to work out; 10^2 may be a radius, squared."""
    return _power_of_ten(node) and (node[2][0] == "neg" or node[2][1] > 5)


def _power_of_ten(node: Node) -> bool:
    return node[0] == "^" and node[1] == ("num", 10) and _integer(node[2])


# An expression of the problem, said again --------------------------------------------------------------


def restated(answer: str, gold: str, statement: str) -> bool:
    """Whether ``answer`` is an expression of ``statement``, and the gold answer is written in another way.

    Then nothing was done to it. The value of ``(x+1)(x-2)`` is that of ``x^2-x-2``, so to a problem that says "Expand
    $(x+1)(x-2)$" its own expression would be right; and so would 1/(1+i). Other numbers are left to ``unfinished``:
    here an expression has variables or a complex denominator, and another form than the gold answer has.

    Args:
        answer: Out of its box.
        gold: The gold answer, to which ``answer`` is equal.
        statement: The problem's text; what stands between signs of mathematics counts, and sides of equations do.
    """
    node = _expression(answer)
    return node is not None and node != _expression(gold) and node in _expressions(statement)


def _expression(text: str) -> Node | None:
    """Returns an expression with variables, or a complex quotient, in which something is to be done."""
    node = _parsed(canonical.without_text(canonical.clean(text)))
    if node is None:
        return None
    todo = (variables(node) and node[0] not in ("var", "neg")) or (node[0] == "/" and complex_number(node[2]))
    return node if todo else None


@lru_cache(maxsize=1024)
def _expressions(statement: str) -> frozenset[Node]:
    return frozenset(node for text in _texts(statement) if (node := _expression(text)) is not None)


def _texts(statement: str) -> Iterator[str]:
    for match in _MATH.finditer(statement):
        yield from _RELATION.split(canonical.clean(match.group(match.lastindex or 0)))
