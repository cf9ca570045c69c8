"""MCP servers as domains: over every transport, of the package ``mcp`` and of the standard library, well and badly behaved."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marft_envs import check_env
from marft_envs.call_formats import written
from marft_envs.errors import ConfigError, DataError, MissingExtraError, WorkerError
from marft_envs.families.tools import StateGrade, ToolCall, ToolError, ToolProblem, make, oracle
from tests.helpers.tools_tiny import PROBLEMS, SPECIALISTS, tiny

mcp = pytest.importorskip("mcp", reason="MCP needs the extra: pip install -e '.[mcp]'")

from marft_envs.families.tools.mcp import MCPToolDomain  # noqa: E402
from tests.helpers.mcp_shelf import judged, shelf  # noqa: E402

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ODD = [sys.executable, str(Path(__file__).parents[1] / "helpers/mcp_odd.py")]
SHELF = [sys.executable, str(Path(__file__).parents[1] / "helpers/mcp_shelf.py")]
WRONG = [
    '<tool_call>\n{"name": "add"',
    written([ToolCall("read_counter", {"name": "z"}), ToolCall("add", {"name": "a", "by": "ten"})]),
    written([ToolCall("no_such_tool", {})]),
    "Nothing yet.",
]


def call(name, /, **arguments):
    return written([ToolCall(name, arguments)])


# The same episode ------------------------------------------------------------------------------------------------


def shelved(server, **settings):
    roles = {"specialists": SPECIALISTS, "user_tools": ("write_note", "read_notes")}
    tools = [name for names in SPECIALISTS.values() for name in names]
    return MCPToolDomain(server, PROBLEMS, judged, tools=tools, **roles, **settings)


@pytest.fixture(scope="module")
def in_process():
    with shelved(shelf) as domain:
        yield domain


@pytest.fixture(scope="module")
def stdio():
    with shelved([*SHELF, "stdio"]) as domain:
        yield domain


@pytest.fixture
def http():
    server = subprocess.Popen([*SHELF, "http"], stdout=subprocess.PIPE, text=True)
    try:
        with shelved(server.stdout.readline().strip()) as domain:
            yield domain
    finally:
        server.terminate()
        server.wait()


def record(env, task_id, wrong=()):
    """Plays the oracle, with wrong replies at the start; returns what the agents were shown of it, and the return."""
    env.reset(seed=0, options={"task_id": task_id})
    wrong = list(wrong)
    while not env.done:
        replies = {agent: wrong.pop(0) if wrong else oracle.reply(env, agent) for agent in env.ready_agents}
        for agent, text in replies.items():
            env.select(agent)
            env.step(text)
    log = [(entry.line, entry.fault) for entry in env.task.live.log]
    return log, env.episode.success, round(env.episode.team_return, 6)


@pytest.mark.parametrize("transport", ["in_process", "stdio"])
@pytest.mark.parametrize(("team", "wrong"), [("solo", []), ("router", WRONG), ("dual_control", []), ("trio", WRONG)])
def test_the_same_episode_gives_the_same_calls_and_reward_as_without_mcp(transport, team, wrong, request):
    plain, over = make(team, tiny()), make(team, request.getfixturevalue(transport))
    log, success, score = record(plain, "tiny/two", wrong)
    theirs = record(over, "tiny/two", wrong)
    assert theirs[1:] == (success, score) and len(theirs[0]) == len(log)
    assert [fault for _, fault in theirs[0]] == [fault for _, fault in log]
    assert [line.partition(":")[0] for line, _ in theirs[0]] == [line.partition(":")[0] for line, _ in log]
    over.close()


def test_over_http_one_server_serves_one_episode_after_another(http):
    """It is one process with one state, so the second episode finds what the first has done."""
    assert record(make("solo", http), "tiny/one")[1]
    assert not record(make("solo", http), "tiny/one")[1]


def test_user_turns_and_withheld_tools_come_through(in_process):
    early = [call("write_note", text="too early")]
    over, plain = (record(make("solo", domain), "tiny/turns", early) for domain in (in_process, tiny()))
    assert "withheld" in over[0][0][0] and over[0][0] == plain[0][0] and over[1:] == plain[1:]
    assert record(make("solo", in_process), "tiny/turns")[1]


def test_the_environment_conforms(in_process):
    make("solo", in_process).task.validate()
    check_env(lambda: make("router", in_process))


def test_a_domain_by_name_and_settings():
    env = make("solo", "mcp", domain_args={"server": shelf, "problems": PROBLEMS, "grade": judged})
    env.reset(seed=0)
    assert env.task.problem.id.startswith("tiny/")
    env.close()
    env.task.domain.close()


def test_a_domain_by_command_pickles_and_a_server_object_says_why_not(stdio):
    again = pickle.loads(pickle.dumps(stdio))
    assert record(make("solo", again), "tiny/one")[1]
    again.close()
    with MCPToolDomain(shelf(), PROBLEMS, judged) as domain, pytest.raises(ConfigError, match="function that makes"):
        pickle.dumps(domain)


# Servers that behave oddly ---------------------------------------------------------------------------------------

ADDED = ToolProblem(
    "odd/1",
    ("Bring the total to seven.",),
    2,
    secret={
        "calls": [[ToolCall("add", {"n": 3}), ToolCall("add", {"n": 4})]],
        "expected": [(ToolCall("total", {}), "The total is 7.")],
    },
)


def odd(**settings):
    return MCPToolDomain(ODD, settings.pop("problems", [ADDED]), **{"timeout_s": 20.0, **settings})


def lines(env):
    return [entry.line for entry in env.task.live.log]


def test_a_strangers_server_is_a_domain_with_a_fresh_process_for_each_episode():
    domain = odd()
    assert domain.policy == "Count with care."
    assert domain.tools["total"].read_only and not domain.tools["add"].read_only
    assert domain.tools["add"].parameters["additionalProperties"] is False
    env = make("solo", domain)
    for _ in range(2):
        assert oracle.play(env, seed=0).success
    env.task.validate()
    env.reset(seed=0)
    for text in (call("add", n=0), call("fail"), call("refuse"), call("total"), call("picture"), call("total")):
        env.step(text)
    assert lines(env) == [
        "add: error (invalid_arguments): n must be at least 1", "fail: error (tool_error): It cannot be done.",
        "refuse: error (tool_error): no tools/call here", 'total: "The total is 0."',
        'picture: [{"type": "image", "mimeType": "image/png"}, "a cat"]', 'total: "The total is 0."',
    ]  # fmt: skip
    assert [entry.duplicate for entry in env.task.live.log] == [False] * 5 + [True]
    for text in [call("add", n=2), call("total")] * 3:
        env.step(text)
    assert [entry.duplicate for entry in env.task.live.log[6:]] == [False, False, False, True, True, True]
    with pytest.raises(ConfigError, match="cannot be copied"):
        env.fork(2)
    env.close()
    domain.close()


def test_a_result_of_10_mb_is_cut_like_everywhere():
    domain = odd()
    env = make("solo", domain, max_result_chars=100)
    env.reset(seed=0)
    env.step(call("big", n=10_000_000))
    (line,) = lines(env)
    assert line.startswith("big: error (too_large): the result has 10000002 characters") and len(line) < 300
    env.step(call("add", n=7))
    env.step(call("finish"))
    assert env.episode.success
    env.close()
    domain.close()


def test_a_strangers_server_that_dies_or_hangs_is_started_again():
    domain = odd(timeout_s=1.0)
    env = make("solo", domain)
    for end, reason, code in (("die", "world_crashed", "crashed"), ("hang", "world_hung", "timeout")):
        env.reset(seed=0)
        env.step(call("add", n=7))
        env.step(call(end))
        assert env.done and env.episode.stop_reason == reason and not env.episode.success
        assert len(env.episode.turns) == 2 and f"error ({code})" in lines(env)[1]
        assert end != "die" or "I cannot go on" in env.task.live.fault
    assert oracle.play(env, seed=0).success
    env.reset(seed=0)
    env.step(call("add", n=7))
    env.task.live.world._connection.close()  # the server goes between two calls
    env.step(call("finish"))
    assert env.episode.stop_reason == "task" and not env.episode.success
    assert domain.grade(ADDED, env.task.live.world) == StateGrade(False, 0.0, {"server_lost": True})
    env.close()
    domain.close()


def test_a_shared_server_that_hangs_is_started_again_for_the_next_episode():
    domain = odd(timeout_s=1.0, shared=True)
    env = make("solo", domain)
    env.reset(seed=0)
    env.step(call("hang"))
    assert env.episode.stop_reason == "world_hung"
    assert oracle.play(env, seed=0).success
    env.close()
    domain.close()


@pytest.mark.parametrize(("how", "says"), [("cut", "Invalid JSON"), ("shape", "result"), ("deep", "recursion")])
def test_an_answer_that_is_no_mcp_is_said_at_once_and_is_the_worlds_fault(how, says):
    """Before: ``timeout`` and ``world_hung`` after the whole ``timeout_s``, 30 s by default."""
    domain = odd(timeout_s=60.0)
    env = make("solo", domain)
    env.reset(seed=0)
    began = time.monotonic()
    env.step(call("mumble", how=how))
    assert time.monotonic() - began < 10
    episode = env.episode
    assert (episode.stop_reason, episode.fault) == ("world_crashed", "world") and episode.metrics["error_rate"] == 0
    assert "is no MCP" in episode.info["world_error"] and says in episode.info["world_error"]
    assert oracle.play(env, seed=0).success, "the next episode has a server of its own"
    env.close()
    domain.close()


def test_a_server_that_answers_nonsense_from_the_start_is_not_waited_for():
    server = 'import sys\nfor line in sys.stdin: print(\'{"jsonrpc": "2.0", "id": 1, "result": 5}\', flush=True)'
    began = time.monotonic()
    with pytest.raises(WorkerError, match="does not start: its answer is no MCP message"):
        MCPToolDomain([sys.executable, "-c", server], [ADDED], start_s=60.0)
    assert time.monotonic() - began < 20


def test_a_server_that_prints_between_its_answers_is_understood():
    domain = odd()
    env = make("solo", domain)
    env.reset(seed=0)
    env.step(call("chat"))
    assert lines(env) == ['chat: "done"'] and not env.done
    env.close()
    domain.close()


def test_an_episode_whose_server_is_lost_before_its_grade_counts_nowhere():
    domain = odd()
    env = make("solo", domain)
    env.reset(seed=0)
    env.step(call("add", n=7))
    env.task.live.world._connection.close()
    env.step(call("finish"))
    assert env.episode.fault == "world"
    env.close()
    domain.close()


def test_grading_by_a_function_over_results_and_the_server():
    def grade(world, problem):
        said = [past.value for past in world.history if past.ok and past.call.name == "total"]
        return StateGrade(False, 0.5) if said and world.ask("total", {}) == said[-1] else 0.0

    domain = odd(problems={"train": [ADDED]}, grade=grade, shared=True, tools=["add", "total"], read_only=["add"])
    assert set(domain.tools) == {"add", "total"} and domain.tools["add"].read_only
    env = make("dual", domain, reward="progress")
    for replies, worth in ((["", call("total"), call("finish")], 0.5), (["", call("add", n=1), call("finish")], 0.0)):
        env.reset(seed=0)
        for text in replies:
            if not env.done:
                env.step(text)
        assert env.done and env.episode.team_return == worth
    with pytest.raises(DataError, match="no split 'test'"):
        domain.problems("test")
    assert domain.connection() is domain.connection(ADDED)  # shared: one process
    domain.close()


def test_what_cannot_work_is_said_before_anything_starts(monkeypatch):
    with pytest.raises(ConfigError, match="has tools, but no problems"):
        MCPToolDomain(ODD)
    with pytest.raises(ConfigError, match=r"no tool 'ad'\. Did you mean 'add'"):
        odd(tools=["ad"])
    with pytest.raises(WorkerError, match="does not start"):
        MCPToolDomain([sys.executable, "-c", "raise SystemExit('no such luck')"], [ADDED])
    with pytest.raises(WorkerError, match="does not start"):
        MCPToolDomain("http://127.0.0.1:9/mcp", [ADDED])
    with pytest.raises(ConfigError, match="A command is a list"):
        MCPToolDomain("mcp-server-time", [ADDED])
    with pytest.raises(ConfigError, match="not an MCP server"):
        MCPToolDomain(7, [ADDED])
    domain = odd(problems=[ToolProblem("odd/2", ("?",), 1)])
    with pytest.raises(ConfigError, match="How is 'odd/2' graded"):
        domain.open(domain.problems("train")[0])
    domain.close()
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[mcp\]'"):
        MCPToolDomain(ODD, [ADDED])


def test_a_servers_schema_that_is_not_understood_is_named():
    from mcp.server import Server

    async def listed(ctx, params):
        schema = {"type": "object", "properties": {"x": {"type": "string"}}, "unevaluatedProperties": False}
        return mcp.ListToolsResult(
            tools=[
                mcp.Tool(name="strange", input_schema=schema),
                mcp.Tool(name="plain", input_schema={"type": "object"}),
            ],
            next_cursor="",
        )

    async def called(ctx, params):
        if failing:
            return mcp.types.CallToolResult(content=[], structured_content={"error": "no row 7"}, is_error=True)
        return mcp.types.CallToolResult(content=[mcp.types.TextContent(type="text", text='{"a": [1, 2]}')])

    failing = []
    server = Server("strange", on_list_tools=listed, on_call_tool=called)
    with pytest.raises(ConfigError, match=r"unevaluatedProperties.*tools=\["):
        MCPToolDomain(server, [ADDED])
    domain = MCPToolDomain(server, [ADDED], grade=lambda world, problem: 0.0, tools=["plain"])
    world = domain.open(ADDED)
    assert world.call("plain", {}) == {"a": [1, 2]}
    failing.append(True)
    with pytest.raises(ToolError, match="no row 7"):
        world.call("plain", {})
    domain.close()


# A public server -------------------------------------------------------------------------------------------------


def test_a_public_server_works_as_a_domain(tmp_path):
    python = os.environ.get("MARFT_TEST_MCP_PYTHON")
    if not python:
        pytest.skip("set MARFT_TEST_MCP_PYTHON to the python of a venv with mcp-server-sqlite and 'mcp<2'")
    file = tmp_path / "shop.db"

    def prepared(problem):
        file.unlink(missing_ok=True)
        return [str(Path(python).with_name("mcp-server-sqlite")), "--db-path", str(file)]

    calls = [
        ToolCall("create_table", {"query": "create table stock (item text, n integer)"}),
        ToolCall("write_query", {"query": "insert into stock values ('lamp', 7)"}),
    ]
    expected = [(ToolCall("read_query", {"query": "select item, n from stock"}), "[{'item': 'lamp', 'n': 7}]")]
    problem = ToolProblem(
        "shop/1",
        ("Note in a table 'stock' that there are 7 lamps.",),
        2,
        secret={"calls": [calls], "expected": expected},
    )
    roles = {"schema": ["create_table", "list_tables", "describe_table"], "rows": ["read_query", "write_query"]}
    with MCPToolDomain(prepared, [problem], specialists=roles, read_only=["read_query", "list_tables"]) as domain:
        env = make("router", domain)
        episode = oracle.play(env, seed=0)
        assert episode.success and episode.stop_reason == "task"
        assert "write_query: \"[{'affected_rows': 1}]\"" in env.state()
        env.reset(seed=0)
        env.step("rows")
        env.step(call("write_query", query="insert into stock values ('lamp', 7)"))
        assert "no such table" in lines(env)[0]
        env.close()


def test_the_example_is_short_and_runs(tmp_path):
    source = ROOT / "examples" / "mcp_team.py"
    assert len(source.read_text(encoding="utf-8").splitlines()) <= 60
    done = subprocess.run(
        [sys.executable, str(source)], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "completion 1" in done.stdout
