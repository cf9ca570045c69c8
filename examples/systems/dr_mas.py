"""Dr. MAS (arXiv 2602.08847): group-relative advantages with a mean and a deviation for each agent.

Reproduced: its search team, in which one agent decides after every step whether to search on, to read or to answer,
so that agents act in different episodes; the algorithm is the paper's. Departs: the corpus and its two-hop questions
are made here, and the embedded model first imitates the expert.

    python examples/systems/dr_mas.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main


def make(split="train", **kwargs):
    return marft_envs.make("rag-router-v0", split=split, **{"level": 0, "hops": 2, "recall_reward": 0.4, **kwargs})


marft_envs.register("systems/dr_mas-v0", make, summary="Dr. MAS: a router, a searcher, a reader, an answerer")
SYSTEM = System(
    "Dr. MAS (2602.08847)",
    env="systems/dr_mas-v0",
    algo="dr_mas",
    settings={"preset": "rag"},
    single="rag-solo-v0",
    single_settings={"env_kwargs": {"level": 0, "hops": 2, "recall_reward": 0.4}},
    control={"algo": "grpo"},
    claim="Statistics of each agent keep agents in training that act seldom: ahead of those of the team (grpo).",
    tests=(Test(), Test("control")),
)

if __name__ == "__main__":
    main(SYSTEM)
