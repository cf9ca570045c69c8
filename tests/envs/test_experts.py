"""Demonstrations of the tasks' own experts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing

import pytest

import marft_envs
from helpers.flex import flex
from marft_envs import ConfigError
from marft_envs.families.code.task import main_step
from marft_envs.families.math.teams import SPECIALISTS
from marft_envs.records import experts, trajectory

IDS = [spec.id for spec in marft_envs.list_envs() if "/" not in spec.id and "data" not in spec.kwargs]
PLAYED = 20
LETTERS = ("tools-quarantine-v0", "tools-messenger-v0")
"""Of one level, in which nothing is looked up."""


@pytest.fixture(params=IDS)
def env(request: pytest.FixtureRequest) -> Iterator[marft_envs.FlexEnv]:
    if request.param.startswith("code-"):
        request.getfixturevalue("sandbox")
    with closing(marft_envs.make(request.param)) as made:
        yield made


def test_an_expert_of_every_environment_can_be_imitated(env: marft_envs.FlexEnv) -> None:
    """It succeeds, and its words route nobody into the void; or nobody knows a solution, and it says so."""
    good = 0
    for seed in range(PLAYED):
        episode, heard = experts.demonstrate(env, seed)
        good += bool(episode.success) and not episode.invalid and len(heard) == len(episode.turns)
    assert good >= 0.95 * PLAYED


def test_a_thought_is_neither_read_by_others_nor_graded(env: marft_envs.FlexEnv) -> None:
    played = list[tuple[list[str], float, bool | None]]()
    for reply in ("{}", "{}\n\n<think>\nOr no:\n\\boxed{{0}}\n</think>", "<think>\n{}\n</think>\n\n"):
        env.reset(seed=3)
        read = []
        while not env.done:
            read += [m["content"] for a in env.ready_agents for m in env.messages(a) if m["role"] != "assistant"]
            experts.turn(env, {agent: reply.format(env.unwrapped.task.expert(agent)) for agent in env.ready_agents})
        played.append((read, env.episode.reward, env.episode.success))
    assert played[0] == played[1] and played[0][2] and not played[2][2]


def test_the_prompts_of_an_expert_are_those_that_a_replay_finds(env: marft_envs.FlexEnv) -> None:
    episode, heard = experts.demonstrate(env, 3)
    assert heard == trajectory.prompts(episode, env)


@pytest.mark.parametrize("id", ["code-solo-v0", "code-tester-v0", "code-trio-v0"])
def test_an_expert_writes_the_canonical_program(id: str, sandbox: object) -> None:
    env = marft_envs.make(id)
    for seed in (0, 1, 2):
        episode = experts.play(env, seed)
        assert episode.success and episode.metrics["format"] == 1.0
        assert episode.metrics.get("proposed_agree", 1.0) == 1.0, "a tester proposes tests that hold"
    env.close()


def test_a_planners_expert_names_the_step_that_the_program_of_this_problem_turns_on(sandbox: object) -> None:
    """Its words differ from problem to problem, so that shuffling them can cost something."""
    env = marft_envs.make("code-dual-v0", levels=[0])
    plans = []
    for seed in range(PLAYED):
        planner, coder = experts.play(env, seed).turns
        step = planner.text.removeprefix("The main step: ")
        assert step != planner.text and step in coder.text
        plans.append(step)
    env.close()
    assert len(set(plans)) >= 0.9 * PLAYED


@pytest.mark.parametrize(("program", "step"), [
    ("def f(x):\n    return max(x)-x[2]", "return max(x)-x[2]"),
    ("def f(n):\n    t = 0\n    for c in str(n):\n        t += 9 * int(c) - 6\n    return t", "t += 9 * int(c) - 6"),
    ("def f(xs):\n    return xs[::2]\n\nxs = [int(v) for v in input().split()]\nprint(*f(xs))", "return xs[::2]"),
    ("from math import perm as ways\n# A long remark about it.\nprint(ways(4))", "print(ways(4))"),
    ("def a_rather_long_name(): return 1", "def a_rather_long_name(): return 1"),
])  # fmt: skip
def test_the_main_step_is_the_longest_line_of_the_functions(program: str, step: str) -> None:
    assert main_step(program) == step


@pytest.mark.ci
def test_an_orchestrators_expert_names_the_specialist_who_then_solves_all_of_it() -> None:
    subjects = ["Geometry", "Counting & Probability", "Algebra"]
    env = marft_envs.make("math-router-v0", subjects=subjects, levels=[1, 2, 3, 4, 5])
    asked = set()
    for seed in range(12):
        first, last = experts.play(env, seed).turns
        role = SPECIALISTS[env.unwrapped.task.problem.subject]
        assert (first.text, last.agent) == (role, f"{role}_0")
        asked.add(role)
        alone = experts.play(marft_envs.make("math-solo-v0"), 0, {"task_id": env.unwrapped.task.task_id})
        assert last.text == alone.turns[0].text
    assert len(asked) == 3
    env.close()


def test_a_math_team_shares_the_solution() -> None:
    env = marft_envs.make("math-dual-v0", levels=[0])
    first, last = experts.play(env, 0).turns
    assert (first.text, last.text) == ("12-1=11,", r"11*4=44. \boxed{44}")
    solo = experts.play(marft_envs.make("math-solo-v0", levels=[0]), 0).turns
    assert [turn.text for turn in solo] == [r"12-1=11, 11*4=44. \boxed{44}"]


@pytest.mark.parametrize("id", [id for id in IDS if id.startswith("tools-") and id not in LETTERS])
def test_an_expert_with_tools_says_nothing_that_it_would_have_to_foresee(id: str) -> None:
    """Numbers and names that it writes were read, and it looks before it decides: in a later reply."""
    env = marft_envs.make(id, levels=[1, 2, 3])
    tools, replies = env.unwrapped.task.domain.tools, 0
    for seed in range(PLAYED):
        episode, heard = experts.demonstrate(env, seed)
        for turn, (messages, _) in zip(episode.turns, heard, strict=True):
            read = " ".join(str(message["content"]) for message in messages)
            calls = re.findall(r'(?:"name": ")?(\w+)(?:", "arguments":)? (\{[^{}]*\})', turn.text)
            for _, arguments in calls:
                for key, value in json.loads(arguments).items():
                    worked_out = key == "amount"  # half of a total is refunded
                    assert worked_out or str(value).lower() in read.lower(), (seed, turn.agent, value)
                replies += 1
            looks = [tools[name].read_only for name, _ in calls if name in tools]
            assert sorted(looks) == looks, f"seed {seed}: {turn.text} changes what it looks at in the same reply"
    env.close()
    assert replies > PLAYED


def test_a_task_without_an_expert_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"has no expert.*expert\(agent\).*JSONL"):
        experts.play(flex(2))
