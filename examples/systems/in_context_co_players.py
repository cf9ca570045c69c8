"""In-context co-players (Weis et al., arXiv 2602.16301): an agent that meets many kinds of others learns to cooperate.

Reproduced: the iterated prisoner's dilemma; an agent sees its own moves (`history="own"`) and the other's, from which
it can find out what it plays with; co-players are drawn from past states of the policy (`pool`), and each has its own
rewards. Departs: the paper draws half of the co-players from tables of strategies, and its main method plans in a model
of the other; here co-players are past selves alone, and the method is PPO.

    python examples/systems/in_context_co_players.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Independent, Outcome
from marft_envs.families.toy.base import ToyTask, digit

PAIR = ("left_0", "right_0")
REWARD = {(0, 0): 3, (0, 1): 0, (1, 0): 5, (1, 1): 1}
"""Own move and the other's -> reward; 0 cooperates, all else defects."""
TEAM = tuple(AgentSpec(name, "player", "Signal the digit. Say 0 or 1.", with_answer=True) for name in PAIR)


class Dilemma(ToyTask):
    """The same dilemma, four times."""

    name = "dilemma"
    rounds = 4
    sizes = dict.fromkeys(PAIR, 2)

    def observe(self, agent):
        """What the other has done so far."""
        return f"digit {' '.join(t.text.strip()[:1] for t in self._said if t.agent != agent) or '?'}"

    def on_layer(self, turns):
        """Rewards each agent for its move against the other's."""
        super().on_layer(turns)
        moves = [int(digit(turn.text, 2) != 0) for turn in turns]
        if len(moves) < 2:
            return Outcome()
        own = {t.agent: REWARD[moves[i], moves[1 - i]] / (5 * self.rounds) for i, t in enumerate(turns)}
        return Outcome(agent_rewards=own)

    def on_round(self, turns):
        """Success is that both cooperate in the end; it has no reward."""
        both = all(digit(turn.text, 2) == 0 for turn in turns)
        over = (turns[0].round if turns else self.rounds) >= self.rounds - 1
        return Outcome(success=self.right(turns) if over else None, terminated=over, metrics={"cooperation": both})

    def right(self, turns):
        return bool(turns) and all(digit(turn.text, 2) == 0 for turn in turns)

    def gold_turns(self):
        return [(name, "0") for name in PAIR]


def make(dependency=None, **kwargs):
    kwargs = {"history": "own", "max_rounds": Dilemma.rounds, **kwargs}
    return FlexEnv(TEAM, Dilemma(), dependency or Independent(), **kwargs)


marft_envs.register("systems/in_context_co_players-v0", make, summary="Co-players: an iterated dilemma")
SYSTEM = System(
    "In-context co-players (2602.16301)",
    env="systems/in_context_co_players-v0",
    algo="ippo",
    settings={"policies": "shared", "pool": 4},
    control={"pool": 0},
    claim="With co-players that differ, self-interested agents cooperate more than with themselves alone.",
    tests=(Test("control", metric="cooperation"),),
)

if __name__ == "__main__":
    main(SYSTEM)
