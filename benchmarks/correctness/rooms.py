"""The tables of rooms in ``docs/architecture.md``, made from the docstrings of the modules.

    python -m benchmarks rooms            # prints them; exit status 1 where the page has others
    python -m benchmarks rooms --write    # puts them into the page

A room is what lies directly in a package, a module or a folder. What it does is the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/architecture.md"
MARK = "<!-- rooms of {}: python -m benchmarks rooms --write -->"


def about(file: Path) -> str:
    """The first line of a module's docstring, as Markdown."""
    line = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n")[0].strip().rstrip(".")
    if not line:
        sys.exit(f"error: {file.relative_to(ROOT)} has no docstring, so the page on architecture cannot name it.")
    return re.sub(r":\w+:`~?\.?([\w.]+)`", r"`\1`", line.replace("``", "`"))


def modules(folder: Path) -> list[str]:
    """What lies in a folder, its folders' own modules behind their names."""
    inside = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and not path.stem.startswith("_"):
            inside.append(f"`{path.stem}`")
        elif (path / "__init__.py").is_file():
            below = modules(path)
            inside.append(f"`{path.name}/`" + (f" ({', '.join(below)})" if below else ""))
    return inside


def table(package: str) -> str:
    """The table of a package's rooms."""
    folder = ROOT / package
    rows = [f"| `{f.name}` | {about(f)} | |" for f in sorted(folder.glob("[!_]*.py"))]
    for init in sorted(folder.glob("[!_]*/__init__.py")):
        rows.append(f"| `{init.parent.name}/` | {about(init)} | {', '.join(modules(init.parent))} |")
    return "\n".join([MARK.format(package), "| room | what it does | modules |", "|---|---|---|", *rows])


def page() -> str:
    """The page on architecture with today's tables.

    Raises:
        SystemExit: It has no mark for one of them.
    """
    text = PAGE.read_text(encoding="utf-8")
    for package in ("marft_envs", "marft_algos"):
        mark = MARK.format(package)
        if text.count(mark) != 1:
            sys.exit(f"error: docs/architecture.md has {text.count(mark)} lines {mark!r}; expected one.")
        before, after = text.split(mark)
        text = before + table(package) + re.sub(r"\A(?:\n\|.*)*", "", after)
    return text


def main() -> None:
    text = page()
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(text, encoding="utf-8")
        return
    print(table("marft_envs"), table("marft_algos"), sep="\n\n")
    if text != PAGE.read_text(encoding="utf-8"):
        sys.exit("error: docs/architecture.md has other tables. Type: python -m benchmarks rooms --write")


if __name__ == "__main__":
    main()
