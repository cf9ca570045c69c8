"""The multi-turn tasks and the schemas of their tools, from the ``bfcl-eval`` package or a folder of JSONL files.

The package, whose executable back ends are loaded at run time, pins old versions of packages that this project uses, so
it is no extra: it is installed without its dependencies. The back ends need the standard library and ``mpmath`` only.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from marft_envs import tables
from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import DataError, check_known, did_you_mean, reading
from marft_envs.families.tools.packages import Package
from marft_envs.families.tools.types import Shared, Tool
from marft_envs.problems.rows import of_file, stamp

SOURCES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_TABLE = tables.read(__package__, "bfcl")
PACKAGE = Package(**_TABLE["package"])
CLASSES: Mapping[str, str] = _TABLE["modules"]
"""Class -> its module, which is also the name of the file that describes its tools."""
STATELESS = frozenset({"MathAPI"})
"""Classes without a loader of initial states."""


@dataclass(frozen=True, eq=False)
class Backends(Shared):
    """The classes that the tools are methods of, and where upstream's data lies."""

    root: Path
    """The folder ``bfcl_eval``."""
    classes: Mapping[str, type[Any]] = field(repr=False)


@lru_cache(maxsize=4)
def load(package: str | Path | None = None) -> Backends:
    """Imports the back ends.

    Args:
        package: The folder that holds ``bfcl_eval`` (a ``--target`` folder, a checkout), or that folder itself; None
            for the installed package.

    Raises:
        MissingPackageError: The package is not there, or something it imports.
        ConfigError: Another copy is loaded already; one process can hold one.
        DataError: The package has not the classes that its tasks use.
    """
    names = [f"{SOURCES}.{module}" for module in CLASSES.values()]
    root, found = PACKAGE.imported(package, names)
    modules = dict(zip(CLASSES, found, strict=True))
    if lacks := [name for name, module in modules.items() if not hasattr(module, name)]:
        raise DataError(f"{root} has no {', '.join(lacks)}. Expected the back ends of bfcl-eval 2025 or later.")
    return Backends(root, {name: getattr(module, name) for name, module in modules.items()})


CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
SKIPPED: Mapping[str, str] = {task: why for why, tasks in _TABLE["skipped"].items() for task in tasks}
"""Defective tasks, which are left out, with the reason."""

MORE_TOOLS = "More tools are available now. Please try again."
"""What the user says in the turn that brings a tool back; the data leave it empty."""

READS = frozenset(_TABLE["reads"])
"""Tools that leave the back end as it is, its random generator and its caches included."""


@dataclass(frozen=True, eq=False)
class BFCLTask(Shared):
    """One published task."""

    id: str
    category: str
    turns: tuple[str, ...]
    classes: tuple[str, ...]
    config: Mapping[str, Any] = field(repr=False)
    """Class -> what its loader takes."""
    missed: Mapping[int, frozenset[str]]
    """User turn -> tools that come with it; they are missing before."""
    gold: tuple[tuple[ToolCall, ...], ...] = field(repr=False)
    owner: Mapping[str, str] = field(repr=False)
    """Tool -> class, for the tools of this task's classes: the table by which calls are dispatched."""

    @property
    def long_context(self) -> bool:
        """Whether the back ends are filled with much that is beside the point."""
        return self.category == "long_context"

    @property
    def number(self) -> int:
        """The scenario; the four categories vary the same two hundred."""
        return int(self.id.rsplit("_", 1)[1])


@dataclass(frozen=True, eq=False)
class Suite:
    """Tasks and tools; shared, never changed."""

    where: Path
    tasks: Mapping[str, tuple[BFCLTask, ...]]
    """Category -> tasks, the defective ones included."""
    tools: Mapping[str, Tool]
    owner: Mapping[str, str]
    """Tool -> class."""


def read(folder: Path, upstream: bool) -> Suite:
    """Reads the tasks; once, as long as the files stay as they are.

    Args:
        folder: ``multi_turn_<category>.jsonl`` for one or more categories, with ``tools.json`` (class -> schemas).
        upstream: True: the folder is the package's own ``data``, with all categories and the answers beside.

    Raises:
        DataError: A file is missing or malformed; names it, and what was expected.
    """
    files = sorted(folder.rglob("*.json") if upstream else folder.glob("*.json*"))
    return _read(folder, upstream, tuple((str(f), *stamp(f)) for f in files))


