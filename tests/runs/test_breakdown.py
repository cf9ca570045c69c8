"""What a gain is made of, by kind of problem: sums by hand, on the terminal, and on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.runs import breakdown, report
from marft_algos.runs.folder import EvalRecord, RunFolder
from marft_envs.records import trajectory


def records(outcomes: dict[str, list[float]], lost: str = "") -> list[EvalRecord]:
    return [
        EvalRecord(f"{kind}/{i}", outcome, lost=f"{kind}/{i}" == lost)
        for kind, row in outcomes.items()
        for i, outcome in enumerate(row)
    ]


def test_the_kind_that_changed_most_comes_first_and_what_an_outage_took_does_not_count() -> None:
    before = records({"set/a/1": [1, 0, 0], "set/b/1": [1, 1], "set/c/1": [0, 0.5]}, lost="set/c/1/0")
    after = records({"set/a/1": [1, 1, 1], "set/b/1": [0, 1], "set/c/1": [1, 1]})
    found = breakdown.changes(before, after)
    assert found == [
        breakdown.KindScore("set/a/1", 3, 1, 3),
        breakdown.KindScore("set/b/1", 2, 2, 1),
        breakdown.KindScore("set/c/1", 1, 0.5, 1),
    ]
    assert [str(kind) for kind in found] == [
        "set/a/1 +2 (1 to 3 of 3)",
        "set/b/1 -1 (2 to 1 of 2)",
        "set/c/1 +0.5 (0.5 to 1 of 1)",
    ]


def test_kinds_that_did_not_change_are_not_named() -> None:
    changed = [
        breakdown.KindScore("a/1", 3, 1, 3),
        breakdown.KindScore("b/1", 2, 1, 1),
        breakdown.KindScore("c/1", 2, 0, 0),
    ]
    assert breakdown.most(changed) == "a/1 +2 (1 to 3 of 3)" and breakdown.most(changed[1:]) == breakdown.most([]) == ""


@pytest.mark.parametrize("names", [["set/1"] * 4, ["", "", "", ""], ["a", "b", "c", "d"]])
def test_one_kind_or_a_kind_for_every_problem_says_nothing(names: list[str]) -> None:
    before, after = ([EvalRecord(f"{name}/{i}", outcome) for i, name in enumerate(names)] for outcome in (0.0, 1.0))
    assert breakdown.changes(before, after) == []


def test_a_run_says_on_the_terminal_and_on_its_page_which_kinds_it_gained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run: RunFolder = train(settings(save_tiny(tmp_path / "model", hidden=16, layers=1), tmp_path))[1]
    first, *_, last = run.recorded("eval")
    for iteration in (first, last):
        episodes = run.episodes("eval", iteration)
        for i, episode in enumerate(episodes):
            kind = ("areas", "<b>sums</b>")[i % 2]
            episode.task_id, episode.success = f"{kind}/{i}", iteration == last and kind == "areas"
        run.write_episodes("eval", iteration, [trajectory.to_dict(e) for e in episodes])
    half = len(episodes) - len(episodes) // 2
    assert main(["show", str(run.root)]) == 0
    assert f"kinds:   areas +{half} (0 to {half} of {half})\n" in capsys.readouterr().out
    page = report.render(run)
    assert f"<tr><td>areas</td><td>{half}</td><td>0</td><td>{half}</td><td>+{half}</td></tr>" in page
    assert "&lt;b&gt;sums" in page and "<b>sums" not in page
    monkeypatch.setattr(
        breakdown, "changes", lambda before, after: [breakdown.KindScore("letters", len(before), 1, len(after))]
    )
    assert main(["eval", str(run.root)]) == 0
    assert f"kinds        letters +{half * 2 - 1}" in capsys.readouterr().out
