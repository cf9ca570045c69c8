"""Bad input: a folder of broken files, in which commands are typed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from helpers import bad_input


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bad_input.write(tmp_path_factory.mktemp("bad"))


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def refused(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> bad_input.Refused:
    """Types a command in the folder, which must be refused with all parts of an error."""
    return partial(bad_input.refused, capsys=capsys, monkeypatch=monkeypatch)
