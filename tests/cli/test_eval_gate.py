"""`marft eval --compare A B` of two evaluation folders: paired by task, by cohort, with gates that CI can read."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import marft_algos
import marft_envs
from helpers import preloaded
from helpers.fake_servers import Answer, chat, serving
from marft_algos.cli import main

ROWS = [
    {"id": f"{'easy' if i < 6 else 'hard'}/{i}", "problem": f"What is {i} + 1?", "answer": str(i + 1)}
    for i in range(12)
]
CUSTOMERS = ["shop"] * 6 + ["bank"] * 5 + ["zoo"]


def answering(right: Callable[[int], bool]) -> Callable[[str, dict[str, Any]], Answer]:
    """Answers the i-th row rightly where ``right(i)``."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        text = str(body["messages"])
        i = next(i for i in range(12) if f"What is {i} + 1?" in text)
        return 200, chat(f"\\boxed{{{i + 1 if right(i) else -7}}}")

    return answer


def evaluate(out: str, right: Callable[[int], bool], *more: str, env: str = "math-solo-v0", **engine: Any) -> None:
    with serving(answering(right)) as fake:
        table = json.dumps({"kind": "openai", "model": "m", "url": fake.url, **engine})
        assert main(["eval", "--env", env, "--data", "rows.jsonl", "--engines", table, "--out", out, *more]) == 0


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{**row, "customer": c} for row, c in zip(ROWS, CUSTOMERS, strict=True)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def compared(capsys: pytest.CaptureFixture[str], *more: str, names: tuple[str, str] = ("a", "b")) -> tuple[int, Any]:
    capsys.readouterr()
    code = main(["eval", "--compare", *names, "--json", *more])
    return code, json.loads(capsys.readouterr().out)


def test_numbers_name_tasks_of_one_environment_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """An environment of others calls a task by its seed: the same numbers of two of them are different tasks."""
    evaluate("a", lambda i: True)
    for name, env in (("one", "gymnasium:A"), ("again", "gymnasium:A"), ("two", "gymnasium:B")):
        shutil.copytree("a", name)
        episodes = [json.loads(line) for line in Path("a/episodes.jsonl").read_text().splitlines()]
        lines = [json.dumps(e | {"task_id": str(i)}) + "\n" for i, e in enumerate(episodes)]
        Path(name, "episodes.jsonl").write_text("".join(lines))
        settings = json.loads(Path("a/eval.json").read_text()) | {"env": env, "env_kwargs": {}, "data": {}}
        Path(name, "eval.json").write_text(json.dumps(settings))
    assert main(["eval", "--compare", "one", "again"]) == 0
    assert main(["eval", "--compare", "one", "two"]) == 1
    assert "evaluations of different tasks: only 'one' has 0 of gymnasium:A" in capsys.readouterr().err


