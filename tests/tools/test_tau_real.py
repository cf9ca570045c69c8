"""τ-bench retail as it was published: every gold action reproduces the published difference of the database."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from marft_envs.families.tools import make, oracle, scoring
from marft_envs.families.tools.store import as_set
from marft_envs.families.tools.tau import TauDomain
from marft_envs.families.tools.tau.world import READS, WRITES
from marft_envs.families.tools.types import ToolError, ToolProblem
from tests.helpers.tools_ordering import Scripted, cut


@pytest.fixture(scope="module")
def domain(shared_data: Path) -> TauDomain:
    folder = shared_data / "tools" / "tau"
    if not folder.is_dir():
        pytest.skip(f"no retail files at {folder.name}/ in the data folder")
    return TauDomain(folder)


@pytest.fixture(scope="module")
def tasks(domain: TauDomain) -> list[ToolProblem]:
    return [*domain.problems("train"), *domain.problems("dev")]


def test_gold_actions_reproduce_the_published_differences(
    domain: TauDomain, tasks: list[ToolProblem], shared_data: Path
) -> None:
    lines = [
        line
        for split in ("train", "dev")
        for line in (shared_data / "tools" / "tau" / f"retail_{split}.jsonl").read_text().splitlines()
    ]
    assert len(lines) == len(tasks) == 520 and len(domain.tools) == 16
    for line, problem in zip(lines, tasks, strict=True):
        row = json.loads(line)
        world, refused = domain.replay(problem)
        assert problem.id == f"tau/{row['id']}" and refused == row["derived"]["gold_errors"], problem.id
        assert as_set(world.store.difference()) == as_set(row["derived"]["gold_diff"]), problem.id
        assert domain.grade(problem, world).completion


@pytest.mark.parametrize(("team", "settings"), [
    ("solo", {"dependency": "independent", "max_rounds": 5}), ("trio", {"dependency": "chain"}), ("router", {}),
    ("supervisor", {}),
])  # fmt: skip
def test_the_teams_numbers_are_worked_out_once_and_are_those_of_the_last_reward(
    domain: TauDomain, team: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: after every round, over the whole episode so far."""
    env = make(team, domain, split="dev", max_turns=12, **settings)
    task, counts = env.unwrapped.task, {"metrics": 0, "wanted": 0}
    then: dict[str, float] = {}
    metrics, wanted, scored = scoring.metrics, oracle.wanted, type(task)._outcome

    def noted(self: Any, *given: Any) -> Any:
        outcome = scored(self, *given)
        gold = wanted(self)
        grade, least = self._grade(), self.problem.least_steps
        then.clear()
        then.update(metrics(grade, self.tally, least, self.agents, self.limits.max_calls, self.budgets, gold))
        return outcome

    def counted(name: str, fn: Any) -> Any:
        def count(*given: Any) -> Any:
            counts[name] += 1
            return fn(*given)

        return count

    monkeypatch.setattr(type(task), "_outcome", noted)
    monkeypatch.setattr(scoring, "metrics", counted("metrics", metrics))
    monkeypatch.setattr(oracle, "wanted", counted("wanted", wanted))
    for number, problem_id in enumerate(task.evaluation_set(12)):
        then.clear()
        counts.update(metrics=0, wanted=0)
        env.reset(seed=number, options={"task_id": problem_id})
        while not env.done:
            for agent in env.ready_agents:
                replies = task.sample_actions(agent)
                text = oracle.reply(env, agent) if number % 2 else replies[len(env.view.history) % len(replies)]
                env.select(agent)
                env.step(text)
            if number % 4 == 2 and len(env.view.history) > 4:
                env.truncate("enough")  # in the middle of a round, in some teams
        episode = env.episode
        assert episode.metrics == then and (then or episode.truncated)
        assert env.episode.metrics == then and set(counts.values()) == {1 if then else 0}


def test_gold_beats_every_part_and_every_part_beats_null(domain: TauDomain, tasks: list[ToolProblem]) -> None:
    compared = 0
    for problem in tasks:
        calls = domain.oracle(problem)[0]
        writes = [call for call in calls if call.name in WRITES]
        world = domain.open(problem)
        assert domain.grade(problem, world).progress == (0 if writes else 1)
        for call in calls:
            world.call(call.name, call.arguments)
        assert domain.grade(problem, world).progress == 1
        for size in range(1, len(writes)):
            for part in itertools.combinations(writes, size):
                world, done = domain.open(problem), 0
                for call in part:
                    try:
                        world.call(call.name, call.arguments)
                        done += 1
                    except ToolError:  # needs a gift card that an action left out would have filled
                        continue
                progress = domain.grade(problem, world).progress
                assert (0 < progress < 1) if done else progress == 0, (problem.id, part)
                compared += 1
    assert compared > 900


def test_reads_have_no_reward(domain: TauDomain, tasks: list[ToolProblem]) -> None:
    for problem in tasks[::20]:
        world = domain.open(problem)
        before = domain.grade(problem, world)
        for call in domain.oracle(problem)[0]:
            if call.name in READS:
                world.call(call.name, call.arguments)
        assert domain.grade(problem, world) == before


@pytest.mark.parametrize("split", ["train", "dev"])
def test_rewards_are_ordered_gold_part_null_farmer(domain: TauDomain, split: str) -> None:
    team = Scripted(domain, split)
    parts = 0
    for problem in list(domain.problems(split))[:: 12 if split == "train" else 4]:
        gold = domain.oracle(problem)
        if not problem.level:
            continue
        best, null = team.paid(problem, gold), team.paid(problem, [[]])
        assert best > 1 > null == 0
        for farmer in (team.reads(problem), team.reads(problem, 8)):
            assert team.paid(problem, farmer) <= null
        assert team.ping_pong(problem) <= null
        wrote = 0
        for count, call in enumerate(gold[0][:-1], start=1):
            wrote += call.name in WRITES
            if wrote and problem.level > 1:
                assert best > team.paid(problem, cut(gold, count)) > null, (problem.id, count)
                parts += 1
    assert parts > 5 or split == "dev"


@pytest.mark.parametrize("name", ["solo", "dual", "trio", "router", "supervisor", "debate", "dual_control"])
def test_every_team_can_play_the_gold(domain: TauDomain, name: str) -> None:
    env = make(name, domain, split="dev")
    for problem in env.unwrapped.task.problems:
        assert oracle.play(env, options={"task_id": problem.id}).success, problem.id
