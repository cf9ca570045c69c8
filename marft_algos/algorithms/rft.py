"""Rejection-sampling fine-tuning: supervised steps on the team's own successful episodes. A control.

    loss = −(1/T) Σ log π(y)  over the tokens of successful episodes; the others are thrown away

(RFT, arXiv 2308.01825; the policy-gradient view: REINFORCE with A ∈ {0, 1} and no baseline.) What a method with
advantages gains over it is what it learns from failures.

Departures: on-line, one step per iteration on fresh samples, where the paper collects once and trains on the union.
Every turn of a successful episode is imitated, of all agents. Where a task does not say what success is, an episode
with a score of at least ``least_score`` is one.

With ``weight_temperature`` = β nothing is thrown away, and A = exp((R − max R)/β) of the iteration's episodes, R being
the sum of its rewards, less ``costs``: reward-weighted regression (Peters and Schaal, ICML 2007).

With ``credit``, *rewarded turns* are imitated, in any episode: A = 1 for a turn whose own reward by the rule is above
0. An agent without such a turn in an episode is imitated if the episode succeeded and its score by the rule is above 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from marft_algos import credit
from marft_algos.algorithms.base import GroupConfig, register
from marft_algos.algorithms.sft import SFT
from marft_algos.credit.costs import Cost
from marft_algos.ranges import COUNT, FINITE, NOT_NEGATIVE, POSITIVE
from marft_algos.types import Estimates, SamplingParams, Trajectory
from marft_envs.errors import ConfigError


@dataclass(frozen=True)
class RFTConfig(GroupConfig):
    """Settings of rejection-sampling fine-tuning; those it shares with every algorithm are inherited."""

    rewarded = False

    group_size: Annotated[int, COUNT] = 1
    """Episodes of each start; success is judged one by one."""
    least_score: Annotated[float, FINITE] = 1.0
    """Score that counts as success where the task does not say."""
    weight_temperature: Annotated[float | None, POSITIVE] = None
    """β of reward-weighted imitation: every episode is imitated, with the weight exp((R − max R)/β). none: successes
    alone, all alike."""
    costs: Annotated[dict[Cost, float], NOT_NEGATIVE] = field(default_factory=dict)
    """Cost of a unit, which R is reduced by, as a credit rule's (docs/credit.md#costs); read with
    ``weight_temperature``."""
    credit: str | dict[str, Any] | None = None
    """Credit rule by whose rewards turns are imitated one by one, e.g. {rule = "local"} (docs/credit.md). none: whole
    episodes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.credit and self.weight_temperature is not None:
            raise ConfigError("credit imitates rewarded turns, weight_temperature weighs whole episodes: set one.")
        if self.costs and self.weight_temperature is None:
            whole = "set weight_temperature (e.g. 0.3) beside it, or leave costs out"
            fix = "with credit, costs are set in it: credit = {rule, costs}" if self.credit else whole
            raise ConfigError(f"costs is {self.costs}, and rft imitates successes alone, whatever they cost; {fix}.")


@register("rft")
class RFT(SFT):
    """Imitates what worked of its own: SFT's loss, on episodes that the team has just played."""

    Config = RFTConfig
    config: RFTConfig
    imitates = False

    def __init__(self, config: RFTConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.rule = credit.get(self.config.credit or ({"costs": cost} if (cost := self.config.costs) else "broadcast"))
        self.chain = "agent" if self.config.credit else "team"

    def wanted(self, group: Sequence[Trajectory]) -> bool:
        """Returns whether an episode succeeded, or any may be imitated."""
        return bool(self.config.weight_temperature or self.config.credit) or any(self._succeeded(d) for d in group)

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Assigns 1 to successful episodes, 0 to others of their groups; or each its weight, or 1 to rewarded turns."""
        weights = np.array([float(self._succeeded(d)) for d in trajectories])
        if self.config.weight_temperature is not None and trajectories:
            scores = np.array([credit.team_score(d, self.rule(d), estimates) for d in trajectories])
            weights = np.exp((scores - scores.max()) / self.config.weight_temperature)
        estimates.advantages |= credit.spread(trajectories, weights)
        for d in trajectories if self.config.credit else ():
            self._pick(d, estimates)
        return {}

    def _pick(self, d: Trajectory, estimates: Estimates) -> None:
        """Assigns 1 to turns with a reward, or of a success that their agent is rewarded for, 0 to others."""
        paid = self.rule(d)
        own = {t: reward > 0 for t, reward in zip(d.transitions, paid.totals, strict=True)}
        apart = {t.agent for t in own if own[t]}
        for t in own:
            share = self._succeeded(d) and t.agent not in apart and credit.agent_score(d, paid, t.agent, estimates) > 0
            estimates.advantages[t] = np.array([own[t] or share], np.float32)

    def _succeeded(self, trajectory: Trajectory) -> bool:
        return trajectory.success if trajectory.success is not None else trajectory.score >= self.config.least_score
