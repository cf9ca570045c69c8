"""The site in a browser, as ``make docs`` built it: pages at each look, search, the menu, reading from the disk."""

from __future__ import annotations

import re
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
    "config": "reference/marft_algos-settings.html",
    "pettingzoo": "from-pettingzoo.html",
    "notebook": "notebooks/first_team.html",
    "team": "notebooks/own_team.html",
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


def test_the_leaderboard_opens_sorts_filters_and_leads_to_a_command(visit: driver.Visit, site: str) -> None:
    page = visit.page
    visit.open(f"{site}/leaderboard/index.html")
    assert page.evaluate("document.documentElement.scrollHeight") < 3 * 900
    part = page.locator("details.board", has_text="math-dual-v0").first
    part.locator("summary").click()
    names = part.locator("tbody tr:visible td:first-child")
    best = names.first.inner_text()
    head = part.get_by_role("button", name="score").first
    head.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert part.locator("th[aria-sort=ascending]").count() == 1 and names.last.inner_text() == best
    page.locator("input[data-filter]").fill("math-dual mappo")
    assert names.count() and set(names.all_inner_texts()) == {"mappo"}
    assert page.locator("details.board[name]:visible").count() == 1
    part.locator("tbody tr:visible a").first.click()
    opened = page.locator("details.board[id][open]")
    opened.wait_for()
    assert "marft bench report" in opened.inner_text()
    visit.shot("site-board-open")


def test_what_is_said_wraps_and_formulas_are_set(visit: driver.Visit, site: str) -> None:
    page = visit.page
    visit.open(f"{site}/gallery/math-dual-v0.html")
    wider = "() => [...document.querySelectorAll('.language-text pre > code')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert page.evaluate(wider) == 0
    visit.open(f"{site}/algorithms/grpo.html")
    assert page.locator(".formula svg").count() >= 3 and "aligned" in (
        page.locator(".formula").get_attribute("aria-label") or ""
    )
    visit.shot("site-formula")


FAINT = r"""() => {
    const part = (c) => { c /= 255; return c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; };
    const light = ([r, g, b]) => .2126 * part(r) + .7152 * part(g) + .0722 * part(b);
    const rgba = (text) => { const n = text.match(/[\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
    const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
    const paper = (e) => { const all = []; for (; e; e = e.parentElement) all.push(rgba(getComputedStyle(e).backgroundColor));
        return all.reverse().reduce((below, top) => over(top, below), [255, 255, 255]); };
    return [...document.querySelectorAll("article p, article td, article li, article h2, article summary, article code")]
        .filter((e) => e.checkVisibility() && e.innerText.trim()).map((e) => {
            const below = paper(e), ink = over(rgba(getComputedStyle(e).color), below);
            const [a, b] = [light(ink), light(below)].sort((x, y) => y - x);
            return [(a + .05) / (b + .05), e.innerText.slice(0, 40)];
        }).filter(([ratio]) => ratio < 4.5).map(([ratio, text]) => `${ratio.toFixed(2)} ${text}`).slice(0, 5);
}"""
UNNAMED = """() => [
    ...[...document.querySelectorAll("article img:not([alt])")].map((e) => `picture without alt: ${e.src}`),
    ...[...document.querySelectorAll("article input, article select, article button, article a[href]")].filter((e) =>
        e.checkVisibility() && !(e.innerText || e.ariaLabel || e.title || e.labels?.length || e.querySelector("img[alt], svg")))
        .map((e) => `without a name: ${e.outerHTML.slice(0, 80)}`),
    ...[...document.querySelectorAll("article th")].filter((e) => e.tabIndex > 0).map(() => "a positive tabindex"),
    ...(document.documentElement.lang ? [] : ["no language"]),
    ...(document.querySelectorAll("h1").length === 1 ? [] : ["not one h1"]),
]"""


@pytest.mark.parametrize("name", ["home", "gallery", "environment", "algorithm", "leaderboard", "notebook"])
def test_a_page_can_be_read_by_all(visit: driver.Visit, site: str, name: str) -> None:
    visit.open(f"{site}/{PAGES[name]}")
    assert visit.page.evaluate(FAINT) == []
    assert visit.page.evaluate(UNNAMED) == []


FOCUS = """() => { const e = document.activeElement, style = getComputedStyle(e);
    return [e.innerText.trim(), !!e.closest("article"), style.outlineStyle !== "none" || style.boxShadow !== "none"]; }"""


def test_the_keyboard_skips_the_menus_and_shows_where_it_is(visit: driver.Visit, site: str) -> None:
    page = visit.page
    visit.open(f"{site}/index.html")
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUS)[0] == "Skip to content"
    page.keyboard.press("Enter")
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUS))
    assert all(inside and marked for _, inside, marked in seen), seen
    assert {"Should I train a team?", "A first team", "a task of your own"} <= {words for words, *_ in seen}


def test_what_a_page_shows_to_type_is_what_its_file_says(visit: driver.Visit, site: str) -> None:
    """The files are what CI types: tests/project/test_newcomer.py."""
    for name in ("tutorial", "first-task", "first-algorithm", "first-benchmark"):
        visit.open(f"{site}/{name}.html")
        written = re.findall(
            r"```sh\n(.*?)\n```", (driver.ROOT / f"docs/{name}.md").read_text(encoding="utf-8"), re.DOTALL
        )
        shown = visit.page.locator("article .language-sh pre > code").all_inner_texts()
        assert [text.strip() for text in shown] == written


def test_from_the_first_page_a_newcomer_reaches_what_there_is_to_do(visit: driver.Visit, site: str) -> None:
    for page in ("tutorial", "first-task", "first-algorithm", "first-benchmark"):
        visit.open(f"{site}/index.html")
        visit.page.locator(f"article .cards a[href='{page}.html']").click()
        visit.page.wait_for_load_state("networkidle")
        assert visit.page.locator("article .language-sh").count(), f"{page} says what to type"


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
