"""Generators over strings and lists of words."""

from __future__ import annotations

from itertools import groupby

from marft_envs.families import tables
from marft_envs.families.code.procedural.base import Dice, Draft, cell

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


@cell("shift", (1, 2, 3))
def shift(dice: Dice, level: int) -> Draft:
    """A cipher that moves letters along the alphabet."""
    k, left = dice.integer(1, 25), dice.below(2) == 1
    task = (
        f"Move every small letter of the string s {k} places {'back' if left else 'on'} in the alphabet ("
        f"{'before a comes z' if left else 'after z comes a'}); leave all other characters."
    )
    sign, step = ("-" if left else "+"), (-k if left else k)
    test, moved = "'a' <= c <= 'z'", f"chr((ord(c) - 97 {sign} {k}) % 26 + 97)"
    fixed = ""
    if level == 2:
        fixed = "".join(sorted(dice.sample(_LETTERS, 3)))
        task = task[:-1] + f"; leave the letters {', '.join(fixed)} too."
        test = f"'a' <= c <= 'z' and c not in '{fixed}'"
    n = dice.integer(2, 4)
    if level == 3:
        task = (
            task[:-1] + f". Characters at an index divisible by {n} (the first has index 0) stay as they are as well."
        )
        test = f"i % {n} != 0 and 'a' <= c <= 'z'"
    body = f"out = ''\nfor i, c in enumerate(s):\n    if {test}:\n        c = {moved}\n    out += c\nreturn out"
    table = {a: _LETTERS[(i + step) % 26] for i, a in enumerate(_LETTERS) if a not in fixed}

    def reference(s: str) -> str:
        return "".join(table.get(c, c) if level < 3 or i % n else c for i, c in enumerate(s))

    wrong = [("% 26 + 97", "% 25 + 97"), (f"{sign} {k})", f"{'+' if left else '-'} {k + (k == 13)})"),
             *([("<= 'z'", "< 'z'")] if level != 2 else [])]  # fmt: skip
    if level == 2:
        wrong.append((f" and c not in '{fixed}'", ""))
    if level == 3:
        wrong.append((f"i % {n} != 0", f"i % {n} == 0"))
    return Draft(task, "s:str", "str", body, reference, [*_texts(dice, fixed or "xyzab"), "zzzzzzz", "the fox is lazy"],
                 wrong)  # fmt: skip


@cell("count_letters", (1, 2))
def count_letters(dice: Dice, level: int) -> Draft:
    """Counts characters of a string."""
    letters = "".join(sorted(dice.sample("abcdeilmnorstuwy", dice.integer(2, 4))))
    k = dice.integer(2, 5)
    if level == 1:
        task = f"Count the characters of the string s that are one of {', '.join(letters)}, small or capital."
        body = f"total = 0\nfor c in s.lower():\n    if c in '{letters}':\n        total += 1\nreturn total"
        both = letters + letters.upper()
        return Draft(task, "s:str", "int", body, lambda s: sum(map(s.count, both)), _texts(dice, letters),
                     [("s.lower()", "s"), ("total = 0", "total = 1"),
                     (f"'{letters}'", f"'{letters[1:]}'")])  # fmt: skip
    task = (
        f"Give the sum over the letters {', '.join(letters)} of how often each occurs in the string s (small letters "
        f"only), where occurrences beyond {k} of the same letter do not count."
    )
    body = f"total = 0\nfor c in '{letters}':\n    total += min(s.count(c), {k})\nreturn total"

    def reference(s: str) -> int:
        counts = [0] * len(letters)
        for c in s:
            if c in letters and counts[letters.index(c)] < k:
                counts[letters.index(c)] += 1
        return sum(counts)

    inputs = [*_texts(dice, letters), letters * (k + 1), letters[0] * (k + 2), letters[0] * k]
    return Draft(task, "s:str", "int", body, reference, inputs, [(f", {k})", f", {k + 1})"), ("min(", "max("),
                 (f"'{letters}'", f"'{letters[1:]}'")])  # fmt: skip


