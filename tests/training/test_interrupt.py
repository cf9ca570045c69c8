"""A rank that was told to stop, and hangs, says where before its launcher kills it; and it ends with its launcher."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marft_algos.cli import app, commands
from marft_algos.training import session

HANGS = """
import signal, sys, time
from marft_algos.training import session

class Two:
    rank, size = 0, 2

    def agree(self, flag):
        return flag

session.STACK_S = 0.3
handler = session.Interrupt(Two())

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
from marft_algos.cli import rank
signal.signal(signal.SIGTERM, lambda *_: (print("told", flush=True), exit(0)))
rank._end_with_launcher()
print("there", flush=True)
time.sleep(60)
"""
child = subprocess.Popen([sys.executable, "-c", rank])
time.sleep(60)
'''


@pytest.mark.ci
@pytest.mark.parametrize("hangs", [True, False])
def test_a_rank_that_does_not_come_to_a_stop_says_where_it_hangs(hangs: bool) -> None:
    words = [sys.executable, "-c", HANGS, *["hangs"] * hangs]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert ("in hangs" in done.stderr) is hangs


def test_a_sighup_that_is_ignored_stays_so() -> None:
    """As ``nohup`` has it: the terminal may close, and the run goes on."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        told = pytest.warns(UserWarning, match="SIGHUP is ignored")
        with app._terminable(), told as said, session.Interrupt().installed():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert len(said) == 1
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with app._terminable():
            assert signal.getsignal(signal.SIGHUP) == app._hung_up
            handler = session.Interrupt()
            with handler.installed():
                assert signal.getsignal(signal.SIGHUP) == handler
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


CLOSED = """
import os, signal, sys
from marft_algos.training import session

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the suite may ignore it
handler = session.Interrupt()
with handler.installed():
    print("there", flush=True)
    while not handler._requested:
        signal.pause()
print("what is printed behind it goes nowhere, and breaks nothing", flush=True)
sys.stderr.write("nor here")
os.write(int(sys.argv[1]), b"saved")
"""


def test_what_is_saved_when_the_terminal_is_closed_does_not_fail_at_a_message() -> None:
    reader, writer = os.pipe()
    child, terminal = pty.fork()
    if not child:
        os.set_inheritable(writer, True)
        os.execv(sys.executable, [sys.executable, "-c", CLOSED, str(writer)])
    os.close(writer)
    assert b"there" in os.read(terminal, 100)
    os.close(terminal)
    assert os.read(reader, 100) == b"saved"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(reader)


class Collected:
    """Is told to stop while it is being taken away."""

    def __del__(self) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_in_a_destructor_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt), app._terminable():
            Collected()
            time.sleep(10)
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("words", "made"), [([], "no run was made"), (["--resume", "run"], "run is as it was")])
def test_stopped_before_training_says_what_there_is(
    words: list[str], made: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "require_training", stop)
    assert app.main(["train", *words]) == 130
    assert capsys.readouterr().err == f"stopped before training began: {made}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells children of their parent's death")
def test_a_rank_is_told_when_its_launcher_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "there\n"
        os.kill(launcher.pid, signal.SIGKILL)
        assert launcher.stdout.readline() == "told\n"
