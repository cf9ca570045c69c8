"""Programs in processes of their own that begin where other people's packages are loaded: a copy of one that waits."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WAITING = """
import importlib, json, os, sys, traceback
for name in (
    *("numpy", "pydantic", "tyro", "rich", "pettingzoo", "gymnasium", "torch", "transformers", "peft", "typeguard"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
):
    importlib.import_module(name)
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    code = 1
    try:
        for stream, file in enumerate(("/dev/null", asked["out"], asked["err"])):
            os.dup2(os.open(file, os.O_RDWR), stream)
        os.chdir(asked["folder"])
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
"""


@functools.cache
def _waiting() -> subprocess.Popen[str]:
    """One for each process of the suite; it ends with it, as its input does."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", WAITING], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Runs ``python PROGRAM …`` or ``python -m MODULE …`` in a folder; the packages of this project are imported anew."""
    process = _waiting()
    assert process.stdin is not None and process.stdout is not None
    with tempfile.NamedTemporaryFile("r+") as out, tempfile.NamedTemporaryFile("r+") as err:
        asked = {"folder": str(folder), "argv": argv, "out": out.name, "err": err.name}
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        return subprocess.CompletedProcess(argv, code, Path(out.name).read_text(), Path(err.name).read_text())


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
