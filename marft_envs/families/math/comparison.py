"""Compares two answers that ``structure`` has read.

A comparison says yes, no, or ``None``: it cannot tell, which is the next tier's business. Brackets must match, so that
``[0,1)`` is not ``(0,1)``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from marft_envs.families.math import exact, finished, quantity
from marft_envs.families.math.canonical import key, spelling
from marft_envs.families.math.parse import LONG_DECIMAL, LONG_NAMES, ParseError, has_words
from marft_envs.families.math.structure import (
    FALSE,
    UNSOLVED,
    Bag,
    BracketGroup,
    Measured,
    Named,
    Relation,
    Scalar,
    Tree,
)

_CLOCK = re.compile(r"\d{1,2}:[0-5]\d(?::[0-5]\d)?")
_ROUNDED = re.compile(r"-?\d*\.\d{10,}")
_FIGURE = r"(?:\\(?:angle|triangle|odot|square))?"
_LABEL = re.compile(rf"{_FIGURE}(?=[^A-Z]*[A-Z]|\d+-)[A-Z0-9°'-]{{2,}}(?:_(?:\{{?\w+\}}?))?")
_ANGLE = re.compile(r"\\angle([A-Z])([A-Z])([A-Z])")
_LETTER_DIGIT = re.compile(r"(?!\d+[eE]\d+$)[A-Za-z0-9]*[A-Za-z]\d[A-Za-z0-9]*")
_DATE = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})|(\d{1,2})([-/.])(\d{1,2})\5(\d{4})|0\d([-/.])\d\d\8\d\d")


def match(gold: Tree, pred: Tree) -> bool | None:
    """Whether two readings mean the same; ``None`` if that cannot be decided here. Raises ``TooBig``."""
    if isinstance(gold, Scalar) and isinstance(pred, Scalar):
        return _scalars(gold, pred)
    if isinstance(gold, (Named, Relation)) or isinstance(pred, (Named, Relation)):
        return _relations(gold, pred)
    if isinstance(gold, Measured) or isinstance(pred, Measured):
        return _measured(gold, pred)
    if isinstance(gold, BracketGroup) and isinstance(pred, BracketGroup):
        if gold.brackets == pred.brackets == ":":
            return _ratios(gold, pred)
        alike = gold.brackets == pred.brackets and len(gold.parts) == len(pred.parts)
        return alike and _ordered(gold.parts, pred.parts)
    if isinstance(gold, Bag) and isinstance(pred, Bag):
        return _bags(gold, pred)
    for one, other in ((gold, pred), (pred, gold)):
        if isinstance(one, BracketGroup) and one.brackets == ":" and isinstance(other, Scalar):
            return _quotient(one, other)
        if isinstance(one, BracketGroup) and isinstance(other, Bag) and (point := _point(other)) is not None:
            return match(one, point) if one is gold else match(point, one)
    if isinstance(gold, BracketGroup) and isinstance(pred, Scalar) and finished.matrices_undone(pred.text):
        return False
    opaque = [tree for tree in (gold, pred) if isinstance(tree, Scalar) and not _known(tree)]
    return None if opaque else False


def _known(tree: Scalar) -> bool:
    """Whether an expression is understood (or is words), so that it cannot hide a list or an interval."""
    if has_words(tree.text) or key(tree.text) in ("∞", "+∞", "-∞"):
        return True
    try:
        exact.names(tree.text)
    except ParseError:
        return False
    return True


def _scalars(gold: Scalar, pred: Scalar) -> bool | None:
    first, second = key(gold.text).lstrip("+"), key(pred.text).lstrip("+")
    if first == second:
        return True
    if (named := _same_label(spelling(gold.text), spelling(pred.text))) is not None:
        return named
    if finished.unfinished(pred.text, gold.text):
        return False  # 2+3 is a calculation on the way to 5, not yet an answer
    if has_words(gold.text) or has_words(pred.text) or "∞" in (gold.text[-1:], pred.text[-1:]):
        return False
    text = gold.text
    if _ROUNDED.fullmatch(first):
        text += "0" * LONG_DECIMAL  # a gold answer with that many digits was printed by a program
    equal = exact.same_value(text, pred.text)
    for mark in "%°":  # 50 % is 0.5 and may be written 50 where a percentage is asked for; likewise 45° and 45
        if equal is False and text.endswith(mark) != pred.text.endswith(mark) and _left_out(mark, text, pred.text):
            equal = exact.same_value(text.rstrip(mark + " "), pred.text.rstrip(mark + " "))
    return equal


def _left_out(mark: str, gold: str, pred: str) -> bool:
    """Whether one of two numbers may lack a mark: no multiple of π, and no gold up to 1, which is no percentage."""
    if mark == "°":
        return "π" not in gold + pred
    sizes = exact.values(gold, exact.names(gold))
    return gold.endswith(mark) or all(size is not None and abs(size) > 1 for size in sizes)  # type: ignore[operator]


def _same_label(first: str, second: str) -> bool | None:
    r"""Whether two spellings are the same name, order or date; ``None`` if they are no two of these.

    Their order counts, though each could be a product or a sum: ``ABC``, ``HTT``, ``IX``, ``10A``, ``\angle ABC``,
    ``3-1`` and ``2020-01-05`` equal themselves only. Small letters in a row (``xy``) are a product.
    """
    dates = [_DATE.fullmatch(text) for text in (first, second)]
    if any(dates):
        return all(dates) and _date_numbers(first) == _date_numbers(second)
    angles = [_ANGLE.fullmatch(text) for text in (first, second)]
    if angles[0] and angles[1]:
        return angles[0].groups() in (angles[1].groups(), angles[1].groups()[::-1])
    if _LABEL.fullmatch(first) and _LABEL.fullmatch(second):
        return first == second
    return False if any(_LETTER_DIGIT.fullmatch(LONG_NAMES.sub("", text)) for text in (first, second)) else None


def _date_numbers(date: str) -> list[int]:
    return [int(number) for number in re.split(r"[-/.]", date)]


def _measured(gold: Tree, pred: Tree) -> bool | None:
    """Compares what has words behind it, both in the unit of the gold answer."""
    (first, words), (second, others) = (
        (tree.value, tree.words) if isinstance(tree, Measured) else (tree, quantity.NONE) for tree in (gold, pred)
    )
    if isinstance(first, BracketGroup) and isinstance(second, BracketGroup):  # 07:05 counts to 24
        words, others = _morning(first, words, others), _morning(second, others, words)
    texts = [tree.text for tree in (first, second) if isinstance(tree, Scalar)]
    if len(texts) == 2 and ("rad", 1) in words.unit + others.unit and any(text.endswith("°") for text in texts):
        return exact.same_value(texts[0], texts[1])
    times = quantity.ratio(words, others)
    if times is None:
        return False
    if times != 1:
        converted = quantity.scaled(second.text, times) if isinstance(second, Scalar) else None
        if converted is None:
            return False
        second = Scalar(converted)
    return match(first, second)


def _morning(clock: BracketGroup, words: quantity.Words, others: quantity.Words) -> quantity.Words:
    """The other's words for a time whose hour begins with 0."""
    first = clock.parts[0]
    return others if words == quantity.NONE and isinstance(first, Scalar) and first.text[:1] == "0" else words


