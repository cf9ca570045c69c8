"""Trust-and-Split (Piche, Muqeeth et al., arXiv 2511.19405): two self-interested agents talk, then claim coins.

Reproduced: in each round coins are worth three times as much to one agent as to the other, and only it knows; both say
a word, see the other's, and claim coins; claims beyond what is there are cut in proportion; each has its own reward.
Departs: two rounds, in which each has the high value once or one has it twice.

    python examples/systems/trust_and_split.py                                                  # Advantage Alignment
    python examples/systems/trust_and_split.py 0 ippo                                           # each for itself
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Outcome, Router
from marft_envs.families.toy.base import ToyTask, digit

PAIR = ("left_0", "right_0")
COINS = 3
TEAM = tuple(AgentSpec(name, name.removesuffix("_0"), "Say one digit from 0 to 3.", with_answer=True) for name in PAIR)


class Split(ToyTask):
    """Who has the high value, round by round."""

    name = "split"
    rounds = 2
    states = tuple((a, b) for a in range(2) for b in range(2))
    sizes = dict.fromkeys(PAIR, COINS + 1)

    def _values(self, number):
        high = self.state[min(number, self.rounds - 1)]
        return {name: 1.0 if i == high else 1 / 3 for i, name in enumerate(PAIR)}

    def observe(self, agent):
        number, part = divmod(len(self._said), 4)
        worth = "high" if self._values(number)[agent] == 1 else "low"
        return f"value {worth} {'claim' if part >= 2 else 'word'} ?"

    def _worth(self, claims, number):
        """What each claim of a round is worth to who made it; all coins at the high value are 1."""
        asked = {t.agent: digit(t.text, COINS + 1) or 0 for t in claims}
        scale = min(1.0, COINS / max(sum(asked.values()), 1))
        return {name: claim * scale / COINS * self._values(number)[name] for name, claim in asked.items()}

    def on_round(self, turns):
        number = turns[0].round if turns else self.rounds - 1
        over = number == self.rounds - 1
        own = {name: coins / self.rounds for name, coins in self._worth(turns[2:], number).items()}
        success = self.right(self._said) if over else None
        return Outcome(agent_rewards=own, success=success, terminated=over, metrics={"welfare": sum(own.values())})

    def right(self, turns):
        """Whether both together got nine tenths of what there was."""
        rounds = [turns[i : i + 4][2:] for i in range(0, len(turns), 4)]
        return sum(sum(self._worth(claims, i).values()) for i, claims in enumerate(rounds)) >= 0.9 * self.rounds

    def gold_turns(self):
        """Who has the high value says so, and takes all."""
        said = []
        for high in self.state:
            said += [(name, str(int(i == high))) for i, name in enumerate(PAIR)]
            said += [(name, str(COINS * (i == high))) for i, name in enumerate(PAIR)]
        return said


def speaks(view):
    """Both at once: words, then claims after both words."""
    return PAIR if view.layer < 2 else []


def make(dependency=None, **kwargs):
    kwargs = {"history": "public", "max_rounds": Split.rounds, **kwargs}
    return FlexEnv(TEAM, Split(), dependency or Router(speaks), **kwargs)


marft_envs.register("systems/trust_and_split-v0", make, summary="Trust-and-Split: two talk, then claim coins")
SYSTEM = System(
    "Trust-and-Split (2511.19405)",
    env="systems/trust_and_split-v0",
    algo="advantage_alignment",
    control={"algo": "ippo"},
    claim="Agents that learn for themselves end up claiming everything; Advantage Alignment keeps welfare up.",
    tests=(Test("control", metric="welfare"),),
)

if __name__ == "__main__":
    main(SYSTEM)
