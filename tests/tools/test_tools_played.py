"""Every domain of tools under every team, on its real data or package: text goes in, an observation comes out.

Nothing here reaches past the public interface: an agent's observation is rendered before it answers, and what it answers
is text. A domain whose package or data is not here is skipped, and with ``--require-real`` (``make test-real``) a skip is
a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers.tools_tiny import PROBLEMS, SPECIALISTS, tiny
from marft_envs import check_env
from marft_envs.call_formats import parse, written
from marft_envs.core.env import FlexEnv
from marft_envs.families.tools import TEAMS, ToolCall, ToolProblem, make, oracle
from marft_envs.families.tools.bfcl import BfclDomain
from marft_envs.families.tools.depot import Depot
from marft_envs.families.tools.mcp import MCPToolDomain
from marft_envs.families.tools.tau import TauDomain
from marft_envs.families.tools.tau2 import Tau2Domain
from marft_envs.testing.played import sampled
from tests.helpers import bfcl_upstream as upstream
from tests.helpers import tau2_upstream as packages

EPISODES = 10
"""Every style once, and as many that are sampled."""
SERVERS = (
    "no python with public MCP servers: make test-real installs them, or set MARFT_TEST_MCP_PYTHON to the python of an "
    "environment with tests/real/servers.txt"
)

# The domains -------------------------------------------------------------------------------------------


def depot(request: pytest.FixtureRequest, folder: Path) -> Callable[[str], Any]:
    return lambda team: Depot(dual=team in ("dual_control", "service"))


def functions(request: pytest.FixtureRequest, folder: Path) -> Callable[[str], Any]:
    return lambda team: tiny()


def bfcl(request: pytest.FixtureRequest, folder: Path) -> Callable[[str], Any]:
    there, package = upstream.place()
    if not there:
        pytest.skip(upstream.ABSENT)
    domain = BfclDomain(package=package)
    return lambda team: domain


def tau(request: pytest.FixtureRequest, folder: Path) -> Callable[[str], Any]:
    found = request.getfixturevalue("shared_data") / "tools" / "tau"
    if not found.is_dir():
        pytest.skip(f"no retail files at {found.name}/ in the data folder")
    domain = TauDomain(found)
    return lambda team: domain


def tau2(name: str, team: str) -> Tau2Domain:
    there, package = packages.place()
    if not there:
        pytest.skip(packages.ABSENT)
    return Tau2Domain(name, package=package, dual=team in ("dual_control", "service"))


def server(name: str) -> str:
    python = os.environ.get("MARFT_TEST_MCP_PYTHON")
    if not python:
        pytest.skip(SERVERS)
    return str(Path(python).with_name(name))


def noticed(words: str, world: Any, problem: ToolProblem) -> float:
    """Whether some call's result holds these words."""
    return float(any(words in str(past.value) for past in world.history))


def mcp_git(request: pytest.FixtureRequest, folder: Path) -> Callable[[str], Any]:
    """mcp-server-git on one repository that is only looked at: one process for all episodes."""
    command = server("mcp-server-git")
    git = ("git", "-C", str(folder), "-c", "user.name=Ada", "-c", "user.email=ada@lo")
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "blue lamps"]):
        subprocess.run([*git, *words], check=True)
    gold = [[ToolCall("git_log", {"repo_path": str(folder), "max_count": 1})]]
    problem = ToolProblem("git/1", (f"What was the last change in {folder} about?",), 1, secret={"calls": gold})
    names = ("git_log", "git_status", "git_show")
    domain = MCPToolDomain(
        [command, "--repository", str(folder)], [problem], partial(noticed, "blue lamps"), tools=names, read_only=names,
        specialists={"history": ["git_log", "git_show"]}, shared=True,
    )  # fmt: skip
    request.addfinalizer(domain.close)
    return lambda team: domain


def mcp_sqlite(request: pytest.FixtureRequest, folder: Path) -> Callable[[str], Any]:
    """mcp-server-sqlite on an empty database that is only read: one process for all episodes."""
    command = server("mcp-server-sqlite")
    gold = [[ToolCall("list_tables", {}), ToolCall("read_query", {"query": "SELECT 6 * 7 AS answer"})]]
    problem = ToolProblem("sqlite/1", ("Which tables are there? And 6 times 7?",), 2, secret={"calls": gold})
    names = ("list_tables", "read_query")
    domain = MCPToolDomain(
        [command, "--db-path", str(folder / "empty.db")], [problem], partial(noticed, "42"), tools=names, read_only=names,
        specialists={"tables": ["list_tables"], "rows": ["read_query"]}, shared=True,
    )  # fmt: skip
    request.addfinalizer(domain.close)
    return lambda team: domain


def mcp_own(request: pytest.FixtureRequest, folder: Path) -> Callable[[str], Any]:
    """The tiny domain's tools behind a server of the package ``mcp``, in this process."""
    pytest.importorskip("mcp", reason="MCP needs the extra: pip install -e '.[mcp]'")
    from tests.helpers.mcp_shelf import judged, shelf

    domain = MCPToolDomain(
        shelf, PROBLEMS, judged, tools=[name for names in SPECIALISTS.values() for name in names],
        specialists=SPECIALISTS, user_tools=("write_note", "read_notes"),
    )  # fmt: skip
    request.addfinalizer(domain.close)
    return lambda team: domain


