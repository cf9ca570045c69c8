"""Level 0: families over strings and lists. Each lists all its items."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from marft_envs.families.code.procedural.base import Item, Items


def text() -> Items:
    """Reversing, cutting, repeating, counting letters."""
    parts: list[tuple[str, str, Callable[..., str]]] = [
        ("s", "s", lambda s: s), ("s backwards", "s[::-1]", lambda s: s[::-1]),
        ("s in capitals", "s.upper()", lambda s: s.upper()),
    ]  # fmt: skip
    parts += [(f"first {k} letters of s", f"s[:{k}]", lambda s, k=k: s[:k]) for k in range(2, 6)]
    parts += [(f"last {k} letters of s", f"s[-{k}:]", lambda s, k=k: s[-k:]) for k in range(2, 6)]
    parts += [(f"s without its first {k} letters", f"s[{k}:]", lambda s, k=k: s[k:]) for k in range(2, 5)]
    parts += [(f"s without its last {k} letters", f"s[:-{k}]", lambda s, k=k: s[:-k]) for k in range(2, 5)]
    for words, code, part in parts:
        if words != "s":
            yield Item("s", words, code, part)
        if "[" in code and words != "s backwards":
            yield Item("s", f"{words}, backwards", f"{code}[::-1]", lambda s, part=part: part(s)[::-1])
            yield Item("s", f"{words}, in capitals", f"{code}.upper()", lambda s, part=part: part(s).upper())
        for k in (2, 3, 4):
            yield Item("s", f"{words}, {k} times", f"{code}*{k}", lambda s, part=part, k=k: part(s) * k)
        for c in "axyz":
            yield Item("s", f"{words}, then {c}", f'{code}+"{c}"', lambda s, part=part, c=c: part(s) + c)
    for c in "abcdelnopst":
        yield Item("s", f"how many {c} in s", f's.count("{c}")', lambda s, c=c: s.count(c))
        for d in "xyz":
            yield Item("s", f"s with {d} for each {c}", f's.replace("{c}","{d}")', lambda s, c=c, d=d: s.replace(c, d))
    for k in range(1, 10):
        yield Item("s", f"length of s plus {k}", f"len(s)+{k}", lambda s, k=k: len(s) + k)
        yield Item("s", f"length of s times {k + 1}", f"len(s)*{k + 1}", lambda s, k=k: len(s) * (k + 1))
    yield Item("s, t", "s then t", "s+t", lambda s, t: s + t)
    yield Item("s, t", "t then s", "t+s", lambda s, t: t + s)
    yield Item("s, t", "s then t backwards", "s+t[::-1]", lambda s, t: s + t[::-1])
    yield Item("s, t", "s backwards then t", "s[::-1]+t", lambda s, t: s[::-1] + t)


_SCALARS: list[tuple[str, str, Callable[..., int]]] = [
    ("sum of x", "sum(x)", sum), ("length of x", "len(x)", len), ("largest of x", "max(x)", max),
    ("smallest of x", "min(x)", min), ("first of x", "x[0]", lambda x: x[0]), ("last of x", "x[-1]", lambda x: x[-1]),
    ("second of x", "x[1]", lambda x: x[1]), ("third of x", "x[2]", lambda x: x[2]),
]  # fmt: skip


def scalars() -> Items:
    """A number from a list, plus, minus, times something."""
    for words, code, one in _SCALARS:
        yield Item("x", words, code, one)
        for k in range(1, 10):
            yield Item("x", f"{words} plus {k}", f"{code}+{k}", lambda x, one=one, k=k: one(x) + k)
            yield Item("x", f"{words} minus {k}", f"{code}-{k}", lambda x, one=one, k=k: one(x) - k)
            if k > 1:
                yield Item("x", f"{k} times the {words}", f"{k}*{code}", lambda x, one=one, k=k: k * one(x))
    for (left, x, one), (right, y, two) in product(_SCALARS, _SCALARS):
        if left != right:
            yield Item("x", f"{left} minus {right}", f"{x}-{y}", lambda x, one=one, two=two: one(x) - two(x))
            if x < y:
                yield Item("x", f"{left} plus {right}", f"{x}+{y}", lambda x, one=one, two=two: one(x) + two(x))


def lists() -> Items:
    """A list from a list: cut, sorted, mapped, filtered; and the sum, number or largest of what is left."""
    slices: list[tuple[str, str, Callable[..., list[int]]]] = [
        ("x backwards", "x[::-1]", lambda x: x[::-1]), ("x sorted", "sorted(x)", sorted),
        ("x sorted, largest first", "sorted(x)[::-1]", lambda x: sorted(x)[::-1]),
        ("the even ones of x", "[v for v in x if v%2==0]", lambda x: [v for v in x if v % 2 == 0]),
        ("the odd ones of x", "[v for v in x if v%2==1]", lambda x: [v for v in x if v % 2 == 1]),
    ]  # fmt: skip
    slices += [(f"first {k} of x", f"x[:{k}]", lambda x, k=k: x[:k]) for k in range(2, 6)]
    slices += [(f"last {k} of x", f"x[-{k}:]", lambda x, k=k: x[-k:]) for k in range(2, 6)]
    slices += [(f"x without its first {k}", f"x[{k}:]", lambda x, k=k: x[k:]) for k in range(2, 5)]
    slices += [(f"{k} smallest of x", f"sorted(x)[:{k}]", lambda x, k=k: sorted(x)[:k]) for k in range(2, 5)]
    for k in range(1, 10):
        slices += [
            (f"those of x above {k}", f"[v for v in x if v>{k}]", lambda x, k=k: [v for v in x if v > k]),
            (f"those of x below {k}", f"[v for v in x if v<{k}]", lambda x, k=k: [v for v in x if v < k]),
            (f"each of x plus {k}", f"[v+{k} for v in x]", lambda x, k=k: [v + k for v in x]),
            (f"each of x minus {k}", f"[v-{k} for v in x]", lambda x, k=k: [v - k for v in x]),
        ]
        if k > 1:
            slices += [(f"each of x times {k}", f"[{k}*v for v in x]", lambda x, k=k: [k * v for v in x])]
    for words, code, part in slices:
        yield Item("x", words, code, part)
        if words != "x backwards" and not words.startswith("x sorted"):
            yield Item("x", f"sum of {words}", f"sum({code})", lambda x, part=part: sum(part(x)))
            yield Item("x", f"{words}, backwards", f"{code}[::-1]", lambda x, part=part: part(x)[::-1])
        if words.startswith(("those", "the ")):
            yield Item("x", f"how many are {words}", f"len({code})", lambda x, part=part: len(part(x)))
