"""One long document with a question, in entries and pages; how replies and answers to it are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marft_envs.errors import DataError
from marft_envs.problems.answers import boxed

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class Document:
    """A document and what is asked of it. Agents see the question and entries, never the answers."""

    id: str
    """Unique in its set; ``procedural/<kind>/<length>/<level>/<key>`` makes the very same document again."""
    kind: str
    question: str
    entries: tuple[str, ...]
    """The text in pieces that no page cuts: lines, sentences, paragraphs."""
    pages: tuple[int, ...]
    """Of each page, the entry after its last."""
    answers: tuple[str, ...]
    """The answers that count as right, the gold one first; never empty."""
    separator: str = "\n"
    end: str = ""
    """What stands behind the last entry."""
    level: int | None = None
    length: int = 1
    """In windows of its level, of documents that are made here."""
    facts: tuple[Any, ...] = ()
    """Of each entry what it says to the purpose, for experts; empty where nobody knows."""
    target: Any = None
    """What the question asks for, likewise."""
    source: str = "procedural"
    contained: bool = False
    """Whether an answer counts wherever it stands in a reply, as in bfcl-eval; else the last box must hold it."""

    def text(self, start: int, stop: int) -> str:
        """Returns the text of these entries, with the end mark if the last one is among them."""
        text = self.separator.join(self.entries[start:stop])
        return text + self.end if start < stop == len(self.entries) else text

    def page(self, number: int, last: int | None = None) -> tuple[int, int]:
        """Returns the entries (start, stop) of a page, or of it and those up to ``last``; pages count from 0.

        Pages that there are not have no entries.
        """
        last = min(number if last is None else last, len(self.pages) - 1)
        if not 0 <= number <= last:
            return 0, 0
        return (self.pages[number - 1] if number else 0), self.pages[last]

    def share(self, i: int, n: int) -> tuple[int, int]:
        """Returns the entries (start, stop) of reader i of n, who deal the entries evenly, in order."""
        size = len(self.entries)
        return i * size // n, (i + 1) * size // n


def plan_of(text: str) -> list[str] | None:
    r"""Returns the readers' assignments in the boss's words: ``\boxed{1-2; 3}`` gives ``["1-2", "3"]``.

    None where there is no box, or something in it is no range of pages.
    """
    box = boxed(text)
    parts = [part.replace(" ", "") for part in (box or "").split(";")]
    return parts if box and all(_RANGE.fullmatch(part) for part in parts) else None


def pages_of(assignment: str) -> tuple[int, int]:
    """Returns first and last page, from 0, of an assignment that ``plan_of`` has read."""
    first, last = _RANGE.fullmatch(assignment).groups()  # type: ignore[union-attr]
    return int(first) - 1, int(last or first) - 1


def normal(answer: str) -> str:
    """Returns an answer as answers are compared: case, blanks and a full stop at the end do not matter."""
    return " ".join(answer.casefold().split()).rstrip(".").strip()


def bare(text: str) -> str:
    """Returns a text as bfcl-eval compares it: lower case, without some marks."""
    return re.sub(r"[,./\-_*^()]", "", text).lower().replace("'", '"')


def right(document: Document, text: str) -> bool:
    """Whether a reply's last box holds an answer that counts, or the reply does, where that is the rule."""
    if document.contained:
        return any(re.search(rf"\b{re.escape(bare(a))}\b", bare(text)) for a in document.answers)
    box = boxed(text)
    return box is not None and normal(box) in {normal(answer) for answer in document.answers}


def packed(entries: Sequence[str], room: int, separator: str) -> tuple[int, ...]:
    """Returns the pages of entries, as many on each as fit into so many characters, at least one."""
    ends, used = [], 0
    for i, entry in enumerate(entries):
        if used and used + len(separator) + len(entry) > room:
            ends.append(i)
            used = 0
        used += len(entry) + (len(separator) if used else 0)
    return (*ends, len(entries)) if entries else ()


def pieces(text: str, most: int) -> tuple[str, ...]:
    """Cuts a text at line ends, and lines of more than so many characters at blanks, or anywhere if there is none.

    Raises:
        DataError: Nothing but blanks is in it.
    """
    out: list[str] = []
    for line in text.splitlines():
        rest = line.strip()
        while len(rest) > most:
            at = rest.rfind(" ", 1, most + 1)
            at = at if at > 0 else most
            out.append(rest[:at].rstrip())
            rest = rest[at:].lstrip()
        if rest:
            out.append(rest)
    if not out:
        raise DataError("The document is empty. Expected text.")
    return tuple(out)
