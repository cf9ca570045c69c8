"""Math teams: who is in them, what their profiles say, and how they depend on each other.

The roles of the dual team are those of arXiv 2504.16129, Appendix B.3, in this project's words. A team is
data: profiles and a dependency function.
"""

from __future__ import annotations

from marft_envs.core.dependency import Chain, Layered
from marft_envs.core.routing import Orchestrator
from marft_envs.core.teams import Team, numbered

Member = tuple[str, str, bool]
"""Role, profile, and whether it answers."""


def _answers(role: str, prompt: str) -> Member:
    return role, f"{prompt} End with the final answer in \\boxed{{}}.", True


def _specialist(role: str, field: str) -> Member:
    return _answers(role, f"You are the specialist for {field}. Solve the problem step by step.")


SPECIALISTS = {
    "Prealgebra": "arithmetic",
    "Number Theory": "arithmetic",
    "Algebra": "algebra",
    "Intermediate Algebra": "algebra",
    "Precalculus": "algebra",
    "Geometry": "geometry",
    "Counting & Probability": "counting",
}
"""Subject of MATH -> role of the specialist who knows it best; those of other data are the first one's."""


_PLANNER = ("planner", "You are the Planner. Name the steps that solve the problem; do not carry them out.", False)
_REASONER = ("reasoner", "You are the Reasoner. Carry out the plan step by step.", False)
_CRITIC = (
    "critic",
    "You are a Critic. Name the first mistake in the solutions so far, or say that there is none.",
    False,
)
_FIRST_OF_TWO = (
    "reasoner",
    "You are the Reasoner in a team of two: Reasoner, then Actor. Work out the step that the problem hinges on and "
    "pass it to the Actor in a few words.",
    False,
)
_SECOND_OF_TWO = (
    "You are the Actor in a team of two: Reasoner, then Actor. Carry on from the Reasoner's words and solve the "
    "problem."
)
_CHECKS = "You are the Actor. Check the steps so far, mend what is wrong, and answer."
_CRITICISED = "You are the Actor. Take the steps and the criticism into account, and answer."
_SOLVER = (*_answers("solver", "You are a Solver. You solve the math problem on your own, step by step.")[:2], False)
_JUDGE = _answers(
    "judge", "You are the Judge. Compare the solutions of the others, settle where they differ, and answer."
)
_ORCHESTRATOR = (
    "orchestrator",
    "You are the Orchestrator. Name the one specialist who should solve the problem: arithmetic, algebra, geometry or "
    "counting.",
    False,
)

TEAMS: dict[str, Team] = {
    "solo": Team(
        numbered(_answers("actor", "You are the Actor. You solve the math problem on your own, step by step.")), Chain
    ),
    "dual": Team(numbered(_FIRST_OF_TWO, _answers("actor", _SECOND_OF_TWO)), Chain),
    "trio": Team(numbered(_PLANNER, _REASONER, _answers("actor", _CHECKS)), Chain),
    "quartet": Team(numbered(_PLANNER, _REASONER, _CRITIC, _answers("actor", _CRITICISED)), Chain),
    "octet": Team(
        numbered(_PLANNER, *[_SOLVER] * 4, *[_CRITIC] * 2, _JUDGE),
        lambda: Layered([["planner_0"], [f"solver_{i}" for i in range(4)], ["critic_0", "critic_1"], ["judge_0"]]),
    ),
    "debate": Team(
        numbered(*[_SOLVER] * 3, _JUDGE), lambda: Layered([["solver_0", "solver_1", "solver_2"], ["judge_0"]])
    ),
    "router": Team(
        numbered(
            _ORCHESTRATOR,
            _specialist("arithmetic", "arithmetic and number theory"),
            _specialist("algebra", "algebra and precalculus"),
            _specialist("geometry", "geometry"),
            _specialist("counting", "counting and probability"),
        ),
        lambda: Orchestrator("orchestrator_0", default="arithmetic_0"),
    ),
}
