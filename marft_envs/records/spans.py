"""Spans and log records as others write them: an SDK's console exporter, or OTLP in JSON as a collector writes it.

A span is there once, however often it was exported, and log records stand with the events of their span.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from marft_envs.records import exports
from marft_envs.records.chats import Unread, UnreadableError, first

Event = tuple[str, dict[str, Any]]
"""Name and attributes."""
_BATCHES = (
    ("resourceSpans resource_spans", "scopeSpans scope_spans instrumentationLibrarySpans", "spans"),
    ("resourceLogs resource_logs", "scopeLogs scope_logs", "logRecords log_records"),
)
_WHOLE = "gen_ai.client.inference.operation.details"
"""The event that says everything of its span's call."""
_OF_A_LOG = {"eventName", "event_name", "observed_timestamp", "observedTimeUnixNano", "severityNumber", "timeUnixNano"}
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d+))? ?(Z|[+-]\d\d:?\d\d)?", re.IGNORECASE)


@dataclass(slots=True, eq=False)
class Span:
    """One span, in whichever form it was written."""

    where: str
    name: str
    trace: str
    id: str
    parent: str
    start: float
    """Nanoseconds since 1970; 0: not known."""
    ended: bool
    attributes: dict[str, Any]
    events: list[Event]
    failed: bool
    source: str = ""
    """Whose export it is, if it is not OpenTelemetry's."""


class Spans:
    """Collects the spans of files."""

    def __init__(self, unread: Unread) -> None:
        self._unread = unread
        self._spans: dict[tuple[str, str], Span] = {}
        self._logs: dict[str, tuple[tuple[str, str], float, Event, str]] = {}

    def take(self, content: Mapping[str, Any], where: str) -> bool:
        """Takes the spans and log records in an object; False: there are none."""
        batches = [levels for levels in _BATCHES if any(key in content for key in levels[0].split())]
        for levels in batches:
            self._each(content, levels, where, {})
        found = False
        for content_of_export, export in () if batches else exports.within(content):
            found = True
            with self._unread.noted(where):
                self._one(exports.record(content_of_export, export), where)
        return bool(batches) or found or self._one(content, where)

    def in_order(self) -> list[Span]:
        """Returns the spans in the order in which they began."""
        own = {key: list(span.events) for key, span in self._spans.items()}
        for key, when, event, where in sorted(self._logs.values(), key=lambda log: log[1]):
            if key not in own and event[0] == _WHOLE and key[1]:
                self._unread.count("calls of a model are read from log records alone: their spans are missing")
                self._spans[key] = Span(where, event[0], *key, "", when, True, event[1], [], False)
                own[key] = []
            elif key not in own:
                self._unread.count("log records of generative AI are of no span that was read")
            elif event not in own[key]:
                self._spans[key].events.append(event)
        return sorted(self._spans.values(), key=lambda span: span.start)

    def _each(self, table: Mapping[str, Any], levels: Sequence[str], where: str, resource: Any) -> None:
        inner = first(table, levels[0], [])
        if not isinstance(inner, list):
            raise UnreadableError(f"'{levels[0].split()[0]}' is no list")
        for one in inner:
            with self._unread.noted(where):
                if levels[1:]:
                    self._each(one, levels[1:], where, resource or one.get("resource"))
                elif not self._one({**one, "resource": resource}, where):
                    raise UnreadableError("a span without an id")

    def _one(self, record: Mapping[str, Any], where: str) -> bool:
        if record.keys() & {"messages", "request"}:
            return False
        context = record["context"] if isinstance(record.get("context"), Mapping) else record
        key = _hex(context, "trace_id traceId"), _hex(context, "span_id spanId")
        table = attributes(record.get("attributes"))
        if record.keys() & _OF_A_LOG:
            self._log(record, table, key, where)
        elif key[1]:
            self._span(record, table, key, f"{where}, span {key[1]}")
        return bool(key[1] or record.keys() & _OF_A_LOG)

    def _span(self, record: Mapping[str, Any], table: dict[str, Any], key: tuple[str, str], where: str) -> None:
        """Adds a span, unless there is one that says more under its ids."""
        status, resource = first(record, "status", {}), first(record, "resource", {})
        code = first(status, "status_code code") if isinstance(status, Mapping) else status
        table.setdefault("service.name", attributes(resource.get("attributes")).get("service.name"))
        events = [(str(one["name"]), attributes(one.get("attributes"))) for one in record.get("events") or ()]
        failed = code in ("ERROR", "STATUS_CODE_ERROR", 2, "2") or "error.type" in table
        parent = _hex(record, "parent_id parentSpanId parent_span_id")
        ended = first(record, "end_time endTimeUnixNano end_time_unix_nano", "0") != "0"
        if table.get("logfire.span_type") == "pending_span":  # what is known of its parent before that has ended
            key, parent, ended = (key[0], parent), str(table.get("logfire.pending_parent_id")), False
        source = str(record.get("source", ""))
        span = Span(where, str(record.get("name")), *key, parent, 0, ended, table, events, failed, source)
        with self._unread.noted(where):
            span.start = _nanoseconds(first(record, "start_time startTimeUnixNano start_time_unix_nano", 0))
        known = self._spans.get(key, span)
        self._spans[key] = max(known, span, key=lambda one: (one.ended, len(f"{one.attributes}{one.events}")))

    def _log(self, record: Mapping[str, Any], table: Mapping[str, Any], owner: tuple[str, str], where: str) -> None:
        body = decoded(_plain(record.get("body")))
        name = str(first(record, "eventName event_name") or first(table, "event.name name"))
        if name.startswith("gen_ai."):
            times = "timeUnixNano time_unix_nano timestamp observedTimeUnixNano observed_timestamp"
            event = name, {**table, **(body if isinstance(body, Mapping) else {"content": body} if body else {})}
            self._logs[json.dumps(record, sort_keys=True)] = owner, _nanoseconds(first(record, times, 0)), event, where


