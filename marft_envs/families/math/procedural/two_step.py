r"""Level 0, where the embedded model lives: one bracket, then one product.

All of ``(a+b)\cdot c`` with a, b in 1..15 and ``(a-b)\cdot c`` with a > b, c in 2..9: 2,640 problems.
"""

from __future__ import annotations

from itertools import product

from marft_envs.families.math.procedural.base import Values, variant
from marft_envs.problems.dice import Dice

ALL = [
    (a, sign, b, c) for sign, a, b, c in product("+-", range(1, 16), range(1, 16), range(2, 10)) if sign == "+" or a > b
]


@variant("two_step", level=0, keys=len(ALL))
def two_step(dice: Dice) -> Values:
    """The problem whose index is the key."""
    a, sign, b, c = ALL[dice.key]
    inner = a + b if sign == "+" else a - b
    return dict(a=a, sign=sign, b=b, c=c, inner=inner, answer=inner * c)
