"""Named settings (``presets.toml``): what a preset changes against the defaults, with its reasons.

``quickstart`` is what ``marft train`` does without arguments. The paper's presets reproduce its tables to the digit.
"""

from __future__ import annotations

import copy
import inspect
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

import marft_envs
from marft_envs import registration
from marft_envs.errors import ConfigError, did_you_mean

_TABLES = tomllib.loads((resources.files("marft_algos.config") / "presets.toml").read_text(encoding="utf-8"))


def _settings(name: str) -> dict[str, Any]:
    """Reads a table over those that it is like; of the algorithm's settings it keeps those that it does not change."""
    table = dict(_TABLES[name])
    like = table.pop("like", [])
    settings: dict[str, Any] = {"algorithm": {}}
    for layer in (*map(_settings, [like] if isinstance(like, str) else like), table):
        settings |= layer | {"algorithm": settings["algorithm"] | layer.get("algorithm", {})}
    settings.pop("summary", None)
    return settings


SUMMARIES: dict[str, str] = {name: table["summary"] for name, table in _TABLES.items() if "summary" in table}
PRESETS = {name: _settings(name) for name in SUMMARIES}
BF16: dict[str, Any] = _TABLES["bf16"]["algorithm"]
"""Settings of the update in bf16."""
BF16_OPTIONS = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in BF16.items())
"""The same as options of the command."""

CUSTOM = "custom"
"""What the environment of a run is called that was handed over as an object, and that no registry can make again."""
TOYS = ("relay-v0", "xor-v0", "route-v0", "signal-v0")


def suited(env: str) -> str:
    """Names the preset of the embedded model that was made for this environment."""
    if env in TOYS:
        return "toy"
    return next((name for name in ("code", "tools", "docs", "rag") if env.startswith(f"{name}-")), "quickstart")


def accepts(env_id: str, keyword: str) -> bool:
    """Whether the environment's constructor has this keyword."""
    return env_id != CUSTOM and keyword in inspect.signature(marft_envs.spec(env_id).load()).parameters


def familiar(env_id: str) -> bool:
    """Whether an environment comes with this project, so that an embedded model may have learnt its prompts."""
    return env_id != CUSTOM and str(marft_envs.spec(env_id).entry_point).startswith("marft_envs.families")


def keep_accepted(env_id: str, kwargs: Mapping[str, Any], *, general: bool = False) -> dict[str, Any]:
    """Keeps the arguments that another environment than the one they were meant for can take, too.

    Args:
        env_id: The other environment.
        kwargs: The arguments.
        general: Keep the settings that every environment has (limits, costs, …) as well.
    """
    if not general or env_id == CUSTOM:
        return {key: value for key, value in kwargs.items() if accepts(env_id, key)}
    known = registration.keywords(marft_envs.spec(env_id).load())
    return {key: value for key, value in kwargs.items() if key in known}


def get(name: str) -> dict[str, Any]:
    """Returns a preset's settings, as ``config.build`` takes them.

    Raises:
        ConfigError: No such preset.
    """
    if not isinstance(name, str) or name not in PRESETS:
        words = f"An algorithm is algo={name!r}, an environment env={name!r}, other settings are keywords of their own."
        raise ConfigError(f"There is no preset {name!r}. {did_you_mean(str(name), PRESETS)} {words}")
    return copy.deepcopy(PRESETS[name]) | {"preset": name}
