r"""What a number counts: units, nouns, and words that change what it says.

``split`` takes the words off the end of a cleaned answer: ``10 \text{ cm}^2``, ``5 red apples``, ``5 \text{ million}``,
``3:45\text{ p.m.}``. Two answers agree in their words if

* one says none, or all those of the other (``5`` and ``5 apples``, ``apples`` and ``red apples``);
* their units measure the same; the values are then compared in one of them (``2 h`` and ``120 min``);
* both have the same marks: morning, north, loss and the other words of ``notation.MARKS`` have no default.

Words that multiply (``million``, ``dozen``) are multiplied. Everything is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from marft_envs.families.math.canonical import without_text
from marft_envs.families.math.evaluation import TooBig, Undefined, evaluate
from marft_envs.families.math.finished import numeral
from marft_envs.families.math.notation import COUNTERS, FILLERS, MARKS, MULTIPLIERS, PLURALS, UNITS, WORD
from marft_envs.families.math.parse import ParseError, parse

_TOKEN = re.compile(
    r"(?P<text>\\text\{(?:[^{}]|\{[^{}]*\})*\})|(?P<command>\\[a-zA-Z]+|\\.)"
    rf"|(?P<word>{WORD}?(?!π)[^\W\d_]+(?:['’.-][^\W\d_]+)*'?\.?)|(?P<power>\^\s*(?:\{{\s*-?[1-9]\s*\}}|-?[1-9]))"
    r"|(?P<join>[/*])|(?P<space>\s+)|(?P<other>.)",
    re.DOTALL,
)
_PIECE = re.compile(r"[^\W\d_]+(?:['’.-][^\W\d_]+)*|/|\^\s*\{?\s*-?\d|\d+")
_NUMBERISH = re.compile(r"(?:[\d\s.,:/+\-^{}()%°*]|\\frac|\\sqrt)+")
MAX_WORDS = 60
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Letters of scripts that write a number and its noun without a blank between them."""
_CLOCK = re.compile(r"(\d{1,2})(?::(\d\d)(:\d\d)?)?")
_FORMULA_WORDS = frozenset(("bc", "ad", "ce", "ne", "se", "sw", "nw", "n", "s", "e", "w", "cw", "mn", "bn"))
"""Words that stand for products of variables where they are written small and outside of ``\\text{}``."""


