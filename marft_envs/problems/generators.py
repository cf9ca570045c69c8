"""Generates problems by code, names them by ids, assigns them to splits, and chooses some among all.

A *variant* is a generator at one level (and, for programs, in one mode), e.g. ``two_step/0``. Every problem is a pure
function of its id, ``procedural/<variant>/<key>``. Train and test are disjoint by content: the SHA-256 of a problem's
text decides. Of each variant, the first distinct problems in the order of their keys are *listed*.
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
        attempts: Keys tried for each, on average, before the variant counts as exhausted.
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


def dealt(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Returns the ids of all lists in turn (round robin), so that neighbours are of different kinds."""
    return tuple(p for p in chain.from_iterable(zip_longest(*lists)) if p is not None)


class Generators(Generic[C, P]):
    """Generates a family's problems by code.

    Args:
        variants: (generator, …, level) -> what writes its problems, in a fixed order.
        build: (variant's parts, key) -> the problem; the same in every process.
        listed: (variant's parts) -> its listed problems.
        split_of: The split of a problem.
        kind: What variants can be chosen by besides generator and level, e.g. ``subject``, and what it is for each.
        form: An id in words, and an example.
        whole: What stands for both splits together.
    """

    def __init__(
        self,
        variants: Mapping[C, ProblemWriter],
        build: Callable[..., P],
        listed: Callable[..., tuple[P, ...]],
        split_of: Callable[[P], str],
        kind: tuple[str, Callable[[C], str]],
        form: str,
        whole: tuple[str | None, ...] = (None,),
    ) -> None:
        self._variants, self._build, self._listed, self._split_of = variants, build, listed, split_of
        self._kind, self._kind_of = kind
        self._form, self._whole = form, whole
        self.names = tuple(dict.fromkeys(variant[0] for variant in variants))
        self.levels = f"{min(variant[-1] for variant in variants)} to {max(variant[-1] for variant in variants)}"
        self.kinds = tuple(dict.fromkeys(map(self._kind_of, variants)))
        self.deal = lru_cache(maxsize=16)(self._deal)  # hundreds of environments share one set
        self._made = lru_cache(maxsize=4096)(self.from_id)  # and the problems that they play

    def check_split(self, split: str | None) -> None:
        """Raises ConfigError unless ``split`` is one that there is."""
        if split not in (*self._whole, *SPLITS):
            raise ConfigError(f"The procedural set has no split '{split}'. {did_you_mean(str(split), SPLITS)}")

    def _in(self, problem: P, split: str | None) -> bool:
        return split in self._whole or self._split_of(problem) == split

    def variants(self, level: int | None = None, *, generator: str | None = None, **kind: str | None) -> list[C]:
        """Returns all variants that match, in a fixed order. ``None`` matches everything.

        Raises:
            ConfigError: Nothing matches; the message names the nearest word or what there is.
        """
        wanted = kind.pop(self._kind, None)
        if kind:
            raise ConfigError(f"Procedural problems have no '{next(iter(kind))}'. Choose by {self._kind}.")
        for what, word, known in (("generator", generator, self.names), (self._kind, wanted, self.kinds)):
            check_known([] if word is None else [word], known, f"No procedural {what} '{{}}'.")
        there = [v for v in self._variants if generator in (None, v[0]) and wanted in (None, self._kind_of(v))]
        chosen = [variant for variant in there if level in (None, variant[-1])]
        if not chosen:
            wish = f"level={level}, {self._kind}={wanted!r}, generator={generator!r}"
            levels = sorted({variant[-1] for variant in there})
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
        """Draws one problem: a variant uniformly among those that match, then a key.

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
        among = self.variants(level, generator=generator, **kind)
        variant = among[int(rng.integers(len(among)))]
        while True:
            problem = self._build(*variant, int(rng.integers(self._variants[variant].keys)))
            if self._in(problem, split):
                return problem

    def parse(self, problem_id: str) -> tuple[Any, ...]:
        """Returns the variant's parts and the key that an id names.

        Raises:
            DataError: It is no id of a variant that exists; the message says what such ids look like.
        """
        first, *parts = problem_id.split("/")
        right = first == "procedural" and len(parts) == len(next(iter(self._variants))) + 1
        if not (right and parts[-2].isdecimal() and parts[-1].isdecimal()):
            raise DataError(f"'{problem_id}' is not the id of a procedural problem. Expected {self._form}.")
        name, *middle, level, key = parts
        check_known([name], self.names, f"'{problem_id}' names an unknown generator.", DataError)
        variant: Any = (name, *middle, int(level))
        if variant not in self._variants or int(key) >= self._variants[variant].keys:
            known = [(*variant[1:-1], f"level {variant[-1]} with keys below {self._variants[variant].keys}")
                     for variant in self.variants(generator=name)]  # fmt: skip
            raise DataError(f"'{problem_id}' is out of range: {name} has {', '.join(map(' '.join, known))}.")
        return (*variant, int(key))

    def from_id(self, problem_id: str) -> P:
        """Makes a problem again from its id.

        Raises:
            DataError: It is no id of a variant that exists.
        """
        return self._build(*self.parse(problem_id))

    def level0(self, split: str | None = None) -> list[P]:
        """Returns all level-0 problems of a split, in a fixed order."""
        self.check_split(split)
        return [problem for v in self.variants(0) for problem in self._listed(*v) if self._in(problem, split)]

    def _deal(self, split: str, levels: tuple[int, ...] | None) -> Lazy[P]:
        """Returns a split's share of these levels' listed problems (None: all), so that neighbours differ."""
        self.check_split(split)
        keys: dict[C, dict[str, list[int]]] = {}
        for level in {variant[-1] for variant in self._variants if levels is None or variant[-1] in levels}:
            keys.update(zip(self.variants(level), self._keys(level), strict=True))
        parts = SPLITS if split in self._whole else (split,)
        lists = ((v, sorted(chain(*(keys[v][part] for part in parts)))) for v in self._variants if v in keys)
        ids = dealt(["/".join(map(str, ("procedural", *variant, key))) for key in listed] for variant, listed in lists)
        return Lazy(ids, self._made)

    def _keys(self, level: int) -> list[dict[str, list[int]]]:
        """Returns the keys of the listed problems of each variant of a level, by split."""
        return stored(
            f"{self._build.__module__}.{level}",
            lambda: [by_split(self._listed(*variant), self._split_of) for variant in self.variants(level)],
        )
