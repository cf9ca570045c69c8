"""Conversations in several sessions, and what is asked long after them: the memory rows of ``bfcl-eval``.

The rows lie where the package is; its code is not run. Its own runs give an agent a memory with tools; here it is the
note of ``docs-recall-v0``, and what counts is upstream's rule: an answer stands anywhere in the reply.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from marft_envs.errors import DataError
from marft_envs.families.docs.document import Document
from marft_envs.problems import rows

NAME = "bfcl-memory"
TEST_EVERY = 5
"""Question n is held out where n % 5 is 0; the data have no split."""


def folder_of(name: str) -> Path | None:
    """Returns where the rows lie: of the installed package (``bfcl-memory``), or of a folder that holds it.

    Raises:
        DataError: The package is not installed.
    """
    spec = importlib.util.find_spec("bfcl_eval") if name == NAME else None
    if name == NAME and (spec is None or not spec.submodule_search_locations):
        raise DataError(
            f"'{NAME}' is in the package bfcl-eval, which is not installed. Type: pip install --no-deps bfcl-eval, or"
            " into a folder with --target, and give that as data=…"
        )
    root = Path(next(iter(spec.submodule_search_locations or ()))) if spec else Path(name).expanduser()
    places = (root, root / "data", root / "bfcl_eval" / "data")
    return next((place for place in places if sorted(place.glob("BFCL_v*_memory.json"))), None)


def read(folder: Path, split: str) -> tuple[Document, ...]:
    """Returns a document for each question: all sessions of its scenario, a page each.

    Raises:
        DataError: A file is missing or malformed.
    """
    stamp = tuple(file.stat().st_mtime_ns for file in sorted(folder.rglob("*memory*.json")))
    documents = enumerate(_read(folder, stamp))
    return tuple(d for i, d in documents if split == "all" or (i % TEST_EVERY == 0) == (split == "test"))


@lru_cache(maxsize=2)
def _read(folder: Path, stamp: tuple[int, ...]) -> tuple[Document, ...]:
    questions = sorted(folder.glob("BFCL_v*_memory.json"))[-1]
    answers = {
        row.get("id"): row.get("ground_truth")
        for _, _, row in rows.of_file(folder / "possible_answer" / questions.name)
    }
    sessions: defaultdict[str, list[list[str]]] = defaultdict(list)
    for file in sorted((folder / "memory_prereq_conversation").glob("memory_*.json")):
        for _, where, row in rows.of_file(file):
            sessions[str(row.get("scenario"))].append([_said(turn, where) for turn in _listed(row, where)])
    documents = []
    for _, where, row in rows.of_file(questions):
        talk, golds = sessions.get(str(row.get("scenario"))), answers.get(row.get("id"))
        if not talk or not isinstance(golds, list) or not golds:
            raise DataError(f"{where}: '{row.get('id')}' has no conversation, or no answer in possible_answer/.")
        question = "\n".join(_said(turn, where) for turn in _listed(row, where))
        documents.append(
            Document(
                id=f"bfcl/{row['scenario']}/{row['id']}",
                kind=str(row["scenario"]),
                question=question,
                entries=tuple(said for session in talk for said in session),
                pages=tuple(accumulate(map(len, talk))),
                answers=tuple(map(str, golds)),
                source=NAME,
                contained=True,
            )
        )
    return tuple(documents)


def _listed(row: dict[str, Any], where: str) -> list[Any]:
    turns = row.get("question")
    if not isinstance(turns, list) or not turns:
        raise DataError(f"{where}: 'question' is {turns!r:.60}; expected a list of turns.")
    return turns


def _said(turn: Any, where: str) -> str:
    if not isinstance(turn, list) or not all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in turn):
        raise DataError(f"{where}: a turn is {turn!r:.60}; expected a list of messages with 'content'.")
    return "\n".join(message["content"] for message in turn)
