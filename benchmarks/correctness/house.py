"""How large this project is for somebody who extends it; fails where it has grown past the stored figures.

    python -m benchmarks house            # measures, and compares with benchmarks/results/house.json
    python -m benchmarks house --write    # stores today's figures, and writes the tables of docs/architecture.md

Whoever needs more stores the new figures in the same commit, and says there why.

* The walk: project files and functions that one iteration of the quickstart enters, from its first reply to its line of
  metrics (no evaluation, no checkpoint), its deepest stack, and the frames from the loop to the engine, in frames of
  the project; comprehensions have none, as from Python 3.12 on.
* Settings: how often a ``TrainConfig`` is made for one command line.
* Rooms: what lies directly in a package, a module or a folder. Arrows are imports between rooms of ``marft_algos``,
  those inside functions included, those for type hints only left out; floors are the longest way down, a cycle being
  one floor.
* Cycles: sets of modules of both packages that import each other, inside functions included.
* Forms: classes with fields of a turn (two or more of ``TURN``), and records with numbers that are a reward
  (``REWARD``); adapters, which speak others' forms, left out.
* Names: public names of classes that more than one class has.
* Lines: of code, without blanks, comments and docstrings; lines of README and CHANGELOG; words of the pages.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import io
import json
import os
import sys
import tempfile
import threading
import tokenize
import unittest.mock
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import grimp

import marft_algos
import marft_envs
from benchmarks.correctness import rooms as tables

STORED = tables.ROOT / "benchmarks/results/house.json"
PACKAGES = ("marft_envs", "marft_algos")
ROOTS = {name: Path(package.__path__[0]) for name, package in zip(PACKAGES, (marft_envs, marft_algos), strict=True)}
LOOP, ENGINE = "marft_algos/training/trainer.py Trainer._run", "marft_algos/engines/native.py NativeEngine.generate"
"""The first and the last of the frames between the loop and the engine, both counted."""
TURN = {"agent", "sees", "text", "messages", "prompt_ids", "action_ids", "logprobs"}
REWARD = {"reward", "rewards", "team_reward", "turn_rewards", "agent_rewards", "late_rewards", "team", "late"}


# The walk -------------------------------------------------------------------------------------------


INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>")
"""Comprehensions have frames of their own in Python 3.11 only."""


class Walk:
    """Notes the project's frames that are entered between ``begin`` and ``end``, in threads that start there, too."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str, int]] = set()
        self.deepest: list[str] = []
        self.to_engine = 0
        self._names: dict[CodeType, str] = {}
        self._roots = tuple(f"{root}{os.sep}" for root in ROOTS.values())

    def begin(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def end(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._name(code := frame.f_code):
            return
        self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))
        stack = list(self._project(frame))
        if len(stack) > len(self.deepest):
            self.deepest = stack[::-1]
        if stack[0] == ENGINE and LOOP in stack:
            self.to_engine = max(self.to_engine, stack.index(LOOP) + 1)

    def _project(self, frame: FrameType | None) -> Iterator[str]:
        while frame is not None:
            if name := self._name(frame.f_code):
                yield name
            frame = frame.f_back

    def _name(self, code: CodeType) -> str:
        """File and name of what is the project's; else nothing."""
        if (name := self._names.get(code)) is None:
            ours = code.co_filename.startswith(self._roots) and code.co_name not in INLINED
            name = f"{_relative(Path(code.co_filename))} {code.co_qualname}" if ours else ""
            self._names[code] = name
        return name

    def files(self) -> list[str]:
        """The files that were entered."""
        return sorted({_relative(Path(file)) for file, _, _ in self.functions})


def _relative(file: Path) -> str:
    root = next(root for root in ROOTS.values() if file.is_relative_to(root))
    return file.relative_to(root.parent).as_posix()


class _Walked(Exception):
    """The iteration is over."""


class Watcher:
    """A display that shows nothing, and ends the run after the iteration that it walks."""

    def __init__(self, walk: Walk) -> None:
        self.walk, self.begun = walk, False

    def phase(self, text: str) -> None:
        if text.startswith("playing") and not self.begun:
            self.begun = True
            self.walk.begin()

    def log(self, metrics: Mapping[str, Any]) -> None:
        self.walk.end()
        if self.begun:
            raise _Walked

    def evaluated(self, *_: Any) -> None:
        """Nothing is shown."""

    note = close = evaluated


def walk() -> dict[str, int]:
    """Walks the first of two iterations of the quickstart, with eight episodes."""
    from marft_algos import Trainer, build
    from marft_algos.config import presets
    from marft_algos.config import settings as config

    small = {"iterations": 2, "episodes_per_iteration": 8, "eval_episodes": 8}
    alone = {"eval_every": 0, "save_every": 0, "record_every": 0}
    recorded = Walk()
    with tempfile.TemporaryDirectory() as folder:
        settings = config.build(presets.get("quickstart") | small | alone | {"runs_dir": folder})
        trainer = Trainer(build(settings))
        with contextlib.suppress(_Walked):
            trainer.train(trainer.start(), Watcher(recorded))  # type: ignore[arg-type]
    return {
        "files of an iteration": len(recorded.files()),
        "functions of an iteration": len(recorded.functions),
        "deepest stack": len(recorded.deepest),
        "frames from loop to engine": recorded.to_engine,
    }


