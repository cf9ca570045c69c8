"""The four suites of AgentDojo, prompt injections and the checks whether they were followed included."""

from functools import partial

from marft_envs.families.tools.dojo.domain import SUITES, DojoDomain

banking, slack, travel, workspace = (partial(DojoDomain, name) for name in SUITES)

__all__ = ["SUITES", "DojoDomain", "banking", "slack", "travel", "workspace"]
