"""WaltzRL (Zhang et al., arXiv 2510.08240): a feedback agent makes a conversation agent's replies better, where needed.

Reproduced: the feedback agent speaks after each reply; where it does not object, the reply stands; where it does, the
conversation agent answers anew. Its reward is how much its words have improved the reply (credit rule `improvement`,
the paper's dynamic improvement reward). Departs: a reply is a digit, right or wrong, in place of safe and helpful text
with a judge of both, no label says whether feedback was needed, and both are trained together, where the paper has a
stage with a frozen conversation agent. The control gets one reward, for the last reply, which both share.

    python examples/systems/waltzrl.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Outcome, Router
from marft_envs.families.toy.base import ToyTask, digit

ANSWERER, FEEDBACK = "conversation_0", "feedback_0"
TEAM = (
    AgentSpec(ANSWERER, "conversation", "Find the digit. Say one digit from 0 to 3.", with_answer=True),
    AgentSpec(FEEDBACK, "feedback", "Pass the digit on. Say one digit from 0 to 3."),
)


class Waltz(ToyTask):
    """A digit of which the one who answers has a hint that is wrong half of the time."""

    name = "waltz"
    states = tuple((x, x if right else (x + 1 + y) % 4) for x in range(4) for right in range(2) for y in range(3))
    sizes = dict.fromkeys((ANSWERER, FEEDBACK), 4)

    def __init__(self, last=False):
        super().__init__()
        self.last = last

    def observe(self, agent):
        return f"digit {self.state[agent == ANSWERER]}"

    def on_layer(self, turns):
        super().on_layer(turns)
        right = [t.index for t in turns if t.agent == ANSWERER and self.right(turns) and not self.last]
        return Outcome(turn_rewards=dict.fromkeys(right, 1.0))

    def on_round(self, turns):
        """What counts is the last reply, which has its reward already, unless it alone has one."""
        right, asked = self.right(turns), float(len(turns) > 2)
        reward = float(right) if self.last else 0.0
        return Outcome(team_reward=reward, success=right, terminated=True, metrics={"feedback": asked})

    def right(self, turns):
        replies = [t.text for t in turns if t.agent == ANSWERER]
        return bool(replies) and digit(replies[-1], 4) == self.state[0]

    def gold_turns(self):
        x, hint = self.state
        again = [(ANSWERER, str(x))] if hint != x else []
        return [(ANSWERER, str(hint)), (FEEDBACK, str(x)), *again]


def speaks(view):
    """A reply, feedback, and another reply if the feedback names another digit."""
    said = [turn.text.strip() for turn in view.this_round]
    if len(said) == 2:
        return [ANSWERER] if said[0] != said[1] else []
    return [(ANSWERER, FEEDBACK)[len(said)]] if len(said) < 2 else []


def make(dependency=None, last=False, **kwargs):
    return FlexEnv(TEAM, Waltz(last), dependency or Router(speaks), **kwargs)


marft_envs.register("systems/waltzrl-v0", make, summary="WaltzRL: a conversation agent, and feedback where needed")
SYSTEM = System(
    "WaltzRL (2510.08240)",
    env="systems/waltzrl-v0",
    algo="mappo",
    settings={"algorithm": {"credit": {"rule": "improvement", "critics": ["feedback"]}}},
    control={"env_kwargs": {"last": True}, "algorithm": {"credit": "broadcast"}},
    claim="An agent rewarded for improvement learns to object where it helps, and beats one rewarded as all are.",
    tests=(Test(), Test("control")),
)

if __name__ == "__main__":
    main(SYSTEM)
