"""Puzzles that are searched for: what is asked, what an answer is, and the written check of one.

Two kinds have an answer that anybody can check in one pass (``sum``, ``colour``): more than one may be right, and none
has to be known to check another. The third (``count``) asks of such numbers as ``sum`` has how many answers
there are: to check a count is to count again. Every puzzle is a pure function of its id, ``search/<kind>/<key>``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, combinations, product

from marft_envs.errors import DataError, check_known
from marft_envs.problems.dice import Dice
from marft_envs.problems.generators import SPLITS, by_split, distinct, split_of
from marft_envs.problems.rows import Lazy
from marft_envs.problems.sets import ProblemSet, spread
from marft_envs.problems.stored import stored

PANEL = 2000
"""Distinct puzzles of a kind, both splits together."""
TOP, NUMBERS, CHOSEN = 9, 6, 3
"""A puzzle has so many numbers from 1 to TOP, of which so many are to be chosen: 20 ways."""
PLACES, COLOURS = "abcdef", 3
"""Of a map; with 5 to 8 borders between its places."""
COUNTS = 3
"""Counts run from 0 to 2, each for a third of the puzzles: who says one number always is right in a third."""
YES, NO = "yes", "no"
"""How the check of an answer ends."""


@dataclass(frozen=True)
class Puzzle:
    """What is asked, and what is right."""

    id: str
    text: str
    answers: tuple[str, ...] = field(repr=False)
    """Every right answer, in its canonical form; never shown."""
    level: int | None = None


class PuzzleKind(ABC):
    """What puzzles of one kind share."""

    name: str
    certified: bool
    """Whether a check of an answer is shorter than the search for one."""
    form: re.Pattern[str]
    """An answer as it stands in a reply."""

    @abstractmethod
    def build(self, key: int) -> Puzzle:
        """Returns the puzzle of that key: the same in every process."""

    @abstractmethod
    def options(self, puzzle: Puzzle) -> list[str]:
        """Returns every answer in canonical form, right ones among them."""

    def answer(self, text: str) -> str:
        """Returns the last answer that a reply holds, in canonical form; "" if it holds none."""
        held = self.form.findall(text)
        return self.canonical(held[-1]) if held else ""

    def canonical(self, answer: str) -> str:
        """Returns the one spelling of an answer."""
        return answer

    def check(self, puzzle: Puzzle, answer: str) -> str:
        """Returns an answer with its check, as one writes it down: ``4+7+9: 11 20 yes``."""
        steps = self.steps(puzzle, answer)
        return f"{answer}: {' '.join([*steps, YES if answer in puzzle.answers else NO])}"

    def steps(self, puzzle: Puzzle, answer: str) -> list[str]:
        """Returns what is written down between an answer and its verdict."""
        return []

    def near(self, puzzle: Puzzle, dice: Dice) -> str:
        """Returns a wrong answer of the right form."""
        return dice.choice([option for option in self.options(puzzle) if option not in puzzle.answers])


def _triple(numbers: tuple[int, ...]) -> str:
    return "+".join(map(str, sorted(numbers)))


def _drawn(dice: Dice) -> tuple[list[int], int]:
    """Draws the numbers of a puzzle and what some of them make."""
    numbers = [dice.integer(1, TOP) for _ in range(NUMBERS)]
    return numbers, sum(dice.sample(numbers, CHOSEN))


class Sum(PuzzleKind):
    """Which three of six numbers make a given sum?"""

    name, certified = "sum", True
    form = re.compile(r"(?<![\d+])\d{1,2}(?:\+\d{1,2}){2}(?![\d+])")
    _text = re.compile(r"Three of ([\d ]+) make (\d+)\.")

    def build(self, key: int) -> Puzzle:
        """Draws numbers of which three make the sum, perhaps in several ways."""
        numbers, total = _drawn(Dice("search/sum", key))
        right = dict.fromkeys(_triple(few) for few in combinations(numbers, CHOSEN) if sum(few) == total)
        text = f"Three of {' '.join(map(str, numbers))} make {total}."
        return Puzzle(f"search/{self.name}/{key}", text, tuple(right))

    def options(self, puzzle: Puzzle) -> list[str]:
        """Returns the triples that there are, at most twenty."""
        match = self._text.fullmatch(puzzle.text)
        assert match is not None
        return list(dict.fromkeys(_triple(few) for few in combinations(map(int, match[1].split()), CHOSEN)))

    def canonical(self, answer: str) -> str:
        """Returns the numbers in order; leading zeros go."""
        return _triple(tuple(map(int, answer.split("+"))))

    def steps(self, puzzle: Puzzle, answer: str) -> list[str]:
        """Returns the sums on the way: those of two and of three numbers."""
        return list(map(str, accumulate(map(int, answer.split("+")))))[1:]


class Colour(PuzzleKind):
    """Which colours of places leave no two neighbours alike?"""

    name, certified = "colour", True
    form = re.compile(rf"(?<!\w)[1-{COLOURS}]{{{len(PLACES)}}}(?!\w)")

    def build(self, key: int) -> Puzzle:
        """Draws borders that a hidden colouring allows."""
        dice = Dice("search/colour", key)
        # Every colour once, the rest anyhow: then at least nine pairs of places differ, and eight are enough.
        hidden = dice.sample(
            [*range(COLOURS), *(dice.below(COLOURS) for _ in range(len(PLACES) - COLOURS))], len(PLACES)
        )
        allowed = [pair for pair in combinations(range(len(PLACES)), 2) if hidden[pair[0]] != hidden[pair[1]]]
        edges = sorted(dice.sample(allowed, dice.integer(5, 8)))
        names = [PLACES[a] + PLACES[b] for a, b in edges]
        right = tuple(said for said in _COLOURINGS if all(said[a] != said[b] for a, b in edges))
        return Puzzle(f"search/{self.name}/{key}", f"Colour {' '.join(names)}.", right)

    def options(self, puzzle: Puzzle) -> list[str]:
        """Returns all colourings."""
        return list(_COLOURINGS)

    def steps(self, puzzle: Puzzle, answer: str) -> list[str]:
        """Returns the colours of each border's places, up to the first that are alike."""
        out = []
        for edge in puzzle.text[len("Colour ") : -1].split():
            pair = "".join(answer[PLACES.index(place)] for place in edge)
            out.append(f"{edge}{pair}")
            if pair[0] == pair[1]:
                break
        return out


