"""Episodes to learn from, for every algorithm."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from helpers.teams import VOCABULARY, episode, put, random_team
from marft_algos.algorithms import base as algorithm
from marft_algos.types import Trajectory

ONE_STEP = {"minibatches": 1}
SETTINGS: dict[str, dict[str, Any]] = {"vapo": {"value_warmup": 0}} | dict.fromkeys(
    ("magrpo", "reinforce", "rloo", "sdpo", "spiral"), ONE_STEP
)


def data_for(name: str, seed: int) -> list[Trajectory]:
    """Episodes in which other agents act, and another number of times, in each; four of each start."""
    rng, data = np.random.default_rng(seed), list[Trajectory]()
    one = {f"a{i}": "a0" for i in range(4)} if name in ("mat", "reinforce_pp") else None
    pairs = algorithm.get(name).prefers
    size = 2 if pairs else 4
    for i in range(24):
        team = [["a0", "a1"], ["a2"]] if pairs else random_team(rng)
        rewards = rng.choice([0.0, 0.5, 1.0], len(team)).tolist()
        data.append(
            episode(team, number=i, rewards=rewards, group=i // size, policies=one, success=bool(rewards[-1] > 0))
        )
    if name == "at_grpo":
        data = [with_candidates(d, rng) for d in data]
    if name == "treerl":
        data = [with_branches(d, rng) for d in data]
    if name == "sdpo":
        for d in data:
            put(d, hindsight={t.index: [*t.request.prompt_ids, int(rng.integers(VOCABULARY))] for t in d.transitions})
    return data


def with_branches(d: Trajectory, rng: np.random.Generator) -> Trajectory:
    """The episode as a tree: its last layers once more, and the last one of these a third time."""
    layers = len(d.layers)
    leaves = [(0, max(layers - 2, 0), float(rng.normal())), (1, layers - 1, float(rng.normal()))]
    turns = []
    for leaf, (_, first, _) in enumerate(leaves, 1):
        for t in d.transitions:
            if t.layer >= first:
                ids = [int(x) for x in rng.integers(0, VOCABULARY, len(t.reply.action_ids))]
                turns.append(dataclasses.replace(t, reply=dataclasses.replace(t.reply, action_ids=ids), leaf=leaf))
    return dataclasses.replace(d, candidates=tuple(turns), leaves=leaves)


def with_candidates(d: Trajectory, rng: np.random.Generator) -> Trajectory:
    """The episode with two further replies at every turn, and what each is worth."""
    tried = []
    for t in d.transitions:
        put(t, worth=float(rng.normal()))
        for _ in range(2):
            ids = [int(x) for x in rng.integers(0, VOCABULARY, len(t.reply.action_ids))]
            reply = dataclasses.replace(t.reply, action_ids=ids)
            tried.append(dataclasses.replace(t, reply=reply, worth=float(rng.normal())))
    return dataclasses.replace(d, candidates=tuple(tried))
