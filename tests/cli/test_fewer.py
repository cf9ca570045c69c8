"""Half as many ranks go on where all of them died too often, if that can help."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from marft_algos.training import launch


class Died(Exception):
    def get_first_failure(self) -> tuple[int, SimpleNamespace]:
        return 0, SimpleNamespace(message="Signal 9 (SIGKILL)")


def test_half_of_the_ranks_of_one_machine_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch._fewer(8, Died()) == 4
    said = capsys.readouterr().out
    assert "Ranks died 4 times" in said and "Signal 9 (SIGKILL)" in said and "Half as many go on: 4 of 8" in said


def test_one_rank_has_no_half() -> None:
    with pytest.raises(launch.RanksError, match=r"died 4 times.*--resume RUN --nproc 1"):
        launch._fewer(1, Died())
