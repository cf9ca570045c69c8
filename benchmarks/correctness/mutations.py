"""Do the tests catch the defects they are named for? Puts each one in by hand and looks.

    python -m benchmarks mutations            # all of them, a table at the end; exit code 1 if one goes unnoticed
    python -m benchmarks mutations huber      # those whose row contains the word

The packages and tests are copied to a temporary folder; there each defect (one line of text changed for another) is
put in, the named test is run, and the file is put back. A defect counts as caught only if the test *fails*; errors
of collection do not count. Before anything is changed all the tests must pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.correctness.operators import ROOT, Defect, defects, planted

FOLDERS = ("marft_envs", "marft_algos", "tests")


MUTATIONS = [defect for defect in defects() if defect.test]


def main(arguments: Sequence[str]) -> int:
    """Runs the chosen mutations; returns the exit code."""
    word = arguments[0] if arguments else ""
    chosen = [m for m in MUTATIONS if word.lower() in m.row.lower()]
    if not chosen:
        print(f"No row contains '{word}'. Rows: " + "; ".join(m.row for m in MUTATIONS), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        tests = sorted({m.test for m in chosen})
        code, output = run(copy, tests)
        if code != 0:
            print(f"Without any defect the tests must pass:\n{output}", file=sys.stderr)
            return 2
        print(f"{len(tests)} tests pass without a defect.\n\n| row | test | caught |\n|---|---|---|")
        missed = sum(not _try(copy, m) for m in chosen)
    print(f"\n{len(chosen) - missed} of {len(chosen)} defects caught.")
    return 1 if missed else 0


def _try(copy: Path, defect: Defect) -> bool:
    """Puts one defect in, runs its test, takes the defect out; prints the row."""
    path = copy / defect.file
    source = path.read_text(encoding="utf-8")
    path.write_text(planted(source, defect)[0], encoding="utf-8")
    code, _ = run(copy, [defect.test])
    verdict = {0: "NO, the test passes", 1: "yes"}.get(code, f"no: the test could not run (exit {code})")
    path.write_text(source, encoding="utf-8")
    print(f"| {defect.row} | {defect.test} | {verdict} |", flush=True)
    return verdict == "yes"


def run(folder: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Runs tests in ``folder``; pytest's exit code and output."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(f"tests/{t}" for t in tests)]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
