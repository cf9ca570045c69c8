"""A question with what is needed to answer it, and how documents are named."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_CITED = re.compile(r"\[([^\[\]]+)\]")
_PIECE = re.compile(r"#\d+$")


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """What is asked. Agents see ``question`` alone."""

    id: str
    question: str
    answers: tuple[str, ...]
    """Those that count as right, the gold one first; never empty."""
    needed: tuple[str, ...] = ()
    """Ids, or titles, of the documents that the answer is in; empty where nobody says."""
    steps: tuple[tuple[str, str], ...] = ()
    """Of each hop what an expert searches for, and notes; empty where nobody knows."""


def cited(text: str) -> set[str]:
    """Returns the ids in square brackets."""
    return set(_CITED.findall(text))


def composed(name: str) -> str:
    """Returns the id or title of a document as such are compared: an accent is part of its letter."""
    return unicodedata.normalize("NFC", name)


def names(name: str) -> set[str]:
    """Returns what a passage's id or title stands for: itself, and the text that it is a piece of (``id#1``)."""
    return {composed(name), _PIECE.sub("", composed(name))}
