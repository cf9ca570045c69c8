"""Generators over strings and lists of words."""

from __future__ import annotations

from itertools import groupby

from marft_envs import tables
from marft_envs.families.code.procedural.base import Built, Dice, variant

_VOCABULARY: list[str] = tables.read(__package__, "procedural")["vocabulary"]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _word_lists(dice: Dice) -> list[list[str]]:
    """Two typical lists, none at all, one word, repeated words, many."""
    lists = [dice.sample(_VOCABULARY, n) for n in (4, 5, 7, 12)]
    return [lists[0], lists[1], [], ["level"], ["a"], ["it", "it", "oak", "it"], lists[2], lists[3],
            ["window", "needle", "eve"], ["ax", "zebra", "quartz", "yellow", "jungle"], ["tiger"] * 3]  # fmt: skip


def _texts(dice: Dice, letters: str = "") -> list[str]:
    """Typical texts in small and capital letters, then odd ones; ``letters`` occur in them."""
    words = [" ".join(dice.sample(_VOCABULARY, n)) for n in (3, 3, 5)]
    return [words[0].capitalize(), words[1].title(), "", "x", letters or "z", letters * 2 + letters[::-1],
            "Zebra, ax! 42", _LETTERS, _LETTERS.upper(), words[2].upper(), "aaaa bbb cc d",
            "Noon: level 7"]  # fmt: skip


@variant("shift", (1, 2, 3))
def shift(dice: Dice, level: int) -> Built:
    """A cipher that moves letters along the alphabet."""
    k, left = dice.integer(1, 25), dice.below(2) == 1
    way, around, sign, flipped = ("back", "before a comes z", "-", "+") if left else ("on", "after z comes a", "+", "-")
    fixed = "".join(sorted(dice.sample(_LETTERS, 3))) if level == 2 else ""
    n = dice.integer(2, 4)
    step = -k if left else k
    table = {a: _LETTERS[(i + step) % 26] for i, a in enumerate(_LETTERS) if a not in fixed}

    def reference(s: str) -> str:
        return "".join(table.get(c, c) if level < 3 or i % n else c for i, c in enumerate(s))

    values = dict(k=k, way=way, round=around, sign=sign, flipped=flipped, other=k + (k == 13))
    values |= dict(letters=", ".join(fixed), fixed=fixed, n=n)
    return values, reference, [*_texts(dice, fixed or "xyzab"), "zzzzzzz", "the fox is lazy"]


@variant("count_letters", (1, 2))
def count_letters(dice: Dice, level: int) -> Built:
    """Counts characters of a string."""
    letters = "".join(sorted(dice.sample("abcdeilmnorstuwy", dice.integer(2, 4))))
    k = dice.integer(2, 5)
    values = dict(letters=letters, fewer=letters[1:], listed=", ".join(letters), k=k, more=k + 1)
    if level == 1:
        both = letters + letters.upper()
        return values, lambda s: sum(map(s.count, both)), _texts(dice, letters)

    def reference(s: str) -> int:
        counts = [0] * len(letters)
        for c in s:
            if c in letters and counts[letters.index(c)] < k:
                counts[letters.index(c)] += 1
        return sum(counts)

    return values, reference, [*_texts(dice, letters), letters * (k + 1), letters[0] * (k + 2), letters[0] * k]


@variant("edit_words", (1, 2, 3))
def edit_words(dice: Dice, level: int) -> Built:
    """Changes the words that meet a condition."""
    k, letter, other = dice.integer(3, 6), dice.choice("aeinorst"), dice.choice("xyz")
    conditions = [
        (f"has more than {k} letters", f"len(w) > {k}", f"len(w) >= {k}", lambda w: len(w) > k),
        (f"has fewer than {k} letters", f"len(w) < {k}", f"len(w) <= {k}", lambda w: len(w) < k),
        (f"contains the letter {letter}", f"'{letter}' in w", f"'{letter}' not in w", lambda w: w.count(letter) > 0),
        (f"ends with the letter {letter}", f"w[-1] == '{letter}'", f"w[0] == '{letter}'", lambda w: w.endswith(letter)),
    ]
    when, test, near, holds = dice.choice(conditions if level < 3 else conditions[:3])
    edits = [
        ("written backwards", "w[::-1]", lambda w: "".join(reversed(w))),
        ("in capitals", "w.upper()", lambda w: w.upper()),
        (f"followed by {other}", f"w + '{other}'", lambda w: f"{w}{other}"),
        (f"with {other} for every {letter}", f"w.replace('{letter}', '{other}')",
         lambda w: other.join(w.split(letter))),
        (f"cut to its first {k - 1} letters", f"w[:{k - 1}]", lambda w: w[: k - 1]),
    ]  # fmt: skip
    how, code, edit = dice.choice(edits)
    words = ["stones", "orient", "tin", "ears", "sonata", "iris", "x" * k, "a" * (k + 1), "o" * (k - 1)]
    lists = [*_word_lists(dice), words, ["tent", "noon", "arena", "iii", "session", "ratio", "error", "e"]]
    values = dict(when=when, test=test, near=near, how=how, edit=code)
    if level == 1:
        then, code2, edit2 = dice.choice([e for e in edits if e[0] != how])
        return dict(values, then=then, edit2=code2), lambda ws: [edit2(edit(w)) for w in ws], lists
    if level == 2:
        return values, lambda ws: [edit(w) if holds(w) else w for w in ws], lists
    sep = dice.choice("-+/.")
    return dict(values, sep=sep), lambda ws: sep.join(edit(w) for w in ws[::-1] if not holds(w)) or "none", lists


