"""Generates problems by code, names them by ids, deals them to splits, and chooses some among all.

A generator at one level (and, for programs, in one mode) is a cell. Every problem is a pure function of its id,
``procedural/<cell>/<key>``. Train and test are disjoint by content: the SHA-256 of a problem's text decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from marft_envs.errors import ConfigError, DataError, check_known, did_you_mean
from marft_envs.problems.rows import Lazy
from marft_envs.problems.stored import stored

SPLITS = ("train", "test")


class Identified(Protocol):
    """Has an id, so that it can be in a problem set."""

    @property
    def id(self) -> str:
        """Returns its id, unique in its set."""


@dataclass(frozen=True, slots=True)
class ProblemWriter:
    """Writes the problems of one kind and level; it is pure, so a key names a problem for ever."""

    build: Callable[..., Any]
    keys: int = 2**32
    """Keys run from 0 to ``keys - 1``; a small number means that a key is an index into all the problems."""
    subject: str = ""


C = TypeVar("C", bound=tuple[Any, ...])
P = TypeVar("P", bound=Identified)
T = TypeVar("T")


def split_of(text: str) -> str:
    """Returns ``"test"`` for a quarter of all texts, else ``"train"``: by content, so none is in both."""
    return "test" if hashlib.sha256(text.encode()).digest()[0] % 4 == 0 else "train"


def distinct(write: Callable[[int], T], text: Callable[[T], str], most: int, attempts: int) -> list[T]:
    """Returns the first of different texts, in the order of their keys, until there are ``most``.

    Args:
        write: Makes one from its key.
        text: What two of them are compared by.
        most: How many are wanted.
        attempts: Keys tried for each, on average, before the cell counts as exhausted.
    """
    firsts: dict[str, T] = {}
    for key in range(most * attempts):
        new = write(key)
        firsts.setdefault(text(new), new)
        if len(firsts) == most:
            break
    return list(firsts.values())


def by_split(problems: Iterable[P], split_of: Callable[[P], str]) -> dict[str, list[int]]:
    """Returns the keys, with which ids end, of the problems of each split."""
    keys: dict[str, list[int]] = {split: [] for split in SPLITS}
    for problem in problems:
        keys[split_of(problem)].append(int(problem.id.rpartition("/")[2]))
    return keys


def dealt(panels: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Returns the ids of all panels, dealt round robin so that neighbours are of different kinds."""
    return tuple(p for p in chain.from_iterable(zip_longest(*panels)) if p is not None)


