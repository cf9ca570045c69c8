"""Builds a credit rule from its setting: a name, or a table of a rule with its arguments and costs."""

from __future__ import annotations

import dataclasses
from typing import Any

from marft_algos.credit.costs import WithCosts
from marft_algos.credit.rewards import Rule, Setting, registered
from marft_algos.ranges import checked, hints
from marft_envs.errors import ConfigError, check_known


def get(setting: Setting) -> Rule:
    """Returns the credit rule of that name, or the one that a table describes.

    Raises:
        ConfigError: No such rule, or an argument that it does not take.
    """
    table = {"rule": setting} if isinstance(setting, str) else dict(setting)
    name = str(table.pop("rule", "broadcast"))
    check_known([name], registered, "There is no credit rule '{}'.")
    costs = {key: table.pop(key) for key in hints(WithCosts) if key in table}
    entry: Any = registered[name]
    if table and not dataclasses.is_dataclass(entry):
        raise ConfigError(f"Credit rule '{name}' takes no arguments; got {', '.join(table)}.")
    if dataclasses.is_dataclass(entry):
        rule: Rule = checked(entry, table, where=f"the credit rule '{name}'")
    else:
        rule = entry() if isinstance(entry, type) else entry
    if not costs:
        return rule
    with_costs: WithCosts = checked(WithCosts, costs, where="the credit")
    with_costs.rule = rule
    return with_costs
