"""Generators that need a search or a table: coins, moves on a line, paths and regions of a grid, longest parts."""

from __future__ import annotations

from functools import cache
from itertools import combinations

from marft_envs.families.code.procedural.base import Dice, Draft, cell


@cell("coins", (3, 4))
def coins(dice: Dice, level: int) -> Draft:
    """Fewest coins, or the number of ways, for an amount."""
    values = tuple(sorted(dice.sample(range(2, 15), 3 if level == 3 else dice.integer(3, 4))))
    kind, cap, m = dice.below(2), dice.integer(2, 4), dice.choice((97, 1000, 1009))
    names = ", ".join(map(str, values))
    limit = f" Each value may be used at most {cap} times." if level == 4 else ""
    goal, kept, first, more, answer = (
        (
            "Give the fewest coins that make exactly n (n >= 0), or -1 if no coins do.",
            "best", "0", "min(new.get(t, n + 1), k + i)", "best.get(n, -1)",
        ),
        (
            "In how many ways can n (n >= 0) be made exactly, if order does not matter? "
            f"Give the remainder of the number divided by {m}.",
            "ways", "1", "new.get(t, 0) + k", f"ways.get(n, 0) % {m}",
        ),
    )[kind]  # fmt: skip
    task = f"Coins have the values {names}. {goal}{limit}"
    times = f"range(min({cap}, (n - s) // c) + 1)" if level == 4 else "range((n - s) // c + 1)"
    body = (
        f"{kept} = {{0: {first}}}\nfor c in {values}:\n    new = {{}}\n    for s, k in {kept}.items():\n"
        f"        for i in {times}:\n            t = s + i * c\n            new[t] = {more}\n    {kept} = new\n"
        f"return {answer}"
    )

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
    wrong = [(f"({', '.join(map(str, values))})", f"{values[1:]}"),
             (f"({', '.join(map(str, values))})", f"{values[:-1]}"),
             ("(n, -1)", "(n, 0)") if kind == 0 else ("{0: 1}", "{0: 2}"),
             ("k + i", "k + 1") if kind == 0 else ("(n, 0)", "(n - 1, 0)")]  # fmt: skip
    return Draft(task, "n:int", "int", body, reference, numbers, wrong)


@cell("number_line", (4,))
def number_line(dice: Dice, level: int) -> Draft:
    """Fewest moves from one number to another."""
    up, down, factor = dice.integer(2, 9), dice.integer(1, 7), dice.integer(2, 3)
    high, bad = dice.integer(40, 90), dice.integer(5, 11)
    task = (
        f"From a number v one move leads to v + {up}, to v - {down} or to {factor} * v, but never below 0, above "
        f"{high}, or to a positive number divisible by {bad}. Give the fewest moves from a to b (both from 0 to "
        f"{high}), or -1 if there is no way."
    )
    body = (
        "seen, layer, moves = {a}, [a], 0\nwhile layer:\n    if b in layer:\n        return moves\n    new = []\n"
        f"    for v in layer:\n        for w in (v + {up}, v - {down}, {factor} * v):\n"
        f"            if 0 <= w <= {high} and (w == 0 or w % {bad} != 0) and w not in seen:\n"
        "                seen.add(w)\n                new.append(w)\n    layer, moves = new, moves + 1\nreturn -1"
    )

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
    wrong = [(f"v + {up}", f"v + {up + 1}"), (f"v - {down}", f"v - {down + 1}"),
             ("moves = {a}, [a], 0", "moves = {a}, [a], 1"), ("return -1", "return 0")]  # fmt: skip
    return Draft(task, "a:int b:int", "int", body, reference, inputs, wrong)


def _grids(dice: Dice, low: int, high: int) -> list[list[list[int]]]:
    """Two typical grids, one cell, one row, one column, then larger ones and even ones."""

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


_EACH = "for r in range(len(g)):\n    for c in range(len(g[0])):\n        v = g[r][c]\n"


