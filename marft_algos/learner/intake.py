"""Episodes on their way into an update: whether they are fresh enough, and what their tokens are charged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marft_algos.types import FOREIGN, Estimates, Transition
from marft_envs.errors import MarftError


class UpdateError(MarftError, RuntimeError):
    """An update that must not go on: log-probs that do not belong to the samples, or numbers that blew up."""


class StaleError(UpdateError):
    """Turns that were sampled by other weights than those that would learn from them."""


def check_versions(rows: Sequence[Transition], version: int, max_staleness: int = 0) -> None:
    """Checks that turns to learn from were sampled by the weights of this version, or few updates before.

    The ratio's denominator may hide it: recomputed by the learner it is 1 whoever sampled. Turns of another server's
    fixed weights (``FOREIGN``) belong to no version and are let through: they are known to be off-policy.

    Raises:
        StaleError: Some were not.
    """
    for t in rows:
        if t.version != FOREIGN and not 0 <= version - t.version <= max_staleness:
            raise StaleError(
                f"Turn {t.index} of {t.agent} was sampled by version {t.version} of policy '{t.policy}', which is at "
                f"version {version} now; expected at most {max_staleness} updates between. Collect new episodes after "
                "every update, publish the new weights to the engine (Publisher.publish), and give replies the version "
                "that sampled them."
            )


def charge_kl(rows: Sequence[Transition], estimates: Estimates, coef: float) -> float:
    """Charges every token β·(log π_old − log π_ref), in ``penalties``.

    Returns:
        The mean of log π_old − log π_ref per token.
    """
    total = 0.0
    for t in rows:
        gap = estimates.behaviour(t) - estimates.reference_logprobs[t]
        estimates.penalties[t] = (-coef * gap).astype(np.float32)
        total += float(gap.sum())
    return total / max(sum(len(t.action_ids) for t in rows), 1)
