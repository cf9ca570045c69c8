"""Level 0: families of one-line functions. Each lists all its items, in words and as an expression.

``unclear`` has wordings with several meanings.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from marft_envs import tables

_TABLE = tables.read(__package__, "procedural")
_WORDS = {"+": "plus", "-": "minus"}
_TIMES = {1: "", 2: "twice ", 3: "3 times "}


class Item(NamedTuple):
    """A problem: ``f(args): words``, whose gold is ``return code``."""

    args: str
    words: str
    code: str


Items = Iterator[Item]


def _times(k: int, name: str) -> tuple[str, str]:
    """Words and code of k times a variable."""
    return f"{_TIMES.get(k, f'{k} times ')}{name}", name if k == 1 else f"{k}*{name}"


# Numbers ----------------------------------------------------------------------------------------------


def linear() -> Items:
    """``c*a + d``, ``c*(a + d)``, and both with minus."""
    for op, word in _WORDS.items():
        for c, d in product(range(1, 10), range(1, 10)):
            words, code = _times(c, "a")
            yield Item("a", f"{words} {word} {d}", f"{code}{op}{d}")
        for c, d in product(range(2, 10), range(1, 10)):
            first = f"add {d} to a" if op == "+" else f"take {d} from a"
            yield Item("a", f"{first}, then multiply by {c}", f"{c}*(a{op}{d})")


def two_terms() -> Items:
    """``c*a + d*b`` and ``c*a - d*b``, ``a*b + d``."""
    for c, d, op in product(range(1, 10), range(1, 10), "+-"):
        (left, x), (right, y) = _times(c, "a"), _times(d, "b")
        yield Item("a, b", f"{left} {_WORDS[op]} {right}", f"{x}{op}{y}")
    for d, op in product(range(1, 10), "+-"):
        yield Item("a, b", f"a times b, {_WORDS[op]} {d}", f"a*b{op}{d}")


def larger() -> Items:
    """``max`` and ``min`` of two terms."""
    terms = [("{}", "{}")]
    terms += [(_times(k, "{}")[0], f"{k}*{{}}") for k in range(2, 6)]
    terms += [(f"{{}} plus {k}", f"{{}}+{k}") for k in range(1, 8)]
    terms += [(f"{{}} minus {k}", f"{{}}-{k}") for k in range(1, 5)]
    for (name, best), (one, x), (two, y) in product((("larger", "max"), ("smaller", "min")), terms, terms):
        words = f"the {name} of {one.format('a')} and {two.format('b')}"
        yield Item("a, b", words, f"{best}({x.format('a')},{y.format('b')})")


def distance() -> Items:
    """``abs`` of a difference, scaled or shifted."""
    for k in range(1, 13):
        yield Item("a", f"distance of a and {k}", f"abs(a-{k})")
    for k, d in product(range(2, 10), range(1, 10)):
        yield Item("a", f"distance of a and {k}, plus {d}", f"abs(a-{k})+{d}")
    for k in range(1, 10):
        words, code = _times(k, "a")
        yield Item("a, b", f"distance of {words} and b", f"abs({code}-b)")
        yield Item("a, b", f"distance of a and b, plus {k}", f"abs(a-b)+{k}")
        yield Item("a, b", f"distance of a and b, minus {k}", f"abs(a-b)-{k}")
    for k in range(2, 10):
        yield Item("a, b", _times(k, "the distance of a and b")[0], f"{k}*abs(a-b)")


_COMPARE: dict[str, str] = _TABLE["compare"]


def compare() -> Items:
    """Is one thing more than another? True or False."""
    for (word, op), k in product(_COMPARE.items(), range(1, 10)):
        yield Item("a", f"is a {word} {k}", f"a{op}{k}")
        yield Item("a, b", f"is a {word} b plus {k}", f"a{op}b+{k}")
        if k > 1:
            words, code = _times(k, "b")
            yield Item("a, b", f"is a {word} {words}", f"a{op}{code}")
        yield Item("x", f"is the sum of x {word} {k}", f"sum(x){op}{k}")
        if k < 8:
            yield Item("s", f"has s {word} {k} letters", f"len(s){op}{k}")
    for k in range(2, 10):
        yield Item("a", f"is a divisible by {k}", f"a%{k}==0")
        yield Item("x", f"is {k} in x", f"{k} in x")


def branch() -> Items:
    """``u if condition else v``."""
    tests = [(f"a is {word} {k}", f"a{_COMPARE[word]}{k}") for word in ("more than", "less than") for k in range(2, 10)]
    tests += [("a is even", "a%2==0"), ("a is odd", "a%2==1"), ("a is more than b", "a>b")]
    values = [("a", "a"), ("b", "b"), ("a plus b", "a+b"), ("a minus b", "a-b"), ("twice a", "2*a")]
    for (when, test), (one, x), (two, y) in product(tests, values, values):
        if one != two:
            yield Item("a, b", f"{one} if {when}, else {two}", f"{x} if {test} else {y}")


def remainder() -> Items:
    """``%`` and ``//`` with small divisors."""
    for k in range(2, 11):
        yield Item("a", f"remainder of a by {k}", f"a%{k}")
        yield Item("a", f"a divided by {k}, rounded down", f"a//{k}")
        yield Item("a, b", f"remainder of a plus b by {k}", f"(a+b)%{k}")
        yield Item("a, b", f"remainder of a times b by {k}", f"a*b%{k}")
        for d in range(1, 10):
            yield Item("a", f"remainder of a by {k}, plus {d}", f"a%{k}+{d}")
            yield Item("a", f"add {d} to a, then remainder by {k}", f"(a+{d})%{k}")


