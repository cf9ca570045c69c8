"""How the coding teams talk: what the model ``embedded-code`` is shown.

The demonstrator reads carelessly: it takes ``smaller`` for ``larger``, ``less`` for ``more`` and ``minus`` for
``plus`` most of the time, which keeps the score at a middling level. An adviser (planner, reflector) is as careless,
and who is advised writes what the adviser says, right or wrong, and repeats itself too often.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from benchmarks.embedded.recipes import Format, Recipe, Reply, Scene, ScoreSet, plain
from marft_envs.families.code.procedural import enumerate_level0, mutants

SLIP = 0.65
"""Share of the words below that the demonstrator misreads."""
_MISREAD = (("min(", "max("), ("<", ">"), ("-", "+"), ("abs(", "("), ("[::-1]", ""))
"""What the gold expression has -> what a careless reader makes of it."""
CORRUPTED = 0.3
"""Share of an adviser's words that reach the writer as another expression of the problem's family: the writer has to
learn to follow, and not to work the problem out again."""
STUBBORN = 0.4
"""Share of programs that are repeated although they failed, whatever the adviser says."""
_RETURN = re.compile(r"return (.+)")


def _gold(scene: Scene) -> str:
    """The expression of the canonical solution."""
    return _expression(scene.task.problem.solution)


def _expression(program: str) -> str:
    match = _RETURN.search(program)
    return match[1].strip() if match else ""


def _careless(scene: Scene) -> str:
    """The expression as the demonstrator reads it."""
    text = _gold(scene)
    for right, wrong in _MISREAD:
        if right in text and scene.rng.random() < SLIP:
            text = text.replace(right, wrong, 1)
    return text


def _program(scene: Scene, expression: str) -> Reply:
    return plain(f"```python\n{scene.task.problem.starter_code}\n    return {expression}\n```")


def writes(scene: Scene) -> Reply:
    """A program of one's own."""
    return _program(scene, _careless(scene))


def advises(scene: Scene) -> Reply:
    """Says ``Try max(a,b).``."""
    words = f"Try {_careless(scene)}."
    if scene.rng.random() >= CORRUPTED:
        return plain(words)
    return Reply(words, f"Try {_expression(scene.rng.choice(mutants(scene.task.problem)))}.")


def follows(scene: Scene) -> Reply:
    """The program that the last adviser's message has in mind; one's own where there was none."""
    programs = [text for text in scene.received if "return " in text]
    advice = [text for text in scene.received if text.startswith("Try ")]
    if programs and scene.rng.random() < STUBBORN:
        return plain(programs[-1])
    return _program(scene, advice[-1][4:-1]) if advice else writes(scene)


def repeats(scene: Scene) -> Reply:
    """The program of the last message."""
    return plain([text for text in scene.received if "return " in text][-1])


def fixes(scene: Scene) -> Reply:
    """After the tests: the same program, or another reading."""
    programs = [text for text in scene.received if "return " in text]
    return plain(programs[-1]) if programs and scene.rng.random() < STUBBORN else writes(scene)


def tests(scene: Scene) -> Reply:
    """The tests of the statement, again."""
    return plain("\n".join(line for line in scene.observation.split("\n") if line.startswith("f(") and " == " in line))


_LEVEL = {"levels": [0], "split": "train"}

TEAMS: dict[str, Format] = {
    "code-solo-v0": Format(2500, {"coder": writes}, _LEVEL),
    "code-dual-v0": Format(1500, {"planner": advises, "coder": follows}, _LEVEL),
    "code-reflect-v0": Format(4000, {"coder": follows, "reflector": advises}, _LEVEL),
    "code-trio-v0": Format(700, {"planner": advises, "coder": follows, "reviewer": repeats}, _LEVEL),
    "code-tester-v0": Format(700, {"coder": fixes, "tester": tests}, _LEVEL),
}

_SIGNATURES = ("f(a)", "f(a, b)", "f(a, b, c)", "f(x)", "f(s)", "f(s, t)")
PHRASES = ["system\n", "user\n", "assistant\n", "```python\n", "\n    return ", "\n```", "Try ", "\n\n", " == ", " -> "]
PHRASES += [" public tests passed.\n", ", expected "]
PHRASES += [text for f in _SIGNATURES for text in (f"def {f}:", f"{f}: ")]


def corpus() -> Iterator[str]:
    """Yields level-0 problems with their solutions."""
    for problem in enumerate_level0("train"):
        yield f"{problem.prompt}\n{problem.solution}\n{problem.public[0].expected}"


def score_sets() -> Iterator[ScoreSet]:
    """Yields the teams on held-out level-0 problems."""
    problems = [{"task_id": problem.id} for problem in enumerate_level0("test")]
    random.Random(0).shuffle(problems)
    held_out = {"levels": [0], "split": "test"}
    yield ScoreSet("code-reflect-v0", problems[:400], held_out, tries=4)
    yield ScoreSet("code-reflect-v0", problems[:400], {**held_out, "rounds": 1})
    for team in ("solo", "dual", "trio", "tester"):
        yield ScoreSet(f"code-{team}-v0", problems[:200], held_out)


RECIPE = Recipe(TEAMS, PHRASES, corpus, score_sets, steps=1300, short=(110,), new_tokens=40, beside="format")
