"""``marft replay``: a chunk that ended every worker, once more."""

from __future__ import annotations

import pickle
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from marft_algos.lazy import require_training
from marft_algos.runs import paths
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import clean, say


@dataclass(frozen=True)
class ReplayArguments:
    """Plays a chunk that ended every worker that it was given to (``engine/chunks_lost``), with the weights of then.

    It is played in this process, which may end as the workers did: under a debugger, or with more memory.
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """The chunk's, in the run's ``lost/``."""


def run_replay(options: ReplayArguments) -> None:
    """``marft replay RUN/lost/CHUNK``."""
    require_training()
    from marft_algos.extras.cluster import kept
    from marft_algos.extras.cluster.worker import RayWorker

    chunk, weights = kept.read(options.folder)
    config = paths.of_run(RunFolder.open(options.folder.absolute().parents[1]))
    with closing(RayWorker(config, len(chunk.prompts))) as worker:
        for policy, (version, packed) in weights.items():
            worker.take(policy, version, packed)
        say(f"playing {len(chunk.prompts)} episodes of {config.env}")
        packed, seconds = worker.play(chunk)
    played = pickle.loads(packed.checked("the chunk"))
    for trajectory in played.trajectories:
        episode = trajectory.episode
        what = f"{episode.task_id} (seed {episode.seed}): {episode.stop_reason}, return {trajectory.score:.3g}"
        say(f"{trajectory.number:>4}  {clean(what, line=True)}")
    say(f"all of them were played, in {seconds:.1f} s")
