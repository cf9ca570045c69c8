"""GEM environments (``gem-llm``): text in, text out, one agent or a deliberating team.

GEM seeds the global generators of ``random`` and ``numpy``; here each environment has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.adapters.inward import foreign
from marft_envs.adapters.inward.game import Game
from marft_envs.adapters.optional import check_name, require
from marft_envs.core.env import FlexEnv

MINIMUM = "0.1.0"


class GEMGame(Game):
    """A GEM environment as a game of one seat, ``actor``. It shows its opening words and its latest ones."""

    seats = ("actor",)

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.env, self.name = env, str(getattr(env, "env_id", type(env.unwrapped).__name__))
        self._opening, self._latest = "", ""

    def begin(self, seed: int, options: Mapping[str, Any]) -> None:
        """Resets with this seed."""
        observation, _ = self.env.reset(seed=seed)
        self._opening, self._latest, self.over = str(observation), "", False

    def observe(self, seat: str) -> str:
        """Its opening words and its latest ones."""
        return f"{self._opening}\n{self._latest}".strip()

    def play(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        """One step."""
        observation, reward, terminated, truncated, info = self.env.step(moves["actor"])
        self._latest = f"{observation}\n{info.get('suffix', '')}".strip()
        self.over = bool(terminated or truncated)
        return {"actor": float(reward)}


def wrap(env: Any, **settings: Any) -> FlexEnv:
    """Makes a FlexEnv of a GEM environment; settings as :func:`marft_envs.adapters.inward.foreign.deliberating`."""
    return foreign.deliberating(GEMGame(env), **settings)


def build(name: str, settings: Mapping[str, Any]) -> Any:
    """Makes GEM's environment of that id.

    Raises:
        MissingExtraError: GEM is not installed.
        ConfigError: It is too old, or has no such environment.
    """
    gem = require("gem", "gem", MINIMUM, "gem-llm", "0.2")
    check_name("GEM", name, require("gem.envs.registration", "gem").ENV_REGISTRY)
    return gem.make(name, **settings)
