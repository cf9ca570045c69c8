"""CoMAM (Mao et al., arXiv 2603.12631): agents of a memory get shares of the global reward by rank.

Reproduced: two agents write into a memory what each has seen, with rewards for what they cover; a third answers from
it, with a reward for the answer. w_i of the credit rule `rank` is the rank correlation of an agent's own rewards with
the team's. Departs: two facts of a bit each; the paper's weights are not public, so the rule is this project's reading.

    python examples/systems/comam.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Layered, Outcome
from marft_envs.families.toy.base import ToyTask, digit

WRITERS = ("writer_0", "writer_1")
TEAM = (
    *(AgentSpec(name, "writer", "Pass your bit on. Say 0 or 1.") for name in WRITERS),
    AgentSpec("answerer_0", "answerer", "Find the digit. Say one digit from 0 to 3.", with_answer=True),
)


class Memory(ToyTask):
    """Two facts of a bit each, and a question about both: which number they are."""

    name = "memory"
    states = tuple((a, b) for a in range(2) for b in range(2))
    sizes = dict.fromkeys(WRITERS, 2) | {"answerer_0": 4}

    def observe(self, agent):
        return f"bit {self._wanted(agent) if agent in WRITERS else '?'}"

    def _wanted(self, agent):
        """What an agent has to say."""
        return self.state[WRITERS.index(agent)] if agent in WRITERS else 2 * self.state[0] + self.state[1]

    def on_layer(self, turns):
        super().on_layer(turns)
        earned = [t.index for t in turns if digit(t.text, 4) == self._wanted(t.agent)]
        return Outcome(turn_rewards=dict.fromkeys(earned, 0.25))

    def right(self, turns):
        return any(t.agent == "answerer_0" and digit(t.text, 4) == self._wanted(t.agent) for t in turns)

    def gold_turns(self):
        return [(name, str(self._wanted(name))) for name in (*WRITERS, "answerer_0")]


def make(dependency=None, **kwargs):
    return FlexEnv(TEAM, Memory(), dependency or Layered([WRITERS, ["answerer_0"]]), **kwargs)


marft_envs.register("systems/comam-v0", make, summary="CoMAM: two write into a memory, a third answers from it")
SYSTEM = System(
    "CoMAM (2603.12631)",
    env="systems/comam-v0",
    algo="mappo",
    settings={"algorithm": {"credit": "rank"}, "warm_start": 2, "iterations": 40},
    control={"algorithm": {"credit": {"rule": "local", "alpha": 0.0}}},
    claim="Shares of the global reward by rank beat own rewards alone (credit = {rule = 'local', alpha = 0}).",
    tests=(Test(), Test("control")),
)

if __name__ == "__main__":
    main(SYSTEM)
