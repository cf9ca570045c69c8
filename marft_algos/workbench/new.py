"""``marft new env NAME``: a project of its own for an environment: entry point, card, tests that pass, and their CI."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import tyro

import marft_envs
from marft_algos.config import arguments
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


def run_new(argv: list[str]) -> int:
    """``marft new env NAME``."""
    options: NewArguments = arguments.parse(NewArguments, argv, prog="marft new")
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
    return 0


def write(folder: Path, name: str, package: str) -> None:
    """Writes every file of the project."""
    words = {"name": name, "package": package, "version": marft_envs.__version__}
    for path, text in FILES.items():
        file = folder / path.replace("PACKAGE", package)
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(Template(text).substitute(words), encoding="utf-8")


_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$name"
version = "0.1.0"
description = "An environment for teams of language models: say what it is"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["marft>=$version"]

[project.optional-dependencies]
dev = ["pytest"]

# What makes `marft envs` find it: the id, and the module that registers it.
[project.entry-points."marft.envs"]
"$name-v0" = "$package"

[tool.hatch.build.targets.wheel]
packages = ["$package"]
"""
_CARD = """\
# $name

Say here what the task is, and what a team has to do together that one agent cannot.

| | |
|---|---|
| id | `$name-v0` |
| team | `left_0`, `right_0`: each knows a digit; `adder_0` says their sum |
| D | `left_0` and `right_0` act side by side, `adder_0` hears both |
| reward | 1 for the sum, else 0 |
| problems | 9, drawn by the seed; no held-out split |
| data and license | generated; choose a license |

MARFT is on no package index: install it from its clone first (`pip install -e '.[train]'` there). Then, here:

```sh
pip install -e .
marft check $name-v0                  # what every environment must keep; .github/workflows runs it
marft play $name-v0 --random
marft train --preset toy --env $name-v0
```

Scores, each with its command, n and interval: none yet. What moves a score later makes `$name-v1`.
"""
_MODULE = '''\
"""Two agents hold a digit each, the third says their sum. Put your own task here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import marft_envs
from marft_envs import AgentSpec, ConfigError, FlexEnv, Layered, Outcome, TurnRecord

TEAM = (
    AgentSpec("left_0", "left", "Pass your digit on. Say one digit from 0 to 2."),
    AgentSpec("right_0", "right", "Pass your digit on. Say one digit from 0 to 2."),
    AgentSpec("adder_0", "adder", "Add the two digits. Say one digit from 0 to 4.", with_answer=True),
)


class Sum:
    """Pays the team 1 if the adder says the sum of the two digits."""

    slow = False
    task_id = ""

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the digits that ``options["task_id"]`` names, else draws them, with ``rng`` only."""
        named = options.get("task_id") or "+".join(map(str, rng.integers(0, 3, size=2)))
        parts = named.split("+")
        if len(parts) != 2 or not set(parts) <= {"0", "1", "2"}:
            raise ConfigError(f"There is no task '{named}'. Expected two digits from 0 to 2, as in '1+2'.")
        self.left, self.right = map(int, parts)
        self.task_id = named

    def observe(self, agent: str) -> str:
        """What an agent sees of the task: pure, and never the answer."""
        return {"left_0": f"digit {self.left}", "right_0": f"digit {self.right}"}.get(agent, "digit ?")

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Nothing happens between the layers."""
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """The one round is over: pays, says whether it was right, and ends the episode."""
        right = bool(turns) and self.right_answer(turns[-1].text)
        return Outcome(team_reward=float(right), success=right, terminated=True)

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Replies right and wrong, which the checks play."""
        return [*map(str, range(5)), "no idea"]

    def validate(self) -> None:
        """The right answer is paid, and nothing else is."""
        self.reset(np.random.default_rng(0), {"task_id": "1+2"})
        if [self.right_answer(reply) for reply in ("3", "2", "")] != [True, False, False]:
            raise ConfigError("The sum does not score its right answer 1 and everything else 0.")

    def right_answer(self, reply: str) -> bool:
        """Whether an adder's words are the sum."""
        return reply.strip() == str(self.left + self.right)


def make(dependency: Any = None, **flex: Any) -> FlexEnv:
    """Builds the environment; ``dependency="independent"`` is the ablation, ``**flex`` are FlexEnv's settings."""
    return FlexEnv(TEAM, Sum(), dependency or Layered([["left_0", "right_0"], ["adder_0"]]), **flex)


marft_envs.register("$name-v0", make, summary="two agents hold a digit each, the third says their sum")
'''
_TESTS = '''\
"""What users of $name-v0 rely on."""

import pytest

import marft_envs

ENV = "$name-v0"


def played(*replies: str) -> marft_envs.Episode:
    env = marft_envs.make(ENV)
    env.reset(seed=0, options={"task_id": "1+2"})
    for reply in replies:
        env.step(reply)
    return env.unwrapped.episode


def test_it_keeps_what_every_environment_must() -> None:
    assert marft_envs.check_env(ENV).passed


@pytest.mark.parametrize(("answer", "paid"), [("3", 1.0), ("2", 0.0), ("", 0.0), ("3 or 2", 0.0)])
def test_the_sum_is_paid_and_nothing_else(answer: str, paid: float) -> None:
    assert played("1", "2", answer).team_return == paid


def test_the_adder_hears_both() -> None:
    (round_,) = played("1", "2", "3").rounds
    assert round_.D == [[0, 0, 1], [0, 0, 1], [0, 0, 0]]
'''
_CI = """\
# What every change must pass: the rules that all environments keep, and the tests of this one.
name: check
on: [push, pull_request]
jobs:
  check:
    runs-on: ubuntu-latest
    strategy:
      matrix:
        python: ["3.11", "3.13"]
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: $${{ matrix.python }}
      # MARFT is on no package index: before this step, install it from a clone.
      - run: pip install -e ".[dev]"
      - run: marft check $name-v0
      - run: python -m pytest
"""
FILES = {
    "pyproject.toml": _PROJECT,
    "README.md": _CARD,
    "PACKAGE/__init__.py": _MODULE,
    "PACKAGE/py.typed": "",
    "tests/test_env.py": _TESTS,
    ".github/workflows/check.yml": _CI,
    ".gitignore": "__pycache__/\n*.egg-info/\ndist/\nruns/\n",
}
"""Path -> what is written there; ``$name``, ``$package`` and ``$version`` are put in."""
