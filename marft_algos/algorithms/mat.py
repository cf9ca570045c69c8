"""MAT at text level: the team as one sequence model that decides turn by turn (arXiv 2205.14953).

The multi-agent transformer decodes the joint action agent by agent, each conditioned on the actions before it:

    log π(a¹ … aⁿ | o) = Σ_k log π(a_k | o, a_1 … a_{k−1})

For a language model that is a transcript: the prompt of turn k holds what was said before it, and one policy, with
one optimiser, speaks for all agents. MAT's encoder, from which every V is read, sees all observations: the team view.

    r_k  = own turn + Σ over layers until the own next turn of (team + own share)
    G_k  = r_k + γ_turn · [(1 − λ_turn)·V(team view at the next own turn) + λ_turn·G_next]
    loss = −min(ρ_k·A_k, clip(ρ_k, 1 − ε, 1 + ε)A_k),  ρ_k of turn k's conditional log-prob,  A_k = G_k − V_k

Departures from the original. The transformer is the language model, so there is nothing to build or to align; what
makes it MAT is one policy for all, a decision per turn with one V, and conditioning on the transcript. Which
predecessors a turn sees is D's business, not fixed by an order of agents: ``unseen`` logs the share of a round's
earlier turns that are missing from a turn's prompt (0: MAT's factorisation; 1: a shared policy that decides in
parallel). The conditional log-prob is normalised by its tokens unless ``norm`` says otherwise. One epoch, not ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from marft_algos.algorithms.base import Need, register
from marft_algos.algorithms.mappo import MAPPO, MAPPOConfig
from marft_algos.algorithms.ppo import PPOConfig
from marft_algos.batching import Level
from marft_algos.types import Estimates, Trajectory


@dataclass(frozen=True)
class MATConfig(MAPPOConfig):
    """Settings of MAT: MAPPO's, with another default."""

    level: Level = "action"
    """What a decision is; ``action``: a turn, with one V, as in the original."""


@register("mat")
class MAT(MAPPO):
    """Multi-agent transformer: MAPPO's returns and critic; one policy, turns conditioned on the transcript."""

    Config: ClassVar[type[PPOConfig]] = MATConfig
    needs: ClassVar[frozenset[Need]] = frozenset({"critic", "team_state", "shared"})

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Assigns advantages per turn; logs how much of the transcript turns were shown."""
        earlier = shown = 0
        for turns in (trajectory.transitions for trajectory in trajectories):
            for t in turns:
                before = {u.index for u in turns if u.round == t.round and u.index < t.index}
                earlier, shown = earlier + len(before), shown + len(before & set(t.turn.sees))
        return super().credit(trajectories, estimates) | {"unseen": 1.0 - shown / earlier if earlier else 0.0}
