"""Values of parsed expressions: exact rationals while possible, complex floats after, and always bounded.

Nothing here takes more than some milliseconds: whatever would (a tower of powers, the factorial of a factorial) is
``TooBig`` before it is computed.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Union

from marft_envs.families.math.parse import Node

Value = Union[int, Fraction, complex]  # noqa: UP007  (a runtime alias)

MAX_BITS = 1 << 16
"""Size of the largest integer computed: 20,000 decimal digits."""
MAX_FRACTION_WORK = 1 << 32
"""Fractions are reduced at every step, which is quadratic in their size: most square bits of one evaluation."""
MAX_FACTORIAL = 3000
RELATIVE = 1e-10
ABSOLUTE = 1e-13


class TooBig(ArithmeticError):
    """The value is out of bounds; nobody needs it to grade an answer."""


class Undefined(ArithmeticError):
    """No finite value here: a division by zero, infinity."""


class OutOfRange(Undefined):
    """The value is beyond what floats hold."""


def evaluate(node: Node, point: Mapping[str, Value]) -> Value:
    """Value of ``node`` with the variables at ``point``.

    Raises:
        TooBig: An exact number of more than ``MAX_BITS`` bits would appear.
        Undefined: There is no finite value.
    """
    try:
        return ExpressionWalk(point).value(node)
    except OverflowError as error:
        raise OutOfRange(str(error)) from error
    except (ZeroDivisionError, ValueError) as error:
        raise Undefined(str(error)) from error


CONSTANTS: Mapping[str, Any] = {"pi": complex(math.pi), "e": complex(math.e), "i": 1j}


class ExpressionWalk:
    """One walk over an expression, with its bill for long fractions.

    Args:
        point: Values of the variables.
        constants: Of π, e and i.
        read: Makes a value of a printed float.
    """

    def __init__(
        self,
        point: Mapping[str, Value],
        constants: Mapping[str, Any] = CONSTANTS,
        read: Callable[[float], Any] = complex,
    ) -> None:
        self.point, self.constants, self.read, self.work = point, constants, read, 0

    def value(self, node: Node) -> Any:
        """The value; raises what ``evaluate`` does, and what arithmetic raises."""
        kind = node[0]
        if kind == "num":
            return node[1]
        if kind == "var":
            return self.point[node[1]]
        if kind == "const":
            if node[1] == "inf":
                raise Undefined("infinity")
            return self.constants[node[1]]
        if kind == "float":
            return self.read(node[1])
        if kind == "fn":
            return self.applied(node[1], FUNCTIONS[node[1]], [self.value(node[2])])
        return self.applied(kind, OPERATIONS[kind], [self.value(child) for child in node[1:]])

    def applied(self, name: str, function: Callable[..., Value], values: list[Any]) -> Any:
        """A function or operation on its values."""
        value = function(*values)
        if name in FUNCTIONS:
            return value
        value = checked(value)
        if isinstance(value, Fraction):
            self.work += bits(value) ** 2
            if self.work > MAX_FRACTION_WORK:
                raise TooBig("too long a fraction")
        return value


def checked(value: Value) -> Value:
    """The value, whole numbers as ints. Raises ``TooBig`` and ``OutOfRange``."""
    if isinstance(value, complex):
        if cmath.isfinite(value):
            return value
        raise OutOfRange("not finite")
    if isinstance(value, Fraction) and value.denominator == 1:
        value = value.numerator
    if bits(value) > MAX_BITS:
        raise TooBig("too many digits")
    return value


def bits(value: int | Fraction) -> int:
    """Size of an exact number: of its numerator or denominator, whichever is longer."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def divided(above: Value, below: Value) -> Value:
    """Returns the quotient, exact where both are."""
    if isinstance(above, complex) or isinstance(below, complex):
        return complex(above) / complex(below)
    return Fraction(above) / below


def _power(base: Value, exponent: Value) -> Value:
    if not isinstance(base, complex) and not isinstance(exponent, complex):
        if isinstance(exponent, int):
            return _integer_power(base, exponent)
        root = _exact_root(base, exponent.denominator)
        if root is not None:
            return _integer_power(root, exponent.numerator)
    return complex(base) ** complex(exponent)


def _integer_power(base: int | Fraction, exponent: int) -> int | Fraction:
    if base in (0, 1, -1):
        exponent = min(exponent, 2 + exponent % 2) if exponent > 0 else exponent
        exponent = -(-exponent % 2) if base and exponent < 0 else exponent
    elif abs(exponent) * bits(base) > 2 * MAX_BITS:
        raise TooBig("power")
    return Fraction(base) ** exponent if exponent < 0 else base**exponent


