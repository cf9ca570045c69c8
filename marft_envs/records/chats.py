"""Messages of others (OpenAI's chat API, OpenTelemetry's parts) as chats of text; what is unread; rows of replies.

A call stands in an assistant's text as ``<tool_call>{…}</tool_call>``, what came of it in a user's as
``<tool_response>…</tool_response>``: the form of Hermes and Qwen, which agents here write and read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from marft_envs.call_formats import written
from marft_envs.call_formats.call import ToolCall
from marft_envs.core.types import AgentSpec, Episode, LayerRecord, TurnRecord
from marft_envs.errors import DataError
from marft_envs.problems import rows
from marft_envs.records.secrets import masked as masked

PROMPT = "prompt"
"""Key in ``Episode.info`` of a reply that was read from a row: its agent's prompt, and the tools it had."""
_RESULT = "tool_call_response"
_KINDS = {
    "thinking": "reasoning", "redacted_thinking": "reasoning", "tool_use": "tool_call", "function_call": "tool_call",
    "tool_result": _RESULT, "function_call_output": _RESULT,
}  # fmt: skip
"""What others call parts."""
_IDS = "call_id toolCallId tool_use_id tool_call_id id"
_ROLES = {"developer": "system", "model": "assistant", "tool": "user", "function": "user"}


class UnreadableError(ValueError):
    """A message that is no text; what it says names the part."""


class Unread:
    """Collects reasons why something was not read, each once with its first place; or how many things were left out."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, int]] = {}

    def count(self, what: str, number: int = 1, where: str = "") -> None:
        """Notes a reason at its place; without a place, a number of things."""
        if number:
            place, before = self._found.get(what, (where, 0))
            self._found[what] = place, before + number

    @contextmanager
    def noted(self, where: str) -> Iterator[None]:
        """Notes what is wrong with what others wrote, and goes on."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            name = "" if isinstance(error, UnreadableError) else f"{type(error).__name__}: "
            self.count(f"{name}{error}", where=where)

    def lines(self) -> list[str]:
        """Says all of it, a line a reason, numbers first."""
        counted = [f"{n} {what}" for what, (where, n) in self._found.items() if not where]
        placed = [(f"{where}, and {n - 1} more" if n > 1 else where, what) for what, (where, n) in self._found.items()]
        return counted + [f"{where}: {what}" for where, what in placed if self._found[what][0]]


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
    of_a_role = groupby(messages, key=lambda message: message.role)
    return [{"role": role, "content": "\n".join(message.content for message in those)} for role, those in of_a_role]


def _message(message: Any) -> ChatMessage:
    given = str(message["role"]).lower()
    role = _ROLES.get(given, given)
    if role not in ("system", "user", "assistant"):
        raise UnreadableError(f"a message of role '{given}'")
    parts = first(message, "parts content contents refusal", [])
    parts = [parts] if isinstance(parts, str | Mapping) else parts
    if given in ("tool", "function") and not any(_kind(part) == _RESULT for part in parts):
        parts = [{"type": _RESULT, "id": first(message, "tool_call_id id"), "response": "\n".join(map(_text, parts))}]
    words = [_text(part) for part in parts if _kind(part) not in ("tool_call", _RESULT, "reasoning")]
    results = tuple((str(first(part, _IDS)), _result(part)) for part in parts if _kind(part) == _RESULT)
    functions = message.get("tool_calls") or filter(None, [message.get("function_call")])
    calls = [_numbered(part) for part in parts if _kind(part) == "tool_call"]
    calls += [call for call in map(_numbered, functions) if not call[0] or call not in calls]  # some write both
    lines = [*filter(None, words), *(f"<tool_response>\n{text}\n</tool_response>" for _, text in results)]
    if calls:
        lines.append(written([call for _, call in calls]))
    named = tuple((call_id, call.name) for call_id, call in calls)
    return ChatMessage(role, "\n".join(lines), str(first(message, "name")), named, results)


def first(table: Mapping[str, Any], keys: str, default: Any = "") -> Any:
    """Returns what stands under the first of these keys that is there and not empty."""
    return next((table[key] for key in keys.split() if table.get(key)), default)


def _kind(part: Any) -> str:
    kind = str(part.get("type", "text")).replace("-", "_") if isinstance(part, Mapping) else "text"
    return _KINDS.get(kind, kind)


def _text(part: Any) -> str:
    text = part.get("content", part.get("text")) if isinstance(part, Mapping) else part
    if "text" not in _kind(part) or not isinstance(text, str):
        raise UnreadableError(f"a part of type '{_kind(part)}' that is no text")
    return text


def _numbered(call: Mapping[str, Any]) -> tuple[str, ToolCall]:
    return str(first(call, _IDS)), _call({**call, **call.get("function", {})})


def _call(call: Mapping[str, Any]) -> ToolCall:
    name, given = str(call.get("toolName") or call["name"]), first(call, "arguments args input", {})
    if call.keys().isdisjoint(("arguments", "args", "input")):
        raise UnreadableError(f"a call of '{name}' without its arguments")
    read = json.loads(given) if isinstance(given, str) else given
    if not isinstance(read, Mapping):
        raise UnreadableError(f"arguments of '{name}' that are no JSON object")
    return ToolCall(name, read)


def _result(part: Mapping[str, Any]) -> str:
    value = next((part[key] for key in ("response", "result", "output", "content") if part.get(key) is not None), None)
    value = value["value"] if isinstance(value, Mapping) and value.keys() == {"type", "value"} else value
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
    """Yields the replies of a JSONL file, each as an episode of one turn that knows its agent's prompt.

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
            prompt = plain(chat(row["messages"]))
        except UnreadableError as error:
            raise DataError(f"{where}: {error}.") from error
        task_id = str(row.get("task_id") or f"{path.stem}/{number}")
        who = AgentSpec(agent, str(row.get("role") or agent), "")
        turn, success = TurnRecord(0, 0, 0, agent, who.role, (), text), row.get("success") is not False
        episode = Episode("rows", None, task_id, (who,), [turn], [LayerRecord(0, 0, (0,))], [], True, success=success)
        episode.info[PROMPT] = prompt, row.get("tools") or []
        yield episode
