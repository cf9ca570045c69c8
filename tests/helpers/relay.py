"""The relay and its team on the embedded model, as imitation and preferences are tested with them."""

from __future__ import annotations

from marft_algos.models.policy import PolicySet
from marft_algos.rollout.panel import Panel

ENV = "relay-v0"
AGENTS = {"planner_0": "planner_0", "solver_0": "solver_0"}


def embedded_team() -> PolicySet:
    """The embedded model, with a policy for each agent."""
    return PolicySet.build("embedded", AGENTS, device="cpu")


def panel(n: int) -> Panel:
    """Starts with the first n seeds."""
    return Panel(list(range(n)), [{}] * n)
