"""Makes links between files of the repository into links between pages of the site.

The pages stay what a forge shows: a link in ``docs/training.md`` to ``../examples/custom_task.py`` is right there. Here
a file outside ``docs/`` gets a page of its own, which shows it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOVED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that stand outside of ``docs/`` -> where they are on the site."""
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".sh": "sh", ".cff": "yaml", ".json": "json"}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|<)([^)\s#]+)(#[^)\s]*)?(?=\))")


def home(path: str) -> str:
    """Where a file of the repository is on the site: ``docs/a.md`` is ``a.md``, ``examples/a.py`` has a page."""
    if path in MOVED:
        return MOVED[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"files/{path}.md"


def origin(page: str) -> str:
    """The file of the repository in which the links of a page are right."""
    outside = {page: file for file, page in MOVED.items()}
    if page.startswith("files/"):
        return page.removeprefix("files/").removesuffix(".md")
    return outside.get(page, f"docs/{page}")


def relocate(markdown: str, file: str, page: str, shown: Callable[[str], None]) -> str:
    """The text of a file of the repository with its links as they are from a page of the site.

    Args:
        markdown: The text.
        file: Its path in the repository.
        page: The source address of the page that has it.
        shown: Is called with the path of every file outside ``docs/`` that is linked to: it needs a page.
    """

    def replace(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), found[1]))
        if not (ROOT / target).is_file():
            return found[0]  # a folder, or nothing at all: the build says so
        if home(target).startswith("files/"):
            shown(target)
        return posixpath.relpath(home(target), posixpath.dirname(page) or ".") + (found[2] or "")

    return LINK.sub(replace, markdown)


def listing(path: str) -> str:
    """The page of a file: Markdown as it reads, anything else as it stands."""
    if path.endswith(".md"):
        return (ROOT / path).read_text(encoding="utf-8")
    fence = "`" * 4
    text = (ROOT / path).read_text(encoding="utf-8").rstrip()
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch: {{exclude: true}}\n---\n# `{path}`\n\n{fence}{language}\n{text}\n{fence}\n"
