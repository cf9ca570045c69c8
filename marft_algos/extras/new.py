"""``marft new env NAME``: a project of its own for an environment: entry point, card, tests that pass, and their CI."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import tyro

import marft_envs
from marft_algos.runs.disk import writing
from marft_algos.terminal import say
from marft_envs.errors import ConfigError


@dataclass(frozen=True)
class NewArguments:
    """Writes a project that others install with pip: marft new env NAME.

    It has one environment, registered by an entry point so that ``marft envs`` finds it, a card, tests, and a workflow
    that runs them and the check.
    """

    kind: Annotated[Literal["env"], tyro.conf.Positional]
    """What to write."""
    name: Annotated[str, tyro.conf.Positional]
    """Of the project, in small letters, digits and hyphens; its environment is NAME-v0."""
    out: str = ""
    """Folder to write; empty: NAME."""


def run_new(options: NewArguments) -> None:
    """``marft new env NAME``."""
    name, package = options.name, options.name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or keyword.iskeyword(package):
        raise ConfigError(
            f"'{name}' names no project. Expected small letters, digits and hyphens, such as: marft new env ticket-desk"
        )
    folder = Path(options.out or name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"'{folder}' exists already. Expected a folder that is not there yet: --out FOLDER")
    write(folder, name, package)
    say(f"project: {folder}")
    say(f"next:    pip install -e {folder}   ·   marft check {name}-v0   ·   python -m pytest {folder}")


def write(folder: Path, name: str, package: str) -> None:
    """Writes every file of the skeleton, with the project's names in it."""
    words = {"name": name, "package": package, "version": marft_envs.__version__}
    skeleton = Path(str(resources.files("marft_algos.extras") / "skeleton"))
    for template in sorted(skeleton.rglob("*.template")):
        path = template.relative_to(skeleton).with_suffix("").as_posix()
        file = folder / path.replace("PACKAGE", package)
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(Template(template.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
