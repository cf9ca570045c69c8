"""How large this project is for somebody who extends it; fails where a figure is over its cap.

    python -m benchmarks house            # measures, and compares with the caps, tests/project/caps.toml
    python -m benchmarks house --names    # lists what is counted, too
    python -m benchmarks house --write    # writes the tables of docs/architecture.md, with today's figures

Nothing here writes a cap. A change that makes a figure smaller lowers its cap; a raise is a commit of its own
(AGENTS.md).

* The walk: project files and functions that one iteration of the quickstart enters, from its first reply to its line of
  metrics (no evaluation, no checkpoint), its deepest stack, and the frames from the loop to the engine, in frames of
  the project; comprehensions have none, as from Python 3.12 on.
* Settings: how often a ``TrainConfig`` is made for one command line.
* Rooms: what lies directly in a package, a module or a folder; each family is a room. Arrows are imports between rooms
  of a package, those inside functions included, those for type hints only left out; floors are the longest way down, a
  cycle being as many floors as it has rooms. Backward arrows are those between rooms that reach each other.
* Cycles: sets of modules of both packages that import each other, inside functions included; knots are such sets if
  imports for type hints count, too.
* Imports of extras by the promise: pairs of modules (what is extras stands in ``extras.toml``).
* Modules with more than 25 imports: distinct modules that stand after ``import`` or ``from``, wherever in the file,
  those of Python and of others included.
* Positional booleans: parameters of functions, public or private, that are annotated ``bool`` or have True or False as
  their default, and can be passed without their name. Fields of dataclasses are none.
* Forms: classes with fields of a turn (two or more of ``TURN``), and records with numbers that are a reward
  (``REWARD``); adapters, which speak others' forms, left out.
* Names: public names of classes that more than one class has; names of files in three rooms or more; functions, classes
  and files that are called by a word with several meanings (``WORDS``).
* Lines: of code, without blanks, comments and docstrings, by tier; all lines of tests and benchmarks (``.py``), of
  README and CHANGELOG; words of the pages that are looked things up in (``REFERENCE``), not of guides.
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import grimp

import marft_algos
import marft_envs
from benchmarks.correctness import rooms as tables

PACKAGES = ("marft_envs", "marft_algos")
ROOTS = {name: Path(package.__path__[0]) for name, package in zip(PACKAGES, (marft_envs, marft_algos), strict=True)}
LOOP, ENGINE = "marft_algos/training/trainer.py Trainer._run", "marft_algos/engines/native.py NativeEngine.generate"
"""The first and the last of the frames between the loop and the engine, both counted."""
MOST_IMPORTS = 25
WORDS = ("chain", "start", "plan", "judge", "policy")
"""With several meanings: D, returns or a prefix of requests; the run or the problem that one begins with; of a cluster,
a grid or a run; a grader, a model that grades or an agent; weights or the rules of a shop."""
REFERENCE = ("architecture", "call-formats", "cli", "compliance", "math-answers", "metrics")
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


@functools.cache
def imports(typed: bool = False) -> dict[str, set[str]]:
    """Module -> modules of the project that it imports anywhere, for type hints only if they are asked for."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=not typed, cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def rooms(arrows: Mapping[str, set[str]], package: str) -> dict[str, set[str]]:
    """Room of a package -> rooms of it that it imports from."""
    rooms_used: dict[str, set[str]] = defaultdict(set)
    for module, others in arrows.items():
        if here := _room(module, package):
            rooms_used[here] |= {there for other in others if (there := _room(other, package))} - {here}
    return dict(rooms_used)


def _room(module: str, package: str) -> str:
    """The room that a module is in; nothing for those of other packages, and for what only collects rooms."""
    own, _, rest = module.partition(".")
    room, _, rest = rest.partition(".")
    room = f"families.{rest.partition('.')[0]}" if room == "families" else room
    return "" if own != package or room in ("__main__", "families.") else room


def backward(arrows: Mapping[str, set[str]]) -> list[str]:
    """Arrows between rooms that reach each other."""
    together = [(set(each), here) for each in cycles(arrows) for here in each]
    return [f"{here} -> {there}" for each, here in together for there in sorted(arrows[here] & each)]


def climbs(arrows: Mapping[str, set[str]]) -> list[str]:
    """Imports of the second tier by modules of the first."""
    pairs = ((module, other) for module in sorted(arrows) for other in sorted(arrows[module]))
    return [f"{a} imports {b}" for a, b in pairs if tables.is_extra(b) and not tables.is_extra(a)]


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
    """The most rooms on a way down; on a way through rooms that import each other are all of them."""
    one = {node: each[0] for each in cycles(arrows) for node in each}
    rooms_of = Counter(one.values())
    merged: dict[str, set[str]] = defaultdict(set)
    for node, others in arrows.items():
        merged[one.get(node, node)] |= {one.get(other, other) for other in others}
    height: dict[str, int] = {}

    def climb(node: str) -> int:
        if node not in height:
            height[node] = rooms_of.get(node, 1) + max(
                (climb(other) for other in merged.get(node, set()) - {node}), default=0
            )
        return height[node]

    return max(map(climb, list(merged)), default=0)


# Modules, names and lines ---------------------------------------------------------------------------


@functools.cache
def sources() -> dict[str, str]:
    """Path of every module, from its package on -> its text."""
    files = (file for root in ROOTS.values() for file in sorted(root.rglob("*.py")))
    return {_relative(file): file.read_text(encoding="utf-8") for file in files}


@functools.cache
def nodes() -> dict[str, list[ast.AST]]:
    """Path of every module -> all nodes of its syntax tree."""
    return {path: list(ast.walk(ast.parse(text))) for path, text in sources().items()}


