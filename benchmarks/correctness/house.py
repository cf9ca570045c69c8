"""What somebody who extends ``marft_algos`` has to hold in the head: walks, rooms, floors, cycles, forms, lines.

    python -m benchmarks house [--json FILE] [--no-walk]

* The walk: project files and functions that one iteration of the quickstart enters, from its first reply to its line of
  metrics (no evaluation, no checkpoint), and its deepest stack, in frames of the project.
* Rooms: what lies directly in ``marft_algos``, a module or a folder. Arrows are imports between rooms, those inside
  functions included, those for type hints only left out; floors are the longest way down, a cycle being one floor.
* Cycles: sets of modules of both packages that import each other, inside functions included.
* Forms: classes with fields of a turn (three or more of ``TURN``), and with fields of a reward (``REWARD``).
* Lines: without blanks, comments and docstrings.

It reads the packages that are installed, so another checkout is measured by its own interpreter.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import sys
import tempfile
import threading
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import grimp

import marft_algos
import marft_envs

PACKAGES = ("marft_envs", "marft_algos")
ROOTS = {name: Path(package.__path__[0]) for name, package in zip(PACKAGES, (marft_envs, marft_algos), strict=True)}
TURN = {"agent", "sees", "text", "messages", "prompt_ids", "action_ids", "logprobs"}
REWARD = {"reward", "rewards", "team_reward", "turn_rewards", "agent_rewards", "late_rewards", "team", "late"}


# The walk -------------------------------------------------------------------------------------------


class Walk:
    """Notes the project's frames that are entered between ``begin`` and ``end``, in threads that start there, too."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str, int]] = set()
        self.deepest: list[str] = []
        self._roots = tuple(f"{root}{os.sep}" for root in ROOTS.values())

    def begin(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def end(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self._roots):
            return
        self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))
        stack = list(self._project(frame))
        if len(stack) > len(self.deepest):
            self.deepest = stack[::-1]

    def _project(self, frame: FrameType | None) -> Iterator[str]:
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._roots):
                yield f"{_relative(Path(frame.f_code.co_filename))} {frame.f_code.co_qualname}"
            frame = frame.f_back

    def files(self) -> list[str]:
        """The files that were entered."""
        return sorted({_relative(Path(file)) for file, _, _ in self.functions})


def _relative(file: Path) -> str:
    root = next(root for root in ROOTS.values() if file.is_relative_to(root))
    return file.relative_to(root.parent).as_posix()


class Watcher:
    """A display that shows nothing and walks a run's first iteration."""

    def __init__(self, walk: Walk) -> None:
        self.walk, self.begun = walk, False

    def phase(self, text: str) -> None:
        if text.startswith("playing") and not self.begun:
            self.begun = True
            self.walk.begin()

    def log(self, metrics: Mapping[str, Any]) -> None:
        self.walk.end()

    def evaluated(self, *_: Any) -> None:
        """Nothing is shown."""

    note = close = evaluated


def walk() -> dict[str, Any]:
    """Trains two iterations of the quickstart and walks the first."""
    from marft_algos import Trainer, build
    from marft_algos.config import presets
    from marft_algos.config import settings as config

    alone = {"iterations": 2, "eval_every": 0, "save_every": 0, "record_every": 0, "eval_episodes": 8}
    recorded = Walk()
    with tempfile.TemporaryDirectory() as folder:
        settings = config.build(presets.get("quickstart") | alone | {"runs_dir": folder})
        trainer = Trainer(build(settings))
        trainer.train(trainer.start(), Watcher(recorded))  # type: ignore[arg-type]
    return {"files": recorded.files(), "functions": len(recorded.functions), "stack": recorded.deepest}


# Rooms and cycles -----------------------------------------------------------------------------------


def imports() -> dict[str, set[str]]:
    """Module -> modules of the project that it imports anywhere, but for type hints."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def rooms(arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Room of ``marft_algos`` -> rooms that it imports from."""
    rooms_used: dict[str, set[str]] = defaultdict(set)
    for module, others in arrows.items():
        if here := _room(module):
            rooms_used[here] |= {there for other in others if (there := _room(other))} - {here}
    return dict(rooms_used)


