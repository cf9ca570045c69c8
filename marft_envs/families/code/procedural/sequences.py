"""Generators over lists of whole numbers: counting, adding, choosing, sorting, windows, pairs."""

from __future__ import annotations

from marft_envs.families.code.procedural.base import Built, Dice, variant
from marft_envs.families.code.procedural.rules import int_lists, mapping, rule, two_rules


@variant("count_if", (1, 2))
def count_if(dice: Dice, level: int) -> Built:
    """How many numbers meet a condition."""
    one = rule(dice) if level == 1 else two_rules(dice)
    values = dict(words=one.words, code=one.code, near=one.near)
    return values, lambda xs: len(list(filter(one.holds, xs))), int_lists(dice, one.edges)


@variant("sum_map", (1, 2, 3))
def sum_map(dice: Dice, level: int) -> Built:
    """The sum of a mapping over the numbers that meet a condition."""
    f, one = mapping(dice), rule(dice)
    values = dict(what=f.words.format("v"), f=f.code, f_near=f.near, words=one.words, code=one.code)
    if level == 1:
        return values, lambda xs: sum(map(f.apply, xs)), int_lists(dice)
    if level == 2:
        return values, lambda xs: sum(f.apply(v) for v in xs if one.holds(v)), int_lists(dice, one.edges)
    g = mapping(dice)
    while g.words == f.words:
        g = mapping(dice)

    def reference(xs: list[int]) -> int:
        added, taken = ([v for v in part if not one.holds(v)] for part in (xs[::2], xs[1::2]))
        return sum(map(f.apply, added)) - sum(map(g.apply, taken))

    return dict(values, other=g.words.format("v"), g=g.code), reference, int_lists(dice, one.edges)


@variant("filter_map", (1, 2, 3))
def filter_map(dice: Dice, level: int) -> Built:
    """A list of mapped numbers, in order, some left out."""
    f, one = mapping(dice), rule(dice)
    values = dict(what=f.words.format("v"), f=f.code, words=one.words, code=one.code, near=one.near)
    if level == 1:
        return values, lambda xs: list(filter(one.holds, xs)), int_lists(dice, one.edges)
    if level == 2:
        return values, lambda xs: [f.apply(v) if one.holds(v) else v for v in xs], int_lists(dice, one.edges)
    kept = sorted((v for v in range(-9, 31) if not one.holds(v)), key=f.apply)
    twice = [kept[-1], kept[0], kept[-1], kept[0]]  # falling results, each twice

    def reference(xs: list[int]) -> list[int]:
        return list(dict.fromkeys(f.apply(v) for v in xs if not one.holds(v)))

    return values, reference, [*int_lists(dice, one.edges), twice]


@variant("extreme", (1, 2, 3))
def extreme(dice: Dice, level: int) -> Built:
    """The largest or smallest number by some measure, with a value for "none"."""
    one, f = rule(dice), mapping(dice)
    word, op, pick = ("largest", ">", max) if dice.below(2) == 0 else ("smallest", "<", min)
    none = dice.choice((-1, 0, -99, 100))
    values = dict(words=one.words, code=one.code, what=f.words.format("v"), f=f.code)
    values |= dict(word=word, op=op, none=str(none), more=str(none + 1))
    if level == 1:
        return values, lambda xs: pick(filter(one.holds, xs), default=none), int_lists(dice, one.edges)

    def reference(xs: list[int]) -> int:
        keyed = [(f.apply(v), i) for i, v in enumerate(xs) if level == 2 or one.holds(v)]
        if not keyed:
            return none
        top = pick(value for value, _ in keyed)
        return max(i for value, i in keyed if value == top)

    return values, reference, [*int_lists(dice, one.edges), [5, 5, 5], [3, 9, 27, 27, 9, 3]]


@variant("sort_by", (2, 3))
def sort_by(dice: Dice, level: int) -> Built:
    """Sorting by a measure, with a rule for ties."""
    f, one = mapping(dice), rule(dice)
    down, ties_down = dice.below(2) == 1, dice.below(2) == 1

    def reference(xs: list[int]) -> list[int]:
        groups = [[v for v in xs if not one.holds(v)], [v for v in xs if one.holds(v)]] if level == 3 else [list(xs)]
        for group in groups:
            group.sort(reverse=ties_down)
            group.sort(key=f.apply, reverse=down)
        return [v for group in groups for v in group]

    first, second = ("largest" if falls else "smallest" for falls in (down, ties_down))
    signs = dict(sign="-" * down, flipped="-" * (not down), tie="-" * ties_down)
    values = dict(words=one.words, code=one.code, what=f.words.format("v"), f=f.code, first=first, second=second)
    lists = [*int_lists(dice, one.edges if level == 3 else ()), [8, 20, 8, 14, 2, 26, 8]]
    return values | signs, reference, lists


