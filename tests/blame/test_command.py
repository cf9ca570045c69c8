"""``marft blame``: runs, evaluations and files; hosted teams under a budget; what cannot be blamed, and what to type."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from helpers import runs
from helpers.fake_servers import Answer, chat, serving
from helpers.noisy import failures, player
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.extras.blame.commands import blame
from marft_algos.extras.view.api import Api
from marft_algos.extras.view.sources import open_sources
from marft_algos.runs.folder import RunFolder
from marft_envs import Episode
from marft_envs.errors import MarftError
from marft_envs.families.toy.relay import Relay
from marft_envs.records import trajectory

pytestmark = pytest.mark.usefixtures("here")
ENV = "relay-v0"


def relay() -> Any:
    return marft_envs.make(ENV)


def recorded(path: str = "episodes.jsonl", n: int = 2, **changes: Any) -> list[Episode]:
    """Failures of a noisy team, written to a file."""
    episodes = [replace(e, **changes) for e in failures(player(relay), n)]
    trajectory.write(path, episodes)
    return episodes


@pytest.mark.ci
def test_a_file_is_blamed_as_text_as_json_and_for_the_viewer(capsys: pytest.CaptureFixture[str]) -> None:
    recorded()
    words = ["blame", "episodes.jsonl", "--engines", "embedded", "--by", "expert", "silence"]
    assert main([*words, "--plan"]) == 0
    planned = capsys.readouterr().out
    assert "failures:  2 of 2 in episodes.jsonl" in planned and "sampled tokens" in planned and "agent" not in planned
    assert main([*words, "--out", "blame.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "of 2 failures " in out and "planner_0" in out and "marft view blame.jsonl" in out
    least, most = (int(x.replace(",", "")) for x in planned.split("cost:")[1].split() if x[0].isdigit())
    spent = int(out.split("spent:")[1].split()[0].replace(",", ""))
    assert least / 4 < spent < 4 * most
    assert main([*words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [len(e["turns"]) for e in content["episodes"]] == [2, 2] and content["tokens"] == spent
    (source,) = open_sources(["blame.jsonl"])
    shown = Api([source]).answer("episode", {"source": "0", "file": "blame", "line": "1"})["episode"]
    assert shown["turns"][0]["extras"]["blame"].startswith("blame ") and "out of reach" in shown["info"]["blame"]
    assert trajectory.replay(next(trajectory.read("blame.jsonl"))).success is False


@pytest.mark.ci
def test_a_run_is_blamed_by_the_weights_of_its_evaluation_and_shows_it(tmp_path: Path) -> None:
    import marft_algos

    model = save_tiny(tmp_path / "model")
    changes = {**vars(runs.settings(model, tmp_path / "runs", iterations=2)), "algorithm": {"lr": 1e-2}, "algo": "grpo"}
    kept = ("env", "models", "max_new_tokens", "iterations", "episodes_per_iteration", "eval_every", "eval_episodes",
            "save_every", "lora_r", "device", "runs_dir", "algorithm")  # fmt: skip
    run: RunFolder = marft_algos.train("default", **{key: changes[key] for key in kept})
    found = blame(run, failures=2)
    assert len(found.episodes) == 2 and found.tokens > 0
    assert found.episodes[0].name.endswith("of eval-000002.jsonl)")
    assert main(["blame", str(run.root), "--failures", "2"]) == 0
    (written,) = run.recorded("blame")
    assert written == 2 and len(run.episodes("blame", 2)) == 2
    assert main(["show", str(run.root), "--html"]) == 0
    page = run.report_file.read_text()
    assert "What failures turn with" in page and "to blame:" in page and "as it is" in page
    assert main(["blame", str(run.episodes_file("eval", 0)), "--failures", "1"]) == 0  # of the untrained team


def test_a_hosted_team_replays_through_its_engine_and_never_asks_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """The evaluation says who played; the budget ends it, and a larger one goes on with the replies that are there."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        return 200, chat(str(body["seed"] % 4))

    with serving(answer) as fake:
        table = json.dumps({"kind": "openai", "model": "m", "url": fake.url})
        evaluation = ["eval", "--env", ENV, "--engines", table, "--episodes", "8", "--samples", "2", "--out", "ev"]
        assert main(evaluation) == 0
        command = ["blame", "ev", "--failures", "1", "--by", "silence", "--width", "0.25", "--out", "b.jsonl"]
        with pytest.raises(MarftError, match="sends"):
            blame("ev", failures=1)  # what a file names is shown, and needs consent
        for budget in ("10", "400"):
            asked = len(fake.asked)
            Path("b.jsonl").unlink(missing_ok=True)
            assert main([*command, "--token-budget", budget, "--trust"]) == 0
            out = capsys.readouterr().out
            assert "the token budget ended it" in out and "hosted:    planner_0, solver_0" in out
            sent = len(fake.asked) - asked
            assert (sent == 0) if budget == "10" else (0 < sent * 5 <= 400)
        asked = len(fake.asked)
        assert main([*command, "--token-budget", "400", "--trust"]) == 0
        assert len(fake.asked) == asked


def cut() -> str:
    recorded()
    Path("cut.jsonl").write_text(Path("episodes.jsonl").read_text()[:-40])
    return "cut.jsonl"


