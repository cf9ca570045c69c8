"""Planted faults (``examples/blame``): labels against agents that never err, the protocol, and the packed data set."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from marft_envs.records import trajectory

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "blame"
PLAN = {
    "message": {"turn": 6, "policy": 2, "cut": 5},
    "math": {"turn": 4},
    "search": {"turn": 7, "policy": 2, "cut": 6, "tool": 3},
    "documents": {"turn": 7, "cut": 3, "either": 11},
    "vote": {"both": 3},
}
"""As many as there are places."""


class Never:
    """Random numbers of an agent that does not err."""

    random = staticmethod(lambda: 1.0)
    choice = randrange = staticmethod(lambda *given: 0)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("faults")


@pytest.mark.ci
def test_labels_are_the_turns_that_an_unerring_agent_would_not_have_said(faults: Any, tmp_path: Path) -> None:
    """Every place has its fault, every episode replays as a failure, and the same seed makes the same bytes."""
    for folder in ("a", "b"):
        faults.make(tmp_path / folder, PLAN, played=200)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    labels = json.loads((tmp_path / "a" / "labels.json").read_text())
    for family, kinds in PLAN.items():
        assert 0.5 < labels["success"][family] < 0.9
        _, _, who = importlib.import_module("teams").FAMILIES[family]
        episodes = list(trajectory.read(tmp_path / "a" / f"{family}.jsonl"))
        env = trajectory.rebuild(episodes[0])
        for label, e in zip(labels[family], episodes, strict=True):
            assert e.success is False and all(turn.extras is None for turn in e.turns)
            wrong = []
            for turn, (messages, _) in zip(e.turns, trajectory.prompts(e, env), strict=True):
                read = "\n\n".join(m["content"] for m in messages if m["role"] == "user")
                wrong += [turn.index] if turn.text != who(turn.agent, read, Never) else []
            if label["kind"] == "policy":
                assert wrong[0] in label["turns"]
            elif family == "math":  # whose critic has repaired what others of them got wrong
                assert {*label["turns"]} <= {*wrong}
            else:  # whoever is not shown what it needs guesses later
                assert wrong[: len(label["turns"])] == label["turns"]
        for kind, n in kinds.items():
            assert len({tuple(label["turns"]) for label in labels[family] if label["kind"] == kind}) == n


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
    head, single, pair = faults.score(tmp_path, ["mine", "last", "blame"])
    assert head == ["family", "kind", "n", "all alike", "mine", "last", "blame"]
    assert single[:4] == ["message", "turn", "6", "0.167"] and pair[:4] == ["vote", "both", "3", "0.167"]
    assert [cell[:5] for cell in single[4:]] == ["1.000", "0.167", "1.000"]
    assert [cell[:5] for cell in pair[4:]] == ["1.000", "0.000", "1.000"]


def test_a_judge_that_names_no_turn_is_wrong(faults: Any, tmp_path: Path) -> None:
    faults.make(tmp_path, {"message": {"turn": 2}}, played=20)
    for said, answer in (("Turn 1 is wrong.", [1]), ("All is well.", []), ("77", [])):
        options = faults.argparse.Namespace(judged=2, engine=lambda messages, said=said: said)
        answers, cost = faults.by_judge("message", list(trajectory.read(tmp_path / "message.jsonl")), options)
        assert [given["turns"] for given in answers] == [answer, answer] and cost["episodes"] == 2
