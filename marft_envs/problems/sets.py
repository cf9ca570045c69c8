"""Holds sets of problems by name: in a fixed order, found by position or id, drawn with the caller's generator."""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, overload

import numpy as np

from marft_envs.errors import ConfigError, DataError, did_you_mean
from marft_envs.problems.generators import Generators, Identified
from marft_envs.problems.rows import Lazy, pick


class Levelled(Identified, Protocol):
    """Has an id and a level, as a catalogue's problems do."""

    @property
    def level(self) -> int | None:
        """Returns how hard it is; None where its set does not say."""


_SETS_KEPT = 16
"""Sets of a catalogue that are kept for the next environment that asks for them."""
NUMBERED = "procedural/", "depot/"
"""How the ids of problems begin that are made, so many that they differ from others of their kind by a number."""
P = TypeVar("P", bound=Identified)
P_co = TypeVar("P_co", bound=Identified, covariant=True)
L = TypeVar("L", bound=Levelled)


class ProblemSet(Sequence[P], Generic[P]):
    """Problems of one data set or domain and split. Never changes; a deep copy is the set itself.

    Args:
        problems: In their order; ids are unique.
        name: What errors call the set.
        regenerate: Makes a problem from an id that is not in the set, or returns None; for procedural sets, whose ids
            work in every set.
        reload: A function and its arguments that give this very set again. Pickles then hold these instead of the
            problems.

    Raises:
        DataError: If there is no problem, or two have one id.
    """

    def __init__(
        self,
        problems: Iterable[P],
        name: str,
        regenerate: Callable[[str], P | None] | None = None,
        reload: tuple[Callable[..., ProblemSet[P]], tuple[Any, ...]] | None = None,
    ) -> None:
        self.name = name
        self._problems: Sequence[P] = problems if isinstance(problems, Lazy) else tuple(problems)
        ids = problems.ids if isinstance(problems, Lazy) else tuple(problem.id for problem in self._problems)
        self._places = {problem_id: i for i, problem_id in enumerate(ids)}
        self._regenerate, self._reload = regenerate, reload
        if not self._problems:
            raise DataError(f"'{name}' has no problem. Loosen split, levels or limit.")
        if len(self._places) < len(self._problems):
            twice = Counter(ids).most_common(1)[0][0]
            raise DataError(f"'{name}' has the id '{twice}' twice. Make ids unique, or leave the column out.")

    def __len__(self) -> int:
        return len(self._problems)

    @overload
    def __getitem__(self, index: int) -> P: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[P]: ...
    def __getitem__(self, index: int | slice) -> P | Sequence[P]:
        return self._problems[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> ProblemSet[P]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reload or (ProblemSet, (self._problems, self.name, self._regenerate))

    def get(self, problem_id: str) -> P:
        """Returns the problem with this id.

        Raises:
            DataError: If there is none.
        """
        place = self._places.get(problem_id)
        problem = None if place is None else self._problems[place]
        if problem is None and self._regenerate is not None:
            problem = self._regenerate(problem_id)
        if problem is None:
            like = f"Ids here look like '{self._problems[0].id}'."
            raise DataError(f"'{self.name}' has no problem with the id '{problem_id}'. {like}")
        return problem

    def draw(self, rng: np.random.Generator) -> P:
        """Returns one problem, uniformly."""
        return self._problems[int(rng.integers(len(self._problems)))]


class Problems(Protocol[P_co]):
    """Problems in a fixed order; :class:`ProblemSet` is the usual one."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> P_co: ...
    def get(self, problem_id: str) -> P_co:
        """Returns the problem of that id; raises :class:`marft_envs.errors.DataError` if there is none."""

    def draw(self, rng: np.random.Generator) -> P_co:
        """Returns one problem."""


def named_task(options: Mapping[str, Any]) -> str | None:
    """Returns ``options["task_id"]``, the one option that tasks here have; warns of others.

    They are no error, since PettingZoo's own ``api_test`` gives one that no environment has.

    Raises:
        ConfigError: The id is no text.
    """
    for key in options:
        if key != "task_id":
            warnings.warn(f"reset has no option '{key}'. {did_you_mean(str(key), ['task_id'])}", stacklevel=2)
    task_id = options.get("task_id")
    if task_id is not None and not isinstance(task_id, str):
        raise ConfigError(f"The option task_id is {task_id!r}; expected a problem's id, which is text.")
    return task_id


class Drawn(Generic[P]):
    """Implements what tasks share that draw a problem for each episode."""

    problems: Problems[P]
    """Where problems come from."""
    task_id = ""
    _problem: P | None = None

    @property
    def problem(self) -> P:
        """Returns the current problem, gold included; never shown to agents."""
        if self._problem is None:
            raise ConfigError("No problem has been drawn yet. Next: env.reset(seed=0).")
        return self._problem

    def draw(self, rng: np.random.Generator, options: Mapping[str, Any]) -> P:
        """Takes the problem ``options["task_id"]``, else draws one; see :func:`named_task`."""
        task_id = named_task(options)
        self._problem = problem = self.problems.get(task_id) if task_id is not None else self.problems.draw(rng)
        self.task_id = problem.id
        return problem

    def kind_of(self, task_id: str) -> str:
        """Returns the id without the number of a problem that is made; of others the id."""
        return task_id.rpartition("/")[0] if task_id.startswith(NUMBERED) else task_id

    def evaluation_set(self, n: int | None = None) -> list[str]:
        """Returns n task ids without replacement, in the set's order spread evenly (all when n is None)."""
        size = len(self.problems)
        n = size if n is None else min(n, size)
        return [self.problems[i * size // n].id for i in range(n)]


def spread(items: Sequence[P], limit: int | None) -> Sequence[P]:
    """Returns what ``evenly`` does, for a limit that a user has set.

    Raises:
        DataError: If the limit is below 1.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; expected at least 1, or None for all.")
    return evenly(items, limit)


def of_split(
    name: str,
    problems: Mapping[str, Sequence[L]] | Sequence[L],
    split: str,
    levels: Sequence[int] | None,
    limit: int | None,
) -> ProblemSet[L]:
    """Returns those of a user's problems, given by split or for every split, that have these levels (None: all).

    Raises:
        DataError: There is no such split, or nothing is left.
    """
    if isinstance(problems, Mapping):
        if split not in problems:
            raise DataError(f"'{name}' has no split '{split}'. There is: {', '.join(problems)}.")
        problems = problems[split]
    return ProblemSet(spread([p for p in problems if levels is None or p.level in levels], limit), f"{name} ({split})")


def evenly(items: Sequence[P], n: int | None) -> Sequence[P]:
    """Returns at most n of these (all when n is None), evenly spaced, so that each part of a set is represented."""
    return items if n is None or n >= len(items) else pick(items, [i * len(items) // n for i in range(n)])


def levels_of(data: str | Path, levels: int | Sequence[int] | None) -> int | Sequence[int] | None:
    """Returns the levels that an environment draws from: those given, else 0 of procedural problems, all of others."""
    return 0 if levels is None and str(data) == "procedural" else levels


def whole(levels: Any) -> tuple[int, ...] | None:
    """Returns levels as users write them, one by itself or several in a list; None: none are named.

    Raises:
        ConfigError: They are no whole numbers.
    """
    try:
        several = (levels,) if isinstance(levels, int) else levels
        return None if levels is None else tuple(index(level) for level in several)
    except TypeError:
        raise ConfigError(
            f"levels is {levels!r}; expected whole numbers, like 0 or [0, 1]. Name several levels in "
            "a list, or leave levels out."
        ) from None


@dataclass(frozen=True, slots=True)
class Conditions:
    """Which problems are wanted; equal ones give the same set."""

    name: str
    """One of a catalogue's ``names``, a hub id, or a path, in which ``{split}`` is replaced."""
    split: str
    kinds: tuple[str, ...] | None
    """Keep problems of these; None: all."""
    levels: tuple[int, ...] | None
    """Keep problems of these; those without a level are dropped then. None: all."""
    limit: int | None
    """At most so many, evenly spaced over what is left."""

    @classmethod
    def of(
        cls,
        name: str | Path,
        split: str,
        kinds: str | Sequence[str] | None,
        levels: int | Sequence[int] | None,
        limit: int | None,
    ) -> Conditions:
        """Makes conditions as users write them, one by itself or several in a list."""
        as_tuple = (kinds,) if isinstance(kinds, str) else None if kinds is None else tuple(kinds)
        return cls(str(name), split, as_tuple, whole(levels), limit)


@dataclass(frozen=True)
class Catalogue(Generic[L]):
    """A family's problems by name: made here (``procedural``), a set on the hub, or a file."""

    generators: Generators[Any, L]
    """The problems that are made here."""
    hub: Mapping[str, str]
    """Name -> id on the hub."""
    fetch: Callable[[str, str], Sequence[L]]
    """(name, split) -> everything of a hub set's split."""
    read: Callable[[Path, str | None], Sequence[L]]
    """(path, split, or None if the path is the split's own) -> a file's problems."""
    row: str
    """What a row of such a file needs, in words."""
    kind: str
    """What the kinds of problems are called."""
    kinds_of: Callable[[L], set[str]]
    """The kinds of a problem."""
    kinds: Sequence[str]
    """Those of problems that are made here."""
    check: Callable[[L], str] = lambda problem: ""
    """Why a problem cannot be used, or nothing."""
    _selected: OrderedDict[Conditions, tuple[Sequence[L], ProblemSet[L]]] = field(
        default_factory=OrderedDict, init=False, repr=False, compare=False
    )
    """Conditions -> what they chose from, and the set: hundreds of environments share one."""

    @property
    def names(self) -> tuple[str, ...]:
        """Returns every name that ``select`` knows; anything else is a path."""
        return ("procedural", *self.hub)

    def select(
        self,
        wanted: Conditions,
        filter: Callable[[L], bool] | None,
        reload: tuple[Callable[..., ProblemSet[L]], tuple[Any, ...]],
    ) -> ProblemSet[L]:
        """Returns the problems of a split that meet all conditions.

        Equal conditions give one and the same set, as long as what they choose from is the same (a file that was
        edited is read again). A ``filter`` is a condition that cannot be compared: with one, the set is a new one.

        Args:
            wanted: Which problems.
            filter: Keep the problems for which it is true.
            reload: A function and its arguments that select the same again, for pickles.

        Raises:
            DataError: Unknown name, no file, a bad row, an unreachable hub, or nothing left.
        """
        had = self._everything(wanted)
        if filter is not None:
            return self._choose(had, wanted, filter, None)
        known = self._selected.get(wanted)
        if known is None or known[0] is not had:
            known = had, self._choose(had, wanted, None, reload)
        self._selected[wanted] = known
        self._selected.move_to_end(wanted)
        if len(self._selected) > _SETS_KEPT:
            self._selected.popitem(last=False)
        return known[1]

    def _choose(
        self,
        had: Sequence[L],
        wanted: Conditions,
        filter: Callable[[L], bool] | None,
        reload: tuple[Callable[..., ProblemSet[L]], tuple[Any, ...]] | None,
    ) -> ProblemSet[L]:
        """Returns those of ``had`` that meet the conditions, as a new set."""
        made_here = wanted.name == "procedural"
        kinds, levels = wanted.kinds, None if made_here else wanted.levels

        def keep(p: L) -> bool:
            return bool(
                (kinds is None or self.kinds_of(p) & set(kinds))
                and (levels is None or p.level in levels)
                and (filter is None or filter(p))
            )

        if isinstance(had, Lazy):
            every = kinds is None and levels is None and filter is None
            kept: Sequence[L] = had if every else had.pick([i for i, p in enumerate(had) if keep(p)])
        else:
            kept = [p for p in had if keep(p)]
        if not kept:
            raise DataError(self._nothing_left(wanted, had))
        chosen = spread(kept, wanted.limit)
        for problem in () if made_here else chosen:
            if why := self.check(problem):
                raise DataError(f"'{wanted.name}': problem '{problem.id}' {why}")
        return ProblemSet(chosen, wanted.name, self._regenerate, reload if made_here else None)

    def _regenerate(self, problem_id: str) -> L | None:
        """Makes the problem of a procedural id, which works in every set; None for other ids."""
        return self.generators.from_id(problem_id) if problem_id.startswith("procedural/") else None

    def _everything(self, wanted: Conditions) -> Sequence[L]:
        """Returns all of a split; of the procedural set, these levels."""
        name, split = wanted.name, wanted.split
        by_hub_id = {hub_id: short for short, hub_id in self.hub.items()}
        if name == "procedural":
            return self.generators.deal(split, wanted.levels)
        if name in self.hub or name in by_hub_id:
            return self.fetch(by_hub_id.get(name, name), split)
        path = Path(name.replace("{split}", split)).expanduser()
        if path.is_file():
            return self.read(path, None if "{split}" in name else split)
        raise DataError(
            f"'{name}' is neither a data set nor a file. {did_you_mean(name, (*self.names, *by_hub_id))} "
            f"For your own data, give the path of a JSONL file with {self.row} in each row."
        )

    def _nothing_left(self, wanted: Conditions, had: Sequence[L]) -> str:
        """Says which of the conditions cannot be met, and what there is."""
        name, split, kinds, levels = wanted.name, wanted.split, wanted.kinds, wanted.levels
        known = sorted(set[str]().union(*map(self.kinds_of, had))) or list(self.kinds)
        for kind in kinds or ():
            if kind not in known:
                return f"'{name}' ({split}) has no problem of the {self.kind} '{kind}'. {did_you_mean(kind, known)}"
        has = sorted({p.level for p in had if p.level is not None})
        if levels is not None and not set(levels) & set(has):
            there = has or (self.generators.levels if name == "procedural" else "none at all")
            return f"'{name}' ({split}) has no problem of levels {list(levels)}. Levels there: {there}."
        return f"No problem of '{name}' ({split}) meets all the conditions. Loosen {self.kind}s, levels or filter."
