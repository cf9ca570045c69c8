"""The value heads in an update: what they see of turns, and their fit to the returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Adam

from marft_algos import seeds
from marft_algos.algorithms.base import UpdateConfig, ValueHeads
from marft_algos.batching import minibatches, value_batches
from marft_algos.functional import MIN_STD, Array, Reals, value_loss
from marft_algos.learner.steps import average, step
from marft_algos.ranks.reduction import ReductionSlots
from marft_algos.types import Estimates, FloatArray, Trajectory, Transition


class Heads:
    """Reads V of turns, and fits the heads.

    A turn stays in one reduction slot from its features to the gradient: features, the largest of all, stay on the rank
    that computed them.

    With ``value_norm``, targets are normalised (ValueNorm of MAPPO, arXiv 2103.01955): heads predict (V − μ)/σ of
    returns, with one running mean and variance per policy. Everything outside sees values in the rewards' units, and so
    do the loss's clip and Huber's δ. A head whose targets have not been seen yet is taken as it is.

    Args:
        critics: The value heads.
        config: Settings of the update.
        seed: Of the run: minibatches depend on it.
        reduction: Who computes what.
    """

    def __init__(self, critics: ValueHeads, config: UpdateConfig, seed: int, reduction: ReductionSlots) -> None:
        self._critics, beta = critics, config.value_norm
        self._norms = {} if beta is None else {policy: ValueNorm(beta) for policy in critics.policies}
        self._config, self._seed, self._reduction = config, seed, reduction
        self._scores = config.needs_reference or config.critic_features == "policy"
        self.optimizers = {
            p: Adam(critics.parameters(p), lr=config.critic_lr, eps=config.adam_eps, fused=True)
            for p in critics.policies
        }
        self._slot: dict[Transition, int] = {}

    @property
    def policies(self) -> list[str]:
        """Policies that have a head."""
        return self._critics.policies

    def read(self, turns: Sequence[Transition], estimates: Estimates, *, view: Any, level: Any) -> None:
        """Fills ``values`` of turns at their decision points, and ``features``, of those that this rank has read.

        Where a reference is wanted, and the pass that reads the features gives its log-probs, it fills these too; of
        the policies' own features the old log-probs.

        Args:
            turns: Of policies that have a head; each with a prompt; episode by episode.
            estimates: Of the update.
            view: Which observation the critic sees.
            level: Of the values.
        """
        places = {t: i for i, t in enumerate(turns)}
        episode, last, self._slot = -1, -1, {}
        for t in turns:  # an episode's in one slot: what an agent reads in it extends what it has read
            episode += t.index <= last or episode < 0
            last, self._slot[t] = t.index, self._reduction.of(episode)
        found: dict[int, tuple[FloatArray, FloatArray | None]] = {}
        scored: dict[Transition, Tensor] | None = {} if self._scores else None
        for slot in self._reduction.mine:
            mine = [t for t in turns if self._slot[t] == slot]
            # Without a turn, too: where a base is sharded, all ranks run the same passes over it.
            estimates.features |= self._critics.featurise(mine, view=view, level=level, logprobs=scored)
            for policy in self.policies:
                rows = [t for t in mine if t.policy == policy]
                values = zip(self._values(policy, rows, estimates), _on_host(rows, scored or {}), strict=True)
                found |= zip((places[t] for t in rows), values, strict=True)
        own = self._config.critic_features == "policy"
        known = estimates.old_logprobs if own else estimates.reference_logprobs
        for t, (value, logprobs) in zip(turns, self._reduction.merged(found), strict=True):
            estimates.values[t] = value
            if logprobs is not None:
                known[t] = logprobs

    def fit(
        self, policy: str, trajectories: Sequence[Trajectory], estimates: Estimates, iteration: int
    ) -> dict[str, float]:
        """Fits one head to the returns of its policy's turns: frozen agents' too, whose values others build on."""
        turns = chain.from_iterable(trajectory.transitions for trajectory in trajectories)
        if not (rows := [t for t in turns if t.policy == policy and t in self._slot]):
            return {}
        config, losses = self._config, list[dict[int, Tensor]]()
        targets = np.concatenate([estimates.returns[t] for t in rows])
        if policy in self._norms:  # once an iteration, before the fit
            self._norms[policy].update(targets)
        for epoch in range(config.critic_epochs):
            draws = seeds.generator(seeds.minibatches(self._seed, policy, iteration, epoch, critic=True))
            for part in minibatches(rows, config.critic_minibatches, draws):
                losses.append(self._step(policy, part, estimates))
        predicted = np.concatenate([estimates.values[t] for t in rows])
        explained = explained_variance(targets, predicted)
        log = [{"value_loss": loss} for loss in self._summed(losses)]
        return average(log) | ({} if math.isnan(explained) else {"explained_variance": explained})

    def state_dict(self) -> dict[str, Any]:
        """Returns the running statistics of normalised targets."""
        return {policy: norm.state_dict() for policy, norm in self._norms.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""
        for policy in self._norms.keys() & state.keys():
            self._norms[policy].load_state_dict(state[policy])

    def _predicted(self, policy: str, features: Tensor) -> Tensor:
        """[N, d] -> [N] fp32, in the rewards' units."""
        values = self._critics.values(policy, features)
        if policy not in self._norms:
            return values
        mean, std = self._norms[policy].statistics
        return values * std + mean

    def _values(self, policy: str, rows: Sequence[Transition], estimates: Estimates) -> list[FloatArray]:
        if not rows:
            return []
        features = [torch.as_tensor(estimates.features[t]) for t in rows]
        with torch.no_grad():
            flat = self._predicted(policy, torch.cat(features).to(self._critics.device))
        parts = torch.split(flat.float().cpu(), [len(x) for x in features])
        return [part.numpy().astype(np.float32) for part in parts]

    def _step(self, policy: str, part: Sequence[Transition], estimates: Estimates) -> dict[int, Tensor]:
        """Takes one step; returns the shares of its loss, by reduction slot."""
        points = sum(len(estimates.returns[t]) for t in part)

        def work(turns: Sequence[Transition]) -> Tensor:
            losses, own = list[Tensor](), sum(len(estimates.returns[t]) for t in turns)
            for batch, share in value_batches(turns, estimates, self._critics.device):
                values, config = self._predicted(policy, batch.features), self._config
                loss = value_loss(values, batch.returns, batch.values, config.value_clip, config.huber_delta).mean()
                weight = share * (own / points)
                (loss * weight).backward()
                losses.append(loss.detach() * weight)
            return torch.stack(losses).sum()

        # One piece a slot, at the number that leads there: turns are where their features are.
        pieces = [[t for t in part if self._slot[t] == self._reduction.of(i)] for i in range(self._reduction.count)]
        optimizer, parameters = self.optimizers[policy], self._critics.parameters(policy)
        optimizer.zero_grad(set_to_none=True)
        losses = self._reduction.gradient(parameters, pieces, lambda turns: work(turns) if turns else None)
        step(optimizer, f"{policy} (value head)", self._config.max_grad_norm)
        return {number: loss for number, loss in losses.items() if loss is not None}

    def _summed(self, steps: Sequence[Mapping[int, Tensor]]) -> list[float]:
        """Returns each step's loss, summed over the reduction slots of all ranks; the host waits once."""
        places = [(i, number) for i, losses in enumerate(steps) for number in losses]
        read = torch.stack([steps[i][number] for i, number in places]).tolist() if places else []
        found = [*chain.from_iterable(self._reduction.group.gather(list(zip(places, read, strict=True))))]
        sums = [0.0] * len(steps)
        for (i, _), loss in sorted(found):
            sums[i] += loss
        return sums


