"""Builds what :mod:`marft_envs.records.otel` writes into spans: messages in parts, and where replies come from."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from marft_envs.core.plain_data import one_line
from marft_envs.core.types import TurnRecord
from marft_envs.errors import DataError

PROVIDER = "marft"
"""Who generated a reply of which nothing else is known: this project's own engines, or a script."""


class ModelSource(NamedTuple):
    """Names the model and the server that a policy's replies come from."""

    provider: str = PROVIDER
    """``gen_ai.provider.name``."""
    model: str = ""
    """``gen_ai.request.model``; "" where it is not known."""


def run_sources(run: str | Path) -> dict[str, ModelSource]:
    """Returns what a run's ``config.toml`` says of its models: policy -> source, "" for all that it does not name.

    Raises:
        DataError: The file is no TOML.
    """
    file = Path(run) / "config.toml"
    if not file.is_file():
        return {}
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is not TOML: {error}.") from error
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


def text(content: str) -> dict[str, Any]:
    """Returns words as a part of a message."""
    return {"type": "text", "content": content}


def message(role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a message of ``gen_ai.input.messages`` or ``gen_ai.output.messages``."""
    return {"role": role, "parts": parts}


def reply(turn: TurnRecord) -> list[dict[str, Any]]:
    """Returns a reply in parts: its words, and its calls."""
    called = calls(turn)
    if not called:
        return [text(turn.text)]
    from marft_envs.call_formats import parse

    spoken = parse(turn.text, "any").words
    return [
        *([text(spoken)] if spoken else []),
        *(
            {"type": "tool_call", "id": call_id(turn, i), "name": name, "arguments": json.loads(arguments)}
            for i, (name, arguments, _) in enumerate(called)
        ),
    ]


def result_parts(turn: TurnRecord) -> list[dict[str, Any]]:
    """Returns a turn's results in parts: a response for each call, or the text."""
    called = calls(turn)
    return [
        {"type": "tool_call_response", "id": call_id(turn, i), "response": line.removeprefix(f"{name}: ")}
        for i, (name, _, line) in enumerate(called)
    ] or [text(turn.result)]


def call_id(turn: TurnRecord, number: int) -> str:
    """Returns the id that ties a call to its result."""
    return f"call_{turn.index}_{number}"


def calls(turn: TurnRecord) -> list[tuple[str, str, str]]:
    """Returns name, arguments as JSON and the line of the result of each call that was carried out or refused."""
    if not turn.result:
        return []
    from marft_envs.call_formats import parse
    from marft_envs.call_formats.tags import unwrapped_result

    calls, lines = parse(turn.text, "any").calls, [unwrapped_result(line) for line in turn.result.split("\n")]
    if len(calls) != len(lines) or lines[0].startswith("error (malformed)"):
        return []  # the result is not one of tools
    return [
        (one_line(call.name)[:64], json.dumps(dict(call.arguments)), line)
        for call, line in zip(calls, lines, strict=True)
    ]
