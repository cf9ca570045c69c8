"""The multi-turn tasks on upstream's back ends: the same verdicts as upstream's own checker."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from marft_envs.call_formats.call import ToolCall
from marft_envs.families.tools import make, oracle
from marft_envs.families.tools.bfcl import SKIPPED, BfclDomain, grading
from marft_envs.families.tools.bfcl.data import CATEGORIES, READS
from marft_envs.families.tools.bfcl.world import BfclWorld, fingerprint
from marft_envs.families.tools.session import Toolbox, ToolSession
from marft_envs.families.tools.types import ToolError, ToolProblem
from tests.helpers import bfcl_upstream as upstream
from tests.helpers.tools_ordering import Scripted, cut

REACHED = ("", "tool_error", "too_large")
"""Errors of calls that reached the back end."""

pytestmark = pytest.mark.skipif(not upstream.place()[0], reason=upstream.ABSENT)


@pytest.fixture(scope="module")
def domain() -> BfclDomain:
    return BfclDomain(package=upstream.place()[1])


@pytest.fixture(scope="module")
def problems(domain: BfclDomain) -> list[ToolProblem]:
    return list(domain.problems("all"))


def play(domain: BfclDomain, problem: ToolProblem, turns: upstream.Turns) -> BfclWorld:
    world = domain.open(problem)
    for number, calls in enumerate(turns):
        domain.begin_turn(problem, world, number)
        for call in calls:
            with contextlib.suppress(ToolError):
                world.call(call.name, call.arguments)
    return world


def test_the_package_holds_800_tasks_of_which_five_are_left_out(
    domain: BfclDomain, problems: list[ToolProblem]
) -> None:
    assert domain.categories == CATEGORIES and len(domain.tools) == 128
    assert len(problems) == 795 and {p.secret.id for p in domain.defective()} == set(SKIPPED)
    train, test = ({p.id for p in domain.problems(split)} for split in ("train", "test"))
    assert not train & test and train | test == {p.id for p in problems}
    assert not {p.split("_")[-1] for p in train} & {p.split("_")[-1] for p in test}, "no scenario is in both splits"


@pytest.mark.parametrize("category", CATEGORIES)
def test_ground_truths_pass_through_the_router_team_and_upstreams_checker(domain: BfclDomain, category: str) -> None:
    only = BfclDomain(package=upstream.place()[1], categories=[category])
    env = make("router", only, split="all", max_turns=100, max_calls=100)
    task = env.unwrapped.task
    held = [task.holds[name] for name in task.agents]
    assert sum(map(len, held)) == len(frozenset().union(*held)) == 128, "permissions are disjoint"
    for problem in list(task.problems)[::3]:  # all of them: python -m benchmarks tools_real
        episode = oracle.play(env, options={"task_id": problem.id})
        log = task.session.log
        said = [
            [e.result.call for e in log if e.turn == i and e.result.error in REACHED] for i in range(len(problem.turns))
        ]
        assert episode.success and upstream.accepts(problem.secret, said), problem.id


def test_the_tasks_left_out_are_defective(domain: BfclDomain) -> None:
    box = Toolbox(domain.tools.values())
    for problem in domain.defective():
        session = ToolSession(box, lambda p=problem: domain.open(p), {"a": frozenset(domain.tools)}, {}, 1000, 10**6)
        errors = []
        for turn, calls in enumerate(domain.oracle(problem)):
            session.turn, session.withheld = turn, problem.withheld[turn]
            errors += [(call.name, session.call("a", call).error) for call in calls]
        bad = [(name, error) for name, error in errors if error]
        if "ticket_id" in SKIPPED[problem.secret.id]:
            assert bad and {error for _, error in bad} == {"invalid_arguments"}, bad
        else:
            assert bad == [("tail", "withheld")]


def test_wrong_trajectories_get_upstreams_verdict(domain: BfclDomain, problems: list[ToolProblem]) -> None:
    rng, seen = random.Random(0), {True: 0, False: 0}
    for _ in range(300):  # a thousand: python -m benchmarks tools_real
        problem = rng.choice(problems)
        kind, turns = upstream.spoiled(domain.oracle(problem), rng)
        ours = domain.grade(problem, play(domain, problem, turns))
        theirs = upstream.accepts(problem.secret, turns)
        assert ours.completion == theirs, (problem.id, kind, turns, ours)
        assert ours.progress == 1 if ours.completion else ours.progress <= grading.INCOMPLETE
        seen[theirs] += 1
    assert min(seen.values()) > 10, "both verdicts must occur, or the comparison shows nothing"


def test_gold_beats_every_part_and_every_part_beats_null(domain: BfclDomain, problems: list[ToolProblem]) -> None:
    """Parts: the gold up to a call, wherever at least one visible change is there and at least one is still to come."""
    compared = 0
    for problem in problems[::7]:
        gold = grading.replay(domain._backends, problem.secret)
        if not any(turn.changes for turn in gold.turns):
            continue
        turns = domain.oracle(problem)
        assert domain.grade(problem, play(domain, problem, [[] for _ in turns])).progress == 0
        size = sum(map(len, turns))
        fresh = grading._copied(domain.open(problem))
        for count in range(1, size, 3):
            part = cut(turns, count)
            world = play(domain, problem, part)
            grade = domain.grade(problem, world)
            changed = not grading._same(fresh, world)
            assert grade.completion or (0 if changed else -1) < grade.progress < 1, (problem.id, count)
            compared += changed
        assert domain.grade(problem, play(domain, problem, turns)).progress == 1
    assert compared > 100


def test_rewards_are_ordered_gold_part_null_farmer(domain: BfclDomain, problems: list[ToolProblem]) -> None:
    team, parts = Scripted(domain, "all"), 0
    for problem in problems[::31]:
        gold, turns = domain.oracle(problem), grading.replay(domain._backends, problem.secret).turns
        if not any(turn.changes for turn in turns):
            continue
        best, null = team.paid(problem, gold), team.paid(problem, [[] for _ in gold])
        assert best > 1 > null == 0
        for farmer in (team.reads(problem), team.reads(problem, 8)):
            assert team.paid(problem, farmer) <= null, problem.id
        assert team.ping_pong(problem) <= null
        for count in range(1, sum(map(len, gold)), 2):
            world = play(domain, problem, cut(gold, count))
            grade = domain.grade(problem, world)
            if grade.progress and not grade.completion:
                assert best > team.paid(problem, cut(gold, count)) > null, (problem.id, count)
                parts += 1
    assert parts > 20


def test_reads_change_nothing_and_have_no_reward(domain: BfclDomain, problems: list[ToolProblem]) -> None:
    called = set()
    for problem in problems[::5]:
        if not any(turn.changes for turn in grading.replay(domain._backends, problem.secret).turns):
            continue
        world = domain.open(problem)
        for number, turn in enumerate(domain.oracle(problem)):
            domain.begin_turn(problem, world, number)
            for call in (call for call in turn if call.name in READS):
                before = {name: fingerprint(instance) for name, instance in world.instances.items()}
                with contextlib.suppress(ToolError):
                    world.call(call.name, call.arguments)
                assert before == {name: fingerprint(instance) for name, instance in world.instances.items()}, call
                called.add(call.name)
        assert domain.grade(problem, world).progress == 0
    assert len(called) > 30


def test_writes_are_seen_by_the_hash(domain: BfclDomain, problems: list[ToolProblem]) -> None:
    """What changes the visible state changes the hash, though only the class that was called is looked at again."""
    for problem in problems[::9]:
        world = domain.open(problem)
        for call in (call for turn in domain.oracle(problem) for call in turn):
            before, state = world.state_hash(), grading._copied(world)
            with contextlib.suppress(ToolError):
                world.call(call.name, call.arguments)
            assert grading._same(state, world) or world.state_hash() != before, call


def test_episodes_forks_and_snapshots_do_not_share_objects(domain: BfclDomain, problems: list[ToolProblem]) -> None:
    for problem in problems[:: len(problems) // 40]:
        fresh = domain.open(problem).state_hash()
        one = play(domain, problem, domain.oracle(problem))
        end, saved, fork = one.state_hash(), one.snapshot(), copy.deepcopy(one)
        assert domain.open(problem).state_hash() == fresh, "an episode must not reach into the next"
        assert fork.state_hash() == end and domain.grade(problem, fork).completion
        again = domain.open(problem)
        again.restore(saved)
        assert again.state_hash() == end and domain.grade(problem, again).completion
    assert grading.replay.cache_info().currsize


def test_calls_that_would_never_end_are_refused(domain: BfclDomain, problems: list[ToolProblem]) -> None:
    maths = next(p for p in problems if "MathAPI" in p.secret.classes)
    for name, arguments in (
        ("power", {"base": 99999, "exponent": 99999999999}),
        ("square_root", {"number": 2, "precision": 10**9}),
        ("logarithm", {"value": 2.0, "base": 3.0, "precision": 10**9}),
        ("round_number", {"number": 5, "decimal_places": -(10**9)}),
    ):
        with pytest.raises(ToolError, match="would exceed"):
            domain.open(maths).call(name, arguments)
    assert domain.open(maths).call("power", {"base": 2, "exponent": 10}) == {"result": 1024}


def _invented(schema: Mapping[str, Any], words: Sequence[str], rng: random.Random) -> Any:
    """A value that fits the schema and is unlikely to have been thought of."""
    kind = schema.get("type")
    if kind == "object":
        wanted = {
            k: v for k, v in schema["properties"].items() if k in schema.get("required", ()) or rng.random() < 0.5
        }
        return {name: _invented(entry, words, rng) for name, entry in wanted.items()}
    if kind == "array":
        return [_invented(schema.get("items", {}), words, rng) for _ in range(rng.choice([0, 1, 2, 5]))]
    if kind == "string":
        return rng.choice([*words, "", "..", "/", "a" * 300, "\ud800", "x/../y", "\x00"])
    if kind == "boolean":
        return rng.random() < 0.5
    whole = [0, 1, -1, 5, 10**6, -(10**18), 10**4000]
    return rng.choice(whole if kind == "integer" else [*whole, 0.5, 1e308, -1e308, 1e-300])


def test_whatever_is_called_only_tool_errors_come_and_json_goes(
    domain: BfclDomain, problems: list[ToolProblem]
) -> None:
    rng, called = random.Random(1), set()
    for _ in range(150):
        problem = rng.choice(problems)
        world = domain.open(problem)
        words = [v for turn in domain.oracle(problem) for c in turn for v in c.arguments.values() if isinstance(v, str)]
        for _ in range(40):
            name = rng.choice(list(problem.secret.owner))
            before = world.state_hash()
            try:
                value = world.call(name, _invented(domain.tools[name].parameters, words, rng))
                json.dumps(value, allow_nan=False)
                called.add(name)
            except ToolError:
                pass
            assert name not in READS or world.state_hash() == before, name
        domain.grade(problem, world)
    assert len(called) > 90


def test_a_domain_is_pickled_as_where_its_files_are(domain: BfclDomain, problems: list[ToolProblem]) -> None:
    pickled = pickle.dumps(domain)
    again = pickle.loads(pickled)
    assert len(pickled) < 1000 and [p.id for p in again.problems("all")] == [p.id for p in problems]


def test_folders_copied_into_themselves_hurt_nobody(domain: BfclDomain, problems: list[ToolProblem]) -> None:
    problem = next(p for p in problems if "GorillaFileSystem" in p.secret.classes)
    world = domain.open(problem)
    world.call("mkdir", {"dir_name": "a"})
    world.call("cp", {"source": "a", "destination": "a"})
    with pytest.raises(ToolError, match="would exceed"):
        world.call("cp", {"source": "a", "destination": "b"})
    for name, arguments in (("find", {}), ("du", {}), ("ls", {})):
        with contextlib.suppress(ToolError):
            world.call(name, arguments)
    assert not domain.grade(problem, copy.deepcopy(world)).completion and world.state_hash()


def test_a_tree_cannot_be_doubled_for_ever(domain: BfclDomain, problems: list[ToolProblem]) -> None:
    world = domain.open(next(p for p in problems if "GorillaFileSystem" in p.secret.classes))
    world.call("mkdir", {"dir_name": "a"})
    with pytest.raises(ToolError, match="would exceed 20000"):
        for number in range(40):
            world.call("cp", {"source": "a", "destination": f"b{number}"})
            world.call("mv", {"source": f"b{number}", "destination": "a"})
    assert world.call("find", {"name": "zzz"}) == {"matches": []}


def test_shared_rows_are_the_packages(domain: BfclDomain, shared_data: Path) -> None:
    """The folder's form of the same tasks gives the same problems, tools and gold."""
    folder = shared_data / "tools" / "bfcl"
    if not folder.is_dir():
        pytest.skip("no bfcl/ in the data folder")
    given = BfclDomain(folder, package=upstream.place()[1])
    assert given.categories == ("base", "miss_func") and len(given.problems("all")) == 397
    for problem in given.problems("all"):
        same = domain.problems("all").get(problem.id)
        assert (problem.turns, problem.withheld, problem.least_steps) == (same.turns, same.withheld, same.least_steps)
        assert given.oracle(problem) == domain.oracle(same)
    for name, tool in given.tools.items():
        assert tool.parameters == domain.tools[name].parameters, name


