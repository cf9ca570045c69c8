"""Where chunks are played: in this process, each rank some of them."""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from marft_algos import seeds
from marft_algos.engines.base import Publisher
from marft_algos.ranks.lanes import Lanes
from marft_algos.rollout import selfplay
from marft_algos.rollout.chunks import CHUNK, Chunk, Played
from marft_algos.training.parts import Parts
from marft_algos.training.player import Player

Progress = Callable[[int, int, int], None]
"""(finished episodes, episodes, tokens sampled so far)."""


class Rollouts(Protocol):
    """Plays chunks with the policies' published weights."""

    chunk: int
    """Episodes that a panel is to be cut into; 0: a panel is one chunk."""

    apart: bool
    """Whether others play than learn. Rank 0 alone asks them, and tells the other ranks; it may do so from another
    thread, while it learns. Otherwise all ranks call ``play``, and each plays its share."""

    lost: Path | None
    """Folder for chunks that end whoever plays them; none: they are not kept."""

    def play(self, chunks: Sequence[Chunk], on_progress: Progress, weights: Any = None) -> list[Played]:
        """Plays every chunk once; returns what they came to, in their order.

        Args:
            chunks: What to play.
            on_progress: Is told how far it is.
            weights: What ``pin`` returned; None: what is published now.
        """

    def pin(self) -> Any:
        """Returns what is published now, to be played with later."""

    def publish(self, policies: Iterable[str], version: int) -> None:
        """Plays these policies with their present weights from now on."""

    def rest(self) -> None:
        """Gives back the memory that only playing needs, while the policies learn."""

    def wake(self) -> None:
        """Undoes ``rest``; to be called before the next ``publish`` or ``play``."""

    def metrics(self) -> dict[str, Any]:
        """Returns what to log that was counted since the last call: ``time_…`` as it is, the rest under ``engine/``.

        ``time_players`` says who played how much of what is learnt from, see ``Players``.
        """

    def close(self) -> None:
        """Ends environments, engines and connections."""


class Players:
    """Counts what each rank or worker has played of what is learnt from."""

    def __init__(self) -> None:
        self._counted: defaultdict[str, dict[str, float]] = defaultdict(
            lambda: {"chunks": 0, "episodes": 0, "tokens": 0, "seconds": 0.0}
        )

    def add(self, chunk: Chunk, played: Played) -> None:
        """Counts a chunk that was played."""
        if chunk.iteration == seeds.EVALUATION:
            return
        counted = self._counted[played.player]
        counted["chunks"] += 1
        counted["episodes"] += len(chunk.panel)
        counted["tokens"] += sum(trajectory.tokens for trajectory in played.trajectories)
        counted["seconds"] += played.seconds

    def take(self) -> list[dict[str, Any]]:
        """Returns a row for each, by name, and begins anew."""
        counted, self._counted = self._counted, Players()._counted
        return [{"name": name, **counted[name]} for name in sorted(counted, key=_natural) if name]


def _natural(name: str) -> tuple[int, str]:
    """Orders ``rank 2`` before ``rank 10``."""
    number = name.split(" ")[1:2]
    return int(number[0]) if number and number[0].isdecimal() else 0, name


RAY = "marft_algos.cluster.rollouts", "RayRollouts"
"""Where the kind is that needs what not everybody has installed."""


def make(parts: Parts, lanes: Lanes, pool: selfplay.Pool | None) -> Rollouts:
    """Makes the kind that the settings name.

    Raises:
        ConfigError, EngineError: See ``RayRollouts``.
        MissingExtraError: It needs a package that is not installed.
    """
    if parts.config.rollouts == "here":
        return Here(parts, lanes, pool)
    module, name = RAY
    return cast(Rollouts, getattr(import_module(module), name)(parts, lanes, pool))


class Here:
    """Plays in this process, or each of several ranks its share.

    Args:
        parts: Of the run.
        lanes: The ranks.
        pool: Past states of the policies that are played against.
    """

    def __init__(self, parts: Parts, lanes: Lanes, pool: selfplay.Pool | None) -> None:
        config, self.apart = parts.config, False
        self.lost: Path | None = None
        self.chunk = config.chunk or (CHUNK if lanes.count > 1 else 0)
        self._player, self._lanes, self._engine = Player(parts, self.chunk, pool), lanes, parts.engine
        self._publisher = Publisher(parts.engine, parts.policies, config.adapter_dir or None)
        self._name, self._players = f"rank {lanes.group.rank} on {socket.gethostname()}", Players()
        self._publishing = 0.0

    def play(self, chunks: Sequence[Chunk], on_progress: Progress, weights: Any = None) -> list[Played]:
        """Plays every chunk on one of the ranks, which all have the results."""
        total, done, tokens = sum(len(chunk.panel) for chunk in chunks), 0, 0

        def play(chunk: Chunk) -> Played:
            nonlocal done, tokens
            self._player.on_progress = lambda ended, _, sampled: on_progress(done + ended, total, tokens + sampled)
            started = time.monotonic()
            played = self._player.play(chunk)
            played.player, played.seconds = self._name, time.monotonic() - started
            done, tokens = done + len(chunk.panel), tokens + sum(t.tokens for t in played.trajectories)
            return played

        results = self._lanes.spread(chunks, play)
        for chunk, played in zip(chunks, results, strict=True):
            self._players.add(chunk, played)
        return results

    def pin(self) -> None:
        """Returns nothing: it is played at once."""

    def publish(self, policies: Iterable[str], version: int) -> None:
        """Publishes to the engine, through a folder where it wants one."""
        started = time.monotonic()
        self._publisher.publish(policies, version)
        self._publishing += time.monotonic() - started

    def rest(self) -> None:
        """Lets the engine give back its memory."""
        self._engine.sleep()

    def wake(self) -> None:
        """Lets the engine take it again."""
        self._engine.wake()

    def metrics(self) -> dict[str, Any]:
        """Returns the engine's, and who played."""
        spent, self._publishing = self._publishing, 0.0
        return {**self._engine.metrics(), "time_publish": spent, "time_players": self._players.take()}

    def close(self) -> None:
        """Ends environments and engine."""
        self._player.close()
        self._engine.close()
        self._publisher.close()
