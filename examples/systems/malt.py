"""MALT (Motwani et al., arXiv 2412.01928): a generator, a verifier and a refiner learn from what they solved.

Reproduced: the chain of three, with a policy each, and supervised steps on the turns of successful episodes. Departs:
the paper samples a tree of answers once and labels each node by the share of right leaves, with preferences (DPO) on
top; here every iteration samples whole chains anew and imitates those that succeed (RFT).

    python examples/systems/malt.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, main
from marft_envs.families.math.teams import TEAMS

ROLES = {agent.role: agent for agent in TEAMS["octet"].agents}
"""The embedded model knows these profiles: solver (who generates), critic (who verifies), judge (who refines)."""
CHAIN = [{"role": role, "prompt": ROLES[role].prompt} for role in ("solver", "critic", "judge")]


def make(split="train", **kwargs):
    profiles = [*CHAIN[:2], {**CHAIN[2], "with_answer": True}]
    return marft_envs.make("math-trio-v0", split=split, levels=[0], profiles=profiles, **kwargs)


marft_envs.register("systems/malt-v0", make, summary="MALT: generator, verifier, refiner")
SYSTEM = System(
    "MALT (2412.01928)",
    env="systems/malt-v0",
    algo="rft",
    settings={"preset": "quickstart", "iterations": 20},
    single="math-solo-v0",
    single_settings={"env_kwargs": {"levels": [0]}},
    claim="A chain trained on its own successes is ahead of one agent trained on its own.",
)

if __name__ == "__main__":
    main(SYSTEM)
