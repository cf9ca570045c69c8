"""Ranks as processes of this machine, with what a launcher tells them, that begin where packages are loaded."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from helpers import preloaded


def processes(
    script: Path, size: int, *words: str, environ: Mapping[str, str] | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """Runs a script on so many ranks, and waits for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        preloaded.Started(Path.cwd(), str(script), *words, **place, **(environ or {}), RANK=str(rank))
        for rank in range(size)
    ]
    return [process.wait(timeout=900) for process in started]
