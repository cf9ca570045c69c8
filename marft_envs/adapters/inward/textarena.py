"""TextArena games: one player or several, text in, text out; illegal moves are the game's own matter.

TextArena seeds the global generators; here each game has its own. A player reads the game's own messages to it so far,
and the latest board. The messages of other players reach it as their turns, so the recorded D says which player
received which messages.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from marft_envs.adapters.inward import foreign
from marft_envs.adapters.inward.game import Game
from marft_envs.adapters.optional import check_name, require
from marft_envs.core.env import FlexEnv
from marft_envs.errors import ConfigError

MINIMUM = "0.7.0"


class TextArenaGame(Game):
    """A TextArena game; its players are ``player_0``, ``player_1`` and so on. It says what it makes of any text."""

    def __init__(self, env: Any, players: int = 2) -> None:
        super().__init__()
        # Every episode plays on a copy: wrappers of TextArena keep their messages over a reset.
        self._unused = copy.deepcopy(env)
        self.env, self.seats = env, tuple(f"player_{i}" for i in range(players))
        self.name = str(getattr(env, "env_id", type(env).__name__))
        self._messages: dict[str, list[str]] = {}
        self._board: dict[str, str] = {}
        self._received: dict[str, list[int]] = {}
        self._spoken: list[str] = []
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
        self._messages, self._board = {seat: [] for seat in self.seats}, dict.fromkeys(self.seats, "")
        self._received, self._spoken = {seat: [] for seat in self.seats}, []
        self._listen()

    def ready(self) -> Sequence[str]:
        """Whom the game waits for."""
        return (self._now,) if self._now else ()

    def observe(self, seat: str) -> str:
        """The game's messages to this player, and the board."""
        return "\n".join(filter(None, [*self._messages[seat], self._board[seat]])) if self._messages else ""

    def seen_turns(self, seat: str) -> Sequence[int] | None:
        """Turns whose words the game has passed on to this player."""
        return tuple(self._received[seat])

    def play(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        """One turn; the game's rewards come at its end."""
        if self._now not in self.fixed:
            self._spoken.append(self._now)
        done, _ = self.env.step(moves[self._now])
        if not done:
            self._listen()
            return {}
        self._now = ""
        paid = self.env.close()
        rewards = paid[0] if isinstance(paid, tuple) else paid
        return {f"player_{i}": float(reward) for i, reward in (rewards or {}).items()}

    def __getstate__(self) -> dict[str, Any]:
        # TextArena's wrappers cannot be pickled: they look for what they wrap before they have it.
        inner, layers = _peeled(self._unused)
        rest = {key: value for key, value in self.__dict__.items() if key not in ("env", "_unused")}
        return rest | {"peeled": (inner, layers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        env, layers = state.pop("peeled")
        for kind, values in reversed(layers):
            wrapper = kind.__new__(kind)
            vars(wrapper).update(values, env=env)
            env = wrapper
        super().__setstate__(state | {"_unused": env, "env": env})

    def _listen(self) -> None:
        inner, _ = _peeled(self.env)  # observation wrappers make one text of these events
        player, events = inner.get_observation()
        seat = self._now = f"player_{player}"
        for author, message, kind in events:
            speaker = f"player_{author}"
            if kind.name == "PLAYER_ACTION" and speaker not in self.fixed:
                heard = self._received[seat]
                known = [turn for turn, who in enumerate(self._spoken) if who == speaker and turn not in heard]
                self._received[seat] = sorted([*heard, *known[:1]])
            elif kind.name == "GAME_BOARD":
                self._board[seat] = str(message).strip()
            else:
                self._messages[seat].append(str(message).strip())


def _peeled(env: Any) -> tuple[Any, list[tuple[type, dict[str, Any]]]]:
    """The game inside its wrappers, and the wrappers, outermost first, each as its class and what it holds."""
    layers = []
    while "env" in vars(env):
        layers.append((type(env), {key: value for key, value in vars(env).items() if key != "env"}))
        env = env.env
    return env, layers


def wrap(env: Any, players: int = 2, **settings: Any) -> FlexEnv:
    """Makes a FlexEnv of a TextArena game.

    Args:
        env: What ``textarena.make`` returns.
        players: How many play.
        **settings: One player: see :func:`marft_envs.adapters.inward.foreign.deliberating`; else see
            :func:`marft_envs.adapters.inward.foreign.team`.
    """
    game = TextArenaGame(env, players)
    if players == 1:  # a player alone remembers what it did
        return foreign.deliberating(game, **({"history": "team"} | settings))
    return foreign.team(game, **settings)


def build(name: str, settings: Mapping[str, Any]) -> Any:
    """Makes TextArena's game of that id.

    Raises:
        MissingExtraError: TextArena is not installed.
        ConfigError: It is too old, or has no such game.
    """
    arena = require("textarena", "textarena", MINIMUM, below="0.8")
    check_name("TextArena", name, require("textarena.envs.registration", "textarena").ENV_REGISTRY)
    return arena.make(name, **settings)
