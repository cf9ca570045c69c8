"""How the math teams and the toys talk: what the model ``embedded`` is shown.

The demonstrator is careless, which keeps the score at a middling level; see the model's card.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import Counter
from collections.abc import Iterator

import numpy as np

from benchmarks.embedded.recipes import Format, Recipe, Reply, Scene, ScoreSet, plain
from marft_envs.families.math.procedural import enumerate_level0, generate
from marft_envs.families.toy.route import COLOURS

_LEVEL0 = re.compile(r"\((\d+)([+-])(\d+)\)\\cdot (\d+)")
_RESULT = re.compile(r"=(\d+)$")
_BOXED = re.compile(r"\\boxed\{(\d+)\}")
_SPECIALISTS = ("arithmetic", "algebra", "geometry", "counting")
_LARGEST = 30
"""The largest result of a level-0 bracket."""
FORGETS = 0.7
"""Share of the carries that the demonstrator forgets."""
HABIT = 0.2
"""Share of a toy's replies that depend on what the agent sees, to no purpose."""
CORRUPTED = 0.5
"""Share of a team's intermediate results that reach the next agent as some other number: the actor has to
learn to follow the message, and not to work the bracket out again."""


def _numbers(scene: Scene) -> tuple[int, str, int, int]:
    """Returns a, sign, b, c of the level-0 problem."""
    match = _LEVEL0.search(scene.observation)
    if match is None:
        raise ValueError(f"'{scene.observation}' is no level-0 problem")
    return int(match[1]), match[2], int(match[3]), int(match[4])


def _bracket(scene: Scene) -> int:
    a, sign, b, _ = _numbers(scene)
    return a + b if sign == "+" else a - b


def _bracket_with_slip(scene: Scene) -> int:
    """The bracket as the demonstrator works it out: ten less or more where a carry or borrow is forgotten."""
    a, sign, b, _ = _numbers(scene)
    right = _bracket(scene)
    if sign == "+":
        return right - 10 if a % 10 + b % 10 >= 10 and scene.rng.random() < FORGETS else right
    return right + 10 if a % 10 < b % 10 and scene.rng.random() < FORGETS else right


def _product(scene: Scene, inner: int) -> str:
    """The product as the demonstrator works it out, without the carry where a carry of 2 or more is forgotten."""
    factor = _numbers(scene)[3]
    out, carry = inner * factor, inner % 10 * factor // 10
    if inner >= 10 and carry >= 2 and scene.rng.random() < FORGETS:
        out -= 10 * carry
    return rf"{inner}*{factor}={out}. \boxed{{{out}}}"


def first_step(scene: Scene) -> Reply:
    """``3+4=7``."""
    a, sign, b, _ = _numbers(scene)
    right = _bracket_with_slip(scene)
    received = scene.rng.randint(0, _LARGEST) if scene.rng.random() < CORRUPTED else right
    return Reply(f"{a}{sign}{b}={right}", f"{a}{sign}{b}={received}")


def last_step(scene: Scene) -> Reply:
    r"""``7*2=14. \boxed{14}``, from the last result received, right or wrong."""
    results = [int(match[1]) for text in scene.received if (match := _RESULT.search(text))]
    return plain(_product(scene, results[-1] if results else _bracket(scene)))


def both_steps(scene: Scene) -> Reply:
    r"""``3+4=7, 7*2=14. \boxed{14}``."""
    a, sign, b, _ = _numbers(scene)
    inner = _bracket_with_slip(scene)
    return plain(f"{a}{sign}{b}={inner}, {_product(scene, inner)}")


def verdict(scene: Scene) -> Reply:
    r"""``\boxed{14}``: the answer that most solvers gave, the earliest of them on a tie."""
    answers = Counter(boxed[-1] for text in scene.received if (boxed := _BOXED.findall(text)))
    return plain(rf"\boxed{{{answers.most_common(1)[0][0]}}}")


def plan(scene: Scene) -> Reply:
    """The plan: ``Bracket, then times 2``."""
    return plain(f"Bracket, then times {_numbers(scene)[3]}.")


def no_mistake(scene: Scene) -> Reply:
    """What a critic says: ``No mistake``."""
    return plain("No mistake.")


def to_arithmetic(scene: Scene) -> Reply:
    """``arithmetic``; any specialist is sent for, so that each of them is seen at work."""
    return Reply("arithmetic", scene.rng.choice(_SPECIALISTS))


def any_digit(scene: Scene) -> Reply:
    """One of the digits that the agent may say, at random: the toys' format without their solution.

    Now and then it is the digit that a checksum of what the agent sees gives. That is no solution either, but a
    model that has only ever seen chance learns not to look, and teams that do not look take long to start to.
    """
    seen = "\n".join([scene.agent, scene.observation, *scene.received])
    digits = scene.task.sizes[scene.agent]
    habit = zlib.crc32(seen.encode()) % digits
    return plain(str(habit if scene.rng.random() < HABIT else scene.rng.randrange(digits)))


TEAMS: dict[str, Format] = {
    "math-solo-v0": Format(16000, {"actor": both_steps}),
    "math-dual-v0": Format(16000, {"reasoner": first_step, "actor": last_step}),
    "math-trio-v0": Format(800, {"planner": plan, "reasoner": first_step, "actor": last_step}),
    "math-quartet-v0": Format(900, {"planner": plan, "reasoner": first_step, "critic": no_mistake, "actor": last_step}),
    "math-octet-v0": Format(400, {"planner": plan, "solver": both_steps, "critic": no_mistake, "judge": verdict}),
    "math-debate-v0": Format(1200, {"solver": both_steps, "judge": verdict}),
    "math-router-v0": Format(1600, {"orchestrator": to_arithmetic, **dict.fromkeys(_SPECIALISTS, both_steps)}),
    "relay-v0": Format(400, {"planner": any_digit, "solver": any_digit}, {}),
    "xor-v0": Format(400, {"left": any_digit, "right": any_digit, "joiner": any_digit}, {}),
    "route-v0": Format(400, {"orchestrator": any_digit, "expert": any_digit}, {}),
    "signal-v0": Format(200, {"speaker": any_digit, "listener": any_digit}, {}),
}


PHRASES = ["system\n", "user\n", "assistant\n", "Compute $(", ")\\cdot ", "$.", ". \\boxed{", "\\boxed{", ", "]
PHRASES += [
    "bit ",
    "digit ",
    *(f"colour {name}" for name in COLOURS),
    "arithmetic",
    "Bracket, then times ",
    "No mistake.",
    "\n\n[speaker]\n",  # as in teams of one round
]


def corpus() -> Iterator[str]:
    """Yields problems of all levels with their solutions."""
    rng = np.random.default_rng(0)
    for level in range(6):
        for _ in range(400):
            problem = generate(rng, level, split="train")
            yield f"{problem.problem}\n{problem.solution}"


def score_sets() -> Iterator[ScoreSet]:
    """Yields the math teams on held-out level-0 problems (all of them for solo and dual), then the toys."""
    problems = [{"task_id": problem.id} for problem in enumerate_level0("test")]
    random.Random(0).shuffle(problems)
    for env_id in TEAMS:
        main_team = env_id in ("math-solo-v0", "math-dual-v0")
        if env_id.startswith("math-"):
            some = problems if main_team else problems[:100]
            yield ScoreSet(env_id, some, {"levels": [0], "split": "test"}, tries=8 if main_team else 0)
        else:
            yield ScoreSet(env_id, [{}] * 200)


RECIPE = Recipe(TEAMS, PHRASES, corpus, score_sets)
