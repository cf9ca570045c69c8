"""Answers with parts: lists, tuples, intervals, unions, matrices, named values, equations, inequalities.

``read`` turns a cleaned answer into a small tree, which ``comparison`` compares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Union

from marft_envs.families.math import exact, finished, quantity
from marft_envs.families.math.branches import coordinate
from marft_envs.families.math.canonical import closing, outside, split, without_text
from marft_envs.families.math.evaluation import TooBig
from marft_envs.families.math.notation import NAMED_SETS, WORD
from marft_envs.families.math.parse import ParseError

MAX_PARTS = 100


@dataclass(frozen=True, slots=True)
class Scalar:
    """One expression, or words."""

    text: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A value with a unit, a noun or other words behind it."""

    value: Tree
    words: quantity.Words


@dataclass(frozen=True, slots=True)
class BracketGroup:
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


Tree = Union[Scalar, Measured, BracketGroup, Bag, Named, Relation]  # noqa: UP007  (recursive runtime alias)

FALSE = "false"
"""Operator of an equation between constants that does not hold: it is equal to nothing."""
UNSOLVED = "|"
"""Operator of ``|x - 3| < 2``, which has the solutions of its value, and is itself no solution."""
_INF = Scalar("∞")
_MINUS_INF = Scalar("-∞")
_SPELLING = re.compile(rf"[\s{{}}{WORD}]")
_NAMED_SETS: dict[str, Tree] = {}
"""Spelling without blanks and braces, in small letters -> what a set is as an interval or a list, a word as a value."""
_SIGNS = (str.maketrans("±∓", "+-"), str.maketrans("±∓", "-+"))
_RELATIONS = "=≤≥<>≠≈∈"
_FLIP = {"<": ">", ">": "<", "≤": "≥", "≥": "≤", "=": "=", "≠": "≠"}
_LETTERS = r"(?!\\(?:sin|cos|tan|cot|sec|csc|ln|log|sqrt|frac))\\?[a-zA-Z]+"
_SYMBOL = rf"(?:{_LETTERS}|\\[a-zA-Z]+\{{\w+\}}|π)'*(?:_(?:\{{[^{{}}]*\}}|\w))?'*"
_CALL = r"(?:\^\{-1\})?\([^()]*\)"
_NAME = re.compile(rf"(?:{_SYMBOL}(?:{_CALL})?|\({_SYMBOL}(?:,{_SYMBOL})+\)|[A-Z]{{2,3}}|\|[A-Z]{{2}}\|)")
_RATIO_OF_NAMES = re.compile(
    rf"{_NAME.pattern}(?:[:/]{_NAME.pattern})+|\\frac\{{{_NAME.pattern}\}}\{{{_NAME.pattern}\}}"
)
_SIZE = re.compile(r"\|([^|]+)\|")
_MATRIX = re.compile(
    r"\\begin\{([pbvVB]?)(?:small)?(?:matrix|array)\}(?:\{[lcr|]+\})?(.*)\\end\{[pbvVB]?(?:small)?(?:matrix|array)\}",
    re.S,
)
_TERM = re.compile(r"\s*(?:\+|(?P<sign>-)|)\s*(?P<times>.*?)[\s*]*(?:\\hat\{)?(?P<name>[ijk])\}?\s*")
_SET_BUILDER = re.compile(r"⦃\s*[^|:⦄]*?(?:∈\s*\\mathbb\s*\{?\s*[RZNQ]\s*\}?)?\s*[|:]([^|:⦄]+)⦄")
_GROUPED = re.compile(r"(-?\d{1,3}(?:,\d{3})+)((?:\.\d+)?(?:\s*(?:\\text|[^\W\d_]|%|°)[^,;]*)?)")
_LISTED_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3}(?:,\d{3})+)(?![\d,])")


@lru_cache(maxsize=4096)
def read(text: str) -> Tree:
    """Reads a cleaned answer. Every text has a reading; what is not understood is one ``Scalar``."""
    return _read(text, 0)


