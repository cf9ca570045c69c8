"""Trajectories as plain values, and back to the bit: what a checkpoint holds of episodes that wait to be learnt from.

A checkpoint is a file that anybody may have written, so it holds no objects: records are tables of their fields under
the name of their class, and only classes that are listed here are ever made of them. A record that stands in several
places (a turn, in its episode and in its transition) is one record afterwards, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from marft_algos import types
from marft_algos.credit.diagnostics import Judged
from marft_envs.core import types as records
from marft_envs.errors import DataError

_CLASS, _VALUE = "~class", "~value"
_CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        *(types.Trajectory, types.Transition, types.GenerationRequest, types.Generation, Judged),
        *(records.Episode, records.TurnRecord, records.LayerRecord, records.RoundRecord),
        *(records.AgentSpec, records.Example, records.PlannedTurn),
    )
}


def pack(value: Any) -> Any:
    """Returns trajectories, or whatever they hold, as plain values: None, numbers, text, lists, tuples and tables.

    Objects that a task has put into its records and that are none of these come as their description, as in
    ``marft_envs.records.trajectory``: nothing is learnt from them.
    """
    return _pack(value, {})


def unpack(value: Any) -> Any:
    """Returns what ``pack`` was given.

    Raises:
        DataError: A class that trajectories do not hold, or fields that it does not have.
    """
    return _unpack(value, {})


def _pack(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if id(value) in known:
        return known[id(value)][1]
    packed: Any
    if type(value) in _CLASSES.values():
        fields = {f.name: _pack(getattr(value, f.name), known) for f in dataclasses.fields(value)}
        packed = {_CLASS: type(value).__name__, _VALUE: fields}
    elif isinstance(value, types.StopReason):
        packed = {_CLASS: "StopReason", _VALUE: value.value}
    elif isinstance(value, str | int | float):
        packed = next(kind(value) for kind in (str, int, float) if isinstance(value, kind))
    elif isinstance(value, np.ndarray):
        packed = {_CLASS: "array", _VALUE: (str(value.dtype), value.tolist())}
    elif isinstance(value, np.generic):
        packed = value.item()
    elif isinstance(value, Mapping):
        table = {_pack(k, known): _pack(v, known) for k, v in value.items()}
        packed = {_CLASS: "table", _VALUE: table} if _CLASS in table else table
    elif isinstance(value, set | frozenset):
        packed = {_CLASS: type(value).__name__, _VALUE: sorted((_pack(x, known) for x in value), key=repr)}
    elif isinstance(value, list | tuple | range):
        items = [_pack(x, known) for x in value]
        packed = tuple(items) if isinstance(value, tuple) else items
    else:
        packed = {"__repr__": repr(value)}
    known[id(value)] = value, packed  # the value, too: its id is its own only while it lives
    return packed


def _unpack(value: Any, known: dict[int, Any]) -> Any:
    if isinstance(value, list | tuple):
        items = [_unpack(x, known) for x in value]
        return tuple(items) if isinstance(value, tuple) else items
    if not isinstance(value, Mapping):
        return value
    wrapped = value.get(_CLASS) == "table"  # around a table with a name that looks like ours
    if wrapped or _CLASS not in value:
        return {_unpack(k, known): _unpack(v, known) for k, v in (value[_VALUE] if wrapped else value).items()}
    if id(value) not in known:
        known[id(value)] = _made(value[_CLASS], _unpack(value.get(_VALUE), known))
    return known[id(value)]


def _made(name: Any, value: Any) -> Any:
    try:
        return _PLAIN[name](value) if name in _PLAIN else _CLASSES[name](**value)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"No packed trajectory: {name!r} cannot be made ({error!r}).") from error


def _array(value: Sequence[Any]) -> np.ndarray:
    dtype, items = value
    return np.array(items, dtype=np.dtype(str(dtype)))


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "set": set,
    "frozenset": frozenset,
    "StopReason": types.StopReason,
    "array": _array,
}
