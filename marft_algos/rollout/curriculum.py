"""Draws starts by how learnable they are, and tells tasks and teams what the run has come to.

Starts have kinds, which the task names (``TaskDefaults.kind_of``). Where a kind succeeds with probability p, outcomes
have the variance p(1 − p), and there is nothing to compare where it is 0 (sampling for learnability, arXiv 2408.15099).
Nothing is played to find p: it is estimated from what the run has played.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import numpy as np

from marft_algos import seeds
from marft_algos.rollout.episodes import ProblemSplit, Prompts, whole
from marft_algos.types import Trajectory
from marft_envs import FlexEnv

CANDIDATES = 8
"""Starts that one is chosen from: a kind's share can become so many times as large."""
FLOOR = 0.025
"""Weight of a kind that always fails, or never: a tenth of the largest, so that what changes is noticed."""
KEPT = 0.98
"""What is left of evidence an iteration later, as the policies change: half after 34 iterations."""
LEAST = 0.01
"""Episodes, faded, below which a kind is as one that was never seen."""

Evidence = Mapping[str, tuple[float, float]]
"""Kind -> successes and episodes, both faded."""


Progress = Mapping[str, float]
"""Metric that a task follows (``TaskDefaults.followed``) -> its mean over the last iteration that measured it."""


def tell(prompts: Prompts, progress: Progress) -> Prompts:
    """Returns the prompts with the progress among the options of ``reset``."""
    return Prompts(prompts.seeds, [{**options, "progress": dict(progress)} for options in prompts.options])


def with_profiles(prompts: Prompts, profiles: Sequence[Mapping[str, str]]) -> Prompts:
    """Returns the prompts with these profiles, one after the other, among the options of ``reset``; none: as it is."""
    if not any(profiles):
        return prompts
    each = [{**o, "profiles": dict(profiles[i % len(profiles)])} for i, o in enumerate(prompts.options)]
    return Prompts(prompts.seeds, each)


def progressed(progress: Progress, followed: Sequence[str], played: Sequence[Trajectory]) -> Progress:
    """Returns the progress after an iteration's episodes, without those lost to infrastructure errors."""
    measured = {name: [t.metrics[name] for t in whole(played) if name in t.metrics] for name in followed}
    return {**progress, **{name: float(np.mean(values)) for name, values in measured.items() if values}}


def success_rate(evidence: Evidence, kind: str) -> float:
    """Estimates p: the mean of a Beta distribution that was uniform before any evidence, so 1/2 of an unseen kind."""
    successes, episodes = evidence.get(kind, (0.0, 0.0))
    return (successes + 1.0) / (episodes + 2.0)


def weight(rate: float) -> float:
    """p(1 − p), and a floor."""
    return rate * (1.0 - rate) + FLOOR


class Curriculum:
    """Draws the prompts of training iterations.

    Args:
        problems: Where candidates come from.
        make_env: Makes the environment that says which start a seed is.
        kind_of: Task id -> kind.
    """

    def __init__(self, problems: ProblemSplit, make_env: Callable[[], FlexEnv], kind_of: Callable[[str], str]) -> None:
        self._problems, self._make_env, self._kind_of = problems, make_env, kind_of

    def draw(self, evidence: Evidence, seed: int, iteration: int, n: int, refill: int = 0) -> Prompts:
        """Draws the prompts of one training iteration, as ``ProblemSplit.train`` does; nothing of it is played."""
        many = self._problems.train(seed, iteration, n * CANDIDATES, refill)
        rng, chosen = seeds.generator(seeds.curriculum(seed, iteration, refill)), list[int]()
        with closing(self._make_env()) as env:
            weights = np.array([weight(success_rate(evidence, kind)) for kind in self._kinds(env, many)])
        for first in range(0, len(many), CANDIDATES):
            part = weights[first : first + CANDIDATES]
            chosen.append(first + int(rng.choice(len(part), p=part / part.sum())))
        return Prompts([many.seeds[i] for i in chosen], [many.options[i] for i in chosen])

    def _kinds(self, env: FlexEnv, prompts: Prompts) -> list[str]:
        kinds = []
        for seed, options in zip(prompts.seeds, prompts.options, strict=True):
            if "task_id" not in options:
                env.reset(seed=seed, options=options)
            kinds.append(self._kind_of(options.get("task_id", env.unwrapped.task.task_id)))
        return kinds

    def rate(self, evidence: Evidence, played: Sequence[Trajectory]) -> float:
        """Returns the mean p of the starts of these episodes."""
        return float(np.mean([success_rate(evidence, self._kind_of(t.episode.task_id)) for t in played]))

    def after(self, evidence: Evidence, played: Sequence[Trajectory]) -> Evidence:
        """Returns the evidence with an iteration's episodes in it, without those lost to infrastructure errors.

        Where the task does not say what success is, an episode's score counts, between 0 and 1.
        """
        faded = {kind: (KEPT * s, KEPT * n) for kind, (s, n) in evidence.items() if KEPT * n >= LEAST}
        for t in whole(played):
            kind = self._kind_of(t.episode.task_id)
            success = min(max(t.score, 0.0), 1.0) if t.success is None else float(t.success)
            successes, episodes = faded.get(kind, (0.0, 0.0))
            faded[kind] = successes + success, episodes + 1.0
        return faded
