"""Chain-of-Agents (Li et al., arXiv 2508.13167): a team is distilled into one model, which is then trained.

Reproduced: the team, whose successes teach one agent. After this run:

    marft distill RUN --into docs-solo-v0

and `marft sft` with what it wrote, then `marft train` from that. Departs: the team's agents read parts of a document
in turn, where the paper's use tools.

    python examples/systems/chain_of_agents.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, main


def make(split="train", **kwargs):
    return marft_envs.make("docs-chain-v0", split=split, **{"level": 0, "kinds": "total", "lengths": 1, **kwargs})


marft_envs.register(
    "systems/chain_of_agents-v0", make, summary="Chain-of-Agents: readers in turn, whom one agent learns from"
)
SYSTEM = System(
    "Chain-of-Agents (2508.13167)",
    env="systems/chain_of_agents-v0",
    algo="marft",
    settings={"preset": "docs"},
    single="docs-solo-v0",
    single_settings={"env_kwargs": {"level": 0, "kinds": "total", "lengths": 1}},
    claim="One model learns from a team's successes what the team can do.",
)

if __name__ == "__main__":
    main(SYSTEM)
