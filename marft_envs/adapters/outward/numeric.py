"""The numeric bridge: text as bits, a choice among candidate replies as a discrete action.

Classic multi-agent libraries run on the real scheduler this way, without a language model::

    from marft_envs.adapters.outward.numeric import Numeric

    env = Numeric(marft_envs.make("relay-v0"))           # candidates: the task's own plausible replies
    env.reset(seed=0)
    env.observe(env.agent_selection)                     # {"observation": bits, "action_mask": who may say what}
    env.step(2)                                          # says the third candidate

It is a :class:`FlexWrapper`: the AEC loop, the drivers, and every adapter that takes an environment take it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from marft_envs.core.env import FlexEnv
from marft_envs.core.wrappers import FlexWrapper
from marft_envs.errors import ConfigError, check_known


def encode(text: str, length: int) -> NDArray[np.float32]:
    """Returns the last ``length`` bytes of the text (UTF-8), zeros before it where it is shorter, as bits.

    Returns:
        ``[8 · length]`` of 0 and 1, the highest bit of each byte first. Bits, since the codes of two digits differ by
        less than 0.005 of a byte's range, which no small network tells apart.
    """
    last = text.encode("utf-8", "replace")[-length:]
    return np.unpackbits(np.frombuffer(last.rjust(length, b"\x00"), np.uint8)).astype(np.float32)


def decode(bits: Any) -> str:
    """Returns the text that :func:`encode` was given, or its end (what was cut in mid-character is replaced)."""
    return np.packbits(np.asarray(bits).astype(bool)).tobytes().lstrip(b"\x00").decode("utf-8", "replace")


def seen(messages: Sequence[Mapping[str, str]]) -> str:
    """Returns what is encoded of an agent's chat messages: everything but its profile, which never changes."""
    return "\n\n".join(message["content"] for message in messages if message["role"] != "system")


class Numeric(FlexWrapper):
    """Observations are bits, actions are indices into candidate replies.

    Args:
        env: The environment.
        candidates: Role or agent -> replies to choose from. An agent that is not named chooses among the task's
            ``sample_actions``. These may depend on the problem; those of a math task contain the right answer.
        length: Bytes of the observation's end that are shown.
        mask: Observations are ``{"observation": bits, "action_mask": …}``; False: the bits alone, for libraries that
            know no masks. Who is not on turn may only "say" action 0, which a parallel view drops.

    Raises:
        ConfigError: A name is unknown, there are no candidates, or without a mask their number differs by problem.
    """

    def __init__(
        self,
        env: FlexEnv | FlexWrapper,
        candidates: Mapping[str, Sequence[str]] | None = None,
        length: int = 64,
        *,
        mask: bool = True,
    ) -> None:
        super().__init__(env)
        if length < 1:
            raise ConfigError(f"Numeric(length=…) is a number of bytes, at least 1; got {length}.")
        self.length, self.mask = length, mask
        self._given = self._by_agent(dict(candidates or {}))
        probe: Any = None
        self._sizes: dict[str, int] = {}
        for name in env.possible_agents:
            if name not in self._given and probe is None:
                # On a copy: counting the candidates of a first problem must not move the environment's generator.
                (probe,) = env.fork()
                probe.reset(seed=0)
            replies = self._given[name] if name in self._given else probe.unwrapped.task.sample_actions(name)
            if not replies:
                raise ConfigError(f"'{name}' has no candidate replies. Expected candidates={{'{name}': ['yes', …]}}.")
            self._sizes[name] = len(replies)
        self.observation_spaces = {name: self._space(size) for name, size in self._sizes.items()}
        self.action_spaces = {name: spaces.Discrete(size) for name, size in self._sizes.items()}

    def _space(self, size: int) -> spaces.Space[Any]:
        bits = spaces.Box(0.0, 1.0, (8 * self.length,), np.float32)
        return spaces.Dict({"observation": bits, "action_mask": spaces.MultiBinary(size)}) if self.mask else bits

    def _by_agent(self, candidates: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
        team = {agent.name: agent.role for agent in self.env.unwrapped.team}
        known = {*team, *team.values()}
        check_known(candidates, known, "There is no role or agent '{}' to have candidates.")
        named = {name: candidates.get(name, candidates.get(role)) for name, role in team.items()}
        return {name: tuple(replies) for name, replies in named.items() if replies is not None}

    def replies(self, agent: str) -> Sequence[str]:
        """Returns what the agent can say now, in the order of its actions.

        Raises:
            ConfigError: The task lists other numbers of candidates than for its first problem.
        """
        choices = self._given[agent] if agent in self._given else self.env.unwrapped.task.sample_actions(agent)
        size = self._sizes[agent]
        if len(choices) > size or (len(choices) < size and not self.mask):
            raise ConfigError(
                f"'{agent}' has {len(choices)} candidate replies here and had {size} before: a discrete action needs a "
                f"fixed number. Give them: Numeric(env, candidates={{'{agent}': […]}})."
            )
        return choices

    def observation_space(self, agent: str) -> Any:
        """Returns the agent's observation space."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """Returns the agent's action space."""
        return self.action_spaces[agent]

    def observe(self, agent: str) -> Any:
        """Returns the end of what the agent sees, as bits; pure."""
        bits = encode(seen(self.env.messages(agent)), self.length)
        if not self.mask:
            return bits
        legal = len(self.replies(agent)) if agent in self.env.ready_agents else 1
        return {"observation": bits, "action_mask": (np.arange(self._sizes[agent]) < legal).astype(np.int8)}

    def step(self, action: Any) -> None:
        """Says the candidate with this index; None is the empty step of an agent that has ended.

        Raises:
            ConfigError: There is no such candidate.
        """
        if action is None:
            self.env.step(None)
            return
        replies, index = self.replies(self.env.agent_selection), int(action)
        if not 0 <= index < len(replies):
            raise ConfigError(
                f"'{self.env.agent_selection}' has the actions 0 to {len(replies) - 1}; got {action}. Mind the mask."
            )
        self.env.step(replies[index])
