"""Traces as real packages write them: what a model said is read, each reply once, and nothing else.

``traced_sources.py`` plays programs against a model on this machine, each in a process with its instrumentation. What
the model was asked and said is compared with what ``marft_envs.records.traces`` reads of the trace.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from marft_envs.records.chats import ChatMessage
from marft_envs.records.traces import TracedTurn, read

HERE = Path(__file__).parent
AI_SDK = (
    "ai@6.0.326", "@ai-sdk/openai@3", "zod@4", "@opentelemetry/api@1", "@opentelemetry/sdk-trace-base@2",
    "@opentelemetry/context-async-hooks@2", "@opentelemetry/otlp-transformer",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """What is expected of a source."""

    needs: str
    """Modules, without which it is skipped."""
    said: int
    agents: str = "agent"
    """In the order in which they begin to speak."""
    handed: dict[tuple[str, str], int] = field(default_factory=dict)
    named: tuple[str, ...] = ()
    """How each line of what is unread ends."""
    without: tuple[int, int] = (0, 0)
    """How many prompts and replies the source does not write as they were."""
    calls: int = 0
    """Calls of tools that were carried out."""
    counted: bool = True
    """Whether it writes tokens."""


OTEL, OI = "opentelemetry.instrumentation", "openinference.instrumentation"
FAILED, CHOICE = "1 calls of a model failed, without a reply", "1 choices beside the first of a reply are left out"
EMBEDDED = "1 spans of 'embeddings' ({}) are no turns"
SDK = (CHOICE, FAILED, EMBEDDED.format("OpenTelemetry"))
OFF = "turns have no words: content capture is off, or log records are missing"
PARTS = "1 turns have a reply and no prompt"  # the package leaves content in parts out
TEAM = {"agents": "triage desk", "handed": {("triage", "desk"): 4}, "calls": 4}
GRAPH = {"agents": "triage desk agent", "handed": {("triage", "desk"): 1}, "calls": 1}
SOURCES = {
    "otel-openai-logs": Source(f"{OTEL}.openai_v2 openai", 7, named=SDK, calls=2),
    "otel-openai-span": Source(f"{OTEL}.openai_v2 openai", 7, named=(*SDK, PARTS), without=(1, 0), calls=2),
    "otel-openai-event": Source(f"{OTEL}.openai_v2 openai", 7, named=(*SDK, PARTS), without=(1, 0), calls=2),
    "otel-openai-both": Source(f"{OTEL}.openai_v2 openai", 7, named=(*SDK, PARTS), without=(1, 0), calls=2),
    "otel-openai-off": Source(
        f"{OTEL}.openai_v2 openai", 7, named=(*SDK, f"3 {OFF}", "a call of 'look' without its arguments"), without=(7, 7)
    ),
    "otel-genai-openai-span": Source(f"{OTEL}.genai.openai openai", 11, named=SDK, calls=3),
    "otel-genai-openai-event": Source(f"{OTEL}.genai.openai openai", 11, named=SDK, calls=3),
    "traceloop-openai": Source(f"{OTEL}.openai openai", 11, named=SDK, calls=3),
    # Of a reply of the responses API it writes the call a second time, as a text.
    "traceloop-langchain": Source(f"{OTEL}.langchain langchain", 6, without=(0, 1), **GRAPH),
    "openinference-openai": Source(f"{OI}.openai openai", 11, named=(CHOICE, FAILED, EMBEDDED.format("OpenInference")), calls=3),
    "openinference-langchain": Source(f"{OI}.langchain langchain", 6, **GRAPH),
    "openinference-agents": Source(f"{OI}.openai_agents agents", 8, **TEAM),
    "openinference-anthropic": Source(f"{OI}.anthropic anthropic", 4, calls=2),
    # It writes the calls of a prompt as texts.
    "openinference-smolagents": Source(f"{OI}.smolagents smolagents", 3, "desk", without=(1, 0), calls=2),
    "openinference-dspy": Source(f"{OI}.dspy dspy", 2, counted=False),
    "openinference-llama-index": Source(f"{OI}.llama_index llama_index", 6, calls=2),
    "openinference-crewai": Source(f"{OI}.crewai {OI}.openai crewai", 2, "Desk Writer", {("Desk", "Writer"): 1}),
    "logfire-openai": Source("logfire openai", 11, named=(CHOICE, FAILED, EMBEDDED.format("Logfire")), calls=3),
    "logfire-agents": Source("logfire agents", 8, **TEAM),
    "logfire-anthropic": Source("logfire anthropic", 4, calls=2),
    "logfire-pydantic-ai": Source(
        "logfire pydantic_ai", 16, "triage desk", {("triage", "desk"): 4, ("desk", "triage"): 4}, calls=8
    ),
    # Of the responses API it writes ids, no words.
    "agents-export": Source("agents", 8, named=(f"4 {OFF}",), without=(4, 4), **{**TEAM, "calls": 2}),
    "langsmith-openai": Source("langsmith langchain openai", 11, named=(CHOICE, FAILED), calls=3),
    "langsmith-langchain": Source("langsmith langchain", 6, **GRAPH),
    "langsmith-agents": Source("langsmith langchain agents", 8, **TEAM),
    "langfuse-openai": Source(
        "langfuse openai", 11, "desk agent", named=(CHOICE, FAILED, EMBEDDED.format("Langfuse")), calls=2
    ),
    "langfuse-langchain": Source("langfuse langchain", 6, **GRAPH),
    "ai-sdk": Source("openai", 8, "desk", named=(FAILED,), calls=4),
}  # fmt: skip


def there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def node_modules(cache: Path) -> Path:
    """Installs Vercel's AI SDK."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("ai-sdk: there is no node and npm, which Vercel's AI SDK needs")
    if not (cache / "node_modules" / "ai").is_dir():
        subprocess.run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", cache, *AI_SDK], check=True
        )
    return cache / "node_modules"


