"""A small disk in memory, in namespaces of its own: it can be full without harm to anybody else."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

from marft_envs.errors import ConfigError

BYTES = 64 << 20
FILLER = "filler"


class SmallDisk:
    """A file system that only the processes see that are started on it; used as a context.

    Args:
        folder: Where it is, for them.

    Raises:
        ConfigError: This machine does not let a process make one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for tool in ("unshare", "nsenter"):
            if shutil.which(tool) is None:
                raise ConfigError(f"'{tool}' is not on this machine; the package util-linux has it.")

    def __enter__(self) -> SmallDisk:
        mounts = f'mount -t tmpfs -o size={BYTES} drill "$1" && echo there && exec cat'
        self._holder = subprocess.Popen(
            ["unshare", "--map-root-user", "--mount", "sh", "-c", mounts, "sh", str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if self._holder.stdout.readline() != "there\n":
            raise ConfigError(
                f"This test needs a small disk: {self._holder.stderr.read().strip()}. Expected a machine that"
                " lets users make namespaces (sysctl -w user.max_user_namespaces=15000), or a container that does."
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()

    @property
    def first(self) -> tuple[str, ...]:
        """The words before a command that is to see it."""
        return "nsenter", f"--target={self._holder.pid}", "--user", "--mount", "--preserve-credentials"

    @property
    def view(self) -> Path:
        """Its folder, seen from here."""
        return Path(f"/proc/{self._holder.pid}/root{self._folder.absolute()}")

    @staticmethod
    def fill(view: Path, left: int) -> None:
        """Fills it but for so many bytes."""
        with (view / FILLER).open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 65536)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            os.ftruncate(file.fileno(), max(os.fstat(file.fileno()).st_size - left, 0))

    @staticmethod
    def free(view: Path) -> None:
        """Makes room again."""
        (view / FILLER).unlink(missing_ok=True)