_FRACTION = r"\\frac(?:\d\d|\{\d+\}\{\d+\})"
_NUMBER = rf"\d[\d,]*(?:\.\d+)?(?:\s*{_FRACTION}|\s+\d+/\d+)?|{_FRACTION}"
_AMOUNT = rf"\s*({_NUMBER})\s*(°|''|'|\"|[a-zA-Z]+\.?)"
_AMOUNTS = re.compile(rf"(?:{_AMOUNT}){{2,}}\s*")
_PRIMED = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s*(''|'|\")")
_PRIMES = {"'": "ft", "''": "in", '"': "in"}
_ARCS = {"°": "arcdegree", "'": "arcminute", "''": "arcsecond", '"': "arcsecond"}


@dataclass(frozen=True, slots=True)
class Words:
    """What was said of a number."""

    unit: tuple[tuple[str, int], ...] = ()
    """Dimensions and their powers."""
    size: Fraction = Fraction(1)
    """Of the unit, in that of size 1."""
    nouns: frozenset[str] = frozenset()
    marks: frozenset[str] = frozenset()


NONE = Words()


@lru_cache(maxsize=4096)
def split(text: str) -> tuple[str, Words]:
    """Takes the words off the end of a cleaned answer; what is no number with words comes back as it is."""
    if text[-1:].isdigit() and "^" not in text:
        return text, NONE
    if (primed := _PRIMED.fullmatch(text)) is not None:
        dimensions, size = UNITS[_PRIMES[primed[2]]]
        return primed[1], Words(tuple(dimensions.items()), size, marks=frozenset("'"))
    tokens = [(match.lastgroup or "", match.group(), match.start()) for match in _TOKEN.finditer(text)]
    first = len(tokens)
    while first and tokens[first - 1][0] in ("text", "word", "power", "join", "space"):
        first -= 1
    while len(tokens) - MAX_WORDS < first < len(tokens):
        value = text[: tokens[first][2]].rstrip(" ,")
        if tokens[first][0] in ("text", "word") and _counts(
            value, spaced=tokens[first - 1][0] == "space", tail=tokens[first:]
        ):
            words = _read(value, tokens[first:])
            return (text, NONE) if words is None else _applied(value, *words)
        first += 1
    return text, NONE


def _counts(value: str, *, spaced: bool, tail: list[tuple[str, str, int]]) -> bool:
    """Whether the words of ``tail`` are said of ``value``, and are no variables."""
    if not value or not (value[-1].isalnum() or value[-1] in ")}]°%π'"):
        return False
    if tail[0][0] == "text":
        return True
    if value[-1].isascii() and value[-1].isalpha():
        return False
    words = [text for kind, text, _ in tail if kind == "word"]
    if _UNSPACED.match(tail[0][1]) or _known(words[0], spaced=spaced, value=value):
        return True
    noun = any(
        word.startswith(WORD) or len(word.rstrip(".'")) > 3 or word in PLURALS or _UNSPACED.match(word)
        for word in words
    )
    return spaced and noun and _NUMBERISH.fullmatch(value) is not None


def _known(word: str, *, spaced: bool, value: str) -> bool:
    r"""Whether a word outside of ``\text{}`` is a unit, a mark or a multiplier, even without a blank before it."""
    plain = word.strip(".").replace(".", "")
    if value[-1] == "°" and plain in ("N", "S", "E", "W", "C", "F"):
        return True
    if len(plain) < 2:
        return False
    if plain.lower() in _FORMULA_WORDS:
        return spaced and (plain.isupper() or "." in word[:-1])
    small = plain.lower()
    return (
        _unit(plain) is not None or small in MARKS or small in MULTIPLIERS or small in ("square", "cubic", "sq", "cu")
    )


def _unit(word: str) -> tuple[Mapping[str, int], Fraction] | None:
    for name in (word, word.lower() if len(word) > 1 else word):
        for singular in (name, name.removesuffix("s"), name.removesuffix("es")):
            if (len(singular) > 1 or singular == word) and (unit := UNITS.get(singular)) is not None:
                return unit
    return None


def _pieces(tail: list[tuple[str, str, int]]) -> Iterator[str]:
    for kind, text, _ in tail:
        if kind == "text":
            yield from (re.sub(r"[\s{}]", "", piece) for piece in _PIECE.findall(text[6:-1].replace("·", " ")))
        elif kind != "space":
            yield re.sub(rf"[\s{{}}{WORD}]", "", text).rstrip(".'") or text


class _Reader:
    """Reads the words behind a number one by one."""

    def __init__(self, value: str, pieces: list[str]) -> None:
        self.value, self.pieces = value, pieces
        self.unit: Counter[str] = Counter()
        self.size, self.times = Fraction(1), Fraction(1)
        self.nouns: set[str] = set()
        self.marks: set[str] = set()
        self.multipliers: list[str] = []
        self.below = False
        """Whether the next unit is divided by."""

    def read(self) -> bool:
        """Whether the words could be read."""
        at = 0
        while at < len(self.pieces):
            piece = self.pieces[at]
            if piece in ("/", "*") or piece.lower() == "per":
                self.below = piece != "*"
                at += 1
            elif piece[0] == "^" or piece.isdigit():
                return False  # 5 or 6: no word
            else:
                at = self.word(at)
        return True

    def word(self, at: int) -> int:
        """Reads the word at ``at`` and returns where the next one is."""
        word = self.pieces[at].strip("'")
        plain = word.replace(".", "")
        small = plain.lower()
        if small in MULTIPLIERS and (plain != "K") and not self.nouns:
            self.times *= MULTIPLIERS[small]
            self.multipliers.append(small)
            return at + 1
        if self.compass(plain):
            self.marks.add(MARKS[small])
            return at + 1
        power = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}.get(small)
        if power and at + 1 < len(self.pieces) and (_unit(self.pieces[at + 1]) or "unit" in self.pieces[at + 1]):
            word, at = self.pieces[at + 1], at + 1
            plain = small = word.replace(".", "")
        known = None if word == "in" and self.follows(at) else self.degrees(word) or _unit(plain)
        if known is not None:
            return self.measured(known, power or 1, at + 1)
        if len(plain) == 1 and plain.isascii():
            self.marks.add(MARKS.get(small, plain) if self.value[-1:] == "°" else plain)
        elif small in MARKS:
            self.marks.add(MARKS[small])
        elif not plain.isascii():
            self.foreign(plain)
        elif small not in FILLERS:
            self.nouns.add(PLURALS.get(small, small.removesuffix("'s").removesuffix("s")))
            self.below = False
        return at + 1

    def follows(self, at: int) -> bool:
        return at + 1 < len(self.pieces) and self.pieces[at + 1][0].isalpha() and self.pieces[at + 1] != "per"

    def compass(self, word: str) -> bool:
        return word in ("N", "S", "E", "W") and (self.value[-1:] == "°" or "length" in self.unit)

    def degrees(self, word: str) -> tuple[Mapping[str, int], Fraction] | None:
        return UNITS["celsius"] if word == "C" and self.value[-1:] == "°" else None

    def measured(self, known: tuple[Mapping[str, int], Fraction], power: int, at: int) -> int:
        if at < len(self.pieces):
            following = self.pieces[at]
            if following in ("squared", "cubed"):
                power, at = (2 if following == "squared" else 3), at + 1
            elif following[0] == "^" or following in ("2", "3"):
                power, at = int(following.lstrip("^")), at + 1
        power = -power if self.below else power
        for dimension, exponent in known[0].items():
            self.unit[dimension] += exponent * power
        self.size *= known[1] ** power
        return at

    def foreign(self, word: str) -> None:
        """A word of a script that writes no blanks may begin with what multiplies, and with a counting word."""
        while word[:1] in MULTIPLIERS and word[1:2] not in ("克", "米", "瓦", "卡"):
            self.times *= MULTIPLIERS[word[0]]
            self.multipliers.append(word[0])
            word = word[1:]
        if word[:1] and word[0] in COUNTERS:
            self.nouns.add(word[0])
            word = word[1:]
        if word:
            self.nouns.add(word.casefold())


