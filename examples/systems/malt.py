"""MALT (Motwani et al., arXiv 2412.01928): a generator, a verifier and a refiner learn from a tree of their answers.

Reproduced: the chain of three, with a policy each, and its whole tree: two words at every state, eight leaves, and each
node is valued by the share of right leaves (`treerl`); the majority of three sampled answers counts, of the team and of
its rival. Roles are taught by 256 demonstrations, and the rival has as many. Departs: the paper samples one large tree,
imitates nodes above a threshold, and adds preferences between siblings (DPO); here every iteration grows trees anew,
and each turn is learnt from by what its node gains on its parent.

    python examples/systems/malt.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
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
    algo="treerl",
    settings={
        "preset": "quickstart",
        "iterations": 4,
        "warm_start": 2,
        "algorithm": {"width": 2, "expansions": 4, "rounds": 3, "expand": "first"},
    },
    single="math-solo-v0",
    single_settings={"env_kwargs": {"levels": [0]}},
    claim="A chain trained on trees of its own answers is ahead of one agent trained on its own, by votes of three.",
    votes=3,
    tests=(Test("single", metric="voted"), Test("imitated")),
)

if __name__ == "__main__":
    main(SYSTEM)
