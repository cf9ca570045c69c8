"""Families stand apart: nothing that trains imports one, and each can be taken away without the others noticing."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import marft_envs
from marft_envs.families import tools

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = sorted(file.parent.name for file in (ROOT / "marft_envs/families").glob("*/__init__.py"))
TRAINER = ["marft_algos.rollout.collector", "marft_algos.engines.openai", "marft_algos.models.chat"]
LOADED = "sorted(name for name in sys.modules if name.partition('.')[0] in ('marft_envs', 'marft_algos'))"
WITHOUT = """
import importlib, sys
sys.modules["torch"] = None
import marft_envs
from marft_envs.errors import ConfigError
of = {}
for spec in marft_envs.list_envs():
    of.setdefault(spec.entry_point.split(".")[2].partition(":")[0], spec.id)
for family, id in of.items():
    marft_envs.make(id).reset(seed=0)
for name in sys.argv[2:]:
    importlib.import_module(name)
try:
    marft_envs.make(sys.argv[1])
except ConfigError as error:
    assert "There is no environment" in str(error), error
    print(*sorted(of))
"""


def run(*words: str, where: Path = ROOT) -> str:
    command, env = [sys.executable, *words], {**os.environ, "PYTHONPATH": str(where)}
    done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("module", "most"), [(TRAINER[0], 80), (TRAINER[1], 90), (TRAINER[2], 50)])
def test_what_trains_loads_no_family(module: str, most: int) -> None:
    names = run("-c", f"import sys; sys.modules['torch'] = None; import {module}; print(*{LOADED})").split()
    assert not [name for name in names if name.startswith("marft_envs.families.")]
    assert len(names) <= most


def imported(file: Path) -> list[str]:
    nodes = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    return [node.module or "" for node in nodes]


def test_no_module_that_trains_names_a_family() -> None:
    for file in (ROOT / "marft_algos").rglob("*.py"):
        assert not [name for name in imported(file) if name.startswith("marft_envs.families")], file


@pytest.mark.parametrize("package", ["marft_envs.families", "marft_envs.families.tools"])
def test_no_family_imports_another_and_no_domain_of_tools(package: str) -> None:
    folder = ROOT / package.replace(".", "/")
    folders = {file.parent.name for file in folder.glob("*/__init__.py")}
    for file in folder.glob("*/**/*.py"):
        own = file.relative_to(folder).parts[0]
        others = {name.removeprefix(f"{package}.").partition(".")[0] for name in imported(file) if package in name}
        assert not others & folders - {own}, file


def copied(folder: Path) -> Path:
    for package in ("marft_envs", "marft_algos"):
        shutil.copytree(ROOT / package, folder / package, copy_function=os.symlink)  # bytecode, too
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_the_others_work_without_a_family(family: str, tmp_path: Path) -> None:
    shutil.rmtree(copied(tmp_path) / "marft_envs/families" / family)
    id = next(iter(tomllib.loads((ROOT / "marft_envs/families" / family / "ids.toml").read_text(encoding="utf-8"))))
    assert run("-c", WITHOUT, id, *TRAINER, where=tmp_path).split() == [name for name in FAMILIES if name != family]


@pytest.mark.slow
def test_a_toy_trains_where_no_other_family_is(tmp_path: Path) -> None:
    families = copied(tmp_path) / "marft_envs/families"
    for family in {*FAMILIES} - {"toy"}:
        shutil.rmtree(families / family)
    run("-m", "marft_algos", "train", "--preset", "toy", "--iterations", "1", "--eval-episodes", "4", where=tmp_path)
    assert list(tmp_path.glob("runs/*/metrics.jsonl"))


def test_another_package_brings_a_domain_of_tools_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("yard", "marft_envs.families.tools.depot:Depot", "marft.domains")
    monkeypatch.setattr(tools, "entry_points", lambda group: [point] if group == "marft.domains" else [])
    assert marft_envs.make("tools-solo-v0", domain="yard", levels=[0]).unwrapped.task.problems[0]
    with pytest.raises(marft_envs.ConfigError, match=r"There is no tool domain 'yerd'\. Did you mean 'yard'"):
        marft_envs.make("tools-solo-v0", domain="yerd")
