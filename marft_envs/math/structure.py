"""Answers with parts: lists, tuples, intervals, unions, matrices, named values, equations, inequalities.

``read`` turns a cleaned answer into a small tree; ``match`` compares two trees. A comparison says yes, no, or
``None``: it cannot tell, which is the next tier's business. Brackets must match, so that ``[0,1)`` is not ``(0,1)``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Union

from marft_envs.math import exact, finished
from marft_envs.math.canonical import closing, key, outside, split, split_unit
from marft_envs.math.evaluation import TooBig
from marft_envs.math.parse import ParseError, has_words

MAX_PARTS = 100


@dataclass(frozen=True, slots=True)
class Scalar:
    """One expression; ``sign`` is what ``±`` stands for in it."""

    text: str
    sign: int = 1


@dataclass(frozen=True, slots=True)
class Group:
    """Parts in order between brackets: a tuple, a point, an interval; ``:`` for a ratio; ``m`` for a matrix's rows."""

    brackets: str
    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Bag:
    """Parts in any order: a set, a list of solutions, a union of intervals (``kind`` ``∪``)."""

    kind: str
    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """A value with a name: ``x = 5``, ``f(x) = 2x``, ``x < 5`` (an interval), ``(p,q) = (3,2)``."""

    name: str
    value: Tree
    sides: tuple[str, str] | None = None
    """Both sides, where the relation has two."""
    operator: str = "="
    """``=``, ``≠``, ``<`` or ``≤`` (sides swapped if need be), or ``∈``."""


@dataclass(frozen=True, slots=True)
class Relation:
    """An equation or inequality that names no single value."""

    operator: str
    sides: tuple[str, str]


Tree = Union[Scalar, Group, Bag, Named, Relation]  # noqa: UP007  (recursive runtime alias)

FALSE = "false"
"""Operator of an equation between constants that does not hold: it is equal to nothing."""
_INF = Scalar("∞")
_MINUS_INF = Scalar("-∞")
_SPELLING = re.compile(r"[\s{}]")
_NAMED_SETS: dict[str, Tree] = {
    **dict.fromkeys(
        ("\\mathbbR", "allrealnumbers", "allreals", "realnumbers", "therealnumbers", "thesetofrealnumbers",
         "thesetofallrealnumbers"),
        Group("()", (_MINUS_INF, _INF)),
    ),
    **dict.fromkeys(("\\mathbbR^+", "\\mathbbR_+", "\\mathbbR_>0"), Group("()", (Scalar("0"), _INF))),
    **dict.fromkeys(("\\mathbbR^-", "\\mathbbR_-", "\\mathbbR_<0"), Group("()", (_MINUS_INF, Scalar("0")))),
    **dict.fromkeys(("\\mathbbR_≥0", "\\mathbbR^+_0", "\\mathbbR_0^+"), Group("[)", (Scalar("0"), _INF))),
    **dict.fromkeys(("\\mathbbR_≤0", "\\mathbbR^-_0", "\\mathbbR_0^-"), Group("(]", (_MINUS_INF, Scalar("0")))),
    **dict.fromkeys(("\\emptyset", "emptyset", "theemptyset", "nosolution", "nosolutions"), Bag(",", ())),
}  # fmt: skip
"""Spelling of a set without blanks and braces -> what it is as an interval or a list."""
_RELATIONS = "=≤≥<>≠≈∈"
_FLIP = {"<": ">", ">": "<", "≤": "≥", "≥": "≤", "=": "=", "≠": "≠"}
_LETTERS = r"(?!\\(?:sin|cos|tan|cot|sec|csc|ln|log|sqrt|frac))\\?[a-zA-Z]+"
_SYMBOL = rf"(?:{_LETTERS}|\\[a-zA-Z]+\{{\w+\}}|π)'*(?:_(?:\{{[^{{}}]*\}}|\w))?'*"
_CALL = r"(?:\^\{-1\})?\([^()]*\)"
_NAME = re.compile(rf"(?:{_SYMBOL}(?:{_CALL})?|\({_SYMBOL}(?:,{_SYMBOL})+\)|[A-Z]{{2,3}}|\|[A-Z]{{2}}\|)")
_RATIO_OF_NAMES = re.compile(
    rf"{_NAME.pattern}(?:[:/]{_NAME.pattern})+|\\frac\{{{_NAME.pattern}\}}\{{{_NAME.pattern}\}}"
)
_MATRIX = re.compile(
    r"\\begin\{([pbvVB]?)(?:small)?(?:matrix|array)\}(?:\{[lcr|]+\})?(.*)\\end\{[pbvVB]?(?:small)?(?:matrix|array)\}",
    re.S,
)
_SET_BUILDER = re.compile(r"⦃\s*[^|:⦄]*?(?:∈\s*\\mathbb\s*\{?\s*[RZNQ]\s*\}?)?\s*[|:]([^|:⦄]+)⦄")
_LISTED_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3}(?:,\d{3})+)(?![\d,])")


