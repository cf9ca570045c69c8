"""Teams that search: one who answers, one who tries several answers, proposers with a checker who picks or comments."""

from __future__ import annotations

import re
from functools import partial

from marft_envs.core.dependency import Chain, Layered, View
from marft_envs.core.routing import Router
from marft_envs.core.teams import Team, member
from marft_envs.core.types import Turn
from marft_envs.families.search.puzzles import YES

TRIES = 3
"""Proposals of a team, and answers that one agent tries, unless the environment says otherwise."""

_YES = re.compile(rf"\b{YES}\W*$")
_ANSWER = "The last answer that you write counts."
_CHECK = "Write each answer, what it comes to, and yes or no."


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
    return Team((member("solver", f"You are the Solver. You solve the puzzle on your own. {_ANSWER}", True),), Chain)


def trial(tries: int) -> Team:
    """One agent that tries answers in one reply and checks each: proposer and checker in one head."""
    prompt = f"You are the Solver. You try answers to the puzzle until one is right. {_CHECK} {_ANSWER}"
    return Team((member("trier", prompt, True),), Chain)


def pick(tries: int) -> Team:
    """Proposers side by side, then a checker that sees them all and answers."""
    prompt = "You are a Proposer. You propose an answer to the puzzle."
    proposers = [member("proposer", prompt, number=i) for i in range(tries)]
    checker = member(
        "checker",
        f"You are the Checker. You check the answers of the others until one is right. {_CHECK} {_ANSWER}",
        True,
    )
    layers = [[agent.name for agent in proposers], [checker.name]]
    return Team((*proposers, checker), partial(Layered, layers))


def comment(tries: int) -> Team:
    """A proposer that answers, and a checker whose words say whether it proposes again."""
    proposer = member("proposer", f"You are the Proposer. You propose an answer to the puzzle. {_ANSWER}", True)
    checker = member("checker", f"You are the Checker. You check the answer of the other. {_CHECK}")
    return Team((proposer, checker), partial(Router, partial(commented, tries=tries)))


TEAMS = {"solo": solo, "trial": trial, "pick": pick, "check": comment}
"""Name -> the team with so many proposals."""
