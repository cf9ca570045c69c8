"""What the documentation shows works: its Python runs, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers import preloaded
from website import blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONG = ("benchmarking", "code-problems", "call-formats", "scale", "staleness", "training", "training-parts", "tutorial")
"""Pages whose blocks take seconds: they train, or start processes."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.ci] if page.stem in LONG else [], id=page.name) for page in PAGES]
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in their order, in one process of their own, and print what the page shows."""
    code = [block for block in blocks.blocks(page) if block.language == "python" and not block.skipped]
    if not code:
        return
    file = tmp_path / f"{page.stem.replace('-', '_')}.py"
    file.write_text(blocks.program(page))
    monkeypatch.setenv("COLUMNS", "80")
    done = preloaded.run(tmp_path, file.name)
    assert done.returncode == 0, f"{page.name}:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    came = blocks.printed(done.stdout)
    assert set(came) == {block.start for block in code}
    assert not blocks.disagreements(page, came), "type: PYTHONPATH=docs python -m website.blocks PAGE"


def test_commands_show_what_they_print() -> None:
    """A block of a shell has its output below it, or says why not (``<!-- no-output: REASON -->``)."""
    silent = [block for page in PAGES for block in blocks.silent(page)]
    assert not silent, "\n".join(silent)


def test_the_first_example_of_the_readme_is_an_aec_loop_over_math_dual() -> None:
    first = blocks.program(ROOT / "README.md")
    assert "math-dual-v0" in first and "agent_iter" in first


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing
