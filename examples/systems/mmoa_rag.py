"""MMOA-RAG (Chen et al., arXiv 2501.15228): the modules of retrieval are agents with one reward, trained by MAPPO.

Reproduced: who writes searches, who picks out of what was found, and who answers; MAPPO after imitation, and a team
reward for the answer beside a reward for each search. Departs: the search's own reward is recall, the paper's own
rewards are penalties (of too many questions, of documents named twice); agents have policies of their own.

    python examples/systems/mmoa_rag.py
"""

from __future__ import annotations

import marft_envs
from examples.systems.system import System, Test, main


def make(split="train", **kwargs):
    return marft_envs.make("rag-chain-v0", split=split, **{"level": 0, "hops": 2, "recall_reward": 0.4, **kwargs})


marft_envs.register("systems/mmoa_rag-v0", make, summary="MMOA-RAG: a searcher, a reader, an answerer")
SYSTEM = System(
    "MMOA-RAG (2501.15228)",
    env="systems/mmoa_rag-v0",
    algo="mappo",
    settings={"preset": "rag"},
    single="rag-solo-v0",
    single_settings={"env_kwargs": {"level": 0, "hops": 2, "recall_reward": 0.4}},
    claim="Training all modules together is ahead of training one agent.",
    tests=(Test(), Test("single")),
)

if __name__ == "__main__":
    main(SYSTEM)
