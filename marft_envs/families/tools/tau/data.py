"""What τ-bench retail publishes: database, schemas of the tools, policy and tasks; read from a folder and checked.

A folder with ``retail_db.json``, ``retail_tools.json``, ``retail_policy.md`` and ``retail_SPLIT.jsonl`` for each split,
or a checkout of the upstream repository, which is read without running any of it.
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
from marft_envs.errors import DataError, check_known, reading
from marft_envs.families.tools.store import Change
from marft_envs.families.tools.tau.world import READS, WRITES, TableIndex
from marft_envs.families.tools.types import Shared, Tool
from marft_envs.problems.rows import of_file, stamp

INSIDE = Path("tau_bench") / "envs" / "retail"
SPLITS = ("train", "dev", "test")
TABLES = ("products", "users", "orders")
FILES = ("retail_db.json", "retail_tools.json", "retail_policy.md")
ADDRESSES = frozenset(tables.read(__package__, "tau")["addresses"])
"""Writes that change nothing more the second time."""
EXPECTED = f"Expected a folder with {', '.join(FILES)} and retail_SPLIT.jsonl, or a checkout of tau-bench."


@dataclass(frozen=True)
class RetailTask:
    """One published task."""

    id: str
    user_id: str
    instruction: str
    actions: tuple[ToolCall, ...]
    """The gold actions; some of them are refused by the tools."""
    outputs: tuple[str, ...] = ()
    """Texts that the messages to the customer have to contain."""
    changes: tuple[Change, ...] | None = None
    """The published difference of the database, where the row has one."""


@dataclass(frozen=True, eq=False)
class Retail(Shared):
    """Everything that a domain needs; shared by all episodes, never changed."""

    path: Path
    index: TableIndex = field(repr=False)
    tools: Mapping[str, Tool] = field(repr=False)
    policy: str = field(repr=False)
    rows: Mapping[str, tuple[RetailTask, ...]] = field(repr=False)
    """Split -> tasks."""


def load(path: str | Path) -> Retail:
    """Reads a folder; once, as long as its files stay as they are.

    Raises:
        DataError: No such folder, a file missing, or a malformed file or row; names the file and what was expected.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. {EXPECTED}")
    if (checkout := find_checkout(folder)) is not None:
        return _load(checkout, True, _stamp(checkout))
    missing = [name for name in FILES if not (folder / name).is_file()]
    missing += [] if sorted(folder.glob("retail_*.jsonl")) else ["retail_SPLIT.jsonl"]
    if missing and (what := other_tasks(folder)):
        raise DataError(f"{folder} holds {what}. {EXPECTED}")
    if missing:
        raise DataError(
            f"{folder} is neither: of the files it has no {', '.join(missing)}, and of a checkout there is no "
            f"{INSIDE / 'wiki.md'}. {EXPECTED}"
        )
    return _load(folder, False, _stamp(folder))


def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    return tuple((str(file), *stamp(file)) for file in sorted(folder.rglob("*")) if file.is_file())


@lru_cache(maxsize=4)
def _load(folder: Path, checkout: bool, stamp: tuple[tuple[str, int, int], ...]) -> Retail:
    if checkout:
        tables, tools, policy, tasks = read_checkout(folder)
    else:
        tables, tools = read_json(folder / FILES[0]), read_json(folder / FILES[1])
        policy = _text(folder / FILES[2])
        tasks = {
            file.stem.removeprefix("retail_"): [(where, row) for _, where, row in of_file(file)]
            for file in sorted(folder.glob("retail_*.jsonl"))
        }
    _check_tables(tables, folder)
    index = TableIndex(tables)
    known = read_tools(tools, folder)
    rows = {split: tuple(read_row(row, where, known, index) for where, row in pairs) for split, pairs in tasks.items()}
    return Retail(folder, index, known, policy, rows)


def _text(file: Path) -> str:
    with reading(f"{file} cannot be read", "Expected text in UTF-8.", DataError):
        return file.read_text(encoding="utf-8-sig")


def read_json(file: Path) -> Any:
    """Reads a JSON file.

    Raises:
        DataError: If it is not JSON.
    """
    with reading(f"{file} is not JSON", "Take another copy of it.", DataError):
        return json.loads(_text(file))