def _exact_root(value: int | Fraction, degree: int) -> int | Fraction | None:
    """The rational ``degree``-th root of a rational number above 0, if it has one."""
    if value < 0 or degree > 64:
        return None
    roots = []
    for part in (value.numerator, value.denominator):
        if part.bit_length() > 1000:
            return None
        guess = round(part ** (1 / degree)) if degree > 2 else math.isqrt(part)
        if guess**degree != part:
            return None
        roots.append(guess)
    return Fraction(*roots)


def _root(value: Value, index: Value) -> Value:
    if isinstance(index, int) and index % 2 and not isinstance(value, complex) and value < 0:
        return -_root(-value, index)  # the real cube root of a negative number, as the sign means it
    return _power(value, divided(1, index))


def _real_log(value: Value) -> complex:
    if isinstance(value, int) and value > 0:
        return complex(math.log(value))
    return cmath.log(complex(value))


def _binomial(n: Value, k: Value) -> Value:
    if isinstance(n, int) and isinstance(k, int) and n >= 0 <= k:
        if n > MAX_FACTORIAL and min(k, n - k) > 50:
            raise TooBig("binomial")
        return math.comb(n, k)
    if isinstance(k, int) and 0 <= k <= 50:
        return divided(math.prod(n - i for i in range(k)), math.factorial(k))
    return divided(_factorial(n), complex(_factorial(k)) * complex(_factorial(n - k)))


def _factorial(value: Value) -> Value:
    if isinstance(value, int) and value >= 0:
        if value > MAX_FACTORIAL:
            raise TooBig("factorial")
        return math.factorial(value)
    number = complex(value)
    if number.imag:
        raise Undefined("factorial of a complex number")
    return complex(math.gamma(number.real + 1))


def _rounded(function: Callable[[float], int]) -> Callable[[Value], int]:
    def apply(value: Value) -> int:
        if not isinstance(value, complex):
            return function(value)  # type: ignore[arg-type]
        if abs(value.imag) > ABSOLUTE:
            raise Undefined("rounding of a complex number")
        nearest = round(value.real)
        return nearest if abs(value.real - nearest) < 1e-9 else function(value.real)

    return apply


_real: Callable[[Value], Any] = _rounded(lambda value: value)  # type: ignore[arg-type,return-value]


def _absolute(value: Value) -> Value:
    if isinstance(value, complex):
        return complex(abs(value))
    return -value if value < 0 else value


def _of(function: Callable[[complex], complex]) -> Callable[[Value], Value]:
    return lambda value: checked(complex(function(complex(value))))


FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    **{name: _of(getattr(cmath, name)) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp")},
    **{"arc" + name: _of(getattr(cmath, "a" + name)) for name in ("sin", "cos", "tan")},
    "sec": _of(lambda z: 1 / cmath.cos(z)),
    "csc": _of(lambda z: 1 / cmath.sin(z)),
    "cot": _of(lambda z: 1 / cmath.tan(z)),
    "arccot": _of(lambda z: cmath.pi / 2 - cmath.atan(z)),
    "ln": lambda value: checked(_real_log(value)),
    "sqrt": lambda value: _root(value, 2),
    "abs": _absolute,
    "sgn": lambda value: (_real(value) > 0) - (_real(value) < 0),
    "floor": _rounded(math.floor),
    "ceil": _rounded(math.ceil),
    "factorial": lambda value: checked(_factorial(value)),
    "degree": lambda value: complex(value) * math.pi / 180,
    "percent": lambda value: divided(value, 100),
}
OPERATIONS: dict[str, Callable[..., Value]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "/": divided,
    "neg": lambda a: -a,
    "^": _power,
    "root": _root,
    "log": lambda value, base: _real_log(value) / _real_log(base),
    "binom": _binomial,
    "max": lambda a, b: a if _real(a - b) > 0 else b,
    "min": lambda a, b: b if _real(a - b) > 0 else a,
}


def close(first: Value, second: Value) -> bool:
    """Exact numbers are equal or not; with a float on either side, as nearly as floats can tell."""
    if not isinstance(first, complex) and not isinstance(second, complex):
        return first == second
    try:
        first, second = complex(first), complex(second)
    except OverflowError:
        return False
    return abs(first - second) <= max(RELATIVE * max(abs(first), abs(second)), ABSOLUTE)
