"""One mathematics problem, in the record format of the MATH data set plus an id and a source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MathProblem:
    """A problem with its gold answer. Only ``problem`` may ever reach an agent."""

    id: str
    """Unique in its set; ``procedural/<generator>/<level>/<key>`` regenerates the very same problem."""
    problem: str
    """The statement, in LaTeX as MATH writes it."""
    solution: str
    """A worked solution, or an empty string where the source has none."""
    answer: str
    """The gold answer without its box, in LaTeX; never empty."""
    subject: str
    """E.g. ``Number Theory``; an empty string where the source does not say."""
    level: int | None
    """1 (easy) to 5 (hard) as in MATH, 0 for the embedded model's level; None where the source has none."""
    source: str
    """Name of the data set, or of the file."""
