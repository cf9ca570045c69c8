"""Credit rules assign rewards to turns; returns run over the successor relations defined here."""

from marft_algos.credit.costs import WithCosts
from marft_algos.credit.lookup import get
from marft_algos.credit.recorded import Difference, Improvement, Local, Margin, Rank, last, outcome, team_outcome
from marft_algos.credit.replayed import Counterfactual, LeaveOneOut, Shapley
from marft_algos.credit.rewards import (
    Credit,
    Relation,
    ReturnChain,
    Rewards,
    Rule,
    Setting,
    agent_chain,
    agent_score,
    broadcast,
    check_own_view,
    register,
    returns_to_go,
    rules,
    spread,
    team_chain,
    team_score,
    validate,
)

__all__ = [
    "Counterfactual", "Credit", "Difference", "Improvement", "LeaveOneOut", "Local", "Margin", "Rank", "Relation",
    "ReturnChain", "Rewards", "Rule", "Setting", "Shapley", "WithCosts", "agent_chain", "agent_score", "broadcast",
    "check_own_view", "get", "last", "outcome", "register", "returns_to_go", "rules", "spread", "team_chain",
    "team_outcome", "team_score", "validate",
]  # fmt: skip
