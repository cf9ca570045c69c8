"""τ²-bench: retail, airline and telecom, on the environments of the ``tau2`` package."""

from functools import partial

from marft_envs.families.tools.tau2.domain import Tau2Domain

airline = partial(Tau2Domain, "airline")
retail = partial(Tau2Domain, "retail")
telecom = partial(Tau2Domain, "telecom")

__all__ = ["Tau2Domain", "airline", "retail", "telecom"]
