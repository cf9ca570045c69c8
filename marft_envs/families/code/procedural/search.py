"""Generators that need a search or a table: coins, moves on a line, paths and regions of a grid, longest parts."""

from __future__ import annotations

from functools import cache
from itertools import combinations

from marft_envs.families.code.procedural.base import Built, Dice, variant


@variant("coins", (3, 4))
def coins(dice: Dice, level: int) -> Built:
    """Fewest coins, or the number of ways, for an amount."""
    values = tuple(sorted(dice.sample(range(2, 15), 3 if level == 3 else dice.integer(3, 4))))
    kind, cap, m = dice.below(2), dice.integer(2, 4), dice.choice((97, 1000, 1009))

    def reference(n: int) -> int:
        @cache
        def counts(rest: int, at: int) -> tuple[int, int]:
            """Fewest coins (or a great number) and ways for what is left with the values from ``at`` on."""
            if at == len(values):
                return (0, 1) if rest == 0 else (10**9, 0)
            most = rest // values[at] if level == 3 else min(cap, rest // values[at])
            choices = [(i, counts(rest - i * values[at], at + 1)) for i in range(most + 1)]
            return min(i + few for i, (few, _) in choices), sum(ways for _, (_, ways) in choices)

        fewest, ways = counts(n, 0)
        return ways % m if kind else (fewest if fewest < 10**9 else -1)

    a, b = values[0], values[-1]
    top = sum(values) * cap
    numbers = (17, 24, 0, 1, a, b, 2 * a, a + b, a * (cap + 1), b * cap, b * (cap + 1), top, top + 1, 41, 58)
    names = ", ".join(map(str, values))
    parts = dict(values=values, without_first=values[1:], without_last=values[:-1])
    return dict(parts, kind="ways" if kind else "fewest", names=names, cap=cap, m=m), reference, numbers


@variant("number_line", (4,))
def number_line(dice: Dice, level: int) -> Built:
    """Fewest moves from one number to another."""
    up, down, factor = dice.integer(2, 9), dice.integer(1, 7), dice.integer(2, 3)
    high, bad = dice.integer(40, 90), dice.integer(5, 11)

    def reference(a: int, b: int) -> int:
        far, known = {a: 0}, 0
        while len(far) > known:
            known, moves = len(far), max(far.values())
            for v in [v for v, before in far.items() if before == moves]:
                for w in (v + up, v - down, v * factor):
                    if 0 <= w <= high and (w == 0 or w % bad):
                        far.setdefault(w, moves + 1)
        return far.get(b, -1)

    inputs = [(3, 17), (1, 26), (4, 4), (0, up), (high, 0), (2, bad), (down, 0), (1, factor), (7, 8), (0, 1), (5, high),
              (13, 3), (1, high - 1), (2, 31), (high - 1, high)]  # fmt: skip
    values = dict(up=up, up_more=up + 1, down=down, down_more=down + 1, factor=factor, high=high, bad=bad)
    return values, reference, inputs


def _grids(dice: Dice, low: int, high: int) -> list[list[list[int]]]:
    """Two typical grids, a single square, one row, one column, then larger ones and even ones."""

    def some(rows: int, columns: int) -> list[list[int]]:
        return [[dice.integer(low, high) for _ in range(columns)] for _ in range(rows)]

    return [some(3, 3), some(3, 4), [[high]], [[low]], some(1, 5), some(5, 1), some(4, 4), some(5, 4), some(4, 6),
            [[high] * 3] * 3, [[low] * 3] * 2, some(2, 2)]  # fmt: skip


def _moves(dice: Dice, level: int) -> tuple[list[tuple[int, int]], str]:
    """Steps through a grid, down and to the right, and their words; level 4 has a third one."""
    if level == 3:
        return [(1, 0), (0, 1)], "one down or one to the right"
    far = dice.integer(2, 3)
    words, step = dice.choice(
        [("diagonally down right", (1, 1)), (f"{far} to the right", (0, far)), (f"{far} down", (far, 0))]
    )
    return [(1, 0), (0, 1), step], f"one down, one to the right or {words}"


