"""A checkout of the tau-bench repository, read without running any of it.

Its tasks and schemas are Python files. They are parsed, and only literals are taken from them.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from marft_envs.errors import DataError

INSIDE = Path("tau_bench") / "envs" / "retail"
SPLITS = ("train", "dev", "test")
Published = tuple[dict[str, Any], list[Any], str, dict[str, list[tuple[str, Any]]]]
"""Tables, schemas of the tools, policy, and per split the tasks with where each stands."""


def find(folder: Path) -> Path | None:
    """Returns the retail folder of a checkout (or the folder itself, if it is that), else None."""
    for candidate in (folder / INSIDE, folder):
        if (candidate / "wiki.md").is_file() and (candidate / "data" / "orders.json").is_file():
            return candidate
    return None


def other(folder: Path) -> str:
    """Returns which other published set of tasks a folder holds; "" if none that is known."""
    if (folder / "data" / "flights.json").is_file() or (folder / "tau_bench" / "envs" / "airline").is_dir():
        return "the airline domain of tau-bench"
    tasks = (folder / "tasks.json").is_file() and (folder / "policy.md").is_file()
    tau2 = tasks or any((folder / name).is_dir() for name in ("data/tau2", "tau2", "domains"))
    return "tau2-bench (tasks.json, policy.md, data/tau2)" if tau2 else ""


def read(folder: Path) -> Published:
    """Reads the retail folder of a checkout.

    Raises:
        DataError: If a file is missing or not as upstream publishes it; names the file.
    """
    tables = {}
    for table in ("products", "users", "orders"):
        file = folder / "data" / f"{table}.json"
        try:
            tables[table] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{file} cannot be read as JSON: {error}.") from error
    schemas = [schema for file in sorted((folder / "tools").glob("*.py")) for schema in _schemas(file)]
    policy = (folder / "wiki.md").read_text(encoding="utf-8")
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
        return ast.parse(file.read_text(encoding="utf-8"))
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
    calls = [n for n in ast.walk(_parse(file)) if isinstance(n, ast.Call) and _called(n) == "Task"]
    for number, call in enumerate(sorted(calls, key=lambda node: node.lineno)):
        keywords = {word.arg: word.value for word in call.keywords if word.arg}
        lacks = {"user_id", "instruction", "actions"} - keywords.keys()
        if lacks:
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


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _literal(node: ast.AST, file: Path) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        line = getattr(node, "lineno", 0)
        raise DataError(f"{file}, line {line}: expected plain literals ({error}).") from error
