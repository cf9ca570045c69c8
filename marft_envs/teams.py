"""Teams: who works together, and who hears whom unless something else is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marft_envs.dependency import DependencyFunction
from marft_envs.types import AgentSpec


@dataclass(frozen=True)
class Team:
    """Agents in canonical order and their default D; families of environments add what else theirs have."""

    agents: tuple[AgentSpec, ...]
    dependency: Callable[[], DependencyFunction]
