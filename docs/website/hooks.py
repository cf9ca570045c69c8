"""Hooks of MkDocs: adds the pages that are made, turns links between files into links between pages.

See https://www.mkdocs.org/user-guide/plugins/#events for when each is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel
from pymdownx import slugs

import marft_envs
from website import api, formulas, gallery, leaderboard, links, notebooks

MAKERS = {"reference": "api", "gallery": "gallery", "leaderboard": "leaderboard", "notebooks": "notebooks"}
"""Folder of the site whose pages are made -> by which module."""
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)
ROLE = re.compile(r":(?:class|meth|func|data|attr|mod|exc):<code>~?([^<]+)</code>")
APART = InclusionLevel.NOT_IN_NAV


def on_config(config: Any) -> Any:
    """Anchors as a forge makes them; the version at the foot of every page."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugs.slugify(case="lower")
    fence = {"name": "math", "class": "math", "format": formulas.fence}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    if config.repo_url and config.edit_uri in (None, "edit/master/docs/"):  # what MkDocs takes where nothing is said
        config.edit_uri = "edit/main/docs/"
    config.copyright = f"MARFT {marft_envs.__version__}, MIT licence"
    return config


def made(sections: dict[str, list[Any]]) -> Iterator[tuple[str, str]]:
    """Source address and content of everything that is made; its place in the navigation goes into ``sections``."""
    for source in (api, gallery, leaderboard, notebooks):
        for address, title, content in source.pages():
            if title:
                sections.setdefault(address.partition("/")[0] + "/", []).append({title: address})
            yield address, content
    for file, page in links.MOVED.items():
        yield page, (links.ROOT / file).read_text(encoding="utf-8")


def _filled(nav: Any, sections: dict[str, list[Any]]) -> Any:
    """The navigation with the pages of a folder where the folder's name stands: its overview first."""
    if isinstance(nav, list):
        return [_filled(entry, sections) for entry in nav]
    if isinstance(nav, dict):
        return {title: _filled(entry, sections) for title, entry in nav.items()}
    if nav in sections:
        pages = [(title, address) for entry in sections[nav] for title, address in entry.items()]
        first = [address for _, address in pages if address.endswith("/index.md")]
        return [*first, *({title: address} for title, address in pages if address not in first)]
    return nav


def on_files(files: Files, config: Any) -> Files:
    """Adds them, and a page for every file outside ``docs/`` that a page links to."""
    names = sorted(f.src_uri for f in files.documentation_pages() if f.src_uri.startswith("algorithms/"))
    sections: dict[str, list[Any]] = {"algorithms/": [{address.split("/")[1][:-3]: address} for address in names]}
    for address, content in made(sections):
        files.append(File.generated(config, address, content=content))
    config.nav = _filled(config.nav, sections)
    wanted, shown = set[str](), set[str]()
    for file in files.documentation_pages():
        links.relocate(file.content_string, links.origin(file.src_uri), file.src_uri, wanted.add)
    while wanted - shown:  # a file that is shown may link to another
        path = (wanted - shown).pop()
        shown.add(path)
        page = File.generated(config, links.home(path), content=links.listing(path), inclusion=APART)
        files.append(page)
        if path.endswith(".md"):
            links.relocate(page.content_string, path, page.src_uri, wanted.add)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as they are on the site."""
    return links.relocate(markdown, links.origin(page.file.src_uri), page.file.src_uri, lambda path: None)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Roles of docstrings (``:class:`X```) are the name alone; tables of numbers are not searched."""
    html = TABLE.sub(_searched, ROLE.sub(r"<code>\1</code>", html))
    return html + _source(page, config) if page is not None else html


def _source(page: Any, config: Any) -> str:
    """Says at the foot of a page which file to edit, and how; the file is a link where its repository is known."""
    address = page.file.src_uri
    maker = MAKERS.get(address.partition("/")[0], "")
    if address.startswith("files/"):
        return ""
    file = f"docs/website/{maker}.py" if maker else links.origin(address)
    if (notebook := notebooks.FOLDER / f"{Path(address).stem}.ipynb").is_file() and maker == "notebooks":
        maker, file = "", notebook.relative_to(links.ROOT).as_posix()
    if config.repo_url:
        where = f"{config.repo_url.rstrip('/')}/{config.edit_uri.removesuffix('docs/')}"
        file = f'<a href="{where}{file}">{file}</a>'
    made = ", which makes this page" if maker else ""
    there = "../" * address.count("/") + "contributing.html"
    return f'<p class="source" data-search-exclude>Edit: {file}{made} (<a href="{there}">how</a>)</p>'


def _searched(table: re.Match[str]) -> str:
    """A table, kept out of the search where a third of its cells begin with a number: a search is for words."""
    cells = [re.sub(r"<[^>]+>", "", cell).strip() for cell in CELL.findall(table[0])]
    numbers = sum(cell.lstrip("+−-–~.<>").strip()[:1].isdigit() for cell in cells)
    return table[0].replace("<table>", "<table data-search-exclude>", 1) if 3 * numbers > len(cells) else table[0]
