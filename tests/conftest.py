"""Fixtures that more than one test file needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def states(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What runs of tests may do is not noted in the folder of the user who runs them."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("states"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--data", default=None, help="folder with real data sets (else $MARFT_TEST_DATA, else ../shared/data)")


@pytest.fixture(scope="session")
def shared_data(request: pytest.FixtureRequest) -> Path:
    """The folder of real data sets that stay outside the project; the one place that looks it up."""
    root = Path(__file__).resolve().parent.parent
    named = request.config.getoption("--data") or os.environ.get("MARFT_TEST_DATA")
    folder = Path(named) if named else root.parent / "shared" / "data"
    if not folder.is_dir():
        if named:
            raise pytest.UsageError(f"no data folder at {folder}; name an existing one with --data")
        pytest.skip(f"real data sets are not here ({folder.name}/ absent); name their folder with --data")
    return folder
