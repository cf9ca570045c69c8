"""τ²-bench on upstream's environments: the same results, states and verdicts as upstream's own evaluator."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import ConfigError
from marft_envs.families.tools import make, oracle
from marft_envs.families.tools.arithmetic import evaluate
from marft_envs.families.tools.session import Toolbox
from marft_envs.families.tools.tau2 import Tau2Domain
from marft_envs.families.tools.tau2.data import Table, kits
from marft_envs.families.tools.types import ToolError, ToolProblem
from tests.helpers import tau2_upstream as upstream
from tests.helpers.bfcl_upstream import spoiled
from tests.helpers.tools_ordering import Scripted

pytestmark = pytest.mark.skipif(not upstream.place()[0], reason=upstream.ABSENT)
SIZES = {"retail": (114, 74, 40), "airline": (50, 30, 20), "telecom": (114, 74, 40)}
LIMITS: dict[str, Any] = {"max_turns": 200, "max_calls": 200, "max_result_chars": 100_000}


@cache
def domain_of(name: str, dual: bool = False) -> Tau2Domain:
    return Tau2Domain(name, package=upstream.place()[1], dual=dual)


@pytest.fixture(params=upstream.NAMES)
def domain(request: pytest.FixtureRequest) -> Tau2Domain:
    return domain_of(request.param)


def sample(domain: Tau2Domain) -> Sequence[ToolProblem]:
    """Every fourth task, and of telecom every 120th of all others. All of them: ``python -m benchmarks tools_real``."""
    base = list(domain.problems("base"))[::4]
    return [*base, *list(domain.problems("full"))[::120]] if domain.name == "tau2/telecom" else base


def play(domain: Tau2Domain, problem: ToolProblem, calls: Sequence[ToolCall]) -> Any:
    world = domain.open(problem)
    for call in calls:
        with contextlib.suppress(ToolError):
            world.call(call.name, call.arguments)
    return world


def test_the_package_holds_the_published_tasks_and_splits(domain: Tau2Domain) -> None:
    short = domain.name.partition("/")[2]
    assert tuple(len(domain.problems(split)) for split in ("base", "train", "test")) == SIZES[short]
    train, test = ({p.id for p in domain.problems(split)} for split in ("train", "test"))
    assert not train & test and train | test == {p.id for p in domain.problems("base")} and not domain.skipped
    if short == "telecom":
        assert len(domain.problems("full")) == 2285 and len(domain.problems("small")) == 20
    assert list(domain.tools) == [name for kit in kits(upstream.plain(short)).values() for name in kit.tools]
    assert len(domain.user_tools) == (30 if short == "telecom" else 0)


def test_every_gold_action_fits_its_tools_schema(domain: Tau2Domain) -> None:
    box = Toolbox(domain.tools.values())
    for problem in domain.problems(domain.splits[-1] if domain.user_tools else "base"):
        for action in domain._task(problem).evaluation_criteria.actions or ():
            assert not box.problems[action.name](action.arguments), (problem.id, action.name)


@pytest.mark.parametrize("team", ["router", "dual_control"])
def test_golds_played_as_text_are_complete_and_upstream_says_so(domain: Tau2Domain, team: str) -> None:
    """Upstream's evaluator replays what reached the world, and compares every result with ours."""
    played = domain_of(domain.name.partition("/")[2], team == "dual_control")
    env = make(team, played, split="full" if played.user_tools else "base", **LIMITS)
    task = env.unwrapped.task
    for number, problem in enumerate(sample(played)):
        episode = oracle.play(env, options={"task_id": problem.id})
        assert episode.success and episode.stop_reason == "task", (problem.id, episode.info)
        if team == "router" or number % 5 == 0:  # upstream takes seconds for each
            assert upstream.accepts(played, problem, task.live.log, task.talk.messages), problem.id
        if team == "dual_control":
            for entry in task.live.log:
                assert (entry.result.agent == "user_0") == (entry.result.call.name in played.user_tools)


def test_wrong_trajectories_get_upstreams_verdict(domain: Tau2Domain) -> None:
    rng, seen, problems = random.Random(0), {True: 0, False: 0}, sample(domain)
    team = Scripted(domain, "full" if domain.user_tools else "base")
    problems = [problem for problem in problems if domain.oracle(problem)[0]]
    for _ in range(12 if domain.name == "tau2/airline" else 24):  # more: python -m benchmarks tools_real
        problem = rng.choice(problems)
        kind, turns = spoiled(domain.oracle(problem), rng)
        team.paid(problem, turns)
        task, ours = team.solo.unwrapped.task, team.solo.episode
        told = [*task.talk.messages, domain.says(problem)] if rng.random() < 0.5 else task.talk.messages
        grade = domain.grade(problem, task.live.world, told)
        assert grade.completion == upstream.accepts(domain, problem, task.live.log, told), (problem.id, kind, turns)
        assert (grade.progress == 1) == grade.completion or 0 <= grade.progress < 1
        assert told is not task.talk.messages or ours.success == grade.completion
        seen[grade.completion] += 1
    assert min(seen.values()) > 0, "both verdicts must occur, or the comparison shows nothing"


