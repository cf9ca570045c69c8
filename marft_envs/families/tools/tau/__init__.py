"""τ-bench retail as a domain of tools: its published database, policy and tasks, with our own tools over them."""

from marft_envs.families.tools.tau.domain import TauDomain

__all__ = ["TauDomain"]
