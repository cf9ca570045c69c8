"""Finds the call format of a chat template: it is shown a call and a result, and what it wrote must be read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product, takewhile
from typing import Any

from marft_envs.call_formats import CallFormat, find
from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import ConfigError

Render = Callable[..., str | None]
"""(messages, **options) -> text; None where the template refuses them."""

NAME = "zqxtool"
RESULT = "zqx5zqx"
CALL = ToolCall(NAME, {"place": "zqx6zqx", "days": 3})
_PARAMETERS = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["place", "days"],
}
TOOL = {"type": "function", "function": {"name": NAME, "description": "zqx7zqx", "parameters": _PARAMETERS}}
_OFF = (
    "Leave --template-tools off (the environment then writes them into the profiles, unless its show_tools is 'none')"
)


def call_format_of(spec: str, render: Render, head: Sequence[Mapping[str, Any]]) -> CallFormat:
    """Returns the call format in which a template writes calls.

    Args:
        spec: The model, for messages.
        render: Renders a conversation by the template.
        head: A conversation that ends with a user message, as the template takes it.

    Raises:
        ConfigError: It shows no tools, takes no calls, leaves them out, or writes them in a form that nobody reads.
    """
    prompt = render(head, tools=[TOOL]) or ""
    if NAME not in prompt:
        raise ConfigError(
            f"The chat template of '{spec}' shows no tools. {_OFF}, or choose a model whose template takes tools."
        )
    call_format, reason = read_back(render, head, prompt)
    if call_format is None:
        raise ConfigError(
            f"The calls that the chat template of '{spec}' writes cannot be read back: {reason}. {_OFF}, or choose a"
            " model whose form of calls is in docs/call-formats.md."
        )
    return call_format


def read_back(render: Render, head: Sequence[Mapping[str, Any]], prompt: str) -> tuple[CallFormat | None, str]:
    """Returns the call format in which a template writes a call, or None and the reason.

    Args:
        render: Renders a conversation by the template.
        head: A conversation that ends with a user message.
        prompt: What the template makes of it, with the opening of the reply.
    """
    reason = "it refuses a conversation with a call"
    for arguments, content, turn in product(
        (dict(CALL.arguments), json.dumps(CALL.arguments)), ("", None), ({"add_generation_prompt": False}, {})
    ):
        function = {"name": NAME, "arguments": arguments}
        call = {"id": "call00000", "type": "function", "function": function}
        said = {"role": "assistant", "content": content, "tool_calls": [call]}
        result = {"role": "tool", "content": RESULT, "name": NAME, "tool_call_id": "call00000"}
        if (text := render([*head, said, result], tools=[TOOL], **turn)) is None:
            continue
        if RESULT not in text:
            reason = "it leaves the results of calls out"
            continue
        found = find(text[common(prompt, text) : text.rindex(RESULT)], [CALL], {NAME: _PARAMETERS})
        if found.call_format is not None:
            return found.call_format, ""
        reason = found.reason
    return None, reason


def common(prompt: str, text: str) -> int:
    """Returns how long both begin alike, not ending within a mark: ``<think>`` and ``<tool_call>`` begin alike, too."""
    shared = prompt[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, text, strict=False)))]
    for opening, closing in ("<>", "[]"):
        start = shared.rfind(opening)
        if start >= 0 and closing not in shared[start:]:
            shared = shared[:start]
    return len(shared)
