"""What the ``tau2`` package publishes of a domain: environment, database, tools, tasks and splits.

Upstream's code and data are imported at run time, and nothing of them is here. The package wants much that its worlds
do not need (model clients, a server), so it is no extra: it is installed without its dependencies.
"""

from __future__ import annotations

import pickle
import uuid
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from marft_envs import tables
from marft_envs.families.tools.packages import Package
from marft_envs.families.tools.schema import closed
from marft_envs.families.tools.types import Shared, Tool

PACKAGE = Package(**tables.read(__package__, "tau2")["package"])
SIDES = ("tools", "user_tools")
"""Attributes of upstream's environment: the agent's tools on one database, the user's on another."""


class SharedTable(Shared):
    """One published table, never changed: id -> record (a pydantic model)."""

    def __init__(self, records: Mapping[str, Any], place: tuple[Any, ...]) -> None:
        self.records, self._place = records, place
        self._pickled: dict[str, bytes] = {}

    def copy(self, key: str) -> Any:
        """Returns a copy of a record.

        Raises:
            KeyError: There is none.
        """
        if key not in self._pickled:
            self._pickled[key] = pickle.dumps(self.records[key], pickle.HIGHEST_PROTOCOL)
        return pickle.loads(self._pickled[key])

    def __reduce__(self) -> tuple[Any, ...]:
        return _records, self._place


class Table(ChainMap[str, Any]):
    """One episode's view of a table: holds the records that were asked for by id, copied when they were, and new ones.

    Going through the whole table copies nothing. SharedTable cannot be taken out; no tool of upstream's does that.
    """

    def __init__(self, base: SharedTable, touched: dict[str, Any] | None = None) -> None:
        self.base, self.touched = base, {} if touched is None else touched
        super().__init__(self.touched, base.records)  # type: ignore[arg-type]

    def __getitem__(self, key: str) -> Any:
        if key not in self.touched:
            self.touched[key] = self.base.copy(key)
        return self.touched[key]

    def whole(self) -> dict[str, Any]:
        """Returns id -> record, in the table's order; only to be looked at."""
        return {**self.base.records, **self.touched}

    def values(self) -> Any:
        return self.whole().values()

    def items(self) -> Any:
        return self.whole().items()

    def _fixed(self, *_: Any) -> Any:
        raise TypeError("A record cannot be taken out of a shared table.")

    __delitem__ = pop = popitem = clear = _fixed  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (self.base, self.touched)


class NumberedIds(Shared):
    """Stands in for ``uuid`` in upstream's tools, so that the same calls give the same ids."""

    call = 0
    """Number of the call that is under way."""

    def uuid4(self) -> uuid.UUID:
        """Returns an id that follows from the number."""
        return uuid.uuid5(uuid.NAMESPACE_OID, str(self.call))


@dataclass(frozen=True, eq=False)
class Upstream(Shared):
    """A domain of a package; shared by all episodes, never changed."""

    environment: Any = field(repr=False)
    """Upstream's environment, whose larger tables are views."""
    tasks: Mapping[str, Any] = field(repr=False)
    """Id -> upstream's task."""
    splits: Mapping[str, frozenset[str]] = field(repr=False)
    tools: Mapping[str, Tool] = field(repr=False)
    users: frozenset[str]
    """Tools of the user's."""
    solo_policy: str = field(repr=False)
    """For an agent that has the user's tools, too."""
    call: Callable[..., Any] = field(repr=False)
    """Makes a call as upstream's environment takes it, of ``name``, ``arguments`` and ``requestor``."""
    same: Callable[[Any, Any], bool] = field(repr=False)
    """Whether a gold action is such a call, by upstream's rule."""
    ids: NumberedIds = field(default_factory=NumberedIds)
    held: Mapping[str, frozenset[str]] = field(default_factory=dict, repr=False)
    """Id -> the user's tools in this task, where it has not all of them."""

    def made(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Returns a call as upstream's environment takes it."""
        requestor = "user" if name in self.users else "assistant"
        return self.call(name=name, arguments=dict(arguments), requestor=requestor)


@lru_cache(maxsize=8)
def load(domain: str, package: str | None = None) -> Upstream:
    """Imports a domain; once.

    Raises:
        MissingPackageError: The package is not there, or something it imports.
        ConfigError: Another copy is loaded already, or a tool's schema cannot be used.
    """
    _, (loguru,) = PACKAGE.imported(package, ["loguru"])
    loguru.logger.disable("tau2")  # it would write a line for every call
    names = (f"tau2.domains.{domain}.environment", f"tau2.domains.{domain}.tools", "tau2.data_model.tasks")
    _, (module, tools, models) = PACKAGE.imported(package, names)
    environment, ids, described = module.get_environment(), NumberedIds(), dict[str, Tool]()
    vars(tools)["uuid"] = ids  # only telecom's tools draw any
    for kit in kits(environment).values():
        views = {
            name: Table(SharedTable(value, (domain, package, name))) if isinstance(value, dict) else value
            for name, value in kit.db
        }
        kit.db = type(kit.db).model_construct(**views)
        for name, tool in kit.get_tools().items():
            function, reads = tool.openai_schema["function"], kit.tool_type(name).value != "write"
            schema = closed(function["parameters"])
            described[name] = Tool(name, function["description"], schema, read_only=reads, idempotent=reads)
    users = frozenset(environment.user_tools.tools) if environment.user_tools else frozenset[str]()
    policy = module.get_environment(solo_mode=True).policy if users else environment.policy
    tasks, same = {task.id: task for task in module.get_tasks(None)}, models.Action.compare_with_tool_call
    splits = {name: frozenset(names) for name, names in module.get_tasks_split().items()}
    return Upstream(environment, tasks, splits, described, users, policy, models.ToolCall, same, ids)


def kits(environment: Any) -> dict[str, Any]:
    """Returns side -> upstream's toolkit, one for each database."""
    found = {side: getattr(environment, side) for side in SIDES if getattr(environment, side) is not None}
    return (
        {"tools": found["tools"]} if environment.user_tools and found["tools"].db is found["user_tools"].db else found
    )


def _records(domain: str, package: str | None, field_name: str) -> SharedTable:
    """The table that a pickle has left out."""
    return getattr(load(domain, package).environment.tools.db, field_name).base
