"""HAMMER (Gupta et al., arXiv 2102.00824): a centre that sees everything sends a message to agents that see little.

Reproduced: local agents act at once on what they see themselves and on the centre's message; the message is learnt from
their rewards. Departs: one message for all in place of one for each, words in place of numbers, and two bits in place
of navigation.

    python examples/systems/hammer.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Layered, Outcome
from marft_envs.families.toy.base import ToyTask, digit

LOCALS = ("local_0", "local_1")
TEAM = (
    AgentSpec("centre_0", "centre", "Pass the digit on. Say one digit from 0 to 3."),
    *(AgentSpec(name, "local", "Find the digit. Say one digit from 0 to 3.", with_answer=True) for name in LOCALS),
)


class Both(ToyTask):
    """Each local agent sees its own bit, and has to say both as a number; the centre sees that number."""

    name = "hammer"
    states = tuple((a, b) for a in range(2) for b in range(2))
    sizes = dict.fromkeys(("centre_0", *LOCALS), 4)

    def observe(self, agent):
        return f"digit {self._both()}" if agent == "centre_0" else f"digit {self.state[LOCALS.index(agent)]}"

    def _both(self):
        return 2 * self.state[0] + self.state[1]

    def on_layer(self, turns):
        super().on_layer(turns)
        right = [t.index for t in turns if t.agent in LOCALS and digit(t.text, 4) == self._both()]
        return Outcome(turn_rewards=dict.fromkeys(right, 0.5))

    def on_round(self, turns):
        """Both have their turn rewards already."""
        return Outcome(success=self.right(turns), terminated=True)

    def right(self, turns):
        said = [digit(t.text, 4) for t in turns if t.agent in LOCALS]
        return said == [self._both()] * 2

    def gold_turns(self):
        return [(name, str(self._both())) for name in ("centre_0", *LOCALS)]


def make(dependency=None, **kwargs):
    return FlexEnv(TEAM, Both(), dependency or Layered([["centre_0"], LOCALS]), **kwargs)


marft_envs.register("systems/hammer-v0", make, summary="HAMMER: a centre sends messages to local agents")
SYSTEM = System(
    "HAMMER (2102.00824)",
    env="systems/hammer-v0",
    algo="marft",
    settings={"policies": {"centre_0": "centre", **dict.fromkeys(LOCALS, "local")}, "warm_start": 2, "iterations": 40},
    control={"env_kwargs": {"dependency": "independent"}},
    claim="With the centre's message local agents do better than without (--env-kwargs dependency=independent).",
    tests=(Test(), Test("control")),
)

if __name__ == "__main__":
    main(SYSTEM)
