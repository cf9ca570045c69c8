"""What the documentation shows works: its Python runs, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers import preloaded

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SKIP = "<!-- no-test -->"
"""Stands on the line before a block that needs a network or a GPU."""
LONG = ("benchmarking", "code-problems", "call-formats", "scale", "staleness", "training", "tutorial")
"""Pages whose blocks take seconds: they train, or start processes."""


def python_of(page: Path) -> str:
    """The page as a program: its Python blocks stay, every other line is blank, so line numbers agree."""
    kept, lines, inside = [], page.read_text().splitlines(), False
    for number, line in enumerate(lines):
        if line.startswith("```"):
            opens = line == "```python" and (number == 0 or lines[number - 1] != SKIP)
            inside = opens
            kept.append("")
        else:
            kept.append(line if inside else "")
    return "\n".join(kept) + "\n"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.ci] if page.stem in LONG else [], id=page.name) for page in PAGES],
)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run in their order, in one process of their own."""
    source = python_of(page)
    if not source.strip():
        assert "```python" not in page.read_text() or SKIP in page.read_text()
        return
    program = tmp_path / f"{page.stem.replace('-', '_')}.py"
    program.write_text(source)
    done = preloaded.run(tmp_path, program.name)
    assert done.returncode == 0, f"{page.name}:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"


def test_the_first_example_of_the_readme_is_an_aec_loop_over_math_dual() -> None:
    first = python_of(ROOT / "README.md")
    assert "math-dual-v0" in first and "agent_iter" in first
    assert sum(bool(python_of(page).strip()) for page in PAGES) >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing
