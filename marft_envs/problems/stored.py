"""Keeps on disk which problems belong to a set that is made here: to find that out takes seconds, to make one none."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
CODE = Path(__file__).resolve().parent.parent
"""What decides: any file of this package may."""


def stored(name: str, find: Callable[[], T]) -> T:
    """Returns what ``find`` returned to the first process of this user that asked; it is plain JSON.

    It lies in ``$XDG_CACHE_HOME/marft/problems``, else ``~/.cache/marft/problems``. A file that is damaged or of other
    code is written anew; where none can be read or written, each process finds out by itself.
    """
    problems = (OSError, RuntimeError, ValueError)  # no home; text that is not UTF-8 or no JSON
    with contextlib.suppress(*problems):
        seal, _, text = _path(name).read_text(encoding="utf-8").partition("\n")
        if seal == _seal(name, text):
            return json.loads(text)
    found = find()
    with contextlib.suppress(*problems):
        path, text = _path(name), json.dumps(found, separators=(",", ":"))
        write_text(path, f"{_seal(name, text)}\n{text}")
    return found


def write_text(path: Path, text: str) -> None:
    """Writes a file that other processes may read or write at the same time: they see all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as aside:
        whole = Path(aside, path.name)
        whole.write_text(text, encoding="utf-8")
        whole.replace(path)


def _path(name: str) -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "marft", "problems", name).expanduser()


def _seal(name: str, text: str) -> str:
    return hashlib.sha256(f"{_code()}/{name}\n{text}".encode()).hexdigest()


@cache
def _code() -> str:
    """A hash of this package's code and tables."""
    digest = hashlib.sha256()
    for path in sorted(path for kind in ("*.py", "*.toml") for path in CODE.rglob(kind)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(CODE).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
