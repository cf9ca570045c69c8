"""Planted faults (``examples/blame``): labels against agents that never err, the protocol, and the packed data set."""

from __future__ import annotations

import importlib
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marft_envs.records import trajectory

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "blame"
PLAN = {  # as many as there are places
    "message": {"turn": 6, "policy": 2, "cut": 5},
    "math": {"turn": 4},
    "search": {"turn": 7, "policy": 2, "cut": 6, "tool": 3},
    "documents": {"turn": 7, "cut": 3, "either": 11},
    "vote": {"both": 3},
}
NEVER = SimpleNamespace(random=lambda: 1.0, choice=lambda given: 0, randrange=lambda *given: 0)
"""Random numbers of an agent that does not err."""


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("faults")


def unlike(who: Any, e: Any, env: Any) -> list[int]:
    """The turns that an unerring agent would not have said."""
    read = ["\n\n".join(m["content"] for m in shown if m["role"] == "user") for shown, _ in trajectory.prompts(e, env)]
    return [turn.index for turn in e.turns if turn.text != who(turn.agent, read[turn.index], NEVER)]


@pytest.mark.ci
def test_labels_are_the_turns_that_an_unerring_agent_would_not_have_said(faults: Any, tmp_path: Path) -> None:
    """Every place has its fault, every episode replays as a failure, and the same seed makes the same bytes."""
    for folder in ("a", "b"):
        faults.make(tmp_path / folder, PLAN, played=200)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    labels = json.loads((tmp_path / "a" / "labels.json").read_text())
    for family, kinds in PLAN.items():
        _, _, who = importlib.import_module("teams").FAMILIES[family]
        episodes, env = list(trajectory.read(tmp_path / "a" / f"{family}.jsonl")), None
        for label, e in zip(labels[family], episodes, strict=True):
            assert e.success is False and all(turn.extras is None for turn in e.turns)
            wrong, turns = unlike(who, e, env := env or trajectory.rebuild(e)), label["turns"]
            if family == "math":  # whose critic has repaired what others of them got wrong
                assert {*turns} <= {*wrong}
            else:  # whoever is not shown what it needs guesses later
                assert wrong[0] in turns if label["kind"] == "policy" else wrong[: len(turns)] == turns
        assert all(len({str(x["turns"]) for x in labels[family] if x["kind"] == kind}) == kinds[kind] for kind in kinds)
        assert 0.5 < labels["success"][family] < 0.9


@pytest.mark.ci
def test_methods_are_measured_on_the_same_episodes(faults: Any, tmp_path: Path) -> None:
    plan = {"message": {"turn": 6}, "vote": {"both": 3}}
    faults.make(tmp_path, plan, played=60)
    labels = json.loads((tmp_path / "labels.json").read_text())
    (tmp_path / "mine").mkdir()
    for family in plan:
        mine = [{"turns": label["turns"], "pair": label["turns"]} for label in labels[family]]
        (tmp_path / "mine" / f"{family}.json").write_text(json.dumps({"answers": mine}))
        faults.main(["answer", str(tmp_path), "blame", "last", "--family", family])
    _, *lines = faults.score(tmp_path, ["mine", "last", "blame"])
    assert [[cell[:7] for cell in line] for line in lines] == [
        ["message", "turn", "6", "0.167", "1.000 [", "0.167 [", "1.000 ["],
        ["vote", "both", "3", "0.167", "1.000 [", "0.000 [", "1.000 ["],
    ]
    for said, answer in (("Turn 1 is wrong.", [1]), ("All is well.", []), ("77", [])):  # a judge may name no turn
        options = SimpleNamespace(judged=2, engine=lambda messages, said=said: said)
        answers, _ = faults.by_judge("message", list(trajectory.read(tmp_path / "message.jsonl")), options)
        assert [given["turns"] for given in answers if given] == [answer, answer]


@pytest.mark.ci
@pytest.mark.usefixtures("faults", "here")
def test_demonstrations_are_drawn_where_blame_points() -> None:
    module, blamed = importlib.import_module("demonstrations"), {"shipping_0 1 Ship": 3.0, "router_0 2 Move": 1.0}
    Path("blame.json").write_text(json.dumps({**blamed, "orders_0 1 Move": 0.0}))
    module.main([".", "--rows", "12", "--seeds", "1", "--epochs", "1", "--problems", "4"])
    files = [Path(f"{name}-0.jsonl").read_text().splitlines() for name in ("blame", "random")]
    drawn, control = (list(map(json.loads, lines)) for lines in files)
    kinds = [[module.kind(row["agent"], row["messages"]) for row in rows] for rows in (drawn, control)]
    assert {*kinds[0]} == {*blamed} and len({*kinds[1]}) > 5
    assert 0 <= sum(map(module.size, control)) - sum(map(module.size, drawn)) < max(map(module.size, control))


def test_the_page_has_the_figures_of_the_packed_data_set(faults: Any, tmp_path: Path) -> None:
    with tarfile.open(EXAMPLES / "faults.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    page = (ROOT / "docs" / "why-did-my-team-fail.md").read_text(encoding="utf-8")
    lines = [" | ".join(line) for line in faults.score(tmp_path / "faults", ["first", "last", "judge", "blame"])]
    assert len(lines) == 14 and all(f"| {line} |" in page for line in lines)
