"""Generators that follow instructions step by step: robots, stack machines, circles, intervals."""

from __future__ import annotations

from marft_envs.families.code.procedural.base import Built, Dice, variant

_HEADINGS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}


@variant("robot", (2, 3))
def robot(dice: Dice, level: int) -> Built:
    """A robot on a plane."""
    start, step, wall = dice.choice(tuple(_HEADINGS)), dice.integer(1, 4), dice.integer(5, 12)
    left, right, go, jump = list(dice.choice(("LRFJ", "lrgj", "<>^*", "ADWX", "-+.!")))
    far = dice.integer(2, 5)
    kind = ("place", "distance")[dice.below(2)]
    dx, dy = _HEADINGS[start]

    def reference(s: str) -> list[int] | int:
        order = list(_HEADINGS.values())
        at, position = order.index(_HEADINGS[start]), (0, 0)
        for c in s:
            at = (at + {left: -1, right: 1}.get(c, 0)) % 4
            ahead = {go: step, jump: -far}.get(c, 0)
            new = (position[0] + ahead * order[at][0], position[1] + ahead * order[at][1])
            if level == 2 or max(abs(new[0]), abs(new[1])) <= wall:
                position = new
        return list(position) if kind == "place" else abs(position[0]) + abs(position[1])

    parts = [go * 3, left + go, right + go, jump, right + jump + jump, left + go * 2]
    texts = ["".join(dice.sample(parts, 4)), "".join(dice.sample(parts, 5)), "", go, jump, left, go * 15, jump * 15,
             left + go * 3 + left + go, (go + right) * 5, go * 4 + left + jump * 4 + right + go,
             left * 3 + go * 14 + right + go, right + go + go + right + go + go + go]  # fmt: skip
    signs = dict(left=left, right=right, go=go, jump=jump)
    values = dict(kind=kind, start=start, dx=dx, dy=dy, step=step, more=step + 1, far=far, wall=wall, wider=wall + 20)
    return values | signs, reference, texts


@variant("stack_machine", (3, 4))
def stack_machine(dice: Dice, level: int) -> Built:
    """A machine with a stack of numbers."""
    add, times, twin, drop, swap = dice.choice((("add", "mul", "dup", "pop", "swap"), ("+", "*", "d", "p", "s"),
                                               ("plus", "by", "copy", "out", "turn")))  # fmt: skip
    m, e, base = dice.choice((97, 100, 1000, 10007)), dice.integer(-9, 9), dice.integer(0, 5)
    extra, plus = dice.choice((("", ""), (f", plus {base + 1}", f" + {base + 1}")))

    def reference(ws: list[str]) -> int:
        stack: list[int] = []
        for w in ws:
            need = {add: 2, times: 2, twin: 1, drop: 1, swap: 2 if level == 4 else 0}.get(w, 0)
            taken = [stack.pop() for _ in range(need)] if len(stack) >= need else None
            if taken is not None:
                pushed = {add: [sum(taken) + (base + 1 if plus else 0)],
                          times: [taken[0] * taken[-1] % m] if taken else [], twin: taken * 2, drop: [],
                          swap: taken}  # fmt: skip
                stack += pushed[w] if need else [int(w)]
        return stack[-1] if stack else e

    n = [str(dice.integer(2, 40)) for _ in range(12)]
    programs = [
        [n[0], n[1], add, n[2], times], [n[3], twin, times, n[4], n[5], drop, add], [], [add], [n[6]], [n[6], add],
        [n[7], drop],
        [n[8], n[9], times], [n[0], n[1], n[2], drop, add], [twin, drop, n[10], twin, add], [n[1], n[2], n[3], times,
        add, twin, add],
        [n[4], n[5], drop, drop, drop, n[6], n[7], add], [n[8], twin, times, twin, times], ["7", "3", drop], ["1",
        "2", drop, drop, "4", add],
    ]  # fmt: skip
    if level == 4:
        programs = [[*p[:3], swap, *p[3:]] if i % 3 == 1 else p for i, p in enumerate(programs)]
        programs += [["5", "9", swap], ["5", "9", swap, drop], ["5", swap], ["2", "3", "4", swap, drop, add]]
    names = dict(add=add, times=times, twin=twin, drop=drop, swap=swap)
    return dict(names, m=m, e=e, more=e + 1, extra=extra, plus=plus), reference, programs


