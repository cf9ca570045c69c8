"""`marft eval --engines`: any team, without a run; what was asked is kept, outages are no scores, costs add up."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marft_algos
import marft_envs
from helpers import runs as letters  # registers test/letters-v0
from helpers.fake_servers import Answer, Fake, chat, serving
from helpers.marks import rest_in_ci
from marft_algos.cli import main
from marft_algos.config.evaluation import EvalConfig
from marft_algos.evaluation import resumable
from marft_algos.evaluation.players import SPOKEN, Players
from marft_algos.ranges import hints
from marft_algos.rollout.episodes import Prompts
from marft_algos.runs.intervals import pass_at_k
from marft_envs.core.types import Example
from marft_envs.errors import ConfigError
from marft_envs.records.trajectory import read

pytestmark = pytest.mark.usefixtures("here")

ROOT = Path(__file__).resolve().parents[2]
ENV = "test/letters-v0"
assert letters.Letters


def words(body: dict[str, Any]) -> str:
    """Small letters, which are paid, for half of the seeds; what is paid is what the solver says."""
    return "ab" if body["seed"] % 2 else "12"


def good(path: str, body: dict[str, Any]) -> Answer:
    return 200, chat(words(body))


def table(fake: Fake, **more: Any) -> str:
    return json.dumps({"kind": "openai", "model": "m", "url": fake.url, **more})


def command(fake: Fake, *more: str, out: str = "out", **settings: Any) -> list[str]:
    team = [f"planner_0={table(fake, **settings)}", f"solver_0={table(fake, **settings)}"]
    return ["eval", "--env", ENV, "--engines", *team, "--out", out, *more]


def results(out: str = "out") -> dict[str, Any]:
    return json.loads((Path(out) / "results.json").read_text())


def test_pass_at_k_is_unbiased() -> None:
    """Averaged over draws of n samples it is 1 - (1 - p)^k; the share of solved problems among n draws is not."""
    p, n, k = 0.3, 4, 2
    chances = [np.prod([p if x else 1 - p for x in draw]) for draw in itertools.product([0, 1], repeat=n)]
    counted = [sum(draw) for draw in itertools.product([0, 1], repeat=n)]
    mean = sum(c * pass_at_k(n, x, k) for c, x in zip(chances, counted, strict=True))
    assert mean == pytest.approx(1 - (1 - p) ** k)


def test_problems_that_outages_left_too_few_samples_are_left_out_of_pass_at_k() -> None:
    rates = [[1.0, 0.0], [0.0], []]
    assert resumable.passed(rates, 1).n == 2 and resumable.passed(rates, 1).mean == pytest.approx(0.25)
    assert resumable.passed(rates, 2).n == 1 and resumable.passed(rates, 2).mean == 1.0


def test_a_hosted_team_is_scored_and_priced(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(good) as fake:
        more = ("--episodes", "5", "--samples", "4", "--price", "3,7")
        assert main(command(fake, *more)) == 0
    episodes = list(read("out/episodes.jsonl"))
    assert [e.index for e in episodes] == list(range(20))
    solved = np.array([e.turns[-1].text == "ab" for e in episodes]).reshape(5, 4)
    assert 0 < solved.mean() < 1 and [e.success for e in episodes] == list(solved.ravel())
    assert len({(e.seed, e.task_id) for e in episodes}) == 5, "the samples of a problem share its start"
    content = results()
    assert content["average"]["mean"] == pytest.approx(solved.mean()) and content["average"]["n"] == 5
    pairs = [[row[i] or row[j] for i, j in itertools.combinations(range(4), 2)] for row in solved]
    assert content["pass"]["2"]["mean"] == pytest.approx(np.mean(pairs))
    assert content["pass"]["4"]["mean"] == pytest.approx(solved.any(1).mean())
    both = [[row[i] and row[j] for i, j in itertools.combinations(range(4), 2)] for row in solved]
    assert content["pass_hat"]["2"]["mean"] == pytest.approx(np.mean(both))
    assert content["pass_hat"]["4"]["mean"] == pytest.approx(solved.all(1).mean())
    assert content["pass_hat"]["1"] == content["pass"]["1"]
    assert set(content["pass"]) == {"1", "2", "4"} and content["pass"]["1"]["mean"] == content["average"]["mean"]
    asked = {"requests": 20, "retries": 0, "failed": 0, "empty": 0, "refused": 0, "tokens_in": 200, "tokens_out": 100}
    took = content["usage"]["solver_0"].pop("seconds")
    assert 0 < took["p50"] <= took["p95"]
    assert content["usage"]["solver_0"] == {**asked, "cost": pytest.approx((200 * 3 + 100 * 7) / 1e6)}
    assert content["cost"] == pytest.approx(2 * (200 * 3 + 100 * 7) / 1e6)
    shown = capsys.readouterr().out
    assert "avg@4" in shown and "pass@2" in shown and "pass^4" in shown and "200 + 100 tokens" in shown
    turn = episodes[0].turns[0]
    assert (turn.extras or {})["prompt_tokens"] == 10 and (turn.extras or {})["tokens"] == 5


def test_jobs_are_asked_at_once_and_the_order_changes_nothing() -> None:
    together = threading.Barrier(4)

    def answer(path: str, body: dict[str, Any]) -> Answer:
        together.wait(20)  # nobody is answered before four have asked
        return good(path, body)

    with serving(answer) as fake:
        assert main(command(fake, "--episodes", "4", "--samples", "2", "--jobs", "4")) == 0
        with serving(good) as other:
            assert main(command(other, "--episodes", "4", "--samples", "2", "--jobs", "1", out="slow")) == 0
    texts = [[[t.text for t in e.turns] for e in read(f"{out}/episodes.jsonl")] for out in ("out", "slow")]
    assert texts[0] == texts[1]


def test_rate_limits_are_waited_out() -> None:
    seen: Counter[int] = Counter()

    def answer(path: str, body: dict[str, Any]) -> Answer:
        seen[body["seed"]] += 1
        if seen[body["seed"]] == 1:
            return 429, {"error": {"message": "slow down"}}, {"Retry-After": "0.01"}
        return good(path, body)

    with serving(answer) as fake:
        assert main(command(fake, "--episodes", "3")) == 0
    assert results()["infrastructure_errors"] == 0 and results()["usage"]["solver_0"]["requests"] == 3
    assert set(seen.values()) == {2}


def test_a_lost_episode_is_no_score_and_is_played_by_the_next_call(capsys: pytest.CaptureFixture[str]) -> None:
    """One of twenty is lost: counted, left out, and tried again; what was answered is not asked again."""
    answered: Counter[str] = Counter()
    broken = [True]

    def answer(path: str, body: dict[str, Any]) -> Answer:
        if broken[0] and body["messages"][0]["content"].startswith("Solve") and not broken[1:]:
            broken.append(body["seed"])
        if broken[0] and body["seed"] in broken[1:]:
            return 503, {"error": {"message": "down"}}
        answered[json.dumps([body["seed"], body["messages"]])] += 1
        return good(path, body)

    with serving(answer) as fake:
        words = command(fake, "--episodes", "10", "--samples", "2", retries=0)
        assert main(words) == 0
        first = results()
        assert first["infrastructure_errors"] == 1 and first["usage"]["solver_0"]["failed"] == 1
        kept = [e for e in read("out/episodes.jsonl") if not e.infrastructure_error]
        assert len(kept) == 19 and first["pass"]["1"]["n"] == 10 and first["pass"]["2"]["n"] == 9
        rates = [[float(bool(e.success)) for e in kept if e.index // 2 == p] for p in range(10)]
        assert first["average"]["mean"] == pytest.approx(np.mean([np.mean(r) for r in rates]))
        assert "infrastructure errors 1" in capsys.readouterr().out
        broken[0] = False
        assert main(words) == 0
        assert results()["infrastructure_errors"] == 0 and results()["pass"]["2"]["n"] == 10
        asked = len(fake.asked)
        assert main(words) == 0 and len(fake.asked) == asked, "a complete evaluation asks nothing"
    assert set(answered.values()) == {1} and len(answered) == 40
    assert results()["usage"]["solver_0"]["requests"] == 21


ODD: dict[str, Answer] = {
    "spent": (200, {**chat("", finish="length"), "choices": [{"index": 0, "message": {}, "finish_reason": "length"}]}),
    "flagged": (403, {"error": {"message": "prompt flagged by the content policy"}}),
    "long": (400, {"error": {"message": "too many", "code": "context_length_exceeded"}}),
}


@pytest.mark.parametrize("name", rest_in_ci(ODD))
def test_an_answer_of_nothing_is_a_wrong_answer(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """4 of 48 say nothing, and the other 44 are right: .917 of 48, not 1.000 of 44."""
    lock, count, odd = threading.Lock(), itertools.count(1), set[int]()

    def answer(path: str, body: dict[str, Any]) -> Answer:
        if body["messages"][0]["content"].startswith("Plan"):
            return 200, chat("go")
        with lock:
            if body["seed"] not in odd and next(count) % 12 == 0:
                odd.add(body["seed"])
        return ODD[name] if body["seed"] in odd else (200, chat("ab"))

    with serving(answer) as fake:
        words = command(fake, "--episodes", "48", retries=0)
        assert main(words) == 0
        content, shown = results(), capsys.readouterr()
        asked = len(fake.asked)
        assert main(words) == 0 and len(fake.asked) == asked, "nothing is asked again"
    assert (content["average"]["mean"], content["average"]["n"]) == (pytest.approx(44 / 48), 48)
    assert (
        content["infrastructure_errors"],
        content["usage"]["solver_0"]["failed"],
        content["usage"]["solver_0"]["empty"],
    ) == (0, 0, 4)
    assert results()["usage"] == content["usage"]
    assert "0 failed, 4 without text" in shown.out and shown.err.count("note: ") == 1
    turns = [e.turns[-1] for e in read("out/episodes.jsonl")]
    assert [bool((turn.extras or {}).get("empty")) for turn in turns] == [not turn.text for turn in turns]


def test_an_outage_stops_it_and_what_has_ended_stands(capsys: pytest.CaptureFixture[str]) -> None:
    answered: Counter[str] = Counter()
    up = [10]

    def answer(path: str, body: dict[str, Any]) -> Answer:
        if sum(answered.values()) >= up[0]:
            return 500, {"error": {"message": "down"}}
        answered[json.dumps([body["seed"], body["messages"]])] += 1
        return good(path, body)

    with serving(answer) as fake:
        words = command(fake, "--episodes", "30", "--jobs", "2", retries=0)
        assert main(words) == 1
        error = capsys.readouterr().err
        assert "were lost to infrastructure errors" in error and "type the command again" in error
        assert not Path("out/results.json").exists(), "no number is made of it"
        assert len(fake.asked) < 25, "the rest is not tried"
        up[0] = 1000
        assert main(words) == 0
    assert set(answered.values()) == {1} and len(answered) == 60
    with serving(good) as other:
        assert main(command(other, "--episodes", "30", out="whole")) == 0
    same = ("average", "pass", "pass_hat", "infrastructure_errors")
    assert [results()[key] for key in same] == [results("whole")[key] for key in same]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_in_the_middle_nothing_is_asked_twice(number: signal.Signals, here: Path) -> None:
    """The process dies with requests on their way; all that was answered before is kept, to the turn."""
    answered: Counter[str] = Counter()
    reached, go_on = threading.Event(), threading.Event()

    def answer(path: str, body: dict[str, Any]) -> Answer:
        if len(answered) >= 13 and not go_on.is_set():
            reached.set()
            go_on.wait(60)
            raise ConnectionAbortedError  # nobody waits for it any more
        answered[json.dumps([body["seed"], body["messages"]])] += 1
        return 200, chat([c for c in body["messages"][-1]["content"] if c.isdigit()][-1])

    with serving(answer) as fake:
        team = [f"{agent}={table(fake, retries=0)}" for agent in ("planner_0", "solver_0")]
        words = ["eval", "--env", "relay-v0", "--engines", *team, "--episodes", "20", "--jobs", "2", "--out", "out"]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([sys.executable, "-m", "marft_algos", *words], env=environ, stdout=subprocess.PIPE)
        assert reached.wait(120)
        while Path("out/replies.jsonl").read_bytes().count(b"\n") < len(answered):
            time.sleep(0.02)  # what is on its way to the process when it dies is lost with it
        process.send_signal(number)
        go_on.set()
        out, _ = process.communicate(timeout=60)
        assert process.returncode == (130 if number == signal.SIGTERM else -signal.SIGKILL)
        if number == signal.SIGTERM:
            assert b"Go on: marft eval --env relay-v0" in out
        before = len(answered)
        done = [e for e in read("out/episodes.jsonl")]
        assert 0 < len(done) < 20
        assert main(words) == 0
    assert before < len(answered) == 40 and set(answered.values()) == {1}
    assert [e.index for e in read("out/episodes.jsonl")] == list(range(20)) and results()["average"]["mean"] == 1.0


def test_lines_that_were_cut_are_dropped_and_only_what_they_held_is_asked_again() -> None:
    with serving(good) as fake:
        words = command(fake, "--episodes", "3", "--jobs", "1")  # so the last lines are of one episode
        assert main(words) == 0
        first, asked = results(), len(fake.asked)
        for name in ("episodes", "replies"):
            file = Path(f"out/{name}.jsonl")
            file.write_bytes(file.read_bytes()[:-9])
        assert main(words) == 0
        assert len(fake.asked) == asked + 1, "one reply was lost"
    again = results()
    for content in (first, again):
        for used in content["usage"].values():
            used.pop("seconds")  # the lost reply took its own time when it was asked for again
    assert again["average"] == first["average"] and again["usage"] == first["usage"]
    assert [e.index for e in read("out/episodes.jsonl")] == [0, 1, 2]


def test_a_local_model_plays_beside_a_hosted_one(model: Path, here: Path) -> None:
    with serving(good) as fake:
        team = [f"planner_0={table(fake)}", f"solver_0={model}"]
        words = ["--env", ENV, "--episodes", "3", "--samples", "2", "--max-new-tokens", "3"]
        assert main(["eval", *words, "--engines", *team, "--out", "mixed"]) == 0
        assert len(fake.asked) == 6
        assert main(["eval", *words, "--engines", str(model), "--out", "local"]) == 0
    content = results("mixed")
    assert content["usage"].keys() == {"planner_0"} and content["models"] == {"solver_0": str(model)}
    assert results("local")["usage"] == {} and results("local")["cost"] == 0
    texts = {e.turns[1].text for e in read("mixed/episodes.jsonl")}
    assert len(texts) > 1, "several samples are sampled"


def test_a_folder_belongs_to_one_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(good) as fake:
        assert main(command(fake, "--episodes", "2")) == 0
        for more in (("--episodes", "3"), ("--episodes", "2", "--samples", "2"), ("--episodes", "2", "--seed", "1")):
            capsys.readouterr()
            assert main(command(fake, *more)) == 1
            assert "holds an evaluation with another" in capsys.readouterr().err
        # What changes no reply may differ: one goes on slower, or elsewhere priced.
        assert main(command(fake, "--episodes", "2", "--price", "1,1", "--jobs", "1", retries=2)) == 0
        Path("notes").mkdir()
        Path("notes/thesis.tex").write_text("x")
        capsys.readouterr()
        assert main(command(fake, "--episodes", "2", out="notes")) == 1
        assert "is no evaluation" in capsys.readouterr().err
        Path("out/replies.jsonl").write_text("{}\n")
        assert main(command(fake, "--episodes", "2")) == 1 and "is no record of a reply" in capsys.readouterr().err


def evaluation(**changes: Any) -> resumable.ResumableEvaluation:
    """Of a team that is played here; changes are of the settings, of who plays, or of how models here are spoken to."""
    plain = Players({}, {"solver_0": "embedded"}, {}, {"show_budget": False, "max_new_tokens": 512})
    settings = {name: changes.pop(name) for name in [*changes] if name in hints(EvalConfig) and name not in SPOKEN}
    adapters = changes.pop("adapters", {})
    players, prompts = replace(plain, adapters=adapters, spoken=plain.spoken | changes), Prompts([3, 4], [{}, {}])
    return resumable.ResumableEvaluation(
        EvalConfig(ENV, out="out", **settings), players, prompts, marft_envs.make(ENV).team
    )


@pytest.mark.parametrize("changes", [
    {"show_budget": True}, {"thinking": True}, {"template_tools": True}, {"max_new_tokens": 64}, {"temperature": 0.5},
    {"env_kwargs": {"call_format": "hermes"}}, {"quantize": "nf4"}, {"dtype": "bf16"},
    {"adapters": {"solver_0": "runs/other"}},
], ids=lambda changes: next(iter(changes)))  # fmt: skip
def test_what_changes_prompts_or_replies_makes_another_evaluation(changes: dict[str, Any]) -> None:
    evaluation().open()
    evaluation().open()
    with pytest.raises(ConfigError, match=f"another '{next(iter(changes))}'"):
        evaluation(**changes).open()


def test_the_machine_and_what_stops_it_may_change() -> None:
    evaluation().open()
    evaluation(device="cpu", jobs=3, price="1,2", max_error_rate=0.5, on_task_error="stop").open()


def test_other_problems_or_profiles_make_another_evaluation() -> None:
    first = evaluation()
    first.open()
    with pytest.raises(ConfigError, match="another 'starts'"):
        replace(first, problems=Prompts([3, 4], [{"task_id": "a"}, {"task_id": "b"}])).open()
    told = [replace(agent, examples=(Example("1", "2"),)) for agent in first.team]
    with pytest.raises(ConfigError, match="another 'agents'"):
        replace(first, team=told).open()


def test_a_file_of_profiles_that_has_changed_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(good) as fake:
        words = ["eval", "--env", "math-solo-v0", "--env-kwargs", "levels=[0]", "profiles=told.json"]
        words += ["--engines", table(fake), "--episodes", "2", "--out", "out"]
        Path("told.json").write_text('{"actor": "Say a digit."}')
        assert main(words) == 0 and main(words) == 0
        Path("told.json").write_text('{"actor": "Say a number."}')
        capsys.readouterr()
        assert main(words) == 1
        assert "holds an evaluation with another 'agents'" in capsys.readouterr().err


HOSTED = '{kind="openai", model="m", url="http://127.0.0.1:9"}'


@pytest.mark.parametrize(("argv", "expected"), [
    (["--engines", HOSTED], "Which environment? marft eval --env ID --engines"),
    (["--env", ENV, "--engines", f"planner_0={HOSTED}"], "Nobody plays solver_0. Expected --engines solver_0=MODEL"),
    (["--env", ENV, "--engines", f"plannr={HOSTED}", "solver_0=embedded"], "Did you mean 'planner_0'?"),
    (["--env", ENV, "--engines"], "--engines needs a value"),
    (["--env", ENV, "--engines", '{kind="openai", model="m"'], "cannot be read as a table"),
    (["--env", ENV, "--engines", "{kind=openai,", "model=m}"], "in quotes that keep the shell from it"),
    (["--env", ENV, "--engines", 'planner_0={kind="openai"', "solver_0=embedded"], "cannot be read as a table"),
    (["--env", ENV, "--engines", '{kind="vllm", url="http://127.0.0.1:9"}'], "--engines planner_0=MODEL"),
    (
        ["--env", ENV, "--engines", HOSTED.replace("}", ", train=true}"), "--models", "embedded"],
        "gets weights from a training, and this is none",
    ),
    (["--env", ENV, "--engines", '{kind="opnai", model="m"}'], "Did you mean 'openai'?"),
    (["--env", ENV, "--engines", '{kind="openai", modle="m"}'], "Did you mean 'model'?"),
    (["--env", ENV, "--engines", HOSTED, "--samples", "0"], "samples is 0; expected at least 1"),
    (["--env", ENV, "--engines", HOSTED, "--jobs", "-1"], "jobs is -1; expected at least 1"),
    (["--env", ENV, "--engines", HOSTED, "--episodes", "0"], "episodes is 0; expected at least 1"),
    (["--env", ENV, "--engines", HOSTED, "--temperature", "0"], "temperature is 0.0; expected more than 0"),
    (
        ["--env", ENV, "--engines", HOSTED, "--price", "nan,1"],
        "--price nan,1: expected IN,OUT per million tokens, 0 or more",
    ),
    (["some-run", "--env", ENV, "--engines", HOSTED], "and a run belongs to one"),
    (["--env", ENV, "--engines", HOSTED, "--untrained"], "and --untrained belongs to one"),
    (["--env", ENV, "--engines", HOSTED, "--price", "3"], "expected IN,OUT per million tokens"),
    (["--env", ENV, "--engines", HOSTED, "--out", "x.jsonl"], "it names a folder"),
    (["--env", ENV, "--engines", "./nowhere"], "no model folder './nowhere'"),
    (["--untrained", "--env", ENV, "--samples", "4"], "--samples belongs to --engines"),
])  # fmt: skip
def test_what_cannot_be_is_said_before_anything_is_asked(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", *argv]) in (1, 2)
    assert expected in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_a_library_that_sets_logging_up_prints_no_notices_of_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An MCP server in this process does: each request to an endpoint was three lines on the screen."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert main(["eval", "--env", ENV, "--engines"]) == 1
    capsys.readouterr()
    logging.basicConfig(level="INFO")
    logging.getLogger("httpx").info("HTTP Request: POST http://127.0.0.1/v1/chat/completions")
    logging.getLogger("mcp").warning("the session is gone")
    assert capsys.readouterr().err == "the session is gone\n"


def refusing(status: int) -> Callable[[str, dict[str, Any]], Answer]:
    return lambda path, body: (status, {"error": {"message": "no"}})


def test_a_refused_key_stops_it_with_what_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(refusing(401)) as fake:
        assert main(command(fake, "--episodes", "2")) == 1
    assert "The endpoint refuses model 'm'" in capsys.readouterr().err


def test_python_evaluates_as_the_command_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = {"episodes": 2, "max_new_tokens": 4}
    done = marft_algos.evaluate(
        {"actor_0": "embedded"}, env=marft_envs.make("math-solo-v0", levels=[0]), samples=2, out=tmp_path / "e", **few
    )
    assert (
        len(done.episodes) == done.score.n == len(done.to_pandas()) == 4
        and repr(done) == f"<EvaluationResult {done.score}>"
    )
    assert "pass@2" in capsys.readouterr().out and (tmp_path / "e" / "results.json").is_file()
    with pytest.raises(ConfigError, match=r"no setting 'episode'\. Did you mean 'episodes'"):
        marft_algos.evaluate(env="math-solo-v0", untrained=True, episode=2)
