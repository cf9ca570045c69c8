"""Reads an episode from untrusted data; data that is not a record raises an error that names the field.

An ``Episode`` that was read has the right types, and its indices are those of turns, layers and agents that exist.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn, cast, get_args

from marft_envs.core.plain_data import CRITICAL_PATH
from marft_envs.core.types import (
    AgentSpec,
    Episode,
    Example,
    Fault,
    LayerRecord,
    RoundRecord,
    Segment,
    Skill,
    TurnRecord,
)
from marft_envs.errors import DataError, did_you_mean

Check = Callable[[Any, str], Any]
"""Takes a value and where it stands; returns it as an episode holds it, or raises DataError."""

_LONGEST = 40
_ALWAYS = ("fault", "asked")
"""Required fields: without them an infrastructure error would count as a score, and D would be the wrong one."""


def episode_of(data: Any) -> Episode:
    """Returns the episode that data of a record hold.

    Raises:
        DataError: Naming the field that is missing, unknown, of a wrong type, or an index of nothing.
    """
    if isinstance(data, Mapping):
        data = {name: value for name, value in data.items() if name != CRITICAL_PATH}
    episode: Episode = _object(data, "", Episode, _EPISODE)
    _check_indices(episode)
    return episode


# Values -------------------------------------------------------------------------------------------------


def _wrong(value: Any, where: str, expected: str) -> NoReturn:
    if isinstance(value, str):
        shown = ascii(value if len(value) <= _LONGEST else value[:_LONGEST] + "…")
    elif value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 64):
        shown = repr(value)
    else:
        shown = f"of type {type(value).__name__}"
    raise DataError(f"No episode record: {where or 'it'} is {shown}; expected {expected}.")


def _text(value: Any, where: str) -> str:
    return value if isinstance(value, str) else _wrong(value, where, "a text")


def _flag(value: Any, where: str) -> bool:
    return value if isinstance(value, bool) else _wrong(value, where, "true or false")


def _count(value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    _wrong(value, where, "a whole number, 0 or more")


def _bit(value: Any, where: str) -> int:
    return value if _count(value, where) < 2 else _wrong(value, where, "0 or 1")


def _number(value: Any, where: str) -> float:
    """Reads any number, as it was written; a metric may be true or false."""
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64):
        return value
    _wrong(value, where, "a number")


def _fault(value: Any, where: str) -> Fault:
    if isinstance(value, str) and value in get_args(Fault):
        return cast("Fault", value)
    _wrong(value, where, f"one of {', '.join(map(repr, get_args(Fault)))}")


def _optional(check: Check, value: Any, where: str) -> Any:
    return None if value is None else check(value, where)


def _list(check: Check, value: Any, where: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        _wrong(value, where, "a list")
    return [check(item, f"{where}[{i}]") for i, item in enumerate(value)]


def _tuple(check: Check, value: Any, where: str) -> tuple[Any, ...]:
    return tuple(_list(check, value, where))


def _table(check: Check | None, value: Any, where: str) -> dict[str, Any]:
    """Reads an object with any names; of their values nothing is expected where there is no check."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        _wrong(value, where, "an object")
    return {name: item if check is None else check(item, f"{where}.{_named(name)}") for name, item in value.items()}


def _by_turn(check: Check, value: Any, where: str) -> dict[int, Any]:
    """Reads turn -> what is said of it; JSON's keys are text."""
    if not isinstance(value, Mapping):
        _wrong(value, where, "an object")
    out = {}
    for name, item in value.items():
        whole = isinstance(name, str) and name.isascii() and name.isdigit() and len(name) < 19
        turn = _count(int(name) if whole else name, f"a name in {where}")
        out[turn] = check(item, f"{where}.{turn}")
    return out


def _segment(value: Any, where: str) -> Segment:
    span = _list(_number, value, where)
    if len(span) != 3:
        _wrong(value, where, "start, end and reward")
    return _count(span[0], f"{where}[0]"), _count(span[1], f"{where}[1]"), span[2]


def _edge(value: Any, where: str) -> tuple[int, int]:
    pair = _list(_count, value, where)
    return (pair[0], pair[1]) if len(pair) == 2 else _wrong(value, where, "two indices of turns")


# Objects ------------------------------------------------------------------------------------------------


def _named(name: Any) -> str:
    return ascii(name[:_LONGEST])[1:-1] if isinstance(name, str) else type(name).__name__


def _object(value: Any, where: str, cls: type, checks: Mapping[str, Check]) -> Any:
    """Reads a dataclass from an object that has its fields, and no others."""
    if not isinstance(value, Mapping):
        _wrong(value, where, "an object")
    dot = f"{where}." if where else ""
    for name in value:
        if name not in checks:
            raise DataError(f"No episode record: {dot}{_named(name)} is unknown. {did_you_mean(_named(name), checks)}")
    for field in dataclasses.fields(cls):
        needed = field.default is field.default_factory is dataclasses.MISSING or field.name in _ALWAYS
        if needed and field.name not in value:
            raise DataError(f"No episode record: {dot}{field.name} is missing. Expected what trajectory.write wrote.")
    return cls(**{name: checks[name](item, dot + name) for name, item in value.items()})