def _on_host(rows: Sequence[Transition], found: Mapping[Transition, Tensor]) -> list[FloatArray | None]:
    """Returns what was found of each turn, in one transfer."""
    parts = [found[t] for t in rows if t in found]
    read = iter(torch.cat(parts).cpu().split(list(map(len, parts))) if parts else ())
    return [next(read).numpy() if t in found else None for t in rows]


class ValueNorm:
    """Debiased running mean and variance of value targets (MAPPO, arXiv 2103.01955).

    Until the first ``update`` it is the identity: statistics of nothing must not scale anything.
    """

    def __init__(self, beta: float = 0.99999) -> None:
        self.beta = beta
        self.mean = self.square = self.weight = 0.0

    def update(self, targets: Reals) -> None:
        """Takes in one batch of targets."""
        batch = np.asarray(targets, dtype=np.float64)
        if batch.size == 0:
            return
        self.mean = self.beta * self.mean + (1.0 - self.beta) * float(batch.mean())
        self.square = self.beta * self.square + (1.0 - self.beta) * float(np.square(batch).mean())
        self.weight = self.beta * self.weight + (1.0 - self.beta)

    @property
    def statistics(self) -> tuple[float, float]:
        """Mean and standard deviation; (0, 1) before any update."""
        if self.weight == 0.0:
            return 0.0, 1.0
        mean = self.mean / self.weight
        variance = max(self.square / self.weight - mean * mean, 0.0)
        return mean, max(math.sqrt(variance), MIN_STD)

    def normalize(self, x: Reals) -> Array:
        """(x − mean)/σ."""
        mean, std = self.statistics
        return (np.asarray(x, dtype=np.float64) - mean) / std

    def state_dict(self) -> dict[str, float]:
        """Returns the three running sums."""
        return {"mean": self.mean, "square": self.square, "weight": self.weight}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restores ``state_dict``."""
        self.mean, self.square, self.weight = state["mean"], state["square"], state["weight"]


def explained_variance(returns: Reals, values: Reals) -> float:
    """1 − Var(G − V)/Var(G); NaN when the returns do not vary."""
    spread = float(np.var(returns))
    return 1.0 - float(np.var(np.asarray(returns) - np.asarray(values))) / spread if spread > 0 else math.nan