@cell("edit_words", (1, 2, 3))
def edit_words(dice: Dice, level: int) -> Draft:
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
    if level == 1:
        then, code2, edit2 = dice.choice([e for e in edits if e[0] != how])
        task = f"List the words of ws in the same order, every word first {how}, and the result then {then}."
        return Draft(task, "ws:words", "words",
                     f"out = []\nfor w in ws:\n    w = {code}\n    out.append({code2})\nreturn out",
                     lambda ws: [edit2(edit(w)) for w in ws], lists, [("append(", "append('-' + "),
                     ("in ws:", "in ws[1:]:"), ("in ws:", "in ws[::-1]:")])  # fmt: skip
    if level == 2:
        task = f"List the words of ws in the same order; a word that {when} is given {how}."
        body = f"out = []\nfor w in ws:\n    if {test}:\n        w = {code}\n    out.append(w)\nreturn out"
        return Draft(task, "ws:words", "words", body, lambda ws: [edit(w) if holds(w) else w for w in ws], lists,
                     [(f"w = {code}", f"w = '-' + {code}"), ("in ws:", "in ws[1:]:"),
                     ("in ws:", "in ws[::-1]:")])  # fmt: skip
    sep = dice.choice("-+/.")
    task = (
        f"Take the words of ws from the last to the first, leave out each that {when}, give the others {how}, joined "
        f"by {sep}; if none is left, give the word none."
    )
    body = (
        f"out = []\nfor w in reversed(ws):\n    if {test}:\n        continue\n    out.append({code})\n"
        f"return '{sep}'.join(out) or 'none'"
    )
    return Draft(task, "ws:words", "str", body,
                 lambda ws: sep.join(edit(w) for w in ws[::-1] if not holds(w)) or "none", lists, [(test, near),
                 (" or 'none'", ""), ("reversed(ws)", "ws")])  # fmt: skip


@cell("run_lengths", (2, 3))
def run_lengths(dice: Dice, level: int) -> Draft:
    """Compresses runs of equal characters."""
    k, sep, before = (
        dice.integer(3, 6),
        dice.choice(("", "-", ".", ":", "*", "=", "_", "/", "+", "x", "~", "^")),
        dice.below(2) == 1,
    )
    cap = k + dice.integer(1, 4)
    shape = (
        f"the number of repetitions, {sep}, the character"
        if before
        else f"the character, {sep}, the number of repetitions"
    )
    shape = shape.replace(", ,", ",")
    task = (
        f"Shorten the string s: replace every run of {k} or more equal characters by {shape} (without spaces); leave "
        "shorter runs."
    )
    code = f"str(n) + '{sep}' + c" if before else f"c + '{sep}' + str(n)"
    if level == 3:
        task = task.replace("replace every", f"split every run of more than {cap} characters into runs of {cap} and " \
               "a rest, "
                                             "then replace every")  # fmt: skip
    limit = f" and n < {cap}" if level == 3 else ""
    body = (
        f"out, i = '', 0\nwhile i < len(s):\n    c, n = s[i], 1\n    while i + n < len(s) and s[i + n] == c{limit}:\n"
        f"        n += 1\n    out += {code} if n >= {k} else c * n\n    i += n\nreturn out"
    )

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
    wrong = [(f"n >= {k}", f"n > {k}"), ("c * n", "c"), ("i + n < len(s)", "i + n < len(s) - 1")]
    if level == 3:
        wrong.append((limit, f" and n < {cap + 1}"))
    return Draft(task, "s:str", "str", body, reference, texts, wrong)


_MARKS = ("()", "[]", "<>", "{}", "ud", "+-", "/\\", "LR", "io", "ab", "xy", "AB")


