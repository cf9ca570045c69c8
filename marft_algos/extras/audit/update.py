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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
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
    blamed,
    copies,
    enumerated,
    fraction,
    trajectory,
)
from marft_algos.extras.audit.games import AuditGame
from marft_algos.types import Estimates, Trajectory, Transition
from marft_envs.core.env import FlexEnv
from marft_envs.core.types import AgentSpec
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
        """Names what a value depends on."""
        if not self.by_state:
            return (t.policy,)
        before = (*t.request.prompt_ids, *t.reply.action_ids)[token]
        return (t.policy, t.team_view if view == "team" else before, before if token else 0)

    def read(self, turns: Sequence[Transition], estimates: Estimates, *, view: Any, level: Any) -> None:
        """Fills the values of turns."""
        for t in turns:
            points = range(len(t.reply.action_ids) or 1 if level == "token" else 1)
            estimates.values[t] = np.array([self.known.get(self.key(t, view, i), 0.0) for i in points], np.float32)

    def fit(self, trajectories: Sequence[Trajectory], estimates: Estimates, shares: Sequence[float], view: Any) -> None:
        """Sets every value to the mean of the returns that depend on the same, by the episodes' probabilities."""
        found: dict[tuple[Any, ...], tuple[list[float], list[float]]] = {}
        for share, d in zip(shares, trajectories, strict=True):
            for t in d.transitions:
                for i, value in enumerate(estimates.returns.get(t, ())):
                    values, weights = found.setdefault(self.key(t, view, i), ([], []))
                    values.append(float(value))
                    weights.append(share)
        self.known = {key: float(np.average(values, weights=weights)) for key, (values, weights) in found.items()}


@dataclass(frozen=True, eq=False)
class Enumeration:
    """A task with everything that can happen in it."""

    plays: list[Play]
    tree: ReplyTree
    policies: TablePolicies
    prompts: int
    team: tuple[AgentSpec, ...]
    whole: list[Play]
    """Episodes to their end, where ``plays`` are truncated."""
    game: AuditGame | None = None

    @classmethod
    def of(
        cls, env: FlexEnv, prompts: int, *, tied: bool = False, shared: bool = False, game: AuditGame | None = None
    ) -> Enumeration:
        """Enumerates a task.

        Args:
            env: The task with its team.
            prompts: Number of its problems.
            tied: Whether a word has one logit for all states of an agent.
            shared: Whether all agents have one policy.
            game: That the task is, for what is special in it.
        """
        tree = ReplyTree({name: "team" if shared else name for name in env.possible_agents}, tied)
        whole = enumerated(env, prompts, tree)
        plays = enumerated(env, prompts, tree, game.cut) if game and game.cut else whole
        return cls(plays, tree, TablePolicies(tree), prompts, tuple(env.unwrapped.team), whole, game)

    @classmethod
    def of_game(cls, game: AuditGame, *, shared: bool = False) -> Enumeration:
        """Enumerates a game."""
        return cls.of(game.env(), len(game.prompts), shared=shared, game=game)

    @contextmanager
    def moved(self) -> Iterator[None]:
        """Moves the policies away from those that sampled, where the game says so, and back."""
        step = self.game.moved if self.game else 0.0
        self.policies.shift(step)
        try:
            yield
        finally:
            self.policies.shift(-step)

    def probability(self, play: Play) -> float:
        """Returns how likely an episode is under the policies as they are, played to its end."""
        logprobs = [self.policies.reply(state, tokens).sum().item() for _, state, tokens in play.turns]
        return math.exp(sum(logprobs)) / self.prompts

    def credited(self, algorithm: Algorithm) -> Enumeration:
        """Returns the task with the credit of each turn by the rule ``blame``, of exact chances under the policies."""
        if algorithm.rule.name != "blame":
            return self
        plays = blamed(self.plays, self.probability)
        whole = plays if self.whole is self.plays else blamed(self.whole, self.probability)
        return dataclasses.replace(self, plays=plays, whole=whole)

    def score(self) -> float:
        """Computes J, the team's expected return."""
        return sum(self.probability(play) * play.episode.team_return for play in self.whole)

    def true_gradient(self) -> Vectors:
        """Differentiates every policy's expected return through its own agents' replies: Σ_t R_t·∇log π_t."""
        total = torch.zeros((), dtype=torch.float64)
        for play in self.whole:
            share = self.probability(play)
            for agent, state, tokens in play.turns:
                total = total + share * play.value(agent) * self.policies.reply(state, tokens).sum()
        return _gradient(total, self.policies)

    def batch(self, least: int = LARGE) -> list[Trajectory]:
        """Returns a batch of exact proportions and at least so many episodes, with one group for each problem."""
        counts = copies(self._shares())
        times = math.ceil(least / sum(counts))
        return self.played(self.plays, [n * times for n in counts])

    def played(self, plays: Sequence[Play], counts: Sequence[int]) -> list[Trajectory]:
        """Makes trajectories of episodes, each as often as its count."""
        chosen = [play for play, n in zip(plays, counts, strict=True) for _ in range(n)]
        return [trajectory(play, self.policies, i, play.prompt) for i, play in enumerate(chosen)]

    def _shares(self) -> list[Fraction]:
        kept = (self.game and self.game.kept) or (lambda turns: Fraction(1))
        return [fraction(play, self.tree, self.prompts) * kept(len(play.turns)) for play in self.plays]

    def groups(self, size: int) -> tuple[list[Trajectory], list[float]]:
        """Returns every group of that many episodes of a problem, and the probability of each.

        Raises:
            ConfigError: There are too many.
        """
        found, weights = list[Trajectory](), list[float]()
        for prompt in range(self.prompts):
            pairs = [pair for pair in zip(self.plays, self._shares(), strict=True) if pair[0].prompt == prompt]
            plays, shares = [play for play, _ in pairs], [float(share) * self.prompts for _, share in pairs]
            if math.comb(len(plays) + size - 1, size) > MOST_GROUPS:
                raise ConfigError(
                    f"{len(plays)} episodes make more than {MOST_GROUPS} groups of {size}; take a smaller --group-size."
                )
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
    task = task.credited(algorithm)
    trajectories, weights = task.groups(group_size) if group_size else (task.batch(), None)
    with task.moved():
        return ascent(algorithm, trajectories, task.policies, fitted(algorithm, task, critic), weights)


