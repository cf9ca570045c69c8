#!/usr/bin/env python3
"""Is this ready to be released? ``make release`` asks, and builds it; ``make release ARGS=--tag`` tags it, too.

In this order, and nothing after the first refusal: nothing uncommitted, the citation's version, a dated section in
CHANGELOG.md, no such tag yet, ``.ci/run``, sdist and wheel in dist/, the wheel in a fresh environment where ``marft
envs`` runs, the tag. Nothing is pushed or uploaded.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "marft_envs/__init__.py"
"""The one place of the version; pyproject.toml and marft_algos take it from there."""


def refuse(what: str) -> None:
    """Ends here."""
    sys.exit(f"error: not ready to be released: {what}")


def run(*argv: object) -> str:
    """Runs a command in the checkout; refuses if it fails."""
    print("$", shlex.join(map(str, argv)), flush=True)
    done = subprocess.run([*map(str, argv)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        refuse(f"`{shlex.join(map(str, argv))}` ended with {done.returncode}.\n{done.stdout}")
    return done.stdout.strip()


def the_version() -> str:
    """Reads the version from its one place."""
    found: list[str] = re.findall(r'^__version__ = "(.+)"$', (ROOT / SOURCE).read_text(encoding="utf-8"), re.MULTILINE)
    if len(found) != 1:
        refuse(f'{SOURCE} has {len(found)} lines like: __version__ = "1.2.0". Expected one.')
    return found[0]


def checked() -> str:
    """Returns the version, after all that costs nothing to look at."""
    if changed := run("git", "status", "--porcelain"):
        refuse(f"there are changes that are not committed. Commit them, or take them back:\n{changed}")
    version = the_version()
    cited = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    if cited != [version]:
        refuse(f"{SOURCE} says version {version}, and CITATION.cff {', '.join(cited) or 'none'}. Write one.")
    section = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if not re.search(section, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE):
        refuse(f"CHANGELOG.md has no dated section of it. Expected a line like: ## [{version}] - 2030-01-31")
    if run("git", "tag", "--list", f"v{version}"):
        refuse(f"there is a tag v{version} already. Raise the version.")
    if importlib.util.find_spec("hatchling") is None:
        refuse("hatchling, which builds it, is not installed here. Type: make release")
    return version


def tried(wheel: Path, pip_args: list[str]) -> None:
    """Installs the wheel alone into a fresh environment, and lists the environments there."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", folder)
        pip = (f"{folder}/bin/python", "-m", "pip", "install", "--quiet", *pip_args)
        run(*pip, "-c", "constraints.txt", wheel)
        if not run(f"{folder}/bin/marft", "envs"):
            refuse("`marft envs` of the installed wheel says nothing.")


def main() -> None:
    """Checks, builds, tries, tags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", action="store_true", help="tag this commit at the end")
    parser.add_argument("--pip-args", type=shlex.split, default=[], help="passed to pip")
    given = parser.parse_args()
    version, commit = checked(), run("git", "rev-parse", "HEAD")
    run(".ci/run")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)  # a file of an earlier version is not uploaded by mistake
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel")
    (wheel,) = (ROOT / "dist").glob("*.whl")
    tried(wheel, given.pip_args)
    if given.tag:
        run("git", "tag", "--annotate", f"v{version}", commit, "--message", f"Version {version}")
    print(f"marft {version} is in dist/.", "Tagged." if given.tag else "To tag it: make release ARGS=--tag")


if __name__ == "__main__":
    main()
