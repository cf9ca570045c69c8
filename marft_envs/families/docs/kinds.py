"""The kinds of documents that are made here: what stands in them, what is asked, how an expert works through them.

Each kind is a fold: a reader goes on from a note through some entries to another note, and notes of readers who read
side by side are merged. So one expert serves every team. Level 0 is terse, for the embedded models; level 1 is prose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marft_envs.problems.dice import Dice

LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAMES = (
    "Ann", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jack", "Kim", "Lea", "Max", "Nora", "Otto",
    "Pia", "Quin", "Rosa", "Sam", "Tom", "Uma", "Vera", "Will", "Yan", "Zoe",
)  # fmt: skip
PLACES = ("Rome", "Oslo", "Lima")
COLOURS = ("red", "blue", "green")
NOTHING = "-"
"""The note of a reader that has found nothing."""
TOP = 60
"""Largest balance of a ledger at level 0; ten times that at level 1."""


@dataclass(frozen=True, slots=True)
class DocumentDraft:
    """What a kind writes; ids and pages are added around it."""

    question: str
    entries: list[str]
    facts: list[Any]
    answer: str
    target: Any = None


class DocumentKind:
    """Base of the kinds; the notes are numbers, which add up."""

    name = ""

    def write(self, dice: Dice, n: int, level: int) -> DocumentDraft:
        """Writes a document of n entries."""
        raise NotImplementedError

    def read(self, facts: Sequence[Any], note: Any, target: Any) -> tuple[str, Any]:
        """Works through the facts of some entries, from a note (None: none yet); returns words and the next note."""
        raise NotImplementedError

    def merge(self, notes: Sequence[Any]) -> tuple[str, Any]:
        """Joins the notes of those who read side by side, in order; returns words (``6-3=3``) and the note of all."""
        total, words = 0, ""
        for i, note in enumerate(notes):
            total += note
            words += f"{note:+}={total}" if i else str(note)
        return words if len(notes) > 1 else "", total

    def written(self, note: Any) -> str:
        """Returns a note as it stands in a box."""
        return str(note)

    def conclude(self, note: Any, target: Any) -> tuple[str, str]:
        """Returns what is said beyond the note to answer, and the answer."""
        return "", self.written(note)


class Total(DocumentKind):
    """A running total: payments in and out, from a first balance on."""

    name = "total"

    def write(self, dice: Dice, n: int, level: int) -> DocumentDraft:
        """Writes a ledger whose balance stays between 0 and ``TOP``."""
        top, most = (TOP, 4) if level == 0 else (10 * TOP, 40)
        balance = dice.integer(0, top)
        first, facts = dice.below(len(LETTERS)), [(str(balance), balance)]
        entries = [str(balance) if level == 0 else f"The first balance is {balance}."]
        for i in range(1, n):
            amount = dice.integer(1, most)
            sign = 1 if balance + amount <= top and (balance < amount or dice.below(2)) else -1
            balance += sign * amount
            letter = LETTERS[(first + i) % len(LETTERS)] if level == 0 else ""
            facts.append((f"{'+' if sign > 0 else '-'}{letter}{amount}", sign * amount))
            if level == 0:
                entries.append(facts[-1][0])
            else:
                entries.append(f"{dice.choice(NAMES)} {'pays in' if sign > 0 else 'draws'} {amount}.")
        question = "Sum." if level == 0 else "What is the balance after the last payment?"
        return DocumentDraft(question, entries, facts, str(balance))

    def read(self, facts: Sequence[tuple[str, int]], note: int | None, target: Any) -> tuple[str, int]:
        """Writes out every balance: ``7+2=9-3=6``; who begins after the first balance begins with 0."""
        rest, balance = list(facts), note
        if balance is None:
            balance = rest.pop(0)[1] if rest and rest[0][0].isdecimal() else 0
        words = str(balance)
        for written, amount in rest:
            balance += amount
            words += f"{written}={balance}"
        return words, balance


class EventCount(DocumentKind):
    """How often something happened, among things that differ from it in one respect or both."""

    name = "count"

    def write(self, dice: Dice, n: int, level: int) -> DocumentDraft:
        """Writes deliveries, about a third of which are asked for."""
        things, places = ("abc", "xyz") if level == 0 else (COLOURS, PLACES)
        what, where = dice.choice(things), dice.choice(places)
        facts, entries = [], []
        for _ in range(n):
            asked = dice.below(3) == 0
            one, place = (what, where) if asked else (dice.choice(things), dice.choice(places))
            facts.append(int((one, place) == (what, where)))
            entries.append(self._entry(one, place, level))
        question = f"Count {what}{where}." if level == 0 else f"How many {what} boxes are sent to {where}?"
        return DocumentDraft(question, entries, facts, str(sum(facts)))

    def _entry(self, what: str, where: str, level: int) -> str:
        return f"{what}{where}" if level == 0 else f"A {what} box is sent to {where}."

    def read(self, facts: Sequence[int], note: int | None, target: Any) -> tuple[str, int]:
        """Counts on: ``4, 5``."""
        before = note or 0
        return ", ".join(str(before + i + 1) for i in range(sum(facts))), before + sum(facts)


class Ever(EventCount):
    """Whether something happened at all, once or never."""

    name = "ever"

    def write(self, dice: Dice, n: int, level: int) -> DocumentDraft:
        """Writes deliveries, among them in every other document the one that is asked for."""
        things, places = ("abc", "xyz") if level == 0 else (COLOURS, PLACES)
        what, where = dice.choice(things), dice.choice(places)
        others = [(one, place) for one in things for place in places if (one, place) != (what, where)]
        pairs = [dice.choice(others) for _ in range(n)]
        if dice.below(2):
            pairs[dice.below(n)] = (what, where)
        facts = [int(pair == (what, where)) for pair in pairs]
        question = f"Any {what}{where}." if level == 0 else f"Is a {what} box ever sent to {where}?"
        return DocumentDraft(question, [self._entry(*pair, level) for pair in pairs], facts, self.written(any(facts)))

    def read(self, facts: Sequence[int], note: int | None, target: Any) -> tuple[str, bool]:
        """Says nothing beyond the note."""
        return "", bool(note) or any(facts)

    def merge(self, notes: Sequence[int]) -> tuple[str, bool]:
        """One yes is enough."""
        return "", any(notes)

    def written(self, note: int) -> str:
        """Returns yes or no."""
        return "yes" if note else "no"


class Largest(DocumentKind):
    """The largest of all balances."""

    name = "largest"

    def write(self, dice: Dice, n: int, level: int) -> DocumentDraft:
        """Writes balances of two or, at level 1, three digits, up to one that is drawn: no length makes it a guess."""
        least, most = (10, 99) if level == 0 else (100, 999)
        top = dice.integer(2 * least, most)
        facts = [dice.integer(least, top) for _ in range(n)]
        entries = [str(balance) if level == 0 else f"Then the balance is {balance}." for balance in facts]
        question = "Largest." if level == 0 else "What is the largest balance?"
        return DocumentDraft(question, entries, facts, str(max(facts)))

    def read(self, facts: Sequence[int], note: int | None, target: Any) -> tuple[str, int | None]:
        """Writes out every balance that is larger than all before it: ``26, 31``."""
        larger = []
        for balance in facts:
            if note is None or balance > note:
                note = balance
                larger.append(str(balance))
        return ", ".join(larger), note

    def merge(self, notes: Sequence[int | None]) -> tuple[str, int | None]:
        """Reads notes as it reads balances; some may be of nothing."""
        return self.read([note for note in notes if note is not None], None, None)

    def written(self, note: int | None) -> str:
        """Returns the number."""
        return NOTHING if note is None else str(note)


class NotedFacts(DocumentKind):
    """Kinds whose few facts are noted one by one, in the order of the text, until an answer follows from them."""

    sign = ""

    def read(self, facts: Sequence[Any], note: Any, target: Any) -> tuple[str, tuple[Any, ...]]:
        """Notes what is to the purpose; the note says it all."""
        return "", (*(note or ()), *(fact for fact in facts if fact is not None))

    def merge(self, notes: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
        """Returns all that was noted, in the readers' order."""
        return "", tuple(fact for note in notes for fact in note)

    def written(self, note: Any) -> str:
        """Returns the facts, as ``a>b c>d``."""
        return " ".join(f"{one}{self.sign}{other}" for one, other in note) or NOTHING

    def _placed(self, dice: Dice, n: int, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str] | None]:
        """Returns the facts at random places among n, in random order; None elsewhere."""
        places = sorted(dice.sample(range(n), len(pairs)))
        facts: list[tuple[str, str] | None] = [None] * n
        for place, fact in zip(places, dice.sample(pairs, len(pairs)), strict=True):
            facts[place] = fact
        return facts


