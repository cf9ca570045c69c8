"""What an agent reads of its task: the policy, the tools, and what the user has said."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from marft_envs.call_formats import CallFormat
from marft_envs.core.teams import Team
from marft_envs.core.types import Show, TurnRecord
from marft_envs.families.tools import screen
from marft_envs.families.tools.types import Tool

SHOWN = ("openai", "call_format", "signatures", "names", "none")
"""How an agent's tools stand in its observation."""


def signature(tool: Tool) -> str:
    """Returns a tool as one line, like ``refund(order_id: string, amount?: number): Refunds an order``."""
    required = tool.parameters.get("required", ())
    named = []
    for name, schema in tool.parameters.get("properties", {}).items():
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        word = kind if isinstance(kind, str) else "any"
        named.append(f"{name}{'' if name in required else '?'}: {word}")
    return f"{tool.name}({', '.join(named)}): {tool.description}".split("\n", 1)[0]


def tools(kind: str, mine: Sequence[Tool], others: Mapping[str, Sequence[Tool]], call_format: CallFormat) -> list[str]:
    """Returns paragraphs about tools.

    Args:
        kind: One of :data:`SHOWN`.
        mine: What the reader can call now.
        others: Role -> what it can call; names only are shown.
        call_format: The reader's.
    """
    if kind == "none":
        return []
    out = []
    if lines := [f"{role}: {', '.join(tool.name for tool in held)}" for role, held in others.items() if held]:
        out.append("\n".join(["Tools of the others:", *lines]))
    if mine and kind == "names":
        out.append(f"Your tools: {', '.join(tool.name for tool in mine)}")
    elif mine and kind == "call_format":
        out.append(call_format.tools([tool.openai() for tool in mine]))
    elif mine:
        out.append("\n".join(["Your tools:", *(tool.line if kind == "openai" else signature(tool) for tool in mine)]))
    return out


def document(text: str, readers: frozenset[str] | None, reader: str) -> list[str]:
    """Returns a paragraph with a text of others for those who see it; ``readers`` are None where everybody does."""
    return [f"The letter:\n{text}"] if text and (readers is None or reader in readers) else []


_ONE = re.compile(
    r"[A-Za-z]{1,24}"
    r"|-?\d{1,9}([.]\d{1,4})?"
    r"|\d{4}-\d\d-\d\d([ T]\d\d:\d\d)?|\d\d:\d\d"
    r"|[A-Z]{2}\d{2}[A-Z\d]{11,30}"
    r"|[A-Za-z\d]{1,16}([.-][A-Za-z\d]{1,16})?@[A-Za-z\d-]{1,24}([.][A-Za-z]{2,12}){1,2}"
)
"""A word, a number, a date, a time, an IBAN, or an email address."""


def terse(text: str) -> bool:
    """Returns whether a text is one word or one number."""
    return _ONE.fullmatch(text.strip()) is not None


def tersely(team: Team, otherwise: Show | None) -> Show | None:
    """Returns how turns stand in others' observations where some agents may only say one word or one number.

    Args:
        team: What its terse agents say is shown as a question mark if it is anything else, or, where some agents are
            screened, as a name that these can write for it.
        otherwise: How the turns of all others stand there.
    """
    return partial(_tersely, team, otherwise) if team.terse else otherwise


def _tersely(
    team: Team, otherwise: Show | None, turn: TurnRecord, reader: str, sees: Sequence[int]
) -> tuple[str, str] | None:
    if turn.agent in team.terse:
        return turn.spoken.strip() if terse(turn.spoken) else screen.name(turn) if team.screened else "?", ""
    return None if otherwise is None else otherwise(turn, reader, sees)


def user(words: Sequence[str], *, own: bool) -> list[str]:
    """Returns paragraphs with the user's words, one per user turn; ``own``: the reader plays the user."""
    tags = [f", round {i + 1}" if i else "" for i in range(len(words))]
    whose = "What you want" if own else "The user says"
    return [f"{whose}{tag}:\n{text}" for tag, text in zip(tags, words, strict=True)]
