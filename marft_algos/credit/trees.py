"""Grows trees of turns: plays branches of episodes, branches of these, and keeps all of them to learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from marft_algos import seeds
from marft_algos.batching import has_loss
from marft_algos.credit.branches import Branch, BranchReplayer, States
from marft_algos.credit.rewards import Rewards, Rule, broadcast, team_score
from marft_algos.types import Keep, Need, Trajectory, Transition

if TYPE_CHECKING:
    from marft_envs.core.env import FlexEnv

Place = tuple[int, int]
"""(leaf, layer): the state before this layer of the leaf's own."""
Expand = Literal["uncertain", "first", "random"]
"""Which states are expanded: where the layer that was drawn was least likely, the earliest, or drawn by a seed."""


@dataclass(slots=True)
class _Tree:
    """An episode and its branches; leaf 0 is the episode."""

    episode: Trajectory
    states: dict[Place, FlexEnv]
    """Not yet expanded."""
    turns: list[Transition] = field(default_factory=list)
    leaves: list[tuple[int, int, float]] = field(default_factory=list)
    drawn: int = 0

    def branch(self, place: Place) -> Branch:
        """Returns a branch to play, with random numbers of its own."""
        self.drawn += 1
        return Branch(self.states[place], self.episode.number, sample=self.drawn)

    def add(self, branch: Trajectory, place: Place, states: Mapping[int, FlexEnv]) -> None:
        """Adds a branch that was drawn at a place."""
        leaf, layer = len(self.leaves) + 1, place[1]
        self.leaves.append((*place, team_score(branch, broadcast(branch))))
        turns = [replace(t, leaf=leaf) for t in branch.transitions if t.layer >= layer]
        self.turns += turns
        self.states |= {(leaf, k): states[k] for k in _decided(turns) if k in states and k > layer}

    def surprise(self, place: Place) -> float:
        """Returns the mean −log π of the tokens that were drawn there."""
        turns = [t for t in (*self.episode.transitions, *self.turns) if (t.leaf, t.layer) == place and has_loss(t)]
        return -float(np.concatenate([t.reply.logprobs for t in turns]).mean())


@dataclass(frozen=True)
class TreeGrowth(Rule):
    """Leaves rewards where they fall; its replays are the branches of trees."""

    name = "tree"
    needs: ClassVar[frozenset[Need]] = frozenset({"branches"})
    width: int
    """Layers drawn at an expanded state, the first included."""
    expansions: int
    """States of an episode's tree that are expanded in a round."""
    rounds: int
    expand: Expand

    @property
    def keep(self) -> Keep:  # type: ignore[override]
        """Returns which states are kept: those before decisions, unless nothing branches."""
        return "decisions" if self.width > 1 else "nothing"

    def __call__(self, trajectory: Trajectory) -> Rewards:
        """Leaves rewards as the record has them."""
        return broadcast(trajectory)

    def replay(self, trajectories: Sequence[Trajectory], replayer: BranchReplayer, iteration: int) -> list[Trajectory]:
        """Grows every episode's tree; returns the episodes with the turns of its branches as ``candidates``."""
        if self.width == 1:
            return list(trajectories)
        trees = [
            _Tree(d, {(0, k): replayer.state(d, k) for k in sorted(_decided(d.transitions))}) for d in trajectories
        ]
        for number in range(1, self.rounds + 1):
            chosen = [(tree, place) for tree in trees for place in self._chosen(tree, replayer.seed, iteration, number)]
            places = [place for place in chosen for _ in range(self.width - 1)]
            branches = [tree.branch(place) for tree, place in places]
            states: States | None = {} if number < self.rounds else None
            played = replayer.play(branches, iteration, states, learnt=True)
            for tree, place in chosen:
                del tree.states[place]
            for i, ((tree, place), branch) in enumerate(zip(places, played, strict=True)):
                if branch is not None:
                    tree.add(branch, place, (states or {}).get(i, {}))
        return [replace(tree.episode, candidates=tree.turns, leaves=tree.leaves) for tree in trees]

    def _chosen(self, tree: _Tree, seed: int, iteration: int, number: int) -> list[Place]:
        """Returns the states to expand in this round."""
        places = sorted(tree.states, key=lambda place: (place[1], place[0]))
        if self.expand == "uncertain":
            places.sort(key=tree.surprise, reverse=True)
        if self.expand == "random":
            rng = seeds.generator(seeds.expansions(seed, iteration, tree.episode.number, number))
            places = [places[i] for i in rng.permutation(len(places))]
        return places[: self.expansions]


def _decided(turns: Sequence[Transition]) -> set[int]:
    """Returns the layers in which somebody is trained."""
    return {t.layer for t in turns if has_loss(t)}
