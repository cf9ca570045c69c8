"""Measures how a team works together: one definition each, which records, the tools' scoring and reports share.

The names and what they are for come from the article on team rewards for multi-agent fine-tuning
(``docs/tools.md`` has the table). Where its words leave a choice, the choice stands here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from marft_envs.core.types import Episode

FEWEST_HANDOFFS = 5
"""Handoffs of a loop. "Back and forth more than twice" is more than two round trips, of two handoffs each."""


def alternations(who: Sequence[str]) -> list[int]:
    """Returns the lengths of the runs that alternate between two agents for :data:`FEWEST_HANDOFFS` handoffs or more.

    Args:
        who: Who had control, turn by turn; "" (several at once, a new round) ends a run. An agent that stands twice in
            a row ends it, too.
    """
    lengths: list[int] = []
    length = 0
    for i, agent in enumerate(who):
        passed_on = length > 0 and agent != who[i - 1]
        goes_on = bool(agent) and passed_on and (length == 1 or agent == who[i - 2])
        if not goes_on:
            lengths.append(length)
        # A B A C: the run of A and C begins with the A before.
        length = length + 1 if goes_on else 0 if not agent else 2 if passed_on else 1
    return [n for n in (*lengths, length) if n > FEWEST_HANDOFFS]


def handoff_loops(who: Episode | Sequence[str]) -> int:
    """Returns how often two agents pass control back and forth more than twice, whatever comes of it.

    An agent keeps control while it acts several times in a row.

    Args:
        who: An episode; or who had control, turn by turn, "" for several at once and between rounds.
    """
    return len(alternations([agent for agent, _ in groupby(holders(who) if isinstance(who, Episode) else who)]))


def handoff_loop_rate(episodes: Iterable[Episode]) -> float:
    """Returns the share of episodes with a handoff loop; 0 of none."""
    looped = [handoff_loops(episode) > 0 for episode in episodes]
    return sum(looped) / len(looped) if looped else 0.0


def holders(episode: Episode) -> list[str]:
    """Returns who had control, layer by layer: "" where several acted at once, and between rounds."""
    out: list[str] = []
    for before, layer in pairwise((None, *episode.layers)):
        assert layer is not None
        out += [""] if before is not None and before.round != layer.round else []
        out.append(episode.turns[layer.turns[0]].agent if len(layer.turns) == 1 else "")
    return out


def step_efficiency(success: bool, fewest: int, steps: int) -> float:
    """Returns how near a success came to the fewest steps that suffice: 1 at best; 0 for a failure."""
    return min(1.0, max(fewest, 1) / max(steps, 1)) if success else 0.0


def tool_selection_accuracy(called: Iterable[str], gold: Iterable[str]) -> float:
    """Returns how well the chosen tools are the gold's, arguments and order apart.

    The calls that both have, by name, over those of whichever has more: a tool that is skipped costs as much as one
    that is hoarded. 1 where neither calls anything.
    """
    mine, wanted = Counter(called), Counter(gold)
    most = max(mine.total(), wanted.total())
    return (mine & wanted).total() / most if most else 1.0


def trajectory_score(steps: Sequence[float]) -> float:
    """Returns the mean of the scores of single steps, each in [0, 1]; 0 for no step, so that silence earns nothing."""
    return sum(steps) / len(steps) if steps else 0.0