def fitted(algorithm: Algorithm, task: Enumeration, critic: Critic) -> TableHeads:
    """Returns value heads that know the expected returns of the policies as they are, by what ``critic`` says."""
    heads = TableHeads(task.policies.policies)
    if algorithm.view == "none" or critic == "zero":
        return heads
    heads.by_state = critic == "exact"
    episodes = task.played(task.whole, [1] * len(task.whole))
    shares = [task.probability(play) for play in task.whole]
    for _ in range(MOST_TURNS + 1):  # where returns depend on V, a state's value is known after those behind it
        before = heads.known
        heads.fit(episodes, _credited(algorithm, episodes, task.policies, heads), shares, algorithm.view)
        if before.keys() == heads.known.keys() and all(abs(before[k] - v) < SMALL for k, v in heads.known.items()):
            break
    return heads


def ascent(
    algorithm: Algorithm,
    trajectories: Sequence[Trajectory],
    policies: TablePolicies,
    heads: TableHeads | None = None,
    weights: Sequence[float] | None = None,
) -> Vectors:
    """Computes minus the gradient of the loss of one update over these episodes.

    Args:
        algorithm: With its settings.
        trajectories: The episodes.
        policies: As they are now; they may have moved since they sampled.
        heads: What the critic knows; None: nothing.
        weights: Group -> its probability; None: every episode counts once.
    """
    estimates = _credited(algorithm, trajectories, policies, heads or TableHeads(policies.policies))
    rows, _ = learnable(trajectories, policies.policies)
    group_of = {t: d.group for d in trajectories for t in d.transitions}
    weigh = (lambda t: 1.0) if weights is None else (lambda t: weights[group_of[t]] * len(weights))
    for t, advantage in estimates.advantages.items():
        estimates.advantages[t] = advantage * weigh(t)
    losses = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for block in algorithm.order(rows, estimates, 0):
        for policy in (name for name in block if rows[name]):
            part = rows[policy]
            size = _sizes(part, estimates, float(len(trajectories)), weigh)
            algorithm.before_step(part, estimates, policies.rescore)
            batch = pack(part, estimates, algorithm.level, "cpu", size)
            logprobs, _ = policies.logprobs(*batch.scored)
            loss, _ = algorithm.surrogate(logprobs, batch)
            losses = losses - loss
        algorithm.after_block(block, trajectories, estimates, policies.rescore)
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
    """What the update finds out about the turns, with these values; ``Learner.update`` has the same steps."""
    _, shares = learnable(trajectories, policies.policies)
    estimates = Estimates(shares=shares)
    turns = [t for d in trajectories for t in d.transitions]
    now = dict(zip(turns, policies.rescore(turns), strict=True))
    stale = {t: logprobs for t, logprobs in now.items() if not np.array_equal(logprobs, t.reply.logprobs)}
    estimates.behind |= dict.fromkeys(stale, 1)
    estimates.reference_logprobs |= now
    algorithm.values(trajectories, heads, estimates)
    if algorithm.config.old_logprobs == "learner":
        estimates.old_logprobs |= now
    elif algorithm.config.corrects_stale:
        estimates.current_logprobs |= stale
    algorithm.rule.prepare(trajectories)
    algorithm.credit(trajectories, estimates)
    return estimates


