"""A made corpus of facts, and questions of one to four hops: a pure function of its world; splits share no name."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

from marft_envs import tables
from marft_envs.errors import ConfigError, check_known
from marft_envs.families.rag.question import OpenQuestion
from marft_envs.problems.dice import Dice
from marft_envs.problems.generators import SPLITS, split_of
from marft_envs.problems.index import Index, Passage
from marft_envs.problems.rows import Lazy
from marft_envs.problems.sets import ProblemSet, evenly, spread

HOPS = (1, 2, 3, 4)
RELATIONS = {0: ("1", "2", "3"), 1: ("boss", "friend", "teacher")}
"""By level."""
RESULTS = {0: 2, 1: 3}
"""Passages that a search returns: the one that says it, and others with the same words."""
_WORDS = tables.read(__package__, "names")
NAMES = {
    0: tuple(map(str, range(100, 1000))),
    1: tuple(f"{one} {two}{three}" for one, two, three in product(*_WORDS.values())),
}


class FactWorld:
    """The facts of a split: every name has one other name in every relation, and is that of one other.

    Args:
        level: 0 (numbers, for the embedded models) or 1 (people, in prose).
        number: Which world; another number has other facts.
        split: ``train`` or ``test``.
    """

    def __init__(self, level: int, number: int, split: str) -> None:
        self.level, self.facts = level, dict[tuple[str, str], str]()
        self.names = [name for name in NAMES[level] if split_of(f"rag/{level}/{name}") == split]
        for relation in RELATIONS[level]:
            ring = Dice(f"rag/{level}/{split}/{relation}", number).sample(self.names, len(self.names))
            self.facts |= {(one, relation): other for one, other in zip(ring, [*ring[1:], ring[0]], strict=True)}
        numbered = enumerate(sorted(self.facts), start=1)
        self.ids = {fact: str(place) if level else "".join(fact) for place, fact in numbered}

    def passages(self) -> list[Passage]:
        """Returns every fact."""
        told = "The {1} of {0} is {2}." if self.level else "{} {} {}"
        return [
            Passage(self.ids[fact], fact[0] if self.level else "", told.format(*fact, other))
            for fact, other in self.facts.items()
        ]

    def question(self, question_id: str) -> OpenQuestion:
        """Returns the question with that id: what one comes to from a name along relations."""
        hops, key = (int(question_id.split("/")[i]) for i in (1, 4))
        name = at = NAMES[self.level][key // 3**hops]
        path = [RELATIONS[self.level][key // 3**i % 3] for i in range(hops)]
        steps, needed = [], []
        for relation in path:
            query = f"{relation} of {at}" if self.level else f"{at} {relation}"
            needed.append(self.ids[at, relation])
            at = self.facts[at, relation]
            steps.append((query, f"{at} [{needed[-1]}]" if self.level else at))
        asked = f"Who is the {' of the '.join(path[::-1])} of {name}?" if self.level else f"{name} {' '.join(path)}?"
        return OpenQuestion(question_id, asked, (at,), tuple(needed), tuple(steps))


@lru_cache(maxsize=8)
def world(level: int, number: int, split: str) -> tuple[FactWorld, Index]:
    """Returns a world and the index of its facts.

    Raises:
        ConfigError: There is no such level, world or split.
    """
    check_known([split], SPLITS, "The procedural questions have no split '{}'.")
    if level not in RELATIONS or type(number) is not int or number < 0:
        raise ConfigError(
            f"level={level!r}, world={number!r}: expected level 0 (terse) or 1 (prose), a world from 0 on."
        )
    made = FactWorld(level, number, split)
    return made, Index.of(made.passages())


@lru_cache(maxsize=16)
def questions(
    hops: tuple[int, ...], level: int, number: int, split: str, limit: int | None
) -> ProblemSet[OpenQuestion]:
    """Returns the questions of some numbers of hops, as many of each.

    Raises:
        ConfigError: There is no such number of hops, level, world or split.
        DataError: A limit below 1.
    """
    if not hops or not set(hops) <= set(HOPS):
        raise ConfigError(f"hops is {list(hops)!r}; expected whole numbers from 1 to {HOPS[-1]}.")
    here, _ = world(level, number, split)
    starts = [place for place, name in enumerate(NAMES[level]) if (name, RELATIONS[level][0]) in here.facts]
    ids = []
    for n in dict.fromkeys(hops):
        keys = evenly([place * 3**n + path for place in starts for path in range(3**n)], len(starts) * 3 ** min(hops))
        ids += [f"procedural/{n}/{level}/{number}/{key}" for key in keys]
    again = questions, (hops, level, number, split, limit)
    return ProblemSet(spread(Lazy(ids, here.question), limit), f"procedural ({split})", reload=again)
