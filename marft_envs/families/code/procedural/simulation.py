"""Generators that follow instructions step by step: robots, stack machines, circles, intervals."""

from __future__ import annotations

from marft_envs.families.code.procedural.base import Dice, Draft, cell

_HEADINGS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}


@cell("robot", (2, 3))
def robot(dice: Dice, level: int) -> Draft:
    """A robot on a plane."""
    start, step, wall = dice.choice(tuple(_HEADINGS)), dice.integer(1, 4), dice.integer(5, 12)
    left, right, go, jump = list(dice.choice(("LRFJ", "lrgj", "<>^*", "ADWX", "-+.!")))
    far = dice.integer(2, 5)
    task = (
        f"A robot at (0, 0) looks {start}. Read the string s: {left} turns it left, {right} turns it right, {go} moves "
        f"it {step} ahead, {jump} moves it {far} back; north raises y, east raises x. "
    )
    goals = [
        ("Give x and y at the end.", "ints", "[x, y]"),
        ("Give abs(x) + abs(y) at the end.", "int", "abs(x) + abs(y)"),
    ]
    goal, returns, code = goals[dice.below(2)]
    if level == 3:
        task += f"A move that would make abs(x) or abs(y) greater than {wall} is not made. "
    dx, dy = _HEADINGS[start]
    test = f"abs(x + n * dx) <= {wall} and abs(y + n * dy) <= {wall}" if level == 3 else "n != 0"
    body = (
        f"x, y, dx, dy = 0, 0, {dx}, {dy}\nfor c in s:\n    n = 0\n    if c == '{left}':\n        dx, dy = -dy, dx\n"
        f"    elif c == '{right}':\n        dx, dy = dy, -dx\n    elif c == '{go}':\n        n = {step}\n"
        f"    elif c == '{jump}':\n        n = -{far}\n    if {test}:\n        x, y = x + n * dx, y + n * dy\n"
        f"return {code}"
    )

    def reference(s: str) -> list[int] | int:
        order = list(_HEADINGS.values())
        at, position = order.index(_HEADINGS[start]), (0, 0)
        for c in s:
            at = (at + {left: -1, right: 1}.get(c, 0)) % 4
            ahead = {go: step, jump: -far}.get(c, 0)
            new = (position[0] + ahead * order[at][0], position[1] + ahead * order[at][1])
            if level == 2 or max(abs(new[0]), abs(new[1])) <= wall:
                position = new
        return list(position) if returns == "ints" else abs(position[0]) + abs(position[1])

    parts = [go * 3, left + go, right + go, jump, right + jump + jump, left + go * 2]
    texts = ["".join(dice.sample(parts, 4)), "".join(dice.sample(parts, 5)), "", go, jump, left, go * 15, jump * 15,
             left + go * 3 + left + go, (go + right) * 5, go * 4 + left + jump * 4 + right + go,
             left * 3 + go * 14 + right + go, right + go + go + right + go + go + go]  # fmt: skip
    wrong = [(f"n = {step}", f"n = {step + 1}"), ("dx, dy = -dy, dx", "dx, dy = -dx, -dy"), (f"n = -{far}", "n = 0")]
    if level == 3:
        wrong.append((f"abs(y + n * dy) <= {wall}", f"abs(y + n * dy) <= {wall + 20}"))
        wrong.append((f"if {test}", "if n != 0"))
    return Draft(task + goal, "s:str", returns, body, reference, texts, wrong)


@cell("stack_machine", (3, 4))
def stack_machine(dice: Dice, level: int) -> Draft:
    """A machine with a stack of numbers."""
    add, times, twin, drop, swap = dice.choice((("add", "mul", "dup", "pop", "swap"), ("+", "*", "d", "p", "s"),
                                               ("plus", "by", "copy", "out", "turn")))  # fmt: skip
    m, e, base = dice.choice((97, 100, 1000, 10007)), dice.integer(-9, 9), dice.integer(0, 5)
    extra, plus = dice.choice((("", ""), (f", plus {base + 1}", f" + {base + 1}")))
    task = (
        f"A machine has an empty stack and reads the words of ws. A number is pushed. {add} takes the two topmost "
        f"numbers off and pushes their sum{extra}; {times} does so with the remainder of their product divided by {m}; "
        f"{twin} pushes the topmost number once more; {drop} takes it off."
    )
    if level == 4:
        task += f" {swap} exchanges the two topmost numbers."
    task += (
        f" A word for which the stack is too short does nothing. Give the topmost number at the end, or {e} if "
        "there is none."
    )
    more = f"    elif w == '{swap}':\n        if len(st) > 1:\n            st[-1], st[-2] = st[-2], st[-1]\n"
    more = more if level == 4 else ""
    body = (
        f"st = []\nfor w in ws:\n    if w in ('{add}', '{times}'):\n        if len(st) > 1:\n"
        f"            b, a = st.pop(), st.pop()\n            st.append(a + b{plus} if w == '{add}' else a * b % {m})\n"
        f"    elif w == '{twin}':\n        st += st[-1:]\n    elif w == '{drop}':\n        st = st[:-1]\n"
        f"{more}    else:\n        st.append(int(w))\nreturn st[-1] if st else {e}"
    )

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
    wrong = [(f"a + b{plus} if", f"a - b{plus} if"), (f"a * b % {m}", f"a * b % {m} + 1"), ("st += st[-1:]", "pass"),
             ("st = st[:-1]", "pass"), (f"else {e}", f"else {e + 1}")]  # fmt: skip
    if level == 4:
        wrong.append(("st[-1], st[-2] = st[-2], st[-1]", "pass"))
    return Draft(task, "ws:words", "int", body, reference, programs, wrong)


