"""Flex-POMDP environments for teams of language-model agents: Gymnasium for LLM teams.

``env = marft_envs.make("math-dual-v0")`` gives a PettingZoo AEC environment. No torch, no transformers.
"""

import importlib
import sys

from marft_envs.search_path import leave_current_folder

if sys.argv[:1] == ["-m"]:  # Python is looking for the module that it will start; nothing else is imported before
    leave_current_folder(__name__)

from typing import TYPE_CHECKING, Any

from marft_envs.core.dependency import (
    Chain,
    DependencyFunction,
    Independent,
    InvalidRouting,
    Layered,
    StaticDAG,
    View,
    as_dependency,
)
from marft_envs.core.env import FlexEnv
from marft_envs.core.rewards import CompositeReward
from marft_envs.core.routing import Orchestrator, Router, Scheduled, Spawn
from marft_envs.core.spaces import UnicodeText
from marft_envs.core.teams import Team
from marft_envs.core.tree import Tree
from marft_envs.core.types import AgentSpec, Episode, Outcome, Task, Turn, TurnRecord
from marft_envs.errors import Absent, ConfigError, DataError, DependencyError, MarftError, MissingExtraError
from marft_envs.registration import EnvSpec, list_envs, make, make_vec, pprint_registry, register, registry, spec
from marft_envs.tables import beside

if TYPE_CHECKING:
    from marft_envs.core.judge import Rubric, judged
    from marft_envs.families.cases import from_rows as from_rows
    from marft_envs.families.tools import ToolTask as ToolTask
    from marft_envs.testing.conformance import check_env as check_env

__version__ = "0.2.0"

__all__ = [
    "AgentSpec", "Chain", "CompositeReward", "ConfigError", "DataError", "DependencyError", "DependencyFunction",
    "EnvSpec", "Episode", "FlexEnv", "Independent", "InvalidRouting", "Layered", "MarftError", "MissingExtraError",
    "Orchestrator", "Outcome", "Router", "Rubric", "Scheduled", "Spawn", "StaticDAG", "Task", "Team", "ToolTask",
    "Tree", "Turn", "TurnRecord", "UnicodeText", "View", "as_dependency", "check_env", "from_rows", "judged",
    "list_envs", "make", "make_vec", "pprint_registry", "register", "registry", "spec",
]  # fmt: skip
_LAZY = {"ToolTask": "marft_envs.families.tools", "check_env": "marft_envs.testing.conformance"}
_LAZY["from_rows"] = "marft_envs.families.cases"
_LAZY |= dict.fromkeys(("Rubric", "judged"), "marft_envs.core.judge")
"""What is loaded when it is asked for."""


_ABSENT = Absent(__name__)
sys.meta_path.append(_ABSENT)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise _ABSENT.error(name)
    return getattr(importlib.import_module(_LAZY[name]), name)


for _id, _package, _entry in beside("marft_envs.families", "ids"):
    _made_by = f"{_package}{_entry.get('entry_point', ':make')}"
    register(_id, _made_by, _entry.get("kwargs"), _entry["summary"])