def _room(module: str) -> str:
    package, _, rest = module.partition(".")
    return "" if package != "marft_algos" or rest == "__main__" else rest.partition(".")[0]


def cycles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Sets of nodes that reach each other (Tarjan), the largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            components.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return sorted((each for each in components if len(each) > 1), key=lambda each: (-len(each), each))


def floors(arrows: Mapping[str, set[str]]) -> int:
    """The most rooms on a way down, where rooms that import each other are one."""
    one = {node: each[0] for each in cycles(arrows) for node in each}
    merged: dict[str, set[str]] = defaultdict(set)
    for node, others in arrows.items():
        merged[one.get(node, node)] |= {one.get(other, other) for other in others}
    height: dict[str, int] = {}

    def climb(node: str) -> int:
        if node not in height:
            height[node] = 1 + max((climb(other) for other in merged.get(node, set()) - {node}), default=0)
        return height[node]

    return max(map(climb, list(merged)), default=0)


# Forms and lines ------------------------------------------------------------------------------------


def forms() -> dict[str, list[str]]:
    """Classes that carry a turn, and classes that carry a reward."""
    names_of: dict[str, list[str]] = {"turn": [], "reward": []}
    for package in PACKAGES:
        for file in sorted(ROOTS[package].rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    held, name = _fields(node), f"{_relative(file)} {node.name}"
                    names_of["turn"] += [name] if len(TURN & set(held)) > 1 else []
                    names_of["reward"] += [name] if any("str" not in held[word] for word in REWARD & set(held)) else []
    return names_of


def _fields(node: ast.ClassDef) -> dict[str, str]:
    """Field, attribute or property of a class -> its type, as written."""
    annotated = (n for n in node.body if isinstance(n, ast.AnnAssign))
    fields = {ast.unparse(n.target): ast.unparse(n.annotation) for n in annotated}
    for n in ast.walk(node):
        if isinstance(n, ast.Assign | ast.AnnAssign):
            for target in n.targets if isinstance(n, ast.Assign) else [n.target]:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    fields.setdefault(target.attr, "")
        elif isinstance(n, ast.FunctionDef) and any(ast.unparse(d) == "property" for d in n.decorator_list):
            fields[n.name] = ast.unparse(n.returns) if n.returns else ""
    return fields


def lines() -> dict[str, int]:
    """Room of either package -> lines of code."""
    counts: Counter[str] = Counter()
    for package, root in ROOTS.items():
        for file in root.rglob("*.py"):
            inside = file.relative_to(root).parts
            counts[f"{package}/{inside[0]}" if len(inside) > 1 else package] += _code(file.read_text(encoding="utf-8"))
    return dict(sorted(counts.items()))


def _code(source: str) -> int:
    """Lines that hold a token that is no comment, line break or bare string."""
    bare: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            bare |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    held = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in skipped
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(held - bare)


def measure(walked: bool = True) -> dict[str, Any]:
    """Everything."""
    arrows = imports()
    inside = rooms(arrows)
    measured = {
        "rooms": len(inside),
        "floors": floors(inside),
        "arrows": sum(map(len, inside.values())),
        "cycles": cycles(arrows),
        "forms": forms(),
        "lines": lines(),
    }
    return measured | ({"walk": walk()} if walked else {})


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write everything there, files and stack too")
    parser.add_argument("--no-walk", action="store_true", help="leave out the iteration")
    args = parser.parse_args()
    report = measure(not args.no_walk)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if "walk" in report:
        print(f"an iteration enters {len(report['walk']['files'])} files, {report['walk']['functions']} functions")
        print(f"deepest stack of project frames: {len(report['walk']['stack'])}")
    print(f"marft_algos: {report['rooms']} rooms, {report['floors']} floors, {report['arrows']} arrows between rooms")
    print(f"import cycles: {len(report['cycles'])}" + "".join(f"\n  {' '.join(each)}" for each in report["cycles"]))
    for what, names in report["forms"].items():
        print(f"classes that carry a {what}: {len(names)}" + "".join(f"\n  {name}" for name in names))
    print(f"lines of code: {sum(report['lines'].values())}")
    for room, count in report["lines"].items():
        print(f"  {count:6,} {room}")


if __name__ == "__main__":
    main()
