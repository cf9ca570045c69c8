"""MO-MIX (Hu et al., arXiv 2603.00730): a team serves two objectives, in the proportion that its prompt gives.

Reproduced: every episode draws a preference, all agents read it, and the reward is the weighted objectives; so one team
learns for all preferences. Departs: PPO with a critic of the team in place of mixed Q-values, three preferences,
and no search for a uniform front: the metrics `speed` and `care` of each preference are the points of it.

    python examples/systems/mo_mix.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Independent, Outcome
from marft_envs.families.toy.base import ToyTask, digit

PAIR = ("left_0", "right_0")
SIZE = 4
TEAM = tuple(AgentSpec(name, name.removesuffix("_0"), "Say one digit from 0 to 3.", with_answer=True) for name in PAIR)
MOST = len(PAIR) * (SIZE - 1)


class Preferences(ToyTask):
    """Speed is the sum of what both say, care falls with its square; a weight of 2, 5 or 8 tenths is on speed."""

    name = "preference"
    states = ((2,), (5,), (8,))
    sizes = dict.fromkeys(PAIR, SIZE)

    def __init__(self, informed):
        super().__init__()
        self.informed = informed

    def observe(self, agent):
        return f"speed {self.state[0] if self.informed else '?'}"

    def _objectives(self, total):
        return total / MOST, 1 - (total / MOST) ** 2

    def _worth(self, total):
        speed, care = self._objectives(total)
        return (self.state[0] * speed + (10 - self.state[0]) * care) / 10

    def _total(self, turns):
        said = [digit(turn.text, SIZE) for turn in turns]
        return None if len(said) < len(PAIR) or None in said else sum(said)

    def on_round(self, turns):
        total = self._total(turns)
        if total is None:
            return Outcome(success=False, terminated=True)
        metrics = dict(zip((f"speed_{self.state[0]}", f"care_{self.state[0]}"), self._objectives(total), strict=True))
        return Outcome(team_reward=self._worth(total), success=self.right(turns), terminated=True, metrics=metrics)

    def _best(self):
        return max(range(MOST + 1), key=self._worth)

    def right(self, turns):
        """Whether nothing is better under this preference."""
        return self._total(turns) == self._best()

    def gold_turns(self):
        half = self._best() // 2
        return [("left_0", str(half)), ("right_0", str(self._best() - half))]


def make(informed=True, dependency=None, **kwargs):
    return FlexEnv(TEAM, Preferences(informed), dependency or Independent(), **kwargs)


marft_envs.register("systems/mo_mix-v0", make, summary="MO-MIX: two objectives, weighted as the episode says")
SYSTEM = System(
    "MO-MIX (2603.00730)",
    env="systems/mo_mix-v0",
    algo="mappo",
    control={"env_kwargs": {"informed": False}},
    claim="One team that is shown the preference serves each of them; a team without it cannot.",
    tests=(Test("zero", by=0.9), Test("control")),
)

if __name__ == "__main__":
    main(SYSTEM)
