"""A server of ours that hangs once: ``python mcp_hangs.py FOLDER HOW``. Each start leaves a file in the folder.

``call``: a tool never answers, and everything else does. ``all``: nor does anything that opens a task. ``stop``: the whole
process stands still.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from helpers.tools_tiny import PROBLEMS, TOOLS, Desk, grade
from marft_envs.families.tools import FunctionDomain
from marft_envs.families.tools.mcp import as_mcp_server
from marft_envs.families.tools.mcp.__main__ import over_stdio

FOLDER, HOW = Path(sys.argv[1]), sys.argv[2]
LOCK = threading.Lock()


def hang(state: Desk) -> str:
    """Hangs, the first time that anybody calls it."""
    if (FOLDER / "hung").exists():
        return "back"
    (FOLDER / "hung").touch()
    if HOW == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if HOW == "all":
        LOCK.acquire()
    time.sleep(3600)
    return "late"


def start(problem):
    """A fresh state; waits for the lock."""
    with LOCK:
        return Desk()


(FOLDER / f"started-{os.getpid()}").touch()
over_stdio(as_mcp_server(FunctionDomain([*TOOLS, hang], PROBLEMS, grade, state=start, name="hangs")))
