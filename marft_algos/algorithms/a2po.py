"""A2PO: agent by agent on one batch, advantages corrected for those already updated (arXiv 2302.06205).

Policies are updated one after the other. Before each block the advantages over the team's layers are computed anew: a
turn of a policy that has moved since is looked back from with the trace c = min(1, ρ) in place of 1, so that what
it would say today counts, not what it said:

    G[k,L] = R + γ_turn · mean_j [(1 − λ_turn·c_j)·V_j + λ_turn·c_j·G_j]     A = G − V, whitened anew
    w      = ρ^i · clip(Π ρ^j, 1 − ε_o, 1 + ε_o)    over updated policies' turns j in the round, up to i's layer
    loss   = −min(wA, clip(w, 1 − ε_i, 1 + ε_i)A),  ε_i = ε·((position/n)·w_c + 1 − w_c)

ρ^j is the ratio of a whole reply, and its product is a constant to the gradient. The order is semi-greedy: at odd
positions the policy with the largest mean |A| goes next, at even ones any. A policy's value target is the corrected
return of its block. With the others' ratios at 1 and w_c = 0 this is PPO.

Departures from the original. A time step there is a turn's layer here, so that the trace works between turns of
different agents, which act one after the other. ρ^i is a token's ratio by default. c and Π ρ^j are those of whole
replies: over long replies c falls towards 0 quickly, and the returns lean on V; both are logged. ε_o is .1, as in the
authors' code (two reimplementations have ε_i/2, which is the same at the last position).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from marft_algos import functional as F
from marft_algos import seeds
from marft_algos.algorithms.base import Need, Rescore, View, register
from marft_algos.algorithms.ppo import PPO, PPOConfig, log_ratios, waiting
from marft_algos.batching import Batch
from marft_algos.lazy import Tensor
from marft_algos.ranges import SHARE
from marft_algos.types import Estimates, SamplingParams, Trajectory, Transition


@dataclass(frozen=True)
class A2POConfig(PPOConfig):
    """Settings of A2PO; those it shares with every algorithm that has a critic are inherited."""

    clip_outer: Annotated[float, SHARE] = 0.1
    """ε_o: how far the other policies' ratio may weigh on a sample. .1: the authors' code."""
    clip_anneal: Annotated[float, SHARE] = 0.5
    """w_c: the share of ε that grows with the position in the order; the first policy updated has the narrowest
    clip, as all later ones build on it. 0: the same clip for all. The paper: .5."""


@register("a2po")
class A2PO(PPO):
    """Agent-by-agent policy optimisation: corrected advantages, two clips, semi-greedy order."""

    Config = A2POConfig
    config: A2POConfig
    needs: ClassVar[frozenset[Need]] = frozenset({"critic", "team_state", "blocks"})
    view: View = "team"

    def __init__(self, config: A2POConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.updated: list[str] = []
        self.moves: dict[Transition, np.ndarray] = {}
        """[L] log-ratios of the turns whose policy was updated in this iteration."""
        self.moved: dict[Transition, float] = {}
        """Their sums."""
        self.outer: dict[Transition, float] = {}
        """Clipped ratio of the updated policies' turns of the round, up to the turn's layer; elsewhere 1."""
        self.scale = 1.0

    def moved_since(self, t: Transition) -> np.ndarray | float:
        """Returns [L] how far a turn's policy has moved, if its block was updated."""
        return self.moves.get(t, 0.0)

    def traces(self, trajectory: Trajectory) -> list[float] | None:
        """Returns the trace c = min(1, ρ) of turns whose policy has moved, 1 elsewhere; V-trace has it in its own c."""
        return None if self.config.vtrace else [F.trace(self.moved.get(t, 0.0)) for t in trajectory.transitions]

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Assigns advantages before the first block, when no policy has moved."""
        self.updated, self.moves, self.moved, self.outer = [], {}, {}, {}
        return super().credit(trajectories, estimates)

    def order(
        self, rows: Mapping[str, Sequence[Transition]], estimates: Estimates, iteration: int
    ) -> Iterator[list[str]]:
        """Orders policies semi-greedily: by the advantages as they are when a block's turn comes."""
        rng = seeds.generator(seeds.order(self.seed, iteration))
        left = [p for p, turns in rows.items() if turns]
        n = len(left)
        for position in range(1, n + 1):
            sizes = [float(np.abs(np.concatenate([estimates.advantages[t] for t in rows[p]])).mean()) for p in left]
            chosen = left.pop(int(np.argmax(sizes)) if position % 2 else int(rng.integers(len(left))))
            self.scale = position / n * self.config.clip_anneal + 1.0 - self.config.clip_anneal
            yield [chosen]
        yield [p for p, turns in rows.items() if not turns]

    def after_block(
        self, block: Sequence[str], trajectories: Sequence[Trajectory], estimates: Estimates, rescore: Rescore
    ) -> dict[str, float]:
        """Corrects the advantages and returns of the policies that are still to come, and notes their outer ratio."""
        self.updated += block
        if not any(waiting(trajectory, self.updated) for trajectory in trajectories):
            return {}
        moves = log_ratios(block, trajectories, estimates, rescore)
        moved = {t: float(x.sum(dtype=np.float64)) for t, x in moves.items()}
        self.moves |= moves
        self.moved |= moved
        turns = [t for trajectory in trajectories for t in trajectory.transitions]
        done = [(t, estimates.advantages[t], estimates.returns[t]) for t in turns if t.policy in self.updated]
        super().credit(trajectories, estimates)
        for t, advantages, returns in done:
            estimates.advantages[t], estimates.returns[t] = advantages, returns
        for trajectory in trajectories:
            for t in waiting(trajectory, self.updated):
                before = [u for u in trajectory.transitions if u.round == t.round and u.layer <= t.layer]
                total = sum(self.moved.get(u, 0.0) for u in before)
                self.outer[t] = F.outer_factor(total, self.config.clip_outer)
        by_policy = {p: [ratio for t, ratio in moved.items() if t.policy == p] for p in block}
        return {f"policy/{p}/trace": float(np.mean([F.trace(x) for x in m])) for p, m in by_policy.items() if m}

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Returns −min(wA, clip(w, 1 ± ε_i)A), w = ρ times the outer factor."""
        outer = self.per_turn([self.outer.get(t, 1.0) for t in batch.transitions], batch)
        loss, stats = self.clipped(self.ratio(logprobs, batch) * outer, batch.advantages, batch, scale=self.scale)
        stats |= {"outer": float(batch.mean(outer.flatten())), "clip_eps_max": self.config.clip * self.scale}
        return loss, stats