def _check_tables(tables: Any, folder: Path) -> None:
    """What the tools rely on, so that a bad record is an error now and not in an episode."""
    wanted = {
        "products": ("name", "product_id", "variants"),
        "users": ("name", "address", "email", "payment_methods", "orders"),
        "orders": ("order_id", "user_id", "address", "items", "status", "payment_history"),
    }
    for table in TABLES:
        records = tables.get(table) if isinstance(tables, dict) else None
        if not isinstance(records, dict):
            raise DataError(f"{folder}: the database has no table '{table}'. Expected objects {', '.join(TABLES)}.")
        for key, record in records.items():
            lacks = [name for name in wanted[table] if not isinstance(record, dict) or name not in record]
            if lacks:
                raise DataError(f"{folder}: {table} '{key}' lacks {', '.join(lacks)}. Expected {wanted[table]}.")
    for key, order in tables["orders"].items():
        if order["user_id"] not in tables["users"]:
            raise DataError(f"{folder}: order '{key}' belongs to '{order['user_id']}', who is no user.")


def read_tools(entries: Any, folder: Path) -> dict[str, Tool]:
    """Returns name -> tool, in the order of our sixteen tools' names, with strict schemas.

    Raises:
        DataError: If a tool is missing, unknown or without a schema.
    """
    tools = {}
    for entry in entries if isinstance(entries, list) else []:
        function = entry.get("function", {}) if isinstance(entry, dict) else {}
        name, schema = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not isinstance(schema, dict) or "properties" not in schema:
            raise DataError(f"{folder}: a tool has no name or no parameters. Expected OpenAI's form of a function.")
        check_known([name], READS | WRITES, f"{folder}: there is no retail tool '{{}}'.", DataError)
        strict = {**schema, "additionalProperties": False}
        description = str(function.get("description", ""))
        tools[name] = Tool(name, description, strict, read_only=name in READS, idempotent=name in READS | ADDRESSES)
    if missing := sorted((READS | WRITES) - tools.keys()):
        raise DataError(f"{folder}: the schemas of {', '.join(missing)} are missing. Expected all 16 retail tools.")
    return dict(sorted(tools.items()))


def read_row(row: Any, where: str, tools: Mapping[str, Tool], index: TableIndex) -> RetailTask:
    """Reads one task.

    Raises:
        DataError: If something is missing or of the wrong kind; names the row.
    """
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(row).__name__}.")
    for name, kind in (("id", str), ("user_id", str), ("instruction", str), ("actions", list)):
        if not isinstance(row.get(name), kind):
            raise DataError(f"{where}: '{name}' is {row.get(name)!r:.60}; expected {_KINDS[kind]}.")
    if row["user_id"] not in index.tables["users"]:
        raise DataError(f"{where}: user '{row['user_id']}' is not in the database.")
    actions = tuple(_action(entry, where, tools) for entry in row["actions"])
    outputs = row.get("outputs", [])
    changes = row.get("derived", {}).get("gold_diff") if isinstance(row.get("derived", {}), dict) else None
    if not isinstance(outputs, list):
        raise DataError(f"{where}: 'outputs' is {outputs!r:.60}; expected a list of texts.")
    if changes is not None and not _are_changes(changes):
        raise DataError(f"{where}: 'derived.gold_diff' is malformed; expected a list of [path, op, old, new].")
    gold = None if changes is None else tuple(changes)
    return RetailTask(row["id"], row["user_id"], row["instruction"], actions, tuple(map(str, outputs)), gold)


_KINDS = {str: "a text", list: "a list"}


def _are_changes(changes: Any) -> bool:
    """Whether it is a list of ``[path, op, old, new]``."""
    if not isinstance(changes, list):
        return False
    return all(isinstance(entry, list) and len(entry) == 4 and isinstance(entry[0], str) for entry in changes)


