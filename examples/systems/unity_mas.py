"""UnityMAS-O (arXiv 2605.26646): one trainer for teams whose roles, turns and rewards a workflow names.

Reproduced: a workflow of several rounds with turn rewards: by the credit rule `difference` a coder's reward is what its
program gains on its last one, and a reflector's what the next one gains after its words. Departs: the workflow is
short, and each role has a policy of its own.

    python examples/systems/unity_mas.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, main


def make(split="train", **kwargs):
    return marft_envs.make("code-reflect-v0", split=split, **{"levels": [0], **kwargs})


marft_envs.register("systems/unity_mas-v0", make, summary="UnityMAS-O: a coder and a reflector, with turn rewards")
SYSTEM = System(
    "UnityMAS-O (2605.26646)",
    env="systems/unity_mas-v0",
    algo="mappo",
    settings={"preset": "code", "algorithm": {"credit": {"rule": "difference", "critics": ["reflector"]}}},
    single="code-solo-v0",
    single_settings={"env_kwargs": {"levels": [0]}, "algorithm": {"credit": "broadcast"}},
    claim="Rewards of single turns teach a role what it is for.",
)

if __name__ == "__main__":
    main(SYSTEM)