_EXAMPLE = partial(_object, cls=Example, checks={"user": _text, "assistant": _text})
_SKILL = partial(_object, cls=Skill, checks=dict.fromkeys(("name", "when", "text"), _text))
_AGENT: dict[str, Check] = {
    "name": _text, "role": _text, "prompt": _text, "with_answer": _flag, "examples": partial(_tuple, _EXAMPLE),
    "skills": partial(_tuple, _SKILL), "trained": _flag,
}  # fmt: skip
_TURN: dict[str, Check] = {
    "index": _count, "round": _count, "layer": _count, "agent": _text, "role": _text, "sees": partial(_tuple, _count),
    "text": _text, "reward": _number, "extras": partial(_optional, partial(_table, None)), "result": _text,
    "max_chars": partial(_optional, _count),
}  # fmt: skip
_LAYER: dict[str, Check] = {
    "index": _count, "round": _count, "turns": partial(_tuple, _count), "team_reward": _number,
    "agent_rewards": partial(_table, _number), "late_rewards": partial(_by_turn, _number),
    "segments": partial(_by_turn, partial(_list, _segment)),
}  # fmt: skip
_MATRIX = partial(_list, partial(_list, _bit))
_ROUND: dict[str, Check] = {"index": _count, "D": _MATRIX, "edges": partial(_list, _edge), "asked": _MATRIX}
_OBJECT, _OBJECTS = partial(_table, None), partial(_list, partial(_table, None))
_EPISODE: dict[str, Check] = {
    "env_id": _text, "seed": partial(_optional, _count), "task_id": _text,
    "agents": partial(_tuple, partial(_object, cls=AgentSpec, checks=_AGENT)),
    "turns": partial(_list, partial(_object, cls=TurnRecord, checks=_TURN)),
    "layers": partial(_list, partial(_object, cls=LayerRecord, checks=_LAYER)),
    "rounds": partial(_list, partial(_object, cls=RoundRecord, checks=_ROUND)),
    "terminated": _flag, "truncated": _flag, "success": partial(_optional, _flag), "stop_reason": _text,
    "metrics": partial(_table, _number), "info": _OBJECT, "invalid": _count, "invalid_routes": _OBJECTS,
    "cuts": _OBJECTS, "env_kwargs": _OBJECT, "options": _OBJECT, "index": _count, "fault": _fault,
}  # fmt: skip


# Indices ------------------------------------------------------------------------------------------------


def _check_indices(episode: Episode) -> None:
    """Checks that what is named by its index is there, and that what was seen was said before."""
    names = [agent.name for agent in episode.agents]
    if len(set(names)) < len(names):
        _wrong(names[-1], f"agents[{len(names) - 1}].name", "names that differ")
    for i, turn in enumerate(episode.turns):
        where = f"turns[{i}]"
        _expect(holds=turn.index == i, value=turn.index, where=f"{where}.index", expected=f"{i}, its place")
        _expect(holds=turn.agent in names, value=turn.agent, where=f"{where}.agent", expected="one of the agents")
        _below(len(episode.layers), [turn.layer], f"{where}.layer", "a layer")
        _below(i, turn.sees, f"{where}.sees", "a turn before it")
    for i, layer in enumerate(episode.layers):
        _below(len(episode.turns), layer.turns, f"layers[{i}].turns", "a turn")
        _below(len(episode.turns), layer.late_rewards, f"layers[{i}].late_rewards", "a turn")
        _below(len(episode.turns), layer.segments, f"layers[{i}].segments", "a turn")
        for k, spans in layer.segments.items():
            length = len(episode.turns[k].text)
            for span in spans:
                where = f"layers[{i}].segments.{k}"
                _expect(
                    holds=span[0] < span[1] <= length,
                    value=list(span),
                    where=where,
                    expected=f"spans of a text of {length} characters",
                )
    for i, record in enumerate(episode.rounds):
        for seen, seer in record.edges:
            _below(len(episode.turns), [seer], f"rounds[{i}].edges", "a turn")
            _below(seer, [seen], f"rounds[{i}].edges", "a turn before the one that sees it")
        for name, matrix in (("D", record.D), ("asked", record.asked)):
            square = [len(names)] * len(names)
            whole = [len(row) for row in matrix] == square or (name == "asked" and not matrix)
            _expect(
                holds=whole,
                value=matrix,
                where=f"rounds[{i}].{name}",
                expected=f"{len(names)} rows of {len(names)}, as there are agents",
            )


def _below(limit: int, indices: Any, where: str, what: str) -> None:
    for index in indices:
        _expect(holds=index < limit, value=index, where=where, expected=f"{what}; there are {limit}")


def _expect(*, holds: bool, value: Any, where: str, expected: str) -> None:
    if not holds:
        _wrong(value, where, expected)
