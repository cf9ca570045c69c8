"""SCMA (Chen et al., arXiv 2601.21919): superfluous chunks of a reply are penalised, and no others.

Reproduced: a penalty on chunks, weighted by their length, beside the reward for the answer; it stands at the tokens of
the chunk (``Outcome.segments``). Departs: a rule segments and scores (a chunk without a step, or one that was said
before, is superfluous), where the paper trains two agents to do it; replies are those of two agents in turn.

    python examples/systems/scma.py
"""

from __future__ import annotations

import re

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import FlexEnv, Outcome
from marft_envs.families.math import data
from marft_envs.families.math.task import MathTask
from marft_envs.families.math.teams import TEAMS

CHUNK = re.compile(r"[^,.]+[,.]?")
COST = 0.02
"""Of a character of a superfluous chunk."""


class Brief(MathTask):
    """A calculation in which saying what is of no use costs."""

    def reset(self, rng, options):
        super().reset(rng, options)
        self.said = set()

    def on_layer(self, turns):
        super().on_layer(turns)
        spans, wasted = {}, 0
        for turn in turns:
            for chunk in CHUNK.finditer(turn.text):
                step = re.sub(r"[\s,.]", "", chunk[0])
                if step and (("=" not in step and "boxed" not in step) or step in self.said):
                    spans.setdefault(turn.index, []).append((*chunk.span(), -COST * len(chunk[0])))
                    wasted += 1
                self.said.add(step)
        return Outcome(segments=spans, metrics={"superfluous": float(wasted)})


def make(split="train", **kwargs):
    team = TEAMS["dual"]
    return FlexEnv(
        team.agents, Brief(data.load("procedural", split, None, 0), ["actor_0"]), team.dependency(), **kwargs
    )


marft_envs.register("systems/scma-v0", make, summary="SCMA: superfluous chunks of a reply cost")
SYSTEM = System(
    "SCMA (2601.21919)",
    env="systems/scma-v0",
    algo="marft",
    settings={"preset": "quickstart", "iterations": 40, "algorithm": {"level": "token"}},
    single="math-solo-v0",
    single_settings={"env_kwargs": {"levels": [0]}},
    claim="Replies become shorter, and no fewer answers are right.",
    tests=(Test(metric="superfluous", by=0.05, less=True), Test(by=0.0)),
)

if __name__ == "__main__":
    main(SYSTEM)
