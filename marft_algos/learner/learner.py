"""The update step: values → credit → policies, block by block → value heads.

Everything that algorithms share and none of them should have to repeat: packing, accumulation, the loss of the value
heads, gradient clipping, the KL stop, and the check that what is scored is what was sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import Adam

from marft_algos import credit, seeds
from marft_algos.algorithms.base import Algorithm, UpdateConfig, ValueHeads
from marft_algos.algorithms.groups import scale_gradient, truncated_weights
from marft_algos.batching import (
    Totals,
    UpdateError,
    behind,
    context_tokens,
    learnable,
    micro_batches,
    minibatches,
    pack,
    totals,
    unpack,
)
from marft_algos.functional import kl_k3, ratio
from marft_algos.learner.heads import Heads
from marft_algos.learner.stale_turns import WeightHistory
from marft_algos.learner.steps import (
    Added,
    LocalOptimiser,
    MakeOptimiser,
    average,
    per_policy,
    rate_factor,
    read,
    summed,
)
from marft_algos.memory import Budget
from marft_algos.ranks.reduction import ReductionSlots
from marft_algos.types import Estimates, Trajectory, Transition
from marft_envs.errors import ConfigError


class Policies(Protocol):
    """What the update needs of a set of policies."""

    version: int
    """Counts updates."""

    @property
    def policies(self) -> list[str]:
        """Policy ids in a fixed order."""

    @property
    def device(self) -> torch.device:
        """Where batches go."""

    def trainable(self, policy: str) -> bool:
        """False for frozen policies."""

    def parameters(self, policy: str) -> Sequence[Tensor]:
        """Trainable tensors, fp32."""

    def shares(self, policy: str) -> bool:
        """Whether a pass computes once what several of its rows begin with."""

    def reference_logprobs(self, policy: str, input_ids: Tensor, action_mask: Tensor, temperature: Tensor) -> Tensor:
        """Log-probs [B, T-1] fp32 under the model that the policy started from; needed for ``kl_coef``."""

    def logprobs(
        self, policy: str, input_ids: Tensor, action_mask: Tensor, temperature: Tensor, *, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [B, T-1] fp32 of the sampled tokens; 0 elsewhere. Rows are right-padded."""