@variant("windows", (2, 3))
def windows(dice: Dice, level: int) -> Built:
    """Sums over neighbours."""
    k, t, most = dice.integer(2, 5), dice.integer(5, 60), dice.below(2)
    one = rule(dice)
    if level == 2:
        word, pick, other = (("largest", max, "min"), ("smallest", min, "max"))[most]
        lists = [*int_lists(dice), [1] * k, [2] * (k - 1), [-5] * k + [9] * k, [9] * k + [-9] * k]
        values = dict(word=word, k=k, t=t, last=k - 1, pick=pick.__name__, other=other, more=t + 1)
        return values, lambda xs: pick((sum(xs[i : i + k]) for i in range(len(xs) - k + 1)), default=t), lists
    word, op, flipped = (("greater", ">", "<"), ("less", "<", ">"))[most]

    def reference(xs: list[int]) -> int:
        spans = [xs[i : i + k] for i in range(len(xs) - k + 1) if one.holds(xs[i])]
        return sum(1 for w in spans if (sum(w) > t if op == ">" else sum(w) < t))

    good = next(v for v in (*one.edges, *range(30)) if one.holds(v))
    exact = [good, *([0] * (k - 2)), t - good]
    lists = [*int_lists(dice, one.edges), exact, [good] * (k + 3), [good, *([60] * k)], [good, *([-60] * k)]]
    values = dict(word=word, k=k, t=t, last=k - 1, words=one.words, code=one.code, op=op, flipped=flipped)
    return values, reference, lists


@variant("pairs", (2, 3))
def pairs(dice: Dice, level: int) -> Built:
    """Counts pairs of positions."""
    m = dice.integer(2, 9)
    r, d = dice.below(m), dice.integer(1, 9)
    tests = [
        (f"the sum of the two leaves the remainder {r} when divided by {m}", f"(xs[i] + xs[j]) % {m} == {r}",
         lambda u, v: (u + v) % m == r),
        (f"the two differ by exactly {d}", f"abs(xs[i] - xs[j]) == {d}", lambda u, v: u - v in (d, -d)),
        (f"the second is at least {d} greater than the first", f"xs[j] - xs[i] >= {d}", lambda u, v: v >= u + d),
        (f"the second is {m} times the first", f"xs[j] == {m} * xs[i]", lambda u, v: v == m * u),
        (f"their product is less than {10 * d + r}", f"xs[i] * xs[j] < {10 * d + r}", lambda u, v: u * v < 10 * d + r),
    ]  # fmt: skip
    words, code, holds = dice.choice(tests)
    far = dice.integer(2, 4)

    def reference(xs: list[int]) -> int:
        reach = far if level == 3 else len(xs)
        return sum(holds(u, v) for i, u in enumerate(xs) for v in xs[i + 1 : i + 1 + reach])

    extra = [[0, d, 2 * d, 0, d], [1, m, m * m, 1, m], [r, 0, m, m + r, r], [0] * 7, [d, 0, 0, d, 2 * d, d, 0, 3 * d]]
    lists = [*int_lists(dice, (0, d, m, r), low=-4, high=12), *extra]
    return dict(words=words, code=code, far=far, less=far - 1), reference, lists


@variant("running", (2, 3))
def running(dice: Dice, level: int) -> Built:
    """A list of running totals that start again."""
    t, back, one = dice.integer(10, 60), dice.integer(0, 9), rule(dice)

    def reference(xs: list[int]) -> list[int]:
        out: list[int] = []
        for v in xs:
            if level == 2 or not one.holds(v):
                before = out[-1] if out and out[-1] < t else back
                out.append(before + v)
        return out

    edges = one.edges if level == 3 else ()
    good = next(v for v in (3, *range(4, 60), *range(-9, 3)) if level == 2 or not one.holds(v))
    up = [good] * 6 if level == 3 else [t - back, 4, t, 1, 2]
    values = dict(t=t, back=back, more=back + 1, words=one.words, code=one.code)
    return values, reference, [*int_lists(dice, edges, low=1), up]
