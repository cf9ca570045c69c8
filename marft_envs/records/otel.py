"""Writes finished episodes as OpenTelemetry spans, for the tools that show traces.

    python -m marft_envs.records.otel RUN_OR_FILE [--content [--replay [--trust]]] [--start-ns N]  # a span a line

An episode is a trace: ``invoke_workflow`` around the episode, ``invoke_agent`` per turn, ``execute_tool`` per call. A
turn links to the turns that it saw, so the trace holds D; ``agent.trajectory.step`` counts turns from 1, on the spans
of calls too. Return, success and metrics are events ``gen_ai.evaluation.result`` of the episode's span. A failed
episode is an error, with ``marft.fault``. After an infrastructure error it has no scores: it says nothing of the team.
Names are those of OpenTelemetry's semantic conventions for generative AI, version 1.41.0 (in development there), and
``marft.*`` for what these have no name for.

**No time in a span was measured.** A record has none, so time is logical: a layer takes a millisecond, and the calls of
a turn share it evenly; every trace begins at ``start_ns``, by default the time of the export. Ids are hashes of the
record, so the same record and the same ``start_ns`` give the same spans.

Needs the extra ``otel``. What agents said and what tools returned is exported only with ``content``. A record does not
hold whole prompts, only the profile and which turns the agent saw. With ``env`` (or ``--replay``, which builds the
environment that the record names, and needs ``--trust`` where that runs code or sends something) the episode is played
again, and the spans hold the whole prompts and the definitions of the tools.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from marft_envs.call_formats import parse
from marft_envs.call_formats.tags import unwrapped_result
from marft_envs.consent import TrustError, refusal
from marft_envs.core.env import FlexEnv
from marft_envs.core.faults import plain
from marft_envs.core.plain_data import one_line
from marft_envs.core.types import Episode, TurnRecord
from marft_envs.errors import ConfigError, DataError, MarftError, imported, reading
from marft_envs.records import trajectory
from marft_envs.registration import importable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

SEMCONV = "1.41.0"
"""Version of the semantic conventions whose names are used here."""

LAYER_NS = 1_000_000
"""Logical nanoseconds of a layer."""

_BATCH = 512

PROVIDER = "marft"
"""Who generated a reply of which nothing else is known: this project's own engines, or a script."""


class ModelSource(NamedTuple):
    """Names the model and the server that a policy's replies come from."""

    provider: str = PROVIDER
    """``gen_ai.provider.name``."""
    model: str = ""
    """``gen_ai.request.model``; "" where it is not known."""


def spans(
    episode: Episode,
    number: int = 0,
    *,
    content: bool = False,
    start_ns: int | None = None,
    env: FlexEnv | None = None,
    sources: Mapping[str, ModelSource] | None = None,
) -> list[ReadableSpan]:
    """Returns the spans of a finished episode, parents first.

    Args:
        episode: As :mod:`marft_envs.records.trajectory` reads it, or ``env.episode``.
        number: Tells equal episodes apart.
        content: Include prompts and replies, and arguments and results of calls.
        start_ns: Nanoseconds since 1970 at which the logical time begins; None: now.
        env: Where to play the episode again, for the agents' prompts; with ``content``.
        sources: Policy -> where its replies come from; "" is for all others.

    Raises:
        ConfigError: ``start_ns`` is not above 0, which means no time.
        MissingExtraError: ``opentelemetry-sdk`` is not installed.
        ReplayError: The episode went otherwise in ``env``.
    """
    return _Trace(episode, number, content=content, start_ns=_begins(start_ns), env=env, sources=sources or {}).spans()


def _begins(start_ns: int | None) -> int:
    if start_ns is not None and start_ns <= 0:
        raise ConfigError(f"start_ns must be above 0, which means no time; got {start_ns}. Leave it out for now.")
    return time.time_ns() if start_ns is None else start_ns


