"""TreeRL: trees of turns, of which every branch is learnt from; advantages along paths (arXiv 2506.11902).

    V(s)  = mean return of the leaves below s,   root = the start, of all episodes of a group
    r(s)  = V(s) + γ·(V(s) − (1 − λ)·V(parent) − λ·mean V(siblings))
    A     = (r − V(root))/(σ + ε_σ),   σ over the leaves of the start
    loss as GRPO's, over all turns of the tree, each once

A node is the state after a layer of turns, and all turns of that layer have its advantage. γ = 1 and λ = 0 are TreeRL's
global and local advantage, V(s) − V(root) + V(s) − V(parent); λ > 0 adds the siblings (tree-consistent shaping of
MARS², arXiv 2604.14564). With one reply a state (``width`` 1) and γ = 0 it is GRPO, to the bit.

Trees are grown as EPTree and Tree-GRPO (arXiv 2509.21240) do: whole episodes first, then ``rounds`` times
``expansions`` states of each of them, where width − 1 other layers are drawn; each is played to its end and rewarded.

Departures. The paper trains whole paths, so that a turn comes as often as there are leaves below it, and divides its
advantage by the root of their number; here a turn is trained once, with its advantage whole. Branches begin at turns
and not at tokens; the uncertainty of a layer is the mean −log π of its tokens. σ is GRPO's; the paper has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from marft_algos.algorithms import groups
from marft_algos.algorithms.base import GroupConfig, Need, register
from marft_algos.algorithms.grpo import GRPO, GRPOConfig
from marft_algos.credit.trees import Expand, TreeGrowth
from marft_algos.ranges import COUNT, NOT_NEGATIVE, SHARE
from marft_algos.types import Estimates, SamplingParams, Trajectory

Path = list[groups.Node]
"""The root, (group,), and the nodes (episode, leaf, layer) down to a leaf."""


@dataclass(frozen=True)
class TreeRLConfig(GRPOConfig):
    """Settings of TreeRL; those it shares with GRPO and every algorithm are inherited."""

    width: Annotated[int, COUNT] = 3
    """Layers drawn at an expanded state, the first included; 1: chains. The paper's T = 2 further ones."""
    expansions: Annotated[int, COUNT] = 2
    """N: states of an episode's tree that are expanded in a round. The paper's."""
    rounds: Annotated[int, COUNT] = 1
    """L: how often; from the second on, states of branches may be expanded, too. The paper's."""
    expand: Expand = "uncertain"
    """Which states: where the layer that was drawn was least likely (the paper's), the earliest, or any."""
    local: Annotated[float, NOT_NEGATIVE] = 1.0
    """γ: weight of what a node gains on its parent and siblings beside what it gains on the start."""
    siblings: Annotated[float, SHARE] = 0.0
    """λ: how much of that is gained on the siblings; 0: TreeRL, MARS² mixes both."""
    group_size: Annotated[int, COUNT] = 4
    """M: trees of each start, which share its root; 6 in the paper."""
    kl_coef: Annotated[float, NOT_NEGATIVE] = 0.0
    """Weight of the KL to the weights that the run began with. Off, as in later work on GRPO."""


@register("treerl")
class TreeRL(GRPO):
    """Trees of turns, all learnt from."""

    Config: ClassVar[type[GroupConfig]] = TreeRLConfig
    config: TreeRLConfig
    needs: ClassVar[frozenset[Need]] = frozenset({"branches"})

    def __init__(self, config: TreeRLConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.rule = TreeGrowth(self.config.width, self.config.expansions, self.config.rounds, self.config.expand)

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Gives every turn of a tree the advantage of the node that it leads to."""
        scored = zip(trajectories, self.scores(trajectories, estimates), strict=True)
        leaves = [leaf for d, score in scored for leaf in _leaves(d, float(score), estimates)]
        if not leaves:
            return {}
        scores = [score for _, score in leaves]
        stats = groups.statistics(scores, [path[0] for path, _ in leaves], self.config.std_ddof)
        baseline = {path[0]: (m, s) for (path, _), m, s in zip(leaves, stats.mean, stats.std, strict=True)}
        shaped = groups.shape([path for path, _ in leaves], scores, self.config.local, self.config.siblings)
        for d in trajectories:
            mean, std = baseline[d.group,]
            for t in (*d.transitions, *d.candidates):
                advantage = (shaped[d.number, t.leaf, t.layer] - mean) / (std + self.config.std_eps)
                estimates.advantages[t] = np.array([advantage], dtype=np.float32)
        return stats.log() | {"tree_leaves": len(leaves) / len(trajectories)}


def _leaves(d: Trajectory, score: float, estimates: Estimates) -> list[tuple[Path, float]]:
    """Returns the path to every leaf of an episode's tree, and the leaf's reward, a KL penalty included."""
    ends, charged = dict[int, int](), dict[groups.Node, float]()
    for t in (*d.transitions, *d.candidates):
        ends[t.leaf] = max(ends.get(t.leaf, 0), t.layer + 1)
        if (charge := estimates.penalties.get(t)) is not None:
            node = (d.number, t.leaf, t.layer)
            charged[node] = charged.get(node, 0.0) + float(charge.sum())
    leaves: list[tuple[Path, float]] = [([(d.group,), *((d.number, 0, k) for k in range(ends.get(0, 0)))], score)]
    for leaf, (parent, layer, paid) in enumerate(d.leaves, 1):
        own = [(d.number, leaf, k) for k in range(layer, ends.get(leaf, layer))]
        path = [*leaves[parent][0][: layer + 1], *own]
        leaves.append((path, paid + sum(charged.get(node, 0.0) for node in path)))
    return leaves
