"""Estimators of other projects, for ``marft audit``: what each gives the tokens of an episode to learn from.

    PYTHONPATH=examples marft audit estimators:SeqMeanTokenMean --game talk

The formulas are written anew from papers and documentation. A *sequence* is all that one agent says in an episode, as
in multi-turn training of TRL and verl. An update is Σ over tokens of weight · advantage · ∇ log π, at ratio 1.
"""

from __future__ import annotations

import numpy as np

from marft_algos import Algorithm, ClipConfig, GroupConfig, credit
from marft_algos.algorithms import groups


class EstimatorConfig(ClipConfig, GroupConfig):
    """Settings of groups."""


def standardised(values, keys, divide):
    """Returns values − mean, by σ where ``divide``, within the entries of equal keys."""
    stats = groups.statistics(values, keys, ddof=1)
    return (np.asarray(values) - stats.mean) / (stats.std + 1e-6 if divide else 1.0)


def team_score(d):
    """Returns an episode's score, and refuses agents with rewards of their own, which have no one score."""
    return credit.team_score(d, credit.broadcast(d))


def tokens(turns):
    """Counts the tokens of turns."""
    return sum(len(turn.reply.action_ids) for turn in turns)


class SeqMeanTokenMean(Algorithm):
    """TRL's loss_type "grpo", verl's "seq-mean-token-mean": a mean over each sequence's tokens, then over sequences."""

    Config, needs, level, divide = EstimatorConfig, frozenset({"groups"}), "action", True

    def weight(self, own, turn):
        """Returns what a token of a turn weighs, given all turns of its agent in the episode."""
        return 1 / tokens(own)

    def advantages(self, trajectories):
        """Returns the advantage of every turn of every episode, one after the other."""
        scores = standardised([team_score(d) for d in trajectories], [d.group for d in trajectories], self.divide)
        return [score for d, score in zip(trajectories, scores, strict=True) for _ in d.transitions]

    def credit(self, trajectories, estimates):
        turns = [(d, turn) for d in trajectories for turn in d.transitions]
        for (d, turn), advantage in zip(turns, self.advantages(trajectories), strict=True):
            own = [other for other in d.transitions if other.agent == turn.agent]
            estimates.advantages[turn] = np.array([advantage * self.weight(own, turn)], np.float32)
        return {}

    def surrogate(self, logprobs, batch):
        return batch.episode_sum(batch.row_sum(-logprobs * batch.advantages[:, None])), {}


class TokenMean(SeqMeanTokenMean):
    """TRL's "bnpo" and "dapo", verl's "token-mean": every token weighs the same."""

    def weight(self, own, turn):
        return 1.0


class SeqMeanTokenSumNorm(TokenMean):
    """TRL's "dr_grpo" with scale_rewards "none", verl's "seq-mean-token-sum-norm" without σ: Dr. GRPO (2503.20783)."""

    divide = False


class TurnRows(SeqMeanTokenMean):
    """verl's "seq-mean-token-mean" where every turn is a row of its own, as in agent loops: a mean over turns."""

    def weight(self, own, turn):
        return 1 / tokens([turn])


class ReMA(SeqMeanTokenMean):
    """ReMA (2503.09501): ratios of turns; a mean over a turn's tokens, over the turns of an episode, over episodes."""

    def weight(self, own, turn):
        return 1 / tokens([turn]) / len(own)


class DrMAS(TokenMean):
    """Dr. MAS (2602.08847): μ and σ of each agent, over the rows of its turns, as in released code; token mean."""

    def advantages(self, trajectories):
        turns = [(d, turn) for d in trajectories for turn in d.transitions]
        return standardised(
            [team_score(d) for d, _ in turns], [(d.group, turn.agent) for d, turn in turns], divide=True
        )


class ATGRPO(TokenMean):
    """AT-GRPO (2510.11062): replies at one state, compared by the reward that follows at once, by their σ."""

    def advantages(self, trajectories):
        keys, rewards = [], []
        for d in trajectories:
            said = [(turn.agent, turn.turn.text, turn.layer) for turn in d.transitions]
            for turn in d.transitions:
                keys.append((d.group, turn.agent, *[s for s in said if s[2] < turn.layer]))
                layer = d.layers[turn.layer]
                rewards.append(layer.team_reward + layer.agent_rewards.get(turn.agent, 0.0) + turn.turn.reward)
        return standardised(rewards, keys, divide=True)


class MAGRPO(TokenMean):
    """MAGRPO (2508.04652): returns from a turn on, less the mean of the group's same turns; no σ."""

    divide = False

    def keys(self, d, turn):
        """Names what a turn is compared with: the same turn of its agent."""
        return (d.group, turn.agent, sum(t.agent == turn.agent for t in d.transitions[: turn.index]))

    def advantages(self, trajectories):
        turns = [(d, turn) for d in trajectories for turn in d.transitions]
        before = [sum(layer.team_reward for layer in d.layers[: turn.layer]) for d, turn in turns]
        before = np.array(before) + [sum(t.turn.reward for t in d.transitions[: turn.index]) for d, turn in turns]
        returns = np.array([team_score(d) for d, _ in turns]) - before
        return standardised(returns, [self.keys(d, turn) for d, turn in turns], self.divide)


class C3(MAGRPO):
    """C3 (2603.06859): replies at one state, compared by what follows them, less the mean of the others."""

    def keys(self, d, turn):
        return (d.group, turn.agent, *[(t.agent, t.turn.text) for t in d.transitions if t.layer < turn.layer])
