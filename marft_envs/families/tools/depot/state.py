"""The state: an SQLite database in memory, and beside it what has changed since the start.

All writes go through :class:`DepotStore`, which keeps the difference from the base. So the difference that grading
needs, a snapshot, a restore, a copy and the hash all cost what was changed, not what there is. Nothing is ever
committed: an episode happens in one savepoint, and the connection that goes back to it serves the next episode.
"""

from __future__ import annotations

import hashlib
import sqlite3
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any

from marft_envs.families.tools.depot.rows import Builder, Row, Tables

FieldKey = tuple[str, Any, str]
"""Table, key, column."""
Change = tuple[str, Any, str, Any]
"""Table, key, column, new value."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "customers": ("name", "city"),
    "orders": (
        "customer", "item", "quantity", "total", "paid", "status", "city", "note", "confirmed", "approved",
    ),
    "items": ("sku", "price", "final"),
    "stock": ("received", "sent"),
    "shipments": ("city", "code", "day", "delivered"),
    "refunds": ("order_id", "amount"),
    "cases": ("order_id", "reason", "evidence"),
}  # fmt: skip
"""Table -> columns beside the key ``id``. Shipments have their order's id; stock counts what came and what went, so
that receiving and sending change different cells; refund n of an order has the id 10 * order + n, and so have cases:
ids do not depend on the order of writes."""
_NAMED = ("items", "stock")
"""Tables whose key is an item's name."""
_IDLE = 8
"""Connections kept for the next episodes, per base."""


def _schema() -> str:
    statements = []
    for table, columns in COLUMNS.items():
        key = "id text primary key" if table in _NAMED else "id integer primary key"
        statements.append(f"create table {table} ({', '.join((key, *columns))}) {'without rowid' * (table in _NAMED)};")
    statements.append("create index by_customer on orders (customer);")
    return "\n".join(statements)


_INSERT = {
    table: f"insert into {table} values ({', '.join('?' * (len(columns) + 1))})" for table, columns in COLUMNS.items()
}
_UPDATE = {
    (table, column): f"update {table} set {column} = ? where id = ?"
    for table, columns in COLUMNS.items()
    for column in columns
}
_VALUES = {table: itemgetter(*columns) for table, columns in COLUMNS.items()}


class DepotBase:
    """Rows that many episodes start from, and idle connections to databases that hold exactly these."""

    def __init__(self, number: int, distractors: bool, injections: bool) -> None:
        builder = Builder(number, distractors, injections)
        self.key = (number, distractors, injections)
        self.rows: Tables = builder.tables
        self.bait = builder.bait
        self.core = tuple(builder.core)
        text = repr(sorted((table, sorted(rows.items())) for table, rows in self.rows.items()))
        self.digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        template = sqlite3.connect(":memory:")
        template.executescript(_schema())
        for table, columns in COLUMNS.items():
            values = [(key, *(row[c] for c in columns)) for key, row in sorted(self.rows[table].items())]
            template.executemany(_INSERT[table], values)
        template.commit()
        self._image = template.serialize()
        template.close()
        self._idle: list[sqlite3.Connection] = []  # its pop and append are atomic: threads need no lock

    def take(self) -> sqlite3.Connection:
        """Returns a connection to a database as it is at the start; the caller's until :meth:`give`."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.deserialize(self._image)
        connection.executescript("pragma journal_mode = memory; begin; savepoint start")
        return connection

    def give(self, connection: sqlite3.Connection) -> None:
        """Takes back a connection whose changes are all undone."""
        if len(self._idle) < _IDLE:
            self._idle.append(connection)
        else:
            connection.close()


@lru_cache(maxsize=256)
def base(number: int, distractors: bool = True, injections: bool = False) -> DepotBase:
    """The base of that number; made once per process."""
    return DepotBase(number, distractors, injections)


Saved = tuple[dict[FieldKey, Any], dict[tuple[str, Any], tuple[Any, ...]]]
"""A snapshot of a store: changed cells and new rows."""


class DepotStore:
    """One episode's state.

    Args:
        start: What the state is before any write.
    """

    def __init__(self, start: DepotBase) -> None:
        self.base = start
        self._connection: sqlite3.Connection | None = start.take()
        self._cursor = self._connection.cursor()
        self._cells: dict[FieldKey, Any] = {}
        self._new: dict[tuple[str, Any], tuple[Any, ...]] = {}
        self._hash = ""

    def select(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Returns all rows of a query.

        Raises:
            RuntimeError: The store is closed.
        """
        if self._connection is None:
            raise RuntimeError("This world is closed. Open a new one with domain.open(problem).")
        return self._cursor.execute(query, values).fetchall()

    def update(self, table: str, key: Any, column: str, value: Any) -> None:
        """Sets one cell of a row that exists at the start."""
        self.select(_UPDATE[table, column], value, key)
        cell = (table, key, column)
        if self.base.rows[table][key][column] == value:
            self._cells.pop(cell, None)
        else:
            self._cells[cell] = value
        self._hash = ""

    def insert(self, table: str, key: Any, row: Row) -> None:
        """Adds a row; rows added are never changed."""
        values = _VALUES[table](row)
        self.select(_INSERT[table], key, *values)
        self._new[table, key] = values
        self._hash = ""

    def difference(self) -> frozenset[Change]:
        """What differs from the start: changed cells, and every cell of new rows."""
        changed = {(*cell, value) for cell, value in self._cells.items()}
        for (table, key), values in self._new.items():
            changed.update(zip(repeat(table), repeat(key), COLUMNS[table], values))
        return frozenset(changed)

    def state_hash(self) -> str:
        """Equal for equal states; computed once after a write."""
        if not self._hash:
            text = repr((sorted(self._cells.items()), sorted(self._new.items())))
            self._hash = hashlib.blake2b(self.base.digest + text.encode(), digest_size=16).hexdigest()
        return self._hash

    def snapshot(self) -> Saved:
        """The state as a value of its own."""
        return dict(self._cells), dict(self._new)

    def restore(self, saved: Saved) -> None:
        """Makes the state that of a snapshot of a store with the same base."""
        self._undo()
        self._cells, self._new, self._hash = {}, {}, ""
        cells, new = saved
        for (table, key, column), value in cells.items():
            self.update(table, key, column, value)
        for (table, key), values in new.items():
            self.insert(table, key, dict(zip(COLUMNS[table], values, strict=True)))

    def _undo(self) -> None:
        """Makes the database what it was at the start."""
        if self._cells or self._new:
            self.select("rollback to start")

    def close(self) -> None:
        """Gives the connection to the next episode. The difference and the hash can still be read."""
        if self._connection is None:
            return
        self._undo()
        self.base.give(self._connection)
        self._connection = None

    def __del__(self) -> None:
        """A store that nobody closed takes its database with it."""
        connection = getattr(self, "_connection", None)  # absent if taking one failed
        if connection is not None:
            connection.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"base": self.base.key, "saved": self.snapshot(), "closed": self._connection is None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(base(*state["base"]))  # type: ignore[misc]
        self.restore(state["saved"])
        if state["closed"]:
            self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> DepotStore:
        copied = DepotStore(self.base)
        copied.restore(self.snapshot())
        if self._connection is None:
            copied.close()
        return copied