class Generators(Generic[C, P]):
    """Generates a family's problems by code.

    Args:
        cells: (generator, …, level) -> its cell, in a fixed order.
        build: (cell's parts, key) -> the problem; the same in every process.
        panel: (cell's parts) -> its first distinct problems.
        split_of: The split of a problem.
        kind: What cells can be chosen by besides generator and level, e.g. ``subject``, and what it is for each.
        form: An id in words, and an example.
        whole: What stands for both splits together.
    """

    def __init__(
        self,
        cells: Mapping[C, ProblemWriter],
        build: Callable[..., P],
        panel: Callable[..., tuple[P, ...]],
        split_of: Callable[[P], str],
        kind: tuple[str, Callable[[C], str]],
        form: str,
        whole: tuple[str | None, ...] = (None,),
    ) -> None:
        self._cells, self._build, self._panel, self._split_of = cells, build, panel, split_of
        self._kind, self._kind_of = kind
        self._form, self._whole = form, whole
        self.names = tuple(dict.fromkeys(cell[0] for cell in cells))
        self.levels = f"{min(cell[-1] for cell in cells)} to {max(cell[-1] for cell in cells)}"
        self.kinds = tuple(dict.fromkeys(map(self._kind_of, cells)))
        self.deal = lru_cache(maxsize=16)(self._deal)  # hundreds of environments share one set
        self._made = lru_cache(maxsize=4096)(self.from_id)  # and the problems that they play

    def check_split(self, split: str | None) -> None:
        """Raises ConfigError unless ``split`` is one that there is."""
        if split not in (*self._whole, *SPLITS):
            raise ConfigError(f"The procedural set has no split '{split}'. {did_you_mean(str(split), SPLITS)}")

    def _in(self, problem: P, split: str | None) -> bool:
        return split in self._whole or self._split_of(problem) == split

    def cells(self, level: int | None = None, *, generator: str | None = None, **kind: str | None) -> list[C]:
        """Returns all cells that match, in a fixed order. ``None`` matches everything.

        Raises:
            ConfigError: Nothing matches; the message names the nearest word or what there is.
        """
        wanted = kind.pop(self._kind, None)
        if kind:
            raise ConfigError(f"Procedural problems have no '{next(iter(kind))}'. Choose by {self._kind}.")
        for what, word, known in (("generator", generator, self.names), (self._kind, wanted, self.kinds)):
            check_known([] if word is None else [word], known, f"No procedural {what} '{{}}'.")
        there = [cell for cell in self._cells if generator in (None, cell[0]) and wanted in (None, self._kind_of(cell))]
        chosen = [cell for cell in there if level in (None, cell[-1])]
        if not chosen:
            wish = f"level={level}, {self._kind}={wanted!r}, generator={generator!r}"
            levels = sorted({cell[-1] for cell in there})
            raise ConfigError(f"No procedural problem with {wish}. These have the levels {levels}.")
        return chosen

    def generate(
        self,
        rng: np.random.Generator,
        level: int | None = 0,
        *,
        generator: str | None = None,
        split: str | None = None,
        **kind: str | None,
    ) -> P:
        """Draws one problem: a cell uniformly among those that match, then a key.

        Args:
            rng: The only source of randomness.
            level: None for every level.
            generator: A generator's name; None for every one.
            split: ``"train"``, ``"test"``, or None for both.
            **kind: ``subject`` or ``mode``, whichever the family has.

        Raises:
            ConfigError: Nothing matches.
        """
        self.check_split(split)
        among = self.cells(level, generator=generator, **kind)
        cell = among[int(rng.integers(len(among)))]
        while True:
            problem = self._build(*cell, int(rng.integers(self._cells[cell].keys)))
            if self._in(problem, split):
                return problem

    def parse(self, problem_id: str) -> tuple[Any, ...]:
        """Returns the cell's parts and the key that an id names.

        Raises:
            DataError: It is no id of a cell that exists; the message says what such ids look like.
        """
        first, *parts = problem_id.split("/")
        right = first == "procedural" and len(parts) == len(next(iter(self._cells))) + 1
        if not (right and parts[-2].isdecimal() and parts[-1].isdecimal()):
            raise DataError(f"'{problem_id}' is not the id of a procedural problem. Expected {self._form}.")
        name, *middle, level, key = parts
        check_known([name], self.names, f"'{problem_id}' names an unknown generator.", DataError)
        cell: Any = (name, *middle, int(level))
        if cell not in self._cells or int(key) >= self._cells[cell].keys:
            known = [(*cell[1:-1], f"level {cell[-1]} with keys below {self._cells[cell].keys}")
                     for cell in self.cells(generator=name)]  # fmt: skip
            raise DataError(f"'{problem_id}' is out of range: {name} has {', '.join(map(' '.join, known))}.")
        return (*cell, int(key))

    def from_id(self, problem_id: str) -> P:
        """Makes a problem again from its id.

        Raises:
            DataError: It is no id of a cell that exists.
        """
        return self._build(*self.parse(problem_id))

    def level0(self, split: str | None = None) -> list[P]:
        """Returns all level-0 problems of a split, in a fixed order."""
        self.check_split(split)
        return [problem for cell in self.cells(0) for problem in self._panel(*cell) if self._in(problem, split)]

    def _deal(self, split: str, levels: tuple[int, ...] | None) -> Lazy[P]:
        """Returns a split's share of the panels of these levels (None: all), dealt so that neighbours differ."""
        self.check_split(split)
        keys: dict[C, dict[str, list[int]]] = {}
        for level in {cell[-1] for cell in self._cells if levels is None or cell[-1] in levels}:
            keys.update(zip(self.cells(level), self._keys(level), strict=True))
        parts = SPLITS if split in self._whole else (split,)
        panels = ((cell, sorted(chain(*(keys[cell][part] for part in parts)))) for cell in self._cells if cell in keys)
        ids = dealt(["/".join(map(str, ("procedural", *cell, key))) for key in panel] for cell, panel in panels)
        return Lazy(ids, self._made)

    def _keys(self, level: int) -> list[dict[str, list[int]]]:
        """Returns the keys of the panel of each cell of a level, by split."""
        return stored(
            f"{self._build.__module__}.{level}",
            lambda: [by_split(self._panel(*cell), self._split_of) for cell in self.cells(level)],
        )
