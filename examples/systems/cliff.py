"""A Universal Cliff (Fukui, arXiv 2605.26174): a contradiction between two sections of which each worker reads one.

Reproduced: two workers read a section each and report; a third agent sees the reports alone and says whether the
sections contradict each other; one agent that reads both sections is the rival. Departs: a section is a digit, two
sections contradict each other where their digits differ, and teams are shown demonstrations and trained, where the
paper measures ten models as they are. Without reports the best score is 1/2.

    python examples/systems/cliff.py
"""

from __future__ import annotations

from functools import partial

import marft_envs
from examples.systems.system import System, Test, main
from marft_envs import AgentSpec, FlexEnv, Layered
from marft_envs.families.toy.base import ToyTask, digit

WORKERS = ("worker_0", "worker_1")
REPORTER = "reporter_0"


class Sections(ToyTask):
    """Two digits from 0 to 3, equal in half of the documents."""

    name = "sections"
    states = tuple((x, y) for x in range(4) for y in range(4) for _ in range(3 if x == y else 1))

    def __init__(self, whole):
        super().__init__()
        self.workers = () if whole else WORKERS
        self.sizes = {**dict.fromkeys(self.workers, 4), REPORTER: 2}

    def observe(self, agent):
        if agent in self.workers:
            return f"digit {self.state[self.workers.index(agent)]}"
        return "digit ?" if self.workers else "digit {}, digit {}".format(*self.state)

    def right(self, turns):
        said = [digit(turn.text, 2) for turn in turns if turn.agent == REPORTER]
        return said == [int(self.state[0] != self.state[1])]

    def gold_turns(self):
        reports = [(worker, str(x)) for worker, x in zip(self.workers, self.state, strict=False)]
        return [*reports, (REPORTER, str(int(self.state[0] != self.state[1])))]


def make(whole=False, dependency=None, **kwargs):
    task = Sections(whole)
    team = [AgentSpec(name, "worker", "Pass the digit on. Say one digit from 0 to 3.") for name in task.workers]
    reporter = AgentSpec(REPORTER, "reporter", "Signal the digit. Say 0 or 1.", with_answer=True)
    layers = [list(task.workers), [REPORTER]] if task.workers else [[REPORTER]]
    return FlexEnv([*team, reporter], task, dependency or Layered(layers), **kwargs)


marft_envs.register("systems/cliff-v0", make, summary="A Universal Cliff: two workers, and one who has their reports")
marft_envs.register("systems/cliff_whole-v0", partial(make, whole=True), summary="the same sections, for one agent")
SYSTEM = System(
    "A Universal Cliff (2605.26174)",
    env="systems/cliff-v0",
    algo="marft",
    settings={
        "policies": {**dict.fromkeys(WORKERS, "worker"), REPORTER: "reporter"},
        "warm_start": 8,
        "iterations": 45,
    },
    single="systems/cliff_whole-v0",
    single_settings={"policies": "own"},
    claim="Trained together, workers and a reporter find contradictions as well as one agent that reads all.",
    tests=(Test(), Test("single", by=-0.05)),
)

if __name__ == "__main__":
    main(SYSTEM)