def _action(entry: Any, where: str, tools: Mapping[str, Tool]) -> ToolCall:
    name, arguments = (entry.get("name"), entry.get("kwargs")) if isinstance(entry, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise DataError(f"{where}: an action is {entry!r:.60}; expected an object with 'name' and 'kwargs'.")
    check_known([name], tools, f"{where}: there is no retail tool '{{}}'.", DataError)
    properties: Sequence[str] = tools[name].parameters["properties"]
    odd = [*(set(arguments) - set(properties)), *(set(tools[name].parameters.get("required", ())) - set(arguments))]
    if odd:
        raise DataError(f"{where}: '{name}' has unknown or lacks arguments: {', '.join(sorted(odd))}.")
    return ToolCall(name, arguments)


# A checkout of the repository: its Python files are parsed, and only literals are taken from them ------------


def find_checkout(folder: Path) -> Path | None:
    """Returns the retail folder of a checkout (or the folder itself, if it is that), else None."""
    needed = ("wiki.md", "data/orders.json")
    return next((place for place in (folder / INSIDE, folder) if all((place / f).is_file() for f in needed)), None)


def other_tasks(folder: Path) -> str:
    """Returns which other published set of tasks a folder holds, and what to type for it; "" if none that is known."""
    if (folder / "data" / "flights.json").is_file() or (folder / "tau_bench" / "envs" / "airline").is_dir():
        return "the airline domain of tau-bench, which is not supported; tau2-bench has it, as domain='tau2/airline'"
    tasks = (folder / "tasks.json").is_file() and (folder / "policy.md").is_file()
    tau2 = tasks or any((folder / name).is_dir() for name in ("data/tau2", "tau2", "domains"))
    names = "domain='tau2/retail', 'tau2/airline' or 'tau2/telecom'"
    return f"tau2-bench, whose domains are {names}, with domain_args={{'package': FOLDER}}" if tau2 else ""


def read_checkout(folder: Path) -> tuple[dict[str, Any], list[Any], str, dict[str, list[tuple[str, Any]]]]:
    """Reads the retail folder of a checkout.

    Raises:
        DataError: If a file is missing or not as upstream publishes it; names the file.
    """
    tables = {table: read_json(folder / "data" / f"{table}.json") for table in TABLES}
    schemas = [schema for file in sorted((folder / "tools").glob("*.py")) for schema in _schemas(file)]
    policy = _text(folder / "wiki.md")
    tasks = {}
    for split in SPLITS:
        file = folder / f"tasks_{split}.py"
        if file.is_file():
            tasks[split] = [(f"{file}, task {i}", row) for i, row in enumerate(_tasks(file, split))]
    if not tasks:
        raise DataError(f"{folder} has no tasks_train.py, tasks_dev.py or tasks_test.py. Check the checkout out again.")
    return tables, schemas, policy, tasks


def _parse(file: Path) -> ast.Module:
    try:
        return ast.parse(_text(file))
    except (SyntaxError, ValueError) as error:
        raise DataError(f"{file} is not Python: {error}.") from error


def _schemas(file: Path) -> list[Any]:
    """The literals that functions called ``get_info`` return, where they are of one of the retail tools."""
    schemas = []
    for node in ast.walk(_parse(file)):
        if isinstance(node, ast.FunctionDef) and node.name == "get_info":
            returned = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value]
            schemas += [_literal(value, file) for value in returned]
    return schemas


def _tasks(file: Path, split: str) -> list[dict[str, Any]]:
    """Every ``Task(…)`` of the file, in order, as a row of our own format."""
    rows = []
    calls = [n for n in ast.walk(_parse(file)) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "Task"]
    for number, call in enumerate(sorted(calls, key=lambda node: node.lineno)):
        keywords = {word.arg: word.value for word in call.keywords if word.arg}
        if lacks := {"user_id", "instruction", "actions"} - keywords.keys():
            raise DataError(f"{file}, line {call.lineno}: the task lacks {', '.join(sorted(lacks))}.")
        row: dict[str, Any] = {
            name: _literal(keywords[name], file) for name in ("user_id", "instruction", "outputs") if name in keywords
        }
        actions = keywords["actions"].elts if isinstance(keywords["actions"], ast.List) else []
        row["actions"] = [
            {str(word.arg): _literal(word.value, file) for word in action.keywords}
            for action in actions
            if isinstance(action, ast.Call)
        ]
        rows.append({"id": f"retail_{split}_{number}", **row})
    return rows


def _literal(node: ast.AST, file: Path) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        line = getattr(node, "lineno", 0)
        raise DataError(f"{file}, line {line}: expected plain literals ({error}).") from error