@lru_cache(maxsize=8)
def _read(folder: Path, upstream: bool, stamp: tuple[tuple[str, int, int], ...]) -> Suite:
    if upstream:
        docs = {
            name: [entry for _, _, entry in of_file(folder / "multi_turn_func_doc" / f"{module}.json")]
            for name, module in CLASSES.items()
        }
        files = {category: _upstream(folder, category) for category in CATEGORIES}
    else:
        docs = _docs(folder)
        by_category = {category: folder / f"multi_turn_{category}.jsonl" for category in CATEGORIES}
        files = {
            category: [(where, row) for _, where, row in of_file(file)]
            for category, file in by_category.items()
            if file.is_file()
        }
    tools, owner = _tools(docs, folder)
    tasks = {
        category: tuple(_task(row, where, category, tools, owner) for where, row in rows)
        for category, rows in files.items()
    }
    return Suite(folder, tasks, tools, owner)


def _docs(folder: Path) -> Any:
    expected = f"Expected tools.json and multi_turn_CATEGORY.jsonl for some of: {', '.join(CATEGORIES)}."
    if not (folder / "tools.json").is_file() or not sorted(folder.glob("multi_turn_*.jsonl")):
        raise DataError(f"{folder} is no folder of bfcl tasks. {expected}")
    for file in folder.glob("multi_turn_*.jsonl"):
        category = file.stem.removeprefix("multi_turn_")
        check_known([category], CATEGORIES, f"{file}: there is no category '{{}}'.", DataError)
    with reading(f"{folder / 'tools.json'} is not JSON", "Expected class -> schemas.", DataError):
        return json.loads((folder / "tools.json").read_text(encoding="utf-8"))


def _upstream(folder: Path, category: str) -> list[tuple[str, dict[str, Any]]]:
    """The package's tasks, with the gold calls that it keeps in another file."""
    name = f"multi_turn_{category}.json"
    if not (files := sorted(folder.glob(f"BFCL_v*_{name}"))):
        raise DataError(f"{folder} has no BFCL_v…_{name}. Expected the data of bfcl-eval.")
    answers = {row["id"]: row["ground_truth"] for _, _, row in of_file(folder / "possible_answer" / files[-1].name)}
    rows = []
    for _, where, row in of_file(files[-1]):
        if row.get("id") not in answers:
            raise DataError(f"{where}: no ground truth for '{row.get('id')}' in possible_answer/.")
        rows.append((where, {**row, "ground_truth": answers[row["id"]]}))
    return rows


# -- tools -----------------------------------------------------------------------------------------------------------

