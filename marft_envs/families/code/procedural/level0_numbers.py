"""Level 0: families over numbers. Each lists all its items; ``unclear`` has wordings with several meanings."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from marft_envs.families.code.procedural.base import Item, Items

_SIGN = {1: ("plus", "+"), -1: ("minus", "-")}
_TIMES = {1: "", 2: "twice ", 3: "3 times "}


def _times(k: int, name: str) -> tuple[str, str]:
    """Words and code of k times a variable."""
    return f"{_TIMES.get(k, f'{k} times ')}{name}", name if k == 1 else f"{k}*{name}"


def linear() -> Items:
    """``c*a + d``, ``c*(a + d)``, and both with minus."""
    for sign, word in ((1, "plus"), (-1, "minus")):
        op = "+" if sign > 0 else "-"
        for c, d in product(range(1, 10), range(1, 10)):
            words, code = _times(c, "a")
            yield Item("a", f"{words} {word} {d}", f"{code}{op}{d}", lambda a, c=c, d=d, sign=sign: c * a + sign * d)
        for c, d in product(range(2, 10), range(1, 10)):
            words = f"add {d} to a, then multiply by {c}" if sign > 0 else f"take {d} from a, then multiply by {c}"
            yield Item("a", words, f"{c}*(a{op}{d})", lambda a, c=c, d=d, sign=sign: c * (a + sign * d))


def two_terms() -> Items:
    """``c*a + d*b`` and ``c*a - d*b``, ``a*b + d``."""
    for c, d, sign in product(range(1, 10), range(1, 10), (1, -1)):
        (left, x), (right, y) = _times(c, "a"), _times(d, "b")
        word, op = ("plus", "+") if sign > 0 else ("minus", "-")
        yield Item(
            "a, b", f"{left} {word} {right}", f"{x}{op}{y}", lambda a, b, c=c, d=d, sign=sign: c * a + sign * d * b
        )
    for d in range(1, 10):
        yield Item("a, b", f"a times b, plus {d}", f"a*b+{d}", lambda a, b, d=d: a * b + d)
        yield Item("a, b", f"a times b, minus {d}", f"a*b-{d}", lambda a, b, d=d: a * b - d)


def larger() -> Items:
    """``max`` and ``min`` of two terms."""
    terms: list[tuple[str, str, Callable[..., int]]] = [("{}", "{}", lambda v: v)]
    terms += [(_times(k, "{}")[0], f"{k}*{{}}", lambda v, k=k: k * v) for k in range(2, 6)]
    terms += [(f"{{}} plus {k}", f"{{}}+{k}", lambda v, k=k: v + k) for k in range(1, 8)]
    terms += [(f"{{}} minus {k}", f"{{}}-{k}", lambda v, k=k: v - k) for k in range(1, 5)]
    for (name, best), (one, x, left), (two, y, right) in product((("larger", max), ("smaller", min)), terms, terms):
        yield Item(
            "a, b", f"the {name} of {one.format('a')} and {two.format('b')}",
            f"{best.__name__}({x.format('a')},{y.format('b')})",
            lambda a, b, best=best, left=left, right=right: best(left(a), right(b)),
        )  # fmt: skip


def distance() -> Items:
    """``abs`` of a difference, scaled or shifted."""
    for k in range(1, 13):
        yield Item("a", f"distance of a and {k}", f"abs(a-{k})", lambda a, k=k: abs(a - k))
    for k, d in product(range(2, 10), range(1, 10)):
        yield Item("a", f"distance of a and {k}, plus {d}", f"abs(a-{k})+{d}", lambda a, k=k, d=d: abs(a - k) + d)
    for k in range(1, 10):
        words = f"distance of {_times(k, 'a')[0]} and b"
        yield Item("a, b", words, f"abs({_times(k, 'a')[1]}-b)", lambda a, b, k=k: abs(k * a - b))
        yield Item("a, b", f"distance of a and b, plus {k}", f"abs(a-b)+{k}", lambda a, b, k=k: abs(a - b) + k)
        yield Item("a, b", f"distance of a and b, minus {k}", f"abs(a-b)-{k}", lambda a, b, k=k: abs(a - b) - k)
    for k in range(2, 10):
        words, code = _times(k, "{}")
        yield Item("a, b", f"{words.format('the distance of a and b')}", code.format("abs(a-b)"),
                   lambda a, b, k=k: k * abs(a - b))  # fmt: skip


_COMPARE: list[tuple[str, str, Callable[[Any, Any], bool]]] = [
    ("more than", ">", lambda u, v: u > v),
    ("less than", "<", lambda u, v: u < v),
    ("at least", ">=", lambda u, v: u >= v),
    ("at most", "<=", lambda u, v: u <= v),
]


def compare() -> Items:
    """Is one thing more than another? True or False."""
    for (word, op, test), k in product(_COMPARE, range(1, 10)):
        yield Item("a", f"is a {word} {k}", f"a{op}{k}", lambda a, test=test, k=k: test(a, k))
        yield Item("a, b", f"is a {word} b plus {k}", f"a{op}b+{k}", lambda a, b, test=test, k=k: test(a, b + k))
        if k > 1:
            words, code = _times(k, "b")
            yield Item("a, b", f"is a {word} {words}", f"a{op}{code}", lambda a, b, test=test, k=k: test(a, k * b))
        yield Item("x", f"is the sum of x {word} {k}", f"sum(x){op}{k}", lambda x, test=test, k=k: test(sum(x), k))
        if k < 8:
            yield Item("s", f"has s {word} {k} letters", f"len(s){op}{k}", lambda s, test=test, k=k: test(len(s), k))
    for k in range(2, 10):
        yield Item("a", f"is a divisible by {k}", f"a%{k}==0", lambda a, k=k: a % k == 0)
        yield Item("x", f"is {k} in x", f"{k} in x", lambda x, k=k: k in x)


def branch() -> Items:
    """``u if condition else v``."""
    tests: list[tuple[str, str, Callable[..., bool]]] = [
        (f"a is {word} {k}", f"a{op}{k}", lambda a, b, test=test, k=k: test(a, k))
        for (word, op, test), k in product(_COMPARE[:2], range(2, 10))
    ]
    tests += [("a is even", "a%2==0", lambda a, b: a % 2 == 0), ("a is odd", "a%2==1", lambda a, b: a % 2 == 1)]
    tests += [("a is more than b", "a>b", lambda a, b: a > b)]
    values: list[tuple[str, str, Callable[..., int]]] = [
        ("a", "a", lambda a, b: a),
        ("b", "b", lambda a, b: b),
        ("a plus b", "a+b", lambda a, b: a + b),
        ("a minus b", "a-b", lambda a, b: a - b),
        ("twice a", "2*a", lambda a, b: 2 * a),
    ]
    for (when, test_code, test), (one, x, left), (two, y, right) in product(tests, values, values):
        if one != two:
            yield Item(
                "a, b", f"{one} if {when}, else {two}", f"{x} if {test_code} else {y}",
                lambda a, b, test=test, left=left, right=right: left(a, b) if test(a, b) else right(a, b),
            )  # fmt: skip


def remainder() -> Items:
    """``%`` and ``//`` with small divisors."""
    for k in range(2, 11):
        yield Item("a", f"remainder of a by {k}", f"a%{k}", lambda a, k=k: a % k)
        yield Item("a", f"a divided by {k}, rounded down", f"a//{k}", lambda a, k=k: a // k)
        yield Item("a, b", f"remainder of a plus b by {k}", f"(a+b)%{k}", lambda a, b, k=k: (a + b) % k)
        yield Item("a, b", f"remainder of a times b by {k}", f"a*b%{k}", lambda a, b, k=k: a * b % k)
        for d in range(1, 10):
            yield Item("a", f"remainder of a by {k}, plus {d}", f"a%{k}+{d}", lambda a, k=k, d=d: a % k + d)
            yield Item("a", f"add {d} to a, then remainder by {k}", f"(a+{d})%{k}", lambda a, k=k, d=d: (a + d) % k)


def offset() -> Items:
    """Two variables and a constant."""
    for c, k, sign in product(range(1, 5), range(1, 10), (1, -1)):
        (left, x), (word, op) = _times(c, "a"), ("plus", "+") if sign > 0 else ("minus", "-")
        yield Item("a, b", f"{left} plus b {word} {k}", f"{x}+b{op}{k}",
                   lambda a, b, c=c, k=k, sign=sign: c * a + b + sign * k)  # fmt: skip
        yield Item("a, b", f"{left} minus b {word} {k}", f"{x}-b{op}{k}",
                   lambda a, b, c=c, k=k, sign=sign: c * a - b + sign * k)  # fmt: skip


def squares() -> Items:
    """Squares of one or two variables."""
    for k in range(1, 10):
        yield Item("a", f"square of a, plus {k}", f"a*a+{k}", lambda a, k=k: a * a + k)
        yield Item("a", f"square of a, minus {k}", f"a*a-{k}", lambda a, k=k: a * a - k)
        yield Item("a", f"a plus {k}, squared", f"(a+{k})**2", lambda a, k=k: (a + k) ** 2)
        yield Item("a", f"a minus {k}, squared", f"(a-{k})**2", lambda a, k=k: (a - k) ** 2)
        words, code = _times(k, "b")
        yield Item("a, b", f"square of a, plus {words}", f"a*a+{code}", lambda a, b, k=k: a * a + k * b)
        yield Item("a, b", f"square of a, minus {words}", f"a*a-{code}", lambda a, b, k=k: a * a - k * b)
        if k > 1:
            yield Item("a", f"{_times(k, 'the square of a')[0]}", f"{k}*a*a", lambda a, k=k: k * a * a)


def three() -> Items:
    """Three variables."""
    for (x, y, z), k, sign in product((("a", "b", "c"), ("a", "c", "b"), ("b", "c", "a")), range(1, 7), (1, -1)):
        (words, code), (word, op) = _times(k, z), ("plus", "+") if sign > 0 else ("minus", "-")
        order = ["abc".index(v) for v in (x, y, z)]
        yield Item(
            "a, b, c", f"{x} times {y} {word} {words}", f"{x}*{y}{op}{code}",
            lambda *v, o=order, k=k, sign=sign: v[o[0]] * v[o[1]] + sign * k * v[o[2]],
        )  # fmt: skip
    for at, k, (second, third) in product(range(3), range(1, 7), ((1, 1), (1, -1), (-1, 1), (-1, -1))):
        names = [_times(k if i == at else 1, "abc"[i]) for i in range(3)]
        if k == 1 and at > 0:
            continue
        factors = [k if i == at else 1 for i in range(3)]
        factors = [factors[0], second * factors[1], third * factors[2]]
        words = names[0][0] + f" {_SIGN[second][0]} {names[1][0]} {_SIGN[third][0]} {names[2][0]}"
        code = names[0][1] + f"{_SIGN[second][1]}{names[1][1]}{_SIGN[third][1]}{names[2][1]}"
        yield Item("a, b, c", words, code, lambda a, b, c, f=factors: a * f[0] + b * f[1] + c * f[2])
    for k in range(1, 10):
        yield Item("a, b, c", f"the larger of a and b, plus c plus {k}", f"max(a,b)+c+{k}",
                   lambda a, b, c, k=k: max(a, b) + c + k)  # fmt: skip
        yield Item("a, b, c", f"largest of a, b, c, minus {k}", f"max(a,b,c)-{k}", lambda *v, k=k: max(v) - k)
        yield Item("a, b, c", f"smallest of a, b, c, plus {k}", f"min(a,b,c)+{k}", lambda *v, k=k: min(v) + k)


def clamp() -> Items:
    """A number kept within bounds."""
    for k in range(2, 10):
        yield Item("a", f"a, but at least {k}", f"max(a,{k})", lambda a, k=k: max(a, k))
        yield Item("a", f"a, but at most {k}", f"min(a,{k})", lambda a, k=k: min(a, k))
        yield Item("a, b", f"a plus b, but at most {k}", f"min(a+b,{k})", lambda a, b, k=k: min(a + b, k))
        yield Item("a, b", f"a minus b, but at least {k}", f"max(a-b,{k})", lambda a, b, k=k: max(a - b, k))
        for j in range(0, k - 1):
            yield Item("a", f"a, but from {j} to {k}", f"max({j},min(a,{k}))", lambda a, j=j, k=k: max(j, min(a, k)))


def unclear() -> Items:
    """One wording, several meanings: the tests settle which."""
    for k in range(2, 10):
        meanings: list[tuple[str, str, Callable[..., int]]] = [
            (f"a plus b times {k}", f"(a+b)*{k}", lambda a, b, k=k: (a + b) * k),
            (f"a plus b times {k}", f"a+b*{k}", lambda a, b, k=k: a + b * k),
            (f"a minus b times {k}", f"(a-b)*{k}", lambda a, b, k=k: (a - b) * k),
            (f"a minus b times {k}", f"a-b*{k}", lambda a, b, k=k: a - b * k),
            (f"difference of a and b, plus {k}", f"a-b+{k}", lambda a, b, k=k: a - b + k),
            (f"difference of a and b, plus {k}", f"b-a+{k}", lambda a, b, k=k: b - a + k),
            (f"difference of a and b, plus {k}", f"abs(a-b)+{k}", lambda a, b, k=k: abs(a - b) + k),
            (f"{k} and a, subtracted", f"{k}-a", lambda a, b, k=k: k - a),
            (f"{k} and a, subtracted", f"a-{k}", lambda a, b, k=k: a - k),
            (f"a plus b mod {k}", f"a+b%{k}", lambda a, b, k=k: a + b % k),
            (f"a plus b mod {k}", f"(a+b)%{k}", lambda a, b, k=k: (a + b) % k),
            (f"a or b above {k}", f"max(a,b)>{k}", lambda a, b, k=k: max(a, b) > k),
            (f"a or b above {k}", f"min(a,b)>{k}", lambda a, b, k=k: min(a, b) > k),
        ]
        for words, code, value in meanings:
            yield Item("a, b", words, code, value)
