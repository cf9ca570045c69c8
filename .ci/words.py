#!/usr/bin/env python3
"""Refuses private words where the field has a term: ``.ci/words.py [FILE …]``; without names the files of ``checked``.

``.ci/words.toml`` has the words. Of Python files strings, docstrings, comments and the names of public things are read;
of all others every line. In Markdown, a sentence has at most ``LONGEST`` words outside of code, tables and quotations.
"""

from __future__ import annotations

import ast
import fnmatch
import io
import json
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
LONGEST = 30
READ = (".md", ".py", ".toml", ".txt", ".jinja", ".js", ".html", ".yml", ".template", ".ipynb", "")
"""Ends of names of files that a person reads."""
TEXTS = (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Numbers and texts of the lines that a person reads."""
    content = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        content = "".join("".join(cell["source"]) + "\n" for cell in json.loads(content)["cells"])
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


def sentences(file: Path) -> Iterator[tuple[int, str]]:
    """Numbers of the line where its paragraph begins, and texts, of the sentences of a Markdown file."""
    number, paragraph, code = 1, list[str](), False
    for at, line in enumerate([*file.read_text(encoding="utf-8").splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        if fence or code or not line.strip() or re.match(r"\s*(?:[-*] |\d+\. |[|>#!<])", line):
            for sentence in re.split(r"(?<=[.!?])[*_)\]\"”]*\s+(?=[^a-z])", " ".join(paragraph)):
                yield number, re.sub(r"\]\([^)]*\)|`[^`]*`", " x ", sentence)
            number, paragraph = at, []
        code = code != fence
        if not (fence or code or re.match(r"\s*[|>#!<]", line)) and line.strip():
            paragraph.append(re.sub(r"^\s*(?:[-*]|\d+\.) ", "", line).strip())


def faults(file: Path, name: str) -> Iterator[str]:
    """What is wrong with a file."""
    words = [
        (word, re.compile(word["pattern"], re.IGNORECASE), re.compile("|".join(word["except"]) or "$^"))
        for word in TABLE["word"]
        if any(fnmatch.fnmatch(name, glob) for glob in word.get("files", ["*"]))
        and not any(fnmatch.fnmatch(name, glob) for glob in word.get("not_in", []))
    ]
    if file.suffix == ".md":
        for number, sentence in sentences(file):
            if (count := len(re.findall(r"[^\W_][\w'’.,/-]*", sentence))) > LONGEST:
                yield f"{name}:{number}: a sentence of {count} words, at most {LONGEST}: {sentence[:60]}…"
    for number, line in texts(file):
        if name == TABLE["page"] and line.startswith("|"):
            continue  # the table of these words
        for word, pattern, exceptions in words:
            if (found := pattern.search(line)) and not exceptions.search(line):
                yield f"{name}:{number}: '{found[0]}' is no term of the field here; write: {word['use']}"


def main(names: list[str]) -> int:
    """Prints what is wrong; 1 if anything is."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    chosen = names or [name for name in tracked if any(fnmatch.fnmatch(name, glob) for glob in TABLE["checked"])]
    chosen = [name for name in chosen if Path(name).suffix in READ and not name.endswith("/words.toml")]
    found = [fault for name in chosen for fault in faults(ROOT / name, name)]
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
