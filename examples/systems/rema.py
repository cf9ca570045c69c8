"""ReMA (Wan et al., arXiv 2503.09501): a meta-thinker says how to go about a problem, a reasoner carries it out.

Reproduced: a policy that plans and one that works, both rewarded for the team's success; they are updated in turn, the
other one frozen (`update`), and the ratio is that of a turn, its tokens averaged (`level`, `norm`). Departs: a critic
in place of group-relative advantages, the two talk for one round, and profiles are those that the embedded model reads.
Cannot be asked here: the paper's meta-thinker says how to think, which helps where a problem has several ways to a
solution. The embedded model knows one way, and under the planner's profile it says the first step.

    python examples/systems/rema.py            # a minute of one core
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs.families.math.teams import TEAMS

TEAM = [{"role": a.role, "prompt": a.prompt, "with_answer": a.with_answer} for a in TEAMS["trio"].agents[::2]]


def make(split="train", **kwargs):
    return marft_envs.make("math-dual-v0", split=split, levels=[0], profiles=TEAM, **kwargs)


marft_envs.register("systems/rema-v0", make, summary="ReMA: a meta-thinker and a reasoner")
SYSTEM = System(
    "ReMA (2503.09501)",
    env="systems/rema-v0",
    algo="marft",
    settings={
        "preset": "quickstart",
        "iterations": 16,
        "algorithm": {"level": "action", "norm": "token", "update": "agent"},
    },
    single="math-solo-v0",
    single_settings={"env_kwargs": {"levels": [0]}},
    claim="A reasoner that is prompted with a plan by a meta-thinker is ahead of one agent that does both.",
    tests=(Test(), Test("single")),
)

if __name__ == "__main__":
    main(SYSTEM)
