"""CPMöbius (Li et al., arXiv 2602.02979): a coach poses problems, a player solves them, and both learn.

Reproduced: no data; the coach chooses how hard a problem is, and four copies of the player solve it. Each has a reward
for its answer. The coach's reward is the change of the player in an update: the share of right answers less that of the
iteration before the update at the same level (``followed``). Departs: the paper rewards the choice whose problems the
update learnt from. Here the reward comes an iteration later, when that level is chosen again: the same sum over levels,
with a coach one update older. A level is compared with the last iteration that chose it, so its first choice has no
reward. The coach chooses one of four levels of a calculation in place of writing the problem. Success is that half of
the players are right at the level that was chosen, so it falls where the coach moves on.

    python examples/systems/cpmobius.py
"""

from __future__ import annotations

import re

import marft_envs
from examples.systems.system import System, main
from marft_envs import AgentSpec, ConfigError, FlexEnv, Outcome, Router, Turn
from marft_envs.families.math.grader import extract_boxed
from marft_envs.families.math.teams import TEAMS
from marft_envs.families.toy.base import digit

LEVELS = ((1, 3, 2), (2, 6, 3), (4, 9, 5), (6, 9, 9))
"""Lowest and highest summand, and highest factor."""
PLAYERS = tuple(f"player_{i}" for i in range(4))
TEAM = (
    AgentSpec("coach_0", "coach", "Say one digit from 0 to 3."),
    *(AgentSpec(name, "player", TEAMS["solo"].agents[0].prompt, with_answer=True) for name in PLAYERS),
)


class Coached:
    """A calculation of each level, of which the coach chooses one."""

    slow = False
    task_id = ""
    followed = tuple(f"solved_{i}" for i in range(len(LEVELS)))

    def reset(self, rng, options):
        self.task_id = options.get("task_id") or "/".join(self._drawn(rng, *level) for level in LEVELS)
        if not re.fullmatch(r"(\d-\d-\d/){3}\d-\d-\d", self.task_id):
            raise ConfigError(f"There is no task '{self.task_id}'. Expected four times three digits, as in 1-2-3/….")
        self.problems = [tuple(map(int, one.split("-"))) for one in self.task_id.split("/")]
        self.level, self.before = None, options.get("progress", {})

    def _drawn(self, rng, low, high, factor):
        a, b = rng.integers(low, high + 1, size=2)
        return f"{a}-{b}-{rng.integers(2, factor + 1)}"

    def observe(self, agent):
        if agent == "coach_0" or self.level is None:
            return "digit ?"
        return "Compute $({}+{})\\cdot {}$.".format(*self.problems[self.level])

    def on_layer(self, turns):
        if turns[0].agent == "coach_0":
            self.level = digit(turns[0].text, 4)
        return Outcome(terminated=self.level is None, success=None if self.level is not None else False)

    def on_round(self, turns):
        right = {t.agent: float(self._right(t.text)) for t in turns if t.agent in PLAYERS}
        share = sum(right.values()) / len(PLAYERS)
        name = self.followed[self.level or 0]
        change = share - self.before.get(name, share)
        coach = {"coach_0": change} if right else {}
        metrics = {"share": share, "level": float(self.level or 0), name: share, "change": change}
        return Outcome(agent_rewards=right | coach, success=share >= 0.5, terminated=True, metrics=metrics)

    def _right(self, text):
        a, b, c = self.problems[self.level]
        return extract_boxed(text) == str((a + b) * c)

    def expert(self, agent):
        if self.level is None:
            return "3"
        a, b, c = self.problems[self.level]
        return rf"{a}+{b}={a + b}, {a + b}*{c}={(a + b) * c}. \boxed{{{(a + b) * c}}}"

    def sample_actions(self, agent):
        return ("0", "3", "hello") if agent == "coach_0" else (r"\boxed{6}", "6", "")

    def validate(self):
        self.reset(None, {"task_id": "1-2-2/2-3-2/4-5-2/6-7-2"})
        self.level, (a, b, c) = 0, self.problems[0]
        if not self._right(rf"\boxed{{{(a + b) * c}}}") or self._right(""):
            raise ConfigError("The right answer is not right, or silence is.")
        self.level = None


def speaks(view):
    """The coach, then the players at once, who read the problem alone."""
    return [["coach_0"], [Turn(name, ()) for name in PLAYERS], []][view.layer]


def make(dependency=None, **kwargs):
    return FlexEnv(TEAM, Coached(), dependency or Router(speaks), **kwargs)


marft_envs.register("systems/cpmobius-v0", make, summary="CPMöbius: a coach sets the level, players solve")
SYSTEM = System(
    "CPMöbius (2602.02979)",
    env="systems/cpmobius-v0",
    algo="reinforce_pp",
    settings={
        "preset": "quickstart",
        "iterations": 20,
        "policies": {"coach_0": "coach", **dict.fromkeys(PLAYERS, "player")},
        "algorithm": {"chain": "agent"},
    },
    claim="A player learns more from problems that a coach chooses for it than from any level alone.",
)

if __name__ == "__main__":
    main(SYSTEM)
