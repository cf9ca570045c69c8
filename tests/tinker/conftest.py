"""A random model of a few thousand parameters, and a server that has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.tinker_server import TinkerServer, serving
from helpers.tiny import save_tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny", "llama", hidden=16, layers=1)


@pytest.fixture
def server(model: Path) -> Iterator[TinkerServer]:
    with serving(str(model)) as made:
        yield made
