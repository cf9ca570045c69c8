"""How values are written on the command line: ``KEY=VALUE`` for tables, so ``--lr actor_0=1e-4 reasoner_0=2e-4``."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from marft_algos.ranges import check

registry = ConstructorRegistry()
"""Use as ``with registry: tyro.cli(…)``."""


def value(text: str) -> Any:
    """A value as in TOML (``3``, ``true``, ``[0, 1]``) or JSON (``{"a": 1}``, ``null``), else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass  # it may be JSON
    try:
        return json.loads(text) if text[:1] in ("{", "[") or text == "null" else text
    except json.JSONDecodeError:
        return text


def over(base: Mapping[str, Any], given: Mapping[str, Any], preset: bool) -> dict[str, Any]:
    """Returns an environment's arguments: those typed over those that stand already; ``null`` takes one away.

    Args:
        base: Of a preset, a file or a run.
        given: As typed.
        preset: ``base`` is a preset's: made for the preset's domain of tools, and not kept for another one.
    """
    other = preset and given.get("domain", base.get("domain")) != base.get("domain")
    return {key: found for key, found in {**({} if other else base), **given}.items() if found is not None}


def _has_table(kind: Any) -> bool:
    if typing.get_origin(kind) is dict:
        return True
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return union and any(_has_table(part) for part in typing.get_args(kind))


@registry.primitive_rule
def _table(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if not _has_table(info.type):
        return None
    plain = typing.get_origin(info.type) is not dict

    def read(words: list[str]) -> Any:
        if plain and len(words) == 1 and "=" not in words[0]:
            return value(words[0])
        for word in words:
            if "=" not in word:
                raise ValueError(f"'{word}' is no KEY=VALUE")
        return {key: value(text) for key, _, text in (word.partition("=") for word in words)}

    def write(found: Any) -> list[str]:
        return [f"{k}={v}" for k, v in found.items()] if isinstance(found, dict) else [str(found)]

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="VALUE|KEY=VALUE…" if plain else "KEY=VALUE…",
        instance_from_str=read,
        is_instance=lambda found: isinstance(found, dict) or (plain and isinstance(found, str | int | float)),
        str_from_instance=write,
    )


def parse(kind: Any, argv: list[str], *, prog: str, description: str = "", **options: Any) -> Any:
    """Parses ``argv`` into ``kind`` (a dataclass or callable); errors and ``--help`` leave by ``SystemExit``."""
    with registry:
        given = tyro.cli(kind, args=argv, prog=prog, description=description or None, **options)
    if dataclasses.is_dataclass(given):
        check(given)
    return given
