"""Settings that algorithms share: of the update step, and of groups of episodes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from marft_envs.errors import ConfigError


@dataclass(frozen=True)
class UpdateConfig:
    """Settings of the update step that every algorithm shares."""

    one_step: ClassVar[bool] = False
    """Whether episodes are good for one optimiser step only: without a ratio, a second would take them for the new
    policy's."""

    lr: float | dict[str, float] = 3e-5
    """Adam step size of the policies: one number, or one per policy id. 3e-5: the authors' later LoRA runs; their
    paper has 1e-6, at which a bf16 or fp16 adapter hardly moves."""
    anneal: int = 0
    """Iterations over which ``lr`` falls in a straight line to a tenth of itself, and stays there; 0: constant, as in
    the paper. Once a small task is solved, whitened advantages are noise of full size, and a full-size step undoes
    it."""
    critic_lr: float = 5e-4
    """Adam step size of the value heads: they are small, start from nothing, and see only cached features."""
    adam_eps: float = 1e-5
    """Adam's epsilon; 1e-5 as in the paper."""
    epochs: int = 1
    """Passes of the policies over an iteration's episodes. The paper: 1."""
    minibatches: int = 1
    """Optimiser steps per pass, on a seeded random split of the turns. The paper: 1."""
    critic_epochs: int = 1
    """Passes of the value heads; cheap, as their features are cached."""
    critic_minibatches: int = 1
    """Optimiser steps of the value heads per pass."""
    micro_tokens: int = 16384
    """Padded tokens per forward: gradients are accumulated over length-sorted pieces of at most this size, without
    any effect on the result. Lower it when memory runs out."""
    max_grad_norm: float | None = 0.5
    """Gradients are scaled down to this norm, policy by policy and head by head; none: off. The paper: 0.5."""
    kl_stop: float | None = None
    """A minibatch whose mean per-token KL(old‖new) is above this makes no step and ends the policy's update of this
    iteration. It cannot act with one epoch of one minibatch. The paper: 0.02."""
    entropy_coef: float = 0.0
    """Weight of the mean per-token entropy in the objective. The paper: .1, 0 and .01 (tables 3, 4, 5)."""
    kl_coef: float = 0.0
    """Weight of the mean per-token KL(π_θ‖π_ref) in the loss (k3 estimate, as GRPO's), π_ref the model without its
    adapter: holds a policy near the texts it started from, and keeps exploration among them. 0: off, as in the paper;
    then no reference is scored."""
    value_clip: float | None = None
    """New values are held within this distance of those at collection (PPO's value clipping); none: off."""
    huber_delta: float | None = 10.0
    """Where the value loss turns linear; none: squared. 10: the released code; inactive for rewards in [0, 1]."""
    value_norm: float | None = None
    """β of the running mean and variance that the value heads' targets are normalised by, updated once an iteration
    before the fit (MAPPO's ValueNorm; .99999 there). none: off, as rewards lie around [0, 1]; for larger ones."""
    value_warmup: int = 0
    """Iterations at the start that train only the value heads."""
    old_logprobs: Literal["sampler", "learner"] = "sampler"
    """Whose log-probs are the ratio's denominator. ``learner`` recomputes them before the update (one more forward):
    needed at action level when the sampler computes in other arithmetic (bf16, another engine), because the noise of
    single tokens adds up over a text."""
    kl_reward_coef: float = 0.0
    """Weight of −(log π_old − log π_ref), token by token, in the reward of each turn, before any credit is given: the
    other place for a KL to the model without its adapter (RLHF's; REINFORCE++ and RLOO). 0: off."""
    tis_cap: float | None = None
    """Cap of the truncated importance weights min(π_learner/π_sampler, cap) on every token's gradient, for a sampler
    that computes in other arithmetic; needs ``old_logprobs='learner'``, as the ratio against the sampler holds the
    same correction already. none: off; 2 is usual."""
    ratio_tolerance: float = 0.02
    """Largest allowed mean |log π_learner − log π_sampler| per token before the first step: beyond it, what is scored
    is not what was sampled, and the run stops. fp32 gives 1e-6, bf16 about 1e-2: raise it for off-policy data."""

    @classmethod
    def general(cls) -> frozenset[str]:
        """Names of the settings that a preset or a grid may set for several algorithms at once."""
        return frozenset(f.name for f in fields(cls)) - ({"epochs", "minibatches"} if cls.one_step else set())

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for more optimiser steps than the algorithm can make of one batch of episodes."""
        if self.one_step and (self.epochs, self.minibatches) != (1, 1):
            raise ConfigError(
                f"epochs is {self.epochs} and minibatches {self.minibatches}; expected 1 and 1: this algorithm has no "
                "ratio that would correct a second step. For more steps, take fewer episodes per iteration."
            )


@dataclass(frozen=True)
class GroupConfig(UpdateConfig):
    """Settings of algorithms that compare episodes of one start."""

    group_size: int = 8
    """Episodes of each start; ``episodes_per_iteration`` must be a multiple of it."""
    refills: int = 0
    """How often groups that the algorithm has no use for are replaced by fresh ones; what was played counts."""
