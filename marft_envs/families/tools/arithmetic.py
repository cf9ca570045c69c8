"""Arithmetic on text that an agent wrote: numbers, ``+ - * /`` and parentheses, read by a parser of our own.

Nothing is ever run. ``evaluate`` computes in whatever kind of number a world counts in.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Generic, TypeVar

from marft_envs.families.tools.types import ToolError

LONGEST = 200
"""Characters of an expression: room for an order with a handful of prices."""
DEEPEST = 40
"""Parentheses within parentheses."""
LARGEST = 10**12
"""No number on the way may be larger."""

_TOKEN = re.compile(r" *((?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+|[-+*/()])")
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
Number = TypeVar("Number", float, Fraction)


def evaluate(expression: str, number: Callable[[str], Number]) -> Number:
    """Returns the value of an expression.

    Args:
        expression: What an agent wrote.
        number: Makes a number of digits: ``Fraction`` computes exactly, ``float`` as a calculator does.

    Raises:
        ToolError: No such expression, one that is too long, deep or large, or a division by zero.
    """
    if len(expression) > LONGEST:
        raise ToolError(f"The expression has {len(expression)} characters; at most {LONGEST} are allowed.")
    tokens, end = [], 0
    while match := _TOKEN.match(expression, end):
        tokens.append(match.group(1))
        end = match.end()
    if rest := expression[end:].strip(" "):
        raise ToolError(f"Cannot read '{rest[:20]}': only numbers, + - * / and parentheses are allowed.")
    parser = _Parser(tokens, number)
    value = parser.sum()
    if parser.tokens:
        raise ToolError(f"'{parser.tokens[-1]}' stands where the expression should end.")
    return value


class _Parser(Generic[Number]):
    """Recursive descent; ``tokens`` is a stack with the next token on top."""

    def __init__(self, tokens: list[str], number: Callable[[str], Number]) -> None:
        self.tokens, self.depth = tokens[::-1], 0
        self.number: Callable[[str], Number] = number

    def take(self, wanted: str) -> str | None:
        return self.tokens.pop() if self.tokens and self.tokens[-1] in wanted else None

    def sum(self) -> Number:
        return self.chain("+-", self.product)

    def product(self) -> Number:
        return self.chain("*/", self.factor)

    def chain(self, signs: str, part: Callable[[], Number]) -> Number:
        value = part()
        while sign := self.take(signs):
            other = part()
            if sign == "/" and other == 0:
                raise ToolError("The expression divides by zero.")
            value = _bounded(_OPERATIONS[sign](value, other))
        return value

    def factor(self) -> Number:
        negative = False
        while taken := self.take("+-"):
            negative ^= taken == "-"
        value = self.group() if self.take("(") else self.literal()
        return -value if negative else value

    def group(self) -> Number:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ToolError(f"More than {DEEPEST} parentheses are open.")
        value = self.sum()
        if not self.take(")"):
            raise ToolError("A parenthesis is not closed.")
        self.depth -= 1
        return value

    def literal(self) -> Number:
        if not self.tokens or self.tokens[-1] in "+-*/()":
            raise ToolError("A number is missing in the expression.")
        return _bounded(self.number(self.tokens.pop()))


def _bounded(value: Number) -> Number:
    if abs(value) > LARGEST:
        raise ToolError(f"A number is larger than {LARGEST:,}.")
    return value
