"""The report of a run in a browser: it fits a phone, its charts can be read there, and it is dark where people want that."""

from __future__ import annotations

import pytest

from browser import driver
from helpers.viewed import write_run
from marft_algos.runs import report
from marft_algos.runs.folder import RunFolder

SMALLEST = """() => Math.min(...[...document.querySelectorAll(".figures svg text")].map(t => t.getBoundingClientRect().height))"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = RunFolder(write_run(tmp_path_factory.mktemp("runs") / "one"))
    report.write(run)
    return run.report_file.as_uri()


def test_the_report_fits_and_can_be_read(visit: driver.Visit, page: str) -> None:
    visit.open(page)
    visit.shot("report", whole=True)
    assert visit.page.evaluate(SMALLEST) >= 8, "pixels: what is wider scrolls in its box instead of shrinking"
    paper = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(20, 23, 29)") == (visit.look == "dark")
    assert visit.page.locator("svg.D").count() == 2, "two rounds, and training did not change who hears whom"
    visit.page.locator("summary", has_text="profiles").click()
    assert visit.page.get_by_text("You are b.").is_visible()
    assert visit.page.locator("article").first.is_visible()
