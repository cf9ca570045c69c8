"""The multi-turn tasks of the Berkeley Function Calling Leaderboard, on the back ends of the ``bfcl-eval`` package."""

from marft_envs.families.tools.bfcl.data import SKIPPED
from marft_envs.families.tools.bfcl.domain import BfclDomain

__all__ = ["SKIPPED", "BfclDomain"]
