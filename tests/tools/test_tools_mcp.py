"""MCP both ways: the same episode over every transport, strangers' servers as domains, our worlds for strangers."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marft_envs import check_env
from marft_envs.errors import ConfigError, DataError, MissingExtraError, WorkerError
from marft_envs.families.tools import Grade, ToolCall, ToolProblem, make, oracle
from marft_envs.families.tools.depot import Depot
from marft_envs.families.tools.parse import written
from tests.helpers.tools_tiny import tiny

mcp = pytest.importorskip("mcp", reason="MCP needs the extra: pip install -e '.[mcp]'")

from marft_envs.families.tools.mcp import MCPToolDomain, as_mcp_server  # noqa: E402

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ODD = [sys.executable, str(Path(__file__).parents[1] / "helpers/mcp_odd.py")]
SERVE = [sys.executable, "-m", "marft_envs.families.tools.mcp", "serve"]
LEVEL = 2
FAULTS = {"fail": 0.25, "slow": 0.2, "slow_s": 100.0, "stale": 0.3, "seed": 3}
WRONG = [
    '<tool_call>\n{"name": "get_order"',
    written([ToolCall("get_order", {"order": 999_999}), ToolCall("get_order", {"order": "ten"})]),
    written([ToolCall("no_such_tool", {})]),
    "Nothing yet.",
]


def call(name, /, **arguments):
    return written([ToolCall(name, arguments)])


def record(env, task_id, wrong=()):
    """Plays the oracle, with wrong replies at the start; returns who said what, and the transcript."""
    env.reset(seed=0, options={"task_id": task_id})
    wrong, said = list(wrong), []
    while not env.done:
        replies = {agent: wrong.pop(0) if wrong else oracle.reply(env, agent) for agent in env.ready_agents}
        for agent, text in replies.items():
            said.append((agent, text))
            env.select(agent)
            env.step(text)
    return said, transcript(env)


def replay(env, task_id, said):
    env.reset(seed=0, options={"task_id": task_id})
    for agent, text in said:
        env.select(agent)
        env.step(text)
    assert env.done
    return transcript(env)


def transcript(env):
    seen = {agent: env.observe(agent) for agent in env.possible_agents}
    log = [(entry.result, entry.line, entry.duplicate, entry.fault) for entry in env.task.live.log]
    # Over MCP nobody knows which tools the gold calls: it stays on the server.
    numbers = {name: n for name, n in env.episode.metrics.items() if not name.startswith("tool_selection_accuracy")}
    return dataclasses.replace(env.episode, metrics=numbers), env.state(), seen, log


# The same episode ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_process():
    with MCPToolDomain(Depot().as_mcp_server()) as domain:
        yield domain


@pytest.fixture(scope="module")
def pid_file(tmp_path_factory):
    return tmp_path_factory.mktemp("mcp") / "pid"


@pytest.fixture(scope="module")
def stdio(pid_file):
    command = ["sh", "-c", f'echo $$ > "{pid_file}"; exec "$@"', "sh", *SERVE, "--splits", "test"]
    with MCPToolDomain(command) as domain:
        yield domain


@pytest.fixture(scope="module")
def url():
    server = subprocess.Popen(
        [*SERVE, "--domain", "depot", "--splits", "test", "--transport", "http"], stdout=subprocess.PIPE, text=True
    )
    try:
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def http(url):
    with MCPToolDomain(url) as domain:
        yield domain


@pytest.mark.parametrize("transport", ["in_process", "stdio", "http"])
def test_the_same_episode_gives_the_same_transcript_and_reward(transport, request):
    domain = request.getfixturevalue(transport)
    returns = set()
    for team, wrong in (("solo", []), ("router", WRONG), ("supervisor", []), ("trio", WRONG), ("debate", WRONG)):
        plain = make(team, Depot(), split="test", levels=LEVEL, limit=5)
        over = make(team, domain, split="test", levels=LEVEL, limit=5)
        task_id = plain.task.eval_panel(5)[2]
        said, expected = record(plain, task_id, wrong)
        assert replay(over, task_id, said) == expected
        returns.add(round(expected[0].team_return, 6))
        over.close()
    assert len(returns) > 2 and max(returns) > 1  # some solve it, some do not: the comparison can fail


def test_a_team_of_user_and_agent_and_injected_faults_come_through(in_process):
    for args, team in (({"dual": True}, "dual_control"), ({"faults": FAULTS}, "router")):
        plain, domain = Depot(**args), MCPToolDomain(as_mcp_server(Depot(**args)))
        here, over = (make(team, by, split="test", levels=0, limit=3) for by in (plain, domain))
        for task_id in here.task.eval_panel(3):
            said, expected = record(here, task_id)
            assert replay(over, task_id, said) == expected
        domain.close()


def test_problems_come_from_the_server_without_their_gold(in_process):
    ours, theirs = Depot().problems("test", [0, LEVEL], 6), in_process.problems("test", [0, LEVEL], 6)
    for mine, got in zip(ours, theirs, strict=True):
        assert (got.id, got.turns, got.least_steps, got.level) == (mine.id, mine.turns, mine.least_steps, mine.level)
        assert got.secret is None
    assert theirs.get("depot/1/77").turns == ours.get("depot/1/77").turns
    with pytest.raises(DataError, match="not the id of a task"):
        theirs.get("depot/9/9")
    with pytest.raises(DataError, match="no split"):
        in_process.problems("middle")
    with pytest.raises(ConfigError, match="gold calls stay on the server"):
        in_process.oracle(theirs[0])


def test_user_turns_and_withheld_tools_come_through():
    domain = MCPToolDomain(as_mcp_server(tiny()))
    plain, over = make("solo", tiny()), make("solo", domain)
    said, expected = record(plain, "tiny/turns", [call("write_note", text="too early")])
    assert "withheld" in expected[1]
    assert replay(over, "tiny/turns", said) == expected
    domain.close()


# Copies ----------------------------------------------------------------------------------------------------------


def test_worlds_of_our_servers_are_forked_and_restored(in_process):
    plain = make("solo", Depot(), split="test", levels=LEVEL, limit=5)
    env = make("solo", in_process, split="test", levels=LEVEL, limit=5)
    task_id = plain.task.eval_panel(5)[1]
    plain.reset(seed=0, options={"task_id": task_id})
    gold = [written([c]) for c in plain.task.gold_calls[0]]
    env.reset(seed=0, options={"task_id": task_id})
    for text in gold[:2]:
        env.step(text)
    forks = env.fork(2)
    for text in [*gold[2:], call("finish")]:
        forks[0].step(text)
    forks[1].step(call("finish"))
    assert forks[0].episode.success and not forks[1].episode.success and not env.done
    world = env.task.live.world
    snapshot, before = world.snapshot(), world.state_hash()
    for text in gold[2:]:
        env.step(text)
    assert world.state_hash() != before
    world.restore(snapshot)
    assert world.call("calculate", {"expression": "2+3"}) == 5 and world.state_hash() == before


def test_a_domain_by_url_pickles_and_a_server_object_says_why_not(http, in_process):
    env = make("solo", http, split="test", levels=LEVEL, limit=5)
    env.reset(seed=0)
    env.step(call("add_stock", item="lamp", quantity=3))
    again = pickle.loads(pickle.dumps(env.task.live))  # elsewhere: another connection, the same state
    assert again.world.state_hash() == env.task.live.world.state_hash()
    assert again.world.call("get_stock", {"item": "lamp"}) == env.task.live.world.call("get_stock", {"item": "lamp"})
    env.close()
    again._open.func.__self__.close()
    with pytest.raises(ConfigError, match="function that makes the server"):
        pickle.dumps(in_process)


class Dice:
    """A world that cannot be repeated."""

    thrown = 0

    def __init__(self):
        self.seen = []

    def throw(self) -> int:
        """Throws."""
        Dice.thrown += 1
        self.seen.append(Dice.thrown)
        return Dice.thrown


def test_a_world_that_does_not_repeat_itself_is_not_copied():
    from marft_envs.families.tools import FunctionDomain

    problem = ToolProblem("dice/1", ("Throw.",), 1, secret={"calls": [[ToolCall("throw", {})]]})
    domain = MCPToolDomain(as_mcp_server(FunctionDomain(Dice, [problem], lambda state, p: 1.0, name="dice")))
    world = domain.open(domain.problems("train")[0])
    world.call("throw", {})
    other = copy.deepcopy(world)
    with pytest.raises(WorkerError, match="another state"):
        other.call("throw", {})
    domain.close()


# A server of ours dies -------------------------------------------------------------------------------------------


def test_a_server_that_dies_ends_the_episode_and_the_next_one_starts_it_again(stdio, pid_file):
    env = make("solo", stdio, split="test", levels=LEVEL, limit=5)
    plain = make("solo", Depot(), split="test", levels=LEVEL, limit=5)
    task_id = plain.task.eval_panel(5)[2]
    said, expected = record(plain, task_id)
    env.reset(seed=0, options={"task_id": task_id})
    env.step(call("calculate", expression="1+1"))
    pid = int(pid_file.read_text())
    os.kill(pid, signal.SIGKILL)
    env.step(call("calculate", expression="1+2"))
    assert env.done and env.episode.stop_reason == "world_crashed"
    assert "crashed" in env.task.live.log[-1].line and len(env.task.live.log) == 2
    assert "is gone" in env.task.live.fault
    assert replay(env, task_id, said) == expected  # on a new process
    assert int(pid_file.read_text()) != pid
    new = int(pid_file.read_text())
    stdio.close()
    with pytest.raises(ProcessLookupError):
        os.kill(new, 0)


def test_what_was_done_on_a_server_that_is_gone_is_graded_by_its_successor(in_process):
    env = make("solo", in_process, split="test", levels=LEVEL, limit=5)
    said, expected = record(make("solo", Depot(), split="test", levels=LEVEL, limit=5), env.task.eval_panel(5)[2])
    replay(env, env.task.eval_panel(5)[2], said)
    in_process.close()
    assert in_process.grade(env.task.problem, env.task.live.world).completion is expected[0].success is True


@pytest.mark.parametrize("how", ["call", "all", "stop"])
def test_a_server_of_ours_that_hangs_is_started_anew_for_the_next_episode(how, tmp_path):
    """Before: where it still gave a sign of life it was kept, though it could open no task any more."""
    command = [sys.executable, str(Path(__file__).parents[1] / "helpers/mcp_hangs.py"), str(tmp_path), how]
    with MCPToolDomain(command, timeout_s=1.0, start_s=20.0) as domain:
        env, other = make("solo", domain), make("solo", domain)
        other.reset(seed=0, options={"task_id": "tiny/one"})
        other.step(call("add", name="a", by=3))
        env.reset(seed=0, options={"task_id": "tiny/one"})
        env.step(call("hang"))
        assert (env.episode.stop_reason, env.episode.fault) == ("world_hung", "world")
        (first,) = tmp_path.glob("started-*")
        env.reset(seed=0, options={"task_id": "tiny/one"})
        for text in (call("hang"), call("add", name="a", by=3), call("finish")):
            env.step(text)
        assert env.episode.success and env.episode.turns[0].result == 'hang: "back"'
        (second,) = set(tmp_path.glob("started-*")) - {first}
        if how == "call":  # the other episode goes on where it was
            other.step(call("finish"))
            assert other.episode.success
        env.close()
        other.close()
        env.reset(seed=0)
        assert len(list(tmp_path.glob("started-*"))) == 2, "one server serves all episodes again"
        assert ended(int(first.name.removeprefix("started-"))), "nobody uses the old one any more"
    assert ended(int(second.name.removeprefix("started-")))


def ended(pid, seconds=15.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def depot_server(problem):
    return Depot().as_mcp_server()


def depot_oracle(problem):
    return Depot().oracle(Depot().problems("test", [0]).get(problem.id))


def test_the_environment_conforms():
    domain = MCPToolDomain(depot_server, oracle=depot_oracle)
    make("solo", domain, split="test", levels=0, limit=2).task.validate()
    check_env(lambda: make("router", domain, split="test", levels=0, limit=2))
    domain.close()


# Our worlds for strangers ----------------------------------------------------------------------------------------


def value(result):
    assert not result.is_error, result.content
    return result.structured_content["result"]


async def solve(client, task_id, calls, meta=None):
    """A stranger's team: starts a task, makes the calls, asks for the grade."""
    begun = value(await client.call_tool("marft_start_task", {"task_id": task_id, "handle": meta is not None}))
    meta = None if meta is None else {"marft/session": begun["session"]}
    for made in calls:
        await client.call_tool(made.name, dict(made.arguments), meta=meta)
    return value(await client.call_tool("marft_grade", {}, meta=meta))


