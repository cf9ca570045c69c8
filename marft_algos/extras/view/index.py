"""Finds episodes among a hundred thousand: offsets and a few facts of every line are kept, the lines stay on disk.

Lines are anybody's: one that is no episode is listed as damaged, with what is wrong, and stops nothing.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, Literal, NamedTuple

from marft_envs import Episode
from marft_envs.errors import ConfigError, DataError
from marft_envs.records import trajectory

LONGEST = 1 << 25
"""Bytes of a line; what is longer is listed as damaged, and not read."""
BUDGET = 0.4
"""Seconds of one look at the files, or of one search in them; the next request goes on from there."""
Outcome = Literal["", "solved", "failed", "unjudged", "error", "damaged"]
Order = Literal["", "best", "worst", "longest"]


class EpisodeEntry(NamedTuple):
    """Where an episode stands, and what lists show of it."""

    file: str
    """Name of the file without its suffix: ``eval-000020``."""
    line: int
    """From 1."""
    offset: int
    length: int
    """Bytes."""
    task: str = ""
    outcome: Outcome = "unjudged"
    score: float = 0.0
    """The team's return."""
    turns: int = 0
    damage: str = ""
    """What is wrong with the line, if anything."""


class IndexProgress(NamedTuple):
    """How much of the files is indexed, in bytes."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Filter:
    """Which episodes are wanted; empty: all."""

    file: str = ""
    """``eval-000020``, or a beginning: ``eval``."""
    outcome: Outcome = ""
    task: str = ""
    """A part of the task's id."""
    text: str = ""
    """Occurs in an agent's prompt or reply, in a result, or in a name; upper and lower case alike."""
    order: Order = ""
    """By return or turns; empty: as recorded."""

    def takes(self, entry: EpisodeEntry) -> bool:
        """Whether an entry has all of it but the text."""
        return (
            entry.file.startswith(self.file)
            and self.outcome in ("", entry.outcome)
            and (not self.task or self.task.casefold() in entry.task.casefold())
        )


class Page(NamedTuple):
    """A part of the episodes that were asked for."""

    entries: list[EpisodeEntry]
    next: int | None
    """Where to go on, if there may be more."""
    looked: int
    """Up to here was looked, of ``total``."""
    total: int
    """Episodes that the filter takes; those with the text are among them."""


@dataclass(slots=True)
class _File:
    path: Path
    entries: list[EpisodeEntry] = field(default_factory=list)
    inode: int = 0
    lines: int = 0
    bytes: int = 0
    """Indexed so far: whole lines."""
    size: int = 0


