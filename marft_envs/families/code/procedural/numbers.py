"""Generators over single numbers: digits, divisors, processes, recurrences, notations."""

from __future__ import annotations

from marft_envs.families.code.procedural.base import Built, Dice, variant
from marft_envs.families.code.procedural.rules import mapping, rule


def _digits(n: int, base: int = 10) -> list[int]:
    """Digits of ``n >= 0``, last first."""
    out = [n % base]
    while n >= base:
        n //= base
        out.append(n % base)
    return out


_NUMBERS = [4075, 918, 0, 9, 10, 99, 100, 1234567890, 5555, 8062, 70007, 31, 24680, 13579]


@variant("digits", (1, 2, 3))
def digits(dice: Dice, level: int) -> Built:
    """A sum over the decimal digits; higher levels choose digits and weigh them."""
    one = mapping(dice)
    values = dict(words=one.words.format("d"), code=one.code, near=one.near)
    if level == 1:
        return values, lambda n: sum(map(one.apply, _digits(n))), _NUMBERS[:12]
    d, k = dice.integer(1, 8), dice.integer(11, 40)
    if level == 2:
        values["code"] = f"{one.code} if v >= {d} else -{k}"
        inputs = [*_NUMBERS, d, d - 1, 11 * d]
        return dict(values, d=d, k=k), lambda n: sum(one.apply(v) if v >= d else -k for v in _digits(n)), inputs
    b = dice.integer(3, 9)

    def reference(n: int) -> int:
        return sum(p * one.apply(v) for p, v in enumerate(_digits(n, b), start=1))

    return dict(values, b=b, next=b + 1), reference, [*_NUMBERS[:12], b, b - 1, b * b]


@variant("divisors", (2, 3))
def divisors(dice: Dice, level: int) -> Built:
    """Counts or adds up the divisors that meet a condition."""
    one = rule(dice, least=3)
    count, k = dice.below(2) == 0, dice.integer(1, 6)
    skip, but = "", ""
    if level == 3 and dice.below(2):
        skip, but = " and n // v > 1", "; n itself does not count"
    elif level == 3:
        skip, but = " and v > 1", "; 1 does not count"

    def reference(n: int) -> int:
        kept = [v for v in range(1, n + 1) if n % v == 0 and one.holds(v)]
        if skip:
            kept = [v for v in kept if v != (n if "//" in skip else 1)]
        return len(kept) if count else sum(kept) + (k * len(kept) if level == 3 else 0)

    positive = sorted({abs(v) for v in one.edges if v})
    numbers = [36, 60, 1, 2, 97, *positive, *(6 * v for v in positive), 360, 720, 210, 840]
    values = dict(words=one.words, code=one.code, near=one.near, k=k, skip=skip, but=but)
    return dict(values, kind="count" if count else ""), reference, numbers


@variant("steps", (2, 3, 4))
def steps(dice: Dice, level: int) -> Built:
    """How long a process on a number takes."""
    k, a, b = dice.integer(2, 4), dice.integer(2, 5), dice.integer(1, 9)
    limit = dice.integer(20, 60)
    far, high, low = 50 * limit, 20 * limit, b + 1

    def reference(n: int) -> int:
        seen = [n]
        while len(seen) <= limit and not (seen[-1] > far if level == 2 else seen[-1] < low):
            v = seen[-1] // k if seen[-1] % k == 0 else a * seen[-1] + b
            seen.append(v % limit if level >= 3 and v > high else v)
        return max(seen) if level == 4 else len(seen) - 1

    numbers = (37, 52, 1, 2, k, k * k, b, b + 1, b + 2, limit, far, far + 1, 27, 96)
    return dict(k=k, a=a, b=b, limit=limit, far=far, high=high, low=low, more=a + 1), reference, numbers


@variant("recurrence", (1, 2, 3))
def recurrence(dice: Dice, level: int) -> Built:
    """A term of a linear recurrence."""
    p, q, c = dice.integer(1, 4), dice.integer(1, 4), dice.integer(1, 7)
    first, second, m = dice.integer(0, 6), dice.integer(1, 9), dice.choice((97, 101, 1000, 1009, 10007))

    def simple(n: int) -> int:
        values = [second]
        while len(values) <= n:
            values.append((p + 1) * values[-1] + c)
        return values[n] % m

    if level == 1:
        return dict(second=second, times=p + 1, c=c, next=c + 1, m=m), simple, (3, 5, 0, 1, 2, 8, 13, 21, 34)

    def reference(n: int) -> int:
        values = [first, second]
        while len(values) <= n:
            values.append(p * values[-1] + q * values[-2] + (len(values) if level == 3 else c))
        return values[n] % m

    values = dict(first=first, second=second, p=p, q=q, c=c, m=m, more=q + 1)
    return values, reference, (4, 6, 0, 1, 2, 3, 5, 9, 15, 30, 50)


_ALPHABETS = ("0123456789abcdef", "abcdefghijklmnop", "zyxwvutsrqponmlk", "ABCDEFGHIJKLMNOP", "qwertyuiopasdfgh")


@variant("notation", (2, 3))
def notation(dice: Dice, level: int) -> Built:
    """A number in another base, with letters of its own."""
    b, first = dice.integer(2, 12), dice.below(3)
    alphabet = dice.choice(_ALPHABETS)[first:][:b]
    width = dice.integer(2, 8)
    last = dice.below(2) == 1

    def reference(n: int) -> str:
        text = "".join(alphabet[d] for d in reversed(_digits(n, b)))
        if level == 3:
            text = alphabet[0] * (width - len(text)) + text
        return text[::-1] if level == 3 and last else text

    numbers = (37, 250, 0, 1, b - 1, b, b * b - 1, b * b, 10**6, 4095, 777, b**width)
    way = dict(back=", and written backwards" * last, reverse="[::-1]" * last)
    return dict(b=b, alphabet=alphabet, last=b - 1, zero=alphabet[0], width=width, **way), reference, numbers
