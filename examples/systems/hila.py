"""HILA (Yang et al., arXiv 2603.07972): an agent decides whether to answer or to defer to an expert, at a cost.

Reproduced: deferring is an action of the policy, trained with group-relative advantages on a reward from which the
cost of the expert is taken. Departs: a script plays the expert (the task's own), in place of a human; the outer loop,
supervised steps on what the expert said, is not in one run with this: `marft sft` takes the recorded episodes.

    python examples/systems/hila.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Outcome, Router
from marft_envs.families.toy.base import ToyTask, digit

AGENT, EXPERT = "agent_0", "expert_0"
DEFER = 3
COST = 0.4
TEAM = (
    AgentSpec(AGENT, "agent", "Find the digit. Say one digit from 0 to 3. 3 asks the expert.", with_answer=True),
    AgentSpec(EXPERT, "expert", "Find the digit. Say one digit from 0 to 3.", with_answer=True, trained=False),
)


class Defer(ToyTask):
    """A digit from 0 to 2, which the agent sees in half of the cases: guessing earns 1/3, asking 1 less the cost."""

    name = "defer"
    worst_return = -COST
    states = tuple((x, known) for x in range(3) for known in range(2))
    sizes = dict.fromkeys((AGENT, EXPERT), 4)

    def observe(self, agent):
        return f"digit {self.state[0]}" if self.state[1] or agent == EXPERT else "digit ?"

    def on_round(self, turns):
        asked = any(turn.agent == EXPERT for turn in turns)
        right = bool(turns) and digit(turns[-1].text, DEFER) == self.state[0]
        metrics = {"asked": float(asked), "answered": float(right)}
        return Outcome(team_reward=right - COST * asked, success=self.right(turns), terminated=True, metrics=metrics)

    def right(self, turns):
        """Right, and the expert was asked exactly where the agent could not know."""
        asked = any(turn.agent == EXPERT for turn in turns)
        return bool(turns) and digit(turns[-1].text, DEFER) == self.state[0] and asked is not bool(self.state[1])

    def gold_turns(self):
        x, known = self.state
        return [(AGENT, str(x))] if known else [(AGENT, str(DEFER)), (EXPERT, str(x))]

    def expert(self, agent):
        return str(self.state[0]) if agent == EXPERT else super().expert(agent)


def speaks(view):
    """The agent, and the expert if it says so."""
    if view.layer == 0:
        return [AGENT]
    return [EXPERT] if view.layer == 1 and view.history[-1].text.strip() == str(DEFER) else []


def make(dependency=None, **kwargs):
    return FlexEnv(TEAM, Defer(), dependency or Router(speaks), **kwargs)


marft_envs.register("systems/hila-v0", make, summary="HILA: answer, or defer to an expert who costs")
SYSTEM = System(
    "HILA (2603.07972)",
    env="systems/hila-v0",
    algo="grpo",
    settings={"env_kwargs": {"partners": {"expert_0": "expert"}}},
    claim="The agent asks where it cannot know, and nowhere else (success is that and a right answer).",
    tests=(Test("zero", by=0.9),),
)

if __name__ == "__main__":
    main(SYSTEM)
