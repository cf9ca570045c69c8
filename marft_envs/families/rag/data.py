"""What is asked and searched: published sets, JSONL files, folders of text files, and a search of the user's own."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

from marft_envs import tables
from marft_envs.errors import ConfigError, DataError, did_you_mean, reading
from marft_envs.families.rag.question import OpenQuestion
from marft_envs.problems import rows
from marft_envs.problems.index import VERSION, Index, Passage
from marft_envs.problems.scripts import atoms, ends
from marft_envs.problems.sets import ProblemSet, spread
from marft_envs.registration import EnvSpec

WORDS = 100
"""Most words of a passage that is cut out of a longer text: as in DPR (arXiv 2004.04906)."""
SUFFIXES = (".txt", ".md")
"""Files of a folder that are read."""
Search = Callable[[str, int], Sequence[Any]]
"""``search(query, k)``, best first: pairs (id, score), or passages (id, title, text; or an object of these)."""


def opened(path: str | Path, folder: str | Path | None = None) -> Index:
    """Opens the index of a corpus, and makes it first where there is none.

    Args:
        path: A JSONL file with ``text``, and if wanted ``id`` and ``title``, in each row, or a folder of text files.
        folder: Of the index; None: one in ``$XDG_CACHE_HOME/marft/indexes``, else ``~/.cache/marft/indexes``.

    Raises:
        DataError: There is no such corpus, or it is not usable, or the index is another's.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(f"There is no corpus {path}. Expected a JSONL file, or a folder of .txt and .md files.")
    stamps = tuple((file, *rows.stamp(file)) for file in _files(path))
    return _opened(path, stamps, Path(folder).expanduser() if folder else None)


@lru_cache(maxsize=4)
def _opened(path: Path, stamps: tuple[tuple[Path, int, int], ...], folder: Path | None) -> Index:
    digest = hashlib.sha256(f"{WORDS}".encode())
    for file, _, size in stamps:
        digest.update(f"\n{file.relative_to(path.parent).as_posix()} {size}\n".encode(errors="surrogateescape"))
        with file.open("rb") as content:
            hashlib.file_digest(content, lambda: digest)
    return stored(digest.hexdigest(), lambda: read(path), folder)


def stored(corpus: str, passages: Callable[[], Iterable[Passage]], folder: Path | None = None) -> Index:
    """Opens the index of the corpus of that hash in a folder; None: in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "marft", "indexes").expanduser()
    index = Index.at(folder or cache / f"{VERSION}-{corpus[:32]}", corpus, passages)
    index.corpus = corpus
    return index


def _files(path: Path) -> list[Path]:
    """Returns the files of a corpus; a folder may be a stranger's, and its files name and open nothing else."""
    if path.is_file():
        return [path]
    found = sorted(f for f in path.rglob("*") if f.suffix in SUFFIXES and f.exists() and not f.is_dir())
    for file in found:
        faults = {
            "is a link out of the corpus": not file.resolve().is_relative_to(path.resolve()),
            "is no regular file": not file.is_file(),
            "has a name that is no UTF-8": any("\ud800" <= letter <= "\udfff" for letter in file.name),
        }
        if what := next((fault for fault, holds in faults.items() if holds), ""):
            raise DataError(f"{ascii(str(file))[1:-1]} {what}. Put a file of text in its place, or take it away.")
    return found


def read(path: Path) -> Iterator[Passage]:
    """Yields the passages of a JSONL file or a folder; long texts are cut into several, empty ones left out.

    Raises:
        DataError: A row or file is not text; names it.
    """
    for file in _files(path) if path.is_dir() else ():
        with reading(f"{file} cannot be read as text", "Save it as UTF-8, or take it away.", DataError):
            text = file.read_text(encoding="utf-8")
        yield from cut(file.relative_to(path).with_suffix("").as_posix(), file.stem, text)
    for number, where, row in rows.of_file(path) if path.is_file() else ():
        identity, title, said = rows.whole(row.get("id", number)), row.get("title") or "", row.get("text")
        if not isinstance(title, str) or not isinstance(said, str) or not isinstance(identity, str | int):
            raise DataError(f"{where}: expected 'text', and if wanted 'title', as text, and 'id' as text or a number.")
        yield from cut(str(identity), title, said)


