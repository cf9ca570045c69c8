"""CMAT (Zhao et al., arXiv 2604.13472): agents agree on a consensus first, and then act all at once.

Reproduced: one agent reads what all see and states a consensus; given it, all act at the same time, so that the joint
action does not depend on an order (as it does in `mat`). The control is MAT's order: actors in turn, each of which
reads all bits and the acts before its own. Departs: the consensus is a word in place of a vector, its author is an
agent with a policy of its own in place of a decoder, and bits are in place of StarCraft.

    python examples/systems/cmat.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Layered, Outcome
from marft_envs.families.toy.base import ToyTask, digit

ACTORS = ("actor_0", "actor_1", "actor_2")
TEAM = (
    AgentSpec("consensus_0", "consensus", "Pass your bit on. Say 0 or 1."),
    *(AgentSpec(name, "actor", "Signal the digit. Say 0 or 1.", with_answer=True) for name in ACTORS),
)


class Majority(ToyTask):
    """Three bits; all have to do what most of them say, and each sees its own, or, ``joint``, all of them."""

    name = "majority"
    states = tuple((a, b, c) for a in range(2) for b in range(2) for c in range(2))
    sizes = dict.fromkeys(("consensus_0", *ACTORS), 2)

    def __init__(self, joint=False):
        super().__init__()
        self.joint = joint

    def observe(self, agent):
        if self.joint or agent not in ACTORS:
            return "bit {}, bit {}, bit {}".format(*self.state)
        return f"bit {self.state[ACTORS.index(agent)]}"

    def on_round(self, turns):
        """The reward is the share of right acts: with a reward for all at once, agents settle on one act too early."""
        acts = [digit(t.text, 2) for t in turns if t.agent in ACTORS]
        share = acts.count(self._most()) / len(ACTORS)
        return Outcome(team_reward=share, success=self.right(turns), terminated=True, metrics={"share": share})

    def _most(self):
        return int(sum(self.state) > 1)

    def right(self, turns):
        return [digit(t.text, 2) for t in turns if t.agent in ACTORS] == [self._most()] * 3

    def gold_turns(self):
        return [(name, str(self._most())) for name in ("consensus_0", *ACTORS)]


def make(dependency=None, joint=False, **kwargs):
    return FlexEnv(TEAM, Majority(joint), dependency or Layered([["consensus_0"], ACTORS]), **kwargs)


marft_envs.register("systems/cmat-v0", make, summary="CMAT: a consensus, then all at once")
SYSTEM = System(
    "CMAT (2604.13472)",
    env="systems/cmat-v0",
    algo="mappo",
    settings={
        "policies": {"consensus_0": "consensus", **dict.fromkeys(ACTORS, "actor")},
        "warm_start": 2,
        "iterations": 40,
    },
    control={"env_kwargs": {"joint": True, "dependency": [[name] for name in ACTORS]}, "policies": "shared"},
    claim="Agents that first agree and then act at once are ahead of agents in turn that read as much (share of acts).",
    tests=(Test(metric="share"), Test("control", metric="share")),
)

if __name__ == "__main__":
    main(SYSTEM)
