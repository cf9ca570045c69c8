"""Half as many ranks go on where all of them died too often, if that can help."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from marft_algos.cli import launch
from marft_algos.cli.nodes import Nodes


class Died(Exception):
    def get_first_failure(self) -> tuple[int, SimpleNamespace]:
        return 0, SimpleNamespace(message="Signal 9 (SIGKILL)")


def test_half_of_the_ranks_of_one_machine_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch._fewer(Nodes(8), Died()) == Nodes(4)
    said = capsys.readouterr().out
    assert "Ranks died 4 times" in said and "Signal 9 (SIGKILL)" in said and "Half as many go on: 4 of 8" in said


@pytest.mark.parametrize("nodes", [Nodes(1), Nodes(4, count=2, host="node1")])
def test_one_rank_has_no_half_and_machines_wait_for_each_other(nodes: Nodes) -> None:
    with pytest.raises(launch.RanksError, match=rf"died 4 times.*--resume RUN --nproc {nodes.nproc}"):
        launch._fewer(nodes, Died())
