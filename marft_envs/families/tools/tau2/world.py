"""One episode on upstream's environment: calls by name, snapshots, a hash, and what differs from the start.

Upstream's toolkits are unpickled for every episode, snapshot and fork. Of a table they hold a view, so that of millions
of characters only the records that were asked for are ever copied, hashed and compared.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic_core import to_json

from marft_envs.call_formats.call import ToolCall
from marft_envs.families.tools.arithmetic import evaluate
from marft_envs.families.tools.packages import Pickled
from marft_envs.families.tools.tau2.data import SIDES, Table, Upstream, kits
from marft_envs.families.tools.types import ToolError

Key = tuple[str, str, str]
"""``tools`` or ``user_tools``, table, id ("" for what is no table: it is one record)."""
Texts = Mapping[Key, str]
"""Record -> its JSON as upstream hashes it."""


class Tau2World(Pickled):
    """Upstream's environment in a task's state."""

    environment: Any
    calls: list[ToolCall]
    """What was called, whatever came of it; upstream's check of actions looks at these."""

    def __init__(self, upstream: Upstream, task_id: str) -> None:
        self.upstream, self.task_id = upstream, task_id
        self.restore(initial(upstream, task_id)[0])

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Runs a tool, and has upstream bring both databases in line.

        Raises:
            ToolError: Upstream's tool has raised something.
        """
        self.calls.append(ToolCall(name, arguments))
        self.upstream.ids.call = len(self.calls)
        if not self.upstream.tools[name].read_only or len(kits(self.environment)) > 1:  # these are kept in line
            self._hash = ""
        if name == "calculate":  # upstream's tool would run the text
            return round(evaluate(str(arguments["expression"]), float), 2)
        answer = self.environment.get_response(self.upstream.made(name, arguments))
        if answer.error:
            raise ToolError(answer.content.removeprefix("Error: "))
        with contextlib.suppress(ValueError):
            return json.loads(answer.content, parse_constant=str)
        return answer.content

    def snapshot(self) -> bytes:
        return pickle.dumps((_sides(self.environment), self.calls), pickle.HIGHEST_PROTOCOL)

    def restore(self, snapshot: bytes) -> None:
        sides, self.calls = pickle.loads(snapshot)
        self.environment, self._hash = _copied(self.upstream, sides), ""

    def state_hash(self) -> str:
        """Returns SHA-256 over what differs from the task's start; calls that changed nothing are not in it."""
        if not self._hash:
            unlocked = getattr(self.environment.tools, "agent_unlocked_tools", None)  # in no database
            state = repr((sorted(self.changed().items()), unlocked))
            self._hash = hashlib.sha256(state.encode(errors="surrogatepass")).hexdigest()
        return self._hash

    def changed(self) -> dict[Key, str]:
        """Returns the records that are not as at the task's start."""
        digests, found = initial(self.upstream, self.task_id)[2], {}
        for key, value in _records(self.environment):
            digest = to_json(value, inf_nan_mode="constants", fallback=str)  # as exact, and in a tenth of the time
            if digest != (digests[key] if key in digests else to_json(self._base(key), inf_nan_mode="constants")):
                text = _text(self.environment, key, value)
                found.update({key: text} if text != self.before(key) else {})
        return found

    def before(self, key: Key) -> str:
        """Returns a record as it was at the task's start; an empty one, if there was none."""
        start = initial(self.upstream, self.task_id)[1]
        if key in start:
            return start[key]
        record = self._base(key)
        return "{}" if record is None else _text(self.environment, key, record)

    def _base(self, key: Key) -> Any:
        """Returns a record of a table as upstream has it; None: it has none."""
        side, table, name = key
        return getattr(getattr(self.upstream.environment, side).db, table).base.records.get(name)


@lru_cache(maxsize=4096)
def initial(upstream: Upstream, task_id: str) -> tuple[bytes, Texts, Mapping[Key, bytes]]:
    """Returns a snapshot of a task's start, and the records that are looked at for it, in two kinds of JSON."""
    state = upstream.tasks[task_id].initial_state
    fresh = pickle.dumps(_sides(upstream.environment), pickle.HIGHEST_PROTOCOL)
    environment, upstream.ids.call = _copied(upstream, pickle.loads(fresh)), 0
    environment.set_state(state and state.initialization_data, state and state.initialization_actions, [])
    snapshot = pickle.dumps((_sides(environment), []), pickle.HIGHEST_PROTOCOL)
    digests = {key: to_json(value, inf_nan_mode="constants", fallback=str) for key, value in _records(environment)}
    return snapshot, {key: _text(environment, key, value) for key, value in _records(environment)}, digests


def _sides(environment: Any) -> list[Any]:
    return [getattr(environment, side) for side in SIDES]


def _copied(upstream: Upstream, sides: Sequence[Any]) -> Any:
    """Upstream's environment with toolkits of its own."""
    environment = copy.copy(upstream.environment)
    environment.tools, environment.user_tools = sides
    return environment


def _records(environment: Any) -> Iterator[tuple[Key, Any]]:
    """Yields the records that an episode has looked at, and all that is in no table."""
    for side, kit in kits(environment).items():
        for name, value in kit.db:
            if isinstance(value, Table):
                yield from (((side, name, key), record) for key, record in value.touched.items())
            else:
                yield (side, name, ""), value


def _text(environment: Any, key: Key, value: Any) -> str:
    """Returns the JSON of a record, as upstream hashes it."""
    side, name, record = key
    plain = value.model_dump() if record else getattr(environment, side).db.model_dump(include={name})[name]
    return json.dumps(plain, sort_keys=True, default=str)
