"""Is an answer only an expression of the problem, said again? Then nothing was done to it.

The value of ``(x+1)(x-2)`` is that of ``x^2-x-2``, so to a problem that says "Expand $(x+1)(x-2)$" its own expression
would be right; and so would 1/(1+i). Other numbers are left to ``finished``: here an expression has variables or a
complex denominator, and another form than the gold answer has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from marft_envs.families.math import canonical
from marft_envs.families.math.finished import complex_number
from marft_envs.families.math.parse import Node, ParseError, parse, variables

_MATH = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.S)
_RELATION = re.compile(r"[=≤≥<>≠≈∈]")


def restated(answer: str, gold: str, statement: str) -> bool:
    """Whether ``answer`` is an expression of ``statement``, and the gold answer is written in another way.

    Args:
        answer: Out of its box.
        gold: The gold answer, to which ``answer`` is equal.
        statement: The problem's text; what stands between signs of mathematics counts, and sides of equations do.
    """
    node = _expression(answer)
    return node is not None and node != _expression(gold) and node in _expressions(statement)


def _expression(text: str) -> Node | None:
    """Returns an expression with variables, or a complex quotient, in which something is to be done."""
    try:
        node = parse(canonical.without_text(canonical.clean(text)))
    except ParseError:
        return None
    todo = (variables(node) and node[0] not in ("var", "neg")) or (node[0] == "/" and complex_number(node[2]))
    return node if todo else None


@lru_cache(maxsize=1024)
def _expressions(statement: str) -> frozenset[Node]:
    return frozenset(node for text in _texts(statement) if (node := _expression(text)) is not None)


def _texts(statement: str) -> Iterator[str]:
    for match in _MATH.finditer(statement):
        yield from _RELATION.split(canonical.clean(match.group(match.lastindex or 0)))