@lru_cache(maxsize=4096)
def read(text: str) -> Tree:
    """Reads a cleaned answer. Every text has a reading; what is not understood is one ``Scalar``."""
    return _read(text, 0)


def _read(text: str, depth: int) -> Tree:
    text = text.strip()
    if depth > 6 or not text or text.isalnum():
        return Scalar(text)
    if (text[0] == "\\" or text[0].isalpha()) and (known := _NAMED_SETS.get(_SPELLING.sub("", text))) is not None:
        return known
    if _thousands(text):
        return Scalar(text.replace(",", ""))
    if text.startswith("\\begin") or (text.endswith("]") and "\\begin" in text):
        matrix = _matrix(text, depth)
        if matrix is not None:
            return matrix
    if ", " in text:  # commas with a space separate, so those without one group digits
        text = _LISTED_THOUSANDS.sub(lambda m: m.group(0).replace(",", ""), text)
    parts = [part for part in split(text, ",;") if part]
    if 1 < len(parts) <= MAX_PARTS:
        return _bag([_read(part, depth + 1) for part in parts])
    if any(sign in text for sign in _RELATIONS):
        relation = _relation(text, depth)
        if relation is not None:
            return relation
    parts = split(text, "∪")
    if len(parts) > 1:
        return Bag("∪", tuple(_read(part, depth + 1) for part in parts[:MAX_PARTS]))
    return _enclosed(text, depth)


def _thousands(text: str) -> bool:
    return text[0] in "-0123456789" and re.fullmatch(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", text) is not None


def _enclosed(text: str, depth: int) -> Tree:
    if text[0] in "([⦃" and closing(text, 0) == len(text) - 1:
        builder = _SET_BUILDER.fullmatch(text)
        if builder is not None:
            return _read(builder.group(1), depth + 1)
        inner, brackets = text[1:-1], text[0] + text[-1]
        parts = split(inner, ",;") if inner.strip() else []
        if brackets == "⦃⦄":
            return _bag([_read(part, depth + 1) for part in parts[:MAX_PARTS]])
        if len(parts) > 1:
            return Group(brackets, tuple(_read(part, depth + 1) for part in parts[:MAX_PARTS]))
        if brackets == "()":
            return _read(inner, depth + 1)
    parts = split(text, ":")
    if len(parts) > 1:
        return Group(":", tuple(Scalar(part) for part in parts))
    if "±" in text or "∓" in text:
        return Bag(",", (Scalar(text, 1), Scalar(text, -1)))
    return Scalar(split_unit(text)[0])


def _bag(parts: list[Tree]) -> Tree:
    """A list; nested lists (``1 ± √2, 5``) are flattened, a name said once holds for all, intervals are united."""
    flat: list[Tree] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Bag) and part.kind == "," else [part])
    named = [part for part in flat if isinstance(part, Named)]
    if len(named) == len(flat) > 1 and all(part.operator != "=" for part in named):
        if len({part.name for part in named}) == 1:
            return Named(named[0].name, Bag("∪", tuple(part.value for part in named)), None, "∈")
    elif len(named) == 1 and flat[0] is named[0] and len(flat) > 1:
        return Named(named[0].name, Bag(",", (named[0].value, *flat[1:])))
    if len(flat) == 1 and isinstance(flat[0], Scalar):
        return flat[0]
    return Bag(",", tuple(flat))


