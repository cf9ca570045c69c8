"""What a stand-in of a Tinker server reads and writes, field by field, and how its line breaks."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np


class Refused(Exception):
    """An answer with this status."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def lose(paths: dict[str, int]) -> Callable[[str, int], None]:
    """Breaks the connection at the n-th request of a path; for ``intercept`` (it never came) or ``after``."""

    def hook(path: str, count: int) -> None:
        if paths.get(path) == count:
            raise ConnectionAbortedError

    return hook


def part(number: int, data: bytes) -> bytes:
    size, out = len(data), bytearray([number << 3 | 2])
    while size > 127:
        out.append(size % 128 + 128)
        size //= 128
    return bytes([*out, size]) + data


def fields(data: bytes) -> list[tuple[int, Any]]:
    stream, found = io.BytesIO(data), []

    def number() -> int:
        value = shift = 0
        while True:
            byte = stream.read(1)[0]
            value += byte % 128 << shift
            shift += 7
            if byte < 128:
                return value

    while stream.tell() < len(data):
        key = number()
        found.append((key >> 3, number() if key % 8 == 0 else stream.read(number())))
    return found


def request(data: bytes) -> dict[str, Any]:
    """Reads a ``ForwardBackwardRequest``."""
    found = fields(data)
    single = dict(found)
    rows = []
    for row in (value for number, value in found if number == 3):
        inputs = {}
        text = b""
        for number, value in fields(row):
            if number == 1:
                text += dict(fields(dict(fields(value))[1]))[1]
            else:
                entry = dict(fields(value))
                tensor = dict(fields(entry[2]))
                inputs[entry[1].decode()] = np.frombuffer(tensor[1], "<i8" if tensor[3] == 2 else "<f4").copy()
        rows.append({"ids": np.frombuffer(text, "<i4").tolist(), "inputs": inputs})
    return {
        "model_id": single[1].decode(), "seq_id": single[2], "data": rows, "loss_fn": single[4].decode(),
        "forward_only": bool(single.get(6)),
    }  # fmt: skip
