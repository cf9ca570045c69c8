"""Frames on a stream: four bytes of length, then as many bytes. The reader never trusts the length."""

from __future__ import annotations

import os
import struct

HEAD = struct.Struct(">I")
_CHUNK = 1 << 16
_ANY = 1 << 32


class FrameError(Exception):
    """The stream ended within a frame, or a frame is longer than its reader allows."""


def pack(payload: bytes) -> bytes:
    """The frame that holds ``payload``."""
    return HEAD.pack(len(payload)) + payload


def send(descriptor: int, payload: bytes) -> None:
    """Writes one frame to a blocking stream."""
    data = memoryview(pack(payload))
    while data:
        data = data[os.write(descriptor, data) :]


def receive(descriptor: int) -> bytes:
    """Reads one frame from a blocking stream whose writer is trusted, and waits for an answer to each frame.

    Raises:
        FrameError: The stream ended.
    """
    frames = Frames()
    while (frame := frames.next(_ANY)) is None:
        if not (data := os.read(descriptor, _CHUNK)):
            raise FrameError("the stream ended")
        frames.feed(data)
    return frame


class Frames:
    """Takes frames out of bytes as they arrive, for a reader that does not block and trusts nobody."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self, cap: int) -> bytes | None:
        """The next whole frame, or None if there is none yet.

        Raises:
            FrameError: The frame is longer than ``cap`` bytes.
        """
        if len(self._buffer) < HEAD.size:
            return None
        (length,) = HEAD.unpack_from(self._buffer)
        if length > cap:
            raise FrameError(f"a frame of {length} bytes where {cap} are allowed")
        end = HEAD.size + length
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[HEAD.size : end])
        del self._buffer[:end]
        return frame
