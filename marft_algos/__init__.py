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
    from marft_algos.algorithms.base import Algorithm as Algorithm
    from marft_algos.algorithms.base import ClipConfig as ClipConfig
    from marft_algos.algorithms.base import GroupConfig as GroupConfig
    from marft_algos.algorithms.base import UpdateConfig as UpdateConfig
    from marft_algos.algorithms.base import register as register
    from marft_algos.cli.api import ComparisonResult as ComparisonResult
    from marft_algos.cli.api import EvaluationResult as EvaluationResult
    from marft_algos.cli.api import compare as compare
    from marft_algos.cli.api import evaluate as evaluate
    from marft_algos.config.settings import TrainConfig as TrainConfig
    from marft_algos.engines.base import RolloutEngine as RolloutEngine
    from marft_algos.engines.conformance import check_engine as check_engine
    from marft_algos.learner.learner import Learner as Learner
    from marft_algos.models.chat import Renderer as Renderer
    from marft_algos.rollout.collector import Collector as Collector
    from marft_algos.runs.folder import RunFolder as RunFolder
    from marft_algos.training.api import train as train
    from marft_algos.training.parts import Parts as Parts
    from marft_algos.training.parts import build as build
    from marft_algos.training.team import TrainedTeam as TrainedTeam
    from marft_algos.training.team import load_team as load_team
    from marft_algos.training.trainer import Trainer as Trainer

_LAZY = {
    "Algorithm": "algorithms.base",
    "ClipConfig": "algorithms.base",
    "Collector": "rollout.collector",
    "ComparisonResult": "cli.api",
    "EvaluationResult": "cli.api",
    "GroupConfig": "algorithms.base",
    "Learner": "learner.learner",
    "Parts": "training.parts",
    "Renderer": "models.chat",
    "RolloutEngine": "engines.base",
    "RunFolder": "runs.folder",
    "TrainConfig": "config.settings",
    "TrainedTeam": "training.team",
    "Trainer": "training.trainer",
    "UpdateConfig": "algorithms.base",
    "build": "training.parts",
    "check_engine": "engines.conformance",
    "compare": "cli.api",
    "evaluate": "cli.api",
    "load_team": "training.team",
    "register": "algorithms.base",
    "train": "training.api",
}
_HEAVY = {"Learner", "Parts", "TrainedTeam", "Trainer", "build", "check_engine", "load_team", "train"}
"""What loads the packages of the train extra."""
__all__ = sorted(_LAZY)


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
