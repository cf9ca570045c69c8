"""Where chunks are played: in this process, each rank some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from marft_algos.engines.base import Publisher
from marft_algos.ranks.lanes import Lanes
from marft_algos.rollout import selfplay
from marft_algos.rollout.chunks import Chunk, Played
from marft_algos.training.parts import Parts
from marft_algos.training.player import Player

Progress = Callable[[int, int, int], None]
"""(finished episodes, episodes, tokens sampled so far)."""


class Rollouts(Protocol):
    """Plays chunks with the policies' published weights."""

    chunk: int
    """Episodes that a panel is to be cut into; 0: a panel is one chunk."""

    def play(self, chunks: Sequence[Chunk], on_progress: Progress) -> list[Played]:
        """Plays every chunk once; returns what they came to in their order, on every rank the same."""

    def publish(self, policies: Iterable[str], version: int) -> None:
        """Plays these policies with their present weights from now on."""

    def rest(self) -> None:
        """Gives back the memory that only playing needs, while the policies learn."""

    def wake(self) -> None:
        """Undoes ``rest``; to be called before the next ``publish`` or ``play``."""

    def metrics(self) -> dict[str, float]:
        """Returns numbers to log that were counted since the last call."""

    def close(self) -> None:
        """Ends environments, engines and connections."""


class Here:
    """Plays in this process, or each of several ranks its share.

    Args:
        parts: Of the run.
        lanes: The ranks.
        pool: Past states of the policies that are played against.
    """

    def __init__(self, parts: Parts, lanes: Lanes, pool: selfplay.Pool | None) -> None:
        config = parts.config
        self.chunk = config.chunk or (CHUNK if lanes.count > 1 else 0)
        self._player, self._lanes, self._engine = Player(parts, self.chunk, pool), lanes, parts.engine
        self._publisher = Publisher(parts.engine, parts.policies, config.adapter_dir or None)

    def play(self, chunks: Sequence[Chunk], on_progress: Progress) -> list[Played]:
        """Plays every chunk on one of the ranks."""
        total, done, tokens = sum(len(chunk.panel) for chunk in chunks), 0, 0

        def play(chunk: Chunk) -> Played:
            nonlocal done, tokens
            self._player.on_progress = lambda ended, _, sampled: on_progress(done + ended, total, tokens + sampled)
            played = self._player.play(chunk)
            done, tokens = done + len(chunk.panel), tokens + sum(t.tokens for t in played.trajectories)
            return played

        return self._lanes.spread(chunks, play)

    def publish(self, policies: Iterable[str], version: int) -> None:
        """Publishes to the engine, through a folder where it wants one."""
        self._publisher.publish(policies, version)

    def rest(self) -> None:
        """Lets the engine give back its memory."""
        self._engine.sleep()

    def wake(self) -> None:
        """Lets the engine take it again."""
        self._engine.wake()

    def metrics(self) -> dict[str, float]:
        """Returns the engine's."""
        return self._engine.metrics()

    def close(self) -> None:
        """Ends environments and engine."""
        self._player.close()
        self._engine.close()
        self._publisher.close()


CHUNK = 8
"""Episodes of a chunk where a panel is shared out, if the settings do not say."""
