"""TextArena games: one player or several, text in, text out; illegal moves are the game's own matter.

TextArena seeds the global generators; here each game has its own. A player reads what the game has told it so far.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from marft_envs.adapters import foreign
from marft_envs.adapters.game import Game
from marft_envs.adapters.optional import require
from marft_envs.core import FlexEnv
from marft_envs.errors import ConfigError, did_you_mean

MINIMUM = "0.7.0"


class TextArenaGame(Game):
    """A TextArena game; its players are ``player_0``, ``player_1`` and so on."""

    def __init__(self, env: Any, players: int = 2) -> None:
        super().__init__()
        # Every episode plays on a copy: wrappers of TextArena keep what they were told over a reset.
        self._unused = copy.deepcopy(env)
        self.env, self.seats = env, tuple(f"player_{i}" for i in range(players))
        self.name = str(getattr(env, "env_id", type(env).__name__))
        self._seen: dict[str, str] = {}
        self._now = ""

    def begin(self, seed: int, options: Mapping[str, Any]) -> None:
        """Resets with this seed."""
        self.env = copy.deepcopy(self._unused)
        try:
            self.env.reset(num_players=len(self.seats), seed=seed)
        except AssertionError as error:
            raise ConfigError(
                f"{self.name} does not take {len(self.seats)} players: {error} Next: players=N."
            ) from error
        self._seen = dict.fromkeys(self.seats, "")
        self._listen()

    def ready(self) -> Sequence[str]:
        """Whom the game waits for."""
        return (self._now,) if self._now else ()

    def observe(self, seat: str) -> str:
        """What the game has told this player."""
        return self._seen.get(seat, "")

    def moves(self, seat: str) -> None:
        """Any text is an action; the game says what it makes of it."""
        return None

    def play(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        """One turn; the game pays at its end."""
        done, _ = self.env.step(moves[self._now])
        if not done:
            self._listen()
            return {}
        self._now = ""
        paid = self.env.close()
        rewards = paid[0] if isinstance(paid, tuple) else paid
        return {f"player_{i}": float(reward) for i, reward in (rewards or {}).items()}

    def _listen(self) -> None:
        player, said = self.env.get_observation()
        self._now = f"player_{player}"
        self._seen[self._now] = str(said).strip()


def wrap(env: Any, players: int = 2, **settings: Any) -> FlexEnv:
    """Makes a FlexEnv of a TextArena game.

    Args:
        env: What ``textarena.make`` returns.
        players: How many play.
        **settings: One player: see :func:`marft_envs.adapters.foreign.deliberating`; else see
            :func:`marft_envs.adapters.foreign.team`.
    """
    game = TextArenaGame(env, players)
    return foreign.deliberating(game, **settings) if players == 1 else foreign.team(game, **settings)


def build(name: str, settings: Mapping[str, Any]) -> Any:
    """Makes TextArena's game of that id.

    Raises:
        MissingExtraError: TextArena is not installed.
        ConfigError: It is too old, or has no such game.
    """
    arena = require("textarena", "textarena", MINIMUM)
    known = require("textarena.envs.registration", "textarena", MINIMUM).ENV_REGISTRY
    if name not in known:
        raise ConfigError(f"TextArena has no game '{name}'. {did_you_mean(name, known)}")
    return arena.make(name, **settings)
