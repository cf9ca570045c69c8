"""What the embedded model is shown before reinforcement learning: how each team talks.

One entry of ``TEAMS`` is one team's format: role -> the reply expected of it. Episodes are played in the
environments themselves, so the model is shown exactly the prompts that training will show it.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import marft_envs
from marft_envs import FlexEnv

Messages = Sequence[Mapping[str, str]]

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


@dataclass(frozen=True)
class Scene:
    """What a demonstrator knows when it is an agent's turn."""

    rng: random.Random
    agent: str
    observation: str
    """The task observation, for a math task the problem."""
    heard: Sequence[str]
    """The texts that this agent sees, oldest first."""
    digits: int = 0
    """How many digits this agent may say (toys)."""

    def numbers(self) -> tuple[int, str, int, int]:
        """Returns a, sign, b, c of the level-0 problem."""
        match = _LEVEL0.search(self.observation)
        if match is None:
            raise ValueError(f"'{self.observation}' is no level-0 problem")
        return int(match[1]), match[2], int(match[3]), int(match[4])


@dataclass(frozen=True)
class Reply:
    """What the model is shown, and what the other agents hear (the same unless corrupted)."""

    shown: str
    said: str


Demonstrator = Callable[[Scene], Reply]


def _bracket(scene: Scene) -> int:
    a, sign, b, _ = scene.numbers()
    return a + b if sign == "+" else a - b


def _bracket_with_slip(scene: Scene) -> int:
    """The bracket as the demonstrator works it out: ten less or more where a carry or borrow is forgotten."""
    a, sign, b, _ = scene.numbers()
    right = _bracket(scene)
    if sign == "+":
        return right - 10 if a % 10 + b % 10 >= 10 and scene.rng.random() < FORGETS else right
    return right + 10 if a % 10 < b % 10 and scene.rng.random() < FORGETS else right


def _product(scene: Scene, inner: int) -> str:
    """The product as the demonstrator works it out, without the carry where a carry of 2 or more is forgotten."""
    factor = scene.numbers()[3]
    out, carry = inner * factor, inner % 10 * factor // 10
    if inner >= 10 and carry >= 2 and scene.rng.random() < FORGETS:
        out -= 10 * carry
    return rf"{inner}*{factor}={out}. \boxed{{{out}}}"


def plain(text: str) -> Reply:
    """What is shown is what is said."""
    return Reply(text, text)


def first_step(scene: Scene) -> Reply:
    """``3+4=7``."""
    a, sign, b, _ = scene.numbers()
    right = _bracket_with_slip(scene)
    heard = scene.rng.randint(0, _LARGEST) if scene.rng.random() < CORRUPTED else right
    return Reply(f"{a}{sign}{b}={right}", f"{a}{sign}{b}={heard}")


def last_step(scene: Scene) -> Reply:
    r"""``7*2=14. \boxed{14}``, from the last result heard, right or wrong."""
    found = [int(match[1]) for text in scene.heard if (match := _RESULT.search(text))]
    return plain(_product(scene, found[-1] if found else _bracket(scene)))


def both_steps(scene: Scene) -> Reply:
    r"""``3+4=7, 7*2=14. \boxed{14}``."""
    a, sign, b, _ = scene.numbers()
    inner = _bracket_with_slip(scene)
    return plain(f"{a}{sign}{b}={inner}, {_product(scene, inner)}")


def verdict(scene: Scene) -> Reply:
    r"""``\boxed{14}``: the answer that most solvers gave, the earliest of them on a tie."""
    answers = Counter(found[-1] for text in scene.heard if (found := _BOXED.findall(text)))
    return plain(rf"\boxed{{{answers.most_common(1)[0][0]}}}")


def plan(scene: Scene) -> Reply:
    """The plan: ``Bracket, then times 2``."""
    return plain(f"Bracket, then times {scene.numbers()[3]}.")


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
    seen = "\n".join([scene.agent, scene.observation, *scene.heard])
    habit = zlib.crc32(seen.encode()) % scene.digits
    return plain(str(habit if scene.rng.random() < HABIT else scene.rng.randrange(scene.digits)))


@dataclass(frozen=True)
class Format:
    """One team's format."""

    episodes: int
    """How many episodes are shown."""
    roles: Mapping[str, Demonstrator]
    kwargs: Mapping[str, object] = field(default_factory=lambda: {"levels": [0], "split": "train"})


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


def play(env_id: str, form: Format, rng: random.Random) -> list[tuple[Messages, str]]:
    """Plays a team's episodes by its demonstrators and returns (prompt, reply) pairs."""
    env = marft_envs.make(env_id, **form.kwargs)
    pairs: list[tuple[Messages, str]] = []
    for _ in range(form.episodes):
        env.reset(seed=rng.randrange(2**31))
        while not env.done:
            agent = env.ready_agents[0]
            reply = form.roles[env.profile(agent).role](_scene(env, agent, rng))
            pairs.append((env.messages(agent), reply.shown))
            env.select(agent)
            env.step(reply.said)
    env.close()
    return pairs


def _scene(env: FlexEnv, agent: str, rng: random.Random) -> Scene:
    heard = [env.episode.turns[i].text for i in env.planned(agent).sees]
    sizes: Mapping[str, int] = getattr(env.task, "sizes", {})
    return Scene(rng, agent, env.task.observe(agent), heard, sizes.get(agent, 0))
