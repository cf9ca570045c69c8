"""What a program's hidden tests pay, and the estimator of pass@k.

Team chains and agent chains read one record (see ``marft_algos.credit``), and a reward enters a chain once:

* ``mixed``, ``fraction``, ``all`` pay the team, at the end of a round, by how much the program's score has changed
  since the round before. Their sum is the score of the last program.
* ``difference`` pays every program the change of score at its own turn (the turn channel, whose sum is the score of
  the last program too), and whoever advised since the program before the same change through the agent channel.
  One difference pays two agents, so it is for agent chains; a team chain refuses agents that are paid differently.
"""

from __future__ import annotations

import math

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


def pass_at_k(n: int, c: int, k: int) -> float:
    """Returns the unbiased estimate of pass@k: the chance that one of k samples drawn from n passes, if c of n pass.

    ``1 - C(n - c, k) / C(n, k)`` (Chen et al. 2021, arXiv 2107.03374, section 2.1), as a product that cannot overflow.

    Args:
        n: Samples of one problem.
        c: Those that passed.
        k: Samples drawn, at most n.

    Raises:
        ConfigError: Unless 0 <= c <= n and 1 <= k <= n.
    """
    _check_draws("pass@k", n, c, k)
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Returns the unbiased estimate of pass^k: the chance that all of k samples drawn from n pass, if c of n pass.

    ``C(c, k) / C(n, k)`` (Yao et al. 2024, arXiv 2406.12045, section 3). Arguments and errors are those of
    :func:`pass_at_k`.
    """
    _check_draws("pass^k", n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check_draws(name: str, n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ConfigError(f"{name} needs 0 <= c <= n and 1 <= k <= n; got n = {n}, c = {c}, k = {k}.")
