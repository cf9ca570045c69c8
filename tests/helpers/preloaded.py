"""Programs in processes of their own that begin where other people's packages are loaded: a copy of one that waits."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOADING_S = 120
"""Seconds in which other people's packages are loaded at the latest."""
WAITING = """
import gc, importlib.util, json, os, signal, sys, traceback
gc.disable()
for name in (
    *("numpy", "pydantic", "tyro", "rich", "pettingzoo", "gymnasium", "torch", "transformers", "peft", "typeguard"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
):
    importlib.import_module(name)
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM
gc.freeze()  # no copy goes through it, or has its pages copied
gc.enable()
os.fsync = lambda _: None  # as in the suite's own processes

class Undrawn:  # finds the module of reports, whose curves take longer than most trainings, and has it draw none
    def find_spec(self, name, path, target=None):
        if name != "marft_algos.runs.report":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def plain(module):
            load(module)
            importlib.import_module("tests.helpers.pictures").draw(False)
        spec.loader.exec_module = plain
        return spec

def program(asked):
    code = 1
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the suite may ignore some
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        for stream, file in enumerate(("/dev/null", asked["out"], asked["err"])):
            os.dup2(os.open(file, os.O_RDWR), stream)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environ"])
        if "MARFT_TEST_PICTURES" not in os.environ:
            sys.meta_path.insert(0, Undrawn())
        sys.argv = asked["argv"]
        import runpy
        if sys.argv[0] == "-m":
            sys.path[0] = os.getcwd()
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
            runpy.run_path(os.path.abspath(sys.argv[0]), run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        import atexit
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

def awaited(asked):
    child = os.fork() or program(asked)
    with open(asked["told"], "w") as told:  # a pipe with a name: whoever waits reads it
        print(child, file=told, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=told)
    os._exit(0)

waiting = 0
for line in sys.stdin:
    waiting += bool(os.fork() or awaited(json.loads(line)))
    while waiting and os.waitpid(-1, os.WNOHANG)[0]:
        waiting -= 1
"""


@functools.cache
def _waiting() -> subprocess.Popen[str]:
    """One for each process of the suite; it ends with it, as its input does."""
    return subprocess.Popen([sys.executable, "-c", WAITING], env=_environ({}), stdin=subprocess.PIPE, text=True)


def _environ(more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


class Started:
    """A program that runs: ``python PROGRAM …`` or ``python -m MODULE …`` in a folder.

    The packages of this project are imported anew. Its runs end without curves, unless the environment has
    ``MARFT_TEST_PICTURES``. What it prints is in the files ``out`` and ``err`` until it is waited
    for; ``pid`` is its process, no child of this one.
    """

    def __init__(self, folder: Path, *argv: str, **environ: str) -> None:
        self._argv, self._files = argv, tempfile.TemporaryDirectory()
        self.out, self.err, told = (Path(self._files.name, name) for name in ("out", "err", "told"))
        self.out.touch()
        self.err.touch()
        os.mkfifo(told)
        reader = os.open(told, os.O_RDONLY | os.O_NONBLOCK)
        asked = {"folder": str(folder), "argv": argv, "environ": _environ(environ)}
        asked |= {"out": str(self.out), "err": str(self.err), "told": str(told)}
        pipe = _waiting().stdin
        assert pipe is not None
        pipe.write(json.dumps(asked) + "\n")
        pipe.flush()
        self._told = open(reader, encoding="ascii")  # noqa: SIM115 - until it is waited for
        assert select.select([reader], [], [], LOADING_S)[0], "what other programs are copies of does not answer"
        os.set_blocking(reader, True)
        self.pid = int(self._told.readline())

    def runs(self, seconds: float = 0.0) -> bool:
        """Whether it has not ended so many seconds from now."""
        return not select.select([self._told], [], [], seconds)[0]

    def wait(self, timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Waits for its end, once."""
        if self.runs(timeout):
            os.kill(self.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(self._argv, timeout, self.out.read_text(), self.err.read_text())
        with self._files, self._told:
            code = int(self._told.readline())
            return subprocess.CompletedProcess(self._argv, code, self.out.read_text(), self.err.read_text())


def run(folder: Path, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs a program, and waits for its end."""
    return Started(folder, *argv, **environ).wait()


TYPED = """#!{python} -ISs
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    server.sendall(json.dumps([os.getcwd(), *sys.argv[1:]]).encode() + b"\\n")
    code, out, err = json.load(server.makefile())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        folder, *words = json.loads(self.rfile.readline())
        done = run(Path(folder), "-m", "marft_algos", *words)
        self.wfile.write(json.dumps([done.returncode, done.stdout, done.stderr]).encode())


@contextlib.contextmanager
def marft(program: Path) -> Iterator[None]:
    """As long as this is open, the program that it writes is ``marft`` for who types it in a shell."""
    with tempfile.TemporaryDirectory() as folder:  # the name of a socket is short
        address = f"{folder}/socket"
        program.write_text(TYPED.format(python=sys.executable, address=address))
        program.chmod(0o755)
        with socketserver.UnixStreamServer(address, _Answer) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()
