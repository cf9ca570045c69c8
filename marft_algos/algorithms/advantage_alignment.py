"""Advantage Alignment: who learns for itself also does good to who did good to it (arXiv 2406.14662, section 4).

In a game of own rewards IPPO's agents learn the best answer to how the others play, and end where each does best alone.
Here a turn is also credited with what it does for the others, as far as the past was good for its agent:

    A*_i(k) = A_i(k) + β · γ · [Σ_{m < r} γ^{r − m} · Ā_i(m)] · Σ_{j ≠ i} Ā_j(r),   r the round of turn k

Ā(m) is an agent's mean advantage over its turns of round m, γ is ``gamma_turn``, and β ``alignment``: after a past that
was good to it, an agent learns what is good for the others; after a bad one, what is bad for them. A is IPPO's, G − V
with a critic that sees what its agent sees, and all that follows (whitening, clipped surrogate) is IPPO's, too.

Departures. The paper's step is one move of all players at once; here it is a round, so that talk before a move belongs
to it (as in Trust-and-Split, arXiv 2511.19405). A reply's tokens share what is added to their turn. With γ = 1, as is
the default here, the sum grows with the rounds; it is divided by their number (the mean of the past), which at equal β
keeps the term of one size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from marft_algos.algorithms.base import register
from marft_algos.algorithms.ippo import IPPO, IPPOConfig
from marft_algos.algorithms.ppo import PPOConfig, SuccessorStep
from marft_algos.ranges import NOT_NEGATIVE
from marft_algos.types import Estimates, Trajectory, Transition


@dataclass(frozen=True)
class AdvantageAlignmentConfig(IPPOConfig):
    """Settings of Advantage Alignment; the others are IPPO's."""

    alignment: Annotated[float, NOT_NEGATIVE] = 1.0
    """β, the weight of what a turn does for the others. 0: IPPO."""


@register("advantage_alignment")
class AdvantageAlignment(IPPO):
    """IPPO whose agents also learn what is good for those who were good to them."""

    Config: ClassVar[type[PPOConfig]] = AdvantageAlignmentConfig
    config: AdvantageAlignmentConfig

    def run_returns(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> list[SuccessorStep]:
        """Fills returns and IPPO's advantages, and adds what aligns them."""
        steps = super().run_returns(trajectories, estimates)
        if self.config.alignment:
            for trajectory in trajectories:
                for t, more in self._aligned(trajectory.transitions, estimates).items():
                    estimates.advantages[t] = estimates.advantages[t] + np.float32(self.config.alignment * more)
        return steps

    def _aligned(self, turns: Sequence[Transition], estimates: Estimates) -> dict[Transition, float]:
        """Returns for each turn γ · the mean of its agent's discounted past · the others' advantage of its round."""
        gamma = self.config.gamma_turn
        spoken: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        for t in (t for t in turns if estimates.values.get(t) is not None):  # others' returns are no advantages
            spoken[t.agent, t.turn.round].append(float(np.mean(estimates.advantages[t])))
        means = {key: float(np.mean(each)) for key, each in spoken.items()}
        found = {}
        for t in turns:
            r = t.turn.round
            past = [gamma ** (r - m) * a for (agent, m), a in means.items() if agent == t.agent and m < r]
            others = sum(a for (agent, m), a in means.items() if agent != t.agent and m == r)
            found[t] = gamma * float(np.mean(past)) * others if past else 0.0
        return found
