r"""Names, orders and dates: texts of letters and digits whose order counts, though each could be a product or a sum.

``ABC``, ``HTT``, ``IX``, ``10A``, ``\angle ABC``, ``3-1`` and ``2020-01-05`` equal themselves only. Small letters in a
row (``xy``) are a product.
"""

from __future__ import annotations

import re

from marft_envs.families.math.parse import LONG_NAMES

_FIGURE = r"(?:\\(?:angle|triangle|odot|square))?"
_LABEL = re.compile(rf"{_FIGURE}(?=[^A-Z]*[A-Z]|\d+-)[A-Z0-9°'-]{{2,}}(?:_(?:\{{?\w+\}}?))?")
_ANGLE = re.compile(r"\\angle([A-Z])([A-Z])([A-Z])")
_LETTER_DIGIT = re.compile(r"(?!\d+[eE]\d+$)[A-Za-z0-9]*[A-Za-z]\d[A-Za-z0-9]*")
_DATE = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})|(\d{1,2})([-/.])(\d{1,2})\5(\d{4})|0\d([-/.])\d\d\8\d\d")


def same(first: str, second: str) -> bool | None:
    """Whether two spellings are the same name or date; ``None`` if they are no two names."""
    dates = [_DATE.fullmatch(text) for text in (first, second)]
    if any(dates):
        return all(dates) and _numbers(first) == _numbers(second)
    angles = [_ANGLE.fullmatch(text) for text in (first, second)]
    if angles[0] and angles[1]:
        return angles[0].groups() in (angles[1].groups(), angles[1].groups()[::-1])
    if _LABEL.fullmatch(first) and _LABEL.fullmatch(second):
        return first == second
    if any(_LETTER_DIGIT.fullmatch(LONG_NAMES.sub("", text)) for text in (first, second)):
        return False
    return None


def _numbers(date: str) -> list[int]:
    return [int(number) for number in re.split(r"[-/.]", date)]