def wide_modules() -> list[str]:
    """Modules with more imports than ``MOST_IMPORTS``."""
    counts = {path: len(_imported(each)) for path, each in nodes().items()}
    return [f"{path} ({count})" for path, count in counts.items() if count > MOST_IMPORTS]


def _imported(found: Iterable[ast.AST]) -> set[str]:
    """Names of modules after ``import`` and ``from``."""
    names: set[str] = set()
    for node in found:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or ".")
    return names


def positional_booleans(found: Mapping[str, Iterable[ast.AST]]) -> list[str]:
    """Boolean parameters that can be passed without their name, of all functions of these modules."""
    named = []
    for path, each in found.items():
        for node in each:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args]
                defaults = [None] * (len(given) - len(node.args.defaults)) + node.args.defaults
                pairs = zip(given, defaults, strict=True)
                named += [f"{path}:{node.lineno} {node.name}({a.arg})" for a, d in pairs if _is_boolean(a, d)]
    return named


def _is_boolean(parameter: ast.arg, default: ast.expr | None) -> bool:
    annotated = isinstance(parameter.annotation, ast.Name) and parameter.annotation.id == "bool"
    return annotated or (isinstance(default, ast.Constant) and isinstance(default.value, bool))


@functools.cache
def classes() -> list[tuple[str, ast.ClassDef]]:
    """Path of a module, and a public class in it, of all."""
    found = ((path, node) for path, each in nodes().items() for node in each)
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


def common_files() -> dict[str, list[str]]:
    """Names of files, private ones left out, that stand in three rooms or more -> these rooms."""
    where: dict[str, set[str]] = defaultdict(set)
    for path in sources():
        package, *_, name = path.removesuffix(".py").split("/")
        if name[0] != "_" and path.count("/") > 1:
            where[name].add(_room(path.removesuffix(".py").replace("/", "."), package))
    return {name: sorted(rooms) for name, rooms in sorted(where.items()) if len(rooms) > 2}


def called_by_words() -> list[str]:
    """Functions, classes and files that are called by a word with several meanings."""
    files = [path for path in sources() if path.rpartition("/")[2].removesuffix(".py") in WORDS]
    return files + [
        f"{path}:{node.lineno} {node.name}"
        for path, each in nodes().items()
        for node in each
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.strip("_").lower() in WORDS
    ]


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
    """Lines of code of each tier, and all lines of tests and of benchmarks."""
    tier = ("lines of code of the promise", "lines of code of extras")
    counts = dict.fromkeys((*tier, "lines of tests", "lines of benchmarks"), 0)
    for path, text in sources().items():
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        counts[tier[tables.is_extra(module)]] += _code(text)
    for folder in ("tests", "benchmarks"):
        for file in (tables.ROOT / folder).rglob("*.py"):
            counts[f"lines of {folder}"] += len(file.read_text(encoding="utf-8").splitlines())
    return counts


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
    pages = [tables.ROOT / f"docs/{name}.md" for name in REFERENCE]
    return {
        "words of reference pages": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        "lines of README": len((tables.ROOT / "README.md").read_text(encoding="utf-8").splitlines()),
        "lines of CHANGELOG": len((tables.ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()),
    }


def counted() -> dict[str, list[str]]:
    """Names of what is counted by figure, of figures whose names are worth a look."""
    arrows = imports()
    return {
        "backward arrows": [each for package in PACKAGES for each in backward(rooms(arrows, package))],
        "import cycles": [" ".join(each) for each in cycles(arrows)],
        "knots of type-only imports": [" ".join(each) for each in cycles(imports(typed=True))],
        "imports of extras by the promise": climbs(arrows),
        f"modules with more than {MOST_IMPORTS} imports": wide_modules(),
        "positional booleans": positional_booleans(nodes()),
        **{f"classes that carry a {form}": names for form, names in forms().items()},
        "class names used twice": list(names_used_twice()),
        "file names in three rooms or more": list(common_files()),
        "things called by a word with several meanings": called_by_words(),
    }


def measure() -> dict[str, int]:
    """Everything: the figures by name."""
    figures = {**walk(), "makings of a TrainConfig": settings_made()}
    for package in PACKAGES:
        inside = rooms(imports(), package)
        figures[f"rooms of {package}"] = len(inside)
        figures[f"floors of {package}"] = floors(inside)
        figures[f"arrows of {package}"] = sum(map(len, inside.values()))
    return {**figures, **{figure: len(names) for figure, names in counted().items()}, **lines(), **words()}


def larger(today: Mapping[str, int], caps: Mapping[str, int]) -> list[str]:
    """What is over its cap, a line each; a figure without a cap may be nothing."""
    over = ((figure, now, caps.get(figure, 0)) for figure, now in today.items())
    return [f"{figure}: {now:,}, at most {cap:,}" for figure, now, cap in over if now > cap]


def main() -> None:
    """Prints the figures, and compares them with their caps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables of docs/architecture.md")
    parser.add_argument("--names", action="store_true", help="list what is counted, too")
    args = parser.parse_args()
    today, caps = measure(), tables.read_caps()
    for figure, count in today.items():
        print(f"{count:8,} {figure}")
    if args.names:
        print(json.dumps(counted(), indent=1))
    if args.write:
        tables.PAGE.write_text(tables.page(today, caps), encoding="utf-8")
    if over := larger(today, caps):
        print("", "over its cap:", *over, sep="\n")
        sys.exit("Make it smaller. A cap is raised in a commit of its own, which says what went in return: AGENTS.md.")


if __name__ == "__main__":
    main()