def cut(identity: str, title: str, text: str) -> Iterator[Passage]:
    """Yields a text as passages of at most ``WORDS`` words; several have ``#1``, ``#2`` … behind their ids."""
    parts = pieces(text, WORDS)
    for number, part in enumerate(parts, start=1):
        yield Passage(f"{identity}#{number}" if len(parts) > 1 else identity, title, part)


def pieces(text: str, most: int) -> list[str]:
    """Cuts a text at the ends of paragraphs, longer ones at those of sentences, and longer ones anywhere.

    Args:
        text: Any.
        most: Words of a piece; two characters of a script without blanks are one.
    """
    out: list[list[str]] = []
    for paragraph in map(atoms, re.split(r"\n\s*\n", text)):
        stops = [i for i in range(1, len(paragraph)) if len(paragraph) > most and ends(*paragraph[i - 1 : i + 1])]
        for sentence in (paragraph[start:stop] for start, stop in pairwise([0, *stops, len(paragraph)])):
            for unit in (sentence[i : i + most] for i in range(0, len(sentence), most)):
                if not out or len(out[-1]) + len(unit) > most:
                    out.append([])
                out[-1] += unit
    return ["".join(part).strip() for part in out]


class Searcher:
    """What a team searches with: an index, or a function of the user's, which has so many seconds to answer.

    Raises:
        ConfigError: There is no such function, or neither.
    """

    def __init__(self, index: Index | None, search: Any = None, timeout_s: float = 30.0) -> None:
        try:
            loaded: Any = EnvSpec("", search).load() if search is not None else None
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"search={search!r} cannot be loaded: {error}. Expected 'module:function'.") from error
        if loaded is None and index is None:
            raise ConfigError("These questions come without passages. Next: corpus=PATH, or search='module:function'.")
        self.index, self.search, self.timeout_s = index, loaded, timeout_s

    def __call__(self, query: str, k: int) -> list[Passage]:
        """Returns at most k passages, best first.

        Raises:
            TimeoutError: The function has not answered in time.
            Exception: Whatever it raises; a ConfigError where it returns something else than passages.
        """
        if self.search is None and self.index is not None:
            return [passage for passage, _ in self.index.search(query, k)]
        answer: Future[Any] = Future()

        def ask() -> None:
            try:
                answer.set_result([self._passage(item) for item in self.search(query, k)[:k]])
            except BaseException as error:  # raised again where the call was made
                answer.set_exception(error)

        Thread(target=ask, daemon=True, name="marft-search").start()
        if not wait([answer], self.timeout_s).done:
            raise TimeoutError(f"the search did not answer within {self.timeout_s:g} s")
        return answer.result()

    def _passage(self, item: Any) -> Passage:
        parts = [item.get(name, "") for name in Passage._fields] if isinstance(item, Mapping) else list(item)
        if len(parts) == 2 and self.index is not None:
            parts = [*(self.index.get(str(parts[0])) or ())]
        if len(parts) != len(Passage._fields):
            raise ConfigError(f"The search returned {item!r}; expected (id, score) of the corpus or (id, title, text).")
        return Passage(*map(str, parts))

    def __deepcopy__(self, memo: dict[int, Any]) -> Searcher:
        return self


HUB: Mapping[str, Mapping[str, Any]] = tables.read(__package__, "hub")
ROW = "'question' and 'answer' (and 'needed' or the passages of HotpotQA, 2WikiMultiHopQA or MuSiQue)"
Pool = tuple[list[OpenQuestion], tuple[Passage, ...]]
"""Questions, and the passages of all of them, each once."""


