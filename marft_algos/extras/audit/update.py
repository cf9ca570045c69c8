"""The expected update of an algorithm, by the code that trains: credit, advantages, reduction, gradient of the loss.

Two limits are exact. In the *population* limit the batch holds every episode in the proportion of its probability, as
one group for each problem: the update of a large batch of large groups. With a group size G, every multiset of G
episodes of a problem is one group, whose advantages are weighed by its probability: the update of a large batch of
groups of G. Regularisers (entropy, KL to a reference) are left out: they are no part of the return.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from marft_algos.algorithms.base import Algorithm
from marft_algos.batching import Totals, learnable, pack
from marft_algos.extras.audit.episodes import (
    MOST_TURNS,
    Play,
    ReplyTree,
    TablePolicies,
    copies,
    enumerated,
    fraction,
    trajectory,
)
from marft_algos.extras.audit.games import AuditGame
from marft_algos.types import Estimates, Trajectory, Transition
from marft_envs.core.env import FlexEnv
from marft_envs.errors import ConfigError

Critic = Literal["zero", "fitted", "exact"]
"""What V is: 0, the mean return of a policy's turns, or the expected return of the state that its view shows."""
MOST_GROUPS = 5000
LARGE = 400
"""Episodes of a batch that stands for a large one: what depends on its size is below 1/400."""
SMALL = 1e-6
"""Below it a number is 0: rewards are of size 1, and advantages are stored in single precision."""
Vectors = dict[str, np.ndarray]
"""Policy -> one number for each of its logits."""


class TableHeads:
    """Value heads that hold one number for each state, or one for each policy."""

    def __init__(self, policies: Sequence[str]) -> None:
        self.policies = list(policies)
        self.known: dict[tuple[Any, ...], float] = {}
        self.by_state = True

    def key(self, t: Transition, view: str, token: int) -> tuple[Any, ...]:
        """Names what a value hangs on."""
        if not self.by_state:
            return (t.policy,)
        before = (*t.request.prompt_ids, *t.reply.action_ids)[token]
        return (t.policy, t.team_view if view == "team" else before, before if token else 0)

    def read(self, turns: Sequence[Transition], estimates: Estimates, *, view: Any, level: Any) -> None:
        """Fills the values of turns."""
        for t in turns:
            points = range(len(t.reply.action_ids) if level == "token" else 1)
            estimates.values[t] = np.array([self.known.get(self.key(t, view, i), 0.0) for i in points], np.float32)

    def fit(self, turns: Sequence[Transition], estimates: Estimates, *, view: Any) -> None:
        """Sets every value to the mean of the returns that hang on the same: the least squares."""
        sums: dict[tuple[Any, ...], list[float]] = {}
        for t in turns:
            for i, value in enumerate(estimates.returns.get(t, ())):
                sums.setdefault(self.key(t, view, i), []).append(float(value))
        self.known = {key: float(np.mean(values)) for key, values in sums.items()}


