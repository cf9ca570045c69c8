"""``python -m marft_algos.cli.rank train …``: one rank of those that ``marft train --nproc N`` starts."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from marft_algos.cli import app
from marft_algos.training.launch import ENDED, ended

PR_SET_PDEATHSIG = 1
"""Of Linux's ``prctl``: the signal that a process gets when its parent dies."""


def _end_with_launcher() -> None:
    """Has this process stop, its state saved, when the launcher is gone: nobody would start it again, or end it."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has gone meanwhile
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Runs one rank of this machine; returns 0 unless it died."""
    _end_with_launcher()
    folder, rank = Path(os.environ[ENDED]), int(os.environ["RANK"])
    if ended(folder):  # another rank's end is not to be repeated
        return 0
    stopped, short = folder / f"stopped-{rank}", folder / f"alone-{rank}"
    stopped.unlink(missing_ok=True)  # by the launcher, before it started this rank again
    before = short.read_text(encoding="utf-8") if short.is_file() else ""
    code = app.main(sys.argv[1:])
    if code == 130:
        stopped.touch()
    elif code:
        left = short.read_text(encoding="utf-8") if short.is_file() else ""
        waited_for = left not in ("", before)  # the others wait for this rank: the launcher ends them
        if not waited_for or left == "0":
            (folder / "code").write_text(str(code), encoding="utf-8")
        return code if waited_for else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
