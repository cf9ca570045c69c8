"""Reinforcement fine-tuning of teams of language-model agents, on any environment of ``marft_envs``.

Importing this package brings in nothing heavy: the names below load torch and transformers on first use.
"""

import sys

if sys.argv[:1] == ["-m"]:  # Python is looking for the module that it will start; nothing else is imported before
    sys.path.append(sys.path.pop(0))  # the current folder comes last while the other package is looked for
    from marft_envs.search_path import leave_current_folder

    sys.path.insert(0, sys.path.pop())
    leave_current_folder(__name__)

import importlib
import tomllib
from importlib import resources
from typing import TYPE_CHECKING

from marft_envs import __version__ as __version__
from marft_envs.errors import Absent

if TYPE_CHECKING:
    from marft_algos.algorithms.base import Algorithm, ClipConfig, GroupConfig, UpdateConfig, register
    from marft_algos.cli.api import evaluate
    from marft_algos.cli.comparison import compare
    from marft_algos.cli.results import ComparisonResult, EvaluationResult
    from marft_algos.config.settings import TrainConfig
    from marft_algos.engines.base import RolloutEngine
    from marft_algos.engines.conformance import check_engine
    from marft_algos.learner.learner import Learner
    from marft_algos.models.chat import Renderer
    from marft_algos.rollout.collector import Collector
    from marft_algos.runs.folder import RunFolder
    from marft_algos.training.api import train
    from marft_algos.training.parts import Parts, build
    from marft_algos.training.team import TrainedTeam, load_team
    from marft_algos.training.trainer import Trainer

__all__ = [
    "Algorithm", "ClipConfig", "Collector", "ComparisonResult", "EvaluationResult", "GroupConfig", "Learner", "Parts",
    "Renderer", "RolloutEngine", "RunFolder", "TrainConfig", "TrainedTeam", "Trainer", "UpdateConfig", "build",
    "check_engine", "compare", "evaluate", "load_team", "register", "train",
]  # fmt: skip
_TABLE = tomllib.loads((resources.files("marft_algos") / "exports.toml").read_text(encoding="utf-8"))
_LAZY = {name: module for modules in _TABLE.values() for module, names in modules.items() for name in names.split()}
"""What is loaded when it is asked for -> its module."""
_HEAVY = " ".join(_TABLE["heavy"].values()).split()


_ABSENT = Absent(__name__)
sys.meta_path.append(_ABSENT)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise _ABSENT.error(name)
    if name in _HEAVY:
        importlib.import_module("marft_algos.lazy").check_packages()
    return getattr(importlib.import_module(f"marft_algos.{_LAZY[name]}"), name)
