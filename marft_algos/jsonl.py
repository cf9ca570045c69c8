"""JSONL files that a process adds to, line by line, and may be killed in the middle of one."""

from __future__ import annotations

from typing import IO


def drop_cut_line(file: IO[bytes]) -> bytes:
    """Drops a last line that was cut, which would spoil the next one; returns the lines before it.

    Args:
        file: Open for reading and writing; what is written next is to be appended.
    """
    file.seek(0)
    content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    file.truncate(len(whole))
    return whole
