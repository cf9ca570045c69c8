"""CONTRIBUTING.md is enough: its commands work, what it shows of the examples stands in them, its targets exist."""

from __future__ import annotations

import pkgutil
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from helpers import preloaded
from helpers.marks import rest_in_ci

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
SHELL = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
EXAMPLES = [line for line in SHELL if "contributing" in line]
SAYS = {
    "marft check examples.contributing.environment:sum-v0": "sum-v0: 16 checks passed",
    "marft train --preset toy --env examples.contributing.environment:sum-v0": "report:",
    "marft train examples.contributing.algorithm:Ranks": "report:",
    "python examples/contributing/engine.py": "PlainEngine: 11 checks passed",
}
"""How each of the page's commands begins, and what it prints when the example is right."""


def test_the_page_has_a_command_for_every_example_and_no_other() -> None:
    assert len(EXAMPLES) == len(SAYS)
    assert all(any(line.startswith(start) for start in SAYS) for line in EXAMPLES)
    named = set(re.findall(r"examples[./]contributing[./](\w+)", " ".join(EXAMPLES)))
    assert named == {file.stem for file in (ROOT / "examples/contributing").glob("*.py")}


@pytest.mark.parametrize("line", rest_in_ci(EXAMPLES), ids=lambda line: re.sub(r"\W+", "-", line)[:60])
def test_an_example_runs_by_the_command_that_the_page_prints(line: str, tmp_path: Path) -> None:
    """In a folder that has nothing but the examples, which is where the runs go."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    program, *rest = shlex.split(line)
    start = {"marft": ["-m", "marft_algos"], "python": []}[program]
    done = preloaded.run(tmp_path, *start, *rest)
    assert done.returncode == 0, done.stderr
    (wanted,) = [said for begins, said in SAYS.items() if line.startswith(begins)]
    assert wanted in done.stdout
    if " train " in line:
        (run,) = (tmp_path / "runs").iterdir()
        assert len((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 3


def test_what_the_page_shows_of_an_example_stands_in_it_in_this_order() -> None:
    shown = re.findall(r"<!-- (examples/\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == PAGE.count("```python") == 3
    for name, block in shown:
        rest = iter((ROOT / name).read_text(encoding="utf-8").splitlines())
        for line in filter(str.strip, block.splitlines()):
            assert line in rest, f"{name} has no line {line!r} after those before it"


def test_what_the_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {line.split()[1] for line in SHELL if line.startswith("make ")} | {"release"} <= targets
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]+)(?:#([^)]+))?\)", PAGE):
        assert (ROOT / target).exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (ROOT / target).read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_table_of_what_is_added_where_names_what_exists() -> None:
    """In ``docs/architecture.md``: each row has a file to copy, a name to register with, and where it goes."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = page.split("## Where to add what")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| a")]
    assert [row[0] for row in rows] == ["an environment", "an algorithm", "an engine", "a credit rule"]
    for _, example, register, shipped in rows:
        for path in re.findall(r"`([a-z_]+/[\w/.]+)`", f"{example} {shipped}"):
            assert (ROOT / path).exists(), path
        (name,) = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)", register)
        assert callable(pkgutil.resolve_name(name))
    families = re.search(r"`(\w+\.toml)`, `(\w+\.toml)` and others in\s+`([\w/]+)`", table)
    assert families and all(list((ROOT / families[3]).glob(f"*/{name}")) for name in families.groups()[:2])


def test_the_table_of_words_is_the_one_that_is_checked() -> None:
    """In ``docs/style.md``: each word of ``.ci/words.toml`` with the field's term, in the same order."""
    table = tomllib.loads((ROOT / ".ci/words.toml").read_text(encoding="utf-8"))
    page = (ROOT / table["page"]).read_text(encoding="utf-8").split("\n## Words\n")[1].split("\n\n* ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    assert rows[1:] == [[word["house"], word["use"]] for word in table["word"]]
