"""Programs in processes of their own that begin where other people's packages are loaded: a copy of one that waits."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WAITING = """
import importlib, json, os, sys, traceback
for name in ("numpy", "pydantic", "tyro", "rich", "pettingzoo", "gymnasium", "torch", "transformers", "peft"):
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
        sys.argv, sys.path[0] = asked["argv"], os.path.dirname(os.path.abspath(asked["argv"][0]))
        import runpy
        runpy.run_path(os.path.abspath(sys.argv[0]), run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
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
    """Runs a Python program as ``python PROGRAM …`` does in a folder; the packages of this project it imports anew."""
    process = _waiting()
    assert process.stdin is not None and process.stdout is not None
    with tempfile.NamedTemporaryFile("r+") as out, tempfile.NamedTemporaryFile("r+") as err:
        asked = {"folder": str(folder), "argv": argv, "out": out.name, "err": err.name}
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        return subprocess.CompletedProcess(argv, code, Path(out.name).read_text(), Path(err.name).read_text())
