"""Messages in what a model was given or gave, in whichever form that was noted: OpenAI's, Anthropic's, LangChain's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.records.chats import UnreadableError, first
from marft_envs.records.exports import TABLE

_BEFORE, _INSIDE, _TOOLS = (TABLE["holders"][key] for key in ("before", "inside", "tools"))
_ROLES: dict[str, str] = TABLE["roles"]


def messages(value: Any, role: str) -> list[dict[str, Any]]:
    """Returns the messages in a text, a table or a list; those without a role have ``role``.

    Raises:
        UnreadableError: A table has none.
    """
    if isinstance(value, str):
        return [{"role": role, "content": value}] if value else []
    if isinstance(value, Mapping):
        return _of_table(value, role)
    if not isinstance(value, list | tuple):
        raise UnreadableError(f"messages that are a {type(value).__name__}")
    if len(value) == 2 and all(isinstance(one, str) for one in value) and value[0].lower() in _ROLES:
        return [{"role": _ROLES[value[0].lower()], "content": value[1]}]
    return [message for one in value if one is not None for message in messages(one, role)]


def tools(value: Any) -> list[Any]:
    """Returns the tools beside the messages in a table."""
    found = first(value, _TOOLS, []) if isinstance(value, Mapping) else []
    return found if isinstance(found, list) else [found]


def _of_table(table: Mapping[str, Any], role: str) -> list[dict[str, Any]]:
    if "lc" in table and isinstance(table.get("kwargs"), Mapping):
        table = table["kwargs"]
    if "role" in table:
        given = str(table["role"])
        return [{**table, "role": role if given == "unknown" else _ROLES.get(given.lower(), given)}]
    if (kind := str(table.get("type")).lower()) in _ROLES:
        said = table if "content" in table else {"parts": [table]}  # an item of the responses API
        return [{**said, "role": _ROLES[kind]}]
    if key := next((key for key in _INSIDE.split() if table.get(key)), ""):
        before = [{"role": "system", "content": text} for name in _BEFORE.split() if (text := table.get(name))]
        inner = messages(table[key], role)
        if key == "output" and role == "assistant" and len(inner) > 1:  # items of one reply
            parts = [one for part in inner for one in _parts(part)]
            inner = [{"role": role, "parts": parts}]
        return [*(before if role == "user" else ()), *inner]
    if any(table.get(key) for key in ("content", "parts", "tool_calls")):
        return [{"role": role, **table}]
    if any(table.values()):
        raise UnreadableError(f"no messages under {', '.join(map(str, table))}"[:200])
    return []


def _parts(message: Mapping[str, Any]) -> list[Any]:
    found = first(message, "parts content", [])
    return found if isinstance(found, list) else [found]
