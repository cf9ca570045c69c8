"""A made corpus of facts, and questions of one to four hops: a pure function of its world; splits share no name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product

from marft_envs.errors import ConfigError, DataError, check_known
from marft_envs.families.rag.index import Index, Passage
from marft_envs.families.rag.question import Question
from marft_envs.problems.dice import Dice
from marft_envs.problems.generators import SPLITS, split_of
from marft_envs.problems.rows import Lazy
from marft_envs.problems.sets import ProblemSet, evenly, spread

MOST_HOPS = 4
RELATIONS = {0: ("a", "b", "c"), 1: ("boss", "friend", "teacher")}
"""By level."""
RESULTS = {0: 2, 1: 3}
"""Passages that a search returns: the one that says it, and others with the same words."""
_FIRST = (
    "Ann", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jack", "Kim", "Lea", "Max", "Nora", "Otto",
    "Pia", "Quin", "Rosa", "Sam", "Tom", "Uma", "Vera", "Will", "Yan", "Zoe",
)  # fmt: skip
_LAST = tuple(a + b for a, b in product(("Ash", "Brad", "Clay", "Hart", "Kirk", "Lang", "Mel", "Nor", "Shel", "Wal"),
                                        ("by", "field", "ham", "ton")))  # fmt: skip
NAMES = {0: tuple(map(str, range(100, 1000))), 1: tuple(map(" ".join, product(_FIRST, _LAST)))}


class World:
    """The facts of a split: every name has one other name in every relation, and is that of one other.

    Args:
        level: 0 (numbers and letters, for the embedded models) or 1 (people, in prose).
        number: Which world; another number has other facts.
        split: ``train`` or ``test``.

    Raises:
        ConfigError: There is no such level or split.
    """

    def __init__(self, level: int, number: int, split: str) -> None:
        if level not in RELATIONS:
            raise ConfigError(f"Questions have no level {level!r}. Expected 0 (terse) or 1 (prose).")
        check_known([split], SPLITS, "The procedural questions have no split '{}'.")
        if type(number) is not int or number < 0:
            raise ConfigError(f"world is {number!r}; expected the number of a world, 0 or more.")
        self.level, self.number = level, number
        self.names = [name for name in NAMES[level] if split_of(f"rag/{level}/{name}") == split]
        self.facts: dict[tuple[str, str], str] = {}
        self.ids: dict[tuple[str, str], str] = {}
        for relation in RELATIONS[level]:
            ring = Dice(f"rag/{level}/{split}/{relation}", number).sample(self.names, len(self.names))
            self.facts |= {(one, relation): other for one, other in zip(ring, [*ring[1:], ring[0]], strict=True)}
        for place, (one, relation) in enumerate(sorted(self.facts), start=1):
            self.ids[one, relation] = f"{one}{relation}" if level == 0 else str(place)

    def passages(self) -> list[Passage]:
        """Returns every fact."""
        if self.level == 0:
            return [Passage(self.ids[k], "", f"{k[0]} {k[1]} {self.facts[k]}") for k in self.ids]
        return [Passage(self.ids[k], k[0], f"The {k[1]} of {k[0]} is {self.facts[k]}.") for k in self.ids]

    def question(self, name: str, path: Sequence[str], question_id: str) -> Question:
        """Returns the question for what one comes to from a name along relations, the first one first."""
        at, steps, needed = name, [], []
        for relation in path:
            query = f"{at} {relation}" if self.level == 0 else f"{relation} of {at}"
            needed.append(self.ids[at, relation])
            at = self.facts[at, relation]
            steps.append((query, at if self.level == 0 else f"{at} [{needed[-1]}]"))
        asked = f"{name} {' '.join(path)}?"
        if self.level == 1:
            asked = f"Who is {' of '.join(f'the {relation}' for relation in reversed(path))} of {name}?"
        return Question(question_id, asked, (at,), tuple(needed), tuple(steps))


@lru_cache(maxsize=8)
def world(level: int, number: int, split: str) -> tuple[World, Index]:
    """Returns a world and the index of its facts."""
    made = World(level, number, split)
    return made, Index.of(made.passages())


@lru_cache(maxsize=16)
def questions(hops: tuple[int, ...], level: int, number: int, split: str, limit: int | None) -> ProblemSet[Question]:
    """Returns the questions of some numbers of hops, as many of each.

    Raises:
        ConfigError: There is no such number of hops, level, world or split.
        DataError: A limit below 1.
    """
    if not hops or not all(type(n) is int and 1 <= n <= MOST_HOPS for n in hops):
        raise ConfigError(f"hops is {list(hops)!r}; expected whole numbers from 1 to {MOST_HOPS}.")
    here, _ = world(level, number, split)
    places = {name: place for place, name in enumerate(NAMES[level])}
    size = len(here.names) * 3 ** min(hops)
    ids = [
        f"procedural/{n}/{level}/{number}/{key}"
        for n in dict.fromkeys(hops)
        for key in evenly([places[name] * 3**n + code for name in here.names for code in range(3**n)], size)
    ]

    def make(question_id: str) -> Question:
        made = _from_id(question_id, here)
        if made is None:
            raise DataError(f"'{question_id}' is not the id of a question of this world and split, like '{ids[0]}'.")
        return made

    again = questions, (hops, level, number, split, limit)
    return ProblemSet(spread(Lazy(ids, make), limit), f"procedural ({split})", make, again)


def _from_id(question_id: str, here: World) -> Question | None:
    first, *numbers = question_id.split("/")
    if first != "procedural" or len(numbers) != 4 or not all(n.isascii() and n.isdecimal() for n in numbers):
        return None
    hops, level, number, key = map(int, numbers)
    if (level, number) != (here.level, here.number) or not 1 <= hops <= MOST_HOPS:
        return None
    place, code = divmod(key, 3**hops)
    name = NAMES[level][place] if place < len(NAMES[level]) else ""
    path = [RELATIONS[level][code // 3**i % 3] for i in range(hops)]
    return here.question(name, path, question_id) if (name, path[0]) in here.facts else None
