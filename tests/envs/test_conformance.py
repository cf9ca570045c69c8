"""Every registered environment passes check_env, and check_env catches what is broken."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import marft_envs
from helpers.flex import PlainTask, flex, team
from marft_envs import ConfigError, FlexEnv, Independent, Layered, Outcome, Router, check_env
from marft_envs.core.partners import FixedPartners
from marft_envs.core.wrappers import PromptObservation, TurnLimit
from marft_envs.testing.conformance import CheckError

# Other tests register test/…; an id with data of its own downloads it.
IDS = [spec.id for spec in marft_envs.list_envs() if "/" not in spec.id and "data" not in spec.kwargs]


def pace(id: str) -> list[pytest.MarkDecorator]:
    """The fast suite checks the toys, and of each family the single agent."""
    families = ("code-", "docs-", "math-", "rag-", "tools-")
    return [pytest.mark.ci] if id.startswith(families) and not id.endswith("-solo-v0") else []


@pytest.mark.parametrize("id", [pytest.param(id, marks=pace(id)) for id in IDS])
def test_registered_environments(id: str) -> None:
    report = check_env(id)
    assert report.env_id == id and len(report.passed) == 16
    assert f"{id}: 16 checks passed" in str(report)


@pytest.mark.parametrize("id", ["relay-v0", "xor-v0", "route-v0", "signal-v0", "math-debate-v0"])
def test_under_independent_the_parallel_conversion_passes_too(id: str) -> None:
    report = check_env(lambda: marft_envs.make(id, dependency=Independent()))
    assert "parallel" in report.passed and "parallel" not in report.remarks


@pytest.mark.parametrize("observation", ["prompt", "structured"])
@pytest.mark.parametrize("history", ["deps", "public"])
def test_other_renderings_and_histories(observation: str, history: str) -> None:
    check_env(lambda: marft_envs.make("signal-v0", observation=observation, history=history))


def rewarding() -> PlainTask:
    return PlainTask(_layer, _round)


def _layer(turns: Any) -> Outcome:
    return Outcome(turn_rewards={turns[0].index: 0.5}, feedback={"a_0": "noted"}, agent_rewards={"b_0": 0.1})


def _round(turns: Any) -> Outcome:
    return Outcome(team_reward=1.0, success=len(turns) > 2)


def _deadly(turns: Any) -> Outcome:
    return Outcome(team_reward=1.0, dead=frozenset({"b_0"}) if turns[-1].round == 1 else frozenset())


@pytest.mark.parametrize("build", [
    lambda: flex(3, task=rewarding(), max_rounds=3, attribution="last"),
    lambda: flex(4, Layered([["a_0", "c_0"], ["b_0", "d_0"]]), rewarding(), max_rounds=2, history="own"),
    lambda: flex(3, task=PlainTask(_deadly), max_rounds=3),
    lambda: flex(3, task=PlainTask(_layer, _round, slow=True), max_rounds=2),
    lambda: flex(3, task=rewarding(), max_rounds=2, max_chars=50),
    lambda: TurnLimit(flex(3, task=rewarding(), max_rounds=5), 7),
    lambda: FixedPartners(flex(3, Layered([["a_0", "b_0"], ["c_0"]]), PlainTask(round=_round)), {"b_0": "fixed"}),
    lambda: PromptObservation(flex(2, task=rewarding())),
])  # fmt: skip
def test_environments_that_keep_the_rules(build: Callable[[], FlexEnv]) -> None:
    check_env(build)


def test_an_environment_or_a_module_can_be_given() -> None:
    assert check_env(flex(2)).env_id == "custom"
    assert check_env("helpers.flex:flex").env_id == "custom"
    with pytest.raises(ConfigError, match="no callable 'flux'"):
        check_env("helpers.flex:flux")
    with pytest.raises(ConfigError, match="Did you mean 'relay-v0'"):
        check_env("relays-v0")


# What check_env catches ---------------------------------------------------------------------------------


class Tattling(PlainTask):
    """Shows everybody what was said last."""

    said = ""

    def reset(self, rng: Any, options: Any) -> None:
        super().reset(rng, options)
        self.said = ""

    def observe(self, agent: str) -> str:
        return f"somebody said: {self.said}"

    def on_layer(self, turns: Any) -> Outcome:
        self.said = turns[-1].text
        return Outcome()


class Fickle(PlainTask):
    """Its observation changes when looked at."""

    looks = 0

    def observe(self, agent: str) -> str:
        self.looks += 1
        return f"look {self.looks}"


class Global(PlainTask):
    """Draws with numpy's global generator."""

    def reset(self, rng: Any, options: Any) -> None:
        self.number = int(np.random.randint(1000))
        self.task_id = str(self.number)


