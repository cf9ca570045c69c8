"""Messages of others (OpenAI's chat API, OpenTelemetry's parts) as chats of text; rows of replies.

A call stands in an assistant's text as ``<tool_call>{…}</tool_call>``, what came of it in a user's as
``<tool_response>…</tool_response>``: the form of Hermes and Qwen, which agents here write and read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft_envs.core.types import AgentSpec, Episode, LayerRecord, TurnRecord
from marft_envs.errors import DataError
from marft_envs.families.tools.dialects import written
from marft_envs.families.tools.types import ToolCall
from marft_envs.problems import rows
from marft_envs.records.secrets import masked as masked

TOLD = "told"
"""Key in ``Episode.info`` of a reply that was read from a row: what its agent was told, and the tools it had."""
_RESULT = "tool_call_response"
_KINDS = {
    "thinking": "reasoning", "redacted_thinking": "reasoning", "tool_use": "tool_call", "function_call": "tool_call",
    "tool_result": _RESULT, "function_call_output": _RESULT,
}  # fmt: skip
"""What others call parts."""
_ROLES = {"developer": "system", "model": "assistant", "tool": "user", "function": "user"}


class UnreadableError(ValueError):
    """A message that is no text; what it says names the part."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message, and what it says of tools."""

    role: str
    """``system``, ``user`` or ``assistant``."""
    content: str
    name: str = ""
    """Who said it, where several are in one chat."""
    calls: tuple[tuple[str, str], ...] = ()
    """Id and name of each call in it."""
    results: tuple[tuple[str, str], ...] = ()
    """Id of the call, and what came of it."""


def chat(messages: Any) -> list[ChatMessage]:
    """Reads messages.

    Raises:
        UnreadableError: One has a part that is no text, or is no message.
    """
    try:
        return [_message(message) for message in messages]
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"a message that cannot be read ({type(error).__name__}: {error})") from error


def plain(messages: Iterable[ChatMessage]) -> list[dict[str, str]]:
    """Returns messages as templates take them: those of one role that follow each other are one."""
    out: list[dict[str, str]] = []
    for message in messages:
        if out and out[-1]["role"] == message.role:
            out[-1]["content"] += "\n" + message.content
        else:
            out.append({"role": message.role, "content": message.content})
    return out


def _message(message: Any) -> ChatMessage:
    given = str(message["role"]).lower()
    role = _ROLES.get(given, given)
    if role not in ("system", "user", "assistant"):
        raise UnreadableError(f"a message of role '{given}'")
    parts = _either(message, "parts content contents refusal") or []
    parts = [parts] if isinstance(parts, str | Mapping) else parts
    if given in ("tool", "function") and not any(_kind(part) == _RESULT for part in parts):
        call_id = _either(message, "tool_call_id id")
        parts = [{"type": _RESULT, "id": call_id, "response": "\n".join(map(_text, parts))}]
    words = [_text(part) for part in parts if _kind(part) not in ("tool_call", _RESULT, "reasoning")]
    results = tuple((_id(part), _result(part)) for part in parts if _kind(part) == _RESULT)
    calls = [part for part in parts if _kind(part) == "tool_call"]
    functions = message.get("tool_calls") or filter(None, [message.get("function_call")])
    calls += [{**call, **call.get("function", {})} for call in functions]
    lines = [*filter(None, words), *(f"<tool_response>\n{text}\n</tool_response>" for _, text in results)]
    if calls:
        lines.append(written([ToolCall(_named(call), _arguments(call)) for call in calls]))
    named = tuple((_id(call), _named(call)) for call in calls)
    return ChatMessage(role, "\n".join(lines), str(message.get("name") or ""), named, results)


def _either(table: Mapping[str, Any], keys: str) -> Any:
    """Returns what stands under the first of these keys that is there, None if none is."""
    return next((table[key] for key in keys.split() if table.get(key) is not None), None)


def _id(part: Mapping[str, Any]) -> str:
    return str(_either(part, "id call_id toolCallId tool_use_id"))


def _named(call: Mapping[str, Any]) -> str:
    return str(call.get("toolName") or call["name"])


def _kind(part: Any) -> str:
    kind = str(part.get("type", "text")).replace("-", "_") if isinstance(part, Mapping) else "text"
    return _KINDS.get(kind, kind)


def _text(part: Any) -> str:
    text = part.get("content", part.get("text")) if isinstance(part, Mapping) else part
    if "text" not in _kind(part) or not isinstance(text, str):
        raise UnreadableError(f"a part of type '{_kind(part)}' that is no text")
    return text


def _arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    given = _either(call, "arguments args input") or {}
    read = json.loads(given) if isinstance(given, str) else given
    if not isinstance(read, Mapping):
        raise UnreadableError(f"arguments of '{_named(call)}' that are no JSON object")
    return read


def _result(part: Mapping[str, Any]) -> str:
    value = _either(part, "response result output content")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# Rows ------------------------------------------------------------------------------------------------


def holds_rows(path: Path) -> bool:
    """Whether a file's first line is a reply with its messages, and no episode."""
    with path.open("rb") as file:
        try:
            first = json.loads(next((line for line in file if line.strip()), b"{}"))
        except (ValueError, RecursionError):
            return False
    return isinstance(first, Mapping) and "messages" in first


def read_rows(path: Path) -> Iterator[Episode]:
    """Yields the replies of a JSONL file, each as an episode of one turn that knows what its agent was told.

    A row is what ``trajectory.to_samples`` makes of a turn: ``messages``, ``action`` and ``agent``, and if wanted
    ``tools``, ``task_id`` and ``success``. One without ``success`` is worth imitating.

    Raises:
        DataError: A line is no such row; the message names it.
    """
    for number, where, row in rows.of_file(path, "with 'messages', 'action' and 'agent'"):
        text, agent = row.get("action"), row.get("agent")
        if not (isinstance(text, str) and isinstance(agent, str) and row.get("messages")):
            raise DataError(f"{where}: expected a row with 'messages', and text as 'action' and 'agent'.")
        try:
            told = plain(chat(row["messages"]))
        except UnreadableError as error:
            raise DataError(f"{where}: {error}.") from error
        task_id = str(row.get("task_id") or f"{path.stem}/{number}")
        who = AgentSpec(agent, str(row.get("role") or agent), "")
        turn, success = TurnRecord(0, 0, 0, agent, who.role, (), text), row.get("success") is not False
        episode = Episode("rows", None, task_id, (who,), [turn], [LayerRecord(0, 0, (0,))], [], True, success=success)
        episode.info[TOLD] = told, row.get("tools") or []
        yield episode
