"""The tables of ``docs/architecture.md``, which ``python -m benchmarks house --write`` writes.

A room is what lies directly in a package, a module or a folder. What it does is the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/architecture.md"
CAPS = ROOT / "tests/project/caps.toml"
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

EXTRAS: dict[str, dict[str, list[str]]] = tomllib.loads(
    Path(__file__).with_name("extras.toml").read_text(encoding="utf-8")
)
"""The second tier: what it is -> place -> modules and folders there."""
EXTRA_NAMES = tuple(f"{place}.{name}" for each in EXTRAS.values() for place, names in each.items() for name in names)
PROMISE = "the Flex-POMDP API, mathematics, code with its sandbox, tools with the depot, toys, the loop, evaluation"


def is_extra(module: str) -> bool:
    """Whether a module is of the second tier."""
    return any(f"{module}.".startswith(f"{name}.") for name in EXTRA_NAMES)


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


def tiers() -> str:
    """The table of the two tiers."""
    where = {
        what: "; ".join(f"`{place}`: {', '.join(names)}" for place, names in EXTRAS[what].items()) for what in EXTRAS
    }
    rows = [f"| extras | {what} | {places} |" for what, places in where.items()]
    return "\n".join(["| tier | what | where |", "|---|---|---|", f"| the promise | {PROMISE} | all else |", *rows])


def size(figures: Mapping[str, int], caps: Mapping[str, int]) -> str:
    """The table of figures and their caps."""
    rows = [f"| {figure} | {count:,} | {caps.get(figure, 0):,} |" for figure, count in figures.items()]
    return "\n".join(["| | measured | cap |", "|---|---|---|", *rows])


def read_caps(text: str | None = None) -> dict[str, int]:
    """The caps, from their file or a text of it."""
    return tomllib.loads(CAPS.read_text(encoding="utf-8") if text is None else text)


def measured() -> dict[str, int]:
    """The figures that the page has."""
    _, _, after = PAGE.read_text(encoding="utf-8").partition(MARK.format("size"))
    return {name: int(n.replace(",", "")) for name, n in re.findall(r"^\| (.+?) \| ([\d,]+) \|", after, re.MULTILINE)}


def page(figures: Mapping[str, int], caps: Mapping[str, int]) -> str:
    """The page on architecture with today's tables, and with a table of these figures.

    Raises:
        SystemExit: It has no mark for one of them.
    """
    text = PAGE.read_text(encoding="utf-8")
    for name, made in {
        "rooms of marft_envs": table("marft_envs"),
        "rooms of marft_algos": table("marft_algos"),
        "floors of marft_algos": floors(),
        "tiers": tiers(),
        "size": size(figures, caps),
    }.items():
        mark = MARK.format(name)
        if text.count(mark) != 1:
            sys.exit(f"error: docs/architecture.md has {text.count(mark)} lines {mark!r}; expected one.")
        before, after = text.split(mark)
        text = f"{before}{mark}\n{made}" + re.sub(r"\A(?:\n\|.*)*", "", after)
    return text