class Reading(PlainTask):
    """Scores by a generator of its own that no seed reaches."""

    def on_round(self, turns: Any) -> Outcome:
        return Outcome(team_reward=random.SystemRandom().random())


class Leaky(PlainTask):
    """Gives its gold answer away."""

    def gold(self) -> str:
        return str(self.number)


class Fragile(PlainTask):
    """Takes every reply for a number's name."""

    def on_layer(self, turns: Any) -> Outcome:
        turns[0].text.encode("utf-8")
        return Outcome()


class Wrong(PlainTask):
    """Its gold answer does not score."""

    def validate(self) -> None:
        raise AssertionError("the gold answer scores 0")


class Vain(FlexEnv):
    """Rewards all agents twice in PettingZoo's view."""

    def _accumulate_rewards(self) -> None:
        self.rewards = {agent: 2 * reward for agent, reward in self.rewards.items()}
        super()._accumulate_rewards()


class Eager(FlexEnv):
    """Shows an action of the layer before the layer commits."""

    def messages(self, agent: str, max_chars: int | None = None) -> Any:
        seen = super().messages(agent, max_chars)
        return [*seen, {"role": "user", "content": " ".join(self.schedule.pending.values())}]


class Raw(FlexEnv):
    """Shows what the agents before have said, as they have said it."""

    def messages(self, agent: str, max_chars: int | None = None) -> Any:
        said = [turn.text for turn in self.view.history if turn.agent != agent]
        return [*super().messages(agent, max_chars), {"role": "user", "content": " ".join(said)}]


class Half(Raw):
    """Leaves nothing out but marks and NULs."""

    def messages(self, agent: str, max_chars: int | None = None) -> Any:
        shown = super().messages(agent, max_chars)
        return [{**one, "content": re.sub(r"[<\[\x00]", "", one["content"])} for one in shown]


@pytest.mark.parametrize(("build", "promise", "words"), [
    (lambda: flex(2, Independent(), Tattling(), max_rounds=3), "visibility", "its `sees` does not name"),
    (lambda: flex(2, task=Fickle()), "purity|seed_test|api_test", ""),
    (lambda: flex(2, task=Global()), "seed_test|global_randomness|order_invariance", ""),
    (lambda: flex(2, task=Reading()), "seed_test|order_invariance", ""),
    (lambda: flex(2, task=Leaky()), "gold_hidden", "shown the gold answer in 16 of 16"),
    (lambda: flex(2, task=Fragile()), "hostile_actions", "UnicodeEncodeError"),
    (lambda: Raw(team(2), PlainTask(), marft_envs.Chain()), "hostile_actions", r"NUL: control text.*x00"),
    (lambda: Half(team(2), PlainTask(), marft_envs.Chain()), "hostile_actions", r"surrogates: control.*udfff"),
    (lambda: flex(2, task=Wrong()), "task_validates", "the gold answer scores 0"),
    (lambda: Vain(team(2), rewarding(), marft_envs.Chain()), "reward_bookkeeping", "PettingZoo's sum is"),
    (lambda: Eager(team(2), PlainTask(), Independent()), "visibility", "its `sees` does not name"),
    (lambda: flex(2, Router(lambda view: ["a_0"])), "api_test|order_invariance", ""),
    (lambda: flex(2, Router(lambda view: view.agents[view.layer : view.layer + 1])), "pickling", "instead of lambdas"),
])  # fmt: skip
def test_broken_promises_are_named(build: Callable[[], FlexEnv], promise: str, words: str) -> None:
    with pytest.raises(CheckError, match=rf"breaks '(?:{promise})'.*{words}"):
        check_env(build)
