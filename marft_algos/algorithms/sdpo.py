"""SDPO: the policy that has been shown what came of a reply teaches it, token by token (arXiv 2601.20802).

    A_t  = log π(y_t | x, f, y_<t) − log π(y_t | x, y_<t),   f: a right reply of the group, results of the turn
    loss = −mean over all tokens of log π(y_t | x, y_<t) · A_t

The teacher is the policy as it is, without a gradient; its prompt is the turn's, with f behind. In expectation over y_t
the gradient is that of KL(π(· | x) ‖ π(· | x, f)), since log π − log q of a sampled token is what the score function is
weighed by. Rewards are not read: a success only says whose replies are shown.

Departures. The KL is estimated from the sampled token, where the paper sums over the likeliest of the vocabulary. There
is no moving average of the teacher. Somebody else's right reply is the one at the same turn of the first other
successful episode of the start; results are shown after failures. A turn of which nothing is known has A = 0, and its
tokens count in the mean. Tool schemas in a chat template's own form are missing from the teacher's prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from marft_algos import credit
from marft_algos.algorithms.base import Algorithm, GroupConfig, Rescore, register
from marft_algos.batching import Batch, Level, has_loss
from marft_algos.credit.branches import BranchReplayer
from marft_algos.lazy import Tensor
from marft_algos.ranges import COUNT
from marft_algos.types import Estimates, SamplingParams, Trajectory, Transition


@dataclass(frozen=True)
class SDPOConfig(GroupConfig):
    """Settings of SDPO; those it shares with every algorithm are inherited."""

    one_step, rewarded = True, False

    group_size: Annotated[int, COUNT] = 8
    """Episodes of each start: the successful ones are shown to the others. The paper's."""


class Hindsight(credit.Rule):
    """Makes the teacher's prompts, once a group is played; rewards are those of the record."""

    name = "hindsight"

    def __call__(self, trajectory: Trajectory) -> credit.Rewards:
        """Leaves rewards as the record has them."""
        return credit.broadcast(trajectory)

    def replay(self, trajectories: Sequence[Trajectory], replayer: BranchReplayer, iteration: int) -> list[Trajectory]:
        """Returns the episodes with the prompts of turns of which something is known."""
        shown = []
        for d in trajectories:
            solved = [other for other in trajectories if other.group == d.group and other.success and other is not d]
            words = {t: feedback(d, t, solved) for t in d.transitions if has_loss(t)}
            prompts = {t.index: replayer.prompt(t, told) for t, told in words.items() if told}
            shown.append(replace(d, hindsight={k: ids for k, ids in prompts.items() if ids}))
        return shown


def feedback(d: Trajectory, t: Transition, solved: Sequence[Trajectory]) -> str:
    """Returns what is known about a turn afterwards; "" for nothing.

    Args:
        d: Its episode.
        t: The turn.
        solved: Successful episodes of the same prompt.
    """
    same = (other.transitions[t.index] for other in solved if t.index < len(other.transitions))
    right = next((u.turn.text for u in same if u.agent == t.agent), "")
    told = [f"A right reply:\n{right}"] if right else []
    if t.turn.result and not d.success:
        told.append(f"What came of your last reply:\n{t.turn.result}")
    return "\n\n".join([*told, "Now reply rightly."]) if told else ""


@register("sdpo")
class SDPO(Algorithm):
    """Self-distillation from feedback."""

    Config = SDPOConfig
    config: SDPOConfig
    level: Level = "token"

    def __init__(self, config: SDPOConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.rule = Hindsight()
        self._prompts: Mapping[Transition, Any] = {}

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Notes the teacher's prompts; advantages follow at each step's weights."""
        turns = [t for d in trajectories for t in d.transitions]
        estimates.advantages |= {t: np.zeros(max(len(t.reply.action_ids), 1), np.float32) for t in turns}
        self._prompts = {d.transitions[k]: ids for d in trajectories for k, ids in d.hindsight.items()}
        return {"hindsight": len(self._prompts) / max(sum(map(has_loss, turns)), 1)}

    def before_step(self, part: Sequence[Transition], estimates: Estimates, rescore: Rescore) -> dict[str, float]:
        """Lets the policy that knows better score the turns."""
        known = [t for t in part if t in self._prompts]
        told = [replace(t, request=replace(t.request, prompt_ids=list(self._prompts[t]))) for t in known]
        for t, taught in zip(known, rescore(told) if told else [], strict=True):
            estimates.advantages[t] = (taught - estimates.behaviour(t)).astype(np.float32)
        gains = [float(estimates.advantages[t].mean()) for t in known]
        return {"hindsight_gain": float(np.mean(gains)) if gains else 0.0}

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Returns −log π · A, a mean over tokens."""
        return self.reduce(-logprobs * batch.advantages, batch), {}
