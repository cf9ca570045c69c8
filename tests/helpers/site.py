"""The first page of the site and those that it leads a newcomer to, built as ``make docs`` builds them, and read as HTML."""

from __future__ import annotations

import functools
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).resolve().parents[2]
START = "index"
SAVED = re.compile(r"Save (?:it|this) as (\S+):$")


@dataclass
class Page(HTMLParser):
    """What a reader of a page finds: addresses of links, and blocks with what the sentence before says to save them as."""

    links: list[str] = field(default_factory=list)
    blocks: list[tuple[str, str, str]] = field(default_factory=list)
    """The file to save it as (or nothing), language and text."""

    def __post_init__(self) -> None:
        super().__init__()
        self._words, self._language, self._code = "", "", False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        elif tag == "p":
            self._words = ""
        elif language := re.match(r"language-(\w+) highlight", found.get("class") or ""):
            self._language = language[1]
        elif tag == "code" and self._language:
            named = SAVED.search(self._words.strip())
            self.blocks.append((named[1] if named else "", self._language, ""))
            self._code, self._words = True, ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "code" and self._code:
            self._code, self._language = False, ""

    def handle_data(self, data: str) -> None:
        if self._code:
            name, language, text = self.blocks[-1]
            self.blocks[-1] = (name, language, text + data)
        else:
            self._words += data


def read(file: Path) -> Page:
    """Reads the article of a page: neither menus nor the foot."""
    page = Page()
    page.feed(file.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0])
    return page


@functools.cache
def walked(*names: str) -> dict[str, Page]:
    """Builds the first page and these, without what is made (gallery, reference), and goes where its links lead.

    Returns:
        Name of a page -> the page, of those that are one click away from the first.
    """
    with tempfile.TemporaryDirectory() as folder:
        docs, site = Path(folder, "docs"), Path(folder, "site")
        docs.mkdir()
        for name in (START, *names):
            shutil.copy(ROOT / f"docs/{name}.md", docs)
        changes = {"plugins": [], "hooks": [], "nav": None, "strict": False, "use_directory_urls": False}
        build(load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(site), **changes))
        links = [link.removesuffix(".html") for link in read(site / f"{START}.html").links]
        return {name: read(site / f"{name}.html") for name in links if (site / f"{name}.html").is_file()}