def test_a_stock_client_works_on_our_world_and_clients_do_not_meet(url):
    domain = Depot()
    problem = domain.problems("test", [LEVEL], 1)[0]
    calls = domain.oracle(problem)[0]

    async def both(target, mode):
        async with mcp.Client(target, mode=mode) as one, mcp.Client(target, mode=mode) as two:
            for client in (one, two):
                found = value(
                    await client.call_tool("marft_list_tasks", {"split": "test", "levels": [LEVEL], "limit": 1})
                )
                assert found[0]["task_id"] == problem.id
            early = await one.call_tool("get_order", {"order": 10})
            assert early.is_error and "marft_start_task" in early.content[0].text
            assert (await solve(one, problem.id, calls))["completion"]
            lazy = await solve(two, problem.id, [])
            assert not lazy["completion"] and lazy["progress"] == 0
            assert value(await one.call_tool("marft_grade", {}))["completion"]
            bad = await one.call_tool("get_order", {"order": "ten"})
            assert bad.is_error and bad.meta["marft/error"] == "invalid_arguments"
            assert value(await one.call_tool("marft_end_task", {})) == "ended"
            assert (await one.call_tool("marft_grade", {})).is_error

    async def by_handle(target):
        async with mcp.Client(target, mode="2026-07-28") as client:  # HTTP without sessions
            refused = await client.call_tool("marft_start_task", {"task_id": problem.id})
            assert refused.is_error and "handle" in refused.content[0].text
            two = await asyncio.gather(solve(client, problem.id, calls, {}), solve(client, problem.id, [], {}))
            assert [grade["completion"] for grade in two] == [True, False]
            stranger = await client.call_tool("marft_grade", {}, meta={"marft/session": "guessed"})
            assert stranger.is_error

    for target in (as_mcp_server(domain), url):
        for mode in ("auto", "legacy"):
            asyncio.run(both(target, mode))
    asyncio.run(by_handle(url))