def load(name: str | Path, split: str, limit: int | None, alone: bool) -> tuple[ProblemSet[OpenQuestion], Index | None]:
    """Loads the questions of a set, and the index of its own passages.

    Args:
        name: One of ``HUB``, or the path of a JSONL file with rows as published, or with ``question``, ``answer`` (a
            text, or a list of those that count) and ``needed`` (ids or titles of documents); ``{split}`` in it is
            replaced, without it the file is used whole.
        split: ``train`` or ``test``.
        limit: At most so many questions, evenly spaced; the passages are those of all rows.
        alone: The passages come from elsewhere, and needed documents are known by their titles.

    Raises:
        DataError: Unknown name, no file, a bad row, an unreachable hub, or nothing left.
        MissingExtraError: A set on the hub without the ``data`` extra.
    """
    path = Path(str(name).replace("{split}", split)).expanduser()
    if str(name) in HUB:
        questions, passages = _hub(str(name), split, alone)
    elif path.is_file():
        questions, passages = _file(path, *rows.stamp(path), alone)
    else:
        raise DataError(
            f"'{name}' is neither a set of questions nor a file. {did_you_mean(str(name), ('procedural', *HUB))} "
            f"For your own, give the path of a JSONL file with {ROW} in each row."
        )
    problems = ProblemSet(spread(questions, limit), str(name))
    if alone or not passages:
        return problems, None
    return problems, stored(hashlib.sha256(json.dumps(passages).encode()).hexdigest(), lambda: passages)


@lru_cache(maxsize=4)
def _file(path: Path, mtime_ns: int, size: int, alone: bool) -> Pool:
    found = rows.of_file(path, f"with {ROW}")
    return pooled(((f"{path.stem}/{number}", where, row) for number, where, row in found), alone)


@lru_cache(maxsize=4)
def _hub(name: str, split: str, alone: bool) -> Pool:
    known = HUB[name]
    where, part = known["hub_id"], known["splits"].get(split, "")
    load = lambda datasets: datasets.load_dataset(where, known.get("config"), split=part)  # noqa: E731
    found = rows.of_hub(name, where, known["splits"], split, ROW, load)
    return pooled(((f"{name}/{i}", f"{where} ({part}), row {i}", row) for i, row in enumerate(found)), alone)


def pooled(found: Iterable[tuple[str, str, Mapping[str, Any]]], alone: bool = False) -> Pool:
    """Takes rows (id, place in words, content) apart; those that say that they have no answer are left out.

    Raises:
        DataError: A row is not as any of the published sets has it; names it.
    """
    ids: dict[tuple[str, str], str] = {}
    questions = []
    for identity, where, row in found:
        if not row.get("answerable", True):
            continue
        try:
            for title, text, _ in (parts := _paragraphs(row)):
                ids.setdefault((title, text), f"p{len(ids) + 1}")
            exact = "paragraphs" in row and not alone  # of MuSiQue several paragraphs have one title
            named = (ids[title, text] if exact else title for title, text, needed in parts if needed)
            given = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
            golds = tuple(str(answer).strip() for answer in [*given, *(row.get("answer_aliases") or ())])
            if not all(golds) or not golds or any(bracket in gold for gold in golds for bracket in "{}"):
                raise ValueError(f"the answers {list(golds)} cannot be given in a box")
            needed = tuple(dict.fromkeys(map(str, row.get("needed", named))))
            asked = row["question"].strip()
            questions.append(OpenQuestion(str(row.get("id", row.get("_id", identity))), asked, golds, needed))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"{where}: {type(error).__name__}: {error}. Expected {ROW}."
            raise DataError(f"{problem} The row has: {', '.join(map(str, row))}.") from error
    return questions, tuple(Passage(key, *paragraph) for paragraph, key in ids.items())


def _paragraphs(row: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Returns title and text of each paragraph of a row, and whether it is needed."""
    if "paragraphs" in row:  # MuSiQue
        parts = [(part["title"], part["paragraph_text"], bool(part["is_supporting"])) for part in row["paragraphs"]]
    else:  # HotpotQA and 2WikiMultiHopQA, with columns on the hub and lists in their files; NQ-open has none
        context, facts = row.get("context") or (), row.get("supporting_facts") or ()
        pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, Mapping) else context
        wanted = set(facts["title"]) if isinstance(facts, Mapping) else {title for title, *_ in facts}
        parts = [(title, " ".join(map(str.strip, said)), title in wanted) for title, said in pairs]
    return [(title.strip(), text.strip(), needed) for title, text, needed in parts if text.strip()]
