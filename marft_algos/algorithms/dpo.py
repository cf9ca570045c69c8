"""Direct preference optimisation (DPO, arXiv 2305.18290): of two recorded episodes of one start, the better one.

    m = β[Σ_k log(π/π_ref)(y⁺_k | x⁺_k) − Σ_k log(π/π_ref)(y⁻_k | x⁻_k)],   loss = −log σ(m), a mean over pairs

k runs over a policy's own turns in the better (+) and the worse (−) episode, each given its agent's prompt there;
what others and the environment say is context, and has no loss. π_ref are the weights that the run began with. Each
policy has its own m. The gradient is that of −w(log π(y⁺) − log π(y⁻)) with w = β σ(−m), worked out before each step.

Departures: for one agent and one turn this is DPO. With several turns it is the trajectory-level form of arXiv
2409.02392, exact where what happens between two turns is certain; here others' words are drawn, too, and the difference
of values that this makes is left out, as there. Preferences come from outcomes, not from people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from marft_algos import functional as F
from marft_algos.algorithms.base import Algorithm, Rescore, UpdateConfig, register
from marft_algos.batching import Batch, Level
from marft_algos.lazy import Tensor
from marft_algos.ranges import POSITIVE, RATE
from marft_algos.types import Estimates, Trajectory, Transition


@dataclass(frozen=True)
class DPOConfig(UpdateConfig):
    """Settings of preference optimisation; those it shares with every algorithm are inherited."""

    offline, rewarded = True, False

    demonstrations: str = ""
    """Where episodes come from, good and bad: a JSONL file of recorded ones, or a run, whose training episodes are
    taken."""
    beta: Annotated[float, POSITIVE] = 0.1
    """β, how dear it is to leave the reference: the paper's for most tasks, and TRL's."""
    lr: Annotated[float | dict[str, float], RATE] = 5e-6
    """Adam step size. 5e-6: the adapters of the alignment handbook; ten times the 5e-7 of all weights."""

    @property
    def needs_reference(self) -> bool:
        """The reference is part of the loss."""
        return True


@register("dpo")
class DPO(Algorithm):
    """Prefers the words of the better of two episodes."""

    Config = DPOConfig
    config: DPOConfig
    level: Level = "action"
    imitates = True
    prefers = True

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Notes which pair a turn is of, and on which side: of each group the first episode is the better one."""
        self._sides: dict[Transition, tuple[int, float]] = {}
        better = set[int]()
        for trajectory in trajectories:
            sign = -1.0 if trajectory.group in better else 1.0
            better.add(trajectory.group)
            self._sides |= dict.fromkeys(trajectory.transitions, (trajectory.group, sign))
            estimates.advantages |= {t: np.full(1, sign, np.float32) for t in trajectory.transitions}
        return {}

    def together(self, rows: Sequence[Transition]) -> list[list[Transition]]:
        """Keeps the turns of a pair in one minibatch."""
        pairs: dict[int, list[Transition]] = {}
        for turn in rows:
            pairs.setdefault(self._sides[turn][0], []).append(turn)
        return list(pairs.values())

    def before_step(self, part: Sequence[Transition], estimates: Estimates, rescore: Rescore) -> dict[str, float]:
        """Works out each pair's margin at the present weights, and from it what its turns weigh."""
        numbers = {pair: i for i, pair in enumerate(dict.fromkeys(self._sides[turn][0] for turn in part))}
        rewards = np.zeros((2, len(numbers)))
        for turn, scores in zip(part, rescore(part), strict=True):
            pair, sign = self._sides[turn]
            gap = np.asarray(scores, np.float64) - estimates.reference_logprobs[turn]
            rewards[int(sign < 0), numbers[pair]] += self.config.beta * gap.sum()
        margins = rewards[0] - rewards[1]
        losses, slopes = F.preference(margins)
        self._loss = float(losses.mean())
        for turn in part:
            pair, sign = self._sides[turn]
            weight = sign * self.config.beta * slopes[numbers[pair]] / len(numbers)
            estimates.advantages[turn] = np.full(1, weight, np.float32)
        return {
            "margin": float(margins.mean()),
            "accuracy": float((margins > 0).mean()),
            "reward_better": float(rewards[0].mean()),
            "reward_worse": float(rewards[1].mean()),
            "pairs": float(len(numbers)),
        }

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Returns the pieces' loss, spread evenly over the minibatch's turns, with the gradient of these turns."""
        weighed = -(batch.advantages * batch.row_sum(logprobs)).sum()
        return weighed - weighed.detach() + self._loss * len(batch.transitions) / batch.totals.rows, {}
