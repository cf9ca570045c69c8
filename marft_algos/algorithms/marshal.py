"""MARSHAL's turn-level advantages: rewards of turns, centred and normalised player by player (arXiv 2510.15414).

    r̃_k = r_k − mean of player i's r,   S_k = Σ_{own turns k' ≥ k} r̃_{k'},   A_k = (S_k − mean_i S)/(σ_i S + ε_σ)
    loss = −min(ρA, clip(ρ, 1 − ε, 1 + ε)A) + β·k3,  mean over tokens

r_k is the reward of agent i and of the team from its turn k until its next one. The players of a game, or the roles of
a team, have rewards on different scales and act a different number of times: statistics of all of them together would
make one's average another's advantage.

The centring of rewards takes more off the longer an episode goes on, which biases the update where policies choose its
length (docs/audit.md). ``centring="position"`` leaves rewards as they are, and takes the mean S of the player's n-th
turns off S.

Departures: a player is an agent by name, also where agents share a policy. σ below 1e-8: centred only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from marft_algos import credit
from marft_algos import functional as F
from marft_algos.algorithms import groups
from marft_algos.algorithms.base import Algorithm, ClipConfig, register
from marft_algos.batching import Batch, Level
from marft_algos.lazy import Tensor
from marft_algos.ranges import NOT_NEGATIVE
from marft_algos.types import Estimates, Trajectory


@dataclass(frozen=True)
class MARSHALConfig(ClipConfig):
    """Settings of MARSHAL; those it shares with every algorithm are inherited."""

    kl_coef: Annotated[float, NOT_NEGATIVE] = 0.2
    """Weight of the KL to the weights that the run began with: the paper's; self-play drifts."""
    std_eps: Annotated[float, NOT_NEGATIVE] = 1e-6
    """ε_σ, added to a player's σ."""
    centring: Literal["reward", "position"] = "reward"
    """What is subtracted: a player's mean reward from every reward, as in the paper, or the mean of S over the player's
    n-th turns from S, which is unbiased where policies choose how long an episode is."""
    credit: str | dict[str, Any] = "broadcast"
    """Credit rule, or a table of a rule and its arguments (docs/credit.md). ``broadcast`` leaves rewards where they
    fall due, ``last`` (released code) at a round's last layer."""


@register("marshal")
class MARSHAL(Algorithm):
    """Turn-level advantages per player."""

    Config = MARSHALConfig
    config: MARSHALConfig
    level: Level = "action"
    chain: credit.Relation = "agent"

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Centres rewards, sums them to go and normalises the sums, each player by itself."""
        turns = [t for d in trajectories for t in d.transitions]
        players = [t.agent for t in turns]
        linked = [self.chain_of(d, estimates) for d in trajectories]
        rewards = np.array([r for chain in linked for r in chain.totals], dtype=np.float64)
        by_position = self.config.centring == "position"
        rest = rewards if by_position else rewards - groups.statistics(rewards, players).mean
        sums, start = np.zeros_like(rest), 0
        for d, chain in zip(trajectories, linked, strict=True):
            end = start + len(d.transitions)
            centred = replace(chain, rewards=rest[start:end].tolist(), tokens=[None] * (end - start))
            sums[start:end] = credit.returns_to_go(d, centred)
            start = end
        keys = [key for d in trajectories for key in groups.positions(d)] if by_position else players
        means = groups.statistics(sums, keys).mean
        stats = groups.statistics(sums - means if by_position else sums, players)
        advantages = (sums - means) / (stats.std + self.config.std_eps)
        for t, a in zip(turns, advantages, strict=True):
            estimates.advantages[t] = np.array([a], dtype=np.float32)
        return {f"player_std/{p}": float(stats.std[players.index(p)]) for p in sorted(set(players))}

    def length_bias(self) -> str:
        """Names the centring of rewards, where it is set."""
        return "centring='reward' takes more off the longer an episode is" if self.config.centring == "reward" else ""

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Returns the clipped surrogate on tokens."""
        return self.clipped(F.ratio(logprobs, batch.old_logprobs), batch.advantages[:, None], batch)
