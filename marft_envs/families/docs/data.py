"""Long documents by name or path: ``load("procedural")``, ``load("hotpotqa")``, ``load("my.jsonl")``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from marft_envs.errors import DataError, did_you_mean
from marft_envs.families.docs import hub, sessions
from marft_envs.families.docs.document import Document
from marft_envs.families.docs.hub import HUB
from marft_envs.families.docs.procedural import Made
from marft_envs.problems import rows
from marft_envs.problems.sets import ProblemSet, spread

WINDOW = 8000
"""Default for the characters that an agent sees of documents that were not generated here: some 2,000 tokens."""
ROW = "'document', 'question' and 'answer'"


def load(
    name: str | Path,
    split: str,
    kinds: str | Sequence[str] | None = None,
    lengths: Sequence[int] = (2,),
    level: int = 1,
    window: int = WINDOW,
    limit: int | None = None,
) -> Made | ProblemSet[Document]:
    """Loads documents.

    Args:
        name: ``procedural`` (built in, offline), the name of a set in ``hub.HUB``, or the path of a JSONL file with
            ``document`` (a text, or a list of them), ``question`` and ``answer`` (a text, or a list of those that
            count) in each row; ``{split}`` in it is replaced, without it the file is used whole. ``bfcl-memory``, or a
            folder that holds ``bfcl_eval``: conversations in sessions, see ``sessions``.
        split: ``train`` or ``test``; sets made for evaluation have ``test`` only.
        kinds: Keep these kinds.
        lengths: Of procedural documents, in windows.
        level: Of procedural documents.
        window: Characters that an agent sees; other documents' pages are half as long. 0: as ``WINDOW``.
        limit: At most so many, evenly spaced.

    Raises:
        ConfigError: Procedural documents of that kind, length or level there are none.
        DataError: Unknown name, no file, a bad row, an unreachable hub, or nothing left.
        MissingExtraError: A set on the hub without the ``data`` extra.
    """
    wanted = (kinds,) if isinstance(kinds, str) else None if kinds is None else tuple(kinds)
    if str(name) == "procedural":
        return Made(wanted, lengths, level, split, limit)
    page = (window or WINDOW) // 2
    if (folder := sessions.folder_of(str(name))) is not None:
        documents: Sequence[Document] = sessions.read(folder, split)
    else:
        documents = hub.fetch(str(name), split, page) if str(name) in HUB else _file(str(name), split, page)
    kept = [d for d in documents if wanted is None or d.kind in wanted]
    if not kept:
        known = sorted({d.kind for d in documents})
        raise DataError(f"'{name}' ({split}) has no document of the kinds {list(wanted or ())}. There are: {known}.")
    return ProblemSet(spread(kept, limit), str(name))


def most_pages(problems: Made | ProblemSet[Document]) -> int:
    """Returns the pages of the longest document."""
    return problems.most_pages if isinstance(problems, Made) else max(len(p.pages) for p in problems)


def _file(name: str, split: str, page: int) -> tuple[Document, ...]:
    path = Path(name.replace("{split}", split)).expanduser()
    if not path.is_file():
        raise DataError(
            f"'{name}' is neither a set of documents nor a file. {did_you_mean(name, ('procedural', *HUB))} "
            f"For your own, give the path of a JSONL file with {ROW} in each row."
        )
    return read_jsonl(path, page, *rows.stamp(path))


@lru_cache(maxsize=8)
def read_jsonl(path: Path, page: int, mtime_ns: int = 0, size: int = 0) -> tuple[Document, ...]:
    """Reads a JSONL file; its time and size are part of the cache's key, so an edited file is read again.

    Raises:
        DataError: Not UTF-8, not JSON, or a row without document, question or answer; names file, line and field.
    """
    return tuple(_document(row, number, where, path, page) for number, where, row in rows.of_file(path, f"with {ROW}"))


def _document(row: dict[str, Any], number: int, where: str, path: Path, page: int) -> Document:
    kind = row.get("kind", path.stem)
    if not isinstance(kind, str):
        raise DataError(f"{where}: 'kind' is {hub.short(kind)}; expected text.")
    identity = rows.whole(row.get("id", f"{path.stem}/{number}"))
    if isinstance(identity, bool) or not isinstance(identity, str | int):
        raise DataError(f"{where}: 'id' is {hub.short(identity)}; expected text or an integer.")
    parts = hub.RowParts(row.get("question"), row.get("document"), row.get("answer"), kind)
    return hub.document(parts, where, str(identity), path.stem, page)
