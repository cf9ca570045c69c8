"""Credit rules that ask what would have happened: they play branches, which cost tokens and are counted.

Their reward of a turn is a whole return (a chain without successors): it is compared with what else could have
been there, so nothing that came later is to be added. A baseline of an algorithm may still be taken off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, ClassVar

import numpy as np

from marft_algos import seeds
from marft_algos.batching import has_loss
from marft_algos.credit import formulas
from marft_algos.credit.branches import Ablation, Branch, BranchReplayer
from marft_algos.credit.recorded import outcome, team_outcome
from marft_algos.credit.rewards import Relation, ReturnChain, Rule, register
from marft_algos.ranges import COUNT, NOT_NEGATIVE, Settings
from marft_algos.types import Keep, Need, Trajectory, Transition
from marft_envs.errors import ConfigError

EXACT = 6
"""Players up to whom all 2^n coalitions are played; beyond, orders are drawn."""


class _Replayed(Rule):
    needs: ClassVar[frozenset[Need]] = frozenset({"branches"})
    chains: ClassVar[frozenset[Relation]] = frozenset({"team", "agent"})

    def __call__(self, trajectory: Trajectory) -> ReturnChain:
        """Rewards turns with what the replays credited them with."""
        if len(trajectory.replayed) != len(trajectory.transitions):
            raise ConfigError(
                f"Credit rule '{self.name}' has played no branches of episode {trajectory.number}. Call rule.replay "
                "on collected episodes first, as the trainer does."
            )
        return ReturnChain.of_returns(trajectory.replayed)


def siblings(
    trajectory: Trajectory, t: Transition, replayer: BranchReplayer, samples: Sequence[int], sample: int = 0
) -> list[Branch]:
    """Makes branches in which turn t is drawn anew and everything else is as it was, as far as it can be.

    Args:
        trajectory: The episode.
        t: Whose reply is drawn.
        replayer: Has the state before t's layer.
        samples: Numbers of the samples, one branch each.
        sample: Number of the sample at later turns; 0: the episode's own random numbers.
    """
    start = replayer.state(trajectory, t.layer)
    beside = {k: trajectory.transitions[k].turn.text for k in trajectory.layers[t.layer].turns if k != t.index}
    return [Branch(start, trajectory.number, beside, {t.index: j}, sample) for j in samples]


@register("counterfactual")
@dataclass(frozen=True)
class Counterfactual(Settings, _Replayed):
    """R − mean of R over replies drawn in a turn's place, from the frozen state at that decision (C3, 2603.06859).

    Later agents answer their changed prompts anew. Trained turns only; others get 0.
    """

    keep: ClassVar[Keep] = "decisions"
    samples: Annotated[int, COUNT] = 4
    """Replies drawn in place of each turn: each costs the rest of an episode."""

    def replay(self, trajectories: Sequence[Trajectory], replayer: BranchReplayer, iteration: int) -> list[Trajectory]:
        """Plays the siblings of every trained turn."""
        places = [(d, t) for d in trajectories for t in d.transitions if has_loss(t)]
        branches = [b for d, t in places for b in siblings(d, t, replayer, range(1, self.samples + 1))]
        played = replayer.play(branches, iteration)
        credits = {d: [0.0] * len(d.transitions) for d in trajectories}
        for i, (d, t) in enumerate(places):
            others = [outcome(b, t.agent) for b in played[i * self.samples : (i + 1) * self.samples] if b is not None]
            if others:
                credits[d][t.index] = outcome(d, t.agent) - sum(others) / len(others)
        return [dataclasses.replace(d, replayed=credits[d]) for d in trajectories]


@register("blame")
@dataclass(frozen=True)
class BlameCredit(Settings, _Replayed):
    """V(earlier layers and the turn) − V(earlier layers), V the mean of R over continuations: minus a turn's blame.

    On both sides all that follows is drawn anew, so luck in it is no part of the credit. Where each layer has one turn,
    it is VinePPO's advantage (arXiv 2410.01679): what is played on from after a turn is played on from before the next.
    """

    keep: ClassVar[Keep] = "decisions"
    samples: Annotated[int, COUNT] = 4
    """Continuations before and after each turn: each costs the rest of an episode."""
    failures: Annotated[int, NOT_NEGATIVE] = 0
    """Ask about every policy's turns, hosted ones' too, but in so many episodes without success alone (of each chunk,
    where an iteration is played in chunks); 0: about the turns that are learnt from."""

    def replay(self, trajectories: Sequence[Trajectory], replayer: BranchReplayer, iteration: int) -> list[Trajectory]:
        """Plays on from before and after every turn, with the same random numbers."""
        failed = [d for d in trajectories if not d.success][: self.failures]
        asked = [(d, t) for d in failed for t in d.transitions if t.policy]
        if not self.failures:
            asked = [(d, t) for d in trajectories for t in d.transitions if has_loss(t)]
        earlier = {t: frozenset(u.index for u in d.transitions if u.layer < t.layer) for d, t in asked}
        starts = dict[tuple[Trajectory, frozenset[int]], Branch]()
        for d, t in asked:
            state = replayer.state(d, None if self.failures else t.layer)
            for given in (earlier[t], earlier[t] | {t.index}):
                starts[d, given] = Branch(state, d.number, {i: d.transitions[i].turn.text for i in given})
        branches = [dataclasses.replace(b, sample=j) for b in starts.values() for j in range(1, self.samples + 1)]
        played = iter(replayer.play(branches, iteration))
        ends = {at: [b for b in islice(played, self.samples) if b is not None] for at in starts}
        credits = {d: [0.0] * len(d.transitions) for d in trajectories}
        for d, t in asked:
            after, before = ends[d, earlier[t] | {t.index}], ends[d, earlier[t]]
            if after and before:
                v_after, v = (sum(outcome(b, t.agent) for b in some) / len(some) for some in (after, before))
                credits[d][t.index] = v_after - v
        return [dataclasses.replace(d, replayed=credits[d]) for d in trajectories]


@dataclass(frozen=True)
class _Game(Settings, _Replayed):
    """Rules on the game v(S): what the team earns from the episode's start when only the agents in S play."""

    keep: ClassVar[Keep] = "start"
    absence: Ablation = "silent"
    """What an absent agent does: ``silent``: it says the empty text; ``start``: it says what the policy that it
    started from would, drawn with the same random numbers."""

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """Returns ``start`` too (the start's weights) if absent agents play with them."""
        return frozenset({"branches", "start"} if self.absence == "start" else {"branches"})

    def _played(self, players: Sequence[str], rng: np.random.Generator) -> list[frozenset[str]]:
        """Returns the coalitions that ``_shares`` looks at; that of all players is the episode itself."""
        raise NotImplementedError

    def _shares(self, players: Sequence[str], value: formulas.Value, rng: np.random.Generator) -> dict[str, float]:
        raise NotImplementedError

    def _draws(self, replayer: BranchReplayer, iteration: int, trajectory: Trajectory) -> np.random.Generator:
        return seeds.generator(seeds.coalitions(replayer.seed, iteration, trajectory.number))

    def replay(self, trajectories: Sequence[Trajectory], replayer: BranchReplayer, iteration: int) -> list[Trajectory]:
        """Plays the coalitions of every episode. An episode of which one failed credits nobody."""
        jobs: list[tuple[Trajectory, list[str], list[frozenset[str]]]] = []
        branches: list[Branch] = []
        for d in trajectories:
            players = sorted({t.agent for t in d.transitions if t.policy})
            rng = self._draws(replayer, iteration, d)
            wanted = [c for c in self._played(players, rng) if len(c) < len(players)]
            jobs.append((d, players, wanted))
            start = replayer.state(d)
            everybody = frozenset(players)
            branches += [Branch(start, d.number, absent=everybody - c, absence=self.absence) for c in wanted]
        played, credits = iter(replayer.play(branches, iteration)), []
        for d, players, wanted in jobs:
            results = [next(played) for _ in wanted]
            shares = dict.fromkeys(players, 0.0)
            if None not in results:
                value = {c: team_outcome(b) for c, b in zip(wanted, results, strict=True) if b is not None}
                value[frozenset(players)] = team_outcome(d)
                shares = self._shares(players, value, self._draws(replayer, iteration, d))
            credits.append(dataclasses.replace(d, replayed=[shares.get(t.agent, 0.0) for t in d.transitions]))
        return credits


