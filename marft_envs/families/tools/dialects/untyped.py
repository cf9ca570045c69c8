"""Arguments that stand between tags without quotes: what is text and what is a number, by the tool's schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from marft_envs.families.tools.dialects.base import Bad, check_text, decoded

_PYTHON = {"True": True, "False": False, "None": None}
_ESCAPED = re.compile(r"\\u00")


def read(raw: str, schema: Mapping[str, Any] | None) -> Any:
    r"""Returns the value that a raw text stands for.

    Without a schema, what is JSON is its value, and all else is text. Where a schema allows text alone, it is text, but
    for a JSON string with an escape ``\u00…``: so a text can be written that would be taken for something else.

    Raises:
        Bad: No text is allowed, and it is JSON that nothing can be called with.
    """
    inner = raw.strip()
    quoted = inner[:1] == '"' and _ESCAPED.search(inner) is not None
    kinds = None if schema is None or quoted else kinds_of(schema)
    if kinds is not None and inner in _PYTHON and kind_of(_PYTHON[inner]) in kinds:
        return _PYTHON[inner]
    if kinds != {"string"}:
        try:
            value, end = decoded(inner, 0)
        except Bad as bad:
            if kinds is not None and "string" not in kinds and bad.error != "bad_json":
                raise
        else:
            fits = kinds is None or (kind_of(value) in kinds and not isinstance(value, str))
            if end == len(inner) and fits:
                return value
    check_text(raw)
    return raw


def write(value: Any, schema: Mapping[str, Any] | None, forbidden: Iterable[str]) -> str:
    """Returns a value as a raw text that :func:`read` reads back, without the marks that would end it."""
    raw = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
    if not any(mark in raw for mark in forbidden) and same(_tried(raw, schema), value):
        return raw
    quoted = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
    if isinstance(value, str) and value and not _ESCAPED.search(quoted):
        first = format(ord(value[0]), "04x")
        quoted = f'"\\u{first}{json.dumps(value[1:], ensure_ascii=False)[1:]}'
    return quoted


def _tried(raw: str, schema: Mapping[str, Any] | None) -> Any:
    try:
        return read(raw, schema)
    except Bad:
        return Bad


def same(one: Any, other: Any) -> bool:
    """Returns whether two JSON values are the same, with 1, 1.0 and True apart."""
    return bool(one == other) and repr(one) == repr(other)


def kind_of(value: Any) -> str:
    """Returns the JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def kinds_of(schema: Mapping[str, Any]) -> set[str] | None:
    """Returns the JSON types that a schema allows (an integer is a number); None: it does not say."""
    if "enum" in schema or "const" in schema:
        return {kind_of(value) for value in schema.get("enum", [schema.get("const")])}
    if isinstance(kinds := schema.get("type"), str | list):
        return {"number" if kind == "integer" else kind for kind in ([kinds] if isinstance(kinds, str) else kinds)}
    out: set[str] = set()
    for option in schema.get("anyOf") or schema.get("oneOf") or ():
        below = kinds_of(option) if isinstance(option, Mapping) else None
        if below is None:
            return None
        out |= below
    return out or None


def property_of(schemas: Mapping[str, Mapping[str, Any]], tool: str, key: str) -> Mapping[str, Any] | None:
    """Returns the schema of one argument; None where nothing is known of it."""
    schema = schemas.get(tool, {}).get("properties", {}).get(key)
    return schema if isinstance(schema, Mapping) else None
