#!/usr/bin/env python3
"""Refuses private words where the field has a term: ``.ci/words.py [FILE …]``; without names the files of ``checked``.

``.ci/words.toml`` has the words. Of Python files strings, docstrings, comments and the names of public things are read;
of all others every line.
"""

from __future__ import annotations

import ast
import fnmatch
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE: dict[str, Any] = tomllib.loads((ROOT / ".ci" / "words.toml").read_text(encoding="utf-8"))
TEXTS = (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Numbers and texts of the lines that a person reads."""
    content = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        yield from enumerate(content.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type in TEXTS:
            yield from enumerate(token.string.splitlines(), token.start[0])
    for node in ast.walk(ast.parse(content)):
        name = getattr(node, "name", None) or getattr(node, "arg", None)
        if isinstance(name, str) and not name.startswith("_"):
            yield getattr(node, "lineno", 0), re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name)


def faults(file: Path, name: str) -> Iterator[str]:
    """What is wrong with a file."""
    words = [
        (word, re.compile(word["pattern"], re.IGNORECASE), re.compile("|".join(word["except"]) or "$^"))
        for word in TABLE["word"]
        if any(fnmatch.fnmatch(name, glob) for glob in word.get("files", ["*"]))
        and not any(fnmatch.fnmatch(name, glob) for glob in word.get("not_in", []))
    ]
    for number, line in texts(file):
        for word, pattern, exceptions in words:
            if (found := pattern.search(line)) and not exceptions.search(line):
                yield f"{name}:{number}: '{found[0]}' is no term of the field here; write: {word['use']}"


def main(names: list[str]) -> int:
    """Prints what is wrong; 1 if anything is."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    chosen = names or [name for name in tracked if any(fnmatch.fnmatch(name, glob) for glob in TABLE["checked"])]
    found = [fault for name in chosen for fault in faults(ROOT / name, name)]
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
