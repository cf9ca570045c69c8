"""Exports of traces that are not OpenTelemetry's, as spans: OpenAI Agents', LangSmith's and Langfuse's.

``conventions.toml`` says how each is recognised, and where things stand in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from marft_envs import tables

TABLE = tables.read("marft_envs.records", "conventions")
_EXPORTS: list[dict[str, Any]] = TABLE["exports"]
_LISTS = ("data", "runs", "items", "traces", "observations")
"""Keys of a list of such objects, as services answer and people download."""
_NO_ERRORS = ("DEFAULT", "DEBUG", "WARNING")
"""Langfuse's levels below an error."""


def listed(content: Any) -> list[Any]:
    """Returns the objects in a list, or in one that a service has answered; else the object itself."""
    if isinstance(content, Mapping):
        content = next((content[key] for key in _LISTS if isinstance(content.get(key), list)), [content])
    return content if isinstance(content, list) else [content]


def within(content: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Yields an object of an export and those inside it, and which export each is of."""
    waiting: list[Any] = [content]
    while waiting:
        one = waiting.pop()
        export = next((export for export in _EXPORTS if _is_of(one, export)), None)
        if export:
            yield one, export
            inner = one.get(export.get("inner"))
            waiting += reversed(inner) if isinstance(inner, list) else ()


def _is_of(content: Any, export: Mapping[str, Any]) -> bool:
    if not isinstance(content, Mapping) or "context" in content:
        return False
    return all(any(key in content for key in keys.split()) for keys in export["has"])


def record(content: Mapping[str, Any], export: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object of an export as a span that an SDK has written."""
    found = {key: _at(content, path) for key, path in export.items() if isinstance(path, str) and key != "name"}
    get, error, more = found.get, found.get("error"), found.get("more")
    done = TABLE["kinds"].get(str(get("kind")).lower(), "")
    attributes = {
        "gen_ai.operation.name": done if done != "agent" else "",
        "gen_ai.agent.name": get("title") if done == "agent" or get("agent") is not None else None,
        "gen_ai.workflow.name": get("workflow"),
        "gen_ai.tool.name": get("title") if done == "execute_tool" else None,
        "gen_ai.request.model": get("model") if done == "chat" else None,
        "gen_ai.tool.definitions": get("tools"),
        "gen_ai.usage.input_tokens": get("read"),
        "gen_ai.usage.output_tokens": get("wrote"),
        "gen_ai.usage.cost": get("cost"),
        "input": get("input"),
        "output": get("output"),
    }
    said = {key: value for key, value in attributes.items() if value is not None}
    return {
        "name": get("title"), "trace_id": get("trace") or get("id"), "span_id": get("id"), "parent_id": get("parent"),
        "start_time": get("start"), "end_time": get("end"), "source": export["name"],
        "status": "ERROR" if error and error not in _NO_ERRORS else "",
        "attributes": {**(more if isinstance(more, Mapping) else {}), **said},
    }  # fmt: skip


def _at(content: Any, paths: str) -> Any:
    """Returns what stands at the first of some paths that leads somewhere; None: none does."""
    for path in paths.split():
        value = content
        for step in path.split("."):
            if isinstance(value, list) and re.fullmatch(r"-?\d", step):
                value = value[int(step)] if -len(value) <= int(step) < len(value) else None
            else:
                value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None
