"""A panel is cut into chunks: whoever plays a chunk, on whatever machine and however often, its episodes are the same.

What is sampled for a row does not depend on its batch, but its log-probabilities do, in their last bits. The episodes
of a chunk are always decoded together, and with nothing else. So a chunk follows from the run's settings, the versions
of the policies and what stands in it: it can be dealt to any rank or worker, and be played again where one has died.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marft_algos.credit.branches import Keep
from marft_algos.credit.diagnostics import Judged
from marft_algos.rollout.panel import Panel
from marft_algos.types import Trajectory
from marft_envs.core.types import Episode

CHUNK = 8
"""Episodes of a chunk where a panel is shared out, if the settings do not say."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive episodes of a panel, whole groups."""

    panel: Panel
    iteration: int
    """Seeds depend on it; ``seeds.EVALUATION``: of the held-out panel, played as at evaluation."""
    first: int = 0
    """Number of its first episode among those of the iteration."""
    refill: int = 0
    place: int = 0
    """Among the chunks of its panel."""
    group_size: int = 1
    keep: Keep = "nothing"
    """States that replays will begin at."""
    judged: int = 0
    """Turns of so many of its first episodes are judged by replays (``diagnostics.judge``)."""


@dataclass(slots=True)
class Played:
    """What a chunk came to. Episodes that a text broke off are not settled with those of other chunks yet."""

    trajectories: list[Trajectory]
    """In the chunk's order, with what the credit rule's replays credited their turns with."""
    kept: frozenset[int]
    """Numbers of the episodes whose groups the algorithm wants."""
    judged: Sequence[Judged] = ()
    branches: int = 0
    """How many replays there were, their episodes' costs included in ``trajectories``."""
    lost: Sequence[Episode] = ()
    """Replays that an outage broke off."""
    engine: Mapping[str, float] = field(default_factory=dict)
    """What a worker's engine counted meanwhile."""
    player: str = ""
    """Rank or worker that played it, and its machine: ``rank 1 on HOST``."""
    seconds: float = 0.0
    """That it took."""


def cut(panel: Panel, size: int, iteration: int, *, first: int = 0, group_size: int = 1, **rest: Any) -> list[Chunk]:
    """Cuts a panel into chunks.

    Args:
        panel: What is to be played.
        size: Episodes of a chunk, rounded up to whole groups; 0: one chunk.
        iteration: See ``Chunk``, as for what follows.
        first: Number of the first episode.
        group_size: Episodes of one start, which stay together.
        **rest: Other fields of the chunks; ``judged`` counts episodes of the iteration.
    """
    size = -(-size // group_size) * group_size or max(len(panel), 1)
    judged = rest.pop("judged", 0)
    chunks = []
    for place, start in enumerate(range(0, len(panel), size)):
        part = Panel(panel.seeds[start : start + size], panel.options[start : start + size])
        few = min(max(judged - first - start, 0), len(part))
        chunks.append(Chunk(part, iteration, first + start, place=place, group_size=group_size, judged=few, **rest))
    return chunks


def lost(chunk: Chunk, env_id: str, why: str) -> Played:
    """Returns what a chunk came to that nobody could play: episodes that an outage broke off.

    Args:
        chunk: Whose episodes they are.
        env_id: Of the environment.
        why: Stands in their records.
    """
    trajectories = []
    for i, (seed, options) in enumerate(zip(chunk.panel.seeds, chunk.panel.options, strict=True)):
        task = str(options.get("task_id", ""))
        episode = Episode(env_id, seed, task, (), [], [], [], stop_reason=f"error: lost: {why}", fault="machine")
        episode.options, episode.index = dict(options), i
        number = chunk.first + i
        trajectories.append(Trajectory(episode, (), number, number // chunk.group_size))
    return Played(trajectories, frozenset(t.number for t in trajectories))
