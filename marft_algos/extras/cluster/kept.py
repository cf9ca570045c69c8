"""A chunk that ended every worker it was given to is kept with the weights that played it: ``marft replay`` plays it.

lost/iteration-000003-chunk-001/
  chunk.json                what is played, and by which versions
  POLICY.safetensors        the weights, named by number: ``policies`` of chunk.json says whose they are
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from marft_algos import seeds
from marft_algos.extras.cluster.worker import HashedBytes
from marft_algos.rollout.episodes import Chunk
from marft_algos.runs.disk import replacing
from marft_envs.errors import reading

FILE = "chunk.json"


def keep(folder: Path, chunk: Chunk, weights: Mapping[str, tuple[int, HashedBytes]]) -> Path:
    """Writes a chunk down.

    Args:
        folder: Of all that are kept.
        chunk: What was to be played.
        weights: Policy -> version and weights.

    Returns:
        The chunk's folder.

    Raises:
        RunError: It cannot be written.
    """
    when = "evaluation" if chunk.iteration == seeds.EVALUATION else f"iteration-{chunk.iteration + 1:06d}"
    target = folder / f"{when}-chunk-{chunk.place:03d}"
    table = dataclasses.asdict(chunk) | {"policies": {policy: version for policy, (version, _) in weights.items()}}
    with replacing(target) as aside:
        for number, (_, packed) in enumerate(weights.values()):
            (aside / f"{number}.safetensors").write_bytes(packed.data)
        (aside / FILE).write_text(json.dumps(table, indent=1, default=str) + "\n", encoding="utf-8")
    return target


def read(folder: Path) -> tuple[Chunk, dict[str, tuple[int, HashedBytes]]]:
    """Reads what ``keep`` wrote.

    Raises:
        ConfigError: There is nothing of the kind.
    """
    example = "marft replay runs/NAME/lost/iteration-000003-chunk-001"
    with reading(f"'{folder}' holds no chunk that was kept", f"Expected a folder in a run's lost/, as in {example}"):
        table: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        versions = table.pop("policies")
        chunk = TypeAdapter(Chunk).validate_python(table)
        weights = {
            policy: (int(version), HashedBytes.of((folder / f"{number}.safetensors").read_bytes()))
            for number, (policy, version) in enumerate(versions.items())
        }
        if len(chunk.prompts.seeds) != len(chunk.prompts.options):
            raise ValueError(f"{len(chunk.prompts.seeds)} seeds, {len(chunk.prompts.options)} options")
        return chunk, weights
