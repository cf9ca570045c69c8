"""The relay and its team on the embedded model, as imitation and preferences are tested with them."""

from __future__ import annotations

from marft_algos.models.policy import PolicySet
from marft_algos.rollout.episodes import Prompts

ENV = "relay-v0"
AGENTS = {"planner_0": "planner_0", "solver_0": "solver_0"}


def embedded_team() -> PolicySet:
    """The embedded model, with a policy for each agent."""
    return PolicySet.build("embedded", AGENTS, device="cpu")


def prompts(n: int) -> Prompts:
    """Starts with the first n seeds."""
    return Prompts(list(range(n)), [{}] * n)