def _matrix(text: str, depth: int) -> Tree | None:
    if text[0] in "([" and text[-1] in ")]":
        text = text[1:-1].strip()
    match = _MATRIX.fullmatch(text)
    if match is None or "\\begin" in match.group(2):
        return None
    rows = [row for row in match.group(2).split("\\\\") if row.strip()]
    kind = "|" if match.group(1) in ("v", "V") else "m"
    cells = [tuple(_read(cell, depth + 2) for cell in row.split("&")) for row in rows[:MAX_PARTS]]
    return Group(kind, tuple(Group("m", row) for row in cells))


def _relation(text: str, depth: int) -> Tree | None:
    """Reads a chain ``a = b ≤ c``; ``None`` when it is no relation outside brackets."""
    sides = split(text, _RELATIONS)
    if len(sides) < 2 or not all(sides):
        return None
    operators = [char for _, char in outside(text) if char in _RELATIONS]
    if len(operators) != len(sides) - 1:
        return None
    if "=" in operators and "≈" in operators:
        cut = operators.index("≈")  # x = 1/3 ≈ 0.33: the exact value was said first
        operators, sides = operators[:cut], sides[: cut + 1]
        if not operators:
            return None
    bare = [re.sub(r"\s+", "", side) for side in sides]
    if set(operators) <= {"=", "≈"}:
        return _equation(sides, bare, operators, depth)
    if operators == ["∈"] and _NAME.fullmatch(bare[0]):
        return Named(bare[0], _read(sides[1], depth + 1), None, "∈")
    return _inequality(sides, bare, operators)


def _equation(sides: list[str], bare: list[str], operators: list[str], depth: int) -> Tree | None:
    """Reads a chain ``a = b = c``: a statement about numbers has to be true; of a named value the last form counts."""
    numbers = [_is_number(side) for side in sides]
    if all(numbers):
        if not all(exact.holds(*link) for link in zip(operators, sides, sides[1:], strict=False)):
            return Relation(FALSE, (sides[0], sides[-1]))
        last = next((side for side in reversed(sides) if not finished.undone(side)), sides[-1])
        return Named("", _read(last, depth + 1))
    ends = (sides[0], sides[-1]) if len(sides) == 2 else None
    named = [side for side in bare[:-1] if _NAME.fullmatch(side)]
    if not named and ends is not None:
        if _RATIO_OF_NAMES.fullmatch(bare[0]) and all(_is_number(part) for part in split(sides[1], ":")):
            return Named(bare[0], _read(sides[1], depth + 1), None if ":" in sides[0] else ends)
        if numbers[0] and _NAME.fullmatch(bare[1]):  # 5 = x
            return Named(bare[1], _read(sides[0], depth + 1), ends)
        return Relation("=", ends)
    if not named:
        return None
    if len(sides) > 2 and _is_system(sides):
        return Bag(",", tuple(Relation("=", (a, b)) for a, b in pairwise(sides)))
    if numbers[-1]:  # x = y = 5 says more than x = 5
        return Named("=".join(sorted(set(named))), _read(sides[-1], depth + 1), ends)
    return Named(named[0], _read(sides[-1], depth + 1), ends)


def _is_system(sides: list[str]) -> bool:
    """Whether a chain relates unknowns (x = y/2 = z) instead of working one value out (f(x) = (x+1)^2 = x^2+2x+1)."""
    try:
        last = exact.names(sides[-1])
        return bool(last) and any(exact.same_value(side, sides[-1]) is False for side in sides[1:-1])
    except (ParseError, TooBig):
        return False