def _ratios(gold: BracketGroup, pred: BracketGroup) -> bool | None:
    """Two ratios, which may be reduced; a gold answer that could be a time of day may not."""
    first, second = ([part.text for part in group.parts if isinstance(part, Scalar)] for group in (gold, pred))
    times = [_CLOCK.fullmatch(key(":".join(texts))) is not None for texts in (first, second)]
    if all(times) and {len(first), len(second)} == {2, 3}:
        first, second = ([*texts, "00"][:3] for texts in (first, second))  # 20:34 is 20:34:00
    if len(first) != len(second) or any(map(finished.undone, second)):
        return False
    if times[0]:
        return _ordered(tuple(map(Scalar, first)), tuple(map(Scalar, second)))
    pairs = pairwise(zip(first, second, strict=True))
    equal = [exact.same_value(f"({a})*({d})", f"({b})*({c})") for (a, b), (c, d) in pairs]
    return False if False in equal else all(equal) or None


def _quotient(ratio: BracketGroup, value: Scalar) -> bool | None:
    """A ratio of two as their quotient, as it stands if it could be a time of day."""
    above, *below = (part.text for part in ratio.parts if isinstance(part, Scalar))
    if len(below) != 1 or has_words(value.text) or finished.undone(value.text):
        return False
    if _CLOCK.fullmatch(key(f"{above}:{below[0]}")):
        return key(value.text) in (f"{above}/{below[0]}", key(f"\\frac{{{above}}}{{{below[0]}}}"))
    return exact.same_value(f"({above})/({below[0]})", value.text)


