"""Gymnasium environments with text or named actions: one agent, or a team that deliberates before one of it acts.

::

    import gymnasium
    from marft_envs.adapters.inward import gym_text
    from marft_envs.adapters.inward.codecs import Discrete

    lake = gymnasium.make("FrozenLake-v1")
    env = gym_text.wrap(lake, Discrete(["left", "down", "right", "up"]), roles=["scout", "actor"])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.adapters.inward import foreign
from marft_envs.adapters.inward.codecs import Codec, suited
from marft_envs.adapters.inward.game import CodecGame, masked
from marft_envs.core.env import FlexEnv


class GymGame(CodecGame):
    """A Gymnasium environment as a game of one seat, ``actor``."""

    seats = ("actor",)

    def __init__(self, env: Any, codec: Codec | None = None) -> None:
        super().__init__()
        self.env = env
        spec = getattr(env, "spec", None)
        self.name = str(spec.id if spec is not None else type(env.unwrapped).__name__)
        self.codecs = {"actor": codec or suited(env.action_space, env.observation_space)}
        self._seen: Any = None
        self._info: Mapping[str, Any] = {}

    def begin(self, seed: int, options: Mapping[str, Any]) -> None:
        """Resets with this seed."""
        self._seen, self._info = self.env.reset(seed=seed, options=dict(options) or None)
        self.over = False

    def seen(self, seat: str) -> tuple[Any, Any]:
        """The last observation."""
        return masked(self._seen, self._info)

    def play(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        """One step."""
        action = self.action("actor", moves["actor"])
        self._seen, reward, terminated, truncated, self._info = self.env.step(action)
        self.over = bool(terminated or truncated)
        return {"actor": float(reward)}


def wrap(env: Any, codec: Codec | None = None, **settings: Any) -> FlexEnv:
    """Makes a FlexEnv of a Gymnasium environment.

    Args:
        env: The environment.
        codec: Between its values and text; None: by the spaces.
        **settings: ``roles``, ``dependency``, ``profiles``, …; see
            :func:`marft_envs.adapters.inward.foreign.deliberating`.

    Raises:
        ConfigError: Its spaces have no codec, or a setting cannot work.
    """
    return foreign.deliberating(GymGame(env, codec), **settings)
