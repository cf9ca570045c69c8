"""Replays turns, and compares what they were worth with what they were credited with.

For a turn k, ``SAMPLES`` branches go on from its own reply with fresh random numbers, and as many from replies drawn
anew. Neither shares a random number with the episode, so a rule's estimate and the judgement have no noise in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marft_algos.batching import has_loss
from marft_algos.credit.branches import Branch, BranchReplayer
from marft_algos.credit.formulas import spearman
from marft_algos.credit.recorded import outcome
from marft_algos.credit.replayed import siblings
from marft_algos.types import Estimates, Trajectory

SAMPLES = 8
"""Branches of each kind per turn."""
_FIRST = 1 << 20
"""Number of the first sample: no credit rule draws so many."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One turn, and what the replays say about it."""

    episode: int
    """Its number."""
    index: int
    """Of the turn among those of the episode."""
    agent: str
    credit: float
    """Mean outcome of its own reply minus that of the replies drawn in its place."""
    variance_given_reply: float
    """Variance of the outcome after the turn's reply: what others and chance did."""
    variance: float
    """Variance of the outcome over replies at its state."""


def judge(trajectories: Sequence[Trajectory], replayer: BranchReplayer, iteration: int) -> list[Judged]:
    """Replays every trained turn of these episodes, at the weights that they were sampled with."""
    places = [(d, t) for d in trajectories for t in d.transitions if has_loss(t)]
    branches: list[Branch] = []
    for d, t in places:
        for j in range(_FIRST, _FIRST + SAMPLES):
            (drawn,) = siblings(d, t, replayer, [j + SAMPLES], j + SAMPLES)
            repeated = Branch(drawn.start, d.number, {**drawn.texts, t.index: t.turn.text}, sample=j)
            branches += [repeated, drawn]
    played = replayer.play(branches, iteration)
    judged = []
    for i, (d, t) in enumerate(places):
        rows = played[2 * SAMPLES * i : 2 * SAMPLES * (i + 1)]
        repeated_outcomes, drawn_outcomes = (
            np.array([outcome(b, t.agent) for b in part if b is not None]) for part in (rows[::2], rows[1::2])
        )
        if len(repeated_outcomes) > 1 and len(drawn_outcomes) > 1:
            judged.append(
                Judged(
                    d.number,
                    t.index,
                    t.agent,
                    float(repeated_outcomes.mean() - drawn_outcomes.mean()),
                    float(repeated_outcomes.var(ddof=1)),
                    float(drawn_outcomes.var(ddof=1)),
                )
            )
    return judged


def metrics(judged: Sequence[Judged], trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
    """Returns numbers to log once the turns have advantages.

    Args:
        judged: Turns, as ``judge`` has returned them.
        trajectories: Their episodes, among others.
        estimates: Of the turns of ``trajectories``.

    Returns:
        ``rank_correlation``: Spearman's, of a turn's mean advantage with its replayed credit; absent if either is
        constant. ``context_variance``: mean variance of the outcome over replies at one state. ``influence/AGENT``: the
        share of that variance which goes back to what the agent said: 1 − E[own]/E[all], at least 0.
    """
    turns = {(d.number, t.index): t for d in trajectories for t in d.transitions if t in estimates.advantages}
    rows = [j for j in judged if (j.episode, j.index) in turns]
    if not rows:
        return {}
    estimated = [float(np.mean(estimates.advantages[turns[j.episode, j.index]])) for j in rows]
    rho = spearman(estimated, [j.credit for j in rows])
    numbers = {"credit/replayed": len(rows), "credit/context_variance": float(np.mean([j.variance for j in rows]))}
    if rho == rho:
        numbers["credit/rank_correlation"] = rho
    for agent in sorted({j.agent for j in rows}):
        within = sum(j.variance_given_reply for j in rows if j.agent == agent)
        total = sum(j.variance for j in rows if j.agent == agent)
        numbers[f"credit/influence/{agent}"] = max(1.0 - within / total, 0.0) if total > 0.0 else 0.0
    return numbers