def changed(**fields: Any) -> Callable[[], str]:
    def make() -> str:
        recorded(**fields)
        return "episodes.jsonl"

    return make


def other_rewards() -> str:
    """As an older version of the environment recorded them, which rewarded the first turn."""
    episodes = failures(player(relay), 2)
    for episode in episodes:
        episode.turns[0].reward = 0.5
    trajectory.write("episodes.jsonl", episodes)
    return "episodes.jsonl"


def rows() -> str:
    Path("rows.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "?"}], "action": "1", "agent": "a"})
    )
    return "rows.jsonl"


def spans() -> str:
    Path("spans.jsonl").write_text('{"resourceSpans": []}\n')
    return "spans.jsonl"


BAD = {
    "no such file": (lambda: "nothing.jsonl", "is no run"),
    "another version's id": (changed(env_id="no version 9 of 'relay'"), "no version 9 of 'relay'"),
    "another version's rewards": (
        other_rewards,
        r"can be replayed: 2 × Replay differs in turns\[0\].*Record them again",
    ),
    "of no registered environment": (changed(env_id="custom"), "env=your_environment"),
    "whose agents are others": (
        changed(env_id="xor-v0"),
        "can be replayed: 2 × Turn 0: recorded planner_0.*marft eval",
    ),
    "without a seed": (changed(seed=None), "without a seed"),
    "without a failure": (changed(success=True), "no failure among the 2 episodes.*marft eval"),
    "of a served team": (changed(success=None), "2 say nothing of success"),
    "lost to the machine": (changed(fault="machine", stop_reason="error: x"), "no failure"),
    "cut in a line": (cut, "cut.jsonl:2: .*head -n -1 FILE"),
    "an imported trace without its environment": (rows, "name no environment.*--cases"),
    "spans": (spans, "Expected one recorded episode a line"),
    "a run's code": (changed(env_id="program:python x.py"), "trust"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_blamed_is_said_with_what_can_be_done(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, says = BAD[case]
    path = make()
    with pytest.raises(MarftError, match=f"(?s){says}"):
        blame(path, player(relay))
    assert main(["blame", path, "--engines", "embedded"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_an_imported_trace_with_its_environment_is_blamed() -> None:
    """A record that came from elsewhere, of an environment that only its caller has."""
    recorded(env_id="custom")
    found = blame("episodes.jsonl", player(relay), env=relay)
    assert len(found.episodes) == 2 and not found.left_out
    episodes = [*trajectory.read("episodes.jsonl"), *(replace(e, task_id="relay/9") for e in recorded("more.jsonl", 1))]
    found = blame(episodes, player(relay), env=relay)
    assert len(found.episodes) == 2 and sum(found.left_out.values()) == 1
    with pytest.raises(MarftError, match="--engines RUN, or --engines MODEL"):
        blame(episodes)
    with pytest.raises(MarftError, match="'nothing'"):
        blame(episodes, player(relay), by=("nothing",))


def test_an_evaluation_of_models_needs_no_consent() -> None:
    assert main(["eval", "--env", ENV, "--engines", "embedded", "--episodes", "4", "--out", "ev"]) == 0
    assert blame("ev", failures=1, width=0.4).episodes


def test_what_does_not_fork_is_refused_and_what_to_do_instead_is_said() -> None:
    class Server(Relay):
        copyable = False

    def make() -> Any:
        env = relay()
        env.task = Server()
        return env

    with pytest.raises(MarftError, match=r"(?s)cannot be copied half-way.*--again.*marft eval --engines AGENT=OTHER"):
        blame(failures(player(relay), 1), player(relay), env=make)


@pytest.mark.ci
def test_a_program_is_run_again_from_its_start_and_none_of_its_runs_is_left() -> None:
    def make() -> Any:
        rows, agents = [{"problem": problem, "answer": "1"} for problem in "ab"], ["writer_0", "reader_0"]
        return marft_envs.make(
            "program:helpers.program_team:team", agents=agents, data=rows, grader="blame.test_command:right"
        )

    by = player(make)
    before = threading.enumerate()
    found = blame(failures(by, 1, 8), by, env=make, again=True, width=0.25)
    (e,) = found.episodes
    assert [turn.record.agent for turn in e.turns] == ["writer_0", "reader_0"] and not found.left_out
    assert {r.by for r in e.turns[0].replacements} == {"silence", "policy reader_0"}  # no expert, nothing to cut
    new = [thread for thread in threading.enumerate() if thread not in before]
    assert found.played > 50 and not [thread for thread in new if thread.join(30) or thread.is_alive()]


def right(problem: Any, answer: str) -> float:
    """Grades the program's answer."""
    return float(answer == problem["answer"])


def test_options_that_mean_nothing_are_refused() -> None:
    for name in ("plan", "json", "out"):
        with pytest.raises(MarftError, match=f"{name} is of marft blame; here the result is returned"):
            blame([], **{name: True})
    env = marft_envs.make("relay-v0")
    env.reset(seed=0)
    while not env.done:
        env.step("no")
    with pytest.raises(MarftError, match="--checkpoint is of a run's own team"):
        blame([env.episode], engines="embedded", checkpoint="best")