class Lookup(NotedFacts):
    """A look-up with a hop: the boss of somebody's boss."""

    name, sign = "lookup", ">"

    def write(self, dice: Dice, n: int, level: int) -> DocumentDraft:
        """Writes two links that lead to the answer and two that do not, among relations of another kind."""
        names = LETTERS if level == 0 else NAMES
        asked, between, last, *others = dice.sample(names, 7)
        facts = self._placed(dice, n, [(asked, between), (between, last), (others[0], others[1]), (last, others[2])])
        entries = []
        for fact in facts:
            one, other = fact if fact is not None else dice.sample(names, 2)
            if level == 0:
                entries.append(f"{one}{'<' if fact is None else '>'}{other}")
            else:
                entries.append(f"{'A friend' if fact is None else 'The boss'} of {one} is {other}.")
        question = f"{asked}>>?" if level == 0 else f"Who is the boss of the boss of {asked}?"
        return DocumentDraft(question, entries, facts, last, asked)

    def conclude(self, note: Any, target: Any) -> tuple[str, str]:
        """Follows the links."""
        links = dict(note)
        return f"{target}>{links[target]}>{links[links[target]]}", links[links[target]]


class Conflict(NotedFacts):
    """A contradiction: somebody of whom two entries say different things."""

    name, sign = "conflict", "="

    def write(self, dice: Dice, n: int, level: int) -> DocumentDraft:
        """Writes a pair of claims that contradict each other and a pair that agree, among other statements."""
        names = LETTERS if level == 0 else NAMES
        low, high = (1, 9) if level == 0 else (20, 70)
        one, other = dice.sample(names, 2)
        first, second, same = dice.sample(range(low, high + 1), 3)
        pairs = [(one, str(first)), (one, str(second)), (other, str(same)), (other, str(same))]
        facts, entries = self._placed(dice, n, pairs), []
        for fact in facts:
            who, number = fact if fact is not None else (dice.choice(names), str(dice.integer(low, high)))
            if level == 0:
                entries.append(f"{who}{'+' if fact is None else '='}{number}")
            else:
                entries.append(f"{who} is {number}." if fact else f"{who} has {number} books.")
        question = "Odd=?" if level == 0 else "Of whom do two statements about the age differ?"
        return DocumentDraft(question, entries, facts, one)

    def conclude(self, note: Any, target: Any) -> tuple[str, str]:
        """Names the two claims."""
        ages: dict[str, str] = {}
        for who, age in note:
            if ages.setdefault(who, age) != age:
                return f"{who}={ages[who]}, {who}={age}", who
        raise ValueError("no claim contradicts another")


_ALL: tuple[DocumentKind, ...] = (Total(), EventCount(), Lookup(), Conflict(), Largest(), Ever())
KINDS: dict[str, DocumentKind] = {kind.name: kind for kind in _ALL}
