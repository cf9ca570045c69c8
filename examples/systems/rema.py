"""ReMA (Wan et al., arXiv 2503.09501): a meta-thinker says how to go about a problem, a reasoner carries it out.

Reproduced: two policies, one of which thinks about thinking; both are trained on the team's success, here with the
group-relative advantages of the paper's multi-turn variant. Departs: problems and profiles are those that the embedded
model reads, and the two talk for one round.

    python examples/systems/rema.py            # a minute of one core
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main


def make(split="train", **kwargs):
    return marft_envs.make("math-dual-v0", split=split, levels=[0], **kwargs)


marft_envs.register("systems/rema-v0", make, summary="ReMA: a meta-thinker and a reasoner")
SYSTEM = System(
    "ReMA (2503.09501)",
    env="systems/rema-v0",
    algo="grpo",
    settings={"preset": "quickstart", "iterations": 16},
    single="math-solo-v0",
    single_settings={"env_kwargs": {"levels": [0]}},
    claim="Two roles that are trained together are ahead of one agent that does both.",
    tests=(Test(), Test("single")),
    withdrawn="its first agent does half of the work, where the paper's plans.",
)

if __name__ == "__main__":
    main(SYSTEM)
