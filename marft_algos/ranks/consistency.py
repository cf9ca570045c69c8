"""Who the processes of a run are, and whether they are alike: one code, one folder, wherever they are."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import marft_envs
from marft_algos.lazy import torch
from marft_algos.ranks.group import RankGroup, lead
from marft_envs.errors import ConfigError, MarftError

PATIENCE_S = 5.0
"""How long a network's file system may take to show a new file."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Who a process is."""

    host: str
    pid: int
    version: str
    """Of marft."""
    code: str
    """Digest of the source files."""
    torch: str
    python: str
    device: str

    @classmethod
    def here(cls, device: str = "cpu") -> ProcessFacts:
        """Returns those of this process."""
        versions = marft_envs.__version__, code(), torch.__version__, platform.python_version()
        return cls(socket.gethostname(), os.getpid(), *versions, device)


@cache
def code() -> str:
    """Returns a digest of the source files of both packages: equal where the same code runs."""
    digest = hashlib.sha256()
    for root in (Path(__file__).parents[1], Path(marft_envs.__file__).parent):
        for file in sorted(root.rglob("*.py")):
            digest.update(f"{root.name}/{file.relative_to(root).as_posix()}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def difference(theirs: ProcessFacts, ours: ProcessFacts) -> str:
    """Returns what of two processes' programs differs, in words; empty: nothing that moves a number."""
    for what, one, other in (
        ("marft", theirs.version, ours.version),
        ("source files with the digest", theirs.code, ours.code),
        ("torch", theirs.torch, ours.torch),
    ):
        if one != other:
            return f"{theirs.host} runs {what} {one}, and {ours.host} {other}"
    return ""


def check_code(group: RankGroup) -> None:
    """Refuses ranks that run different programs.

    Raises:
        ConfigError: Two do, on every rank.
    """
    facts = group.gather(ProcessFacts.here())
    for rank, other in enumerate(facts[1:], 1):
        if differs := difference(other, facts[0]):
            raise ConfigError(
                f"Ranks {rank} and 0 run different programs: {differs}. Expected the same on all machines: install one"
                " version everywhere, or run it from a folder that they share."
            )


def check_folder(group: RankGroup, folder: str) -> None:
    """Checks that what rank 0 writes is read by all.

    Args:
        group: The ranks.
        folder: Where runs lie, as this rank calls it.

    Raises:
        ConfigError: A rank does not see it, on every rank.
    """
    if group.size == 1:
        return
    root = Path(folder).absolute()
    mark = root / group.first(f".shared-{uuid.uuid4().hex}")

    def write() -> None:
        root.mkdir(parents=True, exist_ok=True)
        mark.touch()

    try:
        lead(group, write)
        until = time.monotonic() + PATIENCE_S
        while not (seen := mark.is_file()) and time.monotonic() < until:
            time.sleep(0.1)
        places = group.gather((seen, socket.gethostname(), str(root)))
    finally:
        if group.rank == 0:
            mark.unlink(missing_ok=True)
    _, host, there = places[0]
    for sees, other, here in places:
        if not sees:
            raise ConfigError(
                f"What {host} writes to '{there}' is not in '{here}' on {other}: the folder of runs has to be one that"
                " all machines share. Type: --runs-dir with a folder of a network file system (NFS, Lustre, …)"
            )


def check_settings(group: RankGroup, table: Mapping[str, Any]) -> None:
    """Refuses ranks that were started with different settings.

    Raises:
        ConfigError: Two were, on every rank.
    """
    tables = group.gather((socket.gethostname(), dict(table)))
    host, first = tables[0]
    for other, settings in tables[1:]:
        apart = sorted(key for key in first.keys() | settings.keys() if first.get(key) != settings.get(key))
        if apart:
            key = apart[0]
            raise ConfigError(
                f"{other} was started with {key} = {settings.get(key)!r}, and {host} with {first.get(key)!r}. Expected"
                " the same command on all machines."
            )


class RanksDiffer(MarftError, RuntimeError):
    """Ranks that have to hold the same do not."""


def check_state(group: RankGroup, state: Any, where: str) -> None:
    """Checks that what is about to be saved is the same on all ranks, to the bit.

    Args:
        group: The ranks.
        state: Tensors and plain values, however they are nested.
        where: The run's folder, for the message.

    Raises:
        RanksDiffer: It is not, on every rank. It names those that are not with the majority, or all if there is none.
    """
    if group.size == 1:
        return
    gathered = group.gather((digest(state), socket.gethostname(), os.getpid()))
    counted = Counter(found for found, _, _ in gathered).most_common()
    if len(counted) == 1:
        return
    most, votes = counted[0]
    odd = [rank for rank, (found, _, _) in enumerate(gathered) if found != most or votes == counted[1][1]]
    named = ", ".join(f"rank {r} ({gathered[r][1]}, process {gathered[r][2]}: {gathered[r][0][:12]})" for r in odd)
    blame = f"{named} hold others than the rest" if votes > counted[1][1] else f"{named}; which is right is open"
    raise RanksDiffer(
        f"Ranks do not hold the same weights any more: {blame}. Memory or a processor of theirs may be faulty."
        f" Nothing was saved of it. Go on from the checkpoint before, on other hardware: marft train --resume {where}"
    )


def digest(state: Any) -> str:
    """Returns the sha256 of tensors and plain values, however they are nested."""
    whole = hashlib.sha256()
    for name, value in _leaves(state, ""):
        if isinstance(value, torch.Tensor):
            whole.update(f"{name}\0{value.dtype}{tuple(value.shape)}\0".encode())
            whole.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            whole.update(f"{name}\0{value!r}\0".encode())
    return whole.hexdigest()


def _leaves(state: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields what is nested, by its path; tables in the order of their keys, which may not be that of another rank."""
    if isinstance(state, Mapping):
        for key in sorted(state, key=str):
            yield from _leaves(state[key], f"{name}/{key}")
    elif isinstance(state, list | tuple):
        for i, inner in enumerate(state):
            yield from _leaves(inner, f"{name}/{i}")
    else:
        yield name, state