@variant("grid_ways", (3, 4))
def grid_ways(dice: Dice, level: int) -> Built:
    """Number of ways through a grid with closed squares."""
    t, m = dice.integer(2, 8), dice.choice((89, 97, 100, 101, 997, 1000, 1009))
    moves, how = _moves(dice, level)
    closed, shut, is_shut = dice.choice([
        (f"of {t} or more", f"v >= {t}", lambda v: v >= t),
        (f"of {t} or {t - 2}", f"v in ({t}, {t - 2})", lambda v: abs(v - t + 1) == 1),
        (f"from {t - 1} to {t + 1}", f"{t - 1} <= v <= {t + 1}", lambda v: abs(v - t) < 2),
    ])  # fmt: skip

    def reference(g: list[list[int]]) -> int:
        @cache
        def ways(r: int, c: int) -> int:
            if r >= len(g) or c >= len(g[0]) or is_shut(g[r][c]):
                return 0
            if (r, c) == (len(g) - 1, len(g[0]) - 1):
                return 1
            return sum(ways(r + a, c + b) for a, b in moves)

        return ways(0, 0) % m

    free = next(v for v in (1, 0, 2, 3, 4, 5) if not is_shut(v))
    wide = [[free, free, free, t, free, free], [free, t, free, free, free, t], [free] * 6]
    corner = [[free, free, free], [free, t, free], [free, free, free]]
    inputs = [corner, wide, [[free] * 4] * 4, [[t] * 3] * 3, [[free] * 7] * 6, *_grids(dice, 0, t + 2)]
    return dict(moves=moves, how=how, closed=closed, shut=shut, m=m), reference, inputs


@variant("grid_cost", (3, 4))
def grid_cost(dice: Dice, level: int) -> Built:
    """The cheapest way through a grid."""
    price, tax, q = dice.integer(1, 9), dice.integer(1, 9), dice.integer(2, 5)
    moves, how = _moves(dice, level)

    def reference(g: list[list[int]]) -> int:
        @cache
        def least(r: int, c: int) -> float:
            if r >= len(g) or c >= len(g[0]):
                return float("inf")
            cost = g[r][c] + (0 if g[r][c] % q else tax)
            if (r, c) == (len(g) - 1, len(g[0]) - 1):
                return cost
            return cost + min(price + least(r + a, c + b) for a, b in moves)

        return int(least(0, 0))

    inputs = [*_grids(dice, 0, 12), [[0] * 5] * 4, [[1, 9, 9], [1, 9, 9], [1, 1, 1]], [[1] * 6] * 3]
    return dict(moves=moves, how=how, price=price, more=price + 1, tax=tax, q=q), reference, inputs


@variant("regions", (4,))
def regions(dice: Dice, level: int) -> Built:
    """Regions of neighbouring squares of a grid."""
    t, eight = dice.integer(2, 7), dice.below(2) == 1
    kind, least = ("number", "largest", "large", "squares")[dice.below(4)], dice.integer(2, 4)
    odd = dice.below(2) == 1
    which, test, edge = (
        (f"with a number of {t} or more", f"g[r][c] >= {t}", f"g[r][c] > {t}")
        if odd
        else (f"with a number below {t}", f"g[r][c] < {t}", f"g[r][c] <= {t}")
    )
    near, other = "abs(p - r) + abs(q - c) == 1", "abs(p - r) <= 1 and abs(q - c) <= 1"
    sides, near, other = ("sides or corners", other, near) if eight else ("sides", near, other)

    def reference(g: list[list[int]]) -> int:
        inside = [(r, c) for r, row in enumerate(g) for c, v in enumerate(row) if (v >= t) == odd]
        label = {place: place for place in inside}
        steps = [(1, 0), (0, 1), *([(1, 1), (1, -1)] if eight else [])]
        touching = [((r, c), (r + a, c + b)) for r, c in inside for a, b in steps if (r + a, c + b) in label]
        for _ in inside:  # the smallest place of a region reaches all others in so many rounds
            before = dict(label)
            for one, two in touching:
                label[one] = label[two] = min(label[one], label[two])
            if label == before:
                break
        sizes = [list(label.values()).count(name) for name in set(label.values())]
        found = {"number": len(sizes), "largest": max(sizes, default=0), "large": sum(n >= least for n in sizes)}
        return found.get(kind, sum(n**2 for n in sizes))

    yes, no = (t, t - 1) if odd else (t - 1, t)
    shape = [[yes if mark == "#" else no for mark in row] for row in ("##.#", "#..#", "..#.", "##..")]
    line = [[yes, yes, no, yes], [no, no, no, yes], [yes, yes, yes, no]]
    diagonal = [[yes if r == c else no for c in range(4)] for r in range(4)]
    inputs = [shape, line, [[yes] * 4] * 3, [[yes, no], [no, yes]], diagonal, [[no] * 4], *_grids(dice, 0, 9)]
    values = dict(kind=kind, which=which, test=test, edge=edge, sides=sides, near=near, other=other, least=least)
    return values, reference, inputs


