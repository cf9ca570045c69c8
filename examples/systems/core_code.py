"""CoRe-Code (Dou et al., arXiv 2605.24812): a planner says how, a coder writes the program.

Reproduced: both are trained on the tests that the program passes, with group-relative advantages. Departs: programs
have one line, and their run time and memory, which the paper rewards, have no reward.

    python examples/systems/core_code.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, main


def make(split="train", **kwargs):
    return marft_envs.make("code-dual-v0", split=split, **{"levels": [0], **kwargs})


marft_envs.register("systems/core_code-v0", make, summary="CoRe-Code: a planner and a coder")
SYSTEM = System(
    "CoRe-Code (2605.24812)",
    env="systems/core_code-v0",
    algo="grpo",
    settings={"preset": "code"},
    single="code-solo-v0",
    single_settings={"env_kwargs": {"levels": [0]}},
    claim="A planner and a coder trained together are ahead of one agent.",
)

if __name__ == "__main__":
    main(SYSTEM)
