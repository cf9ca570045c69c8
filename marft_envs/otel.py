"""Finished episodes as OpenTelemetry spans, for the tools that show traces.

    python -m marft_envs.otel RUN_OR_FILE [--content] [--start-ns N]     # one span per line, as JSON

An episode is a trace: ``invoke_workflow`` around the episode, ``invoke_agent`` per turn, ``execute_tool`` per call. A
turn links to the turns that it saw, so the trace holds D. Names are those of OpenTelemetry's semantic conventions for
generative AI, version 1.41.0 (in development there), and ``marft.*`` for what these have no name for.

**No time in a span was measured.** A record has none, so time is logical: a layer takes a millisecond, and the calls of
a turn share it evenly; every trace begins at ``start_ns``. Ids are hashes of the record, so the same record gives the
same spans.

Needs the extra ``otel``. What agents said and what tools returned is exported only with ``content``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft_envs import trajectory
from marft_envs.errors import DataError, MarftError, MissingExtraError
from marft_envs.types import Episode, TurnRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

SEMCONV = "1.41.0"
"""Version of the semantic conventions whose names are used here."""

LAYER_NS = 1_000_000
"""Logical nanoseconds of a layer."""

_BATCH = 512


def spans(episode: Episode, number: int = 0, content: bool = False, start_ns: int = 0) -> list[ReadableSpan]:
    """Returns the spans of a finished episode, parents first.

    Args:
        episode: As :mod:`marft_envs.trajectory` reads it, or ``env.episode``.
        number: Tells equal episodes apart.
        content: Put in what agents were told and said, and arguments and results of calls.
        start_ns: Nanoseconds since 1970 at which the logical time begins.

    Raises:
        MissingExtraError: ``opentelemetry-sdk`` is not installed.
    """
    return _Trace(episode, number, content, start_ns).spans()


def export(
    source: str | Path | Iterable[Episode], exporter: SpanExporter, content: bool = False, start_ns: int = 0
) -> int:
    """Hands the spans of episodes to an exporter.

    Args:
        source: A JSONL file of episodes, a run's folder (its ``episodes/*.jsonl``), or episodes.
        exporter: Anything that is an OpenTelemetry ``SpanExporter``; flushed, not shut down.
        content: See :func:`spans`.
        start_ns: See :func:`spans`.

    Returns:
        How many episodes were exported.

    Raises:
        DataError: There are no episodes, a line is none, or the exporter says that it failed.
        MissingExtraError: ``opentelemetry-sdk`` is not installed.
    """
    count, waiting = 0, list[Any]()
    for episode in _episodes(source) if isinstance(source, str | Path) else source:
        waiting += spans(episode, count, content, start_ns)
        count += 1
        if len(waiting) >= _BATCH:
            _send(exporter, waiting)
            waiting = []
    if not count:
        raise DataError("There is no episode to export. Expected a JSONL file of episodes, or a run's folder.")
    _send(exporter, waiting)
    exporter.force_flush()
    return count


def _send(exporter: SpanExporter, batch: Sequence[ReadableSpan]) -> None:
    from opentelemetry.sdk.trace.export import SpanExportResult

    if batch and exporter.export(batch) is not SpanExportResult.SUCCESS:
        raise DataError(f"{type(exporter).__name__} did not take {len(batch)} spans. Is its endpoint there?")


def _episodes(path: str | Path) -> Iterator[Episode]:
    path = Path(path)
    files = [path] if path.is_file() else sorted(path.glob("episodes/*.jsonl")) or sorted(path.glob("episodes.jsonl"))
    if not files:
        raise DataError(f"{path} is no JSONL file and no folder with episodes/*.jsonl or episodes.jsonl.")
    for file in files:
        yield from trajectory.read(file)


class _Trace:
    """Makes the spans of one episode."""

    def __init__(self, episode: Episode, number: int, content: bool, start_ns: int) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk import resources
            from opentelemetry.sdk import trace as sdk
            from opentelemetry.sdk.util import instrumentation
        except ImportError as error:
            raise MissingExtraError("OpenTelemetry export", "otel") from error
        self.api, self.sdk = trace, sdk
        self.episode, self.content, self.start = episode, content, start_ns
        record = json.dumps(trajectory.to_dict(episode), sort_keys=True)
        self.digest = hashlib.sha256(f"{number}\n{record}".encode()).digest()
        self.resource = resources.Resource({"service.name": "marft"})
        self.scope = instrumentation.InstrumentationScope("marft_envs.otel", schema_url=_SCHEMA)
        self.links = {turn.index: self.context(f"turn {turn.index}") for turn in episode.turns}

    def context(self, path: str) -> Any:
        """The identity of the span at a path; ids of zeros are invalid, and a hash is practically never that."""
        span = hashlib.sha256(self.digest + path.encode()).digest()[:8]
        ids = int.from_bytes(self.digest[:16], "big"), int.from_bytes(span, "big")
        return self.api.SpanContext(*ids, is_remote=False, trace_flags=self.api.TraceFlags(1))

    def span(self, path: str, parent: str | None, name: str, when: tuple[int, int], given: dict[str, Any]) -> Any:
        """One span; ``error.type`` among its attributes makes it one of an error."""
        failed = "error.type" in given
        code = self.api.StatusCode.ERROR if failed else self.api.StatusCode.UNSET
        sees = given.get("marft.sees", ())
        return self.sdk.ReadableSpan(
            _sound(name),
            context=self.context(path),
            parent=self.context(parent) if parent is not None else None,
            resource=self.resource,
            attributes={key: _sound(value) for key, value in given.items() if value is not None},
            links=[self.api.Link(self.links[index]) for index in sees],
            kind=self.api.SpanKind.INTERNAL,
            status=self.sdk.Status(code),
            start_time=self.start + when[0],
            end_time=self.start + when[1],
            instrumentation_scope=self.scope,
        )

    def spans(self) -> list[Any]:
        """The episode, its turns, their calls."""
        episode = self.episode
        given: dict[str, Any] = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": episode.env_id,
            "gen_ai.conversation.id": self.digest[:16].hex(),
            "marft.clock": f"logical: {LAYER_NS} ns are a layer",
            "marft.task_id": episode.task_id,
            "marft.stop_reason": episode.stop_reason,
            "marft.return": float(episode.team_return),
            "marft.success": episode.success,
            "marft.seed": episode.seed,
            "marft.D": json.dumps([record.D for record in episode.rounds]),
            **{f"marft.metric.{name}": float(value) for name, value in episode.metrics.items()},
        }
        if episode.failed:
            given["error.type"] = episode.stop_reason.partition(":")[0]
        end = len(episode.layers) * LAYER_NS
        out = [self.span("episode", None, f"invoke_workflow {episode.env_id}", (0, end), given)]
        for turn in episode.turns:
            out += self.turn(turn)
        return out

    def turn(self, turn: TurnRecord) -> list[Any]:
        """One turn and its calls."""
        start, path = turn.layer * LAYER_NS, f"turn {turn.index}"
        profile = next((agent.prompt for agent in self.episode.agents if agent.name == turn.agent), "")
        given: dict[str, Any] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": turn.agent,
            "gen_ai.conversation.id": self.digest[:16].hex(),
            "marft.role": turn.role,
            "marft.turn": turn.index,
            "marft.round": turn.round,
            "marft.layer": turn.layer,
            "marft.sees": tuple(turn.sees),
            "marft.reward": float(turn.reward),
            **_driven(turn),
        }
        if turn.result.startswith("error (malformed)"):
            given["error.type"] = "malformed"
        if self.content:
            part = {"type": "text", "content": turn.text}
            said = {"role": "assistant", "parts": [part], "finish_reason": "stop"}
            given["gen_ai.output.messages"] = json.dumps([said])
            given["gen_ai.system_instructions"] = json.dumps([{"type": "text", "content": profile}])
        out = [self.span(path, "episode", f"invoke_agent {turn.agent}", (start, start + LAYER_NS), given)]
        called = _calls(turn)
        for number, (name, arguments, line) in enumerate(called):
            when = tuple(start + LAYER_NS * step // len(called) for step in (number, number + 1))
            tool: dict[str, Any] = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": f"call_{turn.index}_{number}",
            }
            said_of_it = line.removeprefix(f"{name}: ")
            if said_of_it.startswith("error ("):
                tool["error.type"] = said_of_it[len("error (") :].partition(")")[0]
            if self.content:
                tool["gen_ai.tool.call.arguments"] = arguments
                tool["gen_ai.tool.call.result"] = said_of_it
            out.append(self.span(f"{path} call {number}", path, f"execute_tool {name}", when, tool))  # type: ignore[arg-type]
        return out


_SCHEMA = f"https://opentelemetry.io/schemas/{SEMCONV}"


def _calls(turn: TurnRecord) -> list[tuple[str, str, str]]:
    """Name, arguments as JSON and the line of the result of each call that was carried out or refused."""
    if not turn.result:
        return []
    from marft_envs.tools.parse import parse
    from marft_envs.tools.session import one_line

    calls, lines = parse(turn.text).calls, turn.result.split("\n")
    if len(calls) != len(lines):
        return []  # the result is not one of tools
    return [
        (one_line(call.name)[:64], json.dumps(dict(call.arguments)), line)
        for call, line in zip(calls, lines, strict=True)
    ]


def _driven(turn: TurnRecord) -> dict[str, Any]:
    """What a trainer has noted of the generation."""
    extras = turn.extras or {}
    known = {
        "gen_ai.usage.input_tokens": extras.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": extras.get("tokens"),
        "gen_ai.response.finish_reasons": (str(extras["stop_reason"]),) if "stop_reason" in extras else None,
        "marft.policy": extras.get("policy"),
        "marft.policy_version": extras.get("version"),
    }
    return {name: value for name, value in known.items() if isinstance(value, int | str | tuple)}


def _sound(value: Any) -> Any:
    """Texts without halves of surrogate pairs, which no exporter can encode."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m marft_envs.otel", description="Prints episodes as spans.")
    parser.add_argument("path", type=Path, help="a JSONL file of episodes, or a run's folder")
    parser.add_argument("--content", action="store_true", help="with what agents said and what tools returned")
    parser.add_argument("--start-ns", type=int, default=0, help="nanoseconds since 1970 where logical time begins")
    given = parser.parse_args(argv)
    try:
        for number, episode in enumerate(_episodes(given.path)):
            for span in spans(episode, number, given.content, given.start_ns):
                print(span.to_json(indent=None))
    except MarftError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