@variant("longest", (3, 4))
def longest(dice: Dice, level: int) -> Built:
    """The longest run or subsequence with a condition on neighbours."""
    d, m = dice.integer(1, 9), dice.integer(3, 9)
    r = dice.below(m)
    choices = [
        (f"greater by at least {d}", f"v - u >= {d}", f"v - u > {d}", lambda u, v: v >= u + d),
        (f"different by at most {d}", f"abs(v - u) <= {d}", f"abs(v - u) < {d}", lambda u, v: -d <= v - u <= d),
        (f"smaller by {d} or more", f"u - v >= {d}", f"u - v > {d}", lambda u, v: v <= u - d),
        (f"such that the sum of the two leaves remainder {r} when divided by {m}", f"(u + v) % {m} == {r}", f"(u + " \
               f"v) % {m} != {r}",
         lambda u, v: (u + v) % m == r),
        (f"different by at least {d}", f"abs(v - u) >= {d}", f"abs(v - u) > {d}", lambda u, v: abs(u - v) > d - 1),
    ]  # fmt: skip
    words, code, near, holds = dice.choice(choices)
    one = dice.below(2) == 1

    def reference(xs: list[int]) -> int:
        @cache
        def ending(i: int) -> int:
            before = range(i) if level == 4 else ([i - 1] if i else [])
            weight = 1 if one else xs[i]
            return weight + max([0, *(ending(j) for j in before if holds(xs[j], xs[i]))])

        return max(map(ending, range(len(xs))), default=0)

    def some(n: int) -> list[int]:
        return [dice.integer(1, 30) for _ in range(n)]

    ladder = [5 + d * i for i in range(5)]
    lists = [some(7), some(8), [], [4], ladder, ladder[::-1], [r, m, r, m, r, m], [10] * 4, some(12), some(14),
             [1, 1 + d, 2, 2 + d, 3, 3 + d], [9, 9 + d, 9, 9 + d, 30, 1, 30], [20, 20 - d + 1, 20, 20 + d - 1, 20],
             [-4, -9, -1]]  # fmt: skip
    return dict(kind="number" if one else "sum", words=words, code=code, near=near), reference, lists


@variant("knapsack", (4,))
def knapsack(dice: Dice, level: int) -> Built:
    """The best choice of things under a limit."""
    most, bonus, kind = dice.integer(2, 4), dice.integer(1, 9), dice.below(2)
    base = dice.integer(0, 3)

    def reference(xs: list[list[int]], n: int) -> int:
        best = 0
        for k in range((most if kind == 0 else len(xs)) + 1):
            extra = 0 if kind == 0 else bonus * max(0, k - most + 1)
            for chosen in combinations(xs, k):
                if sum(a + base for a, _ in chosen) + extra <= n:
                    best = max(best, sum(b for _, b in chosen) + (bonus if k == most else 0))
        return best

    def some(n: int) -> list[list[int]]:
        return [[dice.integer(1, 9), dice.integer(1, 20)] for _ in range(n)]

    light = [[1, 3], [1, 4], [1, 5], [1, 6], [1, 7], [1, 2]]
    inputs = [(some(4), 18), (some(5), 22), ([], 9), ([[4, 7]], 4 + base), ([[4, 7]], 3 + base), (light, 60),
              (light, most * (1 + base)), (some(6), 30), (some(7), 25),
              ([[3, 5], [3, 5], [3, 5], [3, 5], [3, 5]], 3 * (3 + base)), (some(6), 0), (light, 3 + 3 * base),
              (light, most * (1 + base) + bonus), (some(7), 60)]  # fmt: skip
    sizes = dict(most=most, many=most + 9, bonus=bonus, base=base, more=base + 1)
    return dict(sizes, kind="heavy" if kind else "few"), reference, inputs
