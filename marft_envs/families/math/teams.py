"""Math teams: who is in them, what their profiles say (``teams.toml``), and how they depend on each other.

The roles of the dual team are those of arXiv 2504.16129, Appendix B.3, in this project's words. A team is
data: profiles and a dependency function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marft_envs import tables
from marft_envs.core.dependency import Chain, Layered
from marft_envs.core.routing import Orchestrator
from marft_envs.core.teams import Team

SPECIALISTS: dict[str, str] = {
    subject: role for role, subjects in tables.read(__package__, "teams")["specialists"].items() for subject in subjects
}
"""Subject of MATH -> role of the specialist who knows it best; those of other data are the first one's."""

_SOLVERS = ["solver_0", "solver_1", "solver_2"]
_DEPENDENCIES: dict[str, Callable[[], Any]] = {
    "octet": lambda: Layered([["planner_0"], [*_SOLVERS, "solver_3"], ["critic_0", "critic_1"], ["judge_0"]]),
    "debate": lambda: Layered([_SOLVERS, ["judge_0"]]),
    "router": lambda: Orchestrator("orchestrator_0", default="arithmetic_0"),
}
"""Team -> what makes its D; those of other teams are chains."""

TEAMS = {name: Team(agents, _DEPENDENCIES.get(name, Chain)) for name, agents in tables.members(__package__).items()}
