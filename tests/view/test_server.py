"""What the page asks for, and whom the server answers: this machine alone, with the token, reading only."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.viewed import HOSTILE, episode, write_bench, write_lines, write_run
from marft_algos.cli import main
from marft_algos.extras.bench import page, tables
from marft_algos.extras.view.api import Api
from marft_algos.extras.view.server import HEADERS, ViewServer
from marft_algos.extras.view.sources import open_sources, writer
from marft_envs.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "one")
    write_run(folder / "two")
    exchanged = [episode(s, False, f"4 and {(s + 1) % 8}") for s in range(8)]
    write_lines(folder / "exchanged.jsonl", exchanged)
    return folder


@pytest.fixture(scope="module")
def api(runs: Path) -> Api:
    sources = open_sources([str(runs / name) for name in ("one", "two", "exchanged.jsonl")])
    for source in sources:
        source.index.refresh()
    return Api(sources)


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[ViewServer]:
    with ViewServer(open_sources([str(runs / "one")])) as made:
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        made.shutdown()


def ask(
    server: ViewServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.request(method, path, headers=headers)
    reply = connection.getresponse()
    answer = reply.status, reply.headers, reply.read()
    connection.close()
    return answer


# What is answered -------------------------------------------------------------------------------------


def test_the_overview_says_where_each_run_stands(api: Api) -> None:
    one, two, file = api.answer("sources", {})["sources"]
    assert (one["name"], two["name"], file["name"]) == ("one", "two", "exchanged.jsonl")
    assert one["iteration"] == 4 and one["files"] == {"eval-000000": 8, "train-000002": 6, "eval-000004": 8}
    facts = dict(one["facts"])
    assert facts["untrained"] == "0.250 [0.150, 0.350]" and facts["after iteration 4"].startswith("0.750")
    assert facts["scored on"] == "8 held-out problems" and facts["tokens sampled"] == "500"
    assert file["iteration"] is None and file["files"] == {"exchanged": 8}


def test_curves_are_those_of_the_report_and_come_once(api: Api) -> None:
    told = api.answer("curves", {"source": "0"})
    score, loss = told["diagrams"]
    assert score["series"]["evaluation (held out)"] == [[0, 0.25], [4, 0.75]] and score["bars"] == [
        [0, 0.15, 0.35],
        [4, 0.65, 0.85],
    ]
    assert loss["title"] == "loss" and loss["series"]["a_0"][-1] == [4, 0.25]
    assert told["axes"]["tokens"] == [0, 100, 200, 300, 400] and told["axes"]["seconds"][-1] == 8
    assert api.answer("curves", {"source": "0", "seen": str(told["size"])}) == {"size": told["size"], "same": True}
    more = api.answer("curves", {"source": "0", "keys": "tokens,no_such_key"})["diagrams"]
    assert [d["title"] for d in more] == ["return", "loss", "tokens"]
    assert api.answer("curves", {"source": "2"})["diagrams"] == []


def test_an_episode_comes_whole_with_where_else_its_problem_was_played(api: Api) -> None:
    told = api.answer("episode", {"source": "0", "file": "eval-000004", "line": "3"})
    played = told["episode"]
    assert played["team_return"] == 1.0 and played["outcome"] == "solved" and len(played["turns"]) == 6
    assert played["rounds"][1]["D"] == [[0, 1, 1], [0, 0, 1], [0, 0, 0]] or played["rounds"][1]["D"][0][1] == 1
    assert played["turns"][2]["result"].startswith("looked up")
    others = [(p["source"], p["file"], p["line"]) for p in told["others"]]
    evaluations = [(0, "eval-000000", 3), (1, "eval-000000", 3), (1, "eval-000004", 3), (2, "exchanged", 3)]
    assert set(evaluations) <= set(others) and (0, "eval-000004", 3) not in others
    token = api.answer("episode", {"source": "0", "file": "train-000002", "line": "1"})
    extras = token["episode"]["turns"][0]["extras"]
    assert extras["pieces"] and len(extras["logprobs"]) == len(extras["values"]) == len(extras["advantages"]) == 3
    assert (0, "train-000002", 2) in [(p["source"], p["file"], p["line"]) for p in token["others"]], "its group"


def test_lists_are_filtered_and_paged(api: Api) -> None:
    first = api.answer("episodes", {"source": "0", "file": "eval", "outcome": "solved", "limit": "5"})
    assert [r["line"] for r in first["rows"]] == [1, 2, 1, 2, 3] and first["total"] == 8 and first["next"] == 5
    rest = api.answer("episodes", {"source": "0", "file": "eval", "outcome": "solved", "after": "5"})
    assert [r["line"] for r in rest["rows"]] == [4, 5, 6] and rest["next"] is None
    found = api.answer("episodes", {"source": "0", "text": "LOOKED UP 3"})["rows"]
    assert {(r["file"], r["line"]) for r in found} == {("eval-000000", 4), ("eval-000004", 4)}
    assert found[0]["words"].startswith("c_0 says")


@pytest.mark.parametrize(("name", "query", "says"), [
    ("nothing", {}, "no question 'nothing'"), ("episodes", {"source": "9"}, "no source 9"),
    ("episodes", {"source": "-1"}, "whole number"), ("episodes", {"source": "x" * 99}, "whole number"),
    ("episodes", {"after": "9" * 99}, "whole number"), ("episodes", {"outcome": "great"}, "outcome is 'great'"),
    ("episodes", {"order": "up"}, "expected one of"),
    ("episode", {"file": "../../config", "line": "1"}, "no episode in line 1"),
    ("episode", {"file": "eval-000000", "line": "99"}, "no episode in line 99"),
])  # fmt: skip
def test_bad_questions_are_answered_in_words(api: Api, name: str, query: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        api.answer(name, query)


def test_a_run_that_still_trains_is_followed(tmp_path: Path) -> None:
    root = write_run(tmp_path / "live", iterations=2)
    api = Api(open_sources([str(root)]))
    before = api.answer("curves", {})
    assert api.answer("sources", {})["sources"][0]["writer"] == ""
    lock = {"pid": os.getpid(), "host": socket.gethostname(), "since": 0.0, "command": "marft train"}
    (root / ".lock").write_text(json.dumps(lock))
    with (root / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 3, "time_elapsed": 9.0, "return": 0.9}\n{"iteration": 4, "time_el')
    write_lines(root / "episodes/train-000003.jsonl", [episode(0, True)])
    told = api.answer("sources", {})["sources"][0]
    assert told["writer"] == "here" and told["iteration"] == 3 and told["files"]["train-000003"] == 1
    after = api.answer("curves", {"seen": str(before["size"])})
    assert after["diagrams"][0]["series"]["training"][-1][0] == 3
    ended = subprocess.Popen(["true"])
    ended.wait()
    (root / ".lock").write_text(json.dumps({**lock, "pid": ended.pid}))
    assert writer(open_sources([str(root)])[0].run) == "", "a killed trainer leaves its words"  # type: ignore[arg-type]
    (root / ".lock").write_text(json.dumps({**lock, "host": "elsewhere"}))
    assert api.answer("sources", {})["sources"][0]["writer"] == "elsewhere"


@pytest.mark.parametrize(
    "line",
    ['{"return": 1.0}', '{"iteration": 1, "eval/success": "high"}', '{"iteration": 1, "policy/a/loss": []}', "{"],
)
def test_metrics_that_are_none_are_named(line: str, tmp_path: Path) -> None:
    root = write_run(tmp_path / "run")
    with (root / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    api = Api(open_sources([str(root)]))
    assert api.answer("sources", {})["sources"][0]["files"], "its episodes can be read all the same"
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        api.answer("curves", {})


# Who is answered --------------------------------------------------------------------------------------


def test_the_page_and_its_parts_are_served_with_a_strict_policy(server: ViewServer) -> None:
    base = f"/{server.token}/"
    for name in ("", "app.js", "style.css", "icon.svg", "api/sources"):
        status, headers, body = ask(server, base + name)
        assert status == 200 and body
        assert all(headers[key] == value for key, value in HEADERS.items())
    assert (
        "unsafe" not in HEADERS["Content-Security-Policy"]
        and "default-src 'none'" in HEADERS["Content-Security-Policy"]
    )
    page = ask(server, base)[2].decode()
    assert "http" not in page and "style=" not in page and "<script>" not in page, "nothing inline, nothing of others"
    status, headers, body = ask(server, base, "HEAD")
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) == len(page.encode())


@pytest.mark.parametrize(
    "path",
    ["/", "/x/", "/{token}", "/{token}x/", "/{token}/../config.toml", "/{token}/%2e%2e/app.js", "/{token}/api/", "//"],
)
def test_without_the_token_and_beside_the_page_there_is_nothing(server: ViewServer, path: str) -> None:
    status, _, body = ask(server, path.format(token=server.token))
    assert status in (400, 404) and server.token.encode() not in body


@pytest.mark.parametrize("target", ["x", "*", "http://[x/", "//[x/", "http://127.0.0.1/", "?", "{token}/", "%"])
def test_odd_addresses_leave_no_traceback_in_the_terminal(
    server: ViewServer, target: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(server.server_address) as connection:
        connection.sendall(f"GET {target.format(token=server.token)} HTTP/1.0\r\nHost: localhost:1\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 404")
    with socket.create_connection(server.server_address) as gone:  # hangs up before its answer
        gone.sendall(f"GET /{server.token}/ HTTP/1.1\r\nHost: localhost:1\r\n\r\n".encode())
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ask(server, f"/{server.token}/")[0] == 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example:1", "", "10.0.0.1:80"])
def test_another_name_of_this_machine_is_refused(server: ViewServer, host: str) -> None:
    assert ask(server, f"/{server.token}/", Host=host)[0] == 403


@pytest.mark.parametrize("head", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_a_page_of_another_origin_reads_nothing(server: ViewServer, head: dict[str, str]) -> None:
    status, headers, body = ask(server, f"/{server.token}/api/sources", **head)
    assert status == 403 and set(json.loads(body)) == {"error"} and headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1:9999", "[::1]:80"])
def test_a_tunnel_to_another_port_is_this_machine_too(server: ViewServer, host: str) -> None:
    assert ask(server, f"/{server.token}/", Host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_there_is_nothing_but_reading(server: ViewServer, method: str) -> None:
    status, headers, body = ask(server, f"/{server.token}/api/sources", method)
    assert status == 405 and method in json.loads(body)["error"] and "Access-Control-Allow-Origin" not in headers


def test_it_listens_on_the_loopback_interface_alone_and_every_token_is_another(runs: Path, server: ViewServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with ViewServer(open_sources([str(runs / "one")])) as other:
        assert other.token != server.token and len(other.token) >= 32


def test_errors_and_text_that_is_no_utf8_are_json(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run")
    bad = episode(0, True, HOSTILE)
    bad["metrics"] = {"much": float("inf"), "none": float("nan")}
    write_lines(root / "episodes/eval-000008.jsonl", [bad, "{"])
    with ViewServer(open_sources([str(root)])) as made:
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        base = f"/{made.token}/api/episode?source=0&file=eval-000008&line="
        status, headers, body = ask(made, base + "1")
        assert status == 200 and headers["Content-Type"].startswith("application/json")
        played = json.loads(body, parse_constant=pytest.fail)["episode"]
        assert HOSTILE in played["turns"][0]["text"] and played["metrics"] == {"much": None, "none": None}
        status, _, body = ask(made, base + "2")
        assert status == 400 and "eval-000008.jsonl, line 2" in json.loads(body)["error"]
        made.shutdown()


# The command ------------------------------------------------------------------------------------------


def test_paths_are_runs_folders_of_runs_files_and_benchmarks(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [s.name for s in open_sources([str(runs)])] == ["one", "two"]
    assert [s.name for s in open_sources([str(runs / "one"), str(runs / "two" / ".." / "one"), str(runs)])] == [
        "one",
        "two",
    ]
    monkeypatch.chdir(runs.parent)
    runs.rename(runs.parent / "runs") if runs.name != "runs" else None
    try:
        assert len(open_sources([])) == 1 and open_sources(["two"])[0].name == "two"
    finally:
        (runs.parent / "runs").rename(runs)


def test_a_benchmark_says_its_verdict_as_its_report_does_and_again_when_there_are_results(tmp_path: Path) -> None:
    bench = write_bench(tmp_path / "bench")
    api = Api(open_sources([str(bench.root)]))
    assert [s.name for s in api.sources][:2] == ["reinforce · made-up · 0", "reinforce · made-up · 1"]
    assert api.answer("verdicts", {}) == {"verdicts": ["made-up: above reinforce: ours."]}
    assert page.said(bench) == page.verdict(tables.lines(bench.rows(), "reinforce"), "reinforce")
    for key in ("ours0", "ours1"):
        bench.result_file(key).unlink()
    assert api.answer("verdicts", {}) == {"verdicts": ["made-up: too few seeds to tell: ours."]}
    assert Api(open_sources([str(bench.runs / "ours0")])).answer("verdicts", {}) == {"verdicts": []}, (
        "a run is no comparison"
    )


def test_a_benchmark_that_was_packed_has_numbers_and_nothing_to_view(tmp_path: Path) -> None:
    bench = write_bench(tmp_path / "bench")
    shutil.rmtree(bench.runs)
    with pytest.raises(ConfigError, match=r"packed.*marft bench report"):
        open_sources([str(bench.root)])


@pytest.mark.parametrize(("argv", "says"), [
    (["nowhere"], "'nowhere' is no run"), (["empty"], "'empty' is no run"),
    (["notes.txt"], "no episodes: expected a run's folder"), (["run/checkpoints"], "is no run, but lies in one"),
    (["run", "--port", "99999"], "port is 99999"), (["bench"], "is no benchmark"), ([], "There is no run in runs/ yet"),
])  # fmt: skip
def test_bad_input_is_told_with_what_to_type(
    argv: list[str], says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("empty", "bench", "run/checkpoints"):
        Path(name).mkdir(parents=True)
    Path("run/config.toml").write_text("")
    Path("bench/bench.json").write_text("{")
    Path("notes.txt").write_text("")
    assert main(["view", *argv]) == (2 if "--port" in argv else 1)
    said = capsys.readouterr().err
    assert said.startswith("error: ") and says in said and "Traceback" not in said


def test_a_port_that_is_taken_is_named_with_a_free_one(
    server: ViewServer, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = server.server_address[1]
    assert main(["view", str(runs / "one"), "--port", str(port)]) == 1
    assert f"Port {port} is taken. Free is, for one: --port " in capsys.readouterr().err


def test_the_command_prints_an_address_that_answers_and_ends_with_ctrl_c(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answered: list[Any] = []

    def serve(server: ViewServer) -> None:
        shown = capsys.readouterr().out
        answered.append(server.address in shown and "viewing: one" in shown)
        raise KeyboardInterrupt

    monkeypatch.setattr(ViewServer, "serve_forever", serve)
    assert main(["view", str(runs / "one")]) == 0 and answered == [True]
