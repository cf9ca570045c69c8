"""What programs do in tests that are teams, well and badly; the same team as a task; and its problems."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import marft_envs
from helpers.program_team import ask, team
from marft_envs import AgentSpec, FlexEnv, Outcome, TurnRecord
from marft_envs.adapters.inward import program
from marft_envs.core.dependency import Chain, Layered
from marft_envs.problems.sets import Drawn

Given, Api = dict[str, Any], dict[str, str]
PROBLEMS = [{"id": word, "problem": f"Say {word}.", "answer": word} for word in ("yes", "no", "both", "none", "all")]
TEAM = ["writer_0", "reader_0"]
SUM = ["left_0", "right_0", "adder_0"]


def length(problem: Mapping[str, Any], answer: str) -> float:
    """Pays something that differs between replies, whatever an untrained model says."""
    return (sum(map(ord, answer)) + len(problem["answer"])) % 7 / 7


def exact(problem: Mapping[str, Any], answer: str) -> float:
    return float(answer.strip() == problem["answer"])


class Twin(Drawn[program.Problem]):
    """The same team as a task of this project."""

    slow = False

    def __init__(self) -> None:
        self.problems = program.problems(PROBLEMS)

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        rng.integers(2**31)
        self.draw(rng, options)

    def observe(self, agent: str) -> str:
        return str(self.problem.row["problem"])

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        pay = length(self.problem.row, turns[-1].text)
        return Outcome(pay, terminated=True, success=pay >= 1.0)

    def sample_actions(self, agent: str) -> Sequence[str]:
        return ("yes", "no")

    def validate(self) -> None:
        """Nothing to prove."""


def twin(split: str = "train", **settings: Any) -> FlexEnv:
    agents = (AgentSpec("writer_0", "writer", "Write."), AgentSpec("reader_0", "reader", "Read."))
    return FlexEnv(agents, Twin(), Chain(), **settings)


def twin_of_sum(**settings: Any) -> FlexEnv:
    agents = [AgentSpec(name, name[:-2], "Say a number.") for name in SUM]
    return FlexEnv(agents, Twin(), Layered([["left_0", "right_0"], ["adder_0"]]), **settings)


marft_envs.register("twin-v0", twin)


def together(problem: Given, api: Api) -> str:
    """Two agents are asked at once, a third reads both."""
    text = problem["problem"]
    with ThreadPoolExecutor(2) as pool:
        left, right = pool.map(lambda agent: ask(api, agent, "Say a number.", text), ["left_0", "right_0"])
    return ask(api, "adder_0", "Say a number.", f"{text}\n\n[left]\n{left}\n\n[right]\n{right}")


async def awaited(problem: Given, api: Api) -> str:
    return await asyncio.to_thread(team, problem, api)


def number(problem: Given, api: Api) -> float:
    """Is paid what it returns."""
    return len(ask(api, "writer_0", "Write.", str(problem["seed"]))) / 100


def routed(problem: Given, api: Api) -> str:
    """Asks whom the writer names."""
    return ask(api, ask(api, "writer_0", "Name who reads.", problem["problem"]), "Read.", "Well?")


def lost(problem: Given, api: Api) -> str:
    return ask(api, "riter_0", "", problem["problem"])


def parses(problem: Given, api: Api) -> str:
    """Trusts a model to say a number."""
    return str(int(ask(api, "writer_0", "Say a number.", problem["problem"])))


def unreachable(problem: Given, api: Api) -> str:
    ask(api, "writer_0", "", problem["problem"])
    raise ConnectionError("the shop's data base is down")


def mute(problem: Given, api: Api) -> str:
    return "I know it all"


def silent(problem: Given, api: Api) -> str:
    """Asks once, and is not heard of again."""
    ask(api, "writer_0", "", problem["problem"])
    threading.Event().wait(30)
    return ""


def endless(problem: Given, api: Api) -> str:
    while True:
        ask(api, "writer_0", "", problem["problem"])


def varied(problem: Given, api: Api) -> str:
    """The third is killed, the fourth silent, the others work; for commands of many at once."""
    number = int(problem["id"])
    words = ask(api, "writer_0", "Write.", problem["problem"])
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 4:
        time.sleep(60)
    return ask(api, "reader_0", "Read.", words)