@pytest.fixture(scope="module", params=SOURCES)
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Path]:
    """A source, and the folder of its traces."""
    source, folder = SOURCES[request.param], tmp_path_factory.mktemp(request.param)
    if missing := [module for module in source.needs.split() if not there(module)]:
        pytest.skip(f"{request.param}: {', '.join(missing)} is of another group")
    env = (
        {**os.environ, "NODE_MODULES": str(node_modules(HERE.parent.parent / ".adapters" / "node"))}
        if request.param == "ai-sdk"
        else None
    )
    command = [sys.executable, str(HERE / "traced_sources.py"), request.param, str(folder)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return source, folder


def forms(folder: Path) -> list[Path]:
    return [file for name in ("trace", "otlp", "export") if (file := folder / f"{name}.jsonl").is_file()]


def turns_of(*files: Path) -> tuple[list[list[TracedTurn]], list[str], int]:
    traces, unread = read(files)
    return [trace.turns for trace in traces], unread, sum(len(trace.calls) for trace in traces)


def words(message: ChatMessage) -> str:
    """What a message says beside calls, and without what stands around results."""
    text = re.sub(r"<tool_call>.*?</tool_call>|</?tool_response>", "", message.content, flags=re.DOTALL)
    return " ".join(text.split())


def prompt_of(turn: TracedTurn) -> tuple[str, ...]:
    return tuple(sorted(filter(None, map(words, turn.prompt))))


def reply_of(turn: TracedTurn) -> str:
    return turn.said.content if turn.said else ""


def in_words(said: dict[str, Any]) -> str:
    calls = [{"name": call["name"], "arguments": call["arguments"]} for call in said["calls"]]
    return "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls) or said["words"]


def test_what_was_said_is_read(traced: tuple[Source, Path]) -> None:
    source, folder = traced
    said = json.loads((folder / "said.json").read_text())
    assert len(said) == source.said
    for file in forms(folder):
        traces, unread, calls = turns_of(file)
        turns = [turn for trace in traces for turn in trace]
        assert len(turns) == len(said), unread
        replies = Counter(map(in_words, said)) - Counter(map(reply_of, turns))
        asked = Counter(tuple(sorted(filter(None, (" ".join(text.split()) for text in one["asked"])))) for one in said)
        prompts = asked - Counter(map(prompt_of, turns))
        assert (prompts.total(), replies.total()) == source.without, (prompts, replies)
        tokens = Counter(tuple(one["tokens"]) if source.counted else (0, 0) for one in said)
        assert Counter((turn.prompt_tokens, turn.tokens) for turn in turns) == tokens
        assert {turn.model for turn in turns} <= {"m", *([""] if source.without[1] else [])}
        assert " ".join(dict.fromkeys(turn.agent for turn in turns)) == source.agents
        handed = Counter((a.agent, b.agent) for trace in traces for a, b in pairwise(trace) if a.agent != b.agent)
        assert handed == source.handed and calls == source.calls
        expected = [end for end in source.named if file.stem != "export" or "spans of" not in end]
        assert len(unread) == len(expected), unread
        assert all(any(line.endswith(end) for line in unread) for end in expected), unread


def test_forms_of_one_trace_are_read_once(traced: tuple[Source, Path]) -> None:
    source, folder = traced
    (folder / "again.jsonl").write_text("".join(file.read_text() for file in [*forms(folder), *forms(folder)]))
    traces, _, calls = turns_of(folder / "again.jsonl")
    assert sum(map(len, traces)) == source.said and calls == source.calls


def test_of_a_part_of_a_trace_nothing_is_invented(traced: tuple[Source, Path]) -> None:
    """Without any one span, log record or run: every other reply is there, and no reply that was not."""
    _, folder = traced
    file = forms(folder)[0]
    lines = file.read_text().splitlines()
    if len(lines) == 1:  # OTLP: a request of all spans
        [whole] = map(json.loads, lines)
        scopes = [scope for resource in whole["resourceSpans"] for scope in resource["scopeSpans"]]
        lines = [
            json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
            for scope in scopes
            for span in scope["spans"]
        ]
    whole_replies = Counter(reply_of(turn) for trace in turns_of(file)[0] for turn in trace if turn.said)
    for number in range(len(lines)):
        (folder / "part.jsonl").write_text("\n".join([*lines[:number], *lines[number + 1 :]]))
        traces, unread, _ = turns_of(folder / "part.jsonl")
        replies = Counter(reply_of(turn) for trace in traces for turn in trace if turn.said)
        assert not replies - whole_replies, lines[number][:500]
        assert (whole_replies - replies).total() <= 1, lines[number][:500]
        silent = [turn for trace in traces for turn in trace if not turn.said]
        assert not silent or unread
