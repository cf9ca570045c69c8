"""A database of records that episodes share and each changes for itself: copy on write, differences, a hash.

A record is replaced, never changed in place. A snapshot is therefore a shallow copy of the few records that an episode
has replaced, and a fresh episode costs nothing however large the database is.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Record = dict[str, Any]
Tables = Mapping[str, Mapping[Any, Record]]
Key = tuple[str, Any]
"""Table and id."""
Replaced = dict[Key, Record]
"""Every record that is new or another one than at the start."""
Change = list[Any]
"""``[path, op, old, new]``; op is ``set``, ``add`` or ``remove``; a path is ``/table/id/key/…``, ``/`` not escaped."""


def canonical(value: Any) -> str:
    """Returns a text that is the same for equal JSON values: keys sorted, 68.0 written as 68."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Store:
    """One episode's view of the tables.

    Args:
        tables: Table -> id -> record; shared between episodes and never written to.
    """

    def __init__(self, tables: Tables, replaced: Replaced | None = None) -> None:
        self.tables = tables
        self._replaced: Replaced = dict(replaced or {})
        self._hash: str | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        """An independent view; the records themselves are never changed, so they are shared."""
        return Store(self.tables, self._replaced)

    def get(self, table: str, key: Any) -> Record | None:
        """Returns the record as it is now, or None; not to be changed."""
        replaced = self._replaced.get((table, key))
        return self.tables[table].get(key) if replaced is None else replaced

    def rows(self, table: str) -> dict[Any, Record]:
        """Returns id -> record of a table as it is now; not to be changed."""
        return {
            **self.tables[table],
            **{key: record for (name, key), record in self._replaced.items() if name == table},
        }

    def change(self, table: str, key: Any, **columns: Any) -> Record:
        """Sets columns of a record, or adds one; returns it."""
        record = {**(self.get(table, key) or {}), **columns}
        self.put(table, key, record)
        return record

    def put(self, table: str, key: Any, record: Record) -> None:
        """Replaces a record; one that is as at the start counts as unchanged."""
        self._hash = None
        if record == self.tables[table].get(key):
            self._replaced.pop((table, key), None)
        else:
            self._replaced[table, key] = record

    def snapshot(self) -> Replaced:
        """Returns what differs from the start."""
        return dict(self._replaced)

    def restore(self, snapshot: Replaced) -> None:
        """Goes back to a snapshot."""
        self._replaced, self._hash = dict(snapshot), None

    def state_hash(self) -> str:
        """Returns SHA-256 over what differs from the start; computed once after each write."""
        if self._hash is None:
            lines = (f"{table}/{key}={canonical(record)}\n" for (table, key), record in self._replaced.items())
            self._hash = hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
        return self._hash

    def difference(self) -> list[Change]:
        """Returns every change since the start, each column of a new record among them."""
        return [
            change
            for (table, key), record in self._replaced.items()
            for change in differences(f"/{table}/{key}", self.tables[table].get(key, {}), record)
        ]


def differences(path: str, old: Any, new: Any) -> Iterator[Change]:
    """Yields every change between two JSON values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - new.keys():
            yield [f"{path}/{key}", "remove", old[key], None]
        for key, value in new.items():
            if key in old:
                yield from differences(f"{path}/{key}", old[key], value)
            else:
                yield [f"{path}/{key}", "add", None, value]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(f"{path}/{index}", before, after)
    elif old != new:
        yield [path, "set", old, new]


def as_set(changes: Sequence[Change]) -> frozenset[str]:
    """Returns the changes as a set of texts, for comparison: order does not matter, and 68 equals 68.0."""
    return frozenset(canonical(change) for change in changes)


def as_parts(changes: Sequence[Change]) -> Counter[str]:
    """Returns the changes in the smallest parts that can be right or wrong on their own.

    A list that grew at its end is taken apart into the entries that came: the first of two payments is right even
    before the second is there.
    """
    parts: Counter[str] = Counter()
    for path, op, old, new in changes:
        if isinstance(old, list) and isinstance(new, list) and len(new) > len(old) and new[: len(old)] == old:
            parts.update(canonical([path, "append", entry]) for entry in new[len(old) :])
        else:
            parts[canonical([path, op, new])] += 1
    return parts
