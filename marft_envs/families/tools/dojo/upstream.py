"""Upstream's modules: the suites, the attacks, and nothing that speaks to a model.

Upstream's pipelines import the SDKs of five vendors. Neither a suite nor an attack needs one, so an empty package
stands in for them while the suites are imported, and is gone afterwards.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from marft_envs.families.tools.packages import Package

PACKAGE = Package(
    name="agentdojo",
    uses="The agentdojo tools run on the suites of the agentdojo package",
    install='pip install --no-deps agentdojo && pip install deepdiff pyyaml "pydantic[email]"',
)
_PIPELINES = "agentdojo.agent_pipeline"
_TIMED = ("default_suites.v1.tools.email_client", "default_suites.v1.tools.cloud_drive_client")
"""Modules that note when something was sent or changed."""
_MODULES = (
    "task_suite.load_suites",
    "task_suite.task_suite",
    "functions_runtime",
    "attacks",
    "attacks.attack_registry",
)


class _Clock(datetime.datetime):
    """Noon of the day that the suites call today: an episode that is played again is the same."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return datetime.datetime(2024, 5, 15, 12)


def load(package: str | Path | None) -> tuple[Path, tuple[Any, ...]]:
    """Returns the package's folder, and its modules of suites, of a suite, of tools, and of attacks.

    Raises:
        MissingPackageError: The package is not there, or something it imports.
        ConfigError: Another copy is loaded already.
    """
    root, _ = PACKAGE.imported(package)
    shown = _PIPELINES in sys.modules
    if not shown:
        bare, google = ModuleType(_PIPELINES), ModuleType(f"{_PIPELINES}.llms.google_llm")
        bare.__path__, google.EMPTY_FUNCTION_NAME = [str(root / "agent_pipeline")], ""  # type: ignore[attr-defined]
        sys.modules.update({module.__name__: module for module in (bare, google)})
    try:
        _, (*loaded, mail, drive) = PACKAGE.imported(package, [f"agentdojo.{name}" for name in (*_MODULES, *_TIMED)])
    finally:
        for name in [name for name in sys.modules if name.startswith(_PIPELINES) and not shown]:
            del sys.modules[name]
    for module in (mail, drive):
        vars(module)["datetime"] = SimpleNamespace(**{**vars(datetime), "datetime": _Clock})
    suites, suite, tools, _, attacks = loaded
    return root, (suites, suite, tools, attacks)
