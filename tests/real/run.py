"""Domains of tools, the export of traces, and a model with real weights, on real packages: ``make test-real``.

::

    python tests/real/run.py --cache .real                      # every test
    python tests/real/run.py --cache .real -n 2 -k bfcl         # what is left over goes to pytest

``packages.txt`` is installed into a folder, without dependencies, so nothing that this project runs on is touched;
``servers.txt``, public MCP servers, into a virtual environment. Both are made once and kept under ``--cache``. The tests run
with ``--require-real``: one that is skipped has failed, unless it is only the data folder that is missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TESTS = (
    "tests/models/test_gguf.py", "tests/models/test_templates_real.py",
    "tests/tools/test_tools_played.py", "tests/tools/test_bfcl_real.py", "tests/tools/test_tau2_real.py",
    "tests/tools/test_dojo_real.py", "tests/docs/test_recall_real.py",
    "tests/tools/test_tools_ordering.py", "tests/envs/test_otel_wire.py",
    "tests/tools/test_tools_mcp.py::test_a_public_server_works_as_a_domain",
)  # fmt: skip
"""What takes longest is first: no process is left alone with it at the end."""

ELSEWHERE = (
    "[depot", "[functions", "[mcp-own", "[tau-", "test_depot_gold", "test_tau_gold", "test_the_comparison_sees",
    "test_a_part_is_gold_up_to",
)  # fmt: skip
"""Tests of these files that need no package and no server, by parts of their names: the suite runs them."""


def install(name: str, cache: Path, pip_args: list[str]) -> Path:
    """Makes a folder of packages, or an environment of servers, unless it is there as wanted."""
    folder, wanted = cache / name, (HERE / f"{name}.txt").read_text()
    stamp = cache / f"{name}-installed.txt"
    if stamp.is_file() and stamp.read_text() == f"{sys.version}\n{wanted}":
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    stamp.unlink(missing_ok=True)
    if name == "servers":
        venv.create(folder, with_pip=True)
        pip = [str(python_of(folder)), "-m", "pip", "install"]
    else:
        pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, "--quiet", *pip_args, "-r", str(HERE / f"{name}.txt")], check=True)
    stamp.write_text(f"{sys.version}\n{wanted}")
    return folder


def python_of(folder: Path) -> Path:
    """The interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def main() -> int:
    """Installs what is missing and runs the tests; returns pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="folder of the packages and servers")
    parser.add_argument("--pip-args", default="", help="passed to pip")
    parser.add_argument("--install", action="store_true", help="install what is missing, and run nothing")
    given, more = parser.parse_known_args()
    cache = given.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    packages = install("packages", cache, given.pip_args.split())
    servers = install("servers", cache, given.pip_args.split())
    if given.install:
        return 0
    paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "MARFT_TEST_MCP_PYTHON": str(python_of(servers)),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "--require-real", "-m", "slow or not slow"]
    command += ["-k", " and ".join(f"not {name}" for name in ELSEWHERE), *TESTS, *more]
    return subprocess.run(command, cwd=ROOT, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
