"""What crosses the wire: tools, values and errors as MCP has them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from marft_envs.errors import ConfigError, MissingExtraError, check_known
from marft_envs.families.tools.schema import check_tool, closed
from marft_envs.families.tools.types import Tool

TOOL_CHARS = 50_000
"""Characters of one tool's description and schema, and of a server's instructions: more than most contexts hold."""
ALL_CHARS = 500_000
"""Characters of all tools together; show_tools=names may still hide most of them."""


def library() -> Any:
    """Returns the package ``mcp``.

    Raises:
        MissingExtraError: If it is not installed, or older than 2.
    """
    try:
        import mcp
        from mcp import Client  # noqa: F401  # older versions have none
    except ImportError as error:
        raise MissingExtraError("MCP", "mcp") from error
    return mcp


def from_mcp(listed: Any, timeout_s: float, read_only: Collection[str]) -> Tool:
    """Returns an ``mcp.types.Tool`` as a tool with a strict schema.

    Raises:
        ConfigError: If its name or schema cannot be used.
    """
    hints = listed.annotations
    tool = Tool(
        name=listed.name,
        description=listed.description or listed.title or "",
        parameters=closed(listed.input_schema),
        read_only=listed.name in read_only or bool(hints and hints.read_only_hint),
        idempotent=bool(hints and hints.idempotent_hint),
        timeout_s=timeout_s,
    )
    try:
        check_tool(tool)
    except ConfigError as error:
        raise ConfigError(f"{error} To do without this tool, name the others with tools=[…].") from error
    return tool


def chosen(
    given: list[Any], wanted: Collection[str] | None, timeout_s: float, read_only: Collection[str]
) -> list[Tool]:
    """Returns those of a server's tools that agents may hold.

    Raises:
        ConfigError: If a wanted tool does not exist, or one cannot be used.
    """
    known = {tool.name: tool for tool in given}
    check_known([*(wanted or ()), *read_only], known, "The MCP server has no tool '{}'.")
    names = known if wanted is None else [name for name in known if name in wanted]
    return [from_mcp(known[name], timeout_s, read_only) for name in names]


def check_size(tools: Sequence[Tool], instructions: str) -> None:
    """Checks that what a server says about itself can stand in every prompt.

    Raises:
        ConfigError: Something is too long; the message names it.
    """
    sizes = {tool.name: len(tool.description) + len(json.dumps(tool.parameters)) for tool in tools}
    longest = max(sizes, key=lambda name: sizes[name], default="")
    if longest and sizes[longest] > TOOL_CHARS:
        raise ConfigError(
            f"The MCP server's tool '{longest}' has a description and schema of {sizes[longest]} characters, and agents"
            f" read it in every prompt; at most {TOOL_CHARS}. To do without this tool, name the others with tools=[…]."
        )
    if sum(sizes.values()) > ALL_CHARS:
        raise ConfigError(
            f"The MCP server's {len(sizes)} tools have descriptions and schemas of {sum(sizes.values())} characters; at"
            f" most {ALL_CHARS}. Name those that agents need with tools=[…]."
        )
    if len(instructions) > TOOL_CHARS:
        raise ConfigError(
            f"The MCP server's instructions have {len(instructions)} characters; at most {TOOL_CHARS}. Write your own"
            " with policy=…"
        )


def value_of(result: Any) -> Any:
    """Returns what a ``CallToolResult`` holds as one JSON value.

    Structured content is taken as it is. Text that is a JSON object or list is read as one; other text stays text.
    Pictures, sounds and binary resources are only named: agents read text.
    """
    if result.structured_content is not None:
        return result.structured_content
    parts = [_part(block) for block in result.content]
    return None if not parts else parts[0] if len(parts) == 1 else parts


def text_of(result: Any) -> str:
    """Returns a result's text, for errors."""
    return "\n".join(block.text for block in result.content if block.type == "text")


def _part(block: Any) -> Any:
    if block.type == "text":
        return _read(block.text)
    if block.type == "resource" and hasattr(block.resource, "text"):
        return _read(block.resource.text)
    dumped: Mapping[str, Any] = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    kept = {key: value for key, value in dumped.items() if key not in ("data", "_meta")}
    if block.type == "resource":
        kept["resource"] = {key: value for key, value in dumped["resource"].items() if key != "blob"}
    return kept


def _read(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return text


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
