"""CoMAM (Mao et al., arXiv 2603.12631): agents of a memory are paid the global reward by rank.

Reproduced: two agents write into a memory what each has seen and are paid for what they cover, a third answers from it;
w_i of the credit rule `rank` is the rank correlation of an agent's own rewards with the team's. Departs: two facts of a
digit each; the paper's weights are not public, so the rule is this project's reading of them.

    python examples/systems/comam.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, main
from marft_envs import AgentSpec, FlexEnv, Layered, Outcome
from marft_envs.families.toy.base import ToyTask, digit

WRITERS = ("writer_0", "writer_1")
TEAM = (
    *(AgentSpec(name, "writer", "Pass the digit on. Say one digit from 0 to 3.") for name in WRITERS),
    AgentSpec("answerer_0", "answerer", "Find the digit. Say one digit from 0 to 3.", with_answer=True),
)


class Memory(ToyTask):
    """Two facts, and a question about one of them."""

    name = "memory"
    states = tuple((a, b, q) for a in range(4) for b in range(4) for q in range(2))
    sizes = dict.fromkeys((*WRITERS, "answerer_0"), 4)

    def observe(self, agent):
        return f"digit of writer {self.state[2]} ?" if agent == "answerer_0" else f"digit {self._fact(agent)}"

    def _fact(self, agent):
        return self.state[WRITERS.index(agent)]

    def on_layer(self, turns):
        super().on_layer(turns)
        covered = [t.index for t in turns if t.agent in WRITERS and digit(t.text, 4) == self._fact(t.agent)]
        return Outcome(turn_rewards=dict.fromkeys(covered, 0.25))

    def right(self, turns):
        wanted = self.state[self.state[2]]
        return any(t.agent == "answerer_0" and digit(t.text, 4) == wanted for t in turns)

    def gold_turns(self):
        a, b, q = self.state
        return [("writer_0", str(a)), ("writer_1", str(b)), ("answerer_0", str((a, b)[q]))]


def make(dependency=None, **kwargs):
    return FlexEnv(TEAM, Memory(), dependency or Layered([WRITERS, ["answerer_0"]]), **kwargs)


marft_envs.register("systems/comam-v0", make, summary="CoMAM: two write into a memory, a third answers from it")
SYSTEM = System(
    "CoMAM (2603.12631)",
    env="systems/comam-v0",
    algo="mappo",
    settings={"algorithm": {"credit": "rank"}},
    control={"algorithm": {"credit": {"rule": "local", "alpha": 0.0}}},
    claim="Shares of the global reward by rank beat own rewards alone (credit = {rule = 'local', alpha = 0}).",
)

if __name__ == "__main__":
    main(SYSTEM)
