"""Questions by name or path, with the passages that come with them: ``load("hotpotqa")``, ``load("mine.jsonl")``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from marft_envs.errors import DataError, did_you_mean
from marft_envs.families import tables
from marft_envs.families.math.hub import short
from marft_envs.families.rag.corpus import stored
from marft_envs.families.rag.index import Index, Passage
from marft_envs.families.rag.question import Question
from marft_envs.problems import rows
from marft_envs.problems.sets import ProblemSet, spread

HUB: Mapping[str, Mapping[str, Any]] = tables.read(__package__, "hub")
ROW = "'question' and 'answer' (and 'needed' or the passages of HotpotQA, 2WikiMultiHopQA or MuSiQue)"


class Rows(NamedTuple):
    """What a set says."""

    questions: tuple[Question, ...]
    """What is needed is named by titles."""
    pooled: tuple[Question, ...]
    """The same, by the ids of passages where several have one title (MuSiQue)."""
    passages: tuple[Passage, ...]
    """Of all rows, each once."""


def load(
    name: str | Path, split: str, limit: int | None, with_corpus: bool
) -> tuple[ProblemSet[Question], Index | None]:
    """Loads the questions of a set, and the index of its own passages.

    Args:
        name: One of ``HUB``, or the path of a JSONL file with rows as published, or with ``question``, ``answer`` (a
            text, or a list of those that count) and ``needed`` (ids or titles of documents); ``{split}`` in it is
            replaced, without it the file is used whole.
        split: ``train`` or ``test``.
        limit: At most so many questions, evenly spaced; the passages are those of all rows.
        with_corpus: The passages come from elsewhere: documents that are needed are known by their titles.

    Raises:
        DataError: Unknown name, no file, a bad row, an unreachable hub, or nothing left.
        MissingExtraError: A set on the hub without the ``data`` extra.
    """
    if str(name) in HUB:
        found = _hub(str(name), split)
    else:
        path = Path(str(name).replace("{split}", split)).expanduser()
        if not path.is_file():
            raise DataError(
                f"'{name}' is neither a set of questions nor a file. {did_you_mean(str(name), ('procedural', *HUB))} "
                f"For your own, give the path of a JSONL file with {ROW} in each row."
            )
        found = _file(path, path.stat().st_mtime_ns, path.stat().st_size)
    kept = found.questions if with_corpus else found.pooled
    if with_corpus or not found.passages:
        return ProblemSet(spread(kept, limit), str(name)), None
    digest = hashlib.sha256("\n".join(map(json.dumps, found.passages)).encode()).hexdigest()
    return ProblemSet(spread(kept, limit), str(name)), stored(digest, lambda: found.passages)


@lru_cache(maxsize=4)
def _file(path: Path, mtime_ns: int, size: int) -> Rows:
    return pooled((f"{path.stem}/{number}", where, row) for number, where, row in rows.of_file(path, f"with {ROW}"))


@lru_cache(maxsize=4)
def _hub(name: str, split: str) -> Rows:
    known = HUB[name]
    theirs = known["splits"].get(split, "")

    def fetch(datasets: Any) -> Iterable[Any]:
        return datasets.load_dataset(known["hub_id"], known.get("config"), split=theirs)  # type: ignore[no-any-return]

    found = rows.of_hub(name, known["hub_id"], known["splits"], split, ROW, fetch)
    where = f"{known['hub_id']} ({theirs}), row"
    return pooled((f"{name}/{theirs}/{number}", f"{where} {number}", row) for number, row in enumerate(found))


def pooled(found: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Rows:
    """Takes rows (id, place in words, content) apart; those without an answer are left out.

    Raises:
        DataError: A row is not as any of the published sets has it; names it.
    """
    ids: dict[tuple[str, str], str] = {}
    by_title, by_id = [], []
    for identity, where, row in found:
        try:
            paragraphs, needed = _paragraphs(row)
            answer = row.get("answer", row.get("answers"))
            if not row.get("answerable", True):
                continue
            named = row.get("id", row.get("_id"))
            answers = [answer] if isinstance(answer, str | int) else [*answer]
            golds = tuple(str(a).strip() for a in (*answers, *(row.get("answer_aliases") or ())))
            question = row["question"]
            if not isinstance(question, str) or not all(golds) or not golds or any(c in a for a in golds for c in "{}"):
                raise ValueError(f"question {short(question)} with the answers {short(list(golds))}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            has = ", ".join(map(str, row))
            raise DataError(f"{where}: {type(error).__name__}: {error}. Expected {ROW}. The row has: {has}.") from error
        keys = [ids.setdefault(paragraph, f"p{len(ids) + 1}") for paragraph in paragraphs]
        titles = row["needed"] if "needed" in row else [title for title, _ in needed]
        one = Question(str(named or identity), question.strip(), golds, tuple(dict.fromkeys(map(str, titles))))
        by_title.append(one)
        exact = tuple(dict.fromkeys(keys[paragraphs.index(paragraph)] for paragraph in needed))
        by_id.append(replace(one, needed=exact) if "paragraphs" in row else one)
    passages = tuple(Passage(key, title, text) for (title, text), key in ids.items())
    return Rows(tuple(by_title), tuple(by_id), passages)


def _paragraphs(row: Mapping[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Returns the paragraphs (title, text) of a row, and those that are needed."""
    if "paragraphs" in row:  # MuSiQue
        parts = [(p["title"], p["paragraph_text"], bool(p.get("is_supporting"))) for p in row["paragraphs"]]
    elif "context" in row:  # HotpotQA and 2WikiMultiHopQA: as lists in their files, as columns on the hub
        facts = row.get("supporting_facts") or ()
        needed = set(facts["title"]) if isinstance(facts, Mapping) else {title for title, *_ in facts}
        parts = [(title, "".join(_spaced(said)), title in needed) for title, said in _pairs(row["context"])]
    else:  # NQ-open: nothing
        parts = []
    kept = [(title.strip(), text.strip(), wanted) for title, text, wanted in parts if text.strip()]
    return [(t, text) for t, text, _ in kept], [(t, text) for t, text, wanted in kept if wanted]


def _pairs(context: Any) -> Sequence[Any]:
    if isinstance(context, Mapping):
        return list(zip(context["title"], context.get("sentences", context.get("content")), strict=True))
    return context  # type: ignore[no-any-return]


def _spaced(sentences: Sequence[str]) -> list[str]:
    """Returns sentences that can be joined: some sets have blanks between them, some have none."""
    return [
        s if not i or s[:1].isspace() or sentences[i - 1][-1:].isspace() else f" {s}" for i, s in enumerate(sentences)
    ]