@cell("brackets", (2, 3))
def brackets(dice: Dice, level: int) -> Draft:
    """Openings and closings in a string."""
    marks = dice.choice(_MARKS)
    a, z = marks[0], marks[1]
    d, start, k = dice.integer(1, 3), dice.integer(0, 4), dice.integer(2, 5)
    kind = dice.below(3)
    intro = f"Read the string s with a depth that starts at {start}: {a} raises it by {d}, {z} lowers it by 1"
    rule = "" if level == 2 else f"; it never falls below 0 and never rises above {start + k * d}"
    goal, code = [
        ("Give the largest depth reached (the starting depth counts).", "top"),
        (f"Give how many characters leave the depth at {start + 1} or more after them.", "high"),
        ("Give the final depth.", "depth"),
    ][kind]
    task = f"{intro}; other characters do nothing{rule}. {goal}"
    clamp = "" if level == 2 else f"    depth = max(0, min(depth, {start + k * d}))\n"
    za, zz = repr(a), repr(z)
    body = (
        f"depth = top = {start}\nhigh = 0\nfor c in s:\n    if c == {za}:\n        depth += {d}\n    elif c == {zz}:\n"
        f"        depth -= 1\n{clamp}    top = max(top, depth)\n    high += depth >= {start + 1}\nreturn {code}"
    )

    def reference(s: str) -> int:
        depths = [start]
        for c in s:
            new = depths[-1] + {a: d, z: -1}.get(c, 0)
            depths.append(new if level == 2 else sorted((0, new, start + k * d))[1])
        return (max(depths), len([v for v in depths[1:] if v > start]), depths[-1])[kind]

    parts = [a + a + z, z, a, "..", a * 3, z * 2, a + z]
    texts = ["".join(dice.sample(parts, 4)) + a, "".join(dice.sample(parts, 5)), "", a, z, a * 9, z * 9, "..",
             a * 9 + z * 30, z * 6 + a * 3, (a + z) * 4 + a, a + "." + a + ".", z * 9 + a * 12 + z * 2]  # fmt: skip
    first = ("high = 0", "high = 1") if kind == 1 else (f"top = {start}", f"top = {start + 1}")
    wrong = [first, ("depth -= 1", "depth -= 2" if kind == 2 else "depth += 1"),
             (f"return {code}", f"return {code} + 1")]  # fmt: skip
    if level == 3:
        wrong.append((f"min(depth, {start + k * d})", "depth"))
    return Draft(task, "s:str", "int", body, reference, texts, wrong)


@cell("weave", (1, 2))
def weave(dice: Dice, level: int) -> Draft:
    """Parts of a string put together."""
    i, k, j, step = dice.integer(0, 3), dice.integer(2, 5), dice.integer(1, 4), dice.integer(2, 3)
    mark = dice.choice("-_*.#")
    every = f"every {k}th" if k > 3 else {2: "every second", 3: "every third"}[k]
    task = f"From the string s take {every} character, beginning with the one at index {i} (the first has index 0)"
    if level == 1:
        task += f", then write {mark}, then the first {j} character{'s' * (j > 1)} of s."
        body = f"return s[{i}::{k}] + '{mark}' + s[:{j}]"

        def reference(s: str) -> str:
            return "".join(c for at, c in enumerate(s) if at >= i and (at - i) % k == 0) + mark + "".join(list(s)[:j])

        wrong = [(f"s[{i}::", f"s[{i + 1}::"), (f"::{k}]", f"::{k + 1}]"), (f"s[:{j}]", f"s[{j}:]")]
    else:
        task += (
            f"; write these backwards, then {mark}, then the rest of the characters of s in order, of these only every "
            f"{ {2: 'second', 3: 'third'}[step] } one, beginning with the first."
        )
        body = (
            f"rest = [c for at, c in enumerate(s) if at < {i} or (at - {i}) % {k} != 0]\n"
            f"return s[{i}::{k}][::-1] + '{mark}' + ''.join(rest[::{step}])"
        )

        def reference(s: str) -> str:
            taken, left = "", ""
            for at, c in enumerate(s):
                if at in range(i, len(s), k):
                    taken = c + taken
                else:
                    left += c
            return taken + mark + "".join(c for at, c in enumerate(left) if at % step == 0)

        wrong = [(f"s[{i}::", f"s[{i + 1}::"), ("[::-1]", ""), (f"rest[::{step}]", "rest")]
    texts = ["keyboard", "mountain pass", "", "q", "ab", _LETTERS, "abcabcabc", "0123456789", "xyzzy",
             *_texts(dice)[:2]]  # fmt: skip
    return Draft(task, "s:str", "str", body, reference, texts, wrong)