def offset() -> Items:
    """Two variables and a constant."""
    for c, k, op, between in product(range(1, 5), range(1, 10), "+-", "+-"):
        words, code = _times(c, "a")
        yield Item("a, b", f"{words} {_WORDS[between]} b {_WORDS[op]} {k}", f"{code}{between}b{op}{k}")


def squares() -> Items:
    """Squares of one or two variables."""
    for k in range(1, 10):
        for op, word in _WORDS.items():
            yield Item("a", f"square of a, {word} {k}", f"a*a{op}{k}")
        for op, word in _WORDS.items():
            yield Item("a", f"a {word} {k}, squared", f"(a{op}{k})**2")
        words, code = _times(k, "b")
        for op, word in _WORDS.items():
            yield Item("a, b", f"square of a, {word} {words}", f"a*a{op}{code}")
        if k > 1:
            yield Item("a", _times(k, "the square of a")[0], f"{k}*a*a")


def three() -> Items:
    """Three variables."""
    for (x, y, z), k, op in product((("a", "b", "c"), ("a", "c", "b"), ("b", "c", "a")), range(1, 7), "+-"):
        words, code = _times(k, z)
        yield Item("a, b, c", f"{x} times {y} {_WORDS[op]} {words}", f"{x}*{y}{op}{code}")
    for at, k, first, second in product(range(3), range(1, 7), "+-", "+-"):
        if k == 1 and at > 0:
            continue
        (one, x), (two, y), (last, z) = (_times(k if i == at else 1, name) for i, name in enumerate("abc"))
        yield Item("a, b, c", f"{one} {_WORDS[first]} {two} {_WORDS[second]} {last}", f"{x}{first}{y}{second}{z}")
    for k in range(1, 10):
        yield Item("a, b, c", f"the larger of a and b, plus c plus {k}", f"max(a,b)+c+{k}")
        yield Item("a, b, c", f"largest of a, b, c, minus {k}", f"max(a,b,c)-{k}")
        yield Item("a, b, c", f"smallest of a, b, c, plus {k}", f"min(a,b,c)+{k}")


def clamp() -> Items:
    """A number kept within bounds."""
    for k in range(2, 10):
        yield Item("a", f"a, but at least {k}", f"max(a,{k})")
        yield Item("a", f"a, but at most {k}", f"min(a,{k})")
        yield Item("a, b", f"a plus b, but at most {k}", f"min(a+b,{k})")
        yield Item("a, b", f"a minus b, but at least {k}", f"max(a-b,{k})")
        for j in range(0, k - 1):
            yield Item("a", f"a, but from {j} to {k}", f"max({j},min(a,{k}))")


_MEANINGS: dict[str, list[str]] = _TABLE["meanings"]


def unclear() -> Items:
    """One wording, several meanings: the tests settle which."""
    for k in range(2, 10):
        for words, codes in _MEANINGS.items():
            for code in codes:
                yield Item("a, b", words.format(k), code.format(k))


