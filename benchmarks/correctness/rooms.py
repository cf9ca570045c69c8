"""The tables of ``docs/architecture.md``: rooms, floors and size. ``python -m benchmarks house --write`` writes them.

A room is what lies directly in a package, a module or a folder. What it does is the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/architecture.md"
MARK = "<!-- {}: python -m benchmarks house --write -->"

FLOORS = (
    ("lazy", "ranges", "seeds", "terminal", "jsonl"),
    ("types", "functional", "memory"),
    ("ranks",),
    ("models", "batching"),
    ("credit",),
    ("algorithms",),
    ("config", "learner"),
    ("engines", "runs"),
    ("rollout",),
    ("evaluation",),
    ("training",),
    ("extras",),
    ("cli",),
    ("__main__",),
)
"""The floors of ``marft_algos``: a room imports from rooms of lower floors only."""


def about(file: Path) -> str:
    """The first line of a module's docstring, as Markdown."""
    line = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n")[0].strip().rstrip(".")
    if not line:
        sys.exit(f"error: {file.relative_to(ROOT)} has no docstring, so the page on architecture cannot name it.")
    return re.sub(r":\w+:`~?\.?([\w.]+)`", r"`\1`", line.replace("``", "`"))


def rooms(package: str) -> list[Path]:
    """Files of a package's rooms: its modules, then the ``__init__.py`` of its folders."""
    folder = ROOT / package
    return [*sorted(folder.glob("[!_]*.py")), *sorted(folder.glob("[!_]*/__init__.py"))]


def table(package: str) -> str:
    """The table of a package's rooms."""
    named = [(f"{f.parent.name}/" if f.stem == "__init__" else f.name, about(f)) for f in rooms(package)]
    return "\n".join(["| room | what it does |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in named)])


def floors() -> str:
    """The table of floors, the highest first."""
    named = [(n, names) for n, names in enumerate(FLOORS) if names != ("__main__",)]
    rows = [f"| {n} | {', '.join(f'`{name}`' for name in names)} |" for n, names in reversed(named)]
    return "\n".join(["| floor | rooms |", "|---|---|", *rows])


def size(figures: Mapping[str, Any]) -> str:
    """The table of the stored figures."""
    rows = [f"| {figure} | {count:,} |" for figure, count in figures.items() if figure != "lines"]
    return "\n".join(["| | |", "|---|---|", *rows])


def page(figures: Mapping[str, Any]) -> str:
    """The page on architecture with today's tables, and with a table of these figures.

    Raises:
        SystemExit: It has no mark for one of them.
    """
    text = PAGE.read_text(encoding="utf-8")
    for name, made in {
        "rooms of marft_envs": table("marft_envs"),
        "rooms of marft_algos": table("marft_algos"),
        "floors of marft_algos": floors(),
        "size": size(figures),
    }.items():
        mark = MARK.format(name)
        if text.count(mark) != 1:
            sys.exit(f"error: docs/architecture.md has {text.count(mark)} lines {mark!r}; expected one.")
        before, after = text.split(mark)
        text = f"{before}{mark}\n{made}" + re.sub(r"\A(?:\n\|.*)*", "", after)
    return text
