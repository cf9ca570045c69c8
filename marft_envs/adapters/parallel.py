"""PettingZoo parallel environments: everybody acts at once, so D is ``Independent``.

Agents may leave in mid-episode; they may not come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marft_envs.adapters import foreign
from marft_envs.adapters.aec import codecs_of
from marft_envs.adapters.codecs import Codec
from marft_envs.adapters.game import Game
from marft_envs.core import FlexEnv
from marft_envs.errors import ConfigError


class ParallelGame(Game):
    """A PettingZoo parallel environment."""

    def __init__(self, env: Any, codec: Codec | Mapping[str, Codec] | None = None) -> None:
        seats = getattr(env, "possible_agents", None)
        if not seats:
            raise ConfigError(
                "The environment has no possible_agents: agents that appear in mid-episode are not supported. "
                "Needed: possible_agents that lists everybody from the start."
            )
        super().__init__()
        self.env, self.seats = env, tuple(seats)
        self.name = str(getattr(env, "metadata", {}).get("name", type(env.unwrapped).__name__))
        self.codecs = codecs_of(env, self.seats, codec)
        self._seen: dict[str, Any] = {}
        self._infos: dict[str, Any] = {}

    def begin(self, seed: int, options: Mapping[str, Any]) -> None:
        """Resets with this seed."""
        self._seen, self._infos = self.env.reset(seed=seed, options=dict(options) or None)

    def ready(self) -> Sequence[str]:
        """Everybody who is still there."""
        return list(self.env.agents)

    def observe(self, seat: str) -> str:
        """What the codec shows of the seat's last observation."""
        return self.codecs[seat].show(self._seen[seat], self._mask(seat)) if seat in self._seen else ""

    def moves(self, seat: str) -> Sequence[str] | None:
        """Names of the legal moves."""
        moves = self.codecs[seat].moves(self._mask(seat))
        return None if moves is None else list(moves)

    def play(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        """One step of everybody."""
        actions = {}
        for seat, text in moves.items():
            named = self.codecs[seat].moves(self._mask(seat))
            actions[seat] = text if named is None else named[text]
        self._seen, paid, _, _, self._infos = self.env.step(actions)
        return dict(paid)

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _mask(self, seat: str) -> Any:
        seen = self._seen.get(seat)
        if isinstance(seen, Mapping) and "action_mask" in seen:
            return seen["action_mask"]
        return self._infos.get(seat, {}).get("action_mask")


def wrap(env: Any, codec: Codec | Mapping[str, Codec] | None = None, **settings: Any) -> FlexEnv:
    """Makes a FlexEnv of a PettingZoo parallel environment; arguments as :func:`marft_envs.adapters.aec.wrap`."""
    return foreign.team(ParallelGame(env, codec), simultaneous=True, **settings)