@variant("circle", (2, 3))
def circle(dice: Dice, level: int) -> Built:
    """People in a circle leave one after the other."""
    k, first, left = dice.integer(2, 9), dice.integer(1, 4), dice.integer(1, 4)
    total = dice.below(2) == 1
    what, code = ("the sum of the numbers", "sum(ring)") if total else ("the smallest number", "min(ring)")
    are, those = ("are", "those") if left > 1 else ("is", "the one")

    def reference(n: int) -> int:
        ring = [*range(1, n + 1)]
        turn = (first - 1) % n
        ring, count = ring[turn:] + ring[:turn], k
        while len(ring) > left:
            cut = (count - 1) % len(ring)
            ring = ring[cut + 1 :] + ring[:cut]
            count += level == 3
        return sum(ring) if total else min(ring)

    numbers = (7, 10, left, left + 1, left + 2, left + 3, 13, 16, 20, 25, 31, 40)
    values = dict(k=k, more=k + 1, first=first, before=first - 1, left=left, what=what, code=code, are=are, those=those)
    return values, reference, numbers


@variant("intervals", (3, 4))
def intervals(dice: Dice, level: int) -> Built:
    """Intervals that are merged where they are close."""
    gap, extra = dice.integer(0, 5), dice.integer(0, 3)
    least = 2 * extra + dice.integer(1, 6)
    kind, q = ("number", "sum", "greatest", "capped", "long")[dice.below(5)], dice.integer(1, 14)
    grow = extra if level == 4 else 0
    merge = f"First widen each by {grow} on both sides. Then merge" if grow else "Merge"
    widen = f"xs = [[a - {grow}, b + {grow}] for a, b in xs]\n" if grow else ""

    def reference(xs: list[list[int]]) -> int:
        covered: set[int] = set()  # in half units, so that touching and being 1 apart differ
        for a, b in xs:
            covered |= set(range(2 * (a - grow), 2 * (b + grow + gap) + 1))
        ends = [v for v in covered if v + 1 not in covered]
        lengths = []
        for end in ends:
            start = end
            while start - 1 in covered:
                start -= 1
            lengths.append((end - start) // 2 - gap)
        lengths = [v for v in lengths if level == 3 or v >= least]
        capped, long = sum(min(v, q + 14) for v in lengths), sum(v >= q for v in lengths)
        greatest = max(lengths, default=0)
        found = {"number": len(lengths), "sum": sum(lengths), "greatest": greatest, "capped": capped, "long": long}
        return found[kind]

    def some(n: int) -> list[list[int]]:
        starts = [dice.integer(-10, 40) for _ in range(n)]
        return [[a, a + dice.integer(0, 6)] for a in starts]

    g, w = gap + 2 * grow, least - 2 * grow
    lists = [some(4), some(5), [], [[3, 3]], [[0, 4], [4 + g, 8 + g]], [[0, 4], [5 + g, 9 + g]], [[0, 20], [2, 5]],
             some(8), some(9), [[0, w]], [[0, 60], [2, 15], [40, 55]], [[40, 55], [0, 20]], [[0, 14], [15 + g, 30 + g]],
             [[0, w], [60, 59 + w], [90, 91 + w]], [[6, 7], [0, 1], [3, 3]], [[0, 9], [0, 12], [10 + g, 30]],
             [[0, 9], [20 + g, 40], [41 + g, 70]]]  # fmt: skip
    values = dict(kind=kind, gap=gap, more=gap + 1, least=least, q=q, cap=q + 14, merge=merge, widen=widen)
    return values, reference, lists