def _read(value: str, tail: list[tuple[str, str, int]]) -> tuple[Words, Fraction, list[str]] | None:
    reader = _Reader(value, list(_pieces(tail)))
    if not reader.read():
        return None
    unit = tuple(sorted((name, power) for name, power in reader.unit.items() if power))
    words = Words(unit, reader.size, frozenset(reader.nouns), frozenset(reader.marks))
    return words, reader.times, reader.multipliers


def _applied(value: str, words: Words, times: Fraction, multipliers: list[str]) -> tuple[str, Words]:
    """The value multiplied, and a time of day in the afternoon as one of 24 hours."""
    marks = words.marks
    if times != 1:
        product = scaled(without_text(value), times)
        value, marks = (value, marks | {*multipliers}) if product is None else (product, marks)
    clock = _CLOCK.fullmatch(without_text(value).replace(" ", "")) if marks & {"am", "pm"} else None
    if clock is not None:
        hour, minute = int(clock.group(1)), clock.group(2) or "00"
        if "pm" in marks and hour < 12:
            hour, marks = hour + 12, marks - {"pm"}
        elif "am" in marks and hour == 12:
            hour = 0
        value = f"{hour}:{minute}"
    return value, Words(words.unit, words.size, words.nouns, marks)


def compound(text: str) -> tuple[str, Words] | None:
    """Amounts in smaller and smaller units (``6 ft 2 in``, ``30° 15'``) as one in the first; ``None`` for others."""
    flat = re.sub(r"\s*,(?=\s)", " ", re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text))
    if _AMOUNTS.fullmatch(flat) is None:
        return None
    parts = re.findall(_AMOUNT, flat)
    angle = parts[0][1] == "°"
    names = [(_ARCS if angle else _PRIMES).get(name, name.rstrip(".")) for _, name in parts]
    if (first := _unit(names[0])) is None:
        return None
    total, above = Fraction(0), None
    for (number, _), name in zip(parts, names, strict=True):
        unit, value = _unit("min" if name == "m" and "time" in first[0] else name), amount(number)
        if value is None or unit is None or unit[0] != first[0] or not (above is None or value * unit[1] < above):
            return None
        total, above = total + value * unit[1], unit[1]
    words = Words(tuple(first[0].items()), first[1])
    return (f"{_written(total)}°", NONE) if angle else (_written(total / first[1]), words)


def amount(value: str) -> Fraction | None:
    """A written number, or ``None`` for what is not one number."""
    try:
        node = parse(value)
        number = evaluate(node, {}) if numeral(node) else 0j
    except (ParseError, TooBig, Undefined):
        return None
    return None if isinstance(number, complex) else Fraction(number)


def _written(number: Fraction) -> str:
    above, below = number.numerator, number.denominator
    return str(above) if below == 1 else f"\\frac{{{above}}}{{{below}}}"


def scaled(value: str, times: Fraction) -> str | None:
    """A number multiplied, or ``None`` for what is not one number."""
    number = amount(value)
    return None if number is None else _written(number * times)


def ratio(gold: Words, pred: Words) -> Fraction | None:
    """What ``pred`` is to be multiplied by to be in the unit of ``gold``; ``None`` if the words do not agree."""
    if gold.marks != pred.marks and not (gold.unit and pred.unit and gold.marks ^ pred.marks == {"'"}):
        return None
    first, second = (words.nouns | {str(words.unit)} - {"()"} for words in (gold, pred))
    if not (first <= second or second <= first):
        return None
    return pred.size / gold.size if gold.unit and pred.unit else Fraction(1)
