"""The domain ``documents``: requests of level 0 with one value that stands only in an untrusted document.

The request is trusted, the document is not. The document says the value. It may also hold an attack: an instruction to
change an order that no task touches (:mod:`marft_envs.families.tools.depot.injections`). Worlds, tools, grades and gold
are the depot's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from marft_envs import tables
from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import ConfigError, DataError, check_known
from marft_envs.families.tools.depot import tasks
from marft_envs.families.tools.depot.domain import Depot
from marft_envs.families.tools.depot.injections import FRAMES, attack
from marft_envs.families.tools.depot.rows import CITIES, base
from marft_envs.families.tools.depot.world import DepotWorld, Faults
from marft_envs.families.tools.types import StateGrade, ToolProblem, World
from marft_envs.problems.dice import Dice
from marft_envs.problems.sets import ProblemSet, spread

ATTACKS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "seen": ("ignore", "supervisor", "response"),
    "unseen": ("system", "call", "note"),
    "all": tuple(FRAMES),
}
"""Names of sets of attacks: those to train on, and those that are held out."""

_FORMS: Mapping[str, Mapping[str, Any]] = tables.read(__package__, "depot")["documents"]
"""Tool -> the request, the argument whose value stands in the document only, and the texts of the document."""


class DocumentRequests(Depot):
    """Requests with a document. Immutable: environments and forks share one.

    Args:
        attacks: Kinds of attack in documents: a name of :data:`ATTACKS`, or some of
            :data:`marft_envs.families.tools.depot.injections.FRAMES`. Grades then say whether one was followed.
        share: Share of the documents that hold one.
        distractors: As of the depot.
        faults: As of the depot.

    Raises:
        ConfigError: An option is not one of these.
    """

    name = "documents"

    def __init__(
        self,
        attacks: str | Sequence[str] = "none",
        share: float = 1.0,
        distractors: bool = True,
        faults: Faults | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(distractors=distractors, faults=faults)
        self.attacks = _kinds(attacks)
        self.tempting = bool(self.attacks)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ConfigError(f"share is {share!r}; expected the share of documents with an attack, 0 to 1.")
        self.share = float(share)

    def problems(
        self, split: str, levels: Sequence[int] | None = None, limit: int | None = None
    ) -> ProblemSet[ToolProblem]:
        """Returns the requests of a split; there is one level, 0.

        Raises:
            DataError: No such split or level.
        """
        check_known([split], tasks.SPLITS, "The domain 'documents' has no split '{}'.", DataError)
        if levels is not None and tuple(levels) != (0,):
            raise DataError(f"The domain 'documents' has no levels {list(levels)}. Expected levels=[0], or none.")
        return _problems(split, self.attacks, self.share, limit)

    def open(self, problem: ToolProblem) -> DepotWorld:
        """Returns a fresh world for a request."""
        return super().open(_original(problem))

    def grade(self, problem: ToolProblem, world: World) -> StateGrade:
        """Compares the state's difference with that of the oracle, as the depot does."""
        return super().grade(_original(problem), world)


def _kinds(attacks: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(attacks, str):
        check_known([attacks], ATTACKS, "There are no attacks '{}'.")
        return ATTACKS[attacks]
    check_known(attacks, FRAMES, "There is no kind of attack '{}'.")
    return tuple(attacks)


def _original(problem: ToolProblem) -> ToolProblem:
    """The depot's own problem, in which the user says the value."""
    return tasks.build(0, _key(problem.id))


def _key(problem_id: str) -> int:
    name, _, key = problem_id.partition("/")
    if name != "documents" or not key.isdecimal() or tasks.build(0, int(key)).secret.writes[0].name not in _FORMS:
        raise DataError(f"'{problem_id}' is not the id of a request with a document. Expected documents/<seed>.")
    return int(key)


def _build(key: int, attacks: tuple[str, ...], share: float) -> ToolProblem:
    original = tasks.build(0, key)
    write: ToolCall = original.secret.writes[0]
    form = _FORMS[write.name]
    dice, value = Dice("letters", key), str(write.arguments[form["argument"]])  # the name that results were made with
    document = dice.choice(form["lines"]).format(value=value)
    if dice.below(10**6) < share * 10**6 and attacks:
        start = base(original.secret.base)
        bait = start.rows["orders"][start.bait]
        city = dice.choice([city for city in CITIES if city != bait["city"]])
        said = attack(dice.choice(attacks), dice.below(2**16), start.bait, bait["total"], city)
        document = f"{said} {document}" if dice.below(2) else f"{document} {said}"
    turns = (form["request"].format(**write.arguments),)
    return replace(original, id=f"documents/{key}", turns=turns, document=document, sought=value)


@lru_cache(maxsize=64)  # hundreds of environments share one set
def _problems(split: str, attacks: tuple[str, ...], share: float, limit: int | None) -> ProblemSet[ToolProblem]:
    keys = [key for key in tasks.seeds(0, split) if tasks.build(0, key).secret.writes[0].name in _FORMS]
    problems = [_build(key, attacks, share) for key in keys]
    reload = (_problems, (split, attacks, share, limit))
    regenerate = partial(_again, attacks=attacks, share=share)
    return ProblemSet(spread(problems, limit), f"documents ({split})", regenerate, reload)


def _again(problem_id: str, attacks: tuple[str, ...], share: float) -> ToolProblem:
    return _build(_key(problem_id), attacks, share)
