#!/usr/bin/env python3
"""Does what is shipped work where the repository is not? ``make test-wheel`` asks.

Builds sdist and wheel, compares the wheel with what git tracks, installs it into a fresh environment, and there, in an
empty folder and offline, lists environments, trains a team for an iteration, and reads the run. ``--packages FOLDER``
takes what it depends on from there instead of installing it: seconds instead of gigabytes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import urllib.request
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("marft_envs", "marft_algos")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PIP_NO_INDEX": "1"}
TRAIN = (
    "train", "--env", "relay-v0", "--preset", "toy", "--iterations", "1", "--episodes-per-iteration", "8",
    "--eval-episodes", "8", "--name", "first",
)  # fmt: skip


def fail(what: str) -> None:
    """Ends here."""
    sys.exit(f"error: the wheel does not work: {what}")


def run(*argv: object, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Runs a command and returns what it said; ends here if it fails."""
    print("$", shlex.join(map(str, argv)), flush=True)
    done = subprocess.run([*map(str, argv)], cwd=cwd, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        fail(f"`{shlex.join(map(str, argv))}` ended with {done.returncode}.\n{done.stdout}")
    return done.stdout


def built(folder: Path) -> Path:
    """Builds sdist and wheel, and compares the wheel's files with those that git tracks."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = {name for name in run("git", "ls-files", "-z", *PACKAGES, cwd=ROOT).split("\0") if name}
    if shipped != tracked:
        fail(f"it lacks {sorted(tracked - shipped)}, and holds what git does not track: {sorted(shipped - tracked)}")
    return wheel


def installed(wheel: Path, home: Path, packages: Path | None, extras: str, pip_args: list[str]) -> Path:
    """Installs the wheel into an environment of its own, and returns that one's ``bin``."""
    venv.create(home, with_pip=packages is None)
    python = home / "bin/python"
    if packages is None:
        wanted = (f"{wheel}[{extras}]",)
        run(python, "-m", "pip", "install", "--quiet", *pip_args, "-c", ROOT / "constraints.txt", *wanted, cwd=home)
        return python.parent
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, wheel, cwd=home)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip()
    # A line of a .pth file goes behind the environment's own packages, and the .pth files there are not read.
    (Path(site) / "packages.pth").write_text(f"{packages}\n", encoding="utf-8")
    return python.parent


def tried(bin_: Path, folder: Path) -> None:
    """Uses what is installed as somebody would who has nothing else."""
    kept = ("PATH", "LANG", "TMPDIR", "OMP_NUM_THREADS")
    env = {name: os.environ[name] for name in kept if name in os.environ} | OFFLINE | {"HOME": str(folder)}
    marft = bin_ / "marft"
    where = "import marft_envs, marft_algos; print(marft_envs.__version__, marft_envs.__file__, marft_algos.__file__)"
    version, *files = run(bin_ / "python", "-c", where, cwd=folder, env=env).split()
    if not all(Path(file).is_relative_to(bin_.parent) for file in files):
        fail(f"another one is imported: {', '.join(files)}")
    for words, said in {
        ("--version",): version,
        ("--help",): "marft COMMAND --help",
        ("envs",): "math-dual-v0",
    }.items():
        if said not in run(marft, *words, cwd=folder, env=env):
            fail(f"`marft {shlex.join(words)}` does not say: {said}")
    run(marft, *TRAIN, cwd=folder, env=env)
    if not (folder / "runs/first/report.html").is_file():
        fail("a training leaves no report.html.")
    if "iteration 1" not in run(marft, "show", "first", cwd=folder, env=env):
        fail("`marft show` does not show the iteration that was trained.")
    run(marft, "new", "env", "ticket-desk", cwd=folder, env=env)
    viewed(marft, folder, env)


def viewed(marft: Path, folder: Path, env: dict[str, str]) -> None:
    """Opens the page of ``marft view``, which is data of the package."""
    print(f"$ {marft} view runs/first", flush=True)
    server = subprocess.Popen([marft, "view", "runs/first"], cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next((line.split()[1] for line in server.stdout if line.startswith("open:")), "")
        if not address:
            fail("`marft view` says no address.")
        with urllib.request.urlopen(address, timeout=30) as page:
            if b"<html" not in page.read():
                fail("`marft view` has no page.")
    finally:
        server.terminate()
        server.wait(30)


def main() -> None:
    """Builds, installs, tries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, help="folder of packages that are installed already")
    parser.add_argument("--extras", default="train", help="extras to install (default: train)")
    parser.add_argument("--pip-args", type=shlex.split, default=[], help="passed to pip")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "empty").mkdir()
        wheel = built(folder / "dist")
        tried(installed(wheel, folder / "venv", given.packages, given.extras, given.pip_args), folder / "empty")
    print(f"{wheel.name} works on its own.")


if __name__ == "__main__":
    main()