class Learner:
    """Owns the optimisers and runs an algorithm's hooks over an iteration's episodes.

    Args:
        algorithm: The idea; its ``config`` holds every setting of the update.
        policies: What is trained.
        critics: Value heads, or None for algorithms without.
        seed: Of the run: minibatches depend on it, the iteration, and nothing else.
        reduction: Who computes what, where several processes train; every one of them makes the same calls.
        staleness: How many updates may lie between the weights that sampled a turn and those that learn from it.
        optimiser: Makes who takes the steps of a policy: where its weights are.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        policies: Policies,
        critics: ValueHeads | None = None,
        seed: int = 0,
        reduction: ReductionSlots | None = None,
        staleness: int = 0,
        optimiser: MakeOptimiser = LocalOptimiser,
    ) -> None:
        self.algorithm, self.policies, self.seed = algorithm, policies, seed
        self.estimates = Estimates()
        """Of the last update."""
        algorithm.seed = seed
        self.config: UpdateConfig = algorithm.config
        self._needs_reference = self.config.needs_reference
        self.reduction = algorithm.reduction = reduction or ReductionSlots()
        self.pieces = Budget(self.config.micro_tokens, "tokens", "--micro-tokens", again=not self.reduction.sharded)
        self.trainable = [p for p in policies.policies if policies.trainable(p)]
        shape = self.config.adam_eps, self.config.max_grad_norm
        self.rates = per_policy(self.config.lr, self.trainable, "lr")
        self.optimizers: dict[str, Any] = {  # an Optimiser each
            p: optimiser(p, policies.parameters(p), rate, *shape) for p, rate in self.rates.items()
        }
        self.heads = Heads(critics, self.config, seed, self.reduction) if critics and algorithm.view != "none" else None
        self.staleness = staleness
        self.past = WeightHistory(policies, self.trainable, staleness)

    def update(self, trajectories: Sequence[Trajectory], iteration: int) -> dict[str, float]:
        """Runs one iteration's update. What it finds out about the turns stands in ``estimates`` afterwards.

        Args:
            trajectories: Finished episodes, sampled from the policies as they are now, or ``staleness`` updates ago;
                they stay as they are.
            iteration: From 0; fixes the minibatches.

        Returns:
            Numbers to log, ``policy/<id>/…`` for each policy.

        Raises:
            StaleError: Other weights sampled a turn than those that would learn from it.
            UpdateError: The sampler's log-probs do not match, or a gradient is not finite.
        """
        credit.validate(trajectories)
        for policy, optimizer in self.optimizers.items():
            shape = self.config.lr_warmup or 0, self.config.anneal, self.config.value_warmup
            optimizer.rate(self.rates[policy] * rate_factor(iteration, *shape))
        rows, shares = learnable(trajectories, self.trainable)
        self.estimates = estimates = Estimates(shares=shares)
        estimates.behind = behind(shares, self.policies.version, self.staleness)
        metrics = dict[str, float]()
        if self.staleness:
            metrics = self.past.measure(rows, estimates.behind, self.rescore, self.config.ratio_tolerance)
            self.past.keep(self.policies.version)
        self.algorithm.values(trajectories, self.heads, estimates)
        if self.config.old_logprobs == "learner":
            for turns in rows.values():
                rest = [t for t in turns if t not in estimates.old_logprobs]
                estimates.old_logprobs |= zip(rest, self.rescore(rest), strict=True)
        elif self.config.corrects_stale:
            for turns in rows.values():
                stale = [t for t in turns if t.reply.version != self.policies.version]
                estimates.current_logprobs |= zip(stale, self.rescore(stale) if stale else [], strict=True)
        if self._needs_reference:
            for turns in rows.values():
                rest = [t for t in turns if t not in estimates.reference_logprobs]
                estimates.reference_logprobs |= zip(rest, self.rescore(rest, reference=True), strict=True)
        if self.config.kl_reward_coef:
            learnt = [t for turns in rows.values() for t in turns]
            metrics["kl_reward"] = add_kl_penalty(learnt, estimates, self.config.kl_reward_coef)
        metrics |= self.algorithm.rule.prepare(trajectories)
        metrics |= self.algorithm.credit(trajectories, estimates)
        if iteration >= self.config.value_warmup:
            for block in self.algorithm.order(rows, estimates, iteration - self.config.value_warmup):
                for policy in block:
                    for key, value in self._fit_policy(policy, rows[policy], iteration, len(trajectories)).items():
                        metrics[f"policy/{policy}/{key}"] = value
                metrics |= self.algorithm.after_block(block, trajectories, estimates, self.rescore)
        if self.heads is not None:
            for policy in self.heads.policies:
                for key, value in self.heads.fit(policy, trajectories, estimates, iteration).items():
                    metrics[f"policy/{policy}/{key}"] = value
        estimates.features.clear()  # the largest of them, and of no use to anybody afterwards
        return metrics

    def rescore(self, rows: Sequence[Transition], *, reference: bool = False) -> list[np.ndarray]:
        """[L] log-probs of each turn's tokens under its policy as it is now (or as it started), in ``rows``' order."""
        for tokens in self.pieces.sizes(context_tokens(rows)):
            with self.pieces:
                scored = self._rescore(rows, reference=reference, tokens=tokens)
        return scored

    def _rescore(self, rows: Sequence[Transition], *, reference: bool, tokens: int) -> list[np.ndarray]:
        pieces = self._pieces(rows, tokens)

        def score(piece: Sequence[Transition]) -> list[np.ndarray]:
            batch = pack(piece, self.estimates, self.algorithm.level, self.policies.device)
            with torch.no_grad():
                policies, scored = self.policies, batch.scored
                logprobs = policies.reference_logprobs(*scored) if reference else policies.logprobs(*scored)[0]
            return unpack(logprobs, batch)

        found = chain.from_iterable(self.reduction.spread(pieces, score, passes=True))
        scored = dict(zip(chain.from_iterable(pieces), found, strict=True))
        return [scored[t] for t in rows]

    def _pieces(self, rows: Sequence[Transition], tokens: int) -> list[list[Transition]]:
        """Cuts turns into pieces of at most so many tokens, and into no fewer than there are reduction slots."""
        shared = bool(rows) and self.policies.shares(rows[0].policy)
        return micro_batches(rows, tokens, shared=shared, least=self.reduction.count)

    def state_dict(self) -> dict[str, Any]:
        """Optimisers and what the algorithm keeps."""
        return {
            "policies": {p: o.state_dict() for p, o in self.optimizers.items()},
            "critics": {p: o.state_dict() for p, o in self._value_optimizers.items()},
            "algorithm": self.algorithm.state_dict(),
            "credit": self.algorithm.rule.state_dict(),
            "value_norm": self.heads.state_dict() if self.heads is not None else {},
            "past": self.past.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``; the policies must be the same."""
        for kind, optimizers in (("policies", self.optimizers), ("critics", self._value_optimizers)):
            if set(state[kind]) != set(optimizers):
                raise ConfigError(
                    f"The checkpoint has optimisers for {kind} {sorted(state[kind])}, this run for {sorted(optimizers)}"
                    "; resume with the settings the run was started with."
                )
            for p, optimizer in optimizers.items():
                optimizer.load_state_dict(state[kind][p])
        self.algorithm.load_state_dict(state["algorithm"])
        if state.get("credit"):
            self.algorithm.rule.load_state_dict(state["credit"])
        if self.heads is not None:
            self.heads.load_state_dict(state["value_norm"])
        self.past.load_state_dict(state.get("past", {}))

    @property
    def _value_optimizers(self) -> Mapping[str, Adam]:
        return {} if self.heads is None else self.heads.optimizers

    # --- policies ---

    def _fit_policy(self, policy: str, rows: Sequence[Transition], iteration: int, episodes: int) -> dict[str, float]:
        if not rows:
            return {"rows": 0.0, "steps": 0.0}
        log: list[dict[str, float]] = []
        stopped = False
        for epoch in range(self.config.epochs):
            draws = seeds.generator(seeds.minibatches(self.seed, policy, iteration, epoch))
            for bundles in minibatches(self.algorithm.together(rows), self.config.minibatches, draws):
                part = [turn for bundle in bundles for turn in bundle]
                share = totals(part, self.estimates, episodes * len(part) / len(rows))
                prepared = self.algorithm.before_step(part, self.estimates, self.rescore)
                log.append(self._gradient(policy, part, share, first=not log) | prepared)
                limit = self.config.kl_stop
                if limit is not None and log[-1]["kl"] > limit:
                    stopped = True
                    break
                log[-1]["grad_norm"] = self.optimizers[policy].step()
            if stopped:
                break
        self.optimizers[policy].zero_grad()
        size = totals(rows, self.estimates)
        return average(log) | {
            "rows": float(size.rows),
            "tokens": float(size.tokens),
            "steps": float(sum(bool(numbers.get("grad_norm")) for numbers in log)),
            "kl_stopped": float(stopped),
        }

    def _gradient(self, policy: str, part: Sequence[Transition], size: Totals, *, first: bool) -> dict[str, float]:
        """Accumulates the gradient of one minibatch, piece by piece, smaller ones if memory runs out.

        Returns:
            The minibatch's numbers.
        """
        parameters, work = self.policies.parameters(policy), partial(self._backward, size=size, first=first)
        for tokens in self.pieces.sizes(context_tokens(part)):
            with self.pieces:
                self.optimizers[policy].zero_grad()
                done = self.reduction.gradient(parameters, self._pieces(part, tokens), work, passes=True)
                stats = summed(self.reduction.merged(read(done)))
        if not math.isfinite(stats["loss"]):
            raise UpdateError(
                f"The loss of policy '{policy}' is {stats['loss']}; lower lr, or look for inf in the rewards."
            )
        if self.algorithm.imitates:  # nobody has sampled these tokens: there is no ratio
            return {"loss": stats["loss"], "entropy": stats["entropy"], "kl": 0.0}
        if "sampler_gap" in stats:
            self._assert_on_policy(policy, stats["sampler_gap"])
        weights, squares = stats.pop("ratios"), stats.pop("squared_ratios")
        return stats | {"ess": weights**2 / (size.tokens * squares)}

    def _backward(self, piece: Sequence[Transition], size: Totals, *, first: bool) -> Added:
        """Adds a piece's gradient; returns its shares of the minibatch's numbers."""
        batch = pack(piece, self.estimates, self.algorithm.level, self.policies.device, size)
        logprobs, entropy = self.policies.logprobs(*batch.scored, entropy_grad=bool(self.config.entropy_coef))
        weighted, added = logprobs, dict[str, float | Tensor]()
        if self.config.tis_cap is not None and not self.algorithm.imitates:  # nobody sampled demonstrations
            weight = truncated_weights(batch.old_logprobs, batch.sampler_logprobs, self.config.tis_cap)
            weighted = scale_gradient(logprobs, weight)
            added["tis_weight"] = batch.mean(weight)
        loss, extra = self.algorithm.surrogate(weighted, batch)
        if self.config.entropy_coef:
            loss = loss - self.config.entropy_coef * self.algorithm.reduce(entropy, batch)
        if self.config.kl_coef:
            drift = kl_k3(batch.reference_logprobs, logprobs)
            loss = loss + self.config.kl_coef * self.algorithm.reduce(drift, batch)
            added["kl_reference"] = batch.mean(drift.detach())
        loss.backward()
        fixed = logprobs.detach()
        added |= {"loss": loss, "entropy": batch.mean(entropy.detach())}
        if not self.algorithm.imitates:
            added["kl"] = batch.mean(kl_k3(fixed, batch.old_logprobs))
            moved = torch.where(batch.mask, ratio(fixed, batch.old_logprobs), 0.0).double()
            added |= {"ratios": moved.sum(), "squared_ratios": moved.square().sum()}
        if first and batch.totals.fresh:
            added["sampler_gap"] = _sampler_gap(fixed, batch, self.estimates.behind)
        return {**added, **extra}

    def _assert_on_policy(self, policy: str, gap: float) -> None:
        """Checks that the ratio of fresh turns is 1 before the first step, while π_θ is π_old."""
        if not gap <= self.config.ratio_tolerance:  # a gap that is no number, too
            raise UpdateError(
                f"Before the first step of policy '{policy}', learner and sampler differ by {gap:.4f} per token in "
                f"log-probability (allowed: ratio_tolerance = {self.config.ratio_tolerance}): the ratio should be 1. "
                "Check that the engine publishes the current weights, samples at the recorded temperature without "
                "top-k or top-p, and sees the same prompt; in bf16, use --old-logprobs learner --ratio-tolerance 0.1."
            )


def add_kl_penalty(rows: Sequence[Transition], estimates: Estimates, coef: float) -> float:
    """Adds −β·(log π_old − log π_ref) of every token to ``penalties``.

    Returns:
        The mean of log π_old − log π_ref per token.
    """
    total = 0.0
    for t in rows:
        gap = estimates.behaviour(t) - estimates.reference_logprobs[t]
        estimates.penalties[t] = (-coef * gap).astype(np.float32)
        total += float(gap.sum())
    return total / max(sum(len(t.reply.action_ids) for t in rows), 1)


def _sampler_gap(logprobs: Tensor, batch: Any, behind: Mapping[Transition, int]) -> float:
    """Returns this batch's share of mean |log π_learner − log π_sampler| over fresh turns' tokens.

    It is the sampler's even if old was recomputed.
    """
    now = unpack(logprobs, batch)
    rows = [(x, t) for x, t in zip(now, batch.transitions, strict=True) if not behind.get(t)]
    return float(sum(np.abs(x - t.reply.logprobs).sum() for x, t in rows)) / max(batch.totals.fresh, 1)
