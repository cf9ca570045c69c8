"""Agentic Neural Networks (Ma et al., arXiv 2506.09046): prompts are a team's weights, and words are their gradient.

Reproduced: agents in layers; after a forward pass over problems somebody reads what went wrong and rewrites one agent's
prompt, and the better team is kept (`gepa`; LACMAS and OPTAGENT differ in who reads what). Departs: no model here can
reflect, so the proposer is a script: it tries roles that the embedded model was taught, one after the other. Both
agents begin with a profile that says nothing. Layers are one agent wide, and D is not rewritten.

    python examples/systems/ann.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import marft_envs
from examples.systems.system import System, main

NOTHING = "Take part."
ROLES = sorted({agent.prompt for team in ("solo", "dual", "trio") for agent in marft_envs.make(f"math-{team}-v0").team})
"""What the embedded model was taught to be."""


def rewrite(agent: str, profile: str, episodes: Sequence[Mapping[str, Any]]) -> str:
    """Proposes the role after the present one, unless everything shown was solved."""
    if all(episode["success"] for episode in episodes):
        return profile
    return ROLES[(ROLES.index(profile) + 1) % len(ROLES) if profile in ROLES else len(agent) % len(ROLES)]


def make(**kwargs: Any) -> marft_envs.FlexEnv:
    """The team of two, with profiles that say nothing."""
    return marft_envs.make(
        "math-dual-v0", profiles={"reasoner": NOTHING, "actor": NOTHING}, **{"levels": [0], **kwargs}
    )


marft_envs.register("systems/ann-v0", make, summary="Agentic Neural Networks: a team whose profiles say nothing")
SYSTEM = System(
    "Agentic Neural Networks (2506.09046)",
    env="systems/ann-v0",
    algo="gepa",
    settings={
        "preset": "quickstart",
        "algorithm": {"proposer": "examples.systems.ann:rewrite"},
        "iterations": 12,
        "episodes_per_iteration": 64,
    },
    claim="A team improves by rewriting its agents' prompts, without training a weight.",
)

if __name__ == "__main__":
    main(SYSTEM)
