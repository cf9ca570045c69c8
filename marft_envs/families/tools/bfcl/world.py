"""One episode's back ends: calls by name, what they answered, snapshots, a hash.

The objects are upstream's. They are made once per task with their own loader from a copy of the initial state, and
pickled; a fresh episode, a snapshot and a fork are unpickled from there, so that no two ever share an object.
(Upstream's executor keeps them in global variables, and some of its loaders hand out parts of their modules.)
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import pickle
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from marft_envs.families.tools.bfcl.data import READS, STATELESS, Backends, BFCLTask
from marft_envs.families.tools.packages import Pickled
from marft_envs.families.tools.types import ToolError


@lru_cache(maxsize=1024)
def initial(backends: Backends, task: BFCLTask) -> bytes:
    """Returns a snapshot of a task's back ends as its user finds them."""
    instances = {}
    for name in task.classes:
        instances[name] = backends.classes[name]()
        if name not in STATELESS:
            config = copy.deepcopy(task.config.get(name, {}))
            instances[name]._load_scenario(config, long_context=task.long_context)
    return pickle.dumps((instances, [], 0, False, []), pickle.HIGHEST_PROTOCOL)


class BfclWorld(Pickled):
    """The back ends of one task."""

    parts = ("instances", "responses", "turn", "called", "verdicts")
    instances: dict[str, Any]
    responses: list[str]
    """Every answer so far, as upstream's executor would write it; its checker compares these."""
    turn: int
    """The user turn that is under way."""
    called: bool
    """Whether there was a call in it."""
    verdicts: list[Any]
    """What the grader found at the end of each user turn before."""

    def __init__(self, backends: Backends, task: BFCLTask) -> None:
        self.task = task
        self.restore(initial(backends, task))

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Runs a tool of the task.

        Raises:
            ToolError: The back end says so (an answer with ``error``), raised something, or the task lacks the tool.
        """
        if (owner := self.task.owner.get(name)) is None:
            raise ToolError(f"There is no tool '{name}' here.")
        instance = self.instances[owner]
        check_limits(instance, name, arguments)
        self.called = True
        if name not in READS:
            self._hash = ""
        try:
            value = getattr(instance, name)(**copy.deepcopy(dict(arguments)))
            text = as_text(value)
        except Exception as error:  # upstream's code: whatever it raises is what the tool answers
            self.responses.append(f"Error during execution: {error}")
            raise ToolError(str(error) or type(error).__name__) from error
        self.responses.append(text)
        if isinstance(value, dict) and "error" in value:
            raise ToolError(str(value["error"]))
        return as_json(value)

    def state_hash(self) -> str:
        """Returns SHA-256 over all that the back ends hold, what they hide included; times of writing are left out."""
        if not self._hash:
            prints = "\n".join(map(fingerprint, self.instances.values()))
            self._hash = hashlib.sha256(prints.encode()).hexdigest()
        return self._hash


def as_text(value: Any) -> str:
    """Returns an answer as upstream's executor writes it: dicts as JSON where that works, else Python's own text."""
    if type(value) is not dict:
        return str(value)
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def as_json(value: Any) -> Any:
    """Returns an answer as a JSON value of its own; what JSON cannot hold (infinities, decimals) as text."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        if isinstance(value, dict):
            return {str(key): as_json(entry) for key, entry in value.items()}
        return _number(value)


def _number(value: Any) -> Any:
    """A decimal or a number of mpmath as a float, where it is one; anything else as text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)
    return number if math.isfinite(number) else str(value)


def fingerprint(instance: Any) -> str:
    """Returns a digest of an object's attributes, the same in every process."""
    digest = hashlib.sha256(type(instance).__name__.encode())
    for name, value in sorted(vars(instance).items()):
        if name == "_api_description":
            continue
        if name == "_random":
            shown = repr(hash(value.getstate()[1]))
        elif name == "_current_dir":
            shown = repr(_way_up(value))
        else:
            shown = repr(sorted(value)) if isinstance(value, set) else repr(value)
        digest.update(f"{name}={shown}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()


def _way_up(directory: Any) -> list[str]:
    names = []
    while directory is not None:
        names.append(directory.name)
        directory = directory.parent
    return names


# Calls that would keep a back end busy for ever --------------------------------------------------------

# Upstream's calculator takes whole numbers of any size and any precision, and copying folders into each other makes
# trees that double with every call. No task needs either. All limits are about a million times what the tasks use.
DIGITS = 10_000
"""Most decimal places of a calculation."""
BITS = 100_000
"""Most bits of a whole number raised to a power."""
ENTRIES = 20_000
"""Most files and folders of a file system, counted along every way to them."""


def check_limits(instance: Any, name: str, arguments: Mapping[str, Any]) -> None:
    """Lets a call pass.

    Raises:
        ToolError: If it could run for very long; says which limit.
    """
    if name in ("logarithm", "square_root"):
        _at_most(abs(_whole(arguments.get("precision"))), DIGITS, "The precision")
    elif name == "round_number":
        _at_most(abs(_whole(arguments.get("decimal_places"))), DIGITS, "The number of decimal places")
    elif name == "power":
        base, exponent = _whole(arguments.get("base")), _whole(arguments.get("exponent"))
        _at_most(base.bit_length() * abs(exponent), BITS, "The power, in bits,")
    elif name in ("cp", "mv"):
        size = _entries(instance.root) + _entries(instance._current_dir.contents.get(arguments.get("source")))
        _at_most(size, ENTRIES, "The number of files and folders")


def _at_most(value: int, limit: int, what: str) -> None:
    if value > limit:
        raise ToolError(f"{what} would exceed {limit}.")


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _entries(item: Any) -> int:
    """Files and folders below, the item included; stops counting beyond the limit (a folder may hold itself)."""
    count, waiting = 0, [item]
    while waiting and count <= ENTRIES:
        entry = waiting.pop()
        count += 1
        waiting.extend(getattr(entry, "contents", {}).values())
    return count