@cell("circle", (2, 3))
def circle(dice: Dice, level: int) -> Draft:
    """People in a circle leave one after the other."""
    k, first, left = dice.integer(2, 9), dice.integer(1, 4), dice.integer(1, 4)
    task = (
        f"People numbered 1 to n (n >= {left}) stand in a circle. Counting starts with number {first} (if n is "
        f"smaller, at the remainder of {first - 1} divided by n, plus 1); every {k}th person counted leaves, and "
        "counting goes on with the next one."
    )
    grow = ""
    if level == 3:
        task = task.replace(
            "and counting goes on", "then one person more is counted off each time, and counting goes on"
        )
        grow = "    k += 1\n"
    total = dice.below(2) == 1
    what, code = ("the sum of the numbers", "sum(ring)") if total else ("the smallest number", "min(ring)")
    who = "of those left" if left > 1 else "of the one left"
    task += f" When {left} {'are' if left > 1 else 'is'} left, give {what} {who}."
    body = (
        f"ring = list(range(1, n + 1))\nk, at = {k}, {first - 1}\nwhile len(ring) > {left}:\n"
        f"    at = (at + k - 1) % len(ring)\n    ring.pop(at)\n{grow}return {code}"
    )

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
    return Draft(task, "n:int", "int", body, reference, numbers, [("k - 1", "k"), ("range(1, n + 1)", "range(n)"),
                 (f"k, at = {k}", f"k, at = {k + 1}"), (f"return {code}", f"return {code} + 1")])  # fmt: skip


@cell("intervals", (3, 4))
def intervals(dice: Dice, level: int) -> Draft:
    """Intervals that are merged where they are close."""
    gap, extra = dice.integer(0, 5), dice.integer(0, 3)
    least = 2 * extra + dice.integer(1, 6)
    kind, q = dice.below(5), dice.integer(1, 14)
    goal, code = [
        ("how many intervals remain", "len(out)"),
        ("the sum of the lengths (end minus start) of those that remain", "sum(b - a for a, b in out)"),
        ("the greatest length (end minus start) of those that remain, 0 if there is none",
         "max((b - a for a, b in out), default=0)"),
        (f"the sum of the lengths (end minus start) of those that remain, lengths above {q + 14} counted as {q + 14}",
         f"sum(min(b - a, {q + 14}) for a, b in out)"),
        (f"how many of those that remain have a length (end minus start) of at least {q}",
         f"sum(1 for a, b in out if b - a >= {q})"),
    ][kind]  # fmt: skip
    task = (
        "The list xs holds intervals, each as its start and end (start <= end). Merge any two of which one starts at "
        f"most {gap} after the other ends (or before it ends) into one from the smaller start to the greater end, "
        "until nothing can be merged."
    )
    widen, keep = "", ""
    if level == 4:
        task = task.replace("Merge", f"First widen each by {extra} on both sides. Then merge") if extra else task
        widen = f"xs = [[a - {extra}, b + {extra}] for a, b in xs]\n" if extra else ""
        task += f" Drop those then shorter than {least}."
        keep = f"out = [p for p in out if p[1] - p[0] >= {least}]\n"
    task += f" Give {goal}."
    body = (
        f"{widen}out = []\nfor a, b in sorted(xs):\n    if out and a <= out[-1][1] + {gap}:\n"
        f"        out[-1][1] = max(out[-1][1], b)\n    else:\n        out.append([a, b])\n{keep}return {code}"
    )
    grow = extra if level == 4 else 0

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
        return (len(lengths), sum(lengths), max(lengths, default=0), sum(min(v, q + 14) for v in lengths),
                sum(v >= q for v in lengths))[kind]  # fmt: skip

    def some(n: int) -> list[list[int]]:
        starts = [dice.integer(-10, 40) for _ in range(n)]
        return [[a, a + dice.integer(0, 6)] for a in starts]

    g, w = gap + 2 * grow, least - 2 * grow
    lists = [some(4), some(5), [], [[3, 3]], [[0, 4], [4 + g, 8 + g]], [[0, 4], [5 + g, 9 + g]], [[0, 20], [2, 5]],
             some(8), some(9), [[0, w]], [[0, 60], [2, 15], [40, 55]], [[40, 55], [0, 20]], [[0, 14], [15 + g, 30 + g]],
             [[0, w], [60, 59 + w], [90, 91 + w]], [[6, 7], [0, 1], [3, 3]], [[0, 9], [0, 12], [10 + g, 30]],
             [[0, 9], [20 + g, 40], [41 + g, 70]]]  # fmt: skip
    wrong = [(f"+ {gap}:", f"+ {gap + 1}:"), ("max(out[-1][1], b)", "b"), (f"return {code}", f"return {code} + 1"),
             ("sorted(xs)", "xs"), *[(f">= {least}", f"> {least}")] * (level == 4 and kind != 4)]  # fmt: skip
    return Draft(task, "xs:pairs", "int", body, reference, lists, wrong)
