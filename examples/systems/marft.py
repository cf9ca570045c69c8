"""MARFT (Liao et al., arXiv 2504.16129): the paper of this project, as a system of its own table.

Reproduced: a reasoner and an actor with an adapter each on one frozen base, in turn; the actor's answer is rewarded
with 1 or 0; token-level MARFT, PPO with a shared critic over the turns of all (section 5.1, algorithm 3). The rival is
one actor trained by the same PPO. The team with the mechanism removed has no roles: both agents have the profile of one
that solves a problem alone. Departs: `embedded` in place of Qwen2.5-Coder-3B-Instruct, problems of two steps in place
of MATH, greedy replies, other hyper-parameters. `claims.py` has the paper's other claims, with five seeds.

    python examples/systems/marft.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs.families.math.teams import TEAMS

ALONE = next(agent for agent in TEAMS["debate"].agents if agent.role == "solver")
"""A profile that the embedded model knows, and that names no other agent."""
NAMELESS = [{"role": "solver", "prompt": ALONE.prompt, "with_answer": answers} for answers in (False, True)]


def make(split="train", nameless=False, **kwargs):
    profiles = NAMELESS if nameless else None
    return marft_envs.make("math-dual-v0", split=split, levels=[0], profiles=profiles, **kwargs)


marft_envs.register("systems/marft-v0", make, summary="MARFT: a reasoner and an actor")
SYSTEM = System(
    "MARFT (2504.16129)",
    env="systems/marft-v0",
    algo="marft",
    settings={"preset": "quickstart", "iterations": 20},
    single="math-solo-v0",
    single_settings={"env_kwargs": {"levels": [0]}},
    control={"env_kwargs": {"nameless": True}},
    claim="A tuned team of two is ahead of the untuned one, of one tuned agent, and of a tuned team without roles.",
    tests=(Test(), Test("single"), Test("control")),
)

if __name__ == "__main__":
    main(SYSTEM)