def _point(bag: Bag) -> BracketGroup | None:
    """Values with names as the point they are the coordinates of, in the alphabetical order of their names."""
    named = [part for part in bag.parts if isinstance(part, Named) and part.operator == "="]
    if len({part.name for part in named}) < len(bag.parts) or len(named) < 2:
        return None
    return BracketGroup("()", tuple(part.value for part in sorted(named, key=lambda part: part.name)))


def _ordered(gold: tuple[Tree, ...], pred: tuple[Tree, ...]) -> bool | None:
    verdict: bool | None = True
    for one, other in zip(gold, pred, strict=True):
        equal = match(one, other)
        if equal is False:
            return False
        verdict = verdict and equal
    return verdict


def _bags(gold: Bag, pred: Bag) -> bool | None:
    if len(gold.parts) != len(pred.parts) or gold.kind != pred.kind:
        return False
    gold, pred = _unnumbered(gold, pred), _unnumbered(pred, gold)
    for one, other in ((gold, pred), (pred, gold)):
        names = {part.name for part in one.parts if isinstance(part, Named)}
        if len(names) == len(one.parts) > 1 and not any(isinstance(part, Named) for part in other.parts):
            return _ordered(gold.parts, pred.parts)  # x = 1, y = 2 against 1, 2: the names fix the order
    left, verdict = list(pred.parts), True
    for part in gold.parts:
        matches = [match(part, other) for other in left]
        if True in matches:
            left.pop(matches.index(True))
        elif None in matches:
            verdict = False
        else:
            return False
    return verdict or None


def _unnumbered(bag: Bag, other: Bag) -> Bag:
    """Solutions that are numbered, ``x_1 = 2, x_2 = 3``, with the one name that those of the other list have."""
    named = [part for part in bag.parts if isinstance(part, Named)]
    names = {part.name if isinstance(part, Named) else "" for part in other.parts}
    numbered = [f"{name}_{k}" for name in names for k in range(1, len(bag.parts) + 1)]
    if len(names) > 1 or sorted(re.sub("[{}]", "", part.name) for part in named) != sorted(numbered):
        return bag
    return replace(bag, parts=tuple(replace(part, name=name) for part in named for name in names))


def _relations(gold: Tree, pred: Tree) -> bool | None:
    operators = getattr(gold, "operator", ""), getattr(pred, "operator", "")
    if FALSE in operators or (operators[1] == UNSOLVED != operators[0]):
        return False
    if isinstance(gold, Named) and isinstance(pred, Named):
        if set(gold.name.split("=")) <= set(pred.name.split("=")) or not gold.name or not pred.name:
            return match(gold.value, pred.value)
        return gold.operator == pred.operator and _proportional(gold.operator, gold.sides, pred.sides)
    for one, other in ((gold, pred), (pred, gold)):
        if isinstance(one, Named):
            if isinstance(other, Relation):
                return one.operator == other.operator and _proportional(other.operator, one.sides, other.sides)
            return match(gold.value if one is gold else gold, pred.value if one is pred else pred)
    if isinstance(gold, Relation) and isinstance(pred, Relation) and gold.operator == pred.operator:
        return _proportional(gold.operator, gold.sides, pred.sides)
    return False


def _proportional(operator: str, gold: tuple[str, str] | None, pred: tuple[str, str] | None) -> bool | None:
    """Whether two relations are one, multiplied by a constant (above 0 for an inequality)."""
    if gold is None or pred is None:
        return False
    try:
        factor = exact.ratio(gold, pred)
    except ParseError:
        return None
    if factor is None:
        return False
    return operator in "=≠" or (not isinstance(factor, complex) and factor > 0)