def test_a_kind_that_got_worse_fails_the_gate_though_the_score_did_not(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate("a", lambda i: i < 6)
    evaluate("b", lambda i: i >= 6, model="other")
    code, found = compared(capsys, "--cohort", "kind", "--margin", "5", "--junit", "reports/gate.xml")
    assert (code, found["exit"], found["outcome"]) == (3, 3, "failed") and "they differ in actor_0:" in found["head"]
    changes = {(c["cohort"], c["name"]): c for c in found["changes"]}
    assert changes["", "score"]["difference"]["mean"] == 0.0
    easy, hard = changes["kind easy", "score"], changes["kind hard", "score"]
    assert (easy["difference"]["mean"], hard["difference"]["mean"]) == (-1.0, 1.0) and easy["difference"]["n"] == 6
    outcomes = {(g["change"]["cohort"], g["change"]["name"]): g["outcome"] for g in found["gates"]}
    assert outcomes == {("", "score"): "undecided", ("kind easy", "score"): "failed", ("kind hard", "score"): "passed"}
    assert found["gates"][1]["p_worse"] == pytest.approx(3 / 2**6), "McNemar's, of three checks"
    suite = ET.parse("reports/gate.xml").getroot()
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["3", "1", "1"]
    assert [case.get("classname") for case in suite if case.find("failure") is not None] == ["kind easy"]
    assert main(["eval", "--compare", "a", "b", "--margin", "5"]) == 4, "kinds are shown, and not asked for"
    out = capsys.readouterr().out
    assert "score [kind easy]" in out and "gate:    undecided: score\n" in out and "shows  passes" in out
    assert main(["eval", "--compare", "a", "b", "--margin", "90"]) == 0
    assert "gate:    passed: score\n" in capsys.readouterr().out
    assert main(["eval", "--compare", "a", "b"]) == 0
    assert "gate:    none; one that asks" in capsys.readouterr().out
    evaluate("none", lambda i: False)
    assert main(["eval", "--compare", "b", "none"]) == 3, "without a gate: the score is shown to be worse"
    assert "gate:    failed: score\n" in capsys.readouterr().out


def test_cohorts_are_a_column_and_one_task_decides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.dumps({**r, "id": None, "customer": c}) for r, c in zip(ROWS, CUSTOMERS, strict=True)]
    Path("rows.jsonl").write_text("\n" + "\n".join(rows))  # ids are numbers of lines, of which one is blank
    evaluate("a", lambda i: True)
    evaluate("b", lambda i: i < 11)
    code, found = compared(capsys, "--cohort", "customer", "--margin", "10")
    alone = next(c for c in found["changes"] if c["cohort"] == "customer zoo")
    assert [alone["difference"][key] for key in ("mean", "low", "high", "n")] == [-1.0, -1.0, 1.0, 1]
    assert code == 4 and not alone["verdict"] and {g["outcome"] for g in found["gates"]} == {"undecided"}
    assert main(["eval", "--compare", "a", "b", "--cohort", "customer"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"score \[customer zoo\] +1\.000 +0\.000  -100\.0 points \[-100\.0, \+100\.0\], n = 1\n", out)
    assert "customer bank" in out


def test_what_a_team_costs_and_takes_is_gated_for_every_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens and seconds of all, cost where both have prices: of hosted models, and of functions in Python."""
    for name, price in (("a", "1,1"), ("b", "9,9"), ("free", "")):
        evaluate(name, lambda i: True, *(["--price", price] if price else []))
    gates = ("--gate", "cost=+0.000001", "--gate", "tokens=+5", "--gate", "seconds/p50=+60")
    code, found = compared(capsys, *gates)
    outcomes = {g["change"]["name"]: g["outcome"] for g in found["gates"]}
    assert code == 3 and outcomes == {"cost": "failed", "tokens": "passed", "seconds/p50": "passed"}
    known = {c["name"]: c for c in found["changes"]}
    results = json.loads(Path("b/results.json").read_text())
    assert 12 * known["cost"]["after"] == pytest.approx(results["cost"])
    assert compared(capsys, *gates, names=("b", "a"))[0] == 0
    capsys.readouterr()
    assert main(["eval", "--compare", "a", "free", *gates]) == 1
    assert "--gate cost: there is no such metric of both. What both cost is not known" in capsys.readouterr().err
    rows = marft_envs.from_rows(ROWS)
    one, two = (marft_algos.evaluate(say, env=rows, out=out) for say, out in ((seven, "f"), (lambda m: "8", "g")))
    assert one.metrics["seconds"] >= 0 and "cost" not in one.metrics and one.results["cost"] == 0
    result = marft_algos.compare(one, two, gate={"seconds": "+60", "tokens": "+9"})
    assert result.outcome == "passed" and [c.change.name for c in result.checks] == ["tokens", "seconds"]
    assert marft_algos.compare(one, two, margin=2).outcome == "undecided"
    assert marft_algos.compare("a", "b", margin=90, cohort="kind").outcome == "passed"


def seven(messages: Any) -> str:
    return "7"


def test_a_plan_says_what_the_tasks_can_show(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate("a", lambda i: i < 9, "--samples", "2")
    capsys.readouterr()
    assert main(["eval", "--compare", "a", "--margin", "20", "--plan"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("n   r     shows  passes\n12  0.00  ") and "\n12  0.50 " in out
    for words in (("a", "--plan"), ("a", "a", "--margin", "2", "--plan"), ("rows.jsonl", "--margin", "2", "--plan")):
        assert main(["eval", "--compare", *words]) == 1
        assert "Type: marft eval --compare EVALUATION --margin 2 --plan" in capsys.readouterr().err


def test_a_team_is_compared_with_one_agent_and_samples_are_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate("a", lambda i: True, "--samples", "2")
    evaluate("b", lambda i: True, env="math-dual-v0")
    code, found = compared(capsys)
    assert code == 0 and "reasoner_0, " in found["head"] and "env, " in found["head"] and "samples" in found["head"]
    names = {c["name"] for c in found["changes"] if not c["cohort"]}
    assert {"score", "task/accuracy", "agent/actor_0/length", "infrastructure_errors"} <= names
    assert not any("reasoner_0" in name for name in names), "an agent that only one has"


def test_safety_is_a_second_gate(capsys: pytest.CaptureFixture[str]) -> None:
    for name, obeyed in (("a", 0.0), ("b", 1.0)):
        evaluate(name, lambda i: True)
        file = Path(name, "episodes.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row["metrics"]["obeyed"] = obeyed * (row["index"] < 6)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert compared(capsys, "--margin", "90")[0] == 0
    code, found = compared(capsys, "--margin", "90", "--gate", "obeyed=+0")
    assert (code, {g["change"]["name"]: g["outcome"] for g in found["gates"]}) == (
        3,
        {"score": "passed", "task/obeyed": "failed"},
    )
    assert compared(capsys, "--gate", "obeyed=+0.9")[0] == 0
    assert compared(capsys, "--gate", "obeyed=+0.9", "--cohort", "customer")[0] == 4, (
        "one task of the zoo decides nothing"
    )
    assert compared(capsys, "--gate", "obeyed=+0", names=("b", "a"))[0] == 0, "shown to be less"


def test_what_an_outage_took_is_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate("a", lambda i: True)
    evaluate("b", lambda i: True)
    file = Path("b", "episodes.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0] |= {"fault": "engine", "stop_reason": "error: no reply", "task_id": ""}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, found = compared(capsys)
    assert code == 0 and found["changes"][0]["difference"]["n"] == 11
    assert "11 tasks of 12 (others lost to infrastructure errors)" in found["head"]
    lost = next(c for c in found["changes"] if c["name"] == "infrastructure_errors")
    assert (lost["before"], lost["after"], lost["verdict"]) == (0, 0, ""), "nobody knew which task it was"
    rows[0] |= {"task_id": "easy/0"}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, found = compared(capsys, "--margin", "90", "--gate", "infrastructure_errors=+0.01")
    assert code == 4 and [g["outcome"] for g in found["gates"]] == ["passed", "undecided"]
    assert found["gates"][1]["change"]["after"] == pytest.approx(1 / 12)
    rows.pop()
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["eval", "--compare", "a", "b"]) == 1
    assert "'b' has 11 of 12 episodes. Go on with it first: marft eval" in capsys.readouterr().err


@pytest.mark.ci
def test_other_libraries_say_nothing_in_the_middle_of_a_table(here: Path) -> None:
    """A module that sets logging up, as servers of MCP do, has no request of httpx shown."""
    loud = "import logging\n\nlogging.basicConfig(level=logging.INFO)\n\n\ndef pay(episode):\n    return 1.0\n"
    Path("loud.py").write_text(loud)
    with serving(answering(lambda i: True)) as fake:
        table = json.dumps({"kind": "openai", "model": "m", "url": fake.url})
        words = ("--env", "math-solo-v0", "--data", "rows.jsonl", "--env-kwargs", "reward=loud:pay")
        done = preloaded.run(here, "-m", "marft_algos", "eval", *words, "--engines", table, "--out", "a")
    assert done.returncode == 0 and "avg@1      1.000" in done.stdout
    assert not re.sub(r"  \d+/12 episodes, infrastructure errors 0\n", "", done.stderr)
    assert not re.search("INFO|HTTP Request|Warning", done.stdout)


BAD = """
--scenarios s.json | --scenarios is about runs
--gate score=2 | --gate score=2: expected a margin with the sign of what is worse
--gate score=-x | --gate score=-x: expected a margin with the sign of what is worse
--gate score=-nan | --gate score=-nan: expected a margin with the sign of what is worse
--gate obeid=+0 | --gate obeid: there is no such metric
--margin 2 --gate score=-0.1 | --gate score=-0.1: score has another margin. Expected one
--gate accuracy=-0.1 task/accuracy=-0.2 | --gate task/accuracy=-0.2: accuracy has another margin. Expected one
--cohort customr | No row of 'rows.jsonl' has a column 'customr'. Expected kind, or one of: answer, customer, id, problem
"""


def test_bad_input_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate("a", lambda i: True)
    for line in BAD.strip().splitlines():
        words, expected = line.split(" | ")
        assert main(["eval", "--compare", "a", "a", *words.split()]) == 1
        assert expected in capsys.readouterr().err
    assert main(["eval", "--compare", "a", "a", "--margin", "-1"]) == 2
    assert "margin is -1.0; expected 0 or more" in capsys.readouterr().err
    file = Path("a", "episodes.jsonl")
    shutil.copytree("a", "odd")
    Path("odd", file.name).write_text(file.read_text().replace('"accuracy": 1.0', '"accuracy": NaN', 2))
    assert main(["eval", "--compare", "a", "odd", "--margin", "2"]) == 1
    assert "task/accuracy of B is nan in problem 1 of 12, and no number in 2. Expected" in capsys.readouterr().err
    Path("odd", file.name).write_text(file.read_text().replace('"accuracy"', '"other"'))
    assert main(["eval", "--compare", "a", "odd", "--gate", "accuracy=-0.1"]) == 1
    assert "--gate accuracy: there is no such metric of both. Known: " in capsys.readouterr().err
    lost = [{**json.loads(line), "fault": "engine"} for line in file.read_text().splitlines()]
    Path("odd", file.name).write_text("".join(json.dumps(row) + "\n" for row in lost))
    assert main(["eval", "--compare", "a", "odd", "--margin", "2"]) == 1
    assert "Nothing to compare in 'a' and 'odd': all was lost to infrastructure errors" in capsys.readouterr().err
    evaluate("few", lambda i: True, "--episodes", "5")
    assert main(["eval", "--compare", "a", "few"]) == 1
    error = capsys.readouterr().err
    assert "'a' and 'few' are evaluations of different tasks: only 'a' has" in error and "and 4 more" in error
    Path("other").mkdir()
    assert main(["eval", "--compare", "a", "other"]) == 1
    assert "'a' is an evaluation, and the other is none" in capsys.readouterr().err
    Path("other/eval.json").write_text("[]")
    assert main(["eval", "--compare", "a", "other"]) == 1
    assert "The evaluation in 'other' cannot be read" in capsys.readouterr().err
    assert main(["eval", "a", "--gate", "score=-1"]) == 1
    assert "--gate is about --compare" in capsys.readouterr().err