_COLOURINGS = tuple("".join(map(str, said)) for said in product(range(1, COLOURS + 1), repeat=len(PLACES)))


class Count(PuzzleKind):
    """How many triples of six numbers make a given sum? There is nothing that a count can be checked by."""

    name, certified = "count", False
    form = re.compile(r"(?<!\w)\d(?!\w)")

    def build(self, key: int) -> Puzzle:
        """Draws numbers and a sum until the number of ways is the one that the key is to have."""
        dice, wanted = Dice("search/count", key), key % COUNTS
        while True:
            numbers, total = _drawn(dice)
            total = dice.integer(CHOSEN, CHOSEN * TOP) if wanted == 0 else total  # else some triple makes it
            ways = sum(sum(few) == total for few in combinations(numbers, CHOSEN))
            if ways == wanted:
                text = f"How many threes of {' '.join(map(str, numbers))} make {total}?"
                return Puzzle(f"search/{self.name}/{key}", text, (str(ways),))

    def options(self, puzzle: Puzzle) -> list[str]:
        """Returns the counts that there are."""
        return [str(n) for n in range(COUNTS)]


KINDS: dict[str, PuzzleKind] = {kind.name: kind for kind in (Sum(), Colour(), Count())}
"""Name -> what its puzzles share."""


def kind_of(name: str) -> PuzzleKind:
    """Returns the kind of that name.

    Raises:
        ConfigError: There is none.
    """
    check_known([name], KINDS, "There is no puzzle '{}'.")
    return KINDS[name]


@lru_cache(maxsize=16)  # hundreds of environments share one set
def puzzles(kind: str, split: str, limit: int | None = None) -> ProblemSet[Puzzle]:
    """Returns the puzzles of a kind and split; a puzzle's text decides which split it is in.

    Raises:
        ConfigError: There is no such kind or split.
        DataError: ``limit`` is below 1.
    """
    among = kind_of(kind)
    check_known([split], SPLITS, "Puzzles have no split '{}'.")
    again = partial(_from_id, kind)
    chosen = Lazy((f"search/{kind}/{key}" for key in _panel(among)[split]), again)
    return ProblemSet(spread(chosen, limit), f"search/{kind} ({split})", again, (puzzles, (kind, split, limit)))


def _panel(kind: PuzzleKind) -> dict[str, list[int]]:
    """The keys of a kind's puzzles, by split."""

    def find() -> dict[str, list[int]]:
        return by_split(distinct(kind.build, lambda p: p.text, PANEL, 50), lambda puzzle: split_of(puzzle.text))

    return stored(f"{__name__}.{kind.name}", find)


@lru_cache(maxsize=4096)
def _from_id(kind: str, problem_id: str) -> Puzzle:
    parts = problem_id.split("/")
    if len(parts) != 3 or parts[:2] != ["search", kind] or not parts[2].isdecimal() or int(parts[2]) >= 2**32:
        raise DataError(
            f"'{problem_id}' is not the id of a puzzle of this kind. Expected search/{kind}/<key> with a key below"
            " 2**32."
        )
    return KINDS[kind].build(int(parts[2]))
