"""MARSHAL (arXiv 2510.15414): agents learn from games against themselves, with advantages of single turns.

Reproduced: one policy plays every seat; a turn is credited with the rewards that follow it, centred and scaled for each
player; the algorithm is the paper's. Departs: tic-tac-toe alone (PettingZoo's: `pip install -e '.[pettingzoo]'`), in
which a move is drawn where a reply names no free square; past selves play some seats; transfer to other tasks is not
measured.

    python examples/systems/marshal.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, main


def make(opponents=None, **kwargs):
    seats = {"opponents": opponents} if opponents else {}
    kwargs = {"profiles": "Add to the last digit. Say one digit.", "illegal": "random", **kwargs}
    return marft_envs.make("pettingzoo:tictactoe_v3", **seats, **kwargs)


marft_envs.register("systems/marshal-v0", make, summary="MARSHAL: tic-tac-toe against oneself")
SYSTEM = System(
    "MARSHAL (2510.15414)",
    env="systems/marshal-v0",
    algo="marshal",
    settings={"policies": "shared", "pool": 2, "eval_kwargs": {"opponents": "random"}},
    claim="Self-play raises what a policy wins against a player that it never met.",
)

if __name__ == "__main__":
    main(SYSTEM)
