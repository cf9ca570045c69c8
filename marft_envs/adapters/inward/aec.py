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
from marft_envs.adapters.inward.game import CodecGame, masked
from marft_envs.core.env import FlexEnv
from marft_envs.errors import ConfigError


class PettingZooGame(CodecGame):
    """What AEC and parallel environments have in common: a cast, and its codecs."""

    def __init__(self, env: Any, codec: Codec | Mapping[str, Codec] | None = None) -> None:
        if not (seats := getattr(env, "possible_agents", None)):
            raise ConfigError(
                "The environment has no possible_agents: agents that appear in mid-episode are not supported. "
                "Needed: possible_agents that lists all agents from the start."
            )
        super().__init__()
        self.env, self.seats = env, tuple(seats)
        self.name = str(getattr(env, "metadata", {}).get("name", type(env.unwrapped).__name__))
        by_seat = codec if isinstance(codec, Mapping) else dict.fromkeys(self.seats, codec)
        self.codecs = {s: by_seat.get(s) or suited(env.action_space(s), env.observation_space(s)) for s in self.seats}


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
            self._seen[seat] = masked(observation, self.env.infos.get(seat, {}))
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