@variant("run_lengths", (2, 3))
def run_lengths(dice: Dice, level: int) -> Built:
    """Compresses runs of equal characters."""
    k, sep = dice.integer(3, 6), dice.choice(("", "-", ".", ":", "*", "=", "_", "/", "+", "x", "~", "^"))
    before = dice.below(2) == 1
    cap = k + dice.integer(1, 4)
    parts = ["the number of repetitions", *([sep] if sep else []), "the character"]
    shape = ", ".join(parts if before else parts[::-1])
    code = f"str(n) + '{sep}' + c" if before else f"c + '{sep}' + str(n)"

    def reference(s: str) -> str:
        out = []
        for c, group in groupby(s):
            left = len(list(group))
            while left:
                n = min(left, cap) if level == 3 else left
                left -= n
                out.append((f"{n}{sep}{c}" if before else f"{c}{sep}{n}") if n >= k else c * n)
        return "".join(out)

    def runs(lengths: list[int]) -> str:
        return "".join(c * n for c, n in zip("abcabcabc", lengths, strict=False))

    texts = [runs([1, k, 3, 2, 6]), runs([k + 1, 1, 4, k - 1]), "", "z", "z" * k, "z" * (k - 1),
             runs([cap, cap + 1, 1, k]), "abcabc", runs([12, 2, 3, 4, 5]), runs([k - 1, k, k + 1]), "aabbaabb",
             runs([2 * cap + k, 1, cap + k - 1])]  # fmt: skip
    return dict(k=k, cap=cap, more=cap + 1, shape=shape, code=code), reference, texts


_MARKS = ("()", "[]", "<>", "{}", "ud", "+-", "/\\", "LR", "io", "ab", "xy", "AB")


@variant("brackets", (2, 3))
def brackets(dice: Dice, level: int) -> Built:
    """Openings and closings in a string."""
    a, z = list(dice.choice(_MARKS))
    d, start, k = dice.integer(1, 3), dice.integer(0, 4), dice.integer(2, 5)
    kind, most = ("top", "high", "final")[dice.below(3)], start + k * d

    def reference(s: str) -> int:
        depths = [start]
        for c in s:
            new = depths[-1] + {a: d, z: -1}.get(c, 0)
            depths.append(new if level == 2 else sorted((0, new, most))[1])
        return {"top": max(depths), "high": len([v for v in depths[1:] if v > start]), "final": depths[-1]}[kind]

    parts = [a + a + z, z, a, "..", a * 3, z * 2, a + z]
    texts = ["".join(dice.sample(parts, 4)) + a, "".join(dice.sample(parts, 5)), "", a, z, a * 9, z * 9, "..",
             a * 9 + z * 30, z * 6 + a * 3, (a + z) * 4 + a, a + "." + a + ".", z * 9 + a * 12 + z * 2]  # fmt: skip
    values = dict(kind=kind, a=a, z=z, quoted_a=repr(a), quoted_z=repr(z), d=d, start=start, next=start + 1, most=most)
    return values, reference, texts


@variant("weave", (1, 2))
def weave(dice: Dice, level: int) -> Built:
    """Parts of a string put together."""
    i, k, j, step = dice.integer(0, 3), dice.integer(2, 5), dice.integer(1, 4), dice.integer(2, 3)
    mark = dice.choice("-_*.#")

    def simple(s: str) -> str:
        return "".join(c for at, c in enumerate(s) if at >= i and (at - i) % k == 0) + mark + "".join(list(s)[:j])

    def reference(s: str) -> str:
        taken, left = "", ""
        for at, c in enumerate(s):
            if at in range(i, len(s), k):
                taken = c + taken
            else:
                left += c
        return taken + mark + "".join(c for at, c in enumerate(left) if at % step == 0)

    kth, nth = (f"{n}th" if n > 3 else {2: "second", 3: "third"}[n] for n in (k, step))
    values = dict(i=i, next=i + 1, k=k, more=k + 1, j=j, step=step, mark=mark, kth=kth, nth=nth, plural="s" * (j > 1))
    texts = ["keyboard", "mountain pass", "", "q", "ab", _LETTERS, "abcabcabc", "0123456789", "xyzzy",
             *_texts(dice)[:2]]  # fmt: skip
    return values, simple if level == 1 else reference, texts