def _read(text: str, depth: int) -> Tree:
    text = text.strip()
    if depth > 6 or len(text) < 2 or text.isdigit():
        return Scalar(text)
    if (text[0] in ("\\", WORD) or text[0].isalpha()) and (
        known := _NAMED_SETS.get(_SPELLING.sub("", text).lower())
    ) is not None:
        return known
    if "," in text and (grouped := _GROUPED.fullmatch(text)) is not None:
        text = grouped[1].replace(",", "") + grouped[2]
    if text.startswith("\\begin") or (text.endswith("]") and "\\begin" in text):
        matrix = _matrix(text, depth)
        if matrix is not None:
            return matrix
    if (whole := quantity.compound(text)) is not None:
        return Scalar(whole[0]) if whole[1] == quantity.NONE else Measured(Scalar(whole[0]), whole[1])
    if ", " in text:  # commas with a space separate, so those without one group digits
        text = _LISTED_THOUSANDS.sub(lambda m: m.group(0).replace(",", ""), text)
    parts = [part for part in split(text, ",;") if part]
    if 1 < len(parts) <= MAX_PARTS:
        return _bag([_element(part, depth) for part in parts])
    if any(sign in text for sign in _RELATIONS):
        relation = _relation(text, depth)
        if relation is not None:
            return relation
    parts = split(text, "∪")
    if len(parts) > 1:
        return Bag("∪", tuple(_united(part, depth) for part in parts[:MAX_PARTS]))
    value, words = quantity.split(text)
    if words != quantity.NONE or value != text:
        return Measured(_read(value, depth + 1), words)
    if "\\text" in text:
        return _read(without_text(text), depth + 1)
    return _enclosed(text, depth)


def _enclosed(text: str, depth: int) -> Tree:
    if text[0] in "([⦃" and closing(text, 0) == len(text) - 1:
        builder = _SET_BUILDER.fullmatch(text)
        if builder is not None:
            return _read(builder.group(1), depth + 1)
        inner, brackets = text[1:-1], text[0] + text[-1]
        parts = split(inner, ",;") if inner.strip() else []
        if brackets == "⦃⦄":
            return _bag([_element(part, depth) for part in parts[:MAX_PARTS]])
        if len(parts) > 1:
            return BracketGroup(brackets, tuple(_read(part, depth + 1) for part in parts[:MAX_PARTS]))
        if brackets == "()":
            return _read(inner, depth + 1)
    parts = split(text, ":")
    if len(parts) > 1:
        return BracketGroup(":", tuple(Scalar(part) for part in parts))
    if "±" in text or "∓" in text:
        return Bag(",", tuple(Scalar(text.translate(signs)) for signs in _SIGNS))
    return _vector(text) or Scalar(text)


def _element(text: str, depth: int) -> Tree:
    """Reads a part of a list; a set in a list or in a set stays one."""
    tree = _read(text, depth + 1)
    return BracketGroup("⦃⦄", (tree,)) if text[:1] == "⦃" or tree == Bag(",", ()) else tree


def _united(text: str, depth: int) -> Tree:
    """Reads a part of a union: ``[5]`` and ``(5)`` are not the number in brackets."""
    tree = _read(text, depth + 1)
    return BracketGroup(text[0] + text[-1], (tree,)) if isinstance(tree, Scalar) and text[:1] in ("[", "(") else tree


def _vector(text: str) -> Tree | None:
    """Reads a sum of multiples of i, j and k as a point."""
    cuts = [0, *(index for index, char in outside(text) if char in "+-" and index), len(text)]
    terms = [_TERM.fullmatch(text[start:end]) for start, end in pairwise(cuts)]
    parts = {term["name"]: (term["sign"] or "") + (term["times"] or "1") for term in terms if term is not None}
    if len(parts) < len(cuts) - 1 or not ("\\hat{" in text or {"i", "j"} <= {*parts}):
        return None
    letters = "ijk" if "k" in parts else "ij"
    return BracketGroup("()", tuple(Scalar(parts.get(letter, "0")) for letter in letters))


def _bag(parts: list[Tree]) -> Tree:
    """A list; nested lists (``1 ± √2, 5``) are flattened, a name said once holds for all, intervals are united."""
    inner = [part.parts if isinstance(part, Bag) and part.kind == "," else (part,) for part in parts]
    flat = [part for each in inner for part in each]
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
    return BracketGroup(kind, tuple(BracketGroup("m", row) for row in cells))