def test_what_the_server_shows_has_schemas_and_marks_and_no_gold(url):
    from mcp.client.streamable_http import streamable_http_client

    domain = Depot()
    problem = domain.problems("test", [LEVEL], 1)[0]
    gold = [c for c in domain.oracle(problem)[0] if not domain.tools[c.name].read_only]

    async def look():
        async with streamable_http_client(url) as streams, mcp.ClientSession(*streams[:2]) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools
            shown = [value(await session.call_tool("marft_list_tasks", {"task_id": problem.id, "levels": [LEVEL]}))]
            shown.append(value(await session.call_tool("marft_start_task", {"task_id": problem.id, "level": LEVEL})))
            shown.append(value(await session.call_tool("marft_grade", {})))
            return tools, json.dumps(shown)

    tools, shown = asyncio.run(look())
    for tool in tools:
        if tool.name in domain.tools:
            mine = domain.tools[tool.name]
            assert tool.input_schema == mine.parameters and tool.annotations.read_only_hint == mine.read_only
            assert tool.annotations.idempotent_hint == mine.idempotent
        else:
            assert tool.meta["marft/control"] and "not for agents" in tool.description
    assert len(tools) == len(domain.tools) + 5
    assert problem.turns[0] in json.loads(shown)[1]["request"]
    for made in gold:
        assert made.name not in shown.replace(domain.policy, "") or made.name in problem.turns[0]
    assert "secret" not in shown and "calls" not in shown