class EpisodeIndex:
    """The episodes of one run (its folder ``episodes``), or of one file."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._files: dict[str, _File] = {}
        self._lock = threading.Lock()

    def refresh(self, seconds: float = BUDGET) -> IndexProgress:
        """Looks for new lines, for about so long; files that were written again are read again."""
        end = time.monotonic() + seconds
        with self._lock:
            self._look()
            for file in self._files.values():
                if file.bytes < file.size and not _read_on(file, end):
                    break
            return IndexProgress(*(sum(getattr(f, name) for f in self._files.values()) for name in ("bytes", "size")))

    def files(self) -> dict[str, int]:
        """Returns file -> episodes, in the order of iterations."""
        with self._lock:
            return {name: len(file.entries) for name, file in self._files.items()}

    def page(self, wanted: Filter, after: int = 0, limit: int = 50, seconds: float = BUDGET) -> Page:
        """Returns the next episodes that the filter takes; a search for text that takes longer goes on from ``next``.

        Args:
            wanted: What they are to have.
            after: Where to go on: ``next`` of the page before.
            limit: At most so many.
            seconds: For a search in texts.
        """
        with self._lock:
            taken = [entry for file in self._files.values() for entry in file.entries if wanted.takes(entry)]
            paths = {name: file.path for name, file in self._files.items()}
        if wanted.order:
            taken.sort(key=partial(_rank, wanted.order))
        if not wanted.text:
            shown = taken[after : after + limit]
            at = after + len(shown)
        else:
            shown, at = _search(taken, paths, wanted.text, after, limit, time.monotonic() + seconds)
        return Page(shown, at if at < len(taken) else None, at, len(taken))

    def entry(self, file: str, line: int) -> EpisodeEntry:
        """Returns one entry.

        Raises:
            ConfigError: There is none.
        """
        with self._lock:
            entries = self._files[file].entries if file in self._files else []
        at = next((e for e in entries[max(line - 1, 0) :: -1] if e.line == line), None) if entries else None
        if at is None:
            raise ConfigError(f"There is no episode in line {line} of '{file}'. Expected one of the list.")
        return at

    def data(self, entry: EpisodeEntry) -> dict[str, Any]:
        """Returns what stands in a line.

        Raises:
            DataError: It is no episode, or no longer there.
        """
        if entry.damage:
            raise DataError(f"{entry.file}.jsonl, line {entry.line}: {entry.damage}")
        with self._lock:
            path = self._files[entry.file].path if entry.file in self._files else self.place
        try:
            with path.open("rb") as file:
                file.seek(entry.offset)
                data = json.loads(file.read(entry.length))
            return dict(data)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{entry.file}.jsonl, line {entry.line}, has changed or gone: {error}") from error

    def episode(self, entry: EpisodeEntry) -> Episode:
        """Returns the episode, checked.

        Raises:
            DataError: It is none; the message names the field.
        """
        try:
            return trajectory.from_dict(self.data(entry))
        except RecursionError as error:
            raise DataError(f"{entry.file}.jsonl, line {entry.line}: nested too deep") from error

    def alike(self, task: str, line: int, beside: str = "", limit: int = 16) -> list[EpisodeEntry]:
        """Returns episodes of a task: of each file the one at the same position, if that is of this task.

        Args:
            task: Its id.
            line: The place.
            beside: A file of which other episodes of the task are returned, too: attempts at the same prompt.
            limit: At most so many of that file.
        """
        found: list[EpisodeEntry] = []
        with self._lock:
            for name, file in self._files.items():
                same = [e for e in file.entries if e.task == task and not e.damage]
                placed = [e for e in same if e.line == line]
                found += same[:limit] if name == beside else placed or same[:1]
        return found

    def _look(self) -> None:
        """Notes which files there are, and how long they are."""
        paths = sorted(self.place.glob("*.jsonl"), key=_by_iteration) if self.place.is_dir() else [self.place]
        known, self._files = self._files, {}
        for path in paths:
            try:
                stat = path.stat()
            except OSError:  # gone in this moment
                continue
            if not S_ISREG(stat.st_mode):  # a pipe would be waited for
                continue
            file = known.get(path.stem, _File(path))
            if file.inode != stat.st_ino or stat.st_size < file.size:
                file = _File(path, inode=stat.st_ino)
            file.size = stat.st_size
            self._files[path.stem] = file


def _rank(order: str, entry: EpisodeEntry) -> tuple[bool, float]:
    value = float(entry.turns) if order == "longest" else entry.score
    return bool(entry.damage) or math.isnan(value), value if order == "worst" else -value


def _by_iteration(path: Path) -> tuple[int, str]:
    number = re.search(r"(\d+)$", path.stem)
    return (int(number[1]) if number else -1, path.stem)


def _read_on(file: _File, end: float) -> bool:
    """Indexes whole lines until the time is up; returns whether it got to the end."""
    with file.path.open("rb") as opened:
        opened.seek(file.bytes)
        while time.monotonic() < end:
            for _ in range(200):
                line = opened.readline(LONGEST)
                length = len(line)
                if length == LONGEST and not line.endswith(b"\n"):
                    length += _skip_line(opened)
                elif not line.endswith(b"\n") and not _whole(line):
                    # The end, or a line that is still being written, to be read when it is whole.
                    file.size = file.bytes
                    return True
                file.lines += 1
                if line.strip():
                    file.entries.append(_entry(file.path.stem, file.lines, file.bytes, length, line))
                file.bytes += length
        return file.bytes >= file.size


def _whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _skip_line(opened: BinaryIO) -> int:
    skipped = 0
    while piece := opened.readline(LONGEST):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def _entry(file: str, number: int, offset: int, length: int, line: bytes) -> EpisodeEntry:
    damaged = EpisodeEntry(file, number, offset, length, outcome="damaged")
    if length > LONGEST:
        return damaged._replace(damage=f"has {length:,} bytes; at most {LONGEST:,} are read")
    try:
        data = json.loads(line)
        turns, layers = data["turns"], data["layers"]
        score = sum(float(x.get("team_reward", 0)) for x in layers) + sum(float(t.get("reward", 0)) for t in turns)
        return EpisodeEntry(file, number, offset, length, str(data["task_id"]), _outcome(data), score, len(turns))
    except KeyError as error:
        return damaged._replace(damage=f"is no episode: {error} is missing")
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        return damaged._replace(damage=f"is no episode: {error}"[:300])


def _outcome(data: Mapping[str, Any]) -> Outcome:
    if data.get("fault", "") not in ("", "text"):
        return "error"
    known: dict[Any, Outcome] = {True: "solved", False: "failed"}
    success = data.get("success")
    return known[success] if isinstance(success, bool) else "unjudged"


# Search -------------------------------------------------------------------------------------------------


def _search(
    entries: list[EpisodeEntry], paths: Mapping[str, Path], text: str, after: int, limit: int, end: float
) -> tuple[list[EpisodeEntry], int]:
    """Returns the entries from ``after`` on whose texts hold this one, and where it stopped."""
    # Most lines are put aside as bytes: JSON has plain ASCII as it is, but for quotes and the like, written as here.
    raw = json.dumps(text.lower())[1:-1].encode() if text.isascii() else b""
    found: list[EpisodeEntry] = []
    wanted, opened = text.lower(), dict[str, BinaryIO]()
    # A file that has gone: what is left of it is not searched.
    with suppress(OSError), ExitStack() as files:
        for at in range(after, len(entries)):
            entry = entries[at]
            if len(found) == limit or (at % 64 == 0 and at > after and time.monotonic() > end):
                return found, at
            if entry.damage:
                continue
            if entry.file not in opened:
                opened[entry.file] = files.enter_context(paths[entry.file].open("rb"))
            line = os.pread(opened[entry.file].fileno(), entry.length, entry.offset)
            if raw in line.lower() and any(wanted in part.lower() for part in _texts(line)):
                found.append(entry)
    return found, len(entries)


def _texts(line: bytes) -> Iterator[str]:
    """Yields what people read of an episode: names, words, results, and agents' prompts."""
    try:
        data = json.loads(line)
        yield str(data["task_id"])
        yield from (str(value) for value in data.get("info", {}).values())
        for turn in data["turns"]:
            yield from (turn["agent"], turn["text"], turn.get("result", ""))
            yield str((turn.get("extras") or {}).get("observation", ""))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return  # the line has changed since it was indexed
