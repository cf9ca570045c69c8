"""Writes the traces of one real instrumentation, around programs that speak to a model on this machine.

    python tests/adapters/traced_sources.py SOURCE FOLDER

FOLDER gets ``trace.jsonl`` (as the SDK's console exporter writes it, or as the product exports it), ``otlp.jsonl`` where there
are spans, and ``said.json``: what the model was asked and said. A process each, since instrumentations last.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from traced_programs import (
    Run,
    agents_all,
    anthropic_all,
    chats,
    chats_async,
    crewai_all,
    dspy_all,
    langchain_all,
    llama_all,
    openai_all,
    pydantic_all,
    responses,
    smolagents_all,
)  # fmt: skip
from traced_server import model

# Exports ----------------------------------------------------------------------------------------------


def hexed(value: Any) -> Any:
    """Ids as a collector writes them; protobuf's own JSON has them in base64."""
    if isinstance(value, list):
        return [hexed(one) for one in value]
    if not isinstance(value, dict):
        return value
    ids = {"traceId", "spanId", "parentSpanId"}
    return {key: base64.b64decode(one).hex() if key in ids else hexed(one) for key, one in value.items()}


class Telemetry:
    """Providers whose spans and log records go to files."""

    def __init__(self, run: Run) -> None:
        from opentelemetry import _logs, trace
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.run, self.spans, self.logs = run, InMemorySpanExporter(), InMemoryLogRecordExporter()
        self.tracers, self.loggers = TracerProvider(), LoggerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.loggers.add_log_record_processor(SimpleLogRecordProcessor(self.logs))
        trace.set_tracer_provider(self.tracers)
        _logs.set_logger_provider(self.loggers)

    def given(self) -> dict[str, Any]:
        return {"tracer_provider": self.tracers, "logger_provider": self.loggers}

    def write(self) -> None:
        from google.protobuf.json_format import MessageToDict
        from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

        spans, logs = self.spans.get_finished_spans(), self.logs.get_finished_logs()
        lines = [*(one.to_json(indent=None) for one in spans), *(log_json(one) for one in logs)]
        (self.run.folder / "trace.jsonl").write_text("\n".join(lines) + "\n")
        wire = [encode_spans(spans), *([encode_logs(logs)] if logs else [])]
        text = "".join(json.dumps(hexed(MessageToDict(one))) + "\n" for one in wire)
        (self.run.folder / "otlp.jsonl").write_text(text)


def log_json(record: Any) -> str:
    return str((record if hasattr(record, "to_json") else record.log_record).to_json(indent=None))


def spans_of(instrumentors: str, program: Callable[[Run], None]) -> Callable[[Run], None]:
    """A source: instrumentors by their names, around a program."""

    def go(run: Run) -> None:
        from importlib import import_module

        telemetry = Telemetry(run)
        for module, _, name in (one.rpartition(".") for one in instrumentors.split()):
            getattr(import_module(module), name)().instrument(**telemetry.given())
        program(run)
        telemetry.write()

    return go


def logfire_of(instrument: str, program: Callable[[Run], None], **settings: Any) -> Callable[[Run], None]:
    """A source: what one of Logfire's functions notes."""

    def go(run: Run) -> None:
        import logfire
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor

        telemetry = Telemetry(run)
        processor = SimpleSpanProcessor(telemetry.spans)
        logfire.configure(send_to_logfire=False, console=False, additional_span_processors=[processor])
        getattr(logfire, instrument)(**settings)
        program(run)
        logfire.force_flush()
        telemetry.write()

    return go


def agents_export(run: Run) -> None:
    """OpenAI Agents' own spans, as a processor of traces writes them."""

    def tracing(agents: Any) -> None:
        class Writer(agents.TracingProcessor):
            def on_trace_start(self, trace: Any) -> None:
                self.write(trace)

            def on_trace_end(self, trace: Any) -> None:
                """It was written as it began."""

            def on_span_start(self, span: Any) -> None:
                """It is written as it ends."""

            def on_span_end(self, span: Any) -> None:
                self.write(span)

            def write(self, one: Any) -> None:
                with (run.folder / "trace.jsonl").open("a") as file:
                    file.write(json.dumps(one.export()) + "\n")

            def shutdown(self) -> None:
                """Nothing is open."""

            def force_flush(self) -> None:
                """Nothing waits."""

        agents.set_trace_processors([Writer()])

    agents_all(run, tracing=tracing)


