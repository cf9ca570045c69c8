"""The site in a browser, as ``make docs`` built it: pages at each look, search, the menu, reading from the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import marft_envs
from browser import driver

BUILT = driver.ROOT / "site"
PAGES = {
    "home": "index.html",
    "tutorial": "tutorial.html",
    "dependency": "concepts/dependency.html",
    "successors": "concepts/successors.html",
    "staleness": "concepts/staleness.html",
    "gallery": "gallery/index.html",
    "environment": "gallery/math-octet-v0.html",
    "tools": "gallery/tools-router-v0.html",
    "algorithm": "algorithms/grpo.html",
    "results": "results.html",
    "core": "core.html",
    "leaderboard": "leaderboard/index.html",
    "reference": "reference/index.html",
    "flexenv": "reference/marft_envs-environment-and-task.html",
    "config": "reference/marft_algos-training.html",
    "pettingzoo": "from-pettingzoo.html",
    "notebook": "notebooks/first_team.html",
    "file": "files/examples/custom_task.py.html",
}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Address of this version's site."""
    if not (BUILT / "versions.json").is_file():
        pytest.fail("The site is not built. Type: make docs")
    with driver.served(BUILT) as url:
        yield f"{url}/{marft_envs.__version__}"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_window_and_asks_nobody_else(visit: driver.Visit, site: str, name: str) -> None:
    visit.open(f"{site}/{PAGES[name]}")
    assert visit.page.locator("article h1").first.is_visible()
    visit.shot(f"site-{name}")


def test_search_finds_a_name_and_leads_to_it(visit: driver.Visit, site: str) -> None:
    visit.open(f"{site}/index.html")
    if visit.look == "phone":
        visit.page.locator("label.md-header__button[for=__search]").click()
    visit.page.locator("input[name=query]").click()
    visit.page.keyboard.type("InvalidRouting", delay=5)
    visit.page.locator(".md-search-result__link").first.wait_for()
    visit.shot("site-search")
    visit.page.locator(".md-search-result__link").first.click()
    visit.page.wait_for_load_state("networkidle")
    assert "InvalidRouting" in visit.page.locator("article").inner_text()


def test_the_menu_leads_to_every_part_and_the_toggle_makes_it_dark(visit: driver.Visit, site: str) -> None:
    visit.open(f"{site}/index.html")
    if visit.look == "phone":
        visit.page.locator("label.md-header__button[for=__drawer]").click()
        visit.page.locator("label.md-nav__title[for=__nav_1]").click()  # from the part that one is in, up to all parts
        visit.page.locator(".md-nav--primary .md-nav__link", has_text="Gallery").first.click()
    else:
        visit.page.locator(".md-tabs__link", has_text="Gallery").click()
    visit.page.wait_for_load_state("networkidle")
    visit.shot("site-menu")
    scheme = visit.page.evaluate("document.body.dataset.mdColorScheme")
    assert scheme == ("slate" if visit.look == "dark" else "default")
    if visit.look == "desktop":
        assert "gallery/" in visit.page.url
        visit.page.locator("label[title=Dark]:visible").click()
        assert visit.page.evaluate("document.body.dataset.mdColorScheme") == "slate"
        for width in (1280, 900, 600, 390, 320):
            visit.page.set_viewport_size({"width": width, "height": 800})
            visit.shot(f"site-width-{width}")


def test_the_top_leads_to_the_newest_version(visit: driver.Visit, site: str) -> None:
    visit.open(site.rpartition("/")[0] + "/")
    visit.page.wait_for_url(f"{site}/index.html")
    assert visit.page.locator("text=MARFT").first.is_visible()


def test_it_can_be_read_and_searched_from_the_disk(chromium: object, look: str) -> None:
    page = chromium.new_page(viewport=driver.LOOKS[look]["viewport"])  # type: ignore[attr-defined]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    start: Path = BUILT / marft_envs.__version__ / "index.html"
    page.goto(start.as_uri(), wait_until="load")
    if look == "phone":
        page.locator("label.md-header__button[for=__search]").click()
    page.locator("input[name=query]").click()
    page.keyboard.type("relay-v0", delay=5)
    page.locator(".md-search-result__link").first.wait_for()
    page.close()
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