_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns upstream's schema as strict JSON Schema: Python's names of types replaced, objects closed."""
    out = {key: value for key, value in schema.items() if key != "type"}
    kind = schema.get("type", "any")
    if kind != "any":
        out["type"] = _TYPES.get(kind, kind)
    if isinstance(schema.get("properties"), Mapping):
        out["properties"] = {name: strict(entry) for name, entry in schema["properties"].items()}
        out["additionalProperties"] = False
    if isinstance(schema.get("items"), Mapping):
        out["items"] = strict(schema["items"])
    return out


def _tools(docs: Any, folder: Path) -> tuple[dict[str, Tool], dict[str, str]]:
    tools: dict[str, Tool] = {}
    owner: dict[str, str] = {}
    for name, entries in docs.items() if isinstance(docs, dict) else []:
        check_known([name], CLASSES, f"{folder}: the schemas name an unknown class '{{}}'.", DataError)
        for entry in entries:
            tool, schema = entry.get("name"), entry.get("parameters")
            if not isinstance(tool, str) or not isinstance(schema, dict) or "properties" not in schema:
                raise DataError(f"{folder}: a schema of {name} has no name or no parameters: {entry!r:.80}.")
            if tool.startswith("_") or tool in tools:
                raise DataError(f"{folder}: '{tool}' of {name} is private, or described twice.")
            reads = tool in READS
            description = str(entry.get("description", ""))
            tools[tool] = Tool(tool, description, strict(schema), read_only=reads, idempotent=reads)
            owner[tool] = name
    if not tools:
        raise DataError(f"{folder}: no schemas of tools. Expected an object: class -> list of schemas.")
    return tools, owner


# -- tasks -----------------------------------------------------------------------------------------------------------


def _task(
    row: Mapping[str, Any], where: str, category: str, tools: Mapping[str, Tool], owner: Mapping[str, str]
) -> BFCLTask:
    task_id = row.get("id")
    if not isinstance(task_id, str) or not task_id.rsplit("_", 1)[-1].isdigit():
        raise DataError(f"{where}: 'id' is {task_id!r:.60}; expected a text like 'multi_turn_{category}_0'.")
    classes, config = row.get("involved_classes"), row.get("initial_config")
    if not isinstance(classes, list) or not classes or not isinstance(config, dict):
        raise DataError(f"{where}: expected a list 'involved_classes' and an object 'initial_config'.")
    check_known(classes, CLASSES, f"{where}: there is no class '{{}}'.", DataError)
    turns, gold = row.get("turns", row.get("question")), row.get("ground_truth_source", row.get("ground_truth"))
    if not isinstance(turns, list) or not isinstance(gold, list) or len(turns) != len(gold) or not turns:
        raise DataError(f"{where}: expected 'turns' (or 'question') and 'ground_truth', lists of the same length.")
    missed = row.get("missed_functions", row.get("missed_function", {}))
    if not isinstance(missed, dict) or not all(str(t).isdigit() and isinstance(n, list) for t, n in missed.items()):
        raise DataError(f"{where}: 'missed_functions' is {missed!r:.60}; expected user turn -> list of tools.")
    held = {int(turn): frozenset(map(str, names)) for turn, names in missed.items()}
    if unknown := sorted(frozenset().union(*held.values()) - tools.keys()):
        raise DataError(f"{where}: tools are withheld that do not exist: {', '.join(unknown)}.")
    calls = tuple(tuple(parse_call(entry, where, tools) for entry in turn) for turn in gold)
    for call in (call for turn in calls for call in turn):
        if owner[call.name] not in classes:
            raise DataError(f"{where}: the gold calls '{call.name}' of {owner[call.name]}, which is not involved.")
    texts = tuple(_said(turn, where) for turn in turns)
    table = {tool: name for tool, name in owner.items() if name in classes}
    return BFCLTask(task_id, category, texts, tuple(classes), config, held, calls, table)


def _said(messages: Any, where: str) -> str:
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "content" in m for m in messages):
        raise DataError(f"{where}: a turn is {messages!r:.60}; expected a list of messages with 'role' and 'content'.")
    return "\n".join(str(message["content"]) for message in messages) or MORE_TOOLS


def parse_call(text: Any, where: str, tools: Mapping[str, Tool]) -> ToolCall:
    """Returns a gold call as name and named arguments.

    Args:
        text: Python text of one call with literal arguments (never evaluated, only parsed), or an object with
            ``name`` and ``arguments``.
        where: The row, for errors.
        tools: Known tools; positional arguments take the names of the schema, in its order.

    Raises:
        DataError: If it is no such call.
    """
    if isinstance(text, Mapping):
        name, arguments = text.get("name"), text.get("arguments")
    else:
        name, arguments = _parse(str(text), where, tools)
    if not isinstance(name, str) or name not in tools or not isinstance(arguments, dict):
        known = did_you_mean(str(name), tools)
        raise DataError(f"{where}: '{text!s:.80}' is no call of a known tool. {known}")
    return ToolCall(name, arguments)


def _parse(text: str, where: str, tools: Mapping[str, Tool]) -> tuple[str, dict[str, Any]]:
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ValueError("not one call")
        arguments: dict[str, Any] = {}
        names: Sequence[str] = list(tools[node.func.id].parameters["properties"]) if node.func.id in tools else []
        if len(node.args) > len(names):
            raise ValueError("an unknown tool, or too many arguments")
        for name, value in zip(names, node.args, strict=False):
            arguments[name] = ast.literal_eval(value)
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg in arguments:
                raise ValueError("an argument is given twice, or by **")
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise DataError(f"{where}: '{text:.80}' is not a Python call with literal arguments ({error}).") from error
    return node.func.id, arguments
