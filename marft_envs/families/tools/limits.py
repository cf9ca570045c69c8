"""What ends an episode of tool use, or a call, early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from marft_envs.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class CallLimits:
    """What ends an episode or a call early.

    Raises:
        ConfigError: If a limit is below 1.
    """

    max_turns: int = 64
    """Agents' turns within one user turn; then the episode ends (``max_turns``). Depot's oracle takes up to 38."""
    max_idle: int = 8
    """Layers in a row that bring nothing new (no change, no value that was not there before); then the episode ends
    (``stalled``). One more than a handoff loop needs."""
    max_calls: int = 64
    """Calls of the team in an episode; one more ends it (``max_calls``)."""
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Agent or role -> calls in an episode; a call beyond is refused, and the episode goes on."""
    max_result_chars: int = 20_000
    """Longest result; a longer one is cut and counts as an error."""

    def __post_init__(self) -> None:
        limits = {name: value for name, value in vars(self).items() if name != "budgets"}
        for name, limit in {**limits, **{f"budgets['{k}']": v for k, v in self.budgets.items()}}.items():
            if limit < 1:
                raise ConfigError(f"{name} must be at least 1; got {limit}.")

    def of_agents(self, roles: Mapping[str, str]) -> dict[str, int]:
        """Returns agent -> calls in an episode, for agents that have such a limit.

        Args:
            roles: Agent -> its role.

        Raises:
            ConfigError: If a budget names no agent and no role.
        """
        caps, known = self.budgets, {*roles, *roles.values()}
        for name in caps:
            if name not in known:
                raise ConfigError(f"There is no agent or role '{name}' to have a budget. {did_you_mean(name, known)}")
        return {name: caps.get(name, caps.get(role, 0)) for name, role in roles.items() if name in caps or role in caps}
