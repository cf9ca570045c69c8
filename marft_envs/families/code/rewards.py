"""Rewards from a program's hidden tests.

Team chains and agent chains read one record (see ``marft_algos.credit``), and a reward enters a chain once:

* ``mixed``, ``fraction``, ``all``: the team's reward at the end of a round is the change of the program's score since
  the round before. These rewards sum to the score of the last program.
* ``difference``: each program's turn reward is the change of score at that turn (these sum to the score of the last
  program, too). Agents that gave advice since the program before get the same change as an agent reward. Two agents
  then have the same difference, so it is for agent chains; a team chain refuses rewards that differ by agent.
"""

from __future__ import annotations

from marft_envs.errors import ConfigError, check_known
from marft_envs.families.code.judge import Report

REWARDS = ("mixed", "fraction", "all", "difference")

FRACTION_WEIGHT = 0.3
"""Weight of the fraction of hidden tests in ``mixed``: enough to tell programs apart, too little to settle for."""


def check(reward: str, format_penalty: float) -> None:
    """Raises a ConfigError for a reward that does not exist or a penalty outside [0, 1]."""
    check_known([reward], REWARDS, "There is no reward '{}'.")
    if not 0 <= format_penalty <= 1:
        raise ConfigError(f"format_penalty must lie in [0, 1]; got {format_penalty}. Usual: 0 or 0.05.")


def score(reward: str, report: Report) -> float:
    """Returns the score of a program in [0, 1]: what its hidden tests are worth under this reward."""
    if reward == "fraction":
        return report.fraction
    if reward == "all":
        return float(report.all_passed)
    return FRACTION_WEIGHT * report.fraction + (1 - FRACTION_WEIGHT) * report.all_passed
