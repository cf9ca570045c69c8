"""Questions by name or path, with the passages that come with them: ``load("hotpotqa")``, ``load("mine.jsonl")``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from marft_envs.errors import DataError, did_you_mean
from marft_envs.families import tables
from marft_envs.families.rag.corpus import stored
from marft_envs.families.rag.index import Index, Passage
from marft_envs.families.rag.question import Question
from marft_envs.problems import rows
from marft_envs.problems.sets import ProblemSet, spread

HUB: Mapping[str, Mapping[str, Any]] = tables.read(__package__, "hub")
ROW = "'question' and 'answer' (and 'needed' or the passages of HotpotQA, 2WikiMultiHopQA or MuSiQue)"
Pool = tuple[list[Question], tuple[Passage, ...]]
"""Questions, and the passages of all of them, each once."""


def load(name: str | Path, split: str, limit: int | None, alone: bool) -> tuple[ProblemSet[Question], Index | None]:
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
        questions, passages = _file(path, path.stat().st_mtime_ns, path.stat().st_size, alone)
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
            questions.append(Question(str(row.get("id", row.get("_id", identity))), asked, golds, needed))
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