def _relation(text: str, depth: int) -> Tree | None:
    """Reads a chain ``a = b ≤ c``; ``None`` when it is no relation outside brackets."""
    sides = split(text, _RELATIONS)
    if len(sides) < 2 or not all(sides):
        return None
    sides[-1], words = quantity.split(sides[-1])
    relation = _chain(text, sides, depth)
    if words != quantity.NONE and isinstance(relation, Named):
        return replace(relation, value=Measured(relation.value, words))
    return relation


def _chain(text: str, sides: list[str], depth: int) -> Tree | None:
    operators = [char for _, char in outside(text) if char in _RELATIONS]
    if len(operators) != len(sides) - 1:
        return None
    if "=" in operators and "≈" in operators:
        cut = operators.index("≈")  # x = 1/3 ≈ 0.33: the exact value was said first
        operators, sides = operators[:cut], sides[: cut + 1]
        if not operators:
            return None
    bare = [re.sub(rf"[\s{WORD}]+", "", without_text(side)) for side in sides]
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
        if operator in "<≤":
            left, right = ("(", ")") if operator == "<" else ("[", "]")
            least, most = Scalar(sides[low]), Scalar(sides[high])
            if _NAME.fullmatch(bare[low]) and _is_number(most.text):
                return Named(bare[low], BracketGroup("(" + right, (_MINUS_INF, most)), ordered, operator)
            if _NAME.fullmatch(bare[high]) and _is_number(least.text):
                return Named(bare[high], BracketGroup(left + ")", (least, _INF)), ordered, operator)
            inside = _SIZE.fullmatch(sides[low])
            size = inside or _SIZE.fullmatch(sides[high])
            if size is not None and (ends := _ends(size[1], (most if inside else least).text)) is not None:
                solved: Tree = BracketGroup(left + right, ends)
                if not inside:
                    solved = Bag(
                        "∪",
                        (BracketGroup("(" + right, (_MINUS_INF, ends[0])), BracketGroup(left + ")", (ends[1], _INF))),
                    )
                (name,) = exact.names(size[1])
                return Named(name, solved, ordered, "∈" if _NAME.fullmatch(size[1]) else UNSOLVED)
        if operator == "≠" and _NAME.fullmatch(bare[0]) and _is_number(sides[1]):
            end = Scalar(sides[1])
            union = Bag("∪", (BracketGroup("()", (_MINUS_INF, end)), BracketGroup("()", (end, _INF))))
            return Named(bare[0], union, ordered, operator)
        return Relation(operator, ordered)
    if len(sides) == 3 and _NAME.fullmatch(bare[1]):
        low, high = (0, 2) if operators[0] in "<≤" else (2, 0)
        pair = operators if low == 0 else [_FLIP.get(o, o) for o in reversed(operators)]
        if all(operator in "<≤" for operator in pair):
            brackets = ("(" if pair[0] == "<" else "[") + (")" if pair[1] == "<" else "]")
            return Named(bare[1], BracketGroup(brackets, (Scalar(sides[low]), Scalar(sides[high]))), None, "∈")
    return None


def _ends(inside: str, bound: str) -> tuple[Scalar, Scalar] | None:
    """Where the size of a linear expression in one variable is ``bound``."""
    try:
        (name,) = names = exact.names(inside)
        size = exact.values(bound, frozenset())[0] if _is_number(bound) else None
        values = [Fraction(value) for value in exact.values(inside, names) if isinstance(value, (int, Fraction))]
    except (ValueError, TooBig):  # no expression, or not of one variable
        return None
    at = [coordinate(name, k) for k in range(exact.POINTS)]
    if size is None or len(values) < len(at):
        return None
    slope, *others = ((y - values[0]) / (x - at[0]) for x, y in zip(at[1:], values[1:], strict=True))
    if not slope or any(other != slope for other in others):
        return None
    base, signs = values[0] - slope * at[0], (-1, 1) if slope > 0 else (1, -1)
    if isinstance(size, complex):
        first, second = (Scalar(f"({sign}*({bound})-({base}))/({slope})") for sign in signs)
    else:
        first, second = (Scalar(str((sign * size - base) / slope)) for sign in signs)
    return first, second


def _is_number(text: str) -> bool:
    try:
        return not exact.names(text.translate(_SIGNS[0]))
    except ParseError:
        return False


_NAMED_SETS |= {name: _read(text, 0) for text, names in NAMED_SETS.items() for name in names.split()}
