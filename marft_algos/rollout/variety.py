"""What an iteration's episodes have to show: how many starts they visit, and how different a group's episodes are.

Groups of the same start pay for comparisons with tokens: if a policy says nearly the same each time, most of a group
is a repetition, and the run has seen fewer problems than one without groups from as many tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from marft_algos.types import Trajectory

REPETITIVE = 0.5
"""Below this share of distinct transcripts in a group a run says so, once."""


class Variety:
    """Counts what an iteration's episodes have to show.

    Args:
        group_size: Episodes of one start.
    """

    def __init__(self, group_size: int) -> None:
        self._size, self._warned = group_size, False

    def measure(self, played: Sequence[Trajectory]) -> dict[str, float]:
        """Returns numbers of the episodes of an iteration; warns, once, where groups mostly repeat themselves.

        Args:
            played: Each with its ``group``; those that an outage broke off are left out.

        Returns:
            ``starts``: visits to a start, a group being one; with groups ``distinct``: different transcripts in a
            group, mean over groups.
        """
        groups: dict[int, set[tuple[tuple[str, str], ...]]] = {}
        for t in played:
            groups.setdefault(t.group, set()).add(_transcript(t))
        metrics: dict[str, float] = {"starts": len(groups)}
        if self._size > 1 and groups:
            metrics["distinct"] = sum(map(len, groups.values())) / len(groups)
            self._warn(metrics["distinct"])
        return metrics

    def _warn(self, distinct: float) -> None:
        if self._warned or distinct >= REPETITIVE * self._size:
            return
        self._warned = True
        warnings.warn(
            f"A group of {self._size} episodes holds {distinct:.1f} different transcripts: the others repeat them, and "
            "their tokens teach little. Sample with more entropy (--temperature), in smaller groups (--group-size), or "
            "use an algorithm without groups.",
            stacklevel=2,
        )


def _transcript(trajectory: Trajectory) -> tuple[tuple[str, str], ...]:
    return tuple((turn.agent, turn.text) for turn in trajectory.transitions)
