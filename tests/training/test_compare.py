"""Two runs compared agent by agent: an agent that got worse is found though the team's score hides it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.config import settings as config
from marft_algos.evaluation.changes import judged
from marft_algos.runs.folder import RunFolder
from marft_algos.training import compare as compared
from marft_algos.training.compare import compare
from marft_envs.errors import ConfigError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, RunFolder]:
    model = save_tiny(tmp_path_factory.mktemp("model"), hidden=16, layers=1)
    runs = tmp_path_factory.mktemp("runs")
    changes = {"iterations": 1, "eval_episodes": 24, "lora_r": 2}
    return tuple(train(settings(model, runs, seed=s, name=f"seed{s}", **changes))[1] for s in (0, 1))  # type: ignore[return-value]


def test_a_run_does_not_differ_from_itself(pair: tuple[RunFolder, RunFolder]) -> None:
    changes = compare(pair[0], pair[0])
    assert all(c.difference.mean == 0 and not c.verdict and not c.paired.differing for c in changes)
    names = {c.name for c in changes}
    assert {"score", "errors", "agent/planner_0/reward", "agent/solver_0/length"} <= names
    assert {"team A with B's planner_0", "team A with B's solver_0"} <= names


def test_the_command_prints_and_its_exit_code_says_whether_anything_is_worse(
    pair: tuple[RunFolder, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "frozen.json"
    words = ["eval", "--compare", str(pair[0].root), str(pair[0].root), "--scenarios", str(file)]
    assert main(words) == 0
    assert "gate:    none; one that asks" in capsys.readouterr().out
    assert main([*words, "--margin", "90"]) == 0
    assert "gate:    passed: score" in capsys.readouterr().out
    kept = json.loads(file.read_text())
    file.write_text(json.dumps(kept | {"seeds": kept["seeds"][:5], "options": kept["options"][:5]}))
    assert main(words) == 0
    assert "5 scenarios" in capsys.readouterr().out, "the file's scenarios are played, not the panel's"
    file.write_text(json.dumps(kept | {"env": "relay-v0"}))
    assert main(words) == 1
    assert "scenarios of relay-v0" in capsys.readouterr().err
    assert main(["eval", "--compare", str(pair[0].root), str(pair[0].root), "--sampled"]) == 1


def test_teams_that_cannot_exchange_agents_are_refused(pair: tuple[RunFolder, RunFolder], tmp_path: Path) -> None:
    text = pair[1].config_file.read_text()
    (tmp_path / "config.toml").write_text(text.replace("lora_r = 2", "lora_r = 4"))
    with pytest.raises(ConfigError, match="differ in 'lora_r'"):
        compare(pair[0], RunFolder.open(tmp_path))
    (tmp_path / "config.toml").write_text(text.replace('env = "test/letters-v0"', 'env = "relay-v0"'))
    with pytest.raises(ConfigError, match="differ in 'env'"):
        compare(pair[0], RunFolder.open(tmp_path))


def test_runs_on_other_problems_are_refused(
    pair: tuple[RunFolder, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(**kwargs: object) -> list[str]:
        return compared._problems(config.build({"env": "math-dual-v0", "env_kwargs": kwargs}))

    assert drawn() == drawn(levels=[0]) == drawn(rounds=2) != drawn(levels=[1])
    text = pair[1].config_file.read_text()
    (tmp_path / "config.toml").write_text(text.replace("[env_kwargs]", "[env_kwargs]\nhistory = 'own'"))
    other = RunFolder.open(tmp_path)
    monkeypatch.setattr(compared, "_problems", lambda config: [str(config.env_kwargs)])
    with pytest.raises(
        ConfigError, match=r"scored on test/letters-v0 and .* on test/letters-v0 history=own, which are different"
    ):
        compare(pair[0], other)


def test_an_agent_that_got_worse_is_found_behind_an_equal_score() -> None:
    same, ones, zeros = ([[x] for x in side] for side in ([1.0, 0.0] * 50, [1.0] * 100, [0.0] * 100))
    sides = {
        "score": (same, same),
        "agent/a_0/reward": (ones, zeros),
        "agent/a_0/truncated": (ones, zeros),
        "agent/a_0/length": ([[5.0]] * 100, [[9.0]] * 100),
    }
    found = {c.name: c.verdict for c in judged({("", name): both for name, both in sides.items()})}
    assert found == {"score": "", "agent/a_0/reward": "worse", "agent/a_0/truncated": "better", "agent/a_0/length": ""}