def _hex(table: Mapping[str, Any], keys: str) -> str:
    return str(first(table, keys)).lower().removeprefix("0x")


def decoded(value: Any) -> Any:
    """Returns what a text of JSON holds; anything else as it is."""
    return json.loads(value) if isinstance(value, str) and value[:1] in ("[", "{") else value


def attributes(given: Any) -> dict[str, Any]:
    """Returns attributes by name; OTLP writes a list of keys and typed values."""
    pairs = given.items() if isinstance(given, Mapping) else ((one["key"], one.get("value")) for one in given or ())
    return {str(key): _plain(value) for key, value in pairs}


def _plain(value: Any) -> Any:
    """Returns what a typed value of OTLP holds; anything else as it is."""
    kind, inner = next(iter(value.items())) if isinstance(value, Mapping) and len(value) == 1 else ("", value)
    kind = kind.replace("_v", "V")
    if kind == "arrayValue":
        return [_plain(one) for one in inner.get("values") or ()]
    if kind == "kvlistValue":
        return attributes(inner.get("values"))
    if kind == "intValue":
        return int(inner)
    return inner if kind in ("stringValue", "boolValue", "doubleValue", "bytesValue") else value


def _nanoseconds(value: Any) -> float:
    """Reads a time: nanoseconds as a number or its text, or ISO 8601 with any number of digits of a second."""
    if isinstance(value, int | float) and abs(value) < 1e30:
        return value
    if re.fullmatch(r"-?\d{1,30}", str(value)):
        return int(value)
    if not (found := _ISO.fullmatch(str(value).strip())):
        raise UnreadableError(f"a start that is no time: '{str(value)[:40]}'")
    day, clock, fraction, zone = found.groups()
    seconds = datetime.fromisoformat(f"{day}T{clock}{(zone or 'Z').upper()}").timestamp()
    return int(seconds) * 10**9 + int((fraction or "")[:9].ljust(9, "0"))
