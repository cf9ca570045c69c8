"""PettingZoo parallel environments: all agents that are there act at once, and D = 0.

Agents may leave in mid-episode; they may not come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marft_envs.adapters.inward import foreign
from marft_envs.adapters.inward.aec import PettingZooGame
from marft_envs.adapters.inward.codecs import Codec
from marft_envs.adapters.inward.game import masked
from marft_envs.core.env import FlexEnv


class ParallelGame(PettingZooGame):
    """A PettingZoo parallel environment."""

    def __init__(self, env: Any, codec: Codec | Mapping[str, Codec] | None = None) -> None:
        super().__init__(env, codec)
        self._seen: Mapping[str, Any] = {}
        self._infos: Mapping[str, Any] = {}

    def begin(self, seed: int, options: Mapping[str, Any]) -> None:
        """Resets with this seed."""
        self._seen, self._infos = self.env.reset(seed=seed, options=dict(options) or None)

    def ready(self) -> Sequence[str]:
        """All agents that are still there."""
        return list(self.env.agents)

    def seen(self, seat: str) -> tuple[Any, Any]:
        """The seat's last observation."""
        return masked(self._seen.get(seat), self._infos.get(seat, {}))

    def play(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        """One step of all agents."""
        actions = {seat: self.action(seat, text) for seat, text in moves.items()}
        self._seen, paid, _, _, self._infos = self.env.step(actions)
        return dict(paid)


def wrap(env: Any, codec: Codec | Mapping[str, Codec] | None = None, **settings: Any) -> FlexEnv:
    """Makes a FlexEnv of a PettingZoo parallel environment; arguments as of ``aec.wrap``."""
    return foreign.team(ParallelGame(env, codec), simultaneous=True, **settings)
