"""MARS² (Li et al., arXiv 2604.14564; 2602.07848): coders of different policies refine programs in one search tree.

Reproduced: two coders, each with a policy of its own; a program is tested, and the next coder refines it by what the
tests said; from states of the tree other programs are drawn, all of them are learnt from, and a node is compared with
its parent and its siblings at once (`treerl` with `siblings`). Departs: coders take turns, and states are expanded
where the words were least likely, in place of Thompson sampling of pairs of coder and node; a node is worth what comes
of it, the mean of its leaves, in place of its own tests; one σ is of the leaves, in place of the shaped rewards.

    python examples/systems/mars2.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import Router, Turn
from marft_envs.families.code.teams import TEAMS

CODER = {"role": "coder", "prompt": TEAMS["retry"].agents[0].prompt, "with_answer": True}


def speaks(view):
    """The two in turn, round by round; each is shown the last program, and what the tests said of it."""
    last = [turn.index for turn in view.history[-1:]]
    return [Turn(f"coder_{view.round % 2}", last)] if view.layer == 0 else []


def make(split="train", dependency=None, **kwargs):
    kwargs = {"levels": [0], "history": "deps", "profiles": [CODER, CODER], **kwargs}
    return marft_envs.make("code-retry-v0", split=split, dependency=dependency or Router(speaks), **kwargs)


marft_envs.register("systems/mars2-v0", make, summary="MARS²: two coders refine programs in one tree")
SYSTEM = System(
    "MARS² (2604.14564)",
    env="systems/mars2-v0",
    algo="treerl",
    settings={
        "preset": "code",
        "policies": "own",
        "algorithm": {"width": 2, "expansions": 2, "rounds": 2, "siblings": 0.5},
    },
    single="code-retry-v0",
    single_settings={"env_kwargs": {"levels": [0]}},
    claim="Two coders that search one tree are ahead of one that searches alone.",
    tests=(Test(), Test("single")),
)

if __name__ == "__main__":
    main(SYSTEM)
