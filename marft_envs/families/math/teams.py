"""Math teams: who is in them, what their profiles say, and how they depend on each other.

The roles of the dual team are those of arXiv 2504.16129, Appendix B.3, in this project's words. A team is
data: profiles and a dependency function.
"""

from __future__ import annotations

from marft_envs.core.dependency import Chain, Layered
from marft_envs.core.routing import Orchestrator
from marft_envs.core.teams import Team, numbered

_BOX = "End with the final answer in \\boxed{}."

_SOLVER = f"You are a Solver. You solve the math problem on your own, step by step. {_BOX}"
_JUDGE = f"You are the Judge. Compare the solutions of the others, settle where they differ, and answer. {_BOX}"


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
        numbered(("actor", f"You are the Actor. You solve the math problem on your own, step by step. {_BOX}", True)),
        Chain,
    ),
    "dual": Team(
        numbered(
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
        numbered(
            _PLANNER,
            ("reasoner", "You are the Reasoner. Carry out the plan step by step.", False),
            ("actor", f"You are the Actor. Check the steps so far, mend what is wrong, and answer. {_BOX}", True),
        ),
        Chain,
    ),
    "quartet": Team(
        numbered(
            _PLANNER,
            ("reasoner", "You are the Reasoner. Carry out the plan step by step.", False),
            _CRITIC,
            ("actor", f"You are the Actor. Take the steps and the criticism into account, and answer. {_BOX}", True),
        ),
        Chain,
    ),
    "octet": Team(
        numbered(_PLANNER, *[("solver", _SOLVER, False)] * 4, *[_CRITIC] * 2, ("judge", _JUDGE, True)),
        lambda: Layered([["planner_0"], [f"solver_{i}" for i in range(4)], ["critic_0", "critic_1"], ["judge_0"]]),
    ),
    "debate": Team(
        numbered(*[("solver", _SOLVER, False)] * 3, ("judge", _JUDGE, True)),
        lambda: Layered([["solver_0", "solver_1", "solver_2"], ["judge_0"]]),
    ),
    "router": Team(
        numbered(
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
