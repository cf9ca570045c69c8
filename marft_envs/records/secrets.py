"""Masks what looks like a key or a password, in texts and in tables, before others' words are written or shown.

The rules are data: how makers write their keys, what stands around a secret, and names that stand before one. It is a
net with holes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from marft_envs import tables

MASK = "***"
_RULES = tables.read("marft_envs.records", "secrets")
"""``secrets.toml`` says what each list of them is."""
_BLOCK = r"-{4,5} ?BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)? ?-{4,5}.*?(?:-{4,5} ?END [A-Z0-9 ]*KEY(?: BLOCK)? ?-{4,5}|\Z)"
_NO = r"(?!(?:is|was|are|must|should|may|and|or|in|of|for|with|has|from|to|not|required|missing|invalid|authenti\w+)\b)"
_OPEN = r"[\"'`\\\]*]*\s*[:=]\s*[\"'`\\]*"
_SHAPES = [shape.replace("<OPEN>", _OPEN).replace("<NO>", _NO) for shape in _RULES["shapes"]]
_SURE, _LIKELY, _OTHER, _KEPT, _KEYS = ("|".join(_RULES[key]) for key in ("sure", "likely", "other", "kept", "keys"))
_BEHIND = r"(?:s|\d{1,3})?(?:[-_]\w{1,20}|(?-i:[A-Z]\w{1,15}))?"
_NAME = rf"(?:(?P<sure>{_SURE})|{_LIKELY})(?![-_]?(?:{_OTHER})(?![a-z])){_BEHIND}"
_PAIR = (
    rf"(?is)(?P<name>{_NAME})(?P<sep>[\"'`\\\]*]*(?:\s*(?::=|=>|:\s*(?:str|string|bytes)\s*=|[:=])(?:\*\*(?!\*))?\s*(?:[rbfu]{{1,2}}(?=[\"']))?"
    r"|,\s*\\*[\"']value\\*[\"']\s*:\s*|>(?=[^<\n]+</)))(?:(?P<quote>\\*[\"'`])(?P<quoted>.{0,4000}?(?<!\\)(?=(?P=quote))|[^\n]*)"
    r"|(?P<bare>(?<=>)[^<\n]+(?=</)|(?:[^\s\"'`&;<>]|&(?![\w.-]+=)|;(?=\S)(?![\w ]+=))+))"
)
_CODE = r"[a-z_][\w.]*[(\[].*"
_WORD = r"[A-Za-z]?[a-z_]*(?:\.[a-z_]+)*\W*|\d{1,5}\W*"
_ALONE = r"(?:^|[\n\"'`{,])[ \t]*[\w.-]*$"
_SCHEMA = {"type", "$ref", "anyOf", "oneOf", "allOf", "properties"}
_VALUES = {"default", "const", "enum", "example", "examples", "value"}
"""What says that a table defines a value; and what is one there."""
_MADE = rf"(?is)(?<![A-Za-z0-9])(?:{_KEYS})|{_BLOCK}"
_SECRET_NAME = rf"(?is).*?{_NAME}"


def masked(value: Any) -> Any:
    """Returns a text with ``***`` for what looks like a secret; lists and tables with all their texts, keys too.

    In a table, what stands under the name of a secret is masked whole.
    """
    if isinstance(value, str):
        text = re.sub(_MADE, MASK, value)
        for shape in _SHAPES:
            text = re.sub(shape, rf"\g<1>{MASK}", text, flags=re.IGNORECASE)
        return re.sub(_PAIR, _pair, text)
    if isinstance(value, Mapping):
        named = next((value[key] for key in ("name", "key") if isinstance(value.get(key), str)), "")
        behind = {key: re.fullmatch(_SECRET_NAME, named if key == "value" else str(key)) for key in value}
        return {masked(key): _whole(one, behind[key]) for key, one in value.items()}
    return [masked(inner) for inner in value] if isinstance(value, list | tuple) else value


def _whole(value: Any, name: re.Match[str] | None) -> Any:
    """Masks what stands under a name in a table; all of it, if it is the name of a secret."""
    if name is None or value is None or isinstance(value, bool):
        return masked(value)
    if isinstance(value, Mapping):
        inner = value.keys() & _VALUES if value.keys() & _SCHEMA else value.keys()
        return {masked(key): _whole(one, name) if key in inner else masked(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(one, name) for one in value]
    kept = _KEPT if name["sure"] else rf"{_KEPT}|{_CODE}|\d{{1,5}}"
    return value if re.fullmatch(rf"(?is){kept}", str(value)) else MASK


def _pair(found: re.Match[str]) -> str:
    """Masks the value of a name and a value in a text, unless it is none of a secret."""
    name, sep, quote = found["name"], found["sep"], found["quote"] or ""
    value = found["quoted"] if quote else found["bare"]
    kept: Any = re.fullmatch(rf"(?is){_KEPT}{'' if quote and found['sure'] else f'|{_CODE}'}", value)
    if not quote:
        kept = kept or re.match(rf"(?!{_NO})|{re.escape(name)}\W*$", value, re.IGNORECASE)
        kept = kept or ("pwd" in name.lower() and value[:1] in "/~")
    if not (kept or quote or found["sure"] or sep == "=") and re.fullmatch(_WORD, value):
        before = found.string[max(0, found.start() - 40) : found.start()]
        alone = re.search(_ALONE, before) and found.string[found.end() : found.end() + 1] in "\n\"'`}"
        kept = value[:1].isdigit() or not (alone or re.search(r"\w[-_]$", before) or re.search("[-_]", name))
    end = "" if quote else value[len(value.rstrip(",.)}]")) :]
    return found[0] if kept else f"{name}{sep}{quote}{MASK}{end}"
