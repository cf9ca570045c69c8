"""Preferences: pairs of recorded episodes of one start, of which one ended better."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from marft_algos.rollout.demonstrations import Demonstrations, Found, recorded
from marft_algos.rollout.episodes import Prompts
from marft_algos.types import Transition
from marft_envs.core.types import Episode
from marft_envs.errors import ConfigError, DataError

_Pair = tuple[Episode, Episode]
"""The better and the worse one."""


class Preferences(Demonstrations):
    """Where pairs come from, and how they become trajectories; arguments and errors as of ``Demonstrations``.

    Of each start those that ended above its mean are paired with those below, as many pairs as the fewer of them are,
    matched anew in each pass. A pair is a group.
    """

    what = "pairs"

    def _open(self, source: str) -> None:
        if source in ("", "expert"):
            raise ConfigError(
                "Preferences are learnt from recorded episodes, good and bad. Name them: --demonstrations runs/NAME, or"
                " a JSONL file."
            )
        episodes = [episode for _, episode in recorded(source)]
        starts: dict[str, list[Episode]] = {}
        for episode in episodes:
            if not episode.infrastructure_error:
                start = episode.task_id or json.dumps([episode.seed, episode.options], sort_keys=True, default=str)
                starts.setdefault(start, []).append(episode)
        self._starts = [sides for sides in map(_sides, starts.values()) if all(sides)]
        self._left: Counter[str] = Counter()
        if not self._starts:
            raise DataError(
                f"There is no pair among the {len(episodes)} episodes at '{source}': of none of their {len(starts)}"
                " starts one ended better than another. Record groups, and more of them: marft train grpo"
                " --record-every 1 --record-episodes 64"
            )

    def _drawn(self, prompts: Prompts, iteration: int, version: int) -> Iterator[tuple[str, Found]]:
        """Pairs to learn from in an iteration, the better episode first; half as many as there are prompts.

        Raises:
            ConfigError: There is no room for a pair.
        """
        size = len(prompts) // 2
        if not size:
            raise ConfigError("A pair is two episodes. Raise --episodes-per-iteration to 2 or more.")
        for better, worse in self._from(iteration * size, size, sum(min(map(len, sides)) for sides in self._starts)):
            yield better.task_id, self._pair(better, worse, version)

    def metrics(self) -> dict[str, float]:
        """Counts pairs that were left out since the run began, by reason, and policies that a pair said nothing to."""
        return super().metrics() | {f"skipped/{reason}": float(n) for reason, n in self._left.items()}

    def _listed(self, rng: np.random.Generator) -> Sequence[_Pair]:
        """All pairs, matched anew."""
        matched: list[_Pair] = []
        for better, worse in self._starts:
            orders = rng.permutation(len(better)), rng.permutation(len(worse))
            matched += [(better[i], worse[j]) for i, j in zip(*orders, strict=False)]
        return matched

    def _pair(self, better: Episode, worse: Episode, version: int) -> Found:
        """Returns the episodes of a pair, with what is learnt of each; or why it is none."""
        sides, begun = [], []
        for episode in (better, worse):
            if episode.task_id in self._held_out:
                return "a held-out problem"
            if episode is better and episode.invalid:
                return "words that route nobody"
            prompts = self._heard(episode)
            if isinstance(prompts, str):
                return prompts
            turns = self._transitions(episode, prompts, version)
            if isinstance(turns, str):
                return turns
            sides.append(turns)
            begun.append((episode.turns[0].agent, prompts[0]) if episode.turns else None)
        if begun[0] != begun[1]:
            return "another start"
        if not (differ := self._differing(*sides)):
            return "nobody who learns said anything else"
        return [
            (episode, [dataclasses.replace(t, trainable=t.trainable and t.policy in differ) for t in turns])
            for episode, turns in zip((better, worse), sides, strict=True)
        ]

    def _differing(self, better: Sequence[Transition], worse: Sequence[Transition]) -> set[str]:
        """Returns the policies that spoke in both episodes, and not alike; counts the others."""
        differ = set()
        for policy in self._renderer.policies:
            said = [
                [(t.request.prompt_ids, t.reply.action_ids) for t in turns if t.trainable and t.policy == policy]
                for turns in (better, worse)
            ]
            if all(said) and said[0] != said[1]:
                differ.add(policy)
            elif any(said):
                self._left["the same words" if all(said) else "spoke in one of the two only"] += 1
        return differ


def _sides(episodes: Sequence[Episode]) -> tuple[list[Episode], list[Episode]]:
    """Returns the episodes that ended above their mean, and those below."""
    outcomes = [episode.score for episode in episodes]
    mean = float(np.mean(outcomes))
    above = [e for e, value in zip(episodes, outcomes, strict=True) if value > mean]
    return above, [e for e, value in zip(episodes, outcomes, strict=True) if value < mean]
