"""CMAT (Zhao et al., arXiv 2604.13472): agents agree on a consensus first, and then act all at once.

Reproduced: one agent reads what all see and states a consensus; given it, all act at the same time, so that the joint
action does not depend on an order (as it does in `mat`). Departs: the consensus is a word in place of a vector, its
author is an agent with a policy of its own in place of a decoder, and bits are in place of StarCraft.

    python examples/systems/cmat.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, main
from marft_envs import AgentSpec, FlexEnv, Layered
from marft_envs.families.toy.base import ToyTask, digit

ACTORS = ("actor_0", "actor_1", "actor_2")
TEAM = (
    AgentSpec("consensus_0", "consensus", "Pass your bit on. Say 0 or 1."),
    *(AgentSpec(name, "actor", "Signal the digit. Say 0 or 1.", with_answer=True) for name in ACTORS),
)


class Majority(ToyTask):
    """Three bits; all have to do what most of them say, and each sees its own."""

    name = "majority"
    states = tuple((a, b, c) for a in range(2) for b in range(2) for c in range(2))
    sizes = dict.fromkeys(("consensus_0", *ACTORS), 2)

    def observe(self, agent):
        return (
            "bit {}, bit {}, bit {}".format(*self.state)
            if agent not in ACTORS
            else f"bit {self.state[ACTORS.index(agent)]}"
        )

    def right(self, turns):
        return [digit(t.text, 2) for t in turns if t.agent in ACTORS] == [int(sum(self.state) > 1)] * 3

    def gold_turns(self):
        return [(name, str(int(sum(self.state) > 1))) for name in ("consensus_0", *ACTORS)]


def make(dependency=None, **kwargs):
    return FlexEnv(TEAM, Majority(), dependency or Layered([["consensus_0"], ACTORS]), **kwargs)


marft_envs.register("systems/cmat-v0", make, summary="CMAT: a consensus, then all at once")
SYSTEM = System(
    "CMAT (2604.13472)",
    env="systems/cmat-v0",
    algo="mappo",
    settings={"policies": {"consensus_0": "consensus", **dict.fromkeys(ACTORS, "actor")}},
    control={"env_kwargs": {"dependency": "chain"}},
    claim="Acting at once on a consensus is as good as acting in turn (--env-kwargs dependency=chain).",
)

if __name__ == "__main__":
    main(SYSTEM)
