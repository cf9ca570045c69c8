"""MAPPO: independent policies, critics that see the whole team (arXiv 2103.01955).

As IPPO, but V_i reads the team's transcript: the task's state, the agent's role, and every message committed before
its layer, whether the agent was shown it or not. Never its own or a later action, never the gold answer.

    r_k  = own turn + Σ over layers until the own next turn of (team + own share)
    G_k  = r_k + γ_turn · [(1 − λ_turn)·V_i(team view at the next own turn) + λ_turn·G_next]
    loss = −min(ρA, clip(ρ, 1 − ε, 1 + ε)A),  A = G − V_i(team view), whitened

All policies are updated at once, from one batch. With a constant critic this is REINFORCE with a baseline, on the
first minibatch.

Departures from the original. A decision is a token (or a whole reply); at token level V also reads the reply's tokens
so far, which makes it a baseline that does not depend on the token it judges. γ and λ are separate for tokens and
turns and default to 1, as an episode has few turns; below 1 the team view keeps the bootstrap sound. One epoch, not
fifteen: a language model's policy moves far in a few steps. ``value_norm`` (β = .99999 in the original) is off, as
rewards lie around [0, 1]; where it is on, its statistics take in each iteration's targets once, before the fit.
Agents that share a policy share its critic; their role is in its view. No death masking: who does not act has no
turn, and its last turn goes on to receive the team's reward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marft_algos.algorithms.base import Need, View, register
from marft_algos.algorithms.ippo import IPPO, IPPOConfig
from marft_algos.algorithms.ppo import PPOConfig


@dataclass(frozen=True)
class MAPPOConfig(IPPOConfig):
    """Settings of MAPPO: IPPO's."""


@register("mappo")
class MAPPO(IPPO):
    """Multi-agent PPO: IPPO's returns over each agent's own turns, centralised critics."""

    Config: ClassVar[type[PPOConfig]] = MAPPOConfig
    needs: ClassVar[frozenset[Need]] = frozenset({"critic", "team_state"})
    view: View = "team"
