"""Tables of engines for tests, written in short: ``vllm:URL[,URL][?OPTIONS]`` or ``openai:MODEL[@URL][?OPTIONS]``."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl


def as_table(text: str) -> dict[str, Any]:
    """Returns the table that is meant."""
    head, _, query = text.partition("?")
    kind, _, rest = head.partition(":")
    engine: dict[str, Any] = {"kind": kind, **dict(parse_qsl(query, keep_blank_values=True))}
    if kind == "openai":
        engine["model"], at, url = rest.partition("@http")
        return engine | ({"url": f"http{url}"} if at else {})
    return engine | ({"url": tuple(rest.split(","))} if kind == "vllm" else {})
