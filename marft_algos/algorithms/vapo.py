"""VAPO: value-based PPO for long reasoning, one learner per agent (arXiv 2504.05118).

A critic earns its keep on long replies if it is trained first, if its targets are unbiased, and if the policy's λ
grows with the length of the reply:

    critic: λ_critic = 1: the target is the sum of rewards; the first iterations train the critic only
    policy: λ_policy = max(.95, 1 − 1/(α·length)), so that the end of a long reply still reaches its start
    loss  = −min(ρA, clip(ρ, 1 − .2, 1 + .28)A)  + μ·NLL(replies of episodes that succeeded)

Both means run over tokens: over all of them, and over those of the successful episodes. A is whitened.

Departures from the original, a recipe for one agent. Every agent is a learner of its own: returns run over its turns
(which gets its own reward and the team's until its next turn), with a critic on its own observation; from turn to turn
λ is ``lambda_turn`` (1) for critic and policy alike. The critic is a small head on the frozen model's features: it is
trained first for a few iterations, not for fifty. An episode is correct if the environment says success; where it
gives no verdict the NLL is off, and ``correct`` shows it. No groups: the original samples sixteen replies to each
prompt for the sake of contrast, here an iteration has as many episodes as are set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from marft_algos import credit
from marft_algos import functional as F
from marft_algos.algorithms.base import Need, View, register
from marft_algos.algorithms.ppo import PPO, PPOConfig
from marft_algos.batching import Batch, has_loss
from marft_algos.lazy import Tensor
from marft_algos.ranges import NOT_NEGATIVE, POSITIVE
from marft_algos.types import Estimates, SamplingParams, Trajectory, Transition
from marft_envs.errors import ConfigError


@dataclass(frozen=True)
class VAPOConfig(PPOConfig):
    """Settings of VAPO; those it shares with every algorithm that has a critic are inherited.

    ``lambda_tok`` is the critic's.
    """

    clip_high: Annotated[float | None, POSITIVE] = 0.28
    """Upper ε: above the lower, so that rare tokens can grow. The paper: .28."""
    value_warmup: Annotated[int, NOT_NEGATIVE] = 5
    """Iterations at the start that train only the value heads, on Monte-Carlo returns. The paper has 50 for a critic
    of the model's size."""
    alpha: Annotated[float, POSITIVE] = 0.05
    """α of the policy's λ = max(.95, 1 − 1/(α·length)). The paper: .05, which leaves .95 up to 400 tokens."""
    nll_coef: Annotated[float, NOT_NEGATIVE] = 0.1
    """μ: weight of the negative log-likelihood of correct replies. The paper: .1."""


@register("vapo")
class VAPO(PPO):
    """Value-augmented PPO for each agent."""

    Config = VAPOConfig
    config: VAPOConfig
    needs: ClassVar[frozenset[Need]] = frozenset({"critic"})
    view: View = "own"
    chain: credit.Relation = "agent"
    traced: ClassVar[bool] = False

    def __init__(self, config: VAPOConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.weights: dict[Transition, float] = {}
        if self.level != "token":
            raise ConfigError("VAPO's λ works between tokens: level is 'action', expected 'token'.")

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Assigns returns by the critic's λ, and advantages by the policy's, from what the last token is due."""
        self.run_returns(trajectories, estimates)
        lambdas = []
        for trajectory in trajectories:
            paid = self.chain_of(trajectory, estimates).tokens
            for t in filter(has_loss, trajectory.transitions):
                length, tokens, due = len(t.reply.action_ids), paid[t.index], float(estimates.returns[t][-1])
                lambdas.append(F.length_adaptive_lambda(length, self.config.alpha))
                inside = F.Discounts(gamma_tok=self.config.gamma_tok, lambda_tok=lambdas[-1])
                before = None if tokens is None else np.append(tokens[:-1], 0.0)  # the last one's is in G
                (advantages,), _ = F.lambda_returns(
                    [estimates.values.get(t)], [length], [due], [()], inside, token_rewards=[before]
                )
                estimates.advantages[t] = advantages.astype(np.float32)
        self.whiten(trajectories, estimates)
        self._weigh(trajectories)
        judged = [bool(trajectory.success) for trajectory in trajectories]
        return {"lambda": float(np.mean(lambdas)) if lambdas else 1.0, "correct": float(np.mean(judged))}

    def _weigh(self, trajectories: Sequence[Trajectory]) -> None:
        """Returns weights under which a mean over all of a policy's tokens is one over its correct replies' tokens."""
        self.weights = {}
        tokens: dict[str, list[int]] = {}
        rows = [(t, bool(d.success)) for d in trajectories for t in d.transitions if has_loss(t)]
        rows += [(t, False) for d in trajectories for t in d.candidates if has_loss(t)]  # no episode succeeded by them
        for t, correct in rows:
            both = tokens.setdefault(t.policy, [0, 0])
            both[0] += len(t.reply.action_ids)
            both[1] += len(t.reply.action_ids) * correct
        for t, correct in rows:
            self.weights[t] = tokens[t.policy][0] / tokens[t.policy][1] if correct else 0.0

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Returns the clipped surrogate, and the NLL of what was right."""
        loss, stats = self.clipped(self.ratio(logprobs, batch), batch.advantages, batch)
        nll = batch.mean(-logprobs * self.per_turn([self.weights[t] for t in batch.transitions], batch))
        return loss + self.config.nll_coef * nll, stats | {"nll": float(nll.detach())}
