"""Search in passages by words: BM25 as Lucene computes it, in arrays that the processes of a machine share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marft_envs import artefacts
from marft_envs.errors import DataError
from marft_envs.problems.scripts import pairs, words

VERSION = 2
"""Of what an index holds; another one is not read."""
K1, B = 1.2, 0.75
"""Lucene's: how soon more of a word counts no more, and how much long passages are discounted."""
QUERY_WORDS = 64
"""Different words of a query that are looked up, of pairs of characters twice as many; more of them cost no time."""
_AGAIN = "Next: rm -r {}, so that it is made anew, or index=… another folder."
_ARRAYS = ("words", "starts", "numbers", "weights", "text", "ends")


class Passage(NamedTuple):
    """A piece of a corpus."""

    id: str
    title: str
    text: str

    def __str__(self) -> str:
        """Returns it as agents read it; a name of several lines is one, for each passage has a line that begins so."""
        name, title = (" ".join(part.splitlines()) for part in self[:2])
        return f"[{name}] {title}: {self.text}" if title else f"[{name}] {self.text}"


class Index:
    """BM25 (Robertson and Zaragoza 2009; Lucene's form as in Kamphuis et al., ECIR 2020) over passages.

    Args:
        arrays: ``words [V] uint64`` (sorted hashes), ``starts [V + 1] int64`` (of each word's part of the next two),
            ``numbers [P] int32`` (of passages) and ``weights [P] float32`` (what the word is worth there),
            ``text [bytes] uint8`` (passages as JSON) and ``ends [N] int64`` (of each passage in it).
        folder: Where they lie; None: in this process's memory.
    """

    def __init__(self, arrays: Mapping[str, Any], folder: Path | None = None) -> None:
        self.arrays, self.folder = dict(arrays), folder
        self.corpus = ""
        """A hash of what it was built from, where that lies on disk."""

    @classmethod
    def of(cls, passages: Iterable[Passage]) -> Index:
        """Builds an index.

        Raises:
            DataError: There is no passage, an id comes twice, or a passage is no text or nothing but blanks.
        """
        known: dict[str, int] = {}
        hits, lengths, ends = array("i"), array("q"), array("q")
        seen, text = set[str](), bytearray()
        for number, passage in enumerate(passages):
            if not all(isinstance(part, str) for part in passage) or not passage.text.strip():
                raise DataError(f"A passage is {passage!r}; expected an id, a title (or '') and a text.")
            if passage.id in seen:
                raise DataError(f"The corpus has the id '{passage.id}' twice. Make ids unique.")
            seen.add(passage.id)
            said = words(f"{passage.title} {passage.text}", singles=True)
            for word, count in Counter(said).items():
                hits.extend((known.setdefault(word, len(known)), number, count))
            lengths.append(len(said))
            text += json.dumps(passage).encode()
            ends.append(len(text))
        if not seen:
            raise DataError("The corpus is empty. Expected passages with an id, a title and a text.")
        place, at, n = np.frombuffer(hits, np.int32).reshape(-1, 3).T
        length = np.array(lengths)
        often = np.bincount(place, minlength=len(known))  # [V] passages that have the word
        weights = np.log1p((len(seen) - often + 0.5) / (often + 0.5))[place]  # in place: a corpus has many hits
        weights *= n
        below = (K1 * (1 - B + B * length / max(length.mean(), 1.0)))[at]
        below += n
        weights /= below
        del below
        hashes = np.array([_hash(word) for word in known], np.uint64)
        order = np.argsort(hashes)
        by_word = np.argsort(np.argsort(order).astype(np.int32)[place], kind="stable")  # passages stay in their order
        starts = np.concatenate([[0], np.cumsum(often[order])])
        parts = hashes[order], starts, at[by_word], weights[by_word].astype(np.float32)
        return cls(dict(zip(_ARRAYS, (*parts, np.frombuffer(text, np.uint8), np.array(ends)), strict=True)))

    @classmethod
    def at(cls, folder: Path, corpus: str, passages: Callable[[], Iterable[Passage]]) -> Index:
        """Opens the index in a folder, memory-mapped, and builds it there first if there is none.

        Args:
            folder: Of the index; it may be missing.
            corpus: A hash of what is in the corpus.
            passages: Reads the corpus.

        Raises:
            DataError: The index is of another version or corpus, or damaged; or the corpus is (see :meth:`of`).
        """
        header, wanted = folder / "header.json", {"version": VERSION, "corpus": corpus}
        again = _AGAIN.format(shlex.quote(str(folder)))
        try:
            if not header.is_file():
                folder.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as aside:  # whole or not at all
                    for name, values in cls.of(passages()).arrays.items():
                        np.save(Path(aside, f"{name}.npy"), values)
                    Path(aside, header.name).write_text(json.dumps(wanted), encoding="utf-8")
                    artefacts.write(Path(aside))
                    with contextlib.suppress(OSError):  # another process was faster
                        Path(aside).replace(folder)
            had = json.loads(header.read_text(encoding="utf-8"))
            if had != wanted:
                raise DataError(f"The index in {folder} is {had}; expected {wanted}. {again}")
            return _mapped(folder)
        except DataError:
            raise
        except (OSError, EOFError, ValueError) as error:
            raise DataError(f"There is no index in {folder}: {error}. {again}") from error

    def __len__(self) -> int:
        return len(self.arrays["ends"])

    def __getitem__(self, number: int) -> Passage:
        if not 0 <= number < len(self):
            raise IndexError(number)
        ends = self.arrays["ends"]
        start = int(ends[number - 1]) if number else 0
        return Passage(*json.loads(self.arrays["text"][start : int(ends[number])].tobytes()))

    def search(self, query: str, k: int) -> list[tuple[Passage, float]]:
        """Returns the best k passages that have a word of the query, with scores; of equal ones the first."""
        table, starts = self.arrays["words"], self.arrays["starts"]
        scores = np.zeros(len(self), np.float32)
        for word, count in Counter(words(query)).most_common(QUERY_WORDS * (1 + pairs(query))):
            hashed = _hash(word)
            place = int(np.searchsorted(table, hashed))
            if place < len(table) and table[place] == hashed:
                part = slice(int(starts[place]), int(starts[place + 1]))
                scores[self.arrays["numbers"][part]] += count * self.arrays["weights"][part]
        last = np.partition(scores, -k)[-k] if k < len(scores) else 0.0
        found = np.flatnonzero(scores >= max(last, np.float32(1e-30)))
        best = found[np.lexsort((found, -scores[found]))][:k]
        return [(self[int(number)], float(scores[number])) for number in best]

    @cached_property
    def places(self) -> dict[str, int]:
        """Returns id -> number of its passage."""
        return {self[number].id: number for number in range(len(self))}

    def get(self, passage_id: str) -> Passage | None:
        """Returns the passage of that id, if there is one."""
        number = self.places.get(passage_id)
        return None if number is None else self[number]

    def __deepcopy__(self, memo: dict[int, Any]) -> Index:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_mapped, (self.folder,)) if self.folder else (Index, (self.arrays,))


def _mapped(folder: Path) -> Index:
    """Opens what is as it was written: a search does not notice what has changed, and answers with other passages."""
    if what := artefacts.damage(folder, "header.json", *(f"{name}.npy" for name in _ARRAYS)):
        raise DataError(f"{what}. {_AGAIN.format(shlex.quote(str(folder)))}")
    arrays = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in _ARRAYS}
    return Index(arrays, folder)


def _hash(word: str) -> np.uint64:
    """Returns what stands for a word: two of a million are taken for one another once in ten million corpora."""
    return np.uint64(int.from_bytes(hashlib.blake2b(word.encode(errors="surrogatepass"), digest_size=8).digest()))
