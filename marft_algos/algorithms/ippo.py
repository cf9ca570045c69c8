"""IPPO: every agent runs PPO of its own, and takes the others for a part of its world (arXiv 2011.09533).

Returns run over the agent's own turns: one gets its own reward and the team's until the next or the episode's end,
and bootstrapped from that next turn. Nothing of a team-mate's values or observations enters:

    r_k  = own turn + Σ over layers until the own next turn of (team + own share)
    G_k  = r_k + γ_turn · [(1 − λ_turn)·V_i(next own observation) + λ_turn·G_next]       (functional.lambda_returns)
    loss = −min(ρA, clip(ρ, 1 − ε, 1 + ε)A),  A = G − V_i(own observation), whitened

All policies are updated at once, from one batch.

Departures from the original. A decision is a token (or a whole reply), and λ and γ are separate for tokens and turns
and default to 1: in an episode of a few turns bootstrapping saves little variance, and an agent's observation need
not hold what it said before. λ_turn < 1 is refused where it does not, as V(own) is no sound bootstrap then. One
epoch, not fifteen: a language model's policy moves far in a few steps. Agents that share a policy share its critic;
their role is in the prompt. Normalised value targets (``value_norm``) are off: rewards here lie around [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from marft_algos import credit
from marft_algos.algorithms.base import Need, View, register
from marft_algos.algorithms.ppo import PPO, PPOConfig
from marft_algos.ranges import POSITIVE


@dataclass(frozen=True)
class IPPOConfig(PPOConfig):
    """Settings of IPPO; those it shares with every algorithm that has a critic are inherited."""

    value_clip: Annotated[float | None, POSITIVE] = 0.2
    """New values are held within this distance of those at collection; as wide as the clip, as in the original's
    code. None: off."""


@register("ippo")
class IPPO(PPO):
    """Independent PPO: returns over each agent's own turns, a critic that sees what its agent sees."""

    Config: ClassVar[type[PPOConfig]] = IPPOConfig
    needs: ClassVar[frozenset[Need]] = frozenset({"critic"})
    view: View = "own"
    chain: credit.Relation = "agent"
