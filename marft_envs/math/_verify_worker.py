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
    gold, pred = (_parse(text) for text in payload)
    if not gold or not pred:
        return False
    if "\\begin" in payload[0] and all(isinstance(tree, sympy.Eq) for tree in (*gold, *pred)):
        return False  # math-verify calls any two equations between vectors equal
    return bool(math_verify.verify(gold, pred, float_rounding=10, timeout_seconds=None))


def _parse(text: str) -> list[object]:
    return math_verify.parse(f"${text}$", _LATEX, fallback_mode="no_fallback", parsing_timeout=None)
