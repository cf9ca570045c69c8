"""What each inward adapter writes: a foreign environment's seats, moves and steps; and fixed players of its seats."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from marft_envs.adapters.inward.codecs import Codec
from marft_envs.errors import ConfigError


class GlobalGenerators:
    """A state of ``random`` and ``numpy.random`` of one's own, in place while inside the ``with`` block.

    Environments that seed or draw from the global generators reproduce their runs this way, whatever runs beside
    them, and leave no trace. Not for environments that run in several threads at once.
    """

    def __init__(self) -> None:
        self._state: tuple[Any, Any] | None = None

    def seed(self, seed: int) -> None:
        """Starts the own generators anew."""
        self._state = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def own(self) -> Iterator[None]:
        """Puts the own state in place, and afterwards the others' back."""
        before = random.getstate(), np.random.get_state()
        if self._state is not None:
            random.setstate(self._state[0])
            np.random.set_state(self._state[1])
        try:
            yield
        finally:
            self._state = random.getstate(), np.random.get_state()
            random.setstate(before[0])
            np.random.set_state(before[1])


class Game:
    """An environment of others, as a task drives it.

    Global random generators are the game's own while it resets or steps. A copy (or a pickle) is started again from
    its seed and replayed up to where the original stands: many environments, PettingZoo's among them, forget their
    state when they are copied.
    """

    name: str = ""
    seats: Sequence[str] = ()
    """All seats that may ever act."""
    over: bool = True
    """No episode goes on; adapters of games in which all seats act until the end set it."""

    def __init__(self) -> None:
        self._generators = GlobalGenerators()
        self._started: tuple[int, dict[str, Any]] | None = None
        self._played: list[dict[str, str]] = []
        self.fixed: frozenset[str] = frozenset()
        """Seats that fixed opponents play: their words are in no record, and stay in the observations."""

    # To be written by adapters ---------------------------------------------------------------------

    def begin(self, seed: int, options: Mapping[str, Any]) -> None:
        """Starts an episode."""
        raise NotImplementedError

    def ready(self) -> Sequence[str]:
        """The seats that have to act now, all at once; empty: the episode is over. By default all, until then."""
        return () if self.over else self.seats

    def observe(self, seat: str) -> str:
        """What this seat sees. Pure."""
        raise NotImplementedError

    def moves(self, seat: str) -> Sequence[str] | None:
        """The legal moves of a ready seat; None: any text is one."""
        return None

    def play(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        """Takes a move of every ready seat; returns the rewards by seat."""
        raise NotImplementedError

    def seen_turns(self, seat: str) -> Sequence[int] | None:
        """Indices of the turns that the game has shown to this seat; None: the setting ``sees`` decides."""
        return None

    def close(self) -> None:
        """Lets go of what the environment holds."""

    # For the task ----------------------------------------------------------------------------------

    def reset(self, seed: int, options: Mapping[str, Any]) -> None:
        """Starts an episode from its seed alone."""
        self._started, self._played = (seed, dict(options)), []
        self._replay()

    def step(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        """Takes a move of every ready seat; returns the rewards by seat."""
        self._played.append(dict(moves))
        with self._generators.own():
            return self.play(moves)

    def _replay(self) -> None:
        """Starts the episode and plays the moves so far, in one go: switching the generators' states is slow."""
        assert self._started is not None
        seed, options = self._started
        self._generators.seed(seed)
        with self._generators.own():
            self.begin(seed, options)
            for moves in self._played:
                self.play(moves)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._started is not None:
            self._replay()


class CodecGame(Game):
    """A game whose observations and actions are values: a codec for each seat turns them into text and back."""

    env: Any
    codecs: Mapping[str, Codec]

    def seen(self, seat: str) -> tuple[Any, Any]:
        """Returns a seat's observation, None without one, and its mask of legal moves, None without one."""
        raise NotImplementedError

    def observe(self, seat: str) -> str:
        """What the codec shows of the seat's observation."""
        observation, mask = self.seen(seat)
        return "" if observation is None else self.codecs[seat].show(observation, mask)

    def moves(self, seat: str) -> Sequence[str] | None:
        """Names of the legal moves."""
        moves = self.codecs[seat].moves(self.seen(seat)[1])
        return None if moves is None else list(moves)

    def action(self, seat: str, text: str) -> Any:
        """Returns the action that a legal move is."""
        named = self.codecs[seat].moves(self.seen(seat)[1])
        return text if named is None else named[text]

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


def masked(observation: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns an observation, and the mask of legal moves that it or its info holds."""
    holds = isinstance(observation, Mapping) and "action_mask" in observation
    return observation, observation["action_mask"] if holds else info.get("action_mask")


Player = Callable[[Game, str, np.random.Generator], str]
"""A fixed opponent: (game, seat, rng) -> a legal move. It may copy the game and look ahead; it must not step it."""


def play_random(game: Game, seat: str, rng: np.random.Generator) -> str:
    """A legal move, uniformly."""
    moves = listed(game, seat)
    return moves[int(rng.integers(len(moves)))]


def play_first(game: Game, seat: str, rng: np.random.Generator) -> str:
    """The first legal move."""
    return listed(game, seat)[0]


def play_winning(game: Game, seat: str, rng: np.random.Generator) -> str:
    """A move with an immediate reward if there is one, else a random move. Tries each on a copy of the game."""
    moves = listed(game, seat)
    if len(game.ready()) == 1:
        for i in rng.permutation(len(moves)):
            if copy.deepcopy(game).step({seat: moves[i]}).get(seat, 0.0) > 0:
                return moves[i]
    return play_random(game, seat, rng)


OPPONENTS: dict[str, Player] = {"random": play_random, "first": play_first, "winning": play_winning}


def listed(game: Game, seat: str) -> list[str]:
    """Returns the legal moves of a seat.

    Raises:
        ConfigError: The game lists none.
    """
    if not (moves := game.moves(seat)):
        raise ConfigError(
            f"{game.name} lists no legal moves of {seat}, so no fixed opponent can play them, and none can be drawn. "
            "Next: give a codec whose moves() lists them, or an opponent of your own: (game, seat, rng) -> text."
        )
    return list(moves)
