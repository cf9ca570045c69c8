"""Builds a credit rule from its setting: a name, or a table of a rule with its arguments and prices."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from marft_algos.credit.costs import Priced
from marft_algos.credit.rewards import Rule, Setting, registered
from marft_envs.errors import ConfigError, did_you_mean


def get(setting: Setting) -> Rule:
    """Returns the credit rule of that name, or the one that a table describes.

    Raises:
        ConfigError: No such rule, or an argument that it does not take.
    """
    table = {"rule": setting} if isinstance(setting, str) else dict(setting)
    name = str(table.pop("rule", "broadcast"))
    if name not in registered:
        raise ConfigError(f"There is no credit rule '{name}'. {did_you_mean(name, registered)}")
    prices = {f.name: table.pop(f.name) for f in dataclasses.fields(Priced) if f.init and f.name in table}
    entry = registered[name]
    rule = _build(entry, table, f"credit rule '{name}'") if isinstance(entry, type) else entry
    if table and rule is entry:
        raise ConfigError(f"Credit rule '{name}' takes no arguments; got {', '.join(table)}.")
    if not prices:
        return rule
    priced = _build(Priced, prices, "credit")
    priced.rule = rule
    return priced


_RuleType = TypeVar("_RuleType", bound=Rule)


def _build(kind: type[_RuleType], table: Mapping[str, Any], what: str) -> _RuleType:
    """Returns an instance of a rule's class, its arguments checked."""
    hints = typing.get_type_hints(kind)
    known: list[str] = [f.name for f in dataclasses.fields(kind) if f.init] if dataclasses.is_dataclass(kind) else []
    values = {}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"The {what} takes no '{key}'. {did_you_mean(key, known)}")
        try:
            values[key] = TypeAdapter(hints[key]).validate_python(value)
        except ValidationError as error:
            raise ConfigError(f"The {what} cannot have {key} = {value!r}: {error.errors()[0]['msg']}.") from error
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"In the {what}: {error}") from error
