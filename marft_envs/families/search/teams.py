"""Teams that search: one who answers, one who tries several answers, proposers with a checker who picks or comments."""

from __future__ import annotations

import re
from functools import partial

from marft_envs.core.dependency import Chain, Layered, View
from marft_envs.core.routing import Router
from marft_envs.core.teams import Team, member
from marft_envs.core.types import Turn
from marft_envs.families import tables
from marft_envs.families.search.puzzles import YES

TRIES = 3
"""Proposals of a team, and answers that one agent tries, unless the environment says otherwise."""

_YES = re.compile(rf"\b{YES}\W*$")
_PROFILES: dict[str, str] = tables.read(__package__, "teams")


def commented(view: View, tries: int) -> list[str | Turn]:
    """D of proposer and checker in turn: until the checker's words end with yes, at most ``tries`` proposals.

    The proposer sees its own proposals and the checker's words on them; the checker sees the last proposal.
    """
    mine = [turn.index for turn in view.this_round if turn.agent == "proposer_0"]
    if view.layer and view.history[-1].agent == "proposer_0":
        return [Turn("checker_0", (mine[-1],))] if len(mine) < tries else []
    if view.layer and _YES.search(view.history[-1].text):
        return []
    return [Turn("proposer_0", tuple(turn.index for turn in view.this_round))]


def solo(tries: int) -> Team:
    """One agent that says an answer."""
    return Team((member("solver", _PROFILES["solo"], True),), Chain)


def trial(tries: int) -> Team:
    """One agent that tries answers in one reply and checks each: proposer and checker in one head."""
    return Team((member("trier", _PROFILES["trial"], True),), Chain)


def pick(tries: int) -> Team:
    """Proposers side by side, then a checker that sees them all and answers."""
    proposers = [member("proposer", _PROFILES["pick-proposer"], number=i) for i in range(tries)]
    checker = member("checker", _PROFILES["pick-checker"], True)
    layers = [[agent.name for agent in proposers], [checker.name]]
    return Team((*proposers, checker), partial(Layered, layers))


def comment(tries: int) -> Team:
    """A proposer that answers, and a checker whose words say whether it proposes again."""
    proposer = member("proposer", _PROFILES["check-proposer"], True)
    checker = member("checker", _PROFILES["check-checker"])
    return Team((proposer, checker), partial(Router, partial(commented, tries=tries)))


TEAMS = {"solo": solo, "trial": trial, "pick": pick, "check": comment}
"""Name -> the team with so many proposals."""
