"""A question with what is needed to answer it, and how answers are compared: exact match and F1 as in SQuAD."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from marft_envs.families.rag.words import apart, plain

_DROPPED = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CITED = re.compile(r"\[([^\[\]]+)\]")
_PIECE = re.compile(r"#\d+$")
_CLOSED = frozenset({"yes", "no", "noanswer"})


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


def normal(text: str) -> str:
    """Returns an answer as answers are compared: without case, punctuation, articles and more than one blank.

    Characters of scripts without blanks are words of their own.
    """
    text = apart(plain(text))
    kept = " ".join(_ARTICLES.sub(" ", text.lower().translate(_DROPPED)).split())
    return kept or " ".join(text.casefold().split())


def em(answer: str, golds: Iterable[str]) -> float:
    """Returns whether an answer is one of those that count, as 1 or 0."""
    return float(normal(answer) in map(normal, golds))


def substring(answer: str, golds: Iterable[str]) -> float:
    """Returns whether an answer has one of those that count in it, as whole words, as 1 or 0."""
    return float(any(f" {normal(gold)} " in f" {normal(answer)} " for gold in golds))


def f1(answer: str, golds: Iterable[str]) -> float:
    """Returns the largest F1 of the answer's words with those of an answer that counts."""
    return max(_overlap(normal(answer), normal(gold)) for gold in golds)


def _overlap(one: str, other: str) -> float:
    if one != other and _CLOSED & {one, other}:
        return 0.0
    ours, theirs = Counter(one.split()), Counter(other.split())
    return 2 * (ours & theirs).total() / max(ours.total() + theirs.total(), 1)


def cited(text: str) -> set[str]:
    """Returns the ids in square brackets."""
    return set(_CITED.findall(text))


def composed(name: str) -> str:
    """Returns the id or title of a document as such are compared: an accent is part of its letter."""
    return unicodedata.normalize("NFC", name)


def names(name: str) -> set[str]:
    """Returns what a passage's id or title stands for: itself, and the text that it is a piece of (``id#1``)."""
    return {composed(name), _PIECE.sub("", composed(name))}