def test_a_world_of_views_ends_as_upstreams_with_databases_of_its_own(domain: Tau2Domain) -> None:
    """The whole of both databases, byte for byte, and the shared records are as they were read."""
    short = domain.name.partition("/")[2]
    before = upstream.digest(domain._upstream.environment)
    for problem in sample(domain)[:: 4 if short == "airline" else 2]:
        world, plain = domain.open(problem), upstream.plain(short)
        state = domain._task(problem).initial_state
        plain.set_state(state and state.initialization_data, state and state.initialization_actions, [])
        for call in domain.oracle(problem)[0]:
            domain._upstream.ids.call = len(world.calls) + 1
            answer = plain.get_response(domain._upstream.made(*call))
            try:
                value = world.call(call.name, call.arguments)
                assert answer.content in (value, json.dumps(value)) or json.loads(answer.content) == value, call
            except ToolError as refused:
                assert answer.content == f"Error: {refused}"
        assert upstream.digest(world.environment) == upstream.digest(plain), problem.id
    assert upstream.digest(domain._upstream.environment) == before


def test_reads_change_nothing_and_have_no_reward(domain: Tau2Domain) -> None:
    called = set()
    for problem in sample(domain)[::2]:
        world, reads = domain.open(problem), [c for c in domain.oracle(problem)[0] if domain.tools[c.name].read_only]
        fresh = domain.grade(problem, world)
        start = world.changed()
        for call in reads:
            with contextlib.suppress(ToolError):
                world.call(call.name, call.arguments)
                called.add(call.name)
            assert world.changed() == start, call
        if "ACTION" not in {kind.value for kind in domain._task(problem).evaluation_criteria.reward_basis}:
            assert domain.grade(problem, world) == fresh, problem.id
    assert called


def test_gold_beats_every_part_and_every_part_is_no_less_than_null(domain: Tau2Domain) -> None:
    compared = 0
    for problem in sample(domain)[::2]:
        gold = domain.oracle(problem)[0]
        null = domain.grade(problem, domain.open(problem))
        assert null.progress == float(null.completion), problem.id
        said = (domain.says(problem),)
        assert domain.grade(problem, play(domain, problem, gold), said).progress == 1
        for count in range(1, len(gold)):
            grade = domain.grade(problem, play(domain, problem, gold[:count]), said)
            assert grade.completion or grade.progress < 1
            compared += 1
    assert compared > 4


def test_episodes_forks_and_snapshots_do_not_share_records(domain: Tau2Domain) -> None:
    for problem in sample(domain)[::3]:
        fresh = domain.open(problem).state_hash()
        one = play(domain, problem, domain.oracle(problem)[0])
        end, saved, fork = one.state_hash(), one.snapshot(), copy.deepcopy(one)
        assert domain.open(problem).state_hash() == fresh, "an episode must not reach into the next"
        assert fork.state_hash() == end and len(saved) < 200_000
        again = domain.open(problem)
        again.restore(saved)
        assert again.state_hash() == end and again.calls == one.calls
        assert play(domain, problem, domain.oracle(problem)[0]).state_hash() == end, "the same calls, the same state"


def test_a_domain_is_pickled_as_where_its_package_is(domain: Tau2Domain) -> None:
    pickled = pickle.dumps(domain)
    again = pickle.loads(pickled)
    assert len(pickled) < 1000 and [p.id for p in again.problems("base")] == [p.id for p in domain.problems("base")]


def test_calculations_are_upstreams_and_never_run() -> None:
    world = domain_of("retail").open(domain_of("retail").problems("base")[0])
    theirs = upstream.plain("retail").tools
    for text in ("1 + 2", "54.04 * 2 - (3 + 4) / 7", "100.555", "-3 * -(2.5)", "0.1 + 0.2"):
        assert str(world.call("calculate", {"expression": text})) == theirs.calculate(text)
        assert evaluate(text, float) is not None
    for bad in ("9 ** 9 ** 9 ** 9", "__import__('os')", "1 / 0", "("):
        with pytest.raises(ToolError):
            world.call("calculate", {"expression": bad})