@cell("grid_ways", (3, 4))
def grid_ways(dice: Dice, level: int) -> Draft:
    """Number of ways through a grid with closed cells."""
    t, m = dice.integer(2, 8), dice.choice((89, 97, 100, 101, 997, 1000, 1009))
    moves, how = _moves(dice, level)
    closed, shut, is_shut = dice.choice([
        (f"of {t} or more", f"v >= {t}", lambda v: v >= t),
        (f"of {t} or {t - 2}", f"v in ({t}, {t - 2})", lambda v: abs(v - t + 1) == 1),
        (f"from {t - 1} to {t + 1}", f"{t - 1} <= v <= {t + 1}", lambda v: abs(v - t) < 2),
    ])  # fmt: skip
    task = (
        f"From the top left cell of the grid g one walks to the bottom right one, each time {how}; cells with a number "
        f"{closed} are closed (the first and last too). Give the number of ways as its remainder divided by {m}."
    )
    body = (
        f"ways = [[0] * len(row) for row in g]\n{_EACH}        if {shut}:\n            continue\n"
        f"        before = [ways[r - a][c - b] for a, b in {moves} if r >= a and c >= b]\n"
        f"        ways[r][c] = 1 if r == c == 0 else sum(before)\nreturn ways[-1][-1] % {m}"
    )

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
    wrong = [("ways[r][c] = 1 if", "ways[r][c] = 2 if"), ("(1, 0), ", ""), ("continue", "pass")]
    return Draft(task, "g:grid", "int", body, reference, inputs, wrong)


@cell("grid_cost", (3, 4))
def grid_cost(dice: Dice, level: int) -> Draft:
    """The cheapest way through a grid."""
    price, tax, q = dice.integer(1, 9), dice.integer(1, 9), dice.integer(2, 5)
    moves, how = _moves(dice, level)
    task = (
        f"From the top left cell of the grid g one walks to the bottom right one, each time {how}. Every cell on the "
        f"way (the first too) costs its number, and {tax} more if that is divisible by {q}; every move costs {price}. "
        "Give the least cost."
    )
    body = (
        f"cost = [[0] * len(row) for row in g]\n{_EACH}        if v % {q} == 0:\n            v += {tax}\n"
        f"        before = [cost[r - a][c - b] + {price} for a, b in {moves} if r >= a and c >= b]\n"
        "        cost[r][c] = v + min(before, default=0)\nreturn cost[-1][-1]"
    )

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
    wrong = [(f"+ {price} for", f"+ {price + 1} for"), (f"v += {tax}", "pass"), ("v + min", "v - min"),
             ("(0, 1)", "(1, 1)")]  # fmt: skip
    return Draft(task, "g:grid", "int", body, reference, inputs, wrong)


@cell("regions", (4,))
def regions(dice: Dice, level: int) -> Draft:
    """Regions of neighbouring cells of a grid."""
    t, eight, kind, least = dice.integer(2, 7), dice.below(2) == 1, dice.below(4), dice.integer(2, 4)
    odd = dice.below(2) == 1
    test = f"g[r][c] >= {t}" if odd else f"g[r][c] < {t}"
    word = f"with a number of {t} or more" if odd else f"with a number below {t}"
    goal, code = [
        ("Give the number of regions.", "len(sizes)"),
        ("Give the number of cells of the largest region, 0 if there is none.", "max(sizes, default=0)"),
        (f"Give the number of regions of at least {least} cells.", f"sum(1 for n in sizes if n >= {least})"),
        ("Give the sum of the squares of the regions' numbers of cells.", "sum(n * n for n in sizes)"),
    ][kind]
    sides = "sides or corners" if eight else "sides"
    task = (
        f"In the grid g the cells {word} form regions: cells that touch at their {sides} belong to the same one. {goal}"
    )
    near = "abs(p - r) <= 1 and abs(q - c) <= 1" if eight else "abs(p - r) + abs(q - c) == 1"
    body = (
        f"todo = {{(r, c) for r in range(len(g)) for c in range(len(g[0])) if {test}}}\nsizes = []\nwhile todo:\n"
        "    stack, size = [todo.pop()], 0\n    while stack:\n        r, c = stack.pop()\n        size += 1\n"
        f"        for p, q in [(p, q) for p, q in todo if {near}]:\n            todo.remove((p, q))\n"
        f"            stack.append((p, q))\n    sizes.append(size)\nreturn {code}"
    )

    def reference(g: list[list[int]]) -> int:
        inside = [(r, c) for r, row in enumerate(g) for c, v in enumerate(row) if (v >= t) == odd]
        label = {place: place for place in inside}
        steps = [(1, 0), (0, 1), *([(1, 1), (1, -1)] if eight else [])]
        touching = [((r, c), (r + a, c + b)) for r, c in inside for a, b in steps if (r + a, c + b) in label]
        for _ in inside:  # the smallest place of a region reaches each of its cells in so many rounds
            before = dict(label)
            for one, two in touching:
                label[one] = label[two] = min(label[one], label[two])
            if label == before:
                break
        sizes = [list(label.values()).count(name) for name in set(label.values())]
        return (len(sizes), max(sizes, default=0), sum(n >= least for n in sizes), sum(n**2 for n in sizes))[kind]

    yes, no = (t, t - 1) if odd else (t - 1, t)
    shape = [[yes if mark == "#" else no for mark in row] for row in ("##.#", "#..#", "..#.", "##..")]
    line = [[yes, yes, no, yes], [no, no, no, yes], [yes, yes, yes, no]]
    diagonal = [[yes if r == c else no for c in range(4)] for r in range(4)]
    inputs = [shape, line, [[yes] * 4] * 3, [[yes, no], [no, yes]], diagonal, [[no] * 4], *_grids(dice, 0, 9)]
    other = "abs(p - r) + abs(q - c) == 1" if eight else "abs(p - r) <= 1 and abs(q - c) <= 1"
    wrong = [(near, other), (test, test.replace(">= ", "> ") if odd else test.replace("< ", "<= ")),
             (f"return {code}", f"return {code} + 1"),
             ("size += 1", "size = 2") if kind in (1, 3) else ("sizes = []", f"sizes = [{least}]")]  # fmt: skip
    return Draft(task, "g:grid", "int", body, reference, inputs, wrong)


