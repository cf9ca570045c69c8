"""MARFT: PPO for teams of language models, at the action or the token level (arXiv 2504.16129).

Returns run through the whole team: a turn is bootstrapped from the turns of the next layer, and inside
a response, at the token level, a token from the next one (``functional.lambda_returns``):

    last token:  G[k,L] = R + γ_turn · mean_j [(1 − λ_turn)·V[j,1] + λ_turn·G[j,1]]
    before it:   G[k,t] = γ_tok · [(1 − λ_tok)·V[k,t+1] + λ_tok·G[k,t+1]]
    loss:        −min(ρA, clip(ρ, 1 − ε_l, 1 + ε_h)A),  A = G − V, whitened

with ρ of a token, or of a whole action: exp of the difference of (1/Z)·Σ_t log π, Z = 1, tokens or words.

Departures from the paper: layers may hold several turns (each gets all of the layer's reward, and hands over to
the mean of the next layer), γ and λ are separate for tokens and turns and default to 1 (0.99^512 is .006), and the
critic's view is checked, because V of a successor's own observation is a bootstrap only if it sees its predecessor.
In a game, where one seat's gain is another's loss, no return belongs to all: ``chain="agent"`` then runs returns over
each agent's own turns, which is IPPO's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from marft_algos.algorithms.base import View, register
from marft_algos.algorithms.ppo import PPO, PPOConfig
from marft_algos.ranges import COUNT
from marft_algos.types import Estimates, SamplingParams, Transition
from marft_envs.errors import ConfigError


@dataclass(frozen=True)
class MARFTConfig(PPOConfig):
    """Settings of MARFT; those it shares with every algorithm that has a critic are inherited."""

    critic: View = "own"
    """What V sees: the agent's own observation (the paper), the team's transcript before the layer, or nothing."""
    chain: Literal["team", "agent"] = "team"
    """Whose turns a return runs over: the whole team's (the paper), or each agent's own, for games in which every seat
    gets its own reward."""
    update: Literal["joint", "agent"] = "joint"
    """All policies every iteration, or one policy for ``interval`` iterations, then the next."""
    interval: Annotated[int, COUNT] = 1
    """Iterations before the next policy's turn when ``update`` is ``agent``."""


@register("marft")
class MARFT(PPO):
    """Multi-agent reinforcement fine-tuning, both levels."""

    Config = MARFTConfig
    config: MARFTConfig

    def __init__(self, config: MARFTConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.view, self.chain = self.config.critic, self.config.chain
        if self.config.vtrace and self.view == "none":
            raise ConfigError("vtrace corrects values, and critic='none' has none; use critic='own' or 'team'.")

    def order(self, rows: Mapping[str, Sequence[Transition]], estimates: Estimates, iteration: int) -> list[list[str]]:
        """Returns every policy, or the one whose interval it is."""
        policies = list(rows)
        if self.config.update == "joint" or not policies:
            return [policies]
        return [[policies[iteration // self.config.interval % len(policies)]]]
