#!/usr/bin/env python3
"""What every file must keep, whatever is in it: ``.ci/files.py [--fix] [FILE …]``; without names all that git tracks.

A text ends with one newline and has no blanks at the ends of its lines; nothing is over ``LARGEST``; there is no mark
of a merge conflict and no private key; YAML, TOML and JSON can be read. ``--fix`` corrects ends of lines and of files.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 2_000_000
"""Bytes; the largest of the embedded models has 1.5 million."""
KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY")
CONFLICT = re.compile(rb"^(?:<{7} |>{7} |={7}$)", re.MULTILINE)
READ = {suffix: yaml.safe_load for suffix in (".yml", ".yaml", ".cff")} | {".toml": tomllib.loads, ".json": json.loads}
MADE = "marft_algos/models/embedded"
"""What begins like this was saved by transformers, and stays as it was."""


def fixed(text: bytes) -> bytes:
    """The text without blanks at the ends of lines, and with one newline at its own."""
    body = re.sub(rb"[ \t]+(?=\n|$)", b"", text).rstrip(b"\n")
    return body + b"\n" if body else b""


def made(file: Path) -> bool:
    """Whether a program wrote this file, binary or not."""
    return file.absolute().as_posix().startswith((ROOT / MADE).as_posix())


def faults(file: Path, content: bytes) -> list[str]:
    """What is wrong with a file."""
    found = [f"has {len(content):,} bytes; at most {LARGEST:,}"] * (len(content) > LARGEST)
    found += ["holds a private key"] * bool(KEY.search(content))
    if b"\0" in content:
        return found
    if not made(file):
        found += ["has blanks at ends of lines, or not one newline at its own (--fix)"] * (fixed(content) != content)
    found += ["holds marks of a merge conflict"] * bool(CONFLICT.search(content))
    if file.suffix in READ:
        try:
            READ[file.suffix](content.decode())
        except (ValueError, yaml.YAMLError) as error:
            found.append(f"cannot be read: {error}")
    return found


def main(words: list[str]) -> int:
    """Prints what is wrong; 1 if anything is."""
    fix, names = "--fix" in words, [word for word in words if word != "--fix"]
    if not names:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
        if listed.returncode:
            sys.exit(f"error: git lists no files here ({listed.stderr.strip()}). Name some: .ci/files.py FILE …")
        names = [str(ROOT / name) for name in listed.stdout.split("\0") if name]
    bad = 0
    for file in filter(Path.is_file, map(Path, names)):
        content = file.read_bytes()
        if fix and b"\0" not in content and not made(file):
            content = fixed(content)
            file.write_bytes(content)
        for fault in faults(file, content):
            print(f"{file}: {fault}")
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
