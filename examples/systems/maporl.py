"""MAPoRL (Park et al., arXiv 2502.18439): debaters answer for a few rounds, with rewards for convincing each other.

Reproduced: all answer at once; from the second round on each sees what all said before; a verifier scores each answer
of each round, an agent's return is the scores of its answers from then on, and incentives come on top: for correcting
oneself (less for giving up what was right), and for persuading, given to the answer after which more peers are right
(less after a wrong one that fewer are right after). Departs: an agent has a hint in place of a question that it may get
wrong, two of three hints are right, and the verifier is exact, where the paper trains one; persuasion counts shares of
peers in place of majorities, with one weight in place of four; it reaches the answer that persuaded by its return, as
it is credited when peers have answered; later scores of peers give no reward. Success is that all end up right, where
the paper takes a vote, which hints alone would win. One policy plays all, after a warm start: without one, it learns in
40 iterations to say its hint, and no more.

    python examples/systems/maporl.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Independent, Outcome
from marft_envs.families.toy.base import ToyTask, digit

DEBATERS = ("debater_0", "debater_1", "debater_2")
TEAM = tuple(
    AgentSpec(name, "debater", "Find the digit. Say one digit from 0 to 3.", with_answer=True) for name in DEBATERS
)


class Debate(ToyTask):
    """A digit, who has the wrong hint, and how far off it is.

    Args:
        incentive: The reward of a correction, and of persuading all peers; an answer's score is at most a third.
    """

    name = "debate"
    rounds = 3
    states = tuple((x, wrong, off) for x in range(4) for wrong in range(3) for off in range(1, 4))
    sizes = dict.fromkeys(DEBATERS, 4)

    def __init__(self, incentive):
        super().__init__()
        self.incentive = incentive
        self.worst_return = -incentive

    def observe(self, agent):
        return f"digit {self._hint(agent)}"

    def _hint(self, agent):
        x, wrong, off = self.state
        return (x + off * (agent == DEBATERS[wrong])) % 4

    def _scores(self, turns):
        """The verifier: agent -> 1 or 0."""
        return {t.agent: float(digit(t.text, 4) == self.state[0]) for t in turns}

    def on_layer(self, turns):
        """Rewards the turns for scores and corrections, and those of the round before for persuasion."""
        before = [t for t in self._said if t.round == turns[0].round - 1]
        super().on_layer(turns)
        old, new = self._scores(before), self._scores(turns)
        own = {t.index: new[t.agent] / self.rounds for t in turns}
        for t in turns if before else ():
            own[t.index] += self.incentive * (new[t.agent] - old[t.agent])
        for t in before:
            peers = [name for name in DEBATERS if name != t.agent]
            gain = sum(new[name] - old[name] for name in peers) / len(peers)
            own[t.index] = self.incentive * (max(gain, 0.0) if old[t.agent] else min(gain, 0.0))
        return Outcome(turn_rewards=own)

    def on_round(self, turns):
        """All turns have their rewards already."""
        number = turns[0].round if turns else self.rounds - 1
        share = sum(self._scores(turns).values()) / len(DEBATERS)
        over = number == self.rounds - 1
        return Outcome(success=self.right(turns) if over else None, terminated=over, metrics={f"right_{number}": share})

    def right(self, turns):
        """Whether everybody's last answer is right."""
        return sum(self._scores(turns).values()) == len(DEBATERS)

    def gold_turns(self):
        """Everybody says the hint, and then what most have said."""
        later = [(name, str(self.state[0])) for name in DEBATERS] * (self.rounds - 1)
        return [*((name, str(self._hint(name))) for name in DEBATERS), *later]


def make(incentive=0.25, dependency=None, **kwargs):
    kwargs = {"history": "public", "max_rounds": Debate.rounds, **kwargs}
    return FlexEnv(TEAM, Debate(incentive), dependency or Independent(), **kwargs)


marft_envs.register("systems/maporl-v0", make, summary="MAPoRL: a debate, with incentives to persuade and correct")
SYSTEM = System(
    "MAPoRL (2502.18439)",
    env="systems/maporl-v0",
    algo="ippo",
    settings={"policies": "shared", "warm_start": 8, "iterations": 24},
    control={"env_kwargs": {"incentive": 0.0}},
    claim="Debaters that are trained together, with incentives, come to agree on what is right (without: incentive=0).",
    tests=(Test(), Test("control")),
)

if __name__ == "__main__":
    main(SYSTEM)