@cell("longest", (3, 4))
def longest(dice: Dice, level: int) -> Draft:
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
    what = (
        "neighbouring numbers"
        if level == 3
        else "numbers picked from it, in their order and not necessarily neighbours,"
    )
    one = dice.below(2) == 1
    start, grow, pick = ("1", "1", "largest number of") if one else ("v", "v", "greatest sum of")
    back = "range(i)" if level == 4 else "range(max(i - 1, 0), i)"
    task = (
        f"In the list xs find the {pick} {what} of which each is {words} compared with the one picked before it; "
        "0 for an empty list."
    )
    body = (
        f"best = []\nfor i, v in enumerate(xs):\n    top = {start}\n    for j in {back}:\n        u = xs[j]\n"
        f"        if {code}:\n"
        f"            top = max(top, best[j] + {grow})\n    best.append(top)\nreturn max(best, default=0)"
    )

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
    wrong = [(code, near), (f"+ {grow})", f"+ {grow} + 1)"), (f"if {code}:", "if True:"),
             (f"top = {start}", f"top = {start} + 1")]  # fmt: skip
    return Draft(task, "xs:ints", "int", body, reference, lists, wrong)


@cell("knapsack", (4,))
def knapsack(dice: Dice, level: int) -> Draft:
    """The best choice of things under a limit."""
    most, bonus, kind = dice.integer(2, 4), dice.integer(1, 9), dice.below(2)
    base = dice.integer(0, 3)
    rule = (
        f"at most {most} of them"
        if kind == 0
        else f"as many as one likes, but the {most}th and every further one packed weighs {bonus} more"
    )
    task = (
        f"Each thing in the list xs has a weight and a worth. Choose things, {rule}, whose weights (each increased by "
        f"{base} for wrapping) add up to at most n; the total worth, plus {bonus} if exactly {most} things are chosen, "
        "shall be greatest. Give it; choosing nothing is worth 0."
    )
    heavy = "" if kind == 0 else f" + ({bonus} if k + 1 >= {most} else 0)"
    limit = f"k < {most} and " if kind == 0 else ""
    body = (
        f"best = {{(0, 0): 0}}\nfor a, b in xs:\n    new = dict(best)\n    for (k, w), v in best.items():\n"
        f"        t = w + a + {base}{heavy}\n        if {limit}t <= n:\n"
        f"            new[k + 1, t] = max(new.get((k + 1, t), v + b), v + b)\n    best = new\n"
        f"return max(v + ({bonus} if k == {most} else 0) for (k, w), v in best.items())"
    )

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
    wrong = [
        ("t <= n", "t < n"),
        (f"== {most} else", f"== {most + 9} else"),
        (f"a + {base}", f"a + {base + 1}"),
        ("v + b)", "v + b + 1)"),
    ]
    return Draft(task, "xs:pairs n:int", "int", body, reference, inputs, wrong)
