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
_MODULES = {
    "algorithms.base": "Algorithm ClipConfig GroupConfig UpdateConfig register",
    "cli.api": "evaluate",
    "cli.comparison": "compare",
    "cli.results": "ComparisonResult EvaluationResult",
    "config.settings": "TrainConfig",
    "engines.base": "RolloutEngine",
    "engines.conformance": "check_engine",
    "learner.learner": "Learner",
    "models.chat": "Renderer",
    "rollout.collector": "Collector",
    "runs.folder": "RunFolder",
    "training.api": "train",
    "training.parts": "Parts build",
    "training.team": "TrainedTeam load_team",
    "training.trainer": "Trainer",
}
"""Module -> what it exports here."""
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}
_HEAVY = {"Learner", "Parts", "TrainedTeam", "Trainer", "build", "check_engine", "load_team", "train"}
"""What loads the packages of the train extra."""


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
