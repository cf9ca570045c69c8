"""Generators over single numbers: digits, divisors, processes, recurrences, notations."""

from __future__ import annotations

from marft_envs.families.code.procedural.base import Dice, Draft, cell
from marft_envs.families.code.procedural.rules import mapping, rule


def _digits(n: int, base: int = 10) -> list[int]:
    """Digits of ``n >= 0``, last first."""
    out = [n % base]
    while n >= base:
        n //= base
        out.append(n % base)
    return out


_NUMBERS = [4075, 918, 0, 9, 10, 99, 100, 1234567890, 5555, 8062, 70007, 31, 24680, 13579]


@cell("digits", (1, 2, 3))
def digits(dice: Dice, level: int) -> Draft:
    """A sum over the decimal digits; higher levels choose digits and weigh them."""
    one = mapping(dice)
    body = "total = 0\nfor c in str(n):\n    v = int(c)\n    total += {}\nreturn total"
    if level == 1:
        task = f"For each decimal digit d of n (n is not negative) compute {one.words.format('d')}; give the sum."
        return Draft(task, "n:int", "int", body.format(one.code), lambda n: sum(map(one.apply, _digits(n))),
                     _NUMBERS[:12], [(one.code, one.near), ("total = 0", "total = 1"),
                     ("str(n)", "str(n)[1:]")])  # fmt: skip
    d, k = dice.integer(1, 8), dice.integer(11, 40)
    if level == 2:
        task = (
            f"Add up {one.words.format('d')} for every decimal digit d of n (n >= 0) that is at least {d}, and "
            f"subtract {k} for every other digit."
        )
        code = f"{one.code} if v >= {d} else -{k}"
        return Draft(task, "n:int", "int", body.format(code),
                     lambda n: sum(one.apply(v) if v >= d else -k for v in _digits(n)), [*_NUMBERS, d, d - 1, 11 * d],
                     [(f"v >= {d}", f"v > {d}"), (f"else -{k}", f"else {k}"), ("str(n)", "str(n)[1:]")])  # fmt: skip
    b = dice.integer(3, 9)
    task = (
        f"Write n (n >= 0) in base {b}. The last digit has position 1, the one before it position 2, and so on. Give "
        f"the sum over all positions p of p times ({one.words.format('d')}), where d is the digit there."
    )
    code = (
        f"total = 0\np = 1\nwhile n > 0 or p == 1:\n    v = n % {b}\n    total += p * ({one.code})\n"
        f"    n //= {b}\n    p += 1\nreturn total"
    )
    return Draft(task, "n:int", "int", code,
                 lambda n: sum(p * one.apply(v) for p, v in enumerate(_digits(n, b), start=1)), [*_NUMBERS[:12], b,
                 b - 1, b * b], [("p = 1", "p = 0"), (f"n % {b}", f"n % {b + 1}"), (one.code, one.near)])  # fmt: skip


@cell("divisors", (2, 3))
def divisors(dice: Dice, level: int) -> Draft:
    """Counts or adds up the divisors that meet a condition."""
    one = rule(dice, least=3)
    count, k = dice.below(2) == 0, dice.integer(1, 6)
    term = "1" if count else ("v" if level == 2 else f"v + {k}")
    what = (
        "How many positive divisors of n (n >= 1) are"
        if count
        else "Add up the positive divisors of n (n >= 1) that are"
    )
    more = "" if count or level == 2 else f", each increased by {k}"
    skip = ""
    if level == 3:
        skip = " and n // v > 1" if dice.below(2) else " and v > 1"
        more += "; n itself does not count" if "//" in skip else "; 1 does not count"
    task = f"{what} {one.words}{more}{'?' if count else '.'}"
    body = (
        f"total = 0\nfor v in range(1, n + 1):\n    if n % v == 0 and ({one.code}){skip}:\n        total += {term}\n"
        "return total"
    )

    def reference(n: int) -> int:
        kept = [v for v in range(1, n + 1) if n % v == 0 and one.holds(v)]
        if skip:
            kept = [v for v in kept if v != (n if "//" in skip else 1)]
        return len(kept) if count else sum(kept) + (k * len(kept) if level == 3 else 0)

    positive = sorted({abs(v) for v in one.edges if v})
    numbers = [36, 60, 1, 2, 97, *positive, *(6 * v for v in positive), 360, 720, 210, 840]
    wrong = [(one.code, one.near), ("total = 0", "total = 1"), (f"total += {term}", "total += 2")]
    return Draft(task, "n:int", "int", body, reference, numbers, wrong)


