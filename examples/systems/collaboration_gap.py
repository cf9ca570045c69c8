"""The Collaboration Gap (Davidson et al., arXiv 2511.02687): who solves a maze alone may fail at it in two.

Reproduced: two agents see a different half of a maze, talk, and have to name one route; the same maze is given to one
agent that sees both halves, and the gap is the difference. Departs: a maze of four parallel corridors, each of which
may be blocked in either half. Cannot be asked here: the paper measures models as they are, and closes the gap by a
relay, in which a stronger model begins; the embedded model solves no maze before training, alone or in two. `marft eval
--engines` pairs models that do.

    python examples/systems/run.py collaboration_gap --rivals
"""

from __future__ import annotations

from functools import partial

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, Chain, FlexEnv
from marft_envs.families.toy.base import ToyTask, digit

SAY = "Find the digit. Say one digit from 0 to 3."
HALVES = ("west_0", "east_0")


class Maze(ToyTask):
    """A corridor that is open in both halves, and one more in each; an agent is shown which are open in its half."""

    name = "maze"
    states = tuple((r, w, e) for r in range(4) for w in range(4) for e in range(4) if len({r, w, e}) == 3)

    def __init__(self, alone):
        super().__init__()
        self.team = ("solo_0",) if alone else HALVES
        self.sizes = dict.fromkeys(self.team, 4)
        self.rounds = 1 if alone else 2

    def observe(self, agent):
        route, *others = self.state
        west, east = (" ".join(map(str, sorted((route, other)))) for other in others)
        return {"west_0": f"digit {west}", "east_0": f"digit {east}"}.get(agent, f"digit {west}, digit {east}")

    def right(self, turns):
        """Whether everybody's last word is the route."""
        last = {turn.agent: digit(turn.text, 4) for turn in turns}
        return all(last.get(agent) == self.state[0] for agent in self.team)

    def gold_turns(self):
        """Says what its agent knows: west proposes, east repeats what is open to it, and west concludes."""
        route, west, east = self.state
        if len(self.team) == 1:
            return [("solo_0", str(route))]
        proposed = min(route, west)
        answer = route if proposed == route else min(route, east)
        return [("west_0", str(proposed)), ("east_0", str(answer)), ("west_0", str(route)), ("east_0", str(route))]


def make(alone=False, dependency=None, **kwargs):
    task = Maze(alone)
    team = [AgentSpec(name, name.removesuffix("_0"), SAY, with_answer=True) for name in task.team]
    return FlexEnv(team, task, dependency or Chain(), **{"history": "public", "max_rounds": task.rounds, **kwargs})


marft_envs.register("systems/collaboration_gap-v0", make, summary="Collaboration Gap: a maze of which each sees half")
marft_envs.register("systems/collaboration_gap_solo-v0", partial(make, alone=True), summary="the same maze, for one")
SYSTEM = System(
    "The Collaboration Gap (2511.02687)",
    env="systems/collaboration_gap-v0",
    algo="marft",
    single="systems/collaboration_gap_solo-v0",
    settings={"warm_start": 8},
    claim="A model that solves a maze alone may fail at it in two, and a stronger one that begins closes the gap.",
    tests=(Test("single", by=-0.05),),
)

if __name__ == "__main__":
    main(SYSTEM)