@dataclass(frozen=True, eq=False)
class Enumeration:
    """A task with everything that can happen in it."""

    plays: list[Play]
    tree: ReplyTree
    policies: TablePolicies
    prompts: int

    @classmethod
    def of(cls, env: FlexEnv, prompts: int, *, tied: bool = False, shared: bool = False) -> Enumeration:
        """Enumerates a task.

        Args:
            env: The task with its team.
            prompts: Number of its problems.
            tied: Whether a word has one logit for all states of an agent.
            shared: Whether all agents have one policy.
        """
        tree = ReplyTree({name: "team" if shared else name for name in env.possible_agents}, tied)
        plays = enumerated(env, prompts, tree)
        return cls(plays, tree, TablePolicies(tree), prompts)

    @classmethod
    def of_game(cls, game: AuditGame, *, shared: bool = False) -> Enumeration:
        """Enumerates a game."""
        return cls.of(game.env(), len(game.prompts), shared=shared)

    def true_gradient(self) -> Vectors:
        """Differentiates every policy's expected return through its own agents' replies: Σ_t R_t·∇log π_t."""
        total = torch.zeros((), dtype=torch.float64)
        for play in self.plays:
            share = float(fraction(play, self.tree, self.prompts))
            for agent, state, tokens in play.turns:
                total = total + share * play.value(agent) * self.policies.reply(state, tokens).sum()
        return _gradient(total, self.policies)

    def batch(self, least: int = LARGE) -> list[Trajectory]:
        """Returns a batch of exact proportions and at least so many episodes, with one group for each problem."""
        shares = [fraction(play, self.tree, self.prompts) for play in self.plays]
        counts = copies(shares)
        times = math.ceil(least / sum(counts))
        plays = [p for p, n in zip(self.plays, counts, strict=True) for _ in range(n * times)]
        return [trajectory(play, self.policies, i, play.prompt) for i, play in enumerate(plays)]

    def groups(self, size: int) -> tuple[list[Trajectory], list[float]]:
        """Returns every group of that many episodes of a problem, and the probability of each.

        Raises:
            ConfigError: There are too many.
        """
        found, weights = list[Trajectory](), list[float]()
        for prompt in range(self.prompts):
            plays = [play for play in self.plays if play.prompt == prompt]
            if math.comb(len(plays) + size - 1, size) > MOST_GROUPS:
                raise ConfigError(
                    f"{len(plays)} episodes make more than {MOST_GROUPS} groups of {size}; take a smaller --group-size."
                )
            shares = [float(fraction(play, self.tree, self.prompts)) * self.prompts for play in plays]
            for chosen in combinations_with_replacement(range(len(plays)), size):
                ways = math.factorial(size)
                for times in Counter(chosen).values():
                    ways //= math.factorial(times)
                weights.append(ways * math.prod(shares[i] for i in chosen) / self.prompts)
                number = len(weights) - 1
                found += [trajectory(plays[i], self.policies, len(found) + k, number) for k, i in enumerate(chosen)]
        return found, weights


def _gradient(total: Tensor, policies: TablePolicies) -> Vectors:
    names = policies.policies
    tables = [policies.tables[p] for p in names]
    grads = torch.autograd.grad(total, tables, materialize_grads=True, allow_unused=True)
    return {p: grad.numpy() for p, grad in zip(names, grads, strict=True)}


def expected(
    algorithm: Algorithm, task: Enumeration, critic: Critic = "exact", group_size: int | None = None
) -> Vectors:
    """Computes the expected update of an algorithm, as a direction of ascent.

    Args:
        algorithm: With its settings.
        task: Everything that can happen.
        critic: What V is, for algorithms with a critic.
        group_size: Episodes of a group; None: the population limit.
    """
    trajectories, weights = task.groups(group_size) if group_size else (task.batch(), None)
    return ascent(algorithm, trajectories, task.policies, critic, weights)


def ascent(
    algorithm: Algorithm,
    trajectories: Sequence[Trajectory],
    policies: TablePolicies,
    critic: Critic = "exact",
    weights: Sequence[float] | None = None,
) -> Vectors:
    """Computes minus the gradient of the loss of one update over these episodes, at ratio 1.

    Args:
        algorithm: With its settings.
        trajectories: The episodes.
        policies: That sampled them.
        critic: What V is.
        weights: Group -> its probability; None: every episode counts once.
    """
    heads = TableHeads(policies.policies)
    if algorithm.view != "none" and critic != "zero":
        heads.by_state = critic == "exact"
        turns = [t for d in trajectories for t in d.transitions]
        for _ in range(MOST_TURNS + 1):  # where returns lean on V, a state's value is known after those behind it
            before = heads.known
            heads.fit(turns, _credited(algorithm, trajectories, policies, heads), view=algorithm.view)
            if before.keys() == heads.known.keys() and all(abs(before[k] - v) < SMALL for k, v in heads.known.items()):
                break
    estimates = _credited(algorithm, trajectories, policies, heads)
    rows, _ = learnable(trajectories, policies.policies)
    group_of = {t: d.group for d in trajectories for t in d.transitions}
    weigh = (lambda t: 1.0) if weights is None else (lambda t: weights[group_of[t]] * len(weights))
    for t, advantage in estimates.advantages.items():
        estimates.advantages[t] = advantage * weigh(t)
    episodes = float(len(trajectories))
    losses = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def rescore(turns: Sequence[Transition]) -> list[np.ndarray]:
        return [t.reply.logprobs for t in turns]

    for block in algorithm.order(rows, estimates, 0):
        for policy in (name for name in block if rows[name]):
            part = rows[policy]
            size = _sizes(part, estimates, episodes, weigh)
            algorithm.before_step(part, estimates, rescore)
            batch = pack(part, estimates, algorithm.level, "cpu", size)
            logprobs, _ = policies.logprobs(*batch.scored)
            loss, _ = algorithm.surrogate(logprobs, batch)
            losses = losses - loss
        algorithm.after_block(block, trajectories, estimates, rescore)
    return _gradient(losses, policies)


