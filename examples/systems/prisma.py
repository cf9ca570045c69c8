"""PRISMA (Liu et al., arXiv 2601.05465): plan, retrieve, inspect, solve.

Reproduced: a planner's words send out searchers, and an inspector answers, or says what is missing and has the team
plan again. Departs: inspector and solver are one agent, nothing is memoised over questions, all are trained at once,
and with plain group-relative advantages in place of its observation-aware residual ones.

    python examples/systems/prisma.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, main


def make(split="train", **kwargs):
    return marft_envs.make("rag-planner-v0", split=split, **{"level": 0, "hops": 2, "recall_reward": 0.4, **kwargs})


marft_envs.register("systems/prisma-v0", make, summary="PRISMA: a planner, searchers, an inspector")
SYSTEM = System(
    "PRISMA (2601.05465)",
    env="systems/prisma-v0",
    algo="grpo",
    settings={"preset": "rag"},
    single="rag-solo-v0",
    single_settings={"env_kwargs": {"level": 0, "hops": 2, "recall_reward": 0.4}},
    claim="An inspector that can ask for more repairs what a plan has missed.",
)

if __name__ == "__main__":
    main(SYSTEM)
