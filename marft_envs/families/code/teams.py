"""Coding teams: who is in them, what their profiles say, and how they depend on each other.

A team is data: profiles, a dependency function and a number of rounds. An agent tagged ``with_answer`` writes
programs, and the last program counts; an agent with the role ``tester`` proposes tests; all others advise.
"""

from __future__ import annotations

from functools import partial

from marft_envs.core.dependency import Chain, View
from marft_envs.core.routing import Router
from marft_envs.core.teams import Team, member
from marft_envs.core.types import AgentSpec, Turn

TESTER = "tester"
"""The role whose words are read as tests."""

_BLOCK = "Give the whole program in one ```python block."


def reflecting(view: View) -> list[str | Turn]:
    """D of the reflecting team: the coder; from the second round on the reflector first, on the program that failed.

    The reflector sees the last program; the coder sees its own last program and the reflector's words on it.
    """
    last = view.latest("coder_0", before=view.round_start)
    if last is None:
        return [Turn("coder_0")] if view.layer == 0 else []
    if view.layer == 0:
        return [Turn("reflector_0", (last,))]
    return [Turn("coder_0", (last, *range(view.round_start, len(view.history))))] if view.layer == 1 else []


def retrying(view: View) -> list[str | Turn]:
    """D of the coder alone: round after round it sees its own last program, as the reflecting team's coder does."""
    last = view.latest("coder_0", before=view.round_start)
    return [Turn("coder_0", () if last is None else (last,))] if view.layer == 0 else []


def testing(view: View) -> list[str | Turn]:
    """D of the team with a tester: coder and tester side by side, then the coder again, who sees both."""
    if view.layer == 0:
        return [Turn("coder_0"), Turn("tester_0")]
    return ["coder_0"] if view.layer == 1 else []


def _writer(role: str, prompt: str) -> AgentSpec:
    return member(role, f"{prompt} {_BLOCK}", with_answer=True)


_PLANNER = member(
    "planner",
    "You are the Planner. Name the steps of a Python program that solves the problem, and the cases that are easily "
    "missed, in a few lines. Do not write the program.",
)
_REFLECTOR = member(
    "reflector",
    "You are the Reflector. The Coder's program has failed public tests. Say what is wrong with it and how to mend it, "
    "in a few lines. Do not write the program.",
)
_TESTER = member(
    TESTER,
    "You are the Tester. Propose up to 8 tests, one a line, of cases that are easily missed: "
    '`f(2, 3) == 7` with literals for the arguments and the value; or `"2 3\\n" == "5\\n"`, input and output, for a '
    "program that reads standard input.",
)
_ALONE = "You are the Coder. You solve the programming problem in Python."
_PLANNED = (
    "You are the Coder in a team of two: Planner, then Coder. Follow the plan where it is right, and solve the problem "
    "in Python."
)
_REFLECTED = (
    "You are the Coder in a team with a Reflector. Solve the problem in Python. If a program of yours has failed, mend "
    "it by the feedback and the Reflector's words."
)
_RETRIED = f"{_ALONE} If a program of yours has failed, mend it by the feedback."
_TESTED = (
    "You are the Coder in a team with a Tester. Solve the problem in Python. Your second turn comes after your program "
    "has been run: mend it, or repeat it if it is right."
)
_REVIEWED = "You are the Coder. Follow the plan where it is right, and solve the problem in Python."
_REVIEWER = (
    "You are the Reviewer. Your program is the team's answer: repeat the Coder's if it is right, mend it if it is not."
)

TEAMS: dict[str, Team] = {
    "solo": Team((_writer("coder", _ALONE),), Chain),
    "dual": Team((_PLANNER, _writer("coder", _PLANNED)), Chain),
    "reflect": Team((_writer("coder", _REFLECTED), _REFLECTOR), partial(Router, reflecting), rounds=3, remembers=True),
    "retry": Team((_writer("coder", _RETRIED),), partial(Router, retrying), rounds=3, remembers=True),
    "trio": Team((_PLANNER, _writer("coder", _REVIEWED), _writer("reviewer", _REVIEWER)), Chain),
    "tester": Team((_writer("coder", _TESTED), _TESTER), partial(Router, testing)),
}
