"""Settings that algorithms share: of the update step, and of groups of episodes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal

from marft_algos.ranges import COUNT, NOT_NEGATIVE, POSITIVE, RATE, Range, Settings
from marft_envs.errors import ConfigError


@dataclass(frozen=True)
class UpdateConfig(Settings):
    """Settings of the update step that every algorithm shares."""

    one_step: ClassVar[bool] = False
    """Whether episodes are good for one optimiser step only: without a ratio, a second would take them for the new
    policy's."""
    rewarded: ClassVar[bool] = True
    """Whether what is learnt from a token depends on its reward, which ``kl_reward_coef`` is a part of."""
    offline: ClassVar[bool] = False
    """Whether nothing is sampled from the policies: a preset's rate and steps, chosen for reinforcement, then do not
    hold."""

    lr: Annotated[float | dict[str, float], RATE] = 3e-5
    """Adam step size of the policies: one number, or one per policy id. 3e-5: the authors' later LoRA runs; their
    paper has 1e-6, at which a bf16 or fp16 adapter hardly moves."""
    anneal: Annotated[int, NOT_NEGATIVE] = 0
    """Iterations over which ``lr`` falls in a straight line to a tenth of itself, and stays there; 0: constant, as in
    the paper. Once a small task is solved, whitened advantages are noise of full size, and a full-size step undoes
    it."""
    lr_warmup: Annotated[int | None, NOT_NEGATIVE] = None
    """Iterations over which ``lr`` rises in a straight line to its full size; 0: it starts there. none: 6 if the run
    begins with trained weights (``warm_start``, ``start``, ``adapters``), else 0. Adam's first steps have the size of
    the rate in every weight, however small the gradient is, and can undo what was learnt before."""
    critic_lr: Annotated[float, RATE] = 5e-4
    """Adam step size of the value heads: they are small, start from nothing, and see only cached features."""
    adam_eps: Annotated[float, Range(0.0, 1.0, open_low=True)] = 1e-5
    """Adam's epsilon; 1e-5 as in the paper. 1e-8 in presets for models of billions, where most of a gradient's numbers
    are smaller than 1e-5."""
    epochs: Annotated[int, COUNT] = 1
    """Passes of the policies over an iteration's episodes. The paper: 1."""
    minibatches: Annotated[int, COUNT] = 1
    """Optimiser steps per pass, on a seeded random split of the turns. The paper: 1."""
    critic_epochs: Annotated[int, COUNT] = 1
    """Passes of the value heads; cheap, as their features are cached."""
    critic_minibatches: Annotated[int, COUNT] = 1
    """Optimiser steps of the value heads per pass."""
    micro_tokens: Annotated[int, COUNT] = 16384
    """Padded tokens per forward: gradients are accumulated over length-sorted pieces of at most this size, without
    any effect on the result. Lower it when memory runs out."""
    max_grad_norm: Annotated[float | None, POSITIVE] = 0.5
    """Gradients are scaled down to this norm, policy by policy and head by head; none: off. The paper: 0.5."""
    kl_stop: Annotated[float | None, POSITIVE] = None
    """A minibatch whose mean per-token KL(old‖new) is above this makes no step and ends the policy's update of this
    iteration. It cannot act with one epoch of one minibatch. The paper: 0.02."""
    entropy_coef: Annotated[float, NOT_NEGATIVE] = 0.0
    """Weight of the mean per-token entropy in the objective. The paper: .1, 0 and .01 (tables 3, 4, 5)."""
    kl_coef: Annotated[float, NOT_NEGATIVE] = 0.0
    """Weight of the mean per-token KL(π_θ‖π_ref) in the loss (k3 estimate, as GRPO's), π_ref the weights that the run
    began with (the model without its adapter, or those of ``start`` and ``adapters``): holds a policy near the texts it
    started from, and keeps exploration among them. 0: off, as in the paper; then no reference is scored."""
    value_clip: Annotated[float | None, POSITIVE] = None
    """New values are held within this distance of those at collection (PPO's value clipping); none: off."""
    huber_delta: Annotated[float | None, POSITIVE] = 10.0
    """Where the value loss turns linear; none: squared. 10: the released code; inactive for rewards in [0, 1]."""
    value_norm: Annotated[float | None, Range(0.0, 1.0, open_high=True)] = None
    """β of the running mean and variance that the value heads' targets are normalised by, updated once an iteration
    before the fit (MAPPO's ValueNorm; .99999 there). none: off, as rewards lie around [0, 1]; for larger ones."""
    value_warmup: Annotated[int, NOT_NEGATIVE] = 0
    """Iterations at the start that train only the value heads."""
    old_logprobs: Literal["sampler", "learner"] = "sampler"
    """Whose log-probs are the ratio's denominator. ``learner`` recomputes them before the update (one more forward):
    needed at action level when the sampler computes in other arithmetic (bf16, another engine), because the noise of
    single tokens adds up over a text."""
    critic_features: Literal["base", "policy"] = "base"
    """Whose final hidden states the value heads read: those of the frozen base, or the policy's own as the update
    begins. ``policy`` needs ``old_logprobs='learner'``, whose pass gives them, and saves the base's pass; but what
    heads have learnt to read moves with every update."""
    kl_reward_coef: Annotated[float, NOT_NEGATIVE] = 0.0
    """Weight of −(log π_old − log π_ref), token by token, in the reward: where a decision is a token, it is
    charged for itself and those after it, else for all. The other place for a KL to the weights that the run began
    with (RLHF's; REINFORCE++ and RLOO). 0: off."""
    tis_cap: Annotated[float | None, POSITIVE] = None
    """Cap of the truncated importance weights min(π_learner/π_sampler, cap) on every token's gradient, for a sampler
    that computes in other arithmetic; needs ``old_logprobs='learner'``, as the ratio against the sampler holds the
    same correction already. none: off; 2 is usual, and in every preset for bf16. Of no effect on demonstrations, which
    no policy sampled."""
    ratio_tolerance: Annotated[float, POSITIVE] = 0.02
    """Largest allowed mean |log π_learner − log π_sampler| per token before the first step: beyond it, what is scored
    is not what was sampled, and the run stops. fp32 gives 1e-6, bf16 about 1e-2: raise it for off-policy data."""

    @property
    def corrects_stale(self) -> bool:
        """Whether credit asks for the present log-probs of turns that older weights sampled; here it does not."""
        return False

    @property
    def needs_reference(self) -> bool:
        """Whether turns are scored under the weights that the run began with, too."""
        return bool(self.kl_coef or self.kl_reward_coef)

    @classmethod
    def general(cls) -> frozenset[str]:
        """Returns the names of the settings that a preset or a grid may set for several algorithms at once."""
        if cls.offline:
            return frozenset({"micro_tokens"})
        fixed = {"epochs", "minibatches"} if cls.one_step else set()
        return frozenset(f.name for f in fields(cls)) - fixed - (set() if cls.rewarded else {"kl_reward_coef"})

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for values outside their ranges, and more steps than a batch is good for."""
        super().__post_init__()
        if self.kl_reward_coef and not self.rewarded:
            raise ConfigError(
                f"kl_reward_coef is {self.kl_reward_coef}; expected 0: it changes the rewards of tokens, which this "
                "algorithm does not learn from. Next: kl_coef, a part of the loss."
            )
        if self.one_step and (self.epochs, self.minibatches) != (1, 1):
            raise ConfigError(
                f"epochs is {self.epochs} and minibatches {self.minibatches}; expected 1 and 1: this algorithm has no "
                "ratio that would correct a second step. For more steps, take fewer episodes per iteration."
            )


@dataclass(frozen=True)
class GroupConfig(UpdateConfig):
    """Settings of algorithms that compare episodes of one start."""

    group_size: Annotated[int, COUNT] = 8
    """Episodes of each start; ``episodes_per_iteration`` must be a multiple of it."""
    refills: Annotated[int, NOT_NEGATIVE] = 0
    """How often groups that the algorithm has no use for are replaced by fresh ones; what was played counts."""


@dataclass(frozen=True)
class ClipConfig(UpdateConfig):
    """Settings of algorithms with PPO's clipped surrogate, or another of ratios (``Algorithm.clipped``)."""

    clip: Annotated[float, Range(0.0, 1.0, open_low=True)] = 0.2
    """ε of the clipped surrogate: PPO's. Samples beyond 1 ± ε that moved the right way give no gradient."""
    clip_high: Annotated[float | None, POSITIVE] = None
    """Upper ε if it differs from the lower (DAPO's .28 keeps rare tokens alive); none: as ``clip``."""
    dual_clip: Annotated[float | None, Range(1.0, open_low=True)] = None
    """c of the dual clip (arXiv 1912.09729): a sample with A < 0 whose ratio is above it gives no gradient
    either. Without it such a sample's weight has no bound, which matters where ratios grow large: stale turns, many
    passes. 3 is the source's, and that of released trainers. none: off, as in PPO."""
    surrogate: Literal["clip", "cispo", "sapo"] = "clip"
    """What becomes of ratios far from 1: PPO's ``clip`` takes their gradient away. ``cispo`` (arXiv 2506.13585) cuts
    only their weight, at 1 + ``clip_high``, so every token is learnt from. ``sapo`` (arXiv 2511.20347) fades their
    gradient out; ``clip`` and ``clip_high`` then have no effect."""
    tau_pos: Annotated[float, POSITIVE] = 1.0
    """τ of SAPO's gate where A > 0: how fast it closes. The paper's."""
    tau_neg: Annotated[float, POSITIVE] = 1.05
    """The same where A ≤ 0. The paper's: such gradients spread over all other tokens, and close sooner."""

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for a bound that the surrogate has in itself."""
        super().__post_init__()
        if self.dual_clip is not None and self.surrogate != "clip":
            raise ConfigError(
                f"dual_clip bounds what PPO's clip leaves open, and surrogate='{self.surrogate}' bounds every sample. "
                "Leave out dual_clip, or set surrogate='clip'."
            )
