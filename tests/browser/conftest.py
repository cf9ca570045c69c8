"""Fixtures of the tests that drive a browser: ``make test-browser``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from browser import driver


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The machine's browser; it opens no file of the user's profile."""
    found = driver.program()
    if found is None:
        pytest.fail(driver.MISSING)
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install -c constraints.txt playwright")
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(params=driver.LOOKS)
def look(request: pytest.FixtureRequest) -> str:
    """Desktop, phone and dark, one after the other."""
    return request.param


@pytest.fixture
def visit(chromium: Any, look: str) -> Iterator[driver.Visit]:
    """A fresh page at each look; the test fails if anything went wrong on it."""
    context = chromium.new_context(**driver.LOOKS[look], reduced_motion="reduce")
    visit = driver.Visit(context.new_page(), look)
    yield visit
    context.close()
    assert not visit.faults, "\n".join(dict.fromkeys(visit.faults))
