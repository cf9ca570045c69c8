"""Spans as a collector gets them: the real OTLP exporter over HTTP, its protobuf decoded on this machine's loopback.

``make test-real`` installs the exporter; elsewhere this is skipped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from helpers.tools_tiny import tiny
from marft_envs.core.types import Episode
from marft_envs.families.tools import make, oracle
from marft_envs.records import otel

exporter = pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="the OTLP exporter is not here: make test-real"
)


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind) if kind else None
    return [plain(inner) for inner in found.values] if kind == "array_value" else found


def sent(one: Episode, collector: tuple[str, list[bytes]]) -> list[Any]:
    """The spans of an episode, as the collector has them."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    url, bodies = collector
    assert otel.export([one], exporter.OTLPSpanExporter(endpoint=url), content=True) == 1
    request = ExportTraceServiceRequest()
    request.ParseFromString(bodies[-1])
    [resource] = request.resource_spans
    assert plain(resource.resource.attributes[0].value) == "marft"
    return [span for scope in resource.scope_spans for span in scope.spans]


def attributes_of(span: Any) -> dict[str, Any]:
    return {pair.key: plain(pair.value) for pair in span.attributes}


def played() -> Episode:
    return oracle.play(make("router", tiny()), options={"task_id": "tiny/two"})


def test_what_arrives_is_complete(collector: tuple[str, list[bytes]]) -> None:
    one, before = played(), time.time_ns()
    calls = sum(len(turn.result.splitlines()) for turn in one.turns)
    spans = sent(one, collector)
    assert len(spans) == 1 + len(one.turns) + calls
    assert all(before <= span.start_time_unix_nano < span.end_time_unix_nano for span in spans), (
        "never 0, which is no time"
    )
    root, *rest = spans
    given = [attributes_of(span) for span in spans]
    assert not root.parent_span_id and all(span.parent_span_id for span in rest)
    assert root.status.code == root.status.STATUS_CODE_UNSET and "error.type" not in given[0]
    results = {plain(e.attributes[0].value): plain(e.attributes[1].value) for e in root.events}
    assert {e.name for e in root.events} == {"gen_ai.evaluation.result"}
    assert results["completion"] == results["success"] == 1.0 and results["return"] == given[0]["marft.return"] > 0
    turns = [attributes for attributes in given if attributes["gen_ai.operation.name"] == "invoke_agent"]
    assert [turn["agent.trajectory.step"] for turn in turns] == list(range(1, len(one.turns) + 1))
    for turn in turns:
        assert turn["gen_ai.provider.name"] == "marft" and turn["gen_ai.agent.id"].startswith("custom/")
        assert turn["gen_ai.input.messages"] and turn["gen_ai.output.messages"]


def test_an_infrastructure_error_arrives_as_an_error_without_scores(collector: tuple[str, list[bytes]]) -> None:
    one = played()
    whole = len(sent(one, collector))
    one.stop_reason, one.fault, one.success = "world_crashed", "world", False
    root, *rest = sent(one, collector)
    given = attributes_of(root)
    assert root.status.code == root.status.STATUS_CODE_ERROR and len(rest) == whole - 1
    assert (given["error.type"], given["marft.fault"]) == ("world_crashed", "world")
    assert not any(span.events for span in (root, *rest))
    assert not any(name.startswith(("marft.return", "marft.success", "marft.metric.")) for name in given)
