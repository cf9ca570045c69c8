"""Documents made from nothing, of any length: each is a pure function of its id, made when it is asked for.

Train and test are disjoint by content: the SHA-256 of question and text decides (a quarter is test).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from marft_envs.errors import ConfigError, DataError, check_known
from marft_envs.families.docs.document import Document
from marft_envs.families.docs.kinds import KINDS
from marft_envs.problems.dice import Dice
from marft_envs.problems.generators import SPLITS, split_of

LEVELS = (0, 1)
PER_PAGE = {0: 4, 1: 6}
"""Entries of a page, by level."""
PAGES_PER_WINDOW = 2
"""A document of length 1, which one window holds, has so many pages: a reader's page leaves room for a note."""
WINDOW = {0: 40, 1: 400}
"""Characters of task and contributions that an agent sees, by level: a document of length 1 fits, of length 2 none."""
LONGEST = 64
"""Longest document, in windows."""
LISTED = 600
"""Documents of a kind and length that are listed in a split; training draws from more."""
_KEYS = 2**32


@lru_cache(maxsize=8192)
def build(kind: str, length: int, level: int, key: int) -> Document:
    """Makes the document of one key: the same in every process."""
    per_page = PER_PAGE[level]
    pages = PAGES_PER_WINDOW * length
    draft = KINDS[kind].write(Dice(f"docs/{kind}/{length}/{level}", key), per_page * pages, level)
    return Document(
        id=f"procedural/{kind}/{length}/{level}/{key}",
        kind=kind,
        question=draft.question,
        entries=tuple(draft.entries),
        pages=tuple(per_page * (i + 1) for i in range(pages)),
        answers=(draft.answer,),
        separator=("" if kind == "total" else " ") if level == 0 else "\n",
        end="." if level == 0 else "\nThe end.",
        level=level,
        length=length,
        facts=tuple(draft.facts),
        target=draft.target,
    )


def from_id(document_id: str) -> Document:
    """Makes a document again from its id.

    Raises:
        DataError: It is no id of a document that can be made; the message says what such ids look like.
    """
    first, *parts = document_id.split("/")
    numbers = parts[1:]
    whole = first == "procedural" and len(parts) == 4 and all(n.isascii() and n.isdecimal() for n in numbers)
    if whole and parts[0] in KINDS and max(map(len, numbers)) < 11:
        length, level, key = map(int, numbers)
        if 1 <= length <= LONGEST and level in LEVELS and key < _KEYS:
            return build(parts[0], length, level, key)
    raise DataError(
        f"'{document_id}' is not the id of a document. Expected procedural/<kind>/<length>/<level>/<key>, e.g. "
        f"procedural/total/2/0/7: kinds {', '.join(KINDS)}, lengths 1 to {LONGEST}, levels 0 and 1."
    )


def part(document: Document) -> str:
    """Returns the split that a document is in."""
    return split_of(f"{document.question}\n{document.text(0, len(document.entries))}")


class Made:
    """The documents of some kinds and lengths and one level, in a fixed order; training draws beyond those listed.

    The order is kind by kind and length by length, not in turn, so every k-th document is as often of each, for any k.

    Args:
        kinds: Names of ``KINDS``; None: all.
        lengths: In windows.
        level: 0 or 1.
        split: ``train`` or ``test``.
        limit: At most so many are listed, as many of each kind and length, and none but these is drawn.

    Raises:
        ConfigError: There is no such kind, length, level, split or limit.
    """

    def __init__(
        self, kinds: Sequence[str] | None, lengths: Sequence[int], level: int, split: str, limit: int | None = None
    ) -> None:
        check_known(kinds or (), KINDS, "There is no kind of document '{}'.")
        check_known([split], SPLITS, "The procedural documents have no split '{}'.")
        if level not in LEVELS:
            raise ConfigError(f"Documents have no level {level!r}. Expected 0 (terse) or 1 (prose).")
        if not lengths or not all(type(n) is int and 1 <= n <= LONGEST for n in lengths):
            raise ConfigError(f"lengths is {list(lengths)!r}; expected windows, whole numbers from 1 to {LONGEST}.")
        if limit is not None and limit < 1:
            raise ConfigError(f"limit is {limit}; expected at least 1, or None for all.")
        self.variants = [(kind, length) for length in dict.fromkeys(lengths) for kind in dict.fromkeys(kinds or KINDS)]
        self.level, self.split, self.limit = level, split, limit
        size = LISTED * len(self.variants)
        listed = size if limit is None else min(size, limit)
        self._listed = [i * size // listed for i in range(listed)]
        self._keys: dict[tuple[str, int], list[int]] = {variant: [] for variant in self.variants}

    @property
    def most_pages(self) -> int:
        """Returns the pages of the longest document."""
        return PAGES_PER_WINDOW * max(length for _, length in self.variants)

    def __len__(self) -> int:
        return len(self._listed)

    def __getitem__(self, index: int) -> Document:
        if not 0 <= index < len(self):
            raise IndexError(index)
        place, number = divmod(self._listed[index], LISTED)
        variant = self.variants[place]
        keys = self._keys[variant]
        while len(keys) <= number:
            key = keys[-1] + 1 if keys else 0
            while part(build(*variant, self.level, key)) != self.split:
                key += 1
            keys.append(key)
        return build(*variant, self.level, keys[number])

    def __deepcopy__(self, memo: dict[int, Any]) -> Made:
        return self

    def get(self, problem_id: str) -> Document:
        """Returns the document with this id, whatever its split.

        Raises:
            DataError: There is none.
        """
        return from_id(problem_id)

    def draw(self, rng: np.random.Generator) -> Document:
        """Returns a document of the split: kind and length uniformly, then any of its keys."""
        if self.limit is not None:
            return self[int(rng.integers(len(self)))]
        variant = self.variants[int(rng.integers(len(self.variants)))]
        while True:
            document = build(*variant, self.level, int(rng.integers(_KEYS)))
            if part(document) == self.split:
                return document