def langsmith_runs(program: Callable[[Run, Any], None]) -> Callable[[Run], None]:
    """A source: runs as LangSmith's client lists them, from what it posted to a stand-in of its service."""

    def go(run: Run) -> None:
        os.environ |= {"LANGSMITH_ENDPOINT": run.server.url, "LANGSMITH_TRACING": "true", "LANGSMITH_API_KEY": "k"}
        import langsmith

        client = langsmith.Client(api_url=run.server.url, api_key="k")
        program(run, client)
        client.flush()
        from langchain_core.tracers.langchain import wait_for_all_tracers

        wait_for_all_tracers()
        runs: dict[str, dict[str, Any]] = {}
        for path, raw in run.server.posted:
            whole = json.loads(raw)
            for one in [*whole.get("post", ()), *whole.get("patch", ())] if path.endswith("batch") else [whole]:
                known = {key: value for key, value in one.items() if value is not None}
                runs.setdefault(str(one.get("id") or path.rpartition("/")[2]), {}).update(known)
        run.server.rows = [
            {**one, "inputs": one.get("inputs") or {}, "session_id": one["trace_id"]} for one in runs.values()
        ]
        for one in run.server.rows:
            one.pop("session_name", None)
        project = run.server.rows[0]["trace_id"]
        with warnings.catch_warnings(action="ignore"):
            listed = list(client.list_runs(project_id=project))
        (run.folder / "trace.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in listed))
        parents = {one["id"]: one.get("parent_run_id") for one in run.server.rows}
        for one in run.server.rows:
            above = [str(parents[one["id"]])] if parents[one["id"]] else []
            newer = {key: value for key, value in one.items() if key not in ("parent_run_id", "session_id")}
            run.server.newer.append({**newer, "parent_run_ids": above, "run_type": str(one["run_type"]).upper()})

        async def queried() -> list[Any]:
            return [one async for one in client.runs.query(project_ids=[project])]

        lines = [one.model_dump_json() for one in asyncio.run(queried())]
        (run.folder / "export.jsonl").write_text("\n".join(lines) + "\n")

    return go


def wrapped_openai(run: Run, client: Any) -> None:
    import openai
    from langsmith.wrappers import wrap_openai

    extra: Any = {"client": client}
    chats(wrapped := wrap_openai(openai.OpenAI(**run.api), tracing_extra=extra))
    responses(wrapped)
    asyncio.run(chats_async(wrap_openai(openai.AsyncOpenAI(**run.api), tracing_extra=extra)))


def processed_agents(run: Run, client: Any) -> None:
    from langsmith.integrations.openai_agents_sdk import OpenAIAgentsTracingProcessor

    agents_all(run, tracing=lambda agents: agents.set_trace_processors([OpenAIAgentsTracingProcessor(client)]))


def langfuse_of(program: Callable[[Run], None]) -> Callable[[Run], None]:
    """A source: Langfuse's spans, and observations as its client lists them, from what it posted to a stand-in."""

    def go(run: Run) -> None:
        from langfuse import Langfuse

        telemetry = Telemetry(run)
        client = Langfuse(
            public_key="pk-lf-x", secret_key="sk-lf-x", base_url=run.server.url, tracer_provider=telemetry.tracers
        )
        program(run)
        client.flush()
        telemetry.write()
        spans = [json.loads(line) for line in (run.folder / "trace.jsonl").read_text().splitlines()]
        run.server.rows = [observation(one) for one in spans]
        listed = client.api.observations.get_many(fields="core,basic,io,model,usage,metadata").data
        (run.folder / "export.jsonl").write_text("".join(one.json() + "\n" for one in listed))

    return go


def ai_sdk(run: Run) -> None:
    """Node looks for modules in the folder of the script, which lies beside the one that NODE_MODULES names."""
    script = Path(os.environ["NODE_MODULES"]).parent / "traced_ai_sdk.mjs"
    script.write_text((Path(__file__).parent / "traced_ai_sdk.mjs").read_text())
    subprocess.run(["node", script, run.server.url, run.folder / "otlp.jsonl"], check=True)


def observation(span: dict[str, Any]) -> dict[str, Any]:
    """A span as Langfuse's service lists it: inputs and outputs are texts."""
    given = {key.removeprefix("langfuse.observation."): value for key, value in span["attributes"].items()}
    counted, parent = json.loads(given.get("usage_details", "{}")), span["parent_id"]
    usage = {key: value for key, value in counted.items() if isinstance(value, int)}
    return {"id": span["context"]["span_id"][2:], "traceId": span["context"]["trace_id"][2:], "startTime": span["start_time"],
            "endTime": span["end_time"], "projectId": "p", "parentObservationId": parent and parent[2:], "name": span["name"],
            "type": given.get("type", "span").upper(), "level": given.get("level", "DEFAULT"), "input": given.get("input"),
            "output": given.get("output"), "model": given.get("model.name"), "usageDetails": usage, "costDetails": {},
            "metadata": {key.removeprefix("metadata."): value.strip('"') for key, value in given.items() if key.startswith("metadata.")},
            "statusMessage": given.get("status_message")}  # fmt: skip


def langfuse_openai(run: Run) -> None:
    from langfuse import observe
    from langfuse.openai import AsyncOpenAI, OpenAI

    @observe(name="desk", as_type="agent")
    def desk() -> None:
        chats(client := OpenAI(**run.api))
        responses(client)

    desk()
    asyncio.run(chats_async(AsyncOpenAI(**run.api)))


def langfuse_langchain(run: Run) -> None:
    from langchain_core.tracers.context import register_configure_hook
    from langfuse.langchain import CallbackHandler

    held: Any = ContextVar("held", default=None)
    held.set(CallbackHandler())
    register_configure_hook(held, inheritable=True)
    langchain_all(run)


OI, OTEL, SOURCES = "openinference.instrumentation", "opentelemetry.instrumentation", dict[str, Callable[[Run], None]]()
NEW = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ENV: dict[str, dict[str, str]] = {
    "otel-openai-logs": {CAPTURE: "true"},
    "otel-openai-span": {CAPTURE: "span_only", **NEW},
    "otel-openai-event": {CAPTURE: "event_only", **NEW},
    "otel-openai-both": {CAPTURE: "span_and_event", **NEW},
    "otel-genai-openai-span": {CAPTURE: "span_only", **NEW},
    "otel-genai-openai-event": {CAPTURE: "event_only", **NEW},
}
"""Environment variables of a source."""


def chats_only(run: Run) -> None:
    openai_all(run, with_responses=False)


for name in ("logs", "off", "span", "event", "both"):
    SOURCES[f"otel-openai-{name}"] = spans_of(f"{OTEL}.openai_v2.OpenAIInstrumentor", chats_only)
for name in ("span", "event"):
    SOURCES[f"otel-genai-openai-{name}"] = spans_of(f"{OTEL}.genai.openai.OpenAIInstrumentor", openai_all)
SOURCES |= {
    "traceloop-openai": spans_of(f"{OTEL}.openai.OpenAIInstrumentor", openai_all),
    "traceloop-langchain": spans_of(f"{OTEL}.langchain.LangchainInstrumentor", langchain_all),
    "openinference-openai": spans_of(f"{OI}.openai.OpenAIInstrumentor", openai_all),
    "openinference-langchain": spans_of(f"{OI}.langchain.LangChainInstrumentor", langchain_all),
    "openinference-agents": spans_of(f"{OI}.openai_agents.OpenAIAgentsInstrumentor", agents_all),
    "openinference-anthropic": spans_of(f"{OI}.anthropic.AnthropicInstrumentor", anthropic_all),
    "openinference-smolagents": spans_of(f"{OI}.smolagents.SmolagentsInstrumentor", smolagents_all),
    "openinference-llama-index": spans_of(f"{OI}.llama_index.LlamaIndexInstrumentor", llama_all),
    "openinference-crewai": spans_of(f"{OI}.crewai.CrewAIInstrumentor {OI}.openai.OpenAIInstrumentor", crewai_all),
    "openinference-dspy": spans_of(f"{OI}.dspy.DSPyInstrumentor", dspy_all),
    "logfire-openai": logfire_of("instrument_openai", openai_all),
    "logfire-agents": logfire_of("instrument_openai_agents", agents_all),
    "logfire-anthropic": logfire_of("instrument_anthropic", anthropic_all),
    "logfire-pydantic-ai": logfire_of("instrument_pydantic_ai", pydantic_all),
    "agents-export": agents_export,
    "ai-sdk": ai_sdk,
    "langsmith-openai": langsmith_runs(wrapped_openai),
    "langsmith-langchain": langsmith_runs(lambda run, client: langchain_all(run)),
    "langsmith-agents": langsmith_runs(processed_agents),
    "langfuse-openai": langfuse_of(langfuse_openai),
    "langfuse-langchain": langfuse_of(langfuse_langchain),
}


def main(name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for variable in [key for key in os.environ if key.lower().endswith("_proxy")]:
        del os.environ[variable]
    os.environ |= {"OPENAI_API_KEY": "k", "OPENAI_AGENTS_DISABLE_TRACING": "0", "CREWAI_DISABLE_TELEMETRY": "true",
                   "HF_HUB_OFFLINE": "1", **ENV.get(name, {})}  # fmt: skip
    with model() as server:
        run = Run(server, folder)
        if name in ("openinference-agents", "logfire-agents"):
            import agents

            agents.set_trace_processors([])  # its own tracing sends to a service
        SOURCES[name](run)
        (folder / "said.json").write_text(json.dumps(server.said, indent=1))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
