"""Search-R2 (He et al., arXiv 2602.03647): a refiner cuts a reply, and the actor goes on from there.

Reproduced: cut and regenerate. The refiner says how many steps it keeps; the actor's second reply begins with them
(``Task.prefix``) and is credited for the rest alone; both are trained together on the last answer. Departs:
calculations of two steps in place of searches, and no reward for the process.

    python examples/systems/search_r2.py
"""

from __future__ import annotations

import re

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Outcome, Router, Turn
from marft_envs.families.math import data
from marft_envs.families.math.task import MathTask
from marft_envs.families.math.teams import TEAMS

STEP = re.compile(r"[^,.]*=[^,.]*[,.]\s*")
KEEP_ALL = 3
TEAM = (
    *TEAMS["solo"].agents,
    AgentSpec("refiner_0", "refiner", "Say one digit from 0 to 3. So many steps are kept; 3: the whole reply."),
)


def cut_after(text):
    """Returns how many steps the refiner keeps: the first digit that it says; no digit, or a large one: all."""
    said = re.search(r"\d", text)
    return min(int(said[0]), KEEP_ALL) if said else KEEP_ALL


class Cut(MathTask):
    """A calculation whose first reply may be cut."""

    def reset(self, rng, options):
        super().reset(rng, options)
        self.first, self.kept = "", ""

    def prefix(self, agent):
        return self.kept

    def on_layer(self, turns):
        if turns[0].agent == "refiner_0":
            self.kept = "".join(STEP.findall(self.first)[: cut_after(turns[0].text)])
        elif not self.first:
            self.first = turns[0].text
        return Outcome(metrics={"cut": float(turns[0].index == 2)})

    def expert(self, agent):
        if agent != "refiner_0":
            return super().expert(agent)
        gold = STEP.findall(super().expert("actor_0"))
        said = STEP.findall(self.first)
        right = next((i for i, step in enumerate(gold) if said[i : i + 1] != [step]), KEEP_ALL)
        return str(right)

    def sample_actions(self, agent):
        return ("0", "1", "3", "") if agent == "refiner_0" else super().sample_actions(agent)


def speaks(view):
    """Actor, refiner, and the actor again if its reply is cut: it reads its prompt as before, and nothing else."""
    if view.layer == 1:
        return [Turn("refiner_0", (view.history[-1].index,))]
    cut = view.layer == 2 and cut_after(view.history[-1].text) < KEEP_ALL
    return [Turn("actor_0", ())] if view.layer == 0 or cut else []


def make(split="train", **kwargs):
    return FlexEnv(TEAM, Cut(data.load("procedural", split, None, 0), ["actor_0"]), Router(speaks), **kwargs)


marft_envs.register("systems/search_r2-v0", make, summary="Search-R2: cut a reply, and go on from there")
SYSTEM = System(
    "Search-R2 (2602.03647)",
    env="systems/search_r2-v0",
    algo="grpo",
    settings={"preset": "quickstart", "iterations": 20},
    single="math-solo-v0",
    single_settings={"env_kwargs": {"levels": [0]}},
    claim="Repairing a reply from its first wrong step is ahead of one reply.",
    tests=(Test(), Test("single")),
)

if __name__ == "__main__":
    main(SYSTEM)
