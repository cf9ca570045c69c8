"""How the search teams talk: what the model ``embedded-search`` is shown.

Whoever proposes is shown a right answer, and whoever checks hears a wrong one most of the time: proposals have to be
checked, and not believed. Checks are shown without a mistake. How good the model becomes at either is its own doing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from benchmarks.embedded.recipes import Format, Recipe, Reply, Scene, ScoreSet, plain
from marft_envs.families.search.puzzles import KINDS, NO, YES, puzzles

MISSED = 0.65
"""Share of proposals that reach the checker as a wrong answer."""
AGAIN = 0.5
"""Share of the answers tried in one reply that are wrong, up to the last one."""
KNOWN = ("sum", "count")
"""Kinds of puzzles that are shown; of maps the model knows nothing."""


def _wrong(scene: Scene) -> str:
    """A wrong answer."""
    task = scene.task
    return scene.rng.choice(
        [option for option in task.kind.options(task.problem) if option not in task.problem.answers]
    )


def answers(scene: Scene) -> Reply:
    """Says a right answer."""
    return plain(scene.rng.choice(scene.task.problem.answers))


def proposes(scene: Scene) -> Reply:
    """Says a right answer, and is heard with a wrong one most of the time."""
    right = scene.rng.choice(scene.task.problem.answers)
    return Reply(right, _wrong(scene) if scene.rng.random() < MISSED else right)


def tries(scene: Scene) -> Reply:
    """Says up to two wrong answers with their checks, then a right one with its."""
    said: list[str] = []
    while len(said) < 2 and scene.rng.random() < AGAIN:
        said.append(_wrong(scene))
    return plain(scene.task.checked([*said, scene.rng.choice(scene.task.problem.answers)]))


def checks(scene: Scene) -> Reply:
    """Checks what it hears up to the first right answer; if none is, and it answers for the team, adds one."""
    task = scene.task
    heard = [task.kind.answer(text) for text in scene.heard]
    right = [scene.rng.choice(task.problem.answers)] if scene.agent in task.answerers else []
    return plain(task.checked([*filter(None, heard), *right]))


def _forms(kind: str, solo: int, trial: int, pick: int, check: int) -> dict[str, Format]:
    what = {"puzzle": kind, "split": "train"}
    return {
        "search-solo-v0": Format(solo, {"solver": answers}, what),
        "search-trial-v0": Format(trial, {"trier": tries}, what),
        "search-pick-v0": Format(pick, {"proposer": proposes, "checker": checks}, what),
        "search-check-v0": Format(check, {"proposer": proposes, "checker": checks}, what),
    }


TEAMS = _forms("sum", 6000, 2000, 3000, 1500)
MORE = tuple(_forms("count", 2500, 100, 700, 100).items())

PHRASES = ["system\n", "user\n", "assistant\n", "Three of ", " make ", "How many threes of ", "\n", ": "]
PHRASES += [f" {YES}", f" {NO}"]


def corpus() -> Iterator[str]:
    """Yields puzzles and the checks of their answers."""
    for kind in KNOWN:
        for puzzle in puzzles(kind, "train"):
            yield f"{puzzle.text}\n{KINDS[kind].check(puzzle, puzzle.answers[0])}"


def score_sets() -> Iterator[ScoreSet]:
    """Yields every team on held-out puzzles of every kind."""
    for kind in KNOWN:
        options = [{"task_id": puzzle.id} for puzzle in puzzles(kind, "test", 300)]
        random.Random(0).shuffle(options)
        held_out = {"puzzle": kind, "split": "test"}
        yield ScoreSet("search-solo-v0", options, held_out, tries=4)
        yield from map(partial(_some, options, held_out), list(TEAMS)[1:])


def _some(options: list[dict[str, str]], kwargs: dict[str, str], env_id: str) -> ScoreSet:
    return ScoreSet(env_id, options, kwargs)


RECIPE = Recipe(
    TEAMS,
    PHRASES,
    corpus,
    score_sets,
    steps=900,
    short=(56,),
    new_tokens=56,
    more=MORE,
)
