"""``make docs`` (``PYTHONPATH=docs python -m website [--out DIR]``): builds the site, strictly, into ``site/VERSION``.

The layout is mike's, which Material's menu of versions reads: a folder a version, ``versions.json`` beside them, and
a page at the top that leads to the newest. To keep the versions that were built before, keep the folder. Pages can be
read from the disk: ``site/VERSION/index.html``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import marft_envs
from website import api
from website.links import ROOT

FETCHED = {
    ".html": re.compile(
        r"""<(?:script|img|iframe|source|video|link(?=[^>]*rel=["']?(?:stylesheet|preload|preconnect|icon)))\b[^>]*?"""
        r"""\b(?:src|href)=["']?((?:https?:)?//[^"'>\s]+)"""
    ),
    ".css": re.compile(r"""(?:url\(|@import\s+)["']?((?:https?:)?//[^"')\s]+)"""),
}
MOST_MB, MOST_S = 40, 240
"""What the site may take: megabytes, and seconds of a processor to build it."""
TOP = """<!doctype html>
<meta charset="utf-8"><title>MARFT</title><meta http-equiv="refresh" content="0; url={0}/index.html">
<a href="{0}/index.html">MARFT {0}</a>
"""
"""The page at the top, which leads to a version."""


def order(version: str) -> tuple[int, ...]:
    """A key that sorts versions."""
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split("."))


def publish(out: Path, version: str) -> None:
    """Writes the list of versions, newest first, and the page at the top."""
    file = out / "versions.json"
    known = {entry["version"] for entry in json.loads(file.read_text())} if file.is_file() else set()
    versions = sorted({v for v in known if (out / v).is_dir()} | {version}, key=order, reverse=True)
    entries = [{"version": v, "title": v, "aliases": ["latest"] if v == versions[0] else []} for v in versions]
    file.write_text(json.dumps(entries, indent=1) + "\n")
    (out / "index.html").write_text(TOP.format(versions[0]))


def foreign(folder: Path) -> list[str]:
    """What pages and styles would load from another host: scripts, styles, pictures, fonts. Links to read are none."""
    found = []
    for file in sorted(folder.rglob("*")):
        pattern = FETCHED.get(file.suffix)
        for address in pattern.findall(file.read_text(encoding="utf-8")) if pattern else ():
            found.append(f"{file.relative_to(folder)} loads {address}")
    return found


def unnamed(folder: Path) -> list[str]:
    """Public names that have no anchor in the reference."""
    text = "".join(file.read_text(encoding="utf-8") for file in (folder / "reference").glob("*.html"))
    names = [f"{package}.{name}" for package in api.PACKAGES for name in sorted(api.exported(package))]
    return [f"{name} is not in the reference" for name in names if f'id="{name}"' not in text]


def megabytes(folder: Path) -> float:
    """Returns what the files of a folder take, in MB."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def main() -> int:
    """Builds; returns the exit code of MkDocs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="folder of all versions")
    out = parser.parse_args().out
    version = marft_envs.__version__
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str((out / version).absolute())]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "docs")}
    status = subprocess.run(argv, cwd=ROOT, env=env, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, size = used.ru_utime + used.ru_stime, megabytes(out / version)
    took = f"{size:.0f} MB, {seconds:.0f} s of a processor"
    large = [f"the site took {took}; expected {MOST_MB} MB and {MOST_S} s at most"]
    large *= size > MOST_MB or seconds > MOST_S
    for fault in [] if status else foreign(out / version) + unnamed(out / version) + large:
        print(f"error: {fault}", file=sys.stderr)
        status = 1
    if status == 0:
        publish(out, version)
        print(f"the site: {out / version / 'index.html'} ({took})")
    return status


if __name__ == "__main__":
    sys.exit(main())
