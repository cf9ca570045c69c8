"""Generators over lists of whole numbers: counting, adding, choosing, sorting, windows, pairs."""

from __future__ import annotations

from marft_envs.families.code.procedural.base import Dice, Draft, cell
from marft_envs.families.code.procedural.rules import int_lists, mapping, rule, two_rules


@cell("count_if", (1, 2))
def count_if(dice: Dice, level: int) -> Draft:
    """How many numbers meet a condition."""
    one = rule(dice) if level == 1 else two_rules(dice)
    body = f"total = 0\nfor v in xs:\n    if {one.code}:\n        total += 1\nreturn total"
    return Draft(f"How many numbers in the list xs are {one.words}?", "xs:ints", "int", body,
                 lambda xs: len(list(filter(one.holds, xs))), int_lists(dice, one.edges), [(one.code, one.near),
                 ("total = 0", "total = 1"), (f"if {one.code}:", f"if not ({one.code}):"),
                 ("in xs:", "in xs[1:]:")])  # fmt: skip


@cell("sum_map", (1, 2, 3))
def sum_map(dice: Dice, level: int) -> Draft:
    """The sum of a mapping over the numbers that meet a condition."""
    f, one = mapping(dice), rule(dice)
    if level == 1:
        return Draft(f"For each number v in the list xs compute {f.words.format('v')}; give the sum.", "xs:ints", "int",
                     f"total = 0\nfor v in xs:\n    total += {f.code}\nreturn total", lambda xs: sum(map(f.apply, xs)),
                     int_lists(dice), [(f.code, f.near), ("total = 0", "total = 1"),
                     ("in xs:", "in xs[:-1]:")])  # fmt: skip
    if level == 2:
        return Draft(
            f"For each number v in the list xs that is {one.words} compute {f.words.format('v')}; give the sum.",
            "xs:ints", "int", f"total = 0\nfor v in xs:\n    if {one.code}:\n        total += {f.code}\nreturn total",
            lambda xs: sum(f.apply(v) for v in xs if one.holds(v)), int_lists(dice, one.edges),
            [(f"if {one.code}", "if True"), ("total = 0", "total = 1"), (f"+= {f.code}", f"-= {f.code} + 1")],
        )  # fmt: skip
    g = mapping(dice)
    while g.words == f.words:
        g = mapping(dice)
    task = (
        f"Go through the list xs. For a number v at an even index (0, 2, …) add {f.words.format('v')}, for one at an "
        f"odd index subtract {g.words.format('v')}; skip numbers that are {one.words}. Give the result."
    )
    body = (
        f"total = 0\nfor i, v in enumerate(xs):\n    if {one.code}:\n        continue\n    if i % 2 == 0:\n"
        f"        total += {f.code}\n    else:\n        total -= {g.code}\nreturn total"
    )
    return Draft(task, "xs:ints", "int", body,
                 lambda xs: sum(f.apply(v) for v in xs[::2] if not one.holds(v))
                 - sum(g.apply(v) for v in xs[1::2] if not one.holds(v)),
                 int_lists(dice, one.edges),
                 [("i % 2 == 0", "i % 2 == 1"), ("continue", "pass"), ("total = 0", "total = 1")])  # fmt: skip


@cell("filter_map", (1, 2, 3))
def filter_map(dice: Dice, level: int) -> Draft:
    """A list of mapped numbers, in order, some left out."""
    f, one = mapping(dice), rule(dice)
    if level == 1:
        return Draft(f"List, in the same order, the numbers of xs that are {one.words}.", "xs:ints", "ints",
                     f"out = []\nfor v in xs:\n    if {one.code}:\n        out.append(v)\nreturn out",
                     lambda xs: list(filter(one.holds, xs)), int_lists(dice, one.edges), [(one.code, one.near),
                     ("in xs:", "in xs[::-1]:"), ("in xs:", "in sorted(set(xs)):")])  # fmt: skip
    if level == 2:
        task = f"Replace every number v of the list xs that is {one.words} by {f.words.format('v')}; leave the others."
        body = f"out = []\nfor v in xs:\n    if {one.code}:\n        v = {f.code}\n    out.append(v)\nreturn out"
        return Draft(task, "xs:ints", "ints", body, lambda xs: [f.apply(v) if one.holds(v) else v for v in xs],
                     int_lists(dice, one.edges), [(f"if {one.code}", "if True"), ("in xs:", "in xs[1:]:"),
                     (f"v = {f.code}", f"v = {f.code} + 1")])  # fmt: skip
    task = (
        f"From the list xs drop the numbers that are {one.words}; of the others list {f.words.format('v')} for each v, "
        "without repetition, in the order in which the results first occur."
    )
    body = (
        f"out = []\nfor v in xs:\n    if not ({one.code}) and ({f.code}) not in out:\n        out.append({f.code})\n"
        "return out"
    )
    kept = sorted((v for v in range(-9, 31) if not one.holds(v)), key=f.apply)
    twice = [kept[-1], kept[0], kept[-1], kept[0]]  # falling results, each twice
    return Draft(task, "xs:ints", "ints", body,
                 lambda xs: list(dict.fromkeys(f.apply(v) for v in xs if not one.holds(v))),
                 [*int_lists(dice, one.edges), twice], [("if not", "if"), (f" and ({f.code}) not in out", ""),
                 ("return out", "return sorted(out)"), ("in xs:", "in xs[::-1]:")])  # fmt: skip


