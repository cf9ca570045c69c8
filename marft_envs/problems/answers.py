"""Answers of a few words: read out of a reply, and compared by exact match and F1 as in SQuAD."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

from marft_envs.problems.scripts import apart, plain

_BOX = re.compile(r"\\boxed\{(?:\\(?:text|textbf|mathrm)\{)?([^{}]*)\}")
_DROPPED = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CLOSED = frozenset({"yes", "no", "noanswer"})


def boxed(text: str) -> str | None:
    r"""Returns what stands in the last closed ``\boxed{}``, in a ``\text{}`` there or not; None if there is none.

    There are no other braces in it.
    """
    boxes = _BOX.findall(text)
    return boxes[-1].strip() if boxes else None


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


REWARDS = {"em": em, "f1": f1, "substring": substring}
"""Reward functions of an answer, by name."""