def test_a_calculation_that_fails_changes_no_verdict() -> None:
    """Upstream's replay compares words, and refuses an expression in others than ours."""
    retail = domain_of("retail")
    problem, team = next(p for p in retail.problems("base") if retail.oracle(p)[0]), Scripted(retail, "base")
    first, *rest = retail.oracle(problem)
    team.paid(problem, [[ToolCall("calculate", {"expression": "2 * (3 + 4)x"}), *first], *rest])
    task = team.solo.unwrapped.task
    assert task.live.log[0].result.error == "tool_error" and team.solo.episode.success
    assert upstream.accepts(retail, problem, task.live.log, task.talk.messages)


def test_without_a_user_agent_everything_is_the_agents_and_with_one_the_device_is_the_users() -> None:
    alone, dual = domain_of("telecom"), domain_of("telecom", True)
    assert alone.policy != dual.policy and alone.problems("base")[0].turns[0].startswith("The customer's brief")
    env = make("dual_control", "tau2/telecom", split="small", domain_args={"package": upstream.place()[1]})
    env.reset(seed=0)
    names = {agent: {tool["function"]["name"] for tool in env.tools[agent]} for agent in ("user_0", "agent_0")}
    assert "toggle_airplane_mode" in names["user_0"] and "toggle_airplane_mode" not in names["agent_0"]
    assert "resume_line" in names["agent_0"] and "resume_line" not in names["user_0"]
    user, agent = map(env.unwrapped.task.observe, ("user_0", "agent_0"))
    scenario = env.unwrapped.task.problem.turns[0]
    assert scenario in user and scenario not in agent and dual.policy in agent and dual.policy not in user


def test_golds_of_the_bank_are_complete_and_upstreams_functions_say_so() -> None:
    """In both teams; and wrong trajectories get their verdict, too."""
    for team, dual in (("router", False), ("dual_control", True)):
        bank = domain_of("banking_knowledge", dual)
        env = make(team, bank, split="base", **LIMITS)
        task = env.unwrapped.task
        assert len(task.problems) == 97 and not bank.skipped
        for problem in list(task.problems)[::4]:
            episode = oracle.play(env, options={"task_id": problem.id})
            assert episode.success and episode.stop_reason == "task", (problem.id, episode.info)
            assert upstream.bank_accepts(bank, problem, task.live.world, task.live.log), problem.id
    bank, rng, seen = domain_of("banking_knowledge"), random.Random(0), {True: 0, False: 0}
    team_of_one, problems = Scripted(bank, "base"), list(bank.problems("base"))
    for _ in range(20):
        problem = rng.choice(problems)
        kind, turns = spoiled(bank.oracle(problem), rng)
        team_of_one.paid(problem, turns)
        live, ours = team_of_one.solo.unwrapped.task.live, bool(team_of_one.solo.episode.success)
        assert ours == upstream.bank_accepts(bank, problem, live.world, live.log), (problem.id, kind)
        seen[ours] += 1
    assert min(seen.values()) > 0


def test_the_bank_searches_its_documents_with_a_function_of_the_users() -> None:
    bank = domain_of("banking_knowledge")
    first = bank.problems("base")[0]
    found = bank.open(first).call("KB_search", {"query": "Opening personal checking accounts"})
    assert "doc_bank_accounts_bank_accounts_(general)_001" in found and found.count("ID: doc_") == 10
    asked = []

    def search(query: str, k: int) -> list[tuple[str, float]]:
        asked.append((query, k))
        return [("doc_credit_cards_gold_rewards_card_001", 1.0)]

    own = Tau2Domain("banking_knowledge", package=upstream.place()[1], search=search)
    assert own.open(first).call("KB_search", {"query": "gold"}).count("ID: doc_") == 1 and asked == [("gold", 10)]
    assert "submit_referral" in first.missing(0) and "apply_for_credit_card" not in first.missing(0)


def test_what_would_bring_two_copies_into_one_process_is_refused(tmp_path: Any) -> None:
    domain_of("retail")
    (tmp_path / "tau2").mkdir()
    (tmp_path / "tau2" / "__init__.py").write_text("")
    with pytest.raises(ConfigError, match=r"loaded from .* already"):
        Tau2Domain("retail", package=tmp_path)


def test_tables_are_views_and_small_databases_are_not(domain: Tau2Domain) -> None:
    views = [name for name, value in domain._upstream.environment.tools.db if isinstance(value, Table)]
    assert views == {
        "tau2/retail": ["products", "users", "orders"],
        "tau2/airline": ["flights", "users", "reservations"],
        "tau2/telecom": [],
    }.get(domain.name)
