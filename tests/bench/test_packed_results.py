"""Results that were packed with the project still count: a setting that came later changes no key at its default."""

import json
import tarfile
from pathlib import Path

import pytest

from marft_algos.config import settings as configs
from marft_algos.extras.bench import statistics
from marft_algos.extras.bench.grid_runs import GridRun
from website import leaderboard

RESULTS = sorted((Path(__file__).parents[2] / "benchmarks/results").glob("*.tar.xz"))


@pytest.mark.parametrize("archive", RESULTS, ids=lambda path: path.name)
def test_packed_runs_have_the_keys_that_they_would_have_now(archive):
    with tarfile.open(archive) as packed:
        jobs = [member for member in packed if "/jobs/" in member.name][:12]
        rows = [json.load(packed.extractfile(member)) for member in jobs]
    assert rows
    for row in rows:
        key = row.pop("key")
        assert GridRun(**row | {"config": configs.build(row["config"]).table()}).key == key, row


@pytest.fixture
def few_draws(monkeypatch):
    """How wide intervals are is not looked at."""
    statistics._draws.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(statistics, "RESAMPLES", 7)
        yield
    statistics._draws.cache_clear()


@pytest.mark.ci
def test_packed_results_can_all_be_read(few_draws):
    """With all draws, `make docs` reads them, too, and fails where it cannot."""
    for path in leaderboard.FILES:
        read = leaderboard.read(path)
        assert read.name == path.name and read.results and read.boards and all(board.rows for board in read.boards)