@cell("steps", (2, 3, 4))
def steps(dice: Dice, level: int) -> Draft:
    """How long a process on a number takes."""
    k, a, b = dice.integer(2, 4), dice.integer(2, 5), dice.integer(1, 9)
    limit = dice.integer(20, 60)
    task = f"Start with n (n >= 1). If it is divisible by {k}, divide it by {k}, else multiply it by {a} and add {b}. "
    stop, test = (f"it is greater than {50 * limit}", f"n > {50 * limit}")
    if level >= 3:
        task += f"If the result is greater than {20 * limit}, take its remainder divided by {limit}. "
        stop, test = (f"it is less than {b + 1}", f"n < {b + 1}")
    fold = f"    if n > {20 * limit}:\n        n %= {limit}\n" if level >= 3 else ""
    what, answer = ("how many steps were made", "count") if level < 4 else ("the largest value met (n included)", "top")
    task += f"Stop as soon as {stop}, or after {limit} steps. Give {what}."
    body = (
        f"count = 0\ntop = n\nwhile not {test} and count < {limit}:\n    if n % {k} == 0:\n        n //= {k}\n"
        f"    else:\n        n = {a} * n + {b}\n{fold}    count += 1\n    top = max(top, n)\nreturn {answer}"
    )

    def reference(n: int) -> int:
        seen = [n]
        while len(seen) <= limit and not (seen[-1] > 50 * limit if level == 2 else seen[-1] < b + 1):
            v = seen[-1] // k if seen[-1] % k == 0 else a * seen[-1] + b
            seen.append(v % limit if level >= 3 and v > 20 * limit else v)
        return max(seen) if level == 4 else len(seen) - 1

    numbers = (37, 52, 1, 2, k, k * k, b, b + 1, b + 2, limit, 50 * limit, 50 * limit + 1, 27, 96)
    wrong = [(f"n % {k} == 0", f"n % {k} == 1")]
    if level < 4:
        wrong += [(test, test.replace(" > ", " >= ").replace(" < ", " <= ")), ("count = 0", "count = 1")]
    else:
        wrong += [("top = n", "top = n + 1"), (f"{a} * n", f"{a + 1} * n")]
    return Draft(task, "n:int", "int", body, reference, numbers, wrong)


@cell("recurrence", (1, 2, 3))
def recurrence(dice: Dice, level: int) -> Draft:
    """A term of a linear recurrence."""
    p, q, c = dice.integer(1, 4), dice.integer(1, 4), dice.integer(1, 7)
    first, second, m = dice.integer(0, 6), dice.integer(1, 9), dice.choice((97, 101, 1000, 1009, 10007))
    if level == 1:
        task = (
            f"A sequence starts with {second} (term 0); each next term is {p + 1} times the one before, plus {c}. "
            f"Give term n (n >= 0) as its remainder divided by {m}."
        )
        body = f"v = {second}\nfor _ in range(n):\n    v = ({p + 1} * v + {c}) % {m}\nreturn v % {m}"

        def simple(n: int) -> int:
            values = [second]
            while len(values) <= n:
                values.append((p + 1) * values[-1] + c)
            return values[n] % m

        return Draft(task, "n:int", "int", body, simple, (3, 5, 0, 1, 2, 8, 13, 21, 34), [("range(n)", "range(n - 1)"),
                     ("range(n)", "range(n + 1)"), (f"* v + {c}", f"* v + {c + 1}")])  # fmt: skip
    extra = f" plus {'the number of the new term' if level == 3 else c}"
    add = "i" if level == 3 else str(c)
    task = (
        f"Terms 0 and 1 of a sequence are {first} and {second}; each next term is {p} times the one before plus {q} "
        f"times the one before that{extra}. Give term n (n >= 0) as its remainder divided by {m}."
    )
    body = (
        f"u, v = {first}, {second}\nfor i in range(2, n + 2):\n    u, v = v, ({p} * v + {q} * u + {add}) % {m}\n"
        f"return u % {m}"
    )

    def reference(n: int) -> int:
        values = [first, second]
        while len(values) <= n:
            values.append(p * values[-1] + q * values[-2] + (len(values) if level == 3 else c))
        return values[n] % m

    return Draft(task, "n:int", "int", body, reference, (4, 6, 0, 1, 2, 3, 5, 9, 15, 30, 50), [("n + 2", "n + 1"),
                 (f"{q} * u", f"{q + 1} * u"), (f"return u % {m}", f"return v % {m}")])  # fmt: skip


_ALPHABETS = ("0123456789abcdef", "abcdefghijklmnop", "zyxwvutsrqponmlk", "ABCDEFGHIJKLMNOP", "qwertyuiopasdfgh")


@cell("notation", (2, 3))
def notation(dice: Dice, level: int) -> Draft:
    """A number in another base, with letters of its own."""
    b, first = dice.integer(2, 12), dice.below(3)
    alphabet = dice.choice(_ALPHABETS)[first:][:b]
    width = dice.integer(2, 8)
    order = ("first", "last")[dice.below(2)]
    task = (
        f"Write n (n >= 0) in base {b}, most significant digit first, with the characters {alphabet} for the digits 0 "
        f"to {b - 1}."
    )
    finish = "out"
    if level == 3:
        task = (
            task[:-1]
            + f", padded on the left with {alphabet[0]} to at least {width} characters"
            + (", and written backwards." if order == "last" else ".")
        )
        finish = f'out.rjust({width}, "{alphabet[0]}")' + ("[::-1]" if order == "last" else "")
    body = (
        f'out = ""\nwhile True:\n    out = "{alphabet}"[n % {b}] + out\n    n //= {b}\n    if n == 0:\n        '
        "break\n"
        f"return {finish}"
    )

    def reference(n: int) -> str:
        text = "".join(alphabet[d] for d in reversed(_digits(n, b)))
        if level == 3:
            text = alphabet[0] * (width - len(text)) + text
        return text[::-1] if level == 3 and order == "last" else text

    wrong = [(f"n % {b}]", f"(n + 1) % {b}]"), (f'"{alphabet}"[n % {b}] + out', f'out + "{alphabet}"[n % {b}]'),
             ("n == 0", "n <= 1"), *([("while True", "while n > 0")] if level == 2 else [])]  # fmt: skip
    numbers = (37, 250, 0, 1, b - 1, b, b * b - 1, b * b, 10**6, 4095, 777, b**width)
    return Draft(task, "n:int", "str", body, reference, numbers, wrong)
