"""ReAd (Zhang et al., arXiv 2405.14314): a planner is shown what a critic expects of its plan, and refines a bad one.

Reproduced: a critic is fitted to what plans came to, its value stands in the planner's prompt, and a plan of little
value is refined before anything is done. Departs: the critic is an agent that says its value in thirds, with a proper
score (1 less the squared error) as reward, in place of a regression on advantages; one kitchen with two pots, of which
only the critic sees which one is free, in place of Overcooked.

    python examples/systems/read.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Outcome, Router
from marft_envs.families.toy.base import ToyTask, digit

PLANNER, CRITIC = "planner_0", "critic_0"
VALUES = 4
TEAM = (
    AgentSpec(PLANNER, "planner", "Find the digit. Say one digit from 0 to 1.", with_answer=True),
    AgentSpec(CRITIC, "critic", "What is the plan worth? Say one digit from 0 to 3."),
)


class Kitchen(ToyTask):
    """Two pots, of which one is free; a plan names a pot."""

    name = "read"
    states = ((0,), (1,))
    sizes = dict.fromkeys((PLANNER,), 2) | dict.fromkeys((CRITIC,), VALUES)

    def observe(self, agent):
        return "digit ?" if agent == PLANNER else f"digit {self.state[0]}"

    def on_layer(self, turns):
        super().on_layer(turns)
        scores = {turn.index: self._score(turn.text) for turn in turns if turn.agent == CRITIC}
        return Outcome(turn_rewards=scores)

    def _score(self, text):
        """A critic's reward: a proper score, so the best value to say is the share of such plans that work."""
        value = digit(text, VALUES)
        return 0.0 if value is None else 1 - (value / (VALUES - 1) - self.right(self._said)) ** 2

    def on_round(self, turns):
        right = self.right(turns)
        planned = sum(turn.agent == PLANNER for turn in turns)
        last = max(turn.index for turn in turns if turn.agent == PLANNER)
        return Outcome(
            turn_rewards={last: float(right)}, success=right, terminated=True, metrics={"refined": planned - 1.0}
        )

    def right(self, turns):
        plans = [turn.text for turn in turns if turn.agent == PLANNER]
        return bool(plans) and digit(plans[-1], 2) == self.state[0]

    def gold_turns(self):
        pot = self.state[0]
        return [(PLANNER, str(pot)), (CRITIC, str(VALUES - 1))]


def speaks(view):
    """A plan, its value, and another plan if the value is below one half."""
    said = [turn.text for turn in view.this_round]
    if len(said) < 2:
        return [(PLANNER, CRITIC)[len(said)]]
    value = digit(said[1], VALUES)
    return [PLANNER] if len(said) == 2 and value is not None and value < VALUES / 2 else []


def make(dependency=None, **kwargs):
    return FlexEnv(TEAM, Kitchen(), dependency or Router(speaks), **kwargs)


marft_envs.register("systems/read-v0", make, summary="ReAd: a critic's value in the planner's prompt")
SYSTEM = System(
    "ReAd (2405.14314)",
    env="systems/read-v0",
    algo="ippo",
    settings={"policies": {PLANNER: "planner", CRITIC: "critic"}},
    control={"env_kwargs": {"dependency": [[PLANNER]]}, "policies": "shared"},
    claim="A planner that is shown its plan's value beats one that is not (--env-kwargs dependency=[[planner_0]]).",
    tests=(Test(), Test("control")),
)

if __name__ == "__main__":
    main(SYSTEM)