@cell("extreme", (1, 2, 3))
def extreme(dice: Dice, level: int) -> Draft:
    """The largest or smallest number by some measure, with a value for "none"."""
    one, f = rule(dice), mapping(dice)
    most = dice.below(2) == 0
    word, op = ("largest", ">") if most else ("smallest", "<")
    none = dice.choice((-1, 0, -99, 100))
    pick = max if most else min
    tail = f"; {none} if there is none."
    if level == 1:
        return Draft(f"Give the {word} number of the list xs that is {one.words}{tail}", "xs:ints", "int",
                     f"best = None\nfor v in xs:\n    if ({one.code}) and (best is None or v {op} best):\n"
                     f"        best = v\nreturn {none} if best is None else best",
                     lambda xs: pick(filter(one.holds, xs), default=none), int_lists(dice, one.edges),
                     [(f"({one.code}) and ", ""), (f"{none} if", f"{none + 1} if"),
                     (f"v {op} best", "False")])  # fmt: skip
    task = f"Among the numbers v of the list xs find the one for which {f.words.format('v')} is {word}"
    if level == 3:
        task += f", looking only at those that are {one.words}"
    task += f". If several are equal in this, take the last one. Give its index, {none} if there is none."
    test = f"({one.code}) and " if level == 3 else ""
    body = (
        f"best, top = {none}, None\nfor i, v in enumerate(xs):\n    if {test}(top is None or ({f.code}) {op}= top):\n"
        f"        best, top = i, {f.code}\nreturn best"
    )

    def reference(xs: list[int]) -> int:
        keyed = [(f.apply(v), i) for i, v in enumerate(xs) if level == 2 or one.holds(v)]
        if not keyed:
            return none
        top = pick(value for value, _ in keyed)
        return max(i for value, i in keyed if value == top)

    return Draft(task, "xs:ints", "int", body, reference, [*int_lists(dice, one.edges), [5, 5, 5],
                 [3, 9, 27, 27, 9, 3]], [(f"{op}= top", f"{op} top"),
                 (f"best, top = {none}", f"best, top = {none + 1}"),
                 ("best, top = i,", "best, top = i + 1,")])  # fmt: skip


@cell("sort_by", (2, 3))
def sort_by(dice: Dice, level: int) -> Draft:
    """Sorting by a measure, with a rule for ties."""
    f, one = mapping(dice), rule(dice)
    down, ties_down = dice.below(2) == 1, dice.below(2) == 1
    task = (
        f"Sort the list xs by {f.words.format('v')} for each number v, {'largest' if down else 'smallest'} first; "
        f"numbers with equal results {'largest' if ties_down else 'smallest'} first."
    )
    if level == 3:
        task += f" Numbers that are {one.words} come after all others, sorted among themselves in the same way."
    first, second = f"{'-' if down else ''}({f.code})", "-v" if ties_down else "v"
    front = f"({one.code}), " if level == 3 else ""

    def reference(xs: list[int]) -> list[int]:
        groups = [[v for v in xs if not one.holds(v)], [v for v in xs if one.holds(v)]] if level == 3 else [list(xs)]
        for group in groups:
            group.sort(reverse=ties_down)
            group.sort(key=f.apply, reverse=down)
        return [v for group in groups for v in group]

    wrong = [
        (first, f"{'' if down else '-'}({f.code})"),
        ("sorted(xs", "sorted(set(xs)"),
        ("sorted(xs", "sorted(xs[1:]"),
    ]
    return Draft(task, "xs:ints", "ints", f"return sorted(xs, key=lambda v: ({front}{first}, {second}))", reference,
                 [*int_lists(dice, one.edges if level == 3 else ()), [8, 20, 8, 14, 2, 26, 8]], wrong)  # fmt: skip


