"""Math teams: who is in them, what their profiles say, and how they depend on each other.

The roles of the dual team are those of arXiv 2504.16129, Appendix B.3, in this project's words. A team is
data: profiles and a dependency function. Profiles can also be read from a JSON file in the released
format, a list of ``{"role", "prompt", "with_answer"}``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft_envs.dependency import Chain, DependencyFunction, Layered
from marft_envs.errors import ConfigError, did_you_mean
from marft_envs.routing import Orchestrator
from marft_envs.types import AgentSpec

_BOX = "End with the final answer in \\boxed{}."

_SOLVER = f"You are a Solver. You solve the math problem on your own, step by step. {_BOX}"
_JUDGE = f"You are the Judge. Compare the solutions of the others, settle where they differ, and answer. {_BOX}"


@dataclass(frozen=True)
class Team:
    """Agents in canonical order and their default D."""

    agents: tuple[AgentSpec, ...]
    dependency: Callable[[], DependencyFunction]


def _agents(*members: tuple[str, str, bool]) -> tuple[AgentSpec, ...]:
    """Numbers the members of each role: ``solver_0``, ``solver_1`` and so on."""
    seen: Counter[str] = Counter()
    out = []
    for role, prompt, with_answer in members:
        out.append(AgentSpec(f"{role}_{seen[role]}", role, prompt, with_answer))
        seen[role] += 1
    return tuple(out)


def _specialist(role: str, field: str) -> tuple[str, str, bool]:
    return role, f"You are the specialist for {field}. Solve the problem step by step. {_BOX}", True


_PLANNER = ("planner", "You are the Planner. Name the steps that solve the problem; do not carry them out.", False)
_CRITIC = (
    "critic",
    "You are a Critic. Name the first mistake in the solutions so far, or say that there is none.",
    False,
)

TEAMS: dict[str, Team] = {
    "solo": Team(
        _agents(("actor", f"You are the Actor. You solve the math problem on your own, step by step. {_BOX}", True)),
        Chain,
    ),
    "dual": Team(
        _agents(
            (
                "reasoner",
                "You are the Reasoner in a team of two: Reasoner, then Actor. Work out the step that the problem "
                "hinges on and pass it to the Actor in a few words.",
                False,
            ),
            (
                "actor",
                "You are the Actor in a team of two: Reasoner, then Actor. Carry on from the Reasoner's words and "
                f"solve the problem. {_BOX}",
                True,
            ),
        ),
        Chain,
    ),
    "trio": Team(
        _agents(
            _PLANNER,
            ("reasoner", "You are the Reasoner. Carry out the plan step by step.", False),
            ("actor", f"You are the Actor. Check the steps so far, mend what is wrong, and answer. {_BOX}", True),
        ),
        Chain,
    ),
    "quartet": Team(
        _agents(
            _PLANNER,
            ("reasoner", "You are the Reasoner. Carry out the plan step by step.", False),
            _CRITIC,
            ("actor", f"You are the Actor. Take the steps and the criticism into account, and answer. {_BOX}", True),
        ),
        Chain,
    ),
    "octet": Team(
        _agents(_PLANNER, *[("solver", _SOLVER, False)] * 4, *[_CRITIC] * 2, ("judge", _JUDGE, True)),
        lambda: Layered([["planner_0"], [f"solver_{i}" for i in range(4)], ["critic_0", "critic_1"], ["judge_0"]]),
    ),
    "debate": Team(
        _agents(*[("solver", _SOLVER, False)] * 3, ("judge", _JUDGE, True)),
        lambda: Layered([["solver_0", "solver_1", "solver_2"], ["judge_0"]]),
    ),
    "router": Team(
        _agents(
            (
                "orchestrator",
                "You are the Orchestrator. Name the one specialist who should solve the problem: "
                "arithmetic, algebra, geometry or counting.",
                False,
            ),
            _specialist("arithmetic", "arithmetic and number theory"),
            _specialist("algebra", "algebra and precalculus"),
            _specialist("geometry", "geometry"),
            _specialist("counting", "counting and probability"),
        ),
        lambda: Orchestrator("orchestrator_0", default="arithmetic_0"),
    ),
}


def team(name: str) -> Team:
    """Returns the team of that name, or raises a ConfigError that names the nearest."""
    if name not in TEAMS:
        raise ConfigError(f"There is no math team '{name}'. {did_you_mean(name, TEAMS)}")
    return TEAMS[name]


_CHATML = re.compile(r"^<\|im_start\|>\s*system\s*:?\s*|\s*<\|im_end\|>\s*$")


def load_profiles(source: str | Path | Sequence[Mapping[str, Any]]) -> tuple[AgentSpec, ...]:
    r"""Returns the agents of a profile list in the released format, acting in the order listed.

    Hand-written ChatML around a prompt is taken off (the model's own chat template puts it on), and
    doubled braces become single ones: ``\boxed{{}}`` is a leftover of Python formatting.

    Args:
        source: Path of a JSON file, or the list itself: ``role``, ``prompt``, ``with_answer``.

    Raises:
        ConfigError: If the file or an entry is malformed, or no agent answers.
    """
    where = "profiles"
    entries: Any = source
    if isinstance(source, str | Path):
        where = str(source)
        try:
            entries = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"Cannot read profiles from {source}: {error}. Expected a JSON list of profiles."
            ) from error
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise ConfigError(f'{where}: expected a list of {{"role", "prompt", "with_answer"}}.')
    members = []
    for i, entry in enumerate(entries):
        if (
            not isinstance(entry, Mapping)
            or not isinstance(entry.get("role"), str)
            or not isinstance(entry.get("prompt"), str)
        ):
            raise ConfigError(
                f'{where}, entry {i}: expected {{"role": text, "prompt": text, "with_answer": true or false}}.'
            )
        role = re.sub(r"[^a-z]+", "_", entry["role"].lower()).strip("_") or "agent"
        prompt = _CHATML.sub("", entry["prompt"]).replace("{{", "{").replace("}}", "}").strip()
        members.append((role, prompt, bool(entry.get("with_answer", False))))
    agents = _agents(*members)
    check_answerer(agents, where)
    return agents


def check_answerer(agents: Sequence[AgentSpec], where: str) -> None:
    """Raises a ConfigError unless somebody's action is the team's answer."""
    if not any(agent.with_answer for agent in agents):
        roles = ", ".join(agent.role for agent in agents)
        raise ConfigError(
            f'{where}: no agent answers ({roles}). Set "with_answer": true on the one whose \\boxed{{}} counts.'
        )
