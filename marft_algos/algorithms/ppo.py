"""Implements what algorithms with a critic share: λ-returns, whitened advantages, the clipped surrogate.

    A = G − V, G from ``functional.chain`` over the successors that ``links`` names
    loss: −min(ρA, clip(ρ, 1 − ε_l, 1 + ε_h)A)                                     (PPO, arXiv 1707.06347)

with ρ of a token, or of a whole action: exp of the difference of (1/Z)·Σ_t log π, Z = 1, tokens or words. An
algorithm says which successors its returns run over and which observation its critic sees, and overrides the rest where
it differs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from marft_algos import credit
from marft_algos import functional as F
from marft_algos.algorithms.base import Algorithm, Rescore, UpdateConfig
from marft_algos.batching import Batch, Level, decision_points, has_loss, learnable
from marft_algos.ranges import POSITIVE, SHARE, Range
from marft_algos.types import Estimates, SamplingParams, Trajectory, Transition

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PPOConfig(UpdateConfig):
    """Settings that every algorithm with a critic has."""

    level: Level = "token"
    """What a decision is: every token, or the whole action."""
    norm: F.Norm = "token"
    """Z of an action's log-prob (action level): 1 (sum), its tokens, or its words. ``token`` is GSPO's ratio: texts of
    all lengths weigh alike, but a clip of .2 hardly ever binds; choose the clip by the logged share."""
    clip: Annotated[float, Range(0.0, 1.0, open_low=True)] = 0.2
    """ε of the clipped surrogate: PPO's. Samples beyond 1 ± ε that moved the right way give no gradient."""
    clip_high: Annotated[float | None, POSITIVE] = None
    """Upper ε if it differs from the lower (DAPO's .28 keeps rare tokens alive); none: as ``clip``."""
    gamma_tok: Annotated[float, SHARE] = 1.0
    """Discount from one token to the next; 1: a long answer is not worth less than a short one."""
    gamma_turn: Annotated[float, SHARE] = 1.0
    """Discount from a turn to its successors; 1: who spoke first is responsible for all of the outcome."""
    lambda_tok: Annotated[float, SHARE] = 1.0
    """λ inside a response; 1: Monte-Carlo, right as long as the critic knows little."""
    lambda_turn: Annotated[float, SHARE] = 1.0
    """λ from a turn to its successors; below 1 the critic's view must be a sound bootstrap."""
    credit: str | dict[str, Any] = "broadcast"
    """Credit rule, or a table of a rule and its arguments (docs/credit.md). ``broadcast`` pays rewards where they fall
    due, ``last`` (released code) at a round's last layer."""
    whiten: Literal["global", "policy", "off"] = "global"
    """Whose statistics whiten advantages: all trained turns', each policy's own, or none."""


class PPO(Algorithm):
    """Base of the algorithms with a critic; a subclass sets ``chain``, which names its successor relation."""

    Config = PPOConfig
    config: PPOConfig

    def __init__(self, config: PPOConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.level = self.config.level
        self.rule = credit.get(self.config.credit)
        self.discounts = F.Discounts(
            self.config.gamma_tok, self.config.gamma_turn, self.config.lambda_tok, self.config.lambda_turn
        )
        left = self.config.gamma_tok**self.sampling.max_new_tokens
        if self.level == "token" and left < 0.5:
            warnings.warn(
                f"gamma_tok={self.config.gamma_tok} leaves {left:.3g} of a reward after {self.sampling.max_new_tokens} "
                "tokens: the first tokens get almost no signal. Use gamma_tok=1, or fewer new tokens.",
                stacklevel=2,
            )

    def traces(self, trajectory: Trajectory) -> list[float] | None:
        """Returns per turn the factor on λ_turn when it is looked back from; None: 1."""
        return None

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Assigns returns, and advantages G − V, whitened over what is trained."""
        self.run_returns(trajectories, estimates)
        self.whiten(trajectories, estimates)
        return {}

    def run_returns(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> None:
        """Fills returns, and advantages G − V as they are."""
        for trajectory in trajectories:
            turns, links = trajectory.transitions, self.links(trajectory, estimates)
            if self.view == "own" and self.config.lambda_turn < 1.0:
                credit.check_own_view(trajectory, links)
            lengths = [decision_points(t, self.level) for t in turns]
            advantages, returns = F.chain(
                [estimates.values.get(t) for t in turns],
                lengths,
                links.turns,
                links.successors,
                self.discounts,
                bootstraps=links.bootstraps,
                traces=self.traces(trajectory),
                token_rewards=links.token_rewards(lengths),
            )
            for t, a, g in zip(turns, advantages, returns, strict=True):
                estimates.advantages[t], estimates.returns[t] = a.astype(np.float32), g.astype(np.float32)

    def whiten(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> None:
        """Whitens the trained turns' advantages, all together or policy by policy; each entry counts once."""
        trained = [t for trajectory in trajectories for t in trajectory.transitions if has_loss(t)]
        if self.config.whiten == "off":
            return
        for group in sorted({t.policy if self.config.whiten == "policy" else "" for t in trained}):
            turns = [t for t in trained if group in ("", t.policy)]
            parts = [estimates.advantages[t] for t in turns]
            flat = F.whiten(np.concatenate(parts))
            for t, part in zip(turns, np.split(flat, np.cumsum([len(p) for p in parts])[:-1]), strict=True):
                estimates.advantages[t] = part.astype(np.float32)

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Returns the clipped surrogate on the ratio of tokens or of actions."""
        return self.clipped(self.ratio(logprobs, batch), batch.advantages, batch)

    def ratio(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """Computes π_θ/π_old at this algorithm's level: [B, T-1] of tokens, or [B] of actions."""
        new, old = logprobs, batch.old_logprobs
        if self.level == "action":
            new = F.action_logprobs(new, batch.mask, self.config.norm, batch.n_words)
            old = F.action_logprobs(old, batch.mask, self.config.norm, batch.n_words)
        return F.ratio(new, old)

    def per_turn(self, numbers: Sequence[float], batch: Batch) -> Tensor:
        """Shapes a number per row so that it multiplies ratios and advantages: [B, 1] of tokens, or [B] of actions."""
        column = batch.advantages.new_tensor(numbers)
        return column[:, None] if self.level == "token" else column


def log_ratios(
    policies: Sequence[str], trajectories: Sequence[Trajectory], estimates: Estimates, rescore: Rescore
) -> dict[Transition, float]:
    """Returns how far these policies have moved: Σ_t (log π_now − log π_old) of each of their turns with a loss."""
    return {
        t: float((now - estimates.behaviour(t)).sum(dtype=np.float64))
        for turns in learnable(trajectories, policies)[0].values()
        for t, now in zip(turns, rescore(turns) if turns else [], strict=True)
    }


def waiting(trajectory: Trajectory, updated: Sequence[str]) -> list[Transition]:
    """Returns the turns with a loss whose policy has yet to be updated."""
    return [t for t in trajectory.transitions if has_loss(t) and t.policy not in updated]
