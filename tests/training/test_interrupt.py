"""A rank that was told to stop, and hangs, says where before its launcher kills it; and it ends with its launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

HANGS = """
import signal, sys, time
from marft_algos.training import interrupt

class Two:
    rank, size = 0, 2

    def agree(self, flag):
        return flag

interrupt.STACK_S = 0.3
handler = interrupt.Interrupt(Two())

def hangs():
    time.sleep(2)

with handler.installed():
    signal.raise_signal(signal.SIGTERM)
    if "hangs" in sys.argv:
        hangs()
    try:
        handler.agreed()
    except KeyboardInterrupt:
        assert handler.whole
    time.sleep(1)
"""

LAUNCHER = '''
import subprocess, sys, time
rank = """
import signal, time
from marft_algos.cli import launch
signal.signal(signal.SIGTERM, lambda *_: (print("told", flush=True), exit(0)))
launch._end_with_launcher()
print("there", flush=True)
time.sleep(60)
"""
child = subprocess.Popen([sys.executable, "-c", rank])
time.sleep(60)
'''


@pytest.mark.parametrize("hangs", [True, False])
def test_a_rank_that_does_not_come_to_a_stop_says_where_it_hangs(hangs: bool) -> None:
    words = [sys.executable, "-c", HANGS, *["hangs"] * hangs]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert ("in hangs" in done.stderr) is hangs


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells children of their parent's death")
def test_a_rank_is_told_when_its_launcher_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "there\n"
        os.kill(launcher.pid, signal.SIGKILL)
        assert launcher.stdout.readline() == "told\n"
