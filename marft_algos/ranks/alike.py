"""Who the processes of a run are, and whether they are alike: one code, one folder, wherever they are."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import marft_algos
import marft_envs
from marft_algos.lazy import torch
from marft_algos.ranks.group import Group, lead
from marft_envs.errors import ConfigError

PATIENCE_S = 5.0
"""How long a network's file system may take to show a new file."""


@dataclass(frozen=True, slots=True)
class Facts:
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
    def here(cls, device: str = "cpu") -> Facts:
        """Returns those of this process."""
        versions = marft_algos.__version__, code(), torch.__version__, platform.python_version()
        return cls(socket.gethostname(), os.getpid(), *versions, device)


@cache
def code() -> str:
    """Returns a digest of the source files of both packages: equal where the same code runs."""
    digest = hashlib.sha256()
    for package in (marft_algos, marft_envs):
        root = Path(next(iter(package.__path__)))
        for file in sorted(root.rglob("*.py")):
            digest.update(f"{package.__name__}/{file.relative_to(root).as_posix()}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def difference(theirs: Facts, ours: Facts) -> str:
    """Returns what of two processes' programs differs, in words; empty: nothing that moves a number."""
    for what, one, other in (
        ("marft", theirs.version, ours.version),
        ("source files with the digest", theirs.code, ours.code),
        ("torch", theirs.torch, ours.torch),
    ):
        if one != other:
            return f"{theirs.host} runs {what} {one}, and {ours.host} {other}"
    return ""


def check_code(group: Group) -> None:
    """Refuses ranks that run different programs.

    Raises:
        ConfigError: Two do, on every rank.
    """
    facts = group.gather(Facts.here())
    for rank, other in enumerate(facts[1:], 1):
        if differs := difference(other, facts[0]):
            raise ConfigError(
                f"Ranks {rank} and 0 run different programs: {differs}. Expected the same on all machines: install one"
                " version everywhere, or run it from a folder that they share."
            )


def check_folder(group: Group, folder: str) -> None:
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


def check_settings(group: Group, table: Mapping[str, Any]) -> None:
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
