"""The folder of a run for ranks that write nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from marft_algos.runs.folder import RunFolder

if TYPE_CHECKING:
    from marft_algos.ranks.group import RankGroup


class Onlooker(RunFolder):
    """A run's folder that can be read: what this rank would write, rank 0 writes."""

    writes: ClassVar[bool] = False

    @contextmanager
    def locked(self, command: str = "") -> Iterator[None]:
        """Locks nothing: rank 0 holds the lock."""
        yield

    def add_command(self, command: str, iteration: int, *, made: bool = False) -> None:
        """Writes nothing."""

    def write_config(self, text: str) -> None:
        """Writes nothing."""

    def append_metrics(self, metrics: Mapping[str, Any]) -> int:
        """Writes nothing; the size of the file is what rank 0 knows."""
        return 0

    def rewind(self, iteration: int, metrics_bytes: int) -> None:
        """Forgets nothing."""

    def write_episodes(self, kind: str, iteration: int, episodes: Sequence[Mapping[str, Any]]) -> None:
        """Writes nothing."""


def seen(run: RunFolder, group: RankGroup) -> RunFolder:
    """Returns a run's folder as this rank may use it: only the first one writes."""
    return run if group.rank == 0 else Onlooker(run.root)
