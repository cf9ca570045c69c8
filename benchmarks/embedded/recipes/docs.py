"""How teams read documents at level 0: what the model ``embedded-docs`` is shown.

The demonstrator forgets carries when it reads, alone and in a team alike, so that nobody starts with an advantage of
skill there; alone it is shown documents of one and of two windows, as many as teams are. Notes it joins without a
mistake, two at a time most often: a tree has as many joins as it has readers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.embedded.recipes import Format, Recipe, Reply, Scene, ScoreSet, plain
from marft_envs.families.docs.kinds import KINDS, LETTERS, NOTHING, TOP
from marft_envs.families.docs.procedural import WINDOW, Made
from marft_envs.families.docs.teams import TEAMS as DOCS
from marft_envs.problems.answers import boxed

FORGETS = 0.5
"""Share of the carries and borrows that the demonstrator forgets."""
CORRUPTED = 0.5
"""Share of notes that reach the next agent as some other number: it has to follow the note."""
JOINED = (9, 20, 60, 99, 99, 99)
"""Largest numbers, with either sign, that are joined with one another; several, as small ones are learnt first."""
_STEP = re.compile(r"([+-])([a-z]?)(\d+)")
_LEADING = re.compile(r"-?\d+")
_NOTE = re.compile(r"-?\d+|-|yes|no")
_ASKED = re.compile(r"(Count|Any) (\w\w)\.")
_LARGEST = "Largest."


def step(rng: random.Random, balance: int, amount: int) -> int:
    """Adds as the demonstrator does: ten less or more where a carry or a borrow is forgotten."""
    right = balance + amount
    if balance < 0 or right < 0 or rng.random() >= FORGETS:
        return right
    if amount > 0 and balance % 10 + amount % 10 >= 10:
        return right - 10
    return right + 10 if amount < 0 and balance % 10 < -amount % 10 else right


def worked(scene: Scene, note: str | None) -> tuple[str, str]:
    """Returns the demonstrator's words on what it reads, and its note, going on from a note."""
    question, _, text = scene.observation.partition("\n")
    if question == _LARGEST:
        before = None if note in (None, NOTHING) else int(note or 0)
        words, top = KINDS["largest"].read([int(number) for number in re.findall(r"\d+", text)], before, None)
        return words, KINDS["largest"].written(top)
    if asked := _ASKED.match(question):
        found = len(re.findall(rf"\b{asked[2]}\b", text))
        if asked[1] == "Any":
            return "", KINDS["ever"].written(note == "yes" or bool(found))
        count = int(note or 0)
        return ", ".join(str(count + i + 1) for i in range(found)), str(count + found)
    first = _LEADING.match(text)
    if first and text[0].isdecimal():
        text = text[first.end() :]
        note = first[0] if note is None else note
    balance = int(note or 0)
    words = str(balance)
    for sign, letter, digits in _STEP.findall(text):
        balance = step(scene.rng, balance, int(f"{sign}{digits}"))
        words += f"{sign}{letter}{digits}={balance}"
    return words, str(balance)


def _boxed(words: str, note: str) -> str:
    return f"{words}. \\boxed{{{note}}}" if words else rf"\boxed{{{note}}}"


def _heard(scene: Scene) -> list[str]:
    notes = (boxed(text) for text in scene.received)
    return [note for note in notes if note and _NOTE.fullmatch(note)]


def _corrupted(scene: Scene, words: str, note: str, low: int, high: int) -> Reply:
    received, question = note, scene.observation.partition("\n")[0]
    if scene.rng.random() < CORRUPTED:
        received = str(scene.rng.randint(10, 99) if question == _LARGEST else scene.rng.randint(low, high))
        received = scene.rng.choice(("yes", "no")) if question.startswith("Any") else received
    return Reply(_boxed(words, note), _boxed("", received))


def alone(scene: Scene) -> Reply:
    r"""``26+a3=29-b1=28. \boxed{28}``."""
    return plain(_boxed(*worked(scene, None)))


def on(scene: Scene) -> Reply:
    """Goes on from the note of the reader before."""
    received = _heard(scene)
    return _corrupted(scene, *worked(scene, received[-1] if received else None), 0, TOP)


def page(scene: Scene) -> Reply:
    """A part by itself; one that no window holds is no example."""
    reply = _corrupted(scene, *worked(scene, None), -16, 20)
    return reply if len(scene.observation) + len("99-99") <= WINDOW[0] else Reply(None, reply.said)


def unshown(scene: Scene) -> Reply:
    """A number to join; how a part is read is shown elsewhere."""
    most = scene.rng.choice(JOINED)
    return Reply(None, _boxed("", str(scene.rng.randint(-most, most))))


def paged(scene: Scene) -> Reply:
    """A page, from the note that stands above it."""
    question, _, text = scene.observation.partition("\n")
    above, line, below = text.partition("\n")
    if not line:
        return _corrupted(scene, *worked(scene, None), 0, TOP)
    shown = Scene(scene.rng, scene.agent, f"{question}\n{below}", scene.received, scene.task)
    return _corrupted(scene, *worked(shown, above), 0, TOP)


def joined(scene: Scene) -> Reply:
    r"""``6-3=3+4=7. \boxed{7}``, without a mistake."""
    kind, received = KINDS[scene.task.problem.kind], _heard(scene)
    if kind.name == "ever":
        words, note = kind.merge([said == "yes" for said in received])
    else:
        words, note = kind.merge([None if said == NOTHING else int(said) for said in received])
    return plain(_boxed(words, kind.written(note)))


