"""τ²-bench: retail, airline, telecom and banking, on the environments of the packages that publish them."""

from functools import partial

from marft_envs.families.tools.tau2.domain import Tau2Domain

airline = partial(Tau2Domain, "airline")
banking_knowledge = partial(Tau2Domain, "banking_knowledge")
retail = partial(Tau2Domain, "retail")
telecom = partial(Tau2Domain, "telecom")

__all__ = ["Tau2Domain", "airline", "banking_knowledge", "retail", "telecom"]