# Strings and lists ------------------------------------------------------------------------------------


def text() -> Items:
    """Reversing, cutting, repeating, counting letters."""
    parts = [("s", "s"), ("s backwards", "s[::-1]"), ("s in capitals", "s.upper()")]
    parts += [(f"first {k} letters of s", f"s[:{k}]") for k in range(2, 6)]
    parts += [(f"last {k} letters of s", f"s[-{k}:]") for k in range(2, 6)]
    parts += [(f"s without its first {k} letters", f"s[{k}:]") for k in range(2, 5)]
    parts += [(f"s without its last {k} letters", f"s[:-{k}]") for k in range(2, 5)]
    for words, code in parts:
        if words != "s":
            yield Item("s", words, code)
        if "[" in code and words != "s backwards":
            yield Item("s", f"{words}, backwards", f"{code}[::-1]")
            yield Item("s", f"{words}, in capitals", f"{code}.upper()")
        for k in (2, 3, 4):
            yield Item("s", f"{words}, {k} times", f"{code}*{k}")
        for c in "axyz":
            yield Item("s", f"{words}, then {c}", f'{code}+"{c}"')
    for c in "abcdelnopst":
        yield Item("s", f"how many {c} in s", f's.count("{c}")')
        for d in "xyz":
            yield Item("s", f"s with {d} for each {c}", f's.replace("{c}","{d}")')
    for k in range(1, 10):
        yield Item("s", f"length of s plus {k}", f"len(s)+{k}")
        yield Item("s", f"length of s times {k + 1}", f"len(s)*{k + 1}")
    yield Item("s, t", "s then t", "s+t")
    yield Item("s, t", "t then s", "t+s")
    yield Item("s, t", "s then t backwards", "s+t[::-1]")
    yield Item("s, t", "s backwards then t", "s[::-1]+t")


_SCALARS: dict[str, str] = _TABLE["scalars"]


def scalars() -> Items:
    """A number from a list, plus, minus, times something."""
    for words, code in _SCALARS.items():
        yield Item("x", words, code)
        for k in range(1, 10):
            yield Item("x", f"{words} plus {k}", f"{code}+{k}")
            yield Item("x", f"{words} minus {k}", f"{code}-{k}")
            if k > 1:
                yield Item("x", f"{k} times the {words}", f"{k}*{code}")
    for (left, x), (right, y) in product(_SCALARS.items(), _SCALARS.items()):
        if left != right:
            yield Item("x", f"{left} minus {right}", f"{x}-{y}")
            if x < y:
                yield Item("x", f"{left} plus {right}", f"{x}+{y}")


def lists() -> Items:
    """A list from a list: cut, sorted, mapped, filtered; and the sum, number or largest of what is left."""
    parts = [
        ("x backwards", "x[::-1]"), ("x sorted", "sorted(x)"), ("x sorted, largest first", "sorted(x)[::-1]"),
        ("the even ones of x", "[v for v in x if v%2==0]"), ("the odd ones of x", "[v for v in x if v%2==1]"),
    ]  # fmt: skip
    parts += [(f"first {k} of x", f"x[:{k}]") for k in range(2, 6)]
    parts += [(f"last {k} of x", f"x[-{k}:]") for k in range(2, 6)]
    parts += [(f"x without its first {k}", f"x[{k}:]") for k in range(2, 5)]
    parts += [(f"{k} smallest of x", f"sorted(x)[:{k}]") for k in range(2, 5)]
    for k in range(1, 10):
        parts += [
            (f"those of x {word} {k}", f"[v for v in x if v{op}{k}]") for word, op in (("above", ">"), ("below", "<"))
        ]
        parts += [(f"each of x {word} {k}", f"[v{op}{k} for v in x]") for op, word in _WORDS.items()]
        if k > 1:
            parts.append((f"each of x times {k}", f"[{k}*v for v in x]"))
    for words, code in parts:
        yield Item("x", words, code)
        if words != "x backwards" and not words.startswith("x sorted"):
            yield Item("x", f"sum of {words}", f"sum({code})")
            yield Item("x", f"{words}, backwards", f"{code}[::-1]")
        if words.startswith(("those", "the ")):
            yield Item("x", f"how many are {words}", f"len({code})")
