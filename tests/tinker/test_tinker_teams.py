"""Teams of which a Tinker server has a part, and what becomes of them afterwards: served, evaluated, handed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers import preloaded
from helpers.fake_servers import chat, serving
from helpers.runs import settings, train
from helpers.tinker_server import TinkerServer
from marft_algos.cli import main
from marft_algos.extras.serve import ServedTeam
from marft_algos.training.team import load_team
from marft_envs.records.trajectory import read

QUICK = ["--iterations", "1", "--episodes-per-iteration", "4", "--eval-episodes", "1", "--max-new-tokens", "48"]


@pytest.mark.ci
def test_a_hosted_partner_plays_with_a_policy_on_the_server(
    server: TinkerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    server.key, asked = "tml-mine", []
    monkeypatch.setenv("TINKER_API_KEY", "tml-mine")

    def answer(path: str, body: dict[str, Any]) -> Any:
        asked.append(body)
        return 200, chat("Say small letters.")

    with serving(answer) as fake:
        config = settings(
            Path(server.base), tmp_path, algo="grpo", iterations=2, algorithm={"group_size": 4, "lr": 1e-2},
            tinker={"url": server.url, "key_env": "TINKER_API_KEY"},
            engines={"planner_0": {"kind": "openai", "model": "m", "url": fake.url, "key_env": "SOME_KEY"}},
        )  # fmt: skip
        trainer, run = train(config)
    assert trainer.learner.trainable == ["solver_0"] and len(asked) == 2 * 12 + 2 * 10
    assert [folder.name for folder in (run.checkpoints / "step_000002/policies").iterdir()] == ["solver_0"]
    line = run.metrics()[-1]
    assert line["policy/solver_0/steps"] and line["infrastructure_errors"] == 0


@pytest.mark.ci
def test_what_is_served_is_what_was_evaluated(server: TinkerServer, here: Path) -> None:
    """By the server's samplers; and, once it is exported, by the adapters that it has given, without it."""
    words = [*QUICK, "--env", "math-dual-v0", "--env-kwargs", "levels=[0]", "--device", "cpu", "--lr", "1e-1"]
    words += ["--models", server.base, "--tinker", server.url, "--lora-r", "2", "--name", "mine"]
    assert main(["train", "sft", *words]) == 0 and server.count("optim_step") > 0
    assert main(["export", "runs/mine", "--out", "exported"]) == 0
    said, asked = list[list[list[str]]](), len(server.asked)
    for team in ("exported", "runs/mine"):
        assert main(["eval", team, "--episodes", "1", "--out", f"{Path(team).name}.jsonl"]) == 0
        loaded = load_team(team)
        played = ServedTeam(loaded.env, loaded.reply, loaded.options)
        said.append([])
        for episode in read(f"{Path(team).name}.jsonl"):
            problem = (episode.turns[0].extras or {})["observation"]
            said[-1].append([turn.text for turn in episode.turns])
            assert [turn.text for turn in played.play(problem).turns] == said[-1][-1]
        assert (len(server.asked) == asked) == (team == "exported")
    assert said[0] == said[1]
    assert (
        not list(Path("exported").rglob("tinker.json"))
        and server.url not in Path("exported/team/config.toml").read_text()
    )


@pytest.mark.ci
def test_nothing_of_this_is_imported_where_no_server_is_named(tmp_path: Path) -> None:
    words = [*QUICK, "--env", "relay-v0", "--device", "cpu", "--name", "plain", "--runs-dir", str(tmp_path)]
    words += ["--max-new-tokens", "4"]
    program = tmp_path / "plain.py"
    program.write_text(
        "import sys\n"
        "from marft_algos.cli import main\n"
        f"assert main(['train', 'grpo', '--group-size', '2', *{words!r}]) == 0\n"
        "assert main(['eval', sys.argv[1], '--episodes', '2']) == 0\n"
        "assert 'marft_algos.training.parts' in sys.modules\n"
        "print(*[name for name in sys.modules if name.startswith('marft_algos.extras.tinker')])"
    )
    ran = preloaded.run(Path.cwd(), str(program), str(tmp_path / "plain"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == ""
