"""MCP servers that misbehave: quick and clear errors, nothing too long for a prompt, and no process that stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from marft_envs.call_formats import written
from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import ConfigError, WorkerError
from marft_envs.families.tools import make
from marft_envs.families.tools.types import ToolProblem

pytest.importorskip("mcp", reason="needs the mcp extra")
from marft_envs.families.tools.mcp import MCPToolDomain

BAD = Path(__file__).parents[1] / "helpers/mcp_bad.py"
PROBLEM = ToolProblem("a", ("Do it.",), 1, secret={"expected": []})


def bad(*how: str, **settings: Any) -> MCPToolDomain:
    return MCPToolDomain([sys.executable, str(BAD), *how], [PROBLEM], **settings)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("how", "says"), [("deep", "recursion limit"), ("nonsense", "no MCP: .*not JSON|does not start: .*JSON")]
)
def test_what_cannot_be_read_is_a_quick_error(how: str, says: str) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerError, match=says):
        bad(how, start_s=300.0)
    assert time.monotonic() - started < 60, "not until start_s is over"


@pytest.mark.parametrize(("how", "says"), [
    ("description", r"tool 'tool0' has a description and schema of 50000\d\d characters.*tools=\["),
    ("many", "more than 1000 tools"), ("all", "50 tools have descriptions and schemas of"),
    ("text", r"offers what the protocol does not allow.*tools\.0\.inputSchema\.type: .*\"object\""),
    ("instructions", "instructions have 5000000 characters.*policy="),
])  # fmt: skip
def test_what_a_server_says_about_itself_fits_a_prompt(how: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        bad(how)
    if how == "instructions":
        bad(how, policy="Be short.").close()


def test_a_schema_that_says_nothing_is_that_of_a_tool_without_arguments() -> None:
    """The protocol wants a type; servers leave it out, and their other tools are as good."""
    domain = bad("empty")
    assert [tool.parameters["properties"] for tool in domain.tools.values()] == [{}, {}, {"x": {"type": "string"}}]
    env = make("solo", domain)
    env.reset(seed=0)
    env.step(written([ToolCall("tool0", {}), ToolCall("tool1", {"y": 1}), ToolCall("tool2", {"x": "a"})]))
    first, second, third = env.episode.turns[0].result.split("\n")
    assert first == 'tool0: "done"' and third == 'tool2: "done"'
    assert "invalid_arguments" in second and "y" in second
    domain.close()


def test_a_pattern_of_a_server_and_an_argument_of_a_policy() -> None:
    domain = bad("pattern")
    env = make("solo", domain)
    env.reset(seed=0)
    started = time.monotonic()
    text = "a" * 40 + "!"
    env.step(f'<tool_call>{{"name": "tool0", "arguments": {{"x": "{text}"}}}}</tool_call>')
    assert time.monotonic() - started < 60
    assert "too long to match" in env.task.live.log[0].line  # type: ignore[attr-defined]
    env.close()
    domain.close()


LEAVES = """
import os, signal, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/tools"]
from test_tools_mcp_hostile import bad
domain = bad("hang", {pids!r}, shared=True)
print("there", flush=True)
{end}
"""


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the guard looks once a second; /proc tells who is there")
@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_hung_server_does_not_outlive_its_client(end: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = LEAVES.format(tests=str(Path(__file__).parents[1]), pids=str(pids), end=end)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "there" in done.stdout, done.stderr
    processes = [int(pid) for pid in pids.read_text().split()]
    assert len(processes) == 2
    until = time.monotonic() + 30
    while left := [pid for pid in processes if _alive(pid)]:
        assert time.monotonic() < until, f"{left} of server and child are still there"
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_guard_passes_everything_on(tmp_path: Path) -> None:
    from marft_envs.families.tools.mcp import guard

    command = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid())]
    done = subprocess.run(
        [*command, "sh", "-c", "cat; echo words >&2; exit 7"], input=b"in", capture_output=True, start_new_session=True,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == (b"in", b"words\n", 7)
    done = subprocess.run(
        [*command, "sh", "-c", "kill -9 $$"], capture_output=True, start_new_session=True, check=False
    )
    assert done.returncode == 128 + signal.SIGKILL
    done = subprocess.run([*command, "/nowhere/at/all"], capture_output=True, start_new_session=True, check=False)
    assert done.returncode == 127 and b"/nowhere/at/all" in done.stderr
