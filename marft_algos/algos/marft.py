"""MARFT: PPO for teams of language models, at the action or the token level (arXiv 2504.16129).

One chain of returns runs through the whole team: a turn is bootstrapped from the turns of the next layer, and inside
a response, at the token level, a token from the next one (``functional.chain``):

    last token:  G[k,L] = R + γ_turn · mean_j [(1 − λ_turn)·V[j,1] + λ_turn·G[j,1]]
    before it:   G[k,t] = γ_tok · [(1 − λ_tok)·V[k,t+1] + λ_tok·G[k,t+1]]
    loss:        −min(ρA, clip(ρ, 1 − ε_l, 1 + ε_h)A),  A = G − V, whitened

with ρ of a token, or of a whole action: exp of the difference of (1/Z)·Σ_t log π, Z = 1, tokens or words.

Departures from the paper: layers may hold several turns (each is paid all of the layer's reward, and hands over to
the mean of the next layer), γ and λ are separate for tokens and turns and default to 1 (0.99^512 is .006), and the
critic's view is checked, because V of a successor's own observation is a bootstrap only if it sees its predecessor.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from marft_algos import credit
from marft_algos import functional as F
from marft_algos.algorithm import Algorithm, UpdateConfig, View, register
from marft_algos.batching import Batch, Level, decision_points, has_loss
from marft_algos.types import SamplingParams, Trajectory, Transition
from marft_envs.errors import ConfigError


@dataclass(frozen=True)
class MARFTConfig(UpdateConfig):
    """Settings of MARFT; those it shares with every algorithm are inherited."""

    level: Level = "token"
    """What a decision is: every token, or the whole action."""
    norm: F.Norm = "token"
    """Z of an action's log-prob (action level): 1 (sum), its tokens, or its words. ``token`` is GSPO's ratio: texts of
    all lengths weigh alike, but a clip of .2 hardly ever binds; choose the clip by the logged share."""
    clip: float = 0.2
    """ε of the clipped surrogate: the paper's. Samples beyond 1 ± ε that moved the right way give no gradient."""
    clip_high: float | None = None
    """Upper ε if it differs from the lower (DAPO's .28 keeps rare tokens alive); none: as ``clip``."""
    gamma_tok: float = 1.0
    """Discount from one token to the next; 1: a long answer is not worth less than a short one."""
    gamma_turn: float = 1.0
    """Discount from one layer to the next; 1: the first agent of a team is responsible for all of the outcome."""
    lambda_tok: float = 1.0
    """λ inside a response; 1: Monte-Carlo, right as long as the critic knows little."""
    lambda_turn: float = 1.0
    """λ from layer to layer; below 1 the critic's view must be a sound bootstrap."""
    critic: View = "own"
    """What V sees: the agent's own observation (the paper), the team's transcript before the layer, or nothing."""
    credit: str = "broadcast"
    """Credit rule: ``broadcast`` pays rewards where they fall due, ``last`` (released code) at a round's last layer."""
    update: Literal["joint", "agent"] = "joint"
    """All policies every iteration, or one policy for ``interval`` iterations, then the next."""
    interval: int = 1
    """Iterations before the next policy's turn when ``update`` is ``agent``."""
    whiten: Literal["global", "policy", "off"] = "global"
    """Whose statistics whiten advantages: all trained turns', each policy's own, or none."""


@register("marft")
class MARFT(Algorithm):
    """Multi-agent reinforcement fine-tuning, both levels."""

    Config = MARFTConfig
    config: MARFTConfig

    def __init__(self, config: MARFTConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.level, self.view = self.config.level, self.config.critic
        self.rule = credit.get(self.config.credit)
        self.discounts = F.Discounts(
            self.config.gamma_tok, self.config.gamma_turn, self.config.lambda_tok, self.config.lambda_turn
        )
        if self.config.interval < 1:
            raise ConfigError(f"interval is {self.config.interval}; expected at least 1 iteration per policy.")
        left = self.config.gamma_tok**self.sampling.max_new_tokens
        if self.level == "token" and left < 0.5:
            warnings.warn(
                f"gamma_tok={self.config.gamma_tok} leaves {left:.3g} of a reward after {self.sampling.max_new_tokens} "
                "tokens: the first tokens get almost no signal. Use gamma_tok=1, or fewer new tokens.",
                stacklevel=2,
            )

    def credit(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """The team chain's returns; advantages G − V, whitened over what is trained."""
        for trajectory in trajectories:
            turns, links = trajectory.transitions, credit.team_chain(trajectory, self.rule(trajectory))
            if self.view == "own" and self.config.lambda_turn < 1.0:
                credit.check_own_view(trajectory, links)
            lengths = [decision_points(t, self.level) for t in turns]
            advantages, returns = F.chain(
                [t.values for t in turns],
                lengths,
                links.rewards,
                links.successors,
                self.discounts,
                bootstraps=[trajectory.bootstrap if trajectory.truncated else 0.0] * len(turns),
            )
            for t, a, g in zip(turns, advantages, returns, strict=True):
                t.advantages, t.returns = a.astype(np.float32), g.astype(np.float32)
        trained = [t for trajectory in trajectories for t in trajectory.transitions if has_loss(t)]
        if self.config.whiten == "off":
            return {}
        for group in {t.policy if self.config.whiten == "policy" else "" for t in trained}:
            _whiten([t for t in trained if group in ("", t.policy)])
        return {}

    def order(self, rows: Mapping[str, Sequence[Transition]], iteration: int) -> list[list[str]]:
        """Every policy, or the one whose interval it is."""
        policies = list(rows)
        if self.config.update == "joint" or not policies:
            return [policies]
        return [[policies[iteration // self.config.interval % len(policies)]]]

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """The clipped surrogate on the ratio of tokens or of actions."""
        new, old = logprobs, batch.old_logprobs
        if self.level == "action":
            new = F.action_logprobs(new, batch.mask, self.config.norm, batch.n_words)
            old = F.action_logprobs(old, batch.mask, self.config.norm, batch.n_words)
        ratio, low = F.ratio(new, old), self.config.clip
        high = low if self.config.clip_high is None else self.config.clip_high
        bound = F.clip_binds(ratio.detach(), batch.advantages, low, high)
        loss = batch.mean(F.clipped_surrogate(ratio, batch.advantages, low, high))
        return loss, {"clip_share": float(batch.mean(bound.float())), "ratio_max": float(ratio.detach().max())}


def _whiten(turns: Sequence[Transition]) -> None:
    """Whitens the advantages of these turns together; each entry counts once."""
    flat = F.whiten(np.concatenate([t.advantages for t in turns if t.advantages is not None]))
    ends = np.cumsum([len(t.advantages) for t in turns if t.advantages is not None])[:-1]
    for t, part in zip(turns, np.split(flat, ends), strict=True):
        t.advantages = part.astype(np.float32)