@register("leave_one_out")
class LeaveOneOut(_Game):
    """v(all) − v(all but i): what the team loses without the agent."""

    def _played(self, players: Sequence[str], rng: np.random.Generator) -> list[frozenset[str]]:
        return [frozenset(players) - {i} for i in players]

    def _shares(self, players: Sequence[str], value: formulas.Value, rng: np.random.Generator) -> dict[str, float]:
        everybody = frozenset(players)
        return {i: value[everybody] - value[everybody - {i}] for i in players}


@register("shapley")
@dataclass(frozen=True)
class Shapley(_Game):
    """The Shapley value of an agent: its mean marginal worth over all orders in which the team could form.

    Exact up to six agents; beyond that over drawn orders.
    """

    orders: Annotated[int, COUNT] = 16
    """Orders drawn for teams of more than six, in pairs of an order and its reverse."""

    def _drawn(self, players: Sequence[str], rng: np.random.Generator) -> list[tuple[str, ...]]:
        return formulas.orders(players, self.orders, rng)

    def _played(self, players: Sequence[str], rng: np.random.Generator) -> list[frozenset[str]]:
        if len(players) <= EXACT:
            return formulas.coalitions(players)
        return list(dict.fromkeys(c for order in self._drawn(players, rng) for c in formulas.prefixes(order)))

    def _shares(self, players: Sequence[str], value: formulas.Value, rng: np.random.Generator) -> dict[str, float]:
        if len(players) <= EXACT:
            return formulas.shapley(players, value)
        return formulas.shapley_of(self._drawn(players, rng), value)
