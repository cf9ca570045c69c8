"""Learning rates: of each policy, and of each iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marft_envs.errors import ConfigError, did_you_mean


def rate_factor(iteration: int, warmup: int, anneal: int) -> float:
    """Returns the learning rate's factor in an iteration, counted from 0.

    Args:
        iteration: Which one.
        warmup: Linear to 1 in the last of these iterations.
        anneal: Linear from 1 to .1 at this iteration, then .1; 0: 1.
    """
    risen = min((iteration + 1) / warmup, 1.0) if warmup else 1.0
    return risen * (1.0 if anneal == 0 else max(1.0 - 0.9 * iteration / anneal, 0.1))


def per_policy(setting: float | Mapping[str, float], policies: Sequence[str], name: str) -> dict[str, float]:
    """Returns one number for all policies, or one for each by id.

    Raises:
        ConfigError: An id that is unknown, or one that is missing.
    """
    if not isinstance(setting, Mapping):
        return dict.fromkeys(policies, float(setting))
    for p in setting:
        if p not in policies:
            raise ConfigError(f"{name} names '{p}', which is no trainable policy. {did_you_mean(p, policies)}")
    if missing := [p for p in policies if p not in setting]:
        raise ConfigError(f"{name} has no value for {missing}; give one number, or one for each of {list(policies)}.")
    return {p: float(setting[p]) for p in policies}