def settings_made() -> int:
    """How often a ``TrainConfig`` is made on the way from the words of a command to the parts of its run."""
    from marft_algos import build
    from marft_algos.cli.training import typed_settings
    from marft_algos.config.settings import TrainConfig
    from marft_algos.training.warm import warmed

    made, checked = [], TrainConfig.__post_init__

    def counted(config: TrainConfig) -> None:
        made.append(config)
        checked(config)

    with unittest.mock.patch.object(TrainConfig, "__post_init__", counted), tempfile.TemporaryDirectory() as folder:
        config, _ = typed_settings(["--clip", "0.3", "--iterations", "1", "--runs-dir", folder])
        build(warmed(config, "house"))
    return len(made)


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


@functools.cache
def sources() -> dict[str, str]:
    """Path of every module, from its package on -> its text."""
    files = (file for root in ROOTS.values() for file in sorted(root.rglob("*.py")))
    return {_relative(file): file.read_text(encoding="utf-8") for file in files}


@functools.cache
def classes() -> list[tuple[str, ast.ClassDef]]:
    """Path of a module, and a public class in it, of all."""
    found = ((path, node) for path, text in sources().items() for node in ast.walk(ast.parse(text)))
    return [(path, node) for path, node in found if isinstance(node, ast.ClassDef) and node.name[0] != "_"]


def forms() -> dict[str, list[str]]:
    """Classes that carry a turn, and classes that carry a reward."""
    names_of: dict[str, list[str]] = {"turn": [], "reward": []}
    for path, node in classes():
        if path.startswith("marft_envs/adapters/"):
            continue
        name, annotated = f"{path} {node.name}", [n for n in node.body if isinstance(n, ast.AnnAssign)]
        rewards = [n for n in annotated if ast.unparse(n.target) in REWARD and "float" in ast.unparse(n.annotation)]
        names_of["turn"] += [name] if len(TURN & _fields(node)) > 1 else []
        names_of["reward"] += [name] if rewards else []
    return names_of


def names_used_twice() -> dict[str, list[str]]:
    """Public names of classes that more than one class has -> the files."""
    files: dict[str, list[str]] = defaultdict(list)
    for path, node in classes():
        files[node.name].append(path)
    return {name: where for name, where in sorted(files.items()) if len(where) > 1}


def _fields(node: ast.ClassDef) -> set[str]:
    """Fields, attributes and properties of a class."""
    fields = {ast.unparse(n.target) for n in node.body if isinstance(n, ast.AnnAssign)}
    for n in ast.walk(node):
        if isinstance(n, ast.Assign | ast.AnnAssign):
            targets = n.targets if isinstance(n, ast.Assign) else [n.target]
            fields |= {t.attr for t in targets if isinstance(t, ast.Attribute) and ast.unparse(t.value) == "self"}
        elif isinstance(n, ast.FunctionDef) and any(ast.unparse(d) == "property" for d in n.decorator_list):
            fields.add(n.name)
    return fields


def lines() -> dict[str, int]:
    """Room of either package -> lines of code."""
    counts: Counter[str] = Counter()
    for path, text in sources().items():
        counts["/".join(path.split("/")[:2]) if path.count("/") > 1 else path.split("/")[0]] += _code(text)
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


def words() -> dict[str, int]:
    """Words of the pages under ``docs``, lines of README and of CHANGELOG."""
    pages = (tables.ROOT / "docs").rglob("*.md")
    return {
        "words of docs": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        "lines of README": len((tables.ROOT / "README.md").read_text(encoding="utf-8").splitlines()),
        "lines of CHANGELOG": len((tables.ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()),
    }


def measure() -> dict[str, Any]:
    """Everything: figures by name, and lines of code by room."""
    arrows = imports()
    inside, of = rooms(arrows), forms()
    by_room = lines()
    return {
        **walk(),
        "makings of a TrainConfig": settings_made(),
        "rooms of marft_envs": len(tables.rooms("marft_envs")),
        "rooms of marft_algos": len(inside),
        "floors of marft_algos": floors(inside),
        "arrows of marft_algos": sum(map(len, inside.values())),
        "import cycles": len(cycles(arrows)),
        "classes that carry a turn": len(of["turn"]),
        "classes that carry a reward": len(of["reward"]),
        "class names used twice": len(names_used_twice()),
        "lines of code": sum(by_room.values()),
        **words(),
        "lines": by_room,
    }


def grown(today: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """What is larger than stored, a line each; a figure that is not stored may be nothing."""
    flat = [(f, n, stored.get(f, 0)) for f, n in today.items() if f != "lines"]
    flat += [(f"lines of {room}", n, stored["lines"].get(room, 0)) for room, n in today["lines"].items()]
    return [f"{figure}: {now:,}, stored {then:,}" for figure, now, then in flat if now > then]


def read_stored() -> dict[str, Any]:
    """The stored figures."""
    return dict(json.loads(STORED.read_text(encoding="utf-8")))


def main() -> None:
    """Prints the figures, and compares or stores them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store the figures, and write the page's tables")
    parser.add_argument("--names", action="store_true", help="list cycles, forms and names that are used twice, too")
    args = parser.parse_args()
    today = measure()
    for figure, count in [*today.items(), *today["lines"].items()]:
        if figure != "lines":
            print(f"{count:8,} {figure}")
    if args.names:
        print(json.dumps({"cycles": cycles(imports()), **forms(), "twice": names_used_twice()}, indent=1))
    if args.write:
        STORED.write_text(json.dumps(today, indent=1) + "\n", encoding="utf-8")
        tables.PAGE.write_text(tables.page(today), encoding="utf-8")
    elif larger := grown(today, read_stored()):
        print("", "larger than stored:", *larger, sep="\n")
        sys.exit("Make it smaller; or store it, and say why in the commit: python -m benchmarks house --write")


if __name__ == "__main__":
    main()
