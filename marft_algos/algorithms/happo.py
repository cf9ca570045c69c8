"""HAPPO: policies updated one after the other, each weighted by how far the earlier ones moved (arXiv 2109.11251).

The joint policy improves monotonically if the agents are updated in sequence, each on the joint advantage weighted by
the ratio of those already updated. A time step is a round, and all its turns have one joint advantage:

    A_t  = G_t − V_t,  G_t = R_t + γ·[(1 − λ)·V_{t+1} + λ·G_{t+1}]       whitened once, before any factor
    M_t  = Π over updated policies p of clip(exp Δ_p, 1/2, 2),  Δ_p = Σ of p's log-ratios in round t (absent: 0)
    loss = −M_t·min(ρA_t, clip(ρ, 1 − ε, 1 + ε)A_t)

R_t is the sum of the round's rewards; V_t reads the team view of the round's first layer, when nothing of it is said
yet. Blocks are policies, in an order drawn anew in each iteration. With one agent it is PPO.

Departures from the original. A policy that agents share is one block: its turns of a round move together. ρ is a
token's ratio by default (a whole reply's at level ``action``), while M always takes whole replies. Each policy's
ratio in M is held within [1/2, 2]: summed over a long reply the noise of tokens adds up (.02 a token over 1,024
tokens and three predecessors leave an effective share of .29 of the samples); the share that is left is logged.
Value heads are one per policy, fitted to G_t; γ and λ of turns run from round to round and default to 1, those of
tokens have no place in a joint advantage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marft_algos import credit, seeds
from marft_algos import functional as F
from marft_algos.algorithms.base import Need, Reader, Rescore, View, fill_values, register
from marft_algos.algorithms.ppo import PPO, PPOConfig, log_ratios, waiting
from marft_algos.batching import Batch, decision_points
from marft_algos.lazy import Tensor, torch
from marft_algos.types import Estimates, SamplingParams, Trajectory, Transition


@dataclass(frozen=True)
class HAPPOConfig(PPOConfig):
    """Settings of HAPPO; those it shares with every algorithm that has a critic are inherited."""

    factor: Literal["sum", "token"] = "sum"
    """What Δ adds up per turn: the log-ratio of the whole reply, as in the paper, or its mean over tokens. With the
    mean M stays near 1, which makes this PPO in sequence: an ablation."""


@register("happo")
class HAPPO(PPO):
    """Heterogeneous-agent PPO: one joint advantage a round, sequential updates."""

    Config = HAPPOConfig
    config: HAPPOConfig
    needs: ClassVar[frozenset[Need]] = frozenset({"critic", "team_state", "blocks"})
    view: View = "team"
    chain: credit.Relation = "round"
    traced: ClassVar[bool] = False

    def __init__(self, config: HAPPOConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.updated: list[str] = []
        self.factors: dict[Transition, float] = {}
        """M of the turn's round; elsewhere 1."""

    def values(self, trajectories: Sequence[Trajectory], critics: Reader | None, estimates: Estimates) -> None:
        """Fills one V per turn at either level: a round has one joint advantage."""
        fill_values(trajectories, critics, self.view, "action", estimates)

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Assigns the rounds' joint advantages; every factor starts at 1."""
        self.updated, self.factors = [], {}
        for trajectory in trajectories:
            self._joint(trajectory, estimates)
        self.whiten(trajectories, estimates)
        turns = [t for trajectory in trajectories for t in waiting(trajectory, ())]
        return {f"policy/{p}/factor_ess": 1.0 for p in sorted({t.policy for t in turns})}

    def _joint(self, trajectory: Trajectory, estimates: Estimates) -> None:
        """Runs returns from round to round: each has its rewards, and the value at its start."""
        turns = trajectory.transitions
        paid = credit.team_chain(trajectory, self.rule(trajectory), estimates).totals
        rounds: dict[int, list[Sequence[int]]] = {}
        for layer in trajectory.layers:
            rounds.setdefault(turns[layer.turns[0]].round, []).append(layer.turns)
        n = len(rounds)
        starts = [[estimates.values.get(turns[k]) for k in layers[0]] for layers in rounds.values()]
        seen = [[float(v[0]) for v in values if v is not None] for values in starts]
        totals = [sum(paid[layer[0]] for layer in layers) for layers in rounds.values()]
        advantages, returns = F.lambda_returns(
            [np.array([np.mean(values)]) if values else None for values in seen],
            [1] * n,
            totals,
            [(i + 1,) if i + 1 < n else () for i in range(n)],
            self.discounts,
            bootstraps=[estimates.bootstraps.get(trajectory, 0.0) if trajectory.truncated else 0.0] * n,
        )
        for i, (layers, a, g) in enumerate(zip(rounds.values(), advantages, returns, strict=True)):
            for t in (turns[k] for layer in layers for k in layer):
                estimates.rewards_to_go[t] = sum(totals[i:])
                estimates.advantages[t] = np.full(decision_points(t, self.level), a[0], np.float32)
                estimates.returns[t] = g.astype(np.float32)

    def order(self, rows: Mapping[str, Sequence[Transition]], estimates: Estimates, iteration: int) -> list[list[str]]:
        """Makes every policy a block; draws their order anew in each iteration."""
        return [[p] for p in seeds.generator(seeds.order(self.seed, iteration)).permutation(list(rows)).tolist()]

    def after_block(
        self, block: Sequence[str], trajectories: Sequence[Trajectory], estimates: Estimates, rescore: Rescore
    ) -> dict[str, float]:
        """Multiplies the factor of the rounds that the block's policies acted in."""
        self.updated += block
        left = [t for trajectory in trajectories for t in waiting(trajectory, self.updated)]
        if not left:
            return {}
        moves = log_ratios(block, trajectories, estimates, rescore)
        moved = {t: float(x.sum(dtype=np.float64)) for t, x in moves.items()}
        for policy in block:
            for trajectory in trajectories:
                delta: defaultdict[int, float] = defaultdict(float)
                for t in (t for t in trajectory.transitions if t.policy == policy and t in moved):
                    size = len(t.reply.action_ids) if self.config.factor == "token" else 1
                    delta[t.round] += moved[t] / size
                for t in waiting(trajectory, self.updated):
                    step = float(F.joint_factor(torch.tensor([delta[t.round]], dtype=torch.float64)))
                    self.factors[t] = self.factors.get(t, 1.0) * step
        names = {t.policy for t in left}
        factors = {p: np.array([self.factors.get(t, 1.0) for t in left if t.policy == p]) for p in names}
        return {f"policy/{p}/factor_ess": F.effective_samples(m) for p, m in sorted(factors.items())}

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Returns M·min(ρA, clip(ρ)A): M > 0, so it may stand inside, as a factor on A."""
        factor = self.per_turn([self.factors.get(t, 1.0) for t in batch.transitions], batch)
        loss, stats = self.clipped(self.ratio(logprobs, batch), factor * batch.advantages, batch)
        return loss, stats | {"factor": float(batch.mean(factor.flatten()))}
