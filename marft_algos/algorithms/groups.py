"""Computes statistics of groups of episodes, importance weights and baselines, for methods without a critic.

A group is several episodes of one start, each with one score; a key tells which entries belong together. Credit
works on numpy arrays in float64, and no result depends on the order of the entries; losses work on torch tensors.
Sources: GRPO (arXiv 2402.03300), RLOO (2402.14740), DAPO (2503.14476), TreeRL (2506.11902), MARS² (2604.14564).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from marft_algos.functional import LOG_RATIO_LIMIT, MIN_STD, Array
from marft_algos.lazy import Tensor
from marft_algos.types import Trajectory

Node = tuple[int, ...]
"""Of a tree."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The statistics of each group, spread back over its entries."""

    mean: Array
    """[N]."""
    std: Array
    """[N]; 0 where a group has no more than ``ddof`` entries."""
    size: Array
    """[N] entries of the group."""

    @property
    def count(self) -> int:
        """Returns the number of groups."""
        return round(float((1.0 / self.size).sum()))

    def log(self) -> dict[str, float]:
        """Returns what an algorithm reports of its groups."""
        weights = 1.0 / self.size
        return {
            "group_std": float((weights * self.std).sum() / max(weights.sum(), 1.0)),
            "group_flat": self.flat / max(self.count, 1),
        }

    @property
    def flat(self) -> int:
        """Returns which groups have equal scores: they give no gradient."""
        return round(float((1.0 / self.size)[self.std < MIN_STD].sum()))


def statistics(scores: Sequence[float] | Array, keys: Sequence[Hashable], ddof: int = 0) -> Groups:
    """Computes mean, σ and size of the groups that equal ``keys`` make.

    Args:
        scores: [N].
        keys: [N].
        ddof: What σ's denominator is less than the number of entries; 1 is the unbiased variance.
    """
    x = np.asarray(scores, dtype=np.float64)
    mean, std, size = np.zeros_like(x), np.zeros_like(x), np.ones_like(x)
    members: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        members.setdefault(key, []).append(i)
    for indices in members.values():
        # Sorted: sums in another order would differ in their last bits.
        part = np.sort(x[indices])
        equal = part[0] == part[-1]
        mean[indices], size[indices] = part[0] if equal else part.mean(), len(indices)
        std[indices] = 0.0 if equal or len(indices) <= ddof else part.std(ddof=ddof)
    return Groups(mean, std, size)


def shape(paths: Sequence[Sequence[Node]], scores: Sequence[float], local: float, siblings: float) -> dict[Node, float]:
    """Computes r of every node but the roots: V + γ·(V − (1 − λ)·V(parent) − λ·mean V(siblings)).

    Args:
        paths: Of each leaf, from its root.
        scores: Of each leaf.
        local: γ.
        siblings: λ; the parent stands for the siblings of an only child.
    """
    passed = [(node, score) for path, score in zip(paths, scores, strict=True) for node in path]
    nodes = [node for node, _ in passed]
    value = dict(zip(nodes, statistics([score for _, score in passed], nodes).mean, strict=True))
    parents = {node: before for path in paths for before, node in pairwise(path)}
    children: dict[Node, list[Node]] = {}
    for node, parent in parents.items():
        children.setdefault(parent, []).append(node)
    shaped = {}
    for node, parent in parents.items():
        others = sorted(value[other] for other in children[parent] if other != node)
        beside = np.mean(others) if others else value[parent]
        gain = value[node] - (1.0 - siblings) * value[parent] - siblings * beside
        shaped[node] = float(value[node] + local * gain)
    return shaped


def positions(trajectory: Trajectory) -> list[tuple[str, int]]:
    """Names each turn of an episode: its agent, and how many turns that agent had before."""
    times: Counter[str] = Counter()
    names = list[tuple[str, int]]()
    for t in trajectory.transitions:
        names.append((t.agent, times[t.agent]))
        times[t.agent] += 1
    return names


def leave_one_out(scores: Sequence[float] | Array, groups: Groups) -> Array:
    """Computes R_j − mean of the group's other scores = (R_j − μ)·k/(k − 1), [N]; 0 for an only one."""
    others = np.maximum(groups.size - 1.0, 1.0)
    return np.asarray((np.asarray(scores, dtype=np.float64) - groups.mean) * groups.size / others)


def overlong(length: int, limit: int, cache: float) -> float:
    """Computes DAPO's penalty of long texts (eq. 13).

    0 up to ``limit − cache`` tokens, then in a straight line to −1 at ``limit``; −1 beyond.
    """
    if cache <= 0:
        return 0.0 if length <= limit else -1.0
    return float(min(max(((limit - cache) - length) / cache, -1.0), 0.0))


def decayed(old: float, scores: Sequence[float], decay: float) -> float:
    """Returns a running mean after these scores: d^N·old + (1 − d^N)·mean.

    It forgets as fast as one step old ← d·old + (1 − d)·R per score does, in no order.
    """
    if not len(scores):
        return old
    weight = decay ** len(scores)
    return weight * old + (1.0 - weight) * float(np.sort(np.asarray(scores, dtype=np.float64)).mean())


def truncated_weights(learner: Tensor, sampler: Tensor, cap: float) -> Tensor:
    """Computes min(π_learner/π_sampler, C) of each token, without a gradient; 1 where both log-probs are 0."""
    delta = (learner - sampler).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return delta.exp().clamp(max=cap)


def scale_gradient(x: Tensor, factor: Tensor) -> Tensor:
    """Returns x, its gradient times ``factor``: weighs every token's loss, whatever function of x the loss is."""
    fixed = x.detach()
    return fixed + factor * (x - fixed)