def _inequality(sides: list[str], bare: list[str], operators: list[str]) -> Tree | None:
    if len(sides) == 2 and operators[0] in _FLIP:
        operator, swap = operators[0], operators[0] in ">≥"
        operator = _FLIP[operator] if swap else operator
        low, high = (1, 0) if swap else (0, 1)
        ordered = (sides[low], sides[high])
        if operator in "<≤" and _NAME.fullmatch(bare[low]) and _is_number(sides[high]):
            brackets = "()" if operator == "<" else "(]"
            return Named(bare[low], Group(brackets, (_MINUS_INF, Scalar(sides[high]))), ordered, operator)
        if operator in "<≤" and _NAME.fullmatch(bare[high]) and _is_number(sides[low]):
            brackets = "()" if operator == "<" else "[)"
            return Named(bare[high], Group(brackets, (Scalar(sides[low]), _INF)), ordered, operator)
        if operator == "≠" and _NAME.fullmatch(bare[0]) and _is_number(sides[1]):
            end = Scalar(sides[1])
            union = Bag("∪", (Group("()", (_MINUS_INF, end)), Group("()", (end, _INF))))
            return Named(bare[0], union, ordered, operator)
        return Relation(operator, ordered)
    if len(sides) == 3 and _NAME.fullmatch(bare[1]):
        low, high = (0, 2) if operators[0] in "<≤" else (2, 0)
        pair = operators if low == 0 else [_FLIP.get(o, o) for o in reversed(operators)]
        if all(operator in "<≤" for operator in pair):
            brackets = ("(" if pair[0] == "<" else "[") + (")" if pair[1] == "<" else "]")
            return Named(bare[1], Group(brackets, (Scalar(sides[low]), Scalar(sides[high]))), None, "∈")
    return None


def _is_number(text: str) -> bool:
    try:
        return not exact.names(text) - {"±"}
    except ParseError:
        return False


def match(gold: Tree, pred: Tree) -> bool | None:
    """Whether two readings mean the same; ``None`` if that cannot be told here. Raises ``TooBig``."""
    if isinstance(gold, Scalar) and isinstance(pred, Scalar):
        return _scalars(gold, pred)
    if isinstance(gold, (Named, Relation)) or isinstance(pred, (Named, Relation)):
        return _relations(gold, pred)
    if isinstance(gold, Group) and isinstance(pred, Group):
        if gold.brackets != pred.brackets or len(gold.parts) != len(pred.parts):
            return False
        return _ordered(gold.parts, pred.parts)
    if isinstance(gold, Bag) and isinstance(pred, Bag):
        return _bags(gold, pred)
    if isinstance(gold, Group) and isinstance(pred, Scalar) and finished.matrices_undone(pred.text):
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
    if gold.sign == pred.sign and key(gold.text).lstrip("+") == key(pred.text).lstrip("+"):
        return True
    if finished.unfinished(pred.text, gold.text):
        return False  # 2+3 is a calculation on the way to 5, not yet an answer
    if has_words(gold.text) or has_words(pred.text) or "∞" in (gold.text[-1:], pred.text[-1:]):
        return False
    signs = (gold.sign, pred.sign)
    equal = exact.same_value(gold.text, pred.text, signs)
    for mark in "%°":  # 50 % is 0.5 and may be written 50 where a percentage is asked for; likewise 45° and 45
        if equal is False and gold.text.endswith(mark) != pred.text.endswith(mark):
            equal = exact.same_value(gold.text.rstrip(mark + " "), pred.text.rstrip(mark + " "), signs)
    return equal


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


def _relations(gold: Tree, pred: Tree) -> bool | None:
    if FALSE in (getattr(gold, "operator", ""), getattr(pred, "operator", "")):
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
