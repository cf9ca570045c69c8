"""``marft versus --forecast``: agents of known skill, whose score the forecast must find from single turns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import marft_envs
from helpers.flex import PlainTask, flex
from marft_algos.cli.app import main
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.scripted import ScriptedEngine
from marft_algos.evaluation.environments import evaluation_set
from marft_algos.evaluation.play import Player
from marft_algos.extras.bench.versus import forecast, grids
from marft_algos.extras.bench.versus.trial import Trial
from marft_algos.models.chat import Renderer
from marft_algos.models.loading import ModelSettings, load_chat
from marft_algos.types import GenerationRequest, SamplingParams
from marft_envs import Chain, FlexEnv, Outcome, TurnRecord
from marft_envs.core.types import optional
from marft_envs.errors import ConfigError

Script = Callable[[GenerationRequest], str]


def player(make_env: Callable[[], FlexEnv], script: Script | str, renderer: Renderer | None = None) -> Player:
    env = make_env()
    renderer = renderer or Renderer({}, {agent: agent for agent in env.possible_agents})
    tokenizer = renderer.tokenizer(renderer.policies[0]) if renderer.policies else None
    engine = ScriptedEngine({"*": script}, tokenizer)
    return Player(make_env, renderer, engine, SamplingParams(64), seed=3, slots=64, limits=TrainConfig())


def problems(make_env: Callable[[], FlexEnv], n: int) -> list[str] | None:
    listing = optional(make_env().unwrapped.task, "evaluation_set")
    return None if listing is None else list(listing(n))


def skilled(**skill: float) -> Script:
    """Adds up the numbers that it reads; by so much too many where a coin of its role says so: errors never cancel."""

    def said(request: GenerationRequest) -> str:
        _, _, text = request.messages[-1]["content"].partition("\n")
        numbers = [int(sign + digits) for sign, digits in re.findall(r"(-?)[a-z]?(\d+)", text)]
        role = request.agent.rpartition("_")[0]
        wrong = np.random.default_rng(request.seed).random() >= skill[role]
        return rf"\boxed{{{sum(numbers) + wrong}}}"

    return said


def passed_on(words: str, planner: float, solver: float) -> Script:
    """Says the last digit that it reads, or, where a coin of its role says so, the next one."""

    def said(request: GenerationRequest) -> str:
        digit = int(re.findall(r"\d", request.messages[-1]["content"])[-1])
        first = request.agent == "planner_0"
        wrong = np.random.default_rng(request.seed).random() >= (planner if first else solver)
        return (words if first else "{}").format((digit + wrong) % 4)

    return said


TREE = partial(marft_envs.make, "docs-tree-v0", kinds="total", lengths=2, split="test")
RELAY = partial(marft_envs.make, "relay-v0")


@pytest.mark.parametrize(("make_env", "script", "truth"), [
    (TREE, skilled(mapper=0.98, reducer=0.95), 0.98**4 * 0.95**3),
    (TREE, skilled(mapper=1.0, reducer=1.0), 1.0),
    (TREE, skilled(mapper=0.6, reducer=1.0), 0.6**4),
    (RELAY, passed_on("{}", 0.9, 0.8), 0.9 * 0.8),
    # In other words than the expert's, so that the solver's errors show in the planner's sub-problems, too.
    (RELAY, passed_on("It is {}.", 0.9, 0.8), 0.9 * 0.8),
])  # fmt: skip
def test_the_score_of_agents_of_known_skill_is_forecast(
    make_env: Callable[[], FlexEnv], script: Script, truth: float
) -> None:
    found = forecast.measure(player(make_env, script), evaluation_set(100, problems(make_env, 100)), 300)
    assert found.expert.mean == 1.0
    assert found.score.low <= truth <= found.score.high
    assert abs(found.score.mean - truth) < 0.1 and found.score.high - found.score.low < 0.35
    assert sum(skill.turns for skill in found.skills) == (7 if make_env is TREE else 2)


@pytest.mark.parametrize("skill", [(0.99, 0.98), (0.97, 1.0)])
def test_the_interval_covers_the_product(skill: tuple[float, float]) -> None:
    random, own = np.random.default_rng(1), np.repeat(np.eye(2), (103, 97), axis=0)
    truth, covered = skill[0] ** 16 * skill[1] ** 15, 0
    for _ in range(40):
        right = (random.random(200) < own @ skill).astype(float)
        scores = np.exp(np.log(forecast.skills(right, own, np.zeros_like(own))[1:]) @ (16, 15))
        low, high = np.quantile(scores, (0.025, 0.975))
        covered += low <= truth <= high
    assert covered >= 35  # of 40 intervals of 95 %


def test_no_error_counts_at_two_kinds() -> None:
    own = np.repeat(np.eye(2), (100, 100), axis=0)
    right = np.concatenate([np.arange(100) < 60, np.arange(100) < 75]).astype(float)
    assert forecast.skills(right, own, np.zeros_like(own))[0] == pytest.approx([0.6, 0.75])
    read = np.zeros_like(own)
    read[:100, 1] = 1  # the second kind has read on in all sub-problems of the first, and is right in 0.75
    assert forecast.skills(right, own, read)[0] == pytest.approx([0.8, 0.75])


def test_layers_of_few_sub_problems_are_one_kind() -> None:
    make_env = partial(TREE, lengths=8)
    prompts = evaluation_set(20, problems(make_env, 20))
    found = forecast.measure(player(make_env, skilled(mapper=1.0, reducer=1.0)), prompts, 30)
    assert [(skill.name, skill.turns) for skill in found.skills] == [
        ("mapper, layer 0", 16), ("reducer, layer 1", 8), ("reducer, layer 2", 4), ("reducer, others", 3),
    ]  # fmt: skip
    assert sum(skill.solved.n for skill in found.skills) == found.score.n


class Begun(PlainTask):
    """Begins the reply itself; the expert says all of it."""

    def prefix(self, agent: str) -> str:
        return "12"

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome(success=turns[-1].text == "12+3", terminated=True)

    def expert(self, agent: str) -> str:
        return "12+3"


def test_a_reply_that_the_task_has_begun_is_not_begun_twice() -> None:
    renderer = Renderer({"a": load_chat("embedded", ModelSettings())}, {"a_0": "a"})
    made = partial(flex, 1, Chain(), Begun())
    found = forecast.measure(player(made, "+3", renderer), evaluation_set(8, None), 8)
    assert found.expert.mean == found.score.mean == 1.0
    assert forecast.measure(player(made, "+4", renderer), evaluation_set(8, None), 8).score.mean < 1e-6


def test_a_task_without_an_expert_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no expert"):
        forecast.measure(player(partial(flex, 1), "yes"), evaluation_set(2, None), 2)


# The command ----------------------------------------------------------------------------------------

RELAYED = ("versus", "relay-v0", "--single-team", "solver_0", "--settings", "preset=toy", "eval_episodes=40")


@pytest.mark.parametrize(("more", "expected"), [
    ((), [r"team +0\.\d+ \[.*expert 1\.000, 4 tokens", "planner, layer 0 +1.0 turns", "solver, layer 1",
          r"single +0\.\d+ \[.*2 tokens", r"difference  [+-]\d+\.\d points \["]),
    # The team's answer takes four tokens, the single agent's two.
    (("--answer-latency", "3"), [r"team +0\.000 \[.*expert 0\.000", "its expert solves no", r"single +0\.\d+ \[.*expert 1"]),
    (("--answer-latency", "1"), [r"its expert solves no[^$]+its expert solves no problem, or none within --answer-latency$"]),
    (("--settings", "preset=toy", "eval_episodes=9", "warm_start=1"), ["^note:    this is before the warm start", "difference"]),
])  # fmt: skip
def test_the_command_says_both_scores(more: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RELAYED, "--forecast", "--sub-problems", "40", *more]) == 0
    said = capsys.readouterr().out.strip()
    assert all(re.search(line, said) for line in expected), said


@pytest.mark.parametrize(("more", "message"), [
    ((), "A trial needs --token-budget N and --out DIR. Without training: --forecast"),
    (("--forecast", "--start", "a", "b", "c"), "start names 3 runs"),
    (("--forecast", "--start", "runs/nowhere"), "nowhere"),
])  # fmt: skip
def test_what_cannot_be_forecast_is_refused(
    more: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RELAYED, *more]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("start", "sides"), [((), [None, None]), (("a",), ["a", "a"]), (("a", "b"), ["a", "b"])])
def test_each_side_begins_with_the_run_that_is_named(start: tuple[str, ...], sides: list[Any]) -> None:
    trial = Trial("relay-v0", 1000, single_team=("solver_0",), start=start)
    settings = [grids.sweep(trial, s, {"sampled": 9}).env_entry(s).settings for s in ("team", "single")]
    assert [its.get("start") for its in settings] == sides
    assert all(its.get("eval_kwargs", {}) == {} for its in settings)  # scored on the trial's problems, not on the run's


@pytest.mark.parametrize("more", [["--plan"], ["--out", "x"]])
def test_a_forecast_neither_plans_nor_writes(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versus", "math-dual-v0", "--single", "math-solo-v0", "--forecast", *more]) == 1
    assert "--forecast trains nothing and writes nothing" in capsys.readouterr().err
