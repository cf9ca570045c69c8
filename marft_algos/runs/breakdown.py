"""Breaks an evaluation down: by kind of problem, which is what a gain is made of, and by whose words were seen.

A team that has found a loophole of its grader solves one kind of problem always, and no other kind better than before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from marft_algos.runs.folder import EvalRecord
from marft_envs import Episode

NAMED = 3
"""Kinds that are named beside a gain."""


@dataclass(frozen=True, slots=True)
class KindScore:
    """Problems of one kind, and the sums of their outcomes."""

    name: str
    """Their ids up to the last ``/``."""
    n: int
    before: float
    after: float

    @property
    def gain(self) -> float:
        """Returns what the kind adds to the sum of all outcomes."""
        return self.after - self.before

    def __str__(self) -> str:
        return f"{self.name} {self.gain:+.3g} ({self.before:.3g} to {self.after:.3g} of {self.n})"


def most(changed: Sequence[KindScore]) -> str:
    """Returns the kinds that changed most, in a line; nothing where none has changed."""
    return "; ".join(str(kind) for kind in changed[:NAMED] if kind.gain)


def changes(before: Sequence[EvalRecord], after: Sequence[EvalRecord]) -> list[KindScore]:
    """Sums outcomes by kind over the problems that neither evaluation has lost, the largest change first.

    Returns:
        Nothing where ids name one kind only, or most problems would be one of their own.
    """
    outcomes: dict[str, list[tuple[float, float]]] = defaultdict(list)
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if not (old.lost or new.lost)]
    for old, new in pairs:
        outcomes[old.task_id.rpartition("/")[0]].append((old.outcome, new.outcome))
    if not 1 < len(outcomes) <= len(pairs) / 2:
        return []
    kinds = [
        KindScore(name, len(both), *(sum(side) for side in zip(*both, strict=True))) for name, both in outcomes.items()
    ]
    return sorted(kinds, key=lambda kind: (-abs(kind.gain), kind.name))


def seen_agents(episodes: Iterable[Episode]) -> set[str]:
    """Returns the agents whose words another agent has seen in these episodes."""
    pairs = ((e.turns[i].agent, turn.agent) for e in episodes for turn in e.turns for i in turn.sees)
    return {seen for seen, agent in pairs if seen != agent}