def _sizes(part: Sequence[Transition], estimates: Estimates, episodes: float, weigh: Any) -> Totals:
    """The sizes of a batch in which groups stand as often as they are likely."""
    rows = sum(weigh(t) for t in part)
    tokens = sum(weigh(t) * len(t.reply.action_ids) for t in part)
    acted = sum(weigh(t) * estimates.shares.get(t, 1.0) for t in part)
    return Totals(rows, tokens, acted, episodes, tokens)


def _credited(
    algorithm: Algorithm, trajectories: Sequence[Trajectory], policies: TablePolicies, heads: TableHeads
) -> Estimates:
    """What the update finds out about the turns, with these values."""
    _, shares = learnable(trajectories, policies.policies)
    estimates = Estimates(shares=shares)
    turns = [t for d in trajectories for t in d.transitions]
    estimates.old_logprobs |= {t: t.reply.logprobs for t in turns}
    estimates.reference_logprobs |= {t: t.reply.logprobs for t in turns}
    algorithm.values(trajectories, heads, estimates)
    algorithm.rule.prepare(trajectories)
    algorithm.credit(trajectories, estimates)
    return estimates


@dataclass(frozen=True)
class GradientComparison:
    """An expected update beside the true gradient."""

    cosine: float
    """The lowest of any policy: 1 is the right direction, -1 the opposite; 0 where there is no update at all, or where
    there is one without any gradient; NaN where both are zero."""
    scale: float
    """Length of the update by that of the gradient, over all policies."""
    wrong: int
    """Logits whose sign is wrong."""
    logits: int
    """Logits whose true gradient is not 0."""

    @property
    def exact(self) -> bool:
        """Whether the update is the gradient, up to a positive factor for each policy."""
        return math.isnan(self.cosine) or self.cosine > 1.0 - SMALL


def compared(update: Vectors, truth: Vectors) -> GradientComparison:
    """Compares an update with the gradient."""
    cosines, wrong, logits = list[float](), 0, 0
    for policy, v in truth.items():
        u = update[policy]
        lengths = float(np.linalg.norm(u)), float(np.linalg.norm(v))
        if max(lengths) > SMALL:
            cosines.append(float(u @ v) / (lengths[0] * lengths[1]) if min(lengths) > SMALL else 0.0)
        wrong += int(((u * v)[np.abs(v) > SMALL] < -SMALL * SMALL).sum())
        logits += int((np.abs(v) > SMALL).sum())
    sizes = [math.sqrt(sum(float(x @ x) for x in vectors.values())) for vectors in (update, truth)]
    scale = sizes[0] / sizes[1] if sizes[1] > SMALL else math.nan
    return GradientComparison(min(cosines, default=math.nan), scale, wrong, logits)


def settings(algorithm: type[Algorithm], values: Mapping[str, Any]) -> Algorithm:
    """Makes an algorithm for one step of one minibatch, without regularisers."""
    fixed = {"epochs": 1, "minibatches": 1, "kl_coef": 0.0, "entropy_coef": 0.0, "value_warmup": 0, **values}
    known = {field.name for field in dataclasses.fields(algorithm.Config)}
    return algorithm(algorithm.Config(**{key: value for key, value in fixed.items() if key in known}))