def test_results_are_json_and_errors_are_errors(domain: BfclDomain, problems: list[ToolProblem]) -> None:
    maths = next(p for p in problems if "MathAPI" in p.secret.classes)
    world = domain.open(maths)
    assert world.call("logarithm", {"value": 8.0, "base": 2.0, "precision": 20}) == {"result": pytest.approx(3)}
    assert world.call("square_root", {"number": 16, "precision": 5}) == {"result": 4.0}
    with pytest.raises(ToolError, match="Cannot divide by zero"):
        world.call("divide", {"a": 1, "b": 0})
    with pytest.raises(ToolError, match="no tool"):
        world.call("_load_scenario", {})
    with pytest.raises(ToolError, match="no tool"):
        world.call(next(name for name in domain.tools if name not in maths.secret.owner), {})


def test_what_is_not_involved_or_not_there_yet_is_withheld(domain: BfclDomain, problems: list[ToolProblem]) -> None:
    for problem in problems:
        for turn, calls in enumerate(domain.oracle(problem)):
            assert not {call.name for call in calls} & problem.withheld[turn], problem.id
    held = domain.problems("all").get("bfcl/multi_turn_miss_func_0")
    assert ["sort" in tools for tools in held.withheld] == [True, True, True, False, False]
    assert all("startEngine" in tools for tools in held.withheld) and held.turns[3]
    assert isinstance(domain.oracle(held)[3][0], ToolCall)
