"""What the Tinker protocol sends as protobuf: rows to score or to learn from, and the answers about them.

Fields and their numbers are those of ``tinker_public.proto`` (SDK 0.25); everything else of the protocol is JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from marft_algos.types import FloatArray

TYPE = "application/x-protobuf"
_VARINT, _FIXED, _BYTES = 0, 1, 2
_FLOAT, _INT = 1, 2
"""``DType`` of tensors: float32 and int64."""


class WireError(ValueError):
    """Bytes that are no message of the protocol."""


@dataclass(frozen=True, slots=True)
class Row:
    """A text whose tokens are predicted, each from those before it."""

    ids: Sequence[int]
    """[T + 1] the text: the input is all but the last, the targets all but the first."""
    inputs: Mapping[str, FloatArray] = field(default_factory=dict)
    """[T] numbers of each target, by name: ``weights``, ``logprobs``, ``advantages``."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A reply of a sampler, and the log-probs of its prompt's tokens, where they were asked for."""

    ids: list[int]
    logprobs: FloatArray
    stopped: bool
    prompt: FloatArray


def work(model: str, number: int, rows: Sequence[Row], loss: str, forward_only: bool) -> bytes:
    """Returns a ``ForwardBackwardRequest``."""
    data = b"".join(_part(3, _datum(row)) for row in rows)
    head = _part(1, model.encode()) + _count(2, number)
    return head + data + _part(4, loss.encode()) + (_count(6, 1) if forward_only else b"")


def scores(message: bytes) -> list[FloatArray]:
    """Reads a ``ForwardBackwardOutput``: log-probs of each row's targets, in order."""
    return [scored for number, part in _fields(message) if number == 2 for scored in _record(part)]


def samples(message: bytes) -> list[Sampled]:
    """Reads a ``SampleResponse``."""
    parts = list(_fields(message))
    prompt = _array(dict(parts).get(2, b""), "<f4")
    found = []
    for part in (part for number, part in parts if number == 1):
        entry = dict(_fields(part))
        ids = [int(i) for i in _array(entry.get(2, b""), "<i4")]
        found.append(Sampled(ids, _array(entry.get(3, b""), "<f4"), not any(entry.get(1, b"")), prompt))
    return found


def _datum(row: Row) -> bytes:
    text = _part(1, _part(1, np.asarray(row.ids[:-1], "<i4").tobytes()))
    tensors = {"target_tokens": _tensor(np.asarray(row.ids[1:], "<i8"), _INT)}
    tensors |= {name: _tensor(np.asarray(values, "<f4"), _FLOAT) for name, values in row.inputs.items()}
    entries = (_part(1, name.encode()) + _part(2, tensor) for name, tensor in tensors.items())
    return _part(1, text) + b"".join(_part(2, entry) for entry in entries)


def _tensor(values: np.ndarray, kind: int) -> bytes:
    return _part(1, values.tobytes()) + _count(3, kind) + _part(4, _varint(len(values)))


def _record(message: bytes) -> list[FloatArray]:
    """Reads the log-probs out of an ``ArrayRecord``: each row's, cut from one array by offsets in bytes."""
    for number, part in _fields(message):
        entry = dict(_fields(part)) if number == 2 else {}
        if entry.get(1) != b"logprobs":
            continue
        tensor = dict(_fields(entry.get(2, b"")))
        if tensor.get(3) not in (None, _varint(_FLOAT)):
            raise WireError("log-probs that are no float32")
        data, cuts = tensor.get(1, b""), _array(tensor.get(2, b""), "<i8").astype(int)
        return [_array(data[a:b], "<f4") for a, b in pairwise(cuts)]
    return []


def _array(data: bytes, kind: str) -> np.ndarray:
    try:
        return np.frombuffer(data, kind)
    except ValueError as error:
        raise WireError(f"{len(data)} bytes are no array of {kind}") from error


def _part(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _count(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields number and bytes of each field: a varint's as they are written."""
    at = 0
    while at < len(message):
        key, at = _read(message, at)
        kind, start = key & 7, at
        if kind == _VARINT:
            _, at = _read(message, at)
        elif kind == _BYTES:
            size, start = _read(message, at)
            at = start + size
        else:
            at += {_FIXED: 8, 5: 4}.get(kind, len(message) + 1)
        if at > len(message):
            raise WireError("a message that is cut, or none of the protocol")
        yield key >> 3, message[start:at]


def _read(message: bytes, at: int) -> tuple[int, int]:
    """Returns a varint, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise WireError("a message that is cut, or none of the protocol")
        byte = message[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return value, at