DOMAINS = {
    "depot": depot, "functions": functions, "bfcl": bfcl, "tau": tau, "mcp-git": mcp_git, "mcp-sqlite": mcp_sqlite,
    "mcp-own": mcp_own,
}  # fmt: skip
TAU2 = (
    ("retail", "router"), ("airline", "dual_control"), ("telecom", "dual_control"), ("telecom", "solo"),
    ("banking_knowledge", "service"),
)  # fmt: skip
"""Their databases are large, so that not every team works on every one."""
OVER_MCP = ("solo", "dual_control", "debate")
"""One agent, one whose partner has tools of its own, and several that answer before one calls."""


def pace(domain: str, team: str) -> list[Any]:
    """Two teams of each domain are checked by the fast suite."""
    if domain == "mcp-own" and team not in OVER_MCP:
        return [pytest.mark.slow]
    return [] if team in ("solo", "trio") else [pytest.mark.ci]


@pytest.fixture(scope="module", params=DOMAINS)
def domain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    return DOMAINS[request.param](request, tmp_path_factory.mktemp(request.param))


# What an agent does -----------------------------------------------------------------------------------

STYLES: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "hermes": lambda calls: "\n".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls),
    "fenced": lambda calls: f"I will do this:\n```json\n{json.dumps(calls)}\n```",
    "bare": lambda calls: json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False),
    "parameters": lambda calls: json.dumps([{"name": c["name"], "parameters": c["arguments"]} for c in calls]),
    "thoughtful": lambda calls: f"<think>Which one? Now I know.</think>{written([ToolCall(**call) for call in calls])}",
}
"""The forms in which models write calls and that the documentation promises to read."""


def styled(text: str, style: str) -> str:
    """The reply in a style; one with words beside its calls, which a style has no room for, as it is."""
    reply = parse(text)
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in reply.calls]
    return STYLES[style](calls) if calls and not reply.words else text


def read(env: FlexEnv, agent: str) -> str:
    """What the agent is shown, and that it is what it has to be."""
    shown = env.observe(agent)
    assert env.observation_space(agent).contains(shown), agent
    if agent == env.agent_selection:
        assert env.last()[0] == shown
    text = "\n".join(message["content"] for message in env.messages(agent))
    for tool in env.tools[agent]:
        assert tool["function"]["name"] in text, f"{agent} does not see {tool['function']['name']}"
    task = env.unwrapped.task
    words = task.problem.turns[task.user_turn].split("\n")[0].strip()[:20]
    if task.team.user in ("", agent):
        assert words in text, f"{agent} does not read what the user says"
    return text


def plays(env: FlexEnv, seed: int, reply: Callable[[FlexEnv, str], str], **options: Any) -> Any:
    env.reset(seed=seed, options=options)
    told: dict[str, str] = {}
    while not env.done:
        said = {}
        for agent in env.ready_agents:
            text = read(env, agent)
            assert told.pop(agent, "").split("<")[0][:40] in text, f"{agent} does not see what came of its calls"
            said[agent] = reply(env, agent)
            assert env.action_space(agent).contains(said[agent])
        for agent, text in said.items():
            env.select(agent)
            env.step(text)
        told |= {turn.agent: turn.result for turn in env.episode.turns[-len(said) :]}
    return env.episode


@pytest.fixture(params=TEAMS)
def env(request: pytest.FixtureRequest, domain: Callable[[str], Any]) -> Iterator[FlexEnv]:
    made = make(request.param, domain(request.param), split="train")
    yield made
    made.close()


@pytest.mark.parametrize(("name", "team"), TAU2)
def test_tau2_is_played_as_text_and_keeps_the_rules(name: str, team: str) -> None:
    domain = tau2(name, team)
    test_agents_play_by_reading_and_writing_text(make(team, domain, split="train", max_idle=12))
    test_marft_check_is_green(make(team, domain, split="train", max_turns=4, max_idle=3, limit=8))


def test_agents_play_by_reading_and_writing_text(env: FlexEnv) -> None:
    ids = env.unwrapped.task.evaluation_set(EPISODES)
    for number in range(EPISODES):
        if number % 2:
            episode = plays(env, number, sampled(number))
            assert episode.stop_reason in ("task", "stalled", "max_turns", "max_calls"), episode.info
            continue
        style = list(STYLES)[number // 2 % len(STYLES)]
        episode = plays(
            env,
            number,
            lambda env, agent, style=style: styled(oracle.reply(env, agent), style),
            task_id=ids[number % len(ids)],
        )
        assert episode.success and episode.stop_reason == "task", (episode.task_id, style, episode.info)
        assert not episode.metrics["malformed"] and not episode.metrics["refusals"]


@pytest.fixture
def brief(request: pytest.FixtureRequest, domain: Callable[[str], Any]) -> Iterator[FlexEnv]:
    """The same with short episodes: conformance plays a hundred of them, with replies of a million characters."""
    made = make(request.param, domain(request.param), split="train", max_turns=8, max_idle=3)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("domain", "brief"),
    [pytest.param(name, team, marks=pace(name, team)) for name in DOMAINS if name != "depot" for team in TEAMS],
    indirect=True,
)
def test_marft_check_is_green(brief: FlexEnv) -> None:
    """The depot's teams have ids, and ``tests/envs/test_conformance.py`` checks every id.

    A world of MCP is a session that is opened for each of a hundred episodes: three teams show it, and the domain of the
    same tools without a server (``functions``) is checked under every team.
    """
    report = check_env(brief)
    assert len(report.passed) == 16, str(report)