@cell("windows", (2, 3))
def windows(dice: Dice, level: int) -> Draft:
    """Sums over neighbours."""
    k, t, most = dice.integer(2, 5), dice.integer(5, 60), dice.below(2)
    one = rule(dice)
    what = f"{k} neighbouring numbers of the list xs"
    sums = f"sum(xs[i:i + {k}]) for i in range(len(xs) - {k - 1})"
    if level == 2:
        word, pick = (("largest", max), ("smallest", min))[most]
        task = f"Give the {word} sum of {what}, or {t} if xs has fewer than {k} numbers."
        return Draft(task, "xs:ints", "int", f"return {pick.__name__}(({sums}), default={t})",
                     lambda xs: pick((sum(xs[i : i + k]) for i in range(len(xs) - k + 1)), default=t),
                     [*int_lists(dice), [1] * k, [2] * (k - 1), [-5] * k + [9] * k, [9] * k + [-9] * k],
                     [(f"- {k - 1}", f"- {k}"), (pick.__name__, "min" if pick is max else "max"),
                     (f"default={t}", f"default={t + 1}")])  # fmt: skip
    word, op = (("greater", ">"), ("less", "<"))[most]
    task = f"How many times do {what} have a sum {word} than {t} while the first of the {k} is {one.words}?"
    body = (
        f"count = 0\nfor i in range(len(xs) - {k - 1}):\n    v = xs[i]\n"
        f"    if ({one.code}) and sum(xs[i:i + {k}]) {op} {t}:\n        count += 1\nreturn count"
    )

    def reference(xs: list[int]) -> int:
        spans = [xs[i : i + k] for i in range(len(xs) - k + 1) if one.holds(xs[i])]
        return sum(1 for w in spans if (sum(w) > t if op == ">" else sum(w) < t))

    good = next(v for v in (*one.edges, *range(30)) if one.holds(v))
    exact = [good, *([0] * (k - 2)), t - good]
    many = [good] * (k + 3)
    return Draft(task, "xs:ints", "int", body, reference, [*int_lists(dice, one.edges), exact, many,
                 [good, *([60] * k)], [good, *([-60] * k)]], [(f"{op} {t}:", f"{op}= {t}:"), ("count = 0", "count = 1"),
                 (f"{op} {t}:", f"{'<' if op == '>' else '>'} {t}:"), ("count += 1", "count += 2")])  # fmt: skip


@cell("pairs", (2, 3))
def pairs(dice: Dice, level: int) -> Draft:
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
    near = f" and j - i <= {far}" if level == 3 else ""
    more = f" and the second is at most {far} places after the first" if level == 3 else ""
    task = (
        f"Count the pairs of numbers in the list xs (a first one and one somewhere after it) such that {words}{more}."
    )
    body = (
        f"count = 0\nfor i in range(len(xs)):\n    for j in range(i + 1, len(xs)):\n        if {code}{near}:\n"
        "            count += 1\nreturn count"
    )

    def reference(xs: list[int]) -> int:
        reach = far if level == 3 else len(xs)
        return sum(holds(u, v) for i, u in enumerate(xs) for v in xs[i + 1 : i + 1 + reach])

    extra = [[0, d, 2 * d, 0, d], [1, m, m * m, 1, m], [r, 0, m, m + r, r], [0] * 7, [d, 0, 0, d, 2 * d, d, 0, 3 * d]]
    wrong = [("i + 1, len(xs)", "i, len(xs) - 1"), ("count = 0", "count = 1"), ("count += 1", "count = 1")]
    if near:
        wrong.append((near, f" and j - i <= {far - 1}"))
    return Draft(task, "xs:ints", "int", body, reference, [*int_lists(dice, (0, d, m, r), low=-4, high=12), *extra],
                 wrong)  # fmt: skip


@cell("running", (2, 3))
def running(dice: Dice, level: int) -> Draft:
    """A list of running totals that start again."""
    t, back, one = dice.integer(10, 60), dice.integer(0, 9), rule(dice)
    task = (
        f"Keep a total that starts at {back}. For each number of the list xs add it to the total, note the total, and "
        f"if it is {t} or more set it back to {back}. List the totals noted."
    )
    skip = ""
    if level == 3:
        task = task.replace(
            "For each number of the list xs add", f"For each number of the list xs that is not {one.words} add"
        )
        skip = f"    if {one.code}:\n        continue\n"
    body = (
        f"total, out = {back}, []\nfor v in xs:\n{skip}    total += v\n    out.append(total)\n    if total >= {t}:\n"
        f"        total = {back}\nreturn out"
    )

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
    return Draft(task, "xs:ints", "ints", body, reference, [*int_lists(dice, edges, low=1), up],
                 [(f"= {back}, []", f"= {back + 1}, []"), ("total += v", "total -= v"),
                 ("out.append(total)", "out.append(v)"), ("in xs:", "in xs[:-1]:")])  # fmt: skip