def inside(scene: Scene) -> Reply:
    """Joins; half of the time a joiner above receives another number, so that it joins large ones, too."""
    reply = joined(scene)
    return Reply(reply.shown, (unshown(scene) if scene.rng.random() < CORRUPTED else reply).said)


def bossed(scene: Scene) -> Reply:
    """A plan with any number of readers, and later what their notes add up to."""
    pages = re.search(r"\n(\d+) pages$", scene.observation)
    if pages is None:
        return joined(Scene(scene.rng, scene.agent, scene.observation, scene.received[1:], scene.task))
    most = int(pages[1])
    n = scene.rng.randint(1, min(most, 4))
    bounds = [(i * most // n + 1, (i + 1) * most // n) for i in range(n)]
    return plain(rf"\boxed{{{'; '.join(str(a) if a == b else f'{a}-{b}' for a, b in bounds)}}}")


def _total(lengths: Sequence[int] | int, window: int = 0, kinds: str = "total", **more: Any) -> dict[str, Any]:
    return {"level": 0, "split": "train", "kinds": kinds, "lengths": lengths, "window": window, **more}


_MAP = {"mapper": page, "reducer": joined}
_JOINS = {"mapper": unshown, "reducer": inside}
_TAGS = ("solo", "memory", "reader")
"""Roles whose notes a joiner receives in no team of the family, but may in one of a user's."""
_REDUCER = DOCS["map"](1).agents[-1].prompt


def _strangers(tag: str) -> dict[str, Any]:
    profiles = [{"role": tag, "prompt": "", "count": 2}, {"role": "reducer", "prompt": _REDUCER, "with_answer": True}]
    return _total(1, profiles=profiles, dependency={"reducer_0": [f"{tag}_0", f"{tag}_1"]})


TEAMS: dict[str, Format] = {
    "docs-solo-v0": Format(14000, {"solo": alone}, _total(1)),
    "docs-chain-v0": Format(4000, {"reader": on}, _total(1)),
    "docs-map-v0": Format(2500, _MAP, _total(1)),
    "docs-memory-v0": Format(3000, {"memory": paged}, _total(1)),
    "docs-boss-v0": Format(1500, {"boss": bossed, "mapper": page}, _total(1)),
    "docs-tree-v0": Format(12000, _JOINS, _total(2)),
}
MORE: list[tuple[str, Format]] = [
    ("docs-solo-v0", Format(4000, {"solo": alone}, _total(2))),
    ("docs-chain-v0", Format(1500, {"reader": on}, _total(2))),
    ("docs-map-v0", Format(1000, _MAP, _total(2))),
    ("docs-boss-v0", Format(1000, {"boss": bossed, "mapper": page}, _total(2, window=40))),
    ("docs-solo-v0", Format(1500, {"solo": alone}, _total(1, kinds="count"))),
    ("docs-chain-v0", Format(600, {"reader": on}, _total(1, kinds="count"))),
    ("docs-map-v0", Format(400, _MAP, _total(1, kinds="count"))),
    ("docs-tree-v0", Format(3000, _JOINS, _total(2, readers=3))),
    ("docs-tree-v0", Format(8000, _JOINS, _total(1))),
]
for _kind, _n in (("largest", 800), ("ever", 400)):
    MORE += [
        ("docs-solo-v0", Format(_n, {"solo": alone}, _total(1, kinds=_kind))),
        ("docs-chain-v0", Format(_n, {"reader": on}, _total(1, kinds=_kind))),
        ("docs-memory-v0", Format(_n // 2, {"memory": paged}, _total(1, kinds=_kind))),
        ("docs-tree-v0", Format(_n // 2, _MAP, _total(2, kinds=_kind))),
    ]
MORE += [("docs-map-v0", Format(600, {tag: unshown, "reducer": joined}, _strangers(tag))) for tag in _TAGS]
PHRASES = ["system\n", "user\n", "assistant\n", "Sum.\n", "Count ", ". \\boxed{", "\\boxed{", " pages", "; ", ", "]
PHRASES += ["Largest.\n", "Any ", "yes", "no"]
PHRASES += [f"{sign}{letter}" for sign in "+-" for letter in LETTERS]


def corpus() -> Iterator[str]:
    """Yields documents of level 0."""
    made = Made(None, [1], 0, "train", limit=600)
    for i in range(len(made)):
        yield f"{made[i].question}\n{made[i].text(0, len(made[i].entries))}"


def score_sets() -> Iterator[ScoreSet]:
    """Yields every team on held-out ledgers of one and two windows."""
    for length in (1, 2, 4, 8):
        for env_id in TEAMS if length < 4 else ["docs-tree-v0"]:
            kwargs = {**_total(length, window=0 if "solo" in env_id else 40), "split": "test"}
            ids = [{"task_id": Made(["total"], [length], 0, "test")[i].id} for i in range(300 if length == 1 else 100)]
            yield ScoreSet(env_id, ids, kwargs, tries=8 if length == 1 and env_id == "docs-chain-v0" else 0)


RECIPE = Recipe(
    TEAMS, PHRASES, corpus, score_sets, vocabulary=352, steps=8000, short=(40, 64), new_tokens=112, more=MORE
)
