"""How teams read documents at level 0: what the model ``embedded-docs`` is shown.

The demonstrator forgets carries, alone and in a team alike, so that nobody starts with an advantage of skill; alone it
is shown documents of one and of two windows, as many as teams are.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from benchmarks.embedded.recipes import Format, Recipe, Reply, Scene, ScoreSet, plain
from marft_envs.families.docs.document import boxed
from marft_envs.families.docs.kinds import LETTERS, TOP
from marft_envs.families.docs.procedural import WINDOW, Made

FORGETS = 0.5
"""Share of the carries and borrows that the demonstrator forgets."""
CORRUPTED = 0.5
"""Share of notes that reach the next agent as some other number: it has to follow the note."""
_STEP = re.compile(r"([+-])([a-z]?)(\d+)")
_LEADING = re.compile(r"-?\d+")
_ASKED = re.compile(r"Count (\w\w)\.")


def step(rng: random.Random, balance: int, amount: int) -> int:
    """Adds as the demonstrator does: ten less or more where a carry or a borrow is forgotten."""
    right = balance + amount
    if balance < 0 or right < 0 or rng.random() >= FORGETS:
        return right
    if amount > 0 and balance % 10 + amount % 10 >= 10:
        return right - 10
    return right + 10 if amount < 0 and balance % 10 < -amount % 10 else right


def worked(scene: Scene, note: int | None) -> tuple[str, int]:
    """Returns the demonstrator's words on what it reads, and its note, going on from a note."""
    question, _, text = scene.observation.partition("\n")
    if asked := _ASKED.match(question):
        before = note or 0
        found = len(re.findall(rf"\b{asked[1]}\b", text))
        return ", ".join(str(before + i + 1) for i in range(found)), before + found
    first = _LEADING.match(text)
    if first and text[0].isdecimal():
        text = text[first.end() :]
        note = int(first[0]) if note is None else note
    balance = note or 0
    words = str(balance)
    for sign, letter, digits in _STEP.findall(text):
        balance = step(scene.rng, balance, int(f"{sign}{digits}"))
        words += f"{sign}{letter}{digits}={balance}"
    return words, balance


def _boxed(words: str, note: int) -> str:
    return f"{words}. \\boxed{{{note}}}" if words else rf"\boxed{{{note}}}"


def _heard(scene: Scene) -> list[int]:
    notes = (boxed(text) for text in scene.heard)
    return [int(note) for note in notes if note and _LEADING.fullmatch(note)]


def _corrupted(scene: Scene, words: str, note: int, low: int, high: int) -> Reply:
    heard = scene.rng.randint(low, high) if scene.rng.random() < CORRUPTED else note
    return Reply(_boxed(words, note), _boxed("", heard))


def alone(scene: Scene) -> Reply:
    r"""``26+a3=29-b1=28. \boxed{28}``."""
    return plain(_boxed(*worked(scene, None)))


def on(scene: Scene) -> Reply:
    """Goes on from the note of the reader before."""
    heard = _heard(scene)
    return _corrupted(scene, *worked(scene, heard[-1] if heard else None), 0, TOP)


def page(scene: Scene) -> Reply:
    """A part by itself; one that no window holds is not shown."""
    reply = _corrupted(scene, *worked(scene, None), -16, 20)
    return reply if len(scene.observation) + len("99-99") <= WINDOW[0] else Reply(None, reply.said)


def paged(scene: Scene) -> Reply:
    """A page, from the note that stands above it."""
    question, _, text = scene.observation.partition("\n")
    above, line, below = text.partition("\n")
    if not line:
        return _corrupted(scene, *worked(scene, None), 0, TOP)
    shown = Scene(scene.rng, scene.agent, f"{question}\n{below}", scene.heard, scene.task)
    return _corrupted(scene, *worked(shown, int(above)), 0, TOP)


def joined(scene: Scene) -> Reply:
    r"""``6-3=3+4=7. \boxed{7}``."""
    notes: Sequence[int] = _heard(scene)
    total, words = 0, ""
    for i, note in enumerate(notes):
        total = step(scene.rng, total, note) if i else note
        words += f"{note:+}={total}" if i else str(note)
    return plain(_boxed(words if len(notes) > 1 else "", total))


def bossed(scene: Scene) -> Reply:
    """A plan with any number of readers, and later what their notes add up to."""
    pages = re.search(r"\n(\d+) pages$", scene.observation)
    if pages is None:
        return joined(Scene(scene.rng, scene.agent, scene.observation, scene.heard[1:], scene.task))
    most = int(pages[1])
    n = scene.rng.randint(1, min(most, 4))
    bounds = [(i * most // n + 1, (i + 1) * most // n) for i in range(n)]
    return plain(rf"\boxed{{{'; '.join(str(a) if a == b else f'{a}-{b}' for a, b in bounds)}}}")


def _total(lengths: Sequence[int] | int, window: int = 0, kinds: str = "total") -> dict[str, object]:
    return {"level": 0, "split": "train", "kinds": kinds, "lengths": lengths, "window": window}


_MAP = {"mapper": page, "reducer": joined}
TEAMS: dict[str, Format] = {
    "docs-solo-v0": Format(14000, {"solo": alone}, _total(1)),
    "docs-chain-v0": Format(4000, {"reader": on}, _total(1)),
    "docs-map-v0": Format(2500, _MAP, _total(1)),
    "docs-memory-v0": Format(3000, {"memory": paged}, _total(1)),
    "docs-boss-v0": Format(1500, {"boss": bossed, "mapper": page}, _total(1)),
}
MORE: list[tuple[str, Format]] = [
    ("docs-solo-v0", Format(4000, {"solo": alone}, _total(2))),
    ("docs-chain-v0", Format(1500, {"reader": on}, _total(2))),
    ("docs-map-v0", Format(1000, _MAP, _total(2))),
    ("docs-boss-v0", Format(1000, {"boss": bossed, "mapper": page}, _total(2, window=40))),
    ("docs-solo-v0", Format(1500, {"solo": alone}, _total(1, kinds="count"))),
    ("docs-chain-v0", Format(600, {"reader": on}, _total(1, kinds="count"))),
    ("docs-map-v0", Format(400, _MAP, _total(1, kinds="count"))),
]
PHRASES = ["system\n", "user\n", "assistant\n", "Sum.\n", "Count ", ". \\boxed{", "\\boxed{", " pages", "; ", ", "]
PHRASES += [f"{sign}{letter}" for sign in "+-" for letter in LETTERS]


def corpus() -> Iterator[str]:
    """Yields documents of level 0."""
    made = Made(None, [1], 0, "train")
    for i in range(400):
        yield f"{made[i].question}\n{made[i].text(0, len(made[i].entries))}"


def score_sets() -> Iterator[ScoreSet]:
    """Yields every team on held-out ledgers of one and two windows."""
    for length in (1, 2):
        for env_id in TEAMS:
            kwargs = {**_total(length, window=0 if "solo" in env_id else 40), "split": "test"}
            ids = [{"task_id": Made(["total"], [length], 0, "test")[i].id} for i in range(300 if length == 1 else 100)]
            yield ScoreSet(env_id, ids, kwargs, tries=8 if length == 1 and env_id == "docs-chain-v0" else 0)


RECIPE = Recipe(TEAMS, PHRASES, corpus, score_sets, steps=1500, short=64, new_tokens=112, more=MORE)