def export(
    source: str | Path | Iterable[Episode],
    exporter: SpanExporter,
    *,
    content: bool = False,
    start_ns: int | None = None,
    env: FlexEnv | None = None,
    sources: Mapping[str, ModelSource] | None = None,
) -> int:
    """Hands the spans of episodes to an exporter.

    Args:
        source: A JSONL file of episodes, a run's folder (its ``episodes/*.jsonl``), or episodes.
        exporter: Anything that is an OpenTelemetry ``SpanExporter``; flushed, not shut down.
        content: See :func:`spans`.
        start_ns: See :func:`spans`.
        env: See :func:`spans`.
        sources: See :func:`spans`; by default what a run's ``config.toml`` says.

    Returns:
        How many episodes were exported.

    Raises:
        DataError: There are no episodes, a line is none, or the exporter says that it failed.
        MissingExtraError: ``opentelemetry-sdk`` is not installed.
    """
    count, waiting, start = 0, list[Any](), _begins(start_ns)
    if sources is None and isinstance(source, str | Path):
        sources = run_sources(source)
    for episode in _episodes(source) if isinstance(source, str | Path) else source:
        waiting += spans(episode, count, content=content, start_ns=start, env=env, sources=sources)
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

    def __init__(
        self,
        episode: Episode,
        number: int,
        *,
        content: bool,
        start_ns: int,
        env: FlexEnv | None,
        sources: Mapping[str, ModelSource],
    ) -> None:
        parts = ("trace", "sdk.trace", "sdk.resources", "sdk.util.instrumentation")
        modules = (imported(f"opentelemetry.{part}", "OpenTelemetry export", "otel") for part in parts)
        self.api, self.sdk, resources, instrumentation = modules
        self.episode, self.content, self.start, self.sources = episode, content, start_ns, sources
        self.prompts = trajectory.prompts(episode, env) if content and env is not None else None
        record = json.dumps(trajectory.to_dict(episode), sort_keys=True)
        self.digest = hashlib.sha256(f"{number}\n{record}".encode()).digest()
        self.resource = resources.Resource({"service.name": "marft"})
        self.scope = instrumentation.InstrumentationScope("marft_envs.records.otel", schema_url=_SCHEMA)
        self.links = {turn.index: self.context(f"turn {turn.index}") for turn in episode.turns}

    def context(self, path: str) -> Any:
        """Returns the identity of the span at a path; ids of zeros are invalid, and a hash is practically never one."""
        span = hashlib.sha256(self.digest + path.encode()).digest()[:8]
        ids = int.from_bytes(self.digest[:16], "big"), int.from_bytes(span, "big")
        return self.api.SpanContext(*ids, is_remote=False, trace_flags=self.api.TraceFlags(1))

    def span(
        self,
        path: str,
        parent: str | None,
        name: str,
        when: tuple[int, int],
        given: dict[str, Any],
        scores: Mapping[str, float] | None = None,
    ) -> Any:
        """Makes one span; ``error.type`` among its attributes marks an error, ``scores`` are its evaluations."""
        failed = "error.type" in given
        code = self.api.StatusCode.ERROR if failed else self.api.StatusCode.UNSET
        sees = given.get("marft.sees", ())
        return self.sdk.ReadableSpan(
            _sound(name),
            context=self.context(path),
            parent=self.context(parent) if parent is not None else None,
            resource=self.resource,
            attributes={key: _sound(value) for key, value in given.items() if value is not None},
            events=[self.evaluation(key, value, self.start + when[1]) for key, value in (scores or {}).items()],
            links=[self.api.Link(self.links[index]) for index in sees],
            kind=self.api.SpanKind.INTERNAL,
            status=self.sdk.Status(code),
            start_time=self.start + when[0],
            end_time=self.start + when[1],
            instrumentation_scope=self.scope,
        )

    def evaluation(self, name: str, value: float, when: int) -> Any:
        """Makes the event of a grade."""
        attributes: dict[str, Any] = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": float(value)}
        if name == "success":
            attributes["gen_ai.evaluation.score.label"] = "pass" if value else "fail"
        return self.sdk.Event("gen_ai.evaluation.result", attributes, timestamp=when)

    def spans(self) -> list[Any]:
        """Makes the spans of the episode, its turns and their calls."""
        episode = self.episode
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": episode.env_id,
            "gen_ai.conversation.id": self.digest[:16].hex(),
            "marft.clock": f"logical: {LAYER_NS} ns are a layer",
            "marft.task_id": episode.task_id,
            "marft.stop_reason": episode.stop_reason,
            "marft.seed": episode.seed,
            "marft.D": json.dumps([record.D for record in episode.rounds]),
        }
        scores = dict[str, float]()
        if not episode.infrastructure_error:
            attributes |= {"marft.return": float(episode.team_return), "marft.success": episode.success}
            attributes |= {f"marft.metric.{name}": float(value) for name, value in episode.metrics.items()}
            scores = {"return": episode.team_return}
            scores |= {} if episode.success is None else {"success": float(episode.success)}
            scores |= {name: value for name, value in episode.metrics.items() if "/" not in name}
        if episode.failed:
            attributes |= {
                "marft.fault": episode.fault,
                "error.type": episode.stop_reason.partition(":")[0] or episode.fault,
            }
        end = max(len(episode.layers), 1) * LAYER_NS
        out = [self.span("episode", None, f"invoke_workflow {episode.env_id}", (0, end), attributes, scores)]
        for turn in episode.turns:
            out += self.turn(turn)
        return out

    def turn(self, turn: TurnRecord) -> list[Any]:
        """Makes the spans of one turn and its calls."""
        start, path = turn.layer * LAYER_NS, f"turn {turn.index}"
        calls = _calls(turn)
        step = {
            "gen_ai.agent.name": turn.agent,
            "gen_ai.agent.id": f"{self.episode.env_id}/{turn.agent}",
            "gen_ai.conversation.id": self.digest[:16].hex(),
            "agent.trajectory.step": turn.index + 1,
        }
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "invoke_agent",
            **step,
            **self.driven(turn),
            "marft.role": turn.role,
            "marft.turn": turn.index,
            "marft.round": turn.round,
            "marft.layer": turn.layer,
            "marft.sees": tuple(turn.sees),
            "marft.reward": None if self.episode.infrastructure_error else float(turn.reward),
        }
        if turn.result.startswith("error (malformed)"):
            attributes["error.type"] = "malformed"
        attributes |= self.messages(turn) if self.content else {}
        rewards = {"reward": turn.reward} if turn.reward and not self.episode.infrastructure_error else {}
        out = [self.span(path, "episode", f"invoke_agent {turn.agent}", (start, start + LAYER_NS), attributes, rewards)]
        for number, (name, arguments, line) in enumerate(calls):
            when = (start + LAYER_NS * number // len(calls), start + LAYER_NS * (number + 1) // len(calls))
            tool: dict[str, Any] = {
                "gen_ai.operation.name": "execute_tool",
                **step,
                "gen_ai.tool.name": name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": _call_id(turn, number),
            }
            said_of_it = line.removeprefix(f"{name}: ")
            if said_of_it.startswith("error ("):
                tool["error.type"] = said_of_it[len("error (") :].partition(")")[0]
            if self.content:
                tool["gen_ai.tool.call.arguments"] = arguments
                tool["gen_ai.tool.call.result"] = said_of_it
            out.append(self.span(f"{path} call {number}", path, f"execute_tool {name}", when, tool))
        return out

    def messages(self, turn: TurnRecord) -> dict[str, Any]:
        """Returns the agent's prompt and reply, as the conventions write them."""
        profile = next((agent.prompt for agent in self.episode.agents if agent.name == turn.agent), "")
        inputs, attrs = list[dict[str, Any]](), dict[str, Any]()
        if self.prompts is not None:
            prompt, tools = self.prompts[turn.index]
            attrs["gen_ai.tool.definitions"] = json.dumps([{"type": "function", **tool["function"]} for tool in tools])
            profile = "\n\n".join(message["content"] for message in prompt if message["role"] == "system")
            inputs = [_message(m["role"], [_text_part(m["content"])]) for m in prompt if m["role"] != "system"]
        else:
            for seen in (self.episode.turns[index] for index in turn.sees):
                inputs.append(_message("assistant" if seen.agent == turn.agent else "user", _reply(seen)))
                inputs += [_message("tool", _results(seen))] if seen.result else []
        output = _message("assistant", _reply(turn))
        output["finish_reason"] = "tool_call" if _calls(turn) else "stop"
        return attrs | {
            "gen_ai.system_instructions": json.dumps([_text_part(profile)]),
            "gen_ai.input.messages": json.dumps(inputs),
            "gen_ai.output.messages": json.dumps([output]),
            "marft.input": "replayed" if self.prompts is not None else "record: profile and turns seen",
        }

    def driven(self, turn: TurnRecord) -> dict[str, Any]:
        """Returns what a trainer has noted of the generation, and what is known of the policy's source."""
        extras = turn.extras or {}
        source = self.sources.get(str(extras.get("policy", "")), self.sources.get("", ModelSource()))
        known = {
            "gen_ai.provider.name": extras.get("provider", source.provider),
            "gen_ai.request.model": extras.get("model", source.model) or None,
            "gen_ai.usage.input_tokens": extras.get("prompt_tokens"),
            "gen_ai.usage.output_tokens": extras.get("tokens"),
            "gen_ai.response.finish_reasons": (str(extras["stop_reason"]),) if "stop_reason" in extras else None,
            "marft.policy": extras.get("policy"),
            "marft.policy_version": extras.get("version"),
        }
        return {name: value for name, value in known.items() if isinstance(value, int | str | tuple)}


_SCHEMA = f"https://opentelemetry.io/schemas/{SEMCONV}"


def _sound(value: Any) -> Any:
    """Returns texts without halves of surrogate pairs, which no exporter can encode."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def run_sources(run: str | Path) -> dict[str, ModelSource]:
    """Returns what a run's ``config.toml`` says of its models: policy -> source, "" for all that it does not name.

    Raises:
        DataError: The file is no TOML.
    """
    file = Path(run) / "config.toml"
    if not file.is_file():
        return {}
    with reading(f"{file} is not TOML", "Expected what marft train wrote.", DataError):
        settings = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    models, engines = settings.get("models", ""), settings.get("engines", {})
    named = models if isinstance(models, dict) else {"": str(models)}
    engines = engines if isinstance(engines, dict) else {}
    return {
        policy: _source(engines.get(policy, ""), str(named.get(policy, named.get("", ""))))
        for policy in {"", *named, *engines}
    }


def _source(engine: Any, model: str) -> ModelSource:
    kind = engine.get("kind") if isinstance(engine, dict) else ""
    if kind == "openai":
        return ModelSource("openai", str(engine.get("model", "")))
    name = Path(model).name if Path(model).is_absolute() else model
    return ModelSource("vllm" if kind == "vllm" else PROVIDER, name)


def _text_part(content: str) -> dict[str, Any]:
    """Returns words as a part of a message."""
    return {"type": "text", "content": content}


def _message(role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a message of ``gen_ai.input.messages`` or ``gen_ai.output.messages``."""
    return {"role": role, "parts": parts}


def _reply(turn: TurnRecord) -> list[dict[str, Any]]:
    """Returns a reply in parts: its words, and its calls."""
    called = _calls(turn)
    if not called:
        return [_text_part(turn.text)]
    spoken = parse(turn.text, "any").words
    return [
        *([_text_part(spoken)] if spoken else []),
        *(
            {"type": "tool_call", "id": _call_id(turn, i), "name": name, "arguments": json.loads(arguments)}
            for i, (name, arguments, _) in enumerate(called)
        ),
    ]


def _results(turn: TurnRecord) -> list[dict[str, Any]]:
    """Returns a turn's results in parts: a response for each call, or the text."""
    called = _calls(turn)
    return [
        {"type": "tool_call_response", "id": _call_id(turn, i), "response": line.removeprefix(f"{name}: ")}
        for i, (name, _, line) in enumerate(called)
    ] or [_text_part(turn.result)]


def _call_id(turn: TurnRecord, number: int) -> str:
    """Returns the id that ties a call to its result."""
    return f"call_{turn.index}_{number}"


def _calls(turn: TurnRecord) -> list[tuple[str, str, str]]:
    """Returns name, arguments as JSON and the line of the result of each call that was carried out or refused."""
    if not turn.result:
        return []
    calls, lines = parse(turn.text, "any").calls, [unwrapped_result(line) for line in turn.result.split("\n")]
    if len(calls) != len(lines) or lines[0].startswith("error (malformed)"):
        return []  # the result is not one of tools
    return [
        (one_line(call.name)[:64], json.dumps(dict(call.arguments)), line)
        for call, line in zip(calls, lines, strict=True)
    ]


def _allow(path: Path, *, trust: bool, typed: Sequence[str]) -> None:
    """Shows what the environments of all records run and send.

    Raises:
        TrustError: They do, and nobody has allowed it.
    """
    powers = list(dict.fromkeys(power for episode in _episodes(path) for power in trajectory.executes(episode)))
    if powers and not trust:
        command = shlex.join(["python", "-m", "marft_envs.records.otel", *typed, "--trust"])
        raise TrustError(refusal(powers, path, command))
    if powers:
        print(plain(f"trusted, from {path}:" + "".join(f"\n  {power}" for power in powers)), file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m marft_envs.records.otel", description="Prints episodes as spans.")
    parser.add_argument("path", type=Path, help="a JSONL file of episodes, or a run's folder")
    parser.add_argument("--content", action="store_true", help="with what agents said and what tools returned")
    parser.add_argument("--replay", action="store_true", help="play the records again, for the whole prompts")
    parser.add_argument("--trust", action="store_true", help="they may run code, start programs or send something")
    parser.add_argument("--start-ns", type=int, default=None, help="nanoseconds since 1970 where logical time begins")
    typed = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(typed)
    if args.trust:
        importable()  # who says this allows the modules that the records name, which may lie here
    try:
        start, sources = _begins(args.start_ns), run_sources(args.path)
        if args.replay and not args.content:
            command = shlex.join(["python", "-m", "marft_envs.records.otel", *typed, "--content"])
            raise ConfigError(f"--replay adds prompts, which are exported only with --content. Next: {command}")
        if args.replay:
            _allow(args.path, trust=args.trust, typed=typed)
        env, made_for = None, ""
        with ExitStack() as held:
            for number, episode in enumerate(_episodes(args.path)):
                wanted = json.dumps([episode.env_id, episode.env_kwargs], sort_keys=True)
                if args.replay and wanted != made_for:
                    held.close()
                    env = held.enter_context(closing(trajectory.rebuild(episode, trusted=args.trust)))
                    made_for = wanted
                for span in spans(episode, number, content=args.content, start_ns=start, env=env, sources=sources):
                    print(span.to_json(indent=None))
    except MarftError as error:
        print(plain(str(error)), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
