"""MasHost (Yang et al., arXiv 2506.08507): a policy builds the team that works on a task.

Reproduced: a boss's words spawn readers and say what each works on; so the graph is an action, and is trained with
group-relative advantages on what the team built from it achieves. Departs: roles are given, only their number and
their shares of the work are chosen, and its advantages within and between groups (HRPO) are those of GRPO.

    python examples/systems/mashost.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main


def make(split="train", **kwargs):
    return marft_envs.make("docs-boss-v0", split=split, **{"level": 0, "kinds": "total", "lengths": 1, **kwargs})


marft_envs.register("systems/mashost-v0", make, summary="MasHost: a boss's words build the team")
SYSTEM = System(
    "MasHost (2506.08507)",
    env="systems/mashost-v0",
    algo="grpo",
    settings={"preset": "docs"},
    single="docs-solo-v0",
    single_settings={"env_kwargs": {"level": 0, "kinds": "total", "lengths": 1}},
    claim="A team built for the task is ahead of one agent.",
    tests=(Test(), Test("single")),
)

if __name__ == "__main__":
    main(SYSTEM)
