"""Coding teams: who is in them, what their profiles say (``teams.toml``), and how they depend on each other.

A team is data: profiles, a dependency function and a number of rounds. An agent tagged ``with_answer`` writes
programs, and the last program counts; an agent with the role ``tester`` proposes tests; all others advise.
"""

from __future__ import annotations

from functools import partial

from marft_envs import tables
from marft_envs.core.dependency import Chain, View
from marft_envs.core.routing import Router
from marft_envs.core.teams import Team
from marft_envs.core.types import Turn

TESTER = "tester"
"""The role whose words are read as tests."""


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


_AGENTS = tables.members(__package__)

TEAMS: dict[str, Team] = {
    "solo": Team(_AGENTS["solo"], Chain),
    "dual": Team(_AGENTS["dual"], Chain),
    "reflect": Team(_AGENTS["reflect"], partial(Router, reflecting), rounds=3, remembers=True),
    "retry": Team(_AGENTS["retry"], partial(Router, retrying), rounds=3, remembers=True),
    "trio": Team(_AGENTS["trio"], Chain),
    "tester": Team(_AGENTS["tester"], partial(Router, testing)),
}
