"""The commands of README, CONTRIBUTING and the pages: those that take seconds are run, and it is noted when.

::

    python -m benchmarks commands            # runs them and writes benchmarks/results/commands.json

The test suite reads every command of every page with the parser that it is for (``tests/project/test_commands.py``),
and checks that each is in that file with a date, or has one of the ``REASONS`` not to be.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORD = ROOT / "benchmarks/results/commands.json"
PROGRAMS = ("marft", "python", "make")
"""First words of what belongs to this project; other programs are their makers'."""
TUTORIALS = ("tutorial", "first-task", "first-algorithm", "first-benchmark")
"""Pages that a slow test types from top to bottom (``tests/project/test_newcomer.py``)."""
SECONDS = 240.0
"""After which a command is ended."""
QUICK = re.compile(
    r"""(?x)
    marft(\ (--version|help\b.*|envs\b.*|check\b.*|profiles\b.*|doctor\b.*|completion\b.*|new\b.*|play\b.*--random.*
      |(train|sft|dpo|eval|bench|export)\b.*(--help|--help-all|--dry-run|--plan)\b.*
      |bench\ report\ runs/.*))?
    |python\ -m\ benchmarks\ (--help|\w+\ --help|\w+\ runs/.*)
    |python\ -m\ marft_envs\.sandbox
    """
)
"""What is run here."""
VERDICTS = re.compile(r"marft doctor\b|python -m benchmarks toys_matrix\b")
"""What says by exit status 1 that something is not as wished, on this machine or in what was measured."""
REASONS = {
    "installs, tests or trains for minutes; `.ci/run` and the tests of the suite do it": re.compile(r"make\b"),
    "a test of its own runs it": re.compile(
        r"python (-m pytest|examples/|tests/|\.ci/|-m marft_algos\.config|-m website)"
    ),
    "an example of a file, run, server or module of the reader's": re.compile(
        r"(?x).*(?:\b(?:NAME|RUN|DIR|FILE|FOLDER|MODEL|HOST|TOKEN|PORT|GRID|BEFORE|REPO|USER|N|ID|PAGE|MODULE)\b"
        r"|\b\w+\.(?:toml|jsonl?|py|gguf|tar\.xz)\b|\b\w+:\w+|https?://|…|\$|-before\b)"
    ),
    "needs a model of the hub, or a package beside MARFT's": re.compile(r".*(Qwen/|gpu-\d+gb|smollm2|python -m venv )"),
    "waits for a person, or serves until it is stopped": re.compile(r"marft (play|view|top)\b|.* serve\b|.*\.server\b"),
    "trains, plays or measures for minutes to hours": re.compile(
        r"marft audit( marft grpo --env .*)?$|"
        r"marft (train|sft|dpo|distill|versus|bench|eval|blame|export|plan|replay|show)\b|python -m (benchmarks|marft_)"
    ),
}
"""Why a command is not run here; the first that matches counts."""


def commands(page: Path) -> Iterator[str]:
    """Yields the commands of this project in a page's blocks of shell, without comments, as one line each."""
    for body in re.findall(r"^```(?:sh|bash)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        for line in body.replace("\\\n", " ").splitlines():
            for part in re.split(r"\s(?:&&|\|\|?)\s", re.sub(r"(^|\s)#.*", "", line)):
                words = part.strip()
                if words.split(" ")[0] in PROGRAMS:
                    yield " ".join(words.split())


def every() -> dict[str, str]:
    """Command -> the first page that has it."""
    found: dict[str, str] = {}
    for page in PAGES:
        for command in commands(page):
            found.setdefault(command, page.stem)
    return found


def reason(command: str, page: str) -> str:
    """Says why a command is not run here; "" of one that is."""
    if page in TUTORIALS:
        return "typed by the test of the tutorials"
    of_readers = ("an example of", "needs")
    if QUICK.fullmatch(command) and not any(p.match(command) for w, p in REASONS.items() if w.startswith(of_readers)):
        return ""
    return next((why for why, pattern in REASONS.items() if pattern.match(command)), "")


def run(command: str, folder: Path) -> dict[str, object]:
    """Runs a command in a folder where the examples and packed results are; says when, how it ended and how long."""
    program, *rest = shlex.split(command.partition(" > ")[0])
    start = [sys.executable, "-m", "marft_algos"] if program == "marft" else [sys.executable]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    done = subprocess.run(
        [*start, *rest], cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        print(f"{command}\n{done.stderr[-500:]}", file=sys.stderr)
    return {"ran": time.strftime("%Y-%m-%d"), "exit": done.returncode, "seconds": round(time.monotonic() - began, 1)}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what takes seconds and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RECORD, help="the record")
    args = parser.parse_args(argv)
    ran = {}
    with tempfile.TemporaryDirectory() as name:
        for part in ("examples", "benchmarks"):
            (Path(name) / part).symlink_to(ROOT / part)
        for folder in ("runs", "docs/images"):
            (Path(name) / folder).mkdir(parents=True)
        for packed in (ROOT / "benchmarks/results").glob("*.tar.xz"):
            with tarfile.open(packed) as archive:
                archive.extractall(Path(name) / "runs", filter="data")
        for command, page in every().items():
            if not reason(command, page):
                ran[command] = run(command, Path(name))
                print(f"{ran[command]['exit']}  {ran[command]['seconds']:>6} s  {command}", flush=True)
    args.out.write_text(json.dumps(ran, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