def test_a_domain_by_name_and_settings(url):
    env = make("router", "mcp", split="test", levels=0, limit=2, domain_args={"server": url})
    env.reset(seed=0)
    assert env.task.problem.id.startswith("depot/0/")
    env.close()
    env.task.domain.close()


def test_the_command_refuses_what_cannot_work():
    from marft_envs.families.tools.mcp.__main__ import main

    for arguments in (["--domain", "deport"], ["--domain-args", "[1]"], ["--domain-args", "{"]):
        with pytest.raises(SystemExit) as ended:
            main(["serve", *arguments])
        assert ended.value.code == 1


# Strangers' servers ----------------------------------------------------------------------------------------------

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
        "add: error (invalid_arguments): n must be at least 1",
        "fail: error (tool_error): It cannot be done.",
        "refuse: error (tool_error): no tools/call here",
        'total: "The total is 0."',
        'picture: [{"type": "image", "mimeType": "image/png"}, "a cat"]',
        'total: "The total is 0."',
    ]
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
    assert domain.grade(ADDED, env.task.live.world) == Grade(False, 0.0, {"server_lost": True})
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
        return Grade(False, 0.5) if said and world.ask("total", {}) == said[-1] else 0.0

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
    with pytest.raises(ConfigError, match="brings its problems"):
        MCPToolDomain(as_mcp_server(Depot()), [ADDED])
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
            ]
        )

    async def called(ctx, params):
        return mcp.types.CallToolResult(content=[mcp.types.TextContent(type="text", text='{"a": [1, 2]}')])

    server = Server("strange", on_list_tools=listed, on_call_tool=called)
    with pytest.raises(ConfigError, match=r"unevaluatedProperties.*tools=\["):
        MCPToolDomain(server, [ADDED])
    domain = MCPToolDomain(server, [ADDED], grade=lambda world, problem: 0.0, tools=["plain"])
    world = domain.open(ADDED)
    assert world.call("plain", {}) == {"a": [1, 2]}
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
        [sys.executable, str(source)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "completion 1" in done.stdout
