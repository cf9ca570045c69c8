"""What is shipped and how the rooms may know each other: light imports, layers, file sizes, versions, wheel, make."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import marft_envs
from benchmarks.correctness import rooms
from helpers.fake_servers import chat, serving
from marft_algos import lazy
from marft_algos.config import manual, presets

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("marft_envs", "marft_algos")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HEAVY = (
    "torch", "transformers", "peft", "safetensors", "tokenizers", "jinja2", "datasets", "matplotlib", "tensorboard",
    "mcp", "openai", "opentelemetry", "ray", "torchrl", "tensordict", "benchmarl",
)  # fmt: skip

PRODUCTS = {"serve": {"shadow"}, "view": {"bench"}}
"""A part of ``marft_algos.extras`` -> others that it imports from."""
ABSENT = tuple(name for name in HEAVY if name != "jinja2")
"""Of a base install, which brings jinja2."""
ENVS = (
    "artefacts", "call_formats", "core.env", "core.faults", "core.partners", "core.teams", "core.types", "core.vector",
    "core.wrappers", "consent", "errors", "problems.rows", "records.chats", "records.experts", "records.trajectory", "registration", "search_path",
)  # fmt: skip
"""Modules of ``marft_envs`` that ``marft_algos`` may import, beside what the package itself exports."""
ENVS_OF_EXTRAS = (
    "adapters.inward.served",
    "core.thoughts",
    "records.traces",
    "sandbox.layers",
    "server",
    "workers.pool",
)
"""More of them, for extras."""
ONE_CONCEPT = {
    "benchmarks/correctness/house.py": "the figures of the house, each with what it counts",
    "marft_envs/records/otel.py": "episodes as OpenTelemetry spans",
}
"""Files of more than 400 lines, and the one concept that each is."""
LONG_TESTS = {
    "algorithms/test_algos_critics", "algorithms/test_algos_groups", "algorithms/test_marft",
    "code/test_code_data", "code/test_code_env", "code/test_sandbox", "envs/test_core", "envs/test_dependency",
    "envs/test_outages", "envs/test_programs", "tools/test_tau", "tools/test_tools_env",
}  # fmt: skip
"""Files of tests with more than 500 lines; no other is to come."""

RANK = {name: rank for rank, names in enumerate(rooms.FLOORS) for name in names}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(file: Path) -> Iterator[str]:
    """Dotted names a file imports anywhere in it, ``from a import b`` as ``a.b``."""
    package = module_of(file).split(".")[: None if file.name == "__init__.py" else -1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)


def strings(file: Path) -> Iterator[str]:
    """String constants of a file that are no docstrings (nor bare strings under a field)."""
    tree = ast.parse(file.read_text())
    bare = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False
    )


def python(code: str) -> str:
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_import_of_marft_envs_is_light() -> None:
    """How long it takes is measured by ``python -m benchmarks envs``."""
    code = f"import sys, marft_envs; print(*[m for m in {(*HEAVY, 'math_verify')!r} if m in sys.modules])"
    assert python(code) == ""


def without(*packages: str) -> str:
    """Code that hides packages from every finder, so they are as absent as where they are not installed."""
    return (
        "import sys\n"
        "class Without:\n"
        "    def __init__(self, finder): self.finder = finder\n"
        "    def __getattr__(self, name): return getattr(self.finder, name)\n"
        "    def find_spec(self, name, *rest):\n"
        f"        return None if name.split('.')[0] in {packages!r} else self.finder.find_spec(name, *rest)\n"
        "sys.meta_path[:] = map(Without, sys.meta_path)\n"
        "from marft_algos.cli import main\n"
    )


def test_the_base_install_runs_envs_and_check() -> None:
    code = without(*HEAVY) + (
        "for argv in (['envs'], ['envs', 'math-dual-v0'], ['check', 'relay-v0'], ['play', 'relay-v0', '--random']):\n"
        "    status = main(argv)\n"
        "    assert status == 0, (argv, status)\n"
        "assert main(['train']) == 1\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert "math-dual-v0" in done.stdout
    assert "pip install -e '.[train]'" in done.stderr


def test_the_base_install_has_help_for_every_command() -> None:
    code = without(*ABSENT) + (
        "from marft_algos.config.manual import MANUAL\n"
        "for command in MANUAL:\n"
        "    try: main([*command.split(), '--help'])\n"
        "    except SystemExit as left: assert not left.code, (command, left.code)\n"
        "    else: raise AssertionError(command)\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("usage: marft ") == len(manual.MANUAL)


def test_hosted_teams_are_evaluated_and_compared_without_what_trains(tmp_path: Path) -> None:
    """Evaluations need the hosted extra, comparing them the base install."""
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    hosted = [name for name in ABSENT if name != "openai"]
    with serving(lambda path, body: (200, chat(r"\boxed{7}"))) as fake:
        engine = json.dumps({"kind": "openai", "model": "m", "url": fake.url})
        code = without(*hosted) + (
            f"words = ['eval', '--env', 'math-dual-v0', '--engines', {engine!r}, '--episodes', '4', '--out']\n"
            f"assert main([*words, {a!r}]) == main([*words, {b!r}]) == 0\n"
            "print(sum(name.split('.')[0] in ('marft_envs', 'marft_algos') for name in sys.modules))\n"
        )
        assert int(python(code).splitlines()[-1]) <= 110
    code = without(*ABSENT) + f"assert main(['eval', '--compare', {a!r}, {b!r}, '--margin', '90']) == 0"
    assert "gate:    passed: score" in python(code)
    refused = run(sys.executable, "-c", without(*ABSENT) + "main(['eval', 'runs/none', '--untrained'])")
    assert "pip install -e '.[train]'" in refused.stderr


def test_nothing_says_to_install_from_an_index_that_has_no_such_package() -> None:
    """The name is free there for anybody: what is said works in a clone."""
    tracked = run("git", "ls-files", "*.md", "*.py", "*.toml", "*.yaml", "*.yml", "*.ipynb", "Dockerfile", "Makefile")
    wrong = re.compile(r"pip install (?:-\S+ )*['\"]?marft\b(?!-)|\bmarft\[\w")
    found = {
        f"{name}: {said[0]}"
        for name in tracked.stdout.splitlines()
        if name not in ("CHANGELOG.md", "pyproject.toml")
        for said in wrong.finditer((ROOT / name).read_text(encoding="utf-8"))
    }
    assert tracked.stdout and not found
    assert "pip install -e '.[wandb]'" in str(marft_envs.errors.MissingExtraError("wandb", "wandb"))


def test_marft_envs_knows_nothing_of_training() -> None:
    bad = {
        (module_of(file), name)
        for file in sources("marft_envs")
        for name in imports(file)
        if name.split(".")[0] in {"marft_algos", "torch", "transformers", "peft"} and "adapters" not in file.parts
    }
    assert not bad


def test_marft_algos_imports_of_marft_envs_what_it_may() -> None:
    for file in sources("marft_algos"):
        here = module_of(file)
        may = (*marft_envs.__all__, "__version__", *ENVS, *ENVS_OF_EXTRAS * rooms.is_extra(here))
        for name in imports(file):
            package, _, rest = name.partition(".")
            if package == "marft_envs" and rest:
                assert any(f"{rest}.".startswith(f"{each}.") for each in may), f"{here}: {name} is not among ENVS"


def test_marft_algos_keeps_its_layers() -> None:
    bad = []
    for file in sources("marft_algos"):
        if file == ROOT / "marft_algos/__init__.py":
            continue  # lazy names only; the light import of the command line proves it
        here = module_of(file).split(".")[1]
        assert here in RANK, f"give marft_algos.{here} its place in benchmarks/correctness/rooms.py"
        for name in imports(file):
            package, *there = name.split(".")
            if package == "marft_algos" and there and there[0] != here and RANK.get(there[0], -1) >= RANK[here]:
                bad.append(f"{module_of(file)} imports {name}")
            if package == "marft_envs" and any(part.startswith("_") for part in there):
                bad.append(f"{module_of(file)} imports the private {name}")
    assert not bad


def test_extras_are_leaves_and_each_stands_by_itself() -> None:
    bad = set()
    for file in sources("marft_algos"):
        here = [*module_of(file).split("."), ""][1:3]
        own = {here[1], *PRODUCTS.get(here[1], ())} if here[0] == "extras" else set[str]()
        found = {name.split(".")[2] for name in imports(file) if name.startswith("marft_algos.extras.")}
        bad |= {f"{module_of(file)} imports from marft_algos.extras.{name}" for name in found - own}
        bad |= {
            f"{module_of(file)} imports marft_algos.extras" for name in imports(file) if name == "marft_algos.extras"
        }
    assert not bad
    assert all(importlib.util.find_spec(module) for module in lazy.EXTRAS.values())


def test_the_trainer_names_no_algorithm_and_nobody_an_environment() -> None:
    pages = (ROOT / "marft_algos/algorithms").glob("[!_]*.py")
    algorithms = {file.stem for file in pages if re.search(r"^@register\(", file.read_text(), re.MULTILINE)}
    assert algorithms
    for file in map(ROOT.joinpath, ("marft_algos/training/trainer.py", "marft_algos/algorithms/base.py")):
        assert not algorithms & set(strings(file)), f"{file.name} names an algorithm"
        assert not algorithms & {name.split(".")[2] for name in imports(file) if name.count(".") > 1}
    env_id = re.compile(r"\b[a-z]+(-[a-z]+)*-v\d+\b")
    named = {module_of(file) for file in sources("marft_algos") if any(map(env_id.search, strings(file)))}
    assert named == {f"marft_algos.{name}" for name in ("cli.app", "config.presets", "config.settings")}


def test_the_page_on_architecture_names_every_room_as_its_docstring_does() -> None:
    figures, caps = rooms.measured(), rooms.read_caps()
    assert figures.keys() == caps.keys() and all(figures[figure] <= cap for figure, cap in caps.items())
    assert rooms.page(figures, caps) == rooms.PAGE.read_text(encoding="utf-8"), (
        "type: python -m benchmarks house --write"
    )


def test_the_pages_on_training_name_every_preset_and_every_variable() -> None:
    page = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "docs").glob("training*.md"))
    assert not [name for name in presets.SUMMARIES if f"`{name}`" not in page]
    read = {text for package in PACKAGES for file in sources(package) for text in strings(file)}
    assert {text for text in read if re.fullmatch("MARFT_[A-Z_]+", text)} == set(re.findall("MARFT_[A-Z_]+", page))


def test_a_file_longer_than_400_lines_is_one_concept() -> None:
    files = [file for folder in (*PACKAGES, "benchmarks", "examples") for file in sources(folder)]
    long = {file.relative_to(ROOT).as_posix(): n for file in files if (n := len(file.read_text().splitlines())) > 400}
    assert long.keys() == ONE_CONCEPT.keys() and max(long.values(), default=0) <= 500, long
    tests = {file for file in sources("tests") if len(file.read_text().splitlines()) > 500}
    assert {file.relative_to(ROOT / "tests").with_suffix("").as_posix() for file in tests} == LONG_TESTS


@pytest.mark.parametrize("package", [*PACKAGES, "benchmarks"])
def test_no_function_is_longer_than_60_lines(package: str) -> None:
    """Docstrings are not counted."""
    long = {}
    for file in sources(package):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0]
                told = first.end_lineno - first.lineno + 1 if ast.get_docstring(node, clean=False) is not None else 0
                if (lines := node.end_lineno - node.lineno + 1 - told) > 60:
                    long[f"{file.relative_to(ROOT)} {node.name}"] = lines
    assert not long


def test_no_machine_path_and_no_registry_host_in_tracked_files() -> None:
    listed = run("git", "ls-files", "-z")
    if listed.returncode:
        pytest.skip("not a git checkout")
    hosts = [
        ".".join(h)
        for h in (("pypi", "org"), ("pythonhosted", "org"), ("download", "pytorch", "org"), ("anaconda", "org"))
    ]
    pattern = re.compile(
        r"(?:^|[^A-Za-z0-9_.])/(?:work|farm|home|Users)/[A-Za-z]|" + "|".join(map(re.escape, hosts)), re.MULTILINE
    )
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file():
            text = path.read_bytes().decode("utf-8", "ignore")
            found = pattern.search(text)
            assert not found, f"{name} holds {text[max(found.start() - 20, 0) : found.end() + 20]!r}"


def test_the_version_stands_in_one_place_and_the_others_agree() -> None:
    version = marft_envs.__version__
    assert "version" not in PROJECT and PROJECT["dynamic"] == ["version"], "pyproject.toml takes it from marft_envs"
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == version
    for package in PACKAGES:
        assert __import__(package).__version__ == version
    stated = run(
        "git", "grep", "-nE", r"^(__version__|version) ?[=:] ?\"?[0-9]", "--", "*.py", "*.toml", "*.cff", ":!tests"
    )
    places = {line.split(":")[0] for line in stated.stdout.splitlines()}
    assert stated.returncode == 128 or places == {"marft_envs/__init__.py", "CITATION.cff"}


def test_constraints_pin_every_direct_dependency_and_torch_first() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = {bounds(line)[0]: bounds(line)[1] for line in lines}
    assert lines[0].startswith("torch==") and "+" not in lines[0]
    extras = PROJECT["optional-dependencies"]
    everything = re.fullmatch(r"marft\[(.*)\]", extras["all"][0])
    assert everything
    # The rest are other people's trainers and games, a quantiser, and what drives a browser: each wants an environment of its own.
    others = {
        "benchmarl", "browser", "gem", "mlflow", "openenv", "quant", "reasoning-gym", "rllib", "textarena", "torchrl",
        "trackio", "trl", "verifiers", "wandb",
    }  # fmt: skip
    assert set(everything[1].split(",")) == set(extras) - {"all"} - others
    for spec in [*PROJECT["dependencies"], *(s for name in everything[1].split(",") for s in extras[name])]:
        name, least, _ = bounds(spec)
        assert numbers(pinned[name]) >= numbers(least), spec


def bounds(spec: str) -> tuple[str, str, str]:
    """Name, least version and first version that is too new of ``name[extra]>=1.2,<2``."""
    found = re.fullmatch(r"([\w.-]+)(?:\[.*\])?(?:>=([\d.]+)(?:,<([\d.]+))?|==([\w.]+))", spec)
    assert found, f"{spec}: expected name>=least,<bound"
    name = re.sub(r"[-_.]+", "-", found[1]).lower()
    return (name, found[4], f"{found[4]}.1") if found[4] else (name, found[2], found[3] or "")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))


def test_extras_end_below_the_next_release_that_may_break_them() -> None:
    """The next major one, of 0.x the next minor one, of what is pinned here or in tests/adapters/run.py."""
    from tests.adapters.run import GROUPS

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    groups = [spec for group in GROUPS.values() for spec in (*group.install, *group.alone)]
    tried: dict[str, set[str]] = {}
    for spec in [line for line in (*lines, *groups) if "==" in line]:
        name, have, _ = bounds(spec)
        tried.setdefault(name, set()).add(have)
    own = {"torchrl": {"torchrl": "0.14.0"}, "benchmarl": {"torchrl": "0.11.1"}}  # each extra's own TorchRL
    for extra, specs in PROJECT["optional-dependencies"].items():
        for spec in specs if extra != "all" else ():
            name, least, below = bounds(spec)
            assert below, f"extra {extra}: {spec} has no upper bound"
            pins = {own[extra][name]} if name in own.get(extra, {}) else tried.get(name, set())
            for have in pins:
                assert numbers(least) <= numbers(have) < numbers(below), f"{extra}: {spec}, tested with {have}"
                first, second = numbers(have)[:2]
                assert numbers(below) <= ((first + 1,) if first else (0, second + 1)), (
                    f"{spec}: the release after {have}"
                )


def test_adapters_ask_for_what_their_extras_bring() -> None:
    asked = 0
    for file in sorted((ROOT / "marft_envs/adapters").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "require":
                continue
            words = ("module", "extra", "minimum", "package", "below")
            given = dict(zip(words, call.args, strict=False)) | {word.arg: word.value for word in call.keywords}
            said = {k: constants[v.id] if isinstance(v, ast.Name) else ast.literal_eval(v) for k, v in given.items()}
            name = re.sub(r"[-_.]+", "-", said.get("package") or said["module"].partition(".")[0])
            wanted = {bounds(spec)[0]: bounds(spec)[1:] for spec in PROJECT["optional-dependencies"][said["extra"]]}
            if "minimum" in said and name in wanted:
                assert (said["minimum"], said.get("below")) == wanted[name], f"{file}: {said}"
                asked += 1
    assert asked >= 12


def test_the_wheel_holds_both_packages_their_types_and_the_model(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling comes with the dev extra")
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    assert done.returncode == 0, done.stderr
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    model = "marft_algos/models/embedded"
    wanted = {f"{package}/py.typed" for package in PACKAGES}
    wanted |= {f"{model}/{name}" for name in ("config.json", "model.safetensors", "tokenizer_config.json")}
    for folder in ("extras/view/web", "extras/skeleton", "runs/pages", "extras/bench/pages", "extras/export/cards"):
        files = [file for file in (ROOT / "marft_algos" / folder).rglob("*") if file.is_file()]
        assert files
        wanted |= {file.relative_to(ROOT).as_posix() for file in files}
    assert wanted <= names and "marft_algos/extras/view/web/index.html" in names
    top = {name.split("/")[0] for name in names}
    assert top == {*PACKAGES, f"marft-{marft_envs.__version__}.dist-info"}


def test_the_sdist_holds_what_is_tracked_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling comes with the dev extra")
    listed = run("git", "ls-files", "-z")
    if listed.returncode:
        pytest.skip("not a git checkout")
    tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    copy = tmp_path / "copy"
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    (copy / "grid_of_mine.toml").write_text("x = 1\n")
    (copy / "exports").mkdir()
    (copy / "exports/weights.safetensors").write_bytes(b"0")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path / "dist")]
    done = subprocess.run(build, cwd=copy, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(next((tmp_path / "dist").glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == tracked | {"PKG-INFO"}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("script", "message"), [
    ("exit 1", "marft needs Python 3.11, 3.12 or 3.13"),
    (
        'case "$2" in *ensurepip*) exit 1;; *print*) echo 3.12;; esac',
        "sudo apt install python3-venv (or python3.12-venv)",
    ),
])  # fmt: skip
def test_make_explains_an_unsuitable_python(tmp_path: Path, script: str, message: str) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    done = run("make", "setup", f"PYTHON={fake}", f"VENV={tmp_path / 'venv'}", MAKEFLAGS="")
    assert done.returncode != 0
    assert message in done.stderr
    assert not (tmp_path / "venv").exists()
