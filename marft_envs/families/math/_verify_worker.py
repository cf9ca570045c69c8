"""The last tier, run in a worker process: are two answers equal in the eyes of ``math-verify``?

Its own timeouts use ``signal.alarm``, which fails off the main thread and does not interrupt ``(10^9)!``; they
are off here, and the caller kills this process instead. Only the LaTeX extraction is used: the other one reaches
``parse_expr``.
"""

from __future__ import annotations

import logging

import math_verify
import sympy

logging.getLogger("math_verify").setLevel(logging.ERROR)
_LATEX = (math_verify.LatexExtractionConfig(),)


def verify(payload: list[str]) -> bool:
    """Grades ``[gold, pred]``, two answers without dollar signs."""
    gold, pred = (
        math_verify.parse(f"${t}$", _LATEX, fallback_mode="no_fallback", parsing_timeout=None) for t in payload
    )
    if not gold or not pred:
        return False
    if "\\begin" in payload[0] and all(isinstance(tree, sympy.Eq) for tree in (*gold, *pred)):
        return False  # math-verify calls any two equations between vectors equal
    return bool(math_verify.verify(gold, pred, float_rounding=10, timeout_seconds=None)) and _near(gold[0], pred[0])


def _near(gold: object, pred: object) -> bool:
    """Whether two constants are equal to ten of their own digits; math-verify counts those behind the point."""
    if not (isinstance(gold, sympy.Expr) and isinstance(pred, sympy.Expr) and gold.is_number and pred.is_number):
        return True
    first, second = gold.doit().evalf(30), pred.doit().evalf(30)
    size = max(abs(first), abs(second))
    if first == 0 or second == 0:
        return size == 0 or (gold.doit() - pred.doit()).equals(0) is True
    return bool(abs(first - second) <= size * sympy.Rational(1, 10**10))
