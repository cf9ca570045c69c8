"""PettingZoo AEC environments: theirs is the turn order, and theirs the rewards.

::

    from pettingzoo.classic import tictactoe_v3
    from marft_envs.adapters.inward import aec

    env = aec.wrap(tictactoe_v3.env())
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marft_envs.adapters.inward import foreign
from marft_envs.adapters.inward.codecs import Codec, suited
from marft_envs.adapters.inward.game import Game
from marft_envs.core.env import FlexEnv
from marft_envs.errors import ConfigError


class PettingZooGame(Game):
    """What AEC and parallel environments have in common: a cast, its codecs, legal moves by name."""

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


def masked(obs: Any, info: Mapping[str, Any]) -> Any:
    """Returns the mask of legal moves that an observation or its info holds."""
    return obs["action_mask"] if isinstance(obs, Mapping) and "action_mask" in obs else info.get("action_mask")


class AECGame(PettingZooGame):
    """A PettingZoo AEC environment."""

    def __init__(self, env: Any, codec: Codec | Mapping[str, Codec] | None = None) -> None:
        super().__init__(env, codec)
        self._seen: dict[str, tuple[Any, Any]] = {}
        """Since the last step: a turn asks several times, and every layer of their wrappers takes its share."""

    def begin(self, seed: int, options: Mapping[str, Any]) -> None:
        """Resets with this seed."""
        self.env.reset(seed=seed, options=dict(options) or None)
        self._bury()

    def ready(self) -> Sequence[str]:
        """Whom the environment waits for."""
        return [self.env.agent_selection] if self.env.agents else []

    def seen(self, seat: str) -> tuple[Any, Any]:
        """The environment's observation of a seat that is still there."""
        if seat not in self._seen:
            observation = self.env.observe(seat) if seat in self.env.agents else None
            self._seen[seat] = observation, masked(observation, self.env.infos.get(seat, {}))
        return self._seen[seat]

    def play(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        """One step, and the empty ones of agents that have ended."""
        ((seat, text),) = moves.items()
        self.env.step(self.action(seat, text))
        paid = dict(self.env.rewards)
        self._bury()
        return paid

    def _bury(self) -> None:
        """Takes the steps that PettingZoo asks of those who have ended; what was seen before is out of date."""
        env = self.env
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        self._seen.clear()


def codecs_of(env: Any, seats: Sequence[str], codec: Codec | Mapping[str, Codec] | None) -> dict[str, Codec]:
    """Returns the codec of every seat: the given one, or the one that its spaces need."""
    by_seat = codec if isinstance(codec, Mapping) else dict.fromkeys(seats, codec)
    return {s: by_seat.get(s) or suited(env.action_space(s), env.observation_space(s)) for s in seats}


def wrap(env: Any, codec: Codec | Mapping[str, Codec] | None = None, **settings: Any) -> FlexEnv:
    """Makes a FlexEnv of a PettingZoo AEC environment.

    Args:
        env: The environment.
        codec: Between its values and text, one for all or by agent; None: by the spaces (text, named moves, boards).
        **settings: See :func:`marft_envs.adapters.inward.foreign.team`.

    Raises:
        ConfigError: Its spaces have no codec, or a setting cannot work.
    """
    return foreign.team(AECGame(env, codec), **settings)
