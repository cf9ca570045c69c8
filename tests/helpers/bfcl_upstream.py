"""Upstream's own checker of the multi-turn tasks, to compare verdicts with; and ways to go wrong.

The checker runs calls through upstream's executor, which evaluates their text and keeps its objects in the global
variables of a module. Only literals written here by ``repr`` reach it, and what it keeps is removed after every run.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
from collections.abc import Sequence
from typing import Any

from marft_envs.call_formats.call import ToolCall
from marft_envs.families.tools.bfcl.data import BFCLTask

VARIABLE = "MARFT_TEST_BFCL"
ABSENT = (
    "the bfcl-eval package is not here: pip install --no-deps bfcl-eval mpmath, "
    f"or install it with --target FOLDER and set {VARIABLE}=FOLDER"
)
Turns = Sequence[Sequence[ToolCall]]


def place() -> tuple[bool, str | None]:
    """Returns whether the package is there, and the folder to give as ``package=`` (None: it is installed)."""
    named = os.environ.get(VARIABLE)
    return (True, named) if named else (importlib.util.find_spec("bfcl_eval") is not None, None)


def text(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def accepts(task: BFCLTask, turns: Turns) -> bool:
    """Returns the verdict of upstream's checker; the package must be loaded already."""
    module = "bfcl_eval.eval_checker.multi_turn_eval"
    checker, utils = (importlib.import_module(f"{module}.multi_turn_{name}") for name in ("checker", "utils"))
    entry: dict[str, Any] = {"id": task.id, "initial_config": task.config, "involved_classes": list(task.classes)}
    said = [[[text(call) for call in turn]] if turn else [] for turn in turns]
    gold = [[text(call) for call in turn] for turn in task.gold]
    before = set(vars(utils))
    try:
        return bool(checker.multi_turn_checker(said, gold, entry, task.id.rsplit("_", 1)[0], "compared")["valid"])
    finally:
        for name in set(vars(utils)) - before:
            delattr(utils, name)


def _changed(value: Any, rng: random.Random) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice([-1, 1, 7])
    if isinstance(value, float):
        return value * rng.choice([0.5, 2]) + 1
    if isinstance(value, str):
        return rng.choice([value + "x", value[:-1], value.upper(), "none"])
    if isinstance(value, list):
        return value[:-1] if value and rng.random() < 0.5 else [*value, *(value[:1] or ["x"])]
    return value


def spoiled(gold: Turns, rng: random.Random) -> tuple[str, list[list[ToolCall]]]:
    """Returns the gold with one call dropped, one argument changed, or two calls swapped, and which of the three."""
    spots = [(i, j) for i, turn in enumerate(gold) for j in range(len(turn))]
    while True:
        turns = [list(turn) for turn in gold]
        (i, j), (k, m) = rng.choice(spots), rng.choice(spots)
        one, two = turns[i][j], turns[k][m]
        kind = rng.choice(["dropped", "changed", "swapped"])
        if kind == "dropped":
            del turns[i][j]
            return kind, turns
        if kind == "changed" and one.arguments:
            name = rng.choice(list(one.arguments))
            turns[i][j] = ToolCall(one.name, {**one.arguments, name: _changed(one.arguments[name], rng)})
            return kind, turns
        if kind == "swapped" and one != two:
            turns[i][j], turns[k][m] = two, one
            return kind, turns
        if len(spots) == 1 and not one.arguments:
            return "dropped", [[] for _ in gold]