def noise(
    algorithm: Algorithm, task: Enumeration, critic: Critic, episodes: int, draws: int = 200, seed: int = 0
) -> float:
    """Estimates how much an update of a small batch scatters: its RMS distance from its mean, by the mean's length.

    Args:
        algorithm: With its settings.
        task: Everything that can happen.
        critic: What V is.
        episodes: Of a batch.
        draws: Batches.
        seed: Of the draws.
    """
    rng, size, updates = np.random.default_rng(seed), algorithm.group_size, list[np.ndarray]()
    task = task.credited(algorithm)
    heads, shares = fitted(algorithm, task, critic), np.array([task.probability(play) for play in task.plays])
    prompts = np.array([play.prompt for play in task.plays])
    for _ in range(draws):
        batch = list[Trajectory]()
        for group in range(max(episodes // size, 1)):
            own = shares * (prompts == rng.integers(task.prompts))
            chosen = rng.choice(len(task.plays), size, p=own / own.sum())
            batch += [trajectory(task.plays[i], task.policies, len(batch) + k, group) for k, i in enumerate(chosen)]
        updates.append(np.concatenate(list(ascent(algorithm, batch, task.policies, heads).values())))
    mean = np.mean(updates, 0)
    length = float(np.linalg.norm(mean))
    return float(np.sqrt(np.mean(np.sum((updates - mean) ** 2, -1)))) / length if length > SMALL else math.nan


def climbed(algorithm: Algorithm, task: Enumeration, critic: Critic, steps: int, first: float = 0.5) -> float:
    """Returns J after steps in the direction of an algorithm's own large batches, from policies of equal logits.

    Args:
        algorithm: With its settings.
        task: Everything that can happen.
        critic: What V is.
        steps: Of ascent; their length falls in a straight line to 0.
        first: Length of the first step, in logits.
    """
    for step in range(steps):
        expectations = np.array([task.probability(play) for play in task.plays]) * LARGE
        counts = np.floor(expectations).astype(int)
        counts[np.argsort(counts - expectations)[: LARGE - counts.sum()]] += 1
        now = task.credited(algorithm)
        batch = now.played(now.plays, counts.tolist())
        update = ascent(algorithm, batch, task.policies, fitted(algorithm, now, critic))
        length = math.sqrt(sum(float(u @ u) for u in update.values()))
        rate = first * (1.0 - step / steps) / length if length > SMALL else 0.0
        task.policies.ascend({policy: rate * u for policy, u in update.items()})
    score = task.score()
    task.policies.ascend({policy: -table.detach().numpy() for policy, table in task.policies.tables.items()})
    return score


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
