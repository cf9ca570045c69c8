"""The depot's tasks: the oracle solves every one, nothing else scores like it, and ids name the same task for ever."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys

import pytest

from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import ConfigError, DataError
from marft_envs.families.tools.depot import Depot, demanded
from marft_envs.families.tools.types import ToolError, ToolProblem, World

DEPOT = Depot()
LEVELS = range(6)


def play(domain, problem, calls, world=None):
    world = world or domain.open(problem)
    results = []
    for call in calls:
        try:
            results.append(world.call(call.name, call.arguments))
        except ToolError as error:
            results.append(error)
    return world, results


def writes(domain, problem):
    return [call for call in domain.oracle(problem)[0] if not domain.tools[call.name].read_only]


def held_out(level, limit=None, domain=DEPOT):
    return domain.problems("test", levels=[level], limit=limit)


def test_the_world_keeps_the_contract():
    problem = held_out(0)[0]
    assert isinstance(problem, ToolProblem) and isinstance(DEPOT.open(problem), World)
    roles = list(DEPOT.specialists.values())
    assert len(roles) == 3 and sum(map(len, roles)) == len(frozenset().union(*roles))
    assert frozenset().union(*roles) | {"finish"} == set(DEPOT.tools)
    changing = [tool for tool in DEPOT.tools.values() if not tool.read_only]
    assert len(DEPOT.tools) == 15 and len(changing) == 6
    assert 25 <= len(DEPOT.policy.splitlines()) < 40


def test_a_foreign_world_is_refused():
    with pytest.raises(DataError, match=r"given a dict. Take worlds from Depot.open"):
        DEPOT.grade(held_out(0)[0], {})


@pytest.mark.parametrize("level", LEVELS)
def test_the_oracle_completes_every_task_and_the_null_team_none(level):
    problems = held_out(level)
    assert len(problems) >= 300
    for problem in problems:
        null = DEPOT.grade(problem, DEPOT.open(problem))
        assert (null.completion, null.progress) == (False, 0.0), problem.id
        calls = DEPOT.oracle(problem)[0]
        world, results = play(DEPOT, problem, calls)
        assert not [r for r in results if isinstance(r, ToolError)], problem.id
        grade = DEPOT.grade(problem, world)
        assert (grade.completion, grade.progress) == (True, 1.0), problem.id
        assert problem.least_steps == len(calls) == len({repr(call) for call in calls})
        gone = frozenset().union(*problem.withheld)
        assert not gone & {call.name for call in calls} and "record_case" not in gone
        world.close()


@pytest.mark.parametrize("level", (2, 3, 4, 5))
def test_each_further_write_of_the_gold_brings_progress(level):
    several = [p for p in held_out(level, 150) if len(writes(DEPOT, p)) > 1]
    assert len(several) > 60
    for problem in several:
        world, gained = DEPOT.open(problem), [0.0]
        for call in writes(DEPOT, problem):
            world.call(call.name, call.arguments)
            gained.append(DEPOT.grade(problem, world).progress)
        assert gained == sorted(set(gained)) and gained[-1] == 1.0 and gained[-2] < 1.0, problem.id


def test_levels_are_what_they_are_said_to_be():
    for problem in held_out(0):
        assert len(problem.turns[0].split()) <= 15 and problem.least_steps == 1
    for level, wanted in ((1, {1}), (2, {2}), (3, {1, 2, 3}), (4, {3, 4}), (5, {6})):
        assert {len(writes(DEPOT, p)) for p in held_out(level)} == wanted
    assert all(p.secret.reasons for p in held_out(3))
    reasons = {reason for p in held_out(3) for reason in p.secret.reasons}
    assert len(reasons) == 7 and {reason for p in held_out(4) for reason in p.secret.reasons} == {"no_tool"}
    for problem in held_out(5):
        used = {call.name for call in writes(DEPOT, problem)}
        assert all(used & tools for tools in DEPOT.specialists.values()), problem.id


def test_level_0_is_spread_over_the_tools_of_all_roles():
    used = [writes(DEPOT, p)[0].name for p in DEPOT.problems("train", levels=[0])]
    for role, tools in DEPOT.specialists.items():
        assert sum(name in tools for name in used) > len(used) / 5, role
    assert len(set(used)) == 6


@pytest.mark.parametrize("level", (1, 2, 3, 4, 5))
def test_everything_that_the_gold_needs_can_be_seen(level):
    for problem in held_out(level, 120):
        calls = DEPOT.oracle(problem)[0]
        _, results = play(DEPOT, problem, calls)
        reads = [r for call, r in zip(calls, results, strict=True) if DEPOT.tools[call.name].read_only]
        text = problem.turns[0] + json.dumps(reads)
        seen = {int(number) for number in re.findall(r"\d+", text)}
        derived = {0} | {n // 2 for n in seen} | {a - b for a in seen for b in seen}
        for call in writes(DEPOT, problem):
            for value in call.arguments.values():
                known = value in seen | derived if isinstance(value, int) else value in text
                assert known or call.arguments.get("reason") == value, (problem.id, call)


def test_train_and_test_share_no_text():
    for level in LEVELS:
        train, test = (DEPOT.problems(split, levels=[level]) for split in ("train", "test"))
        assert len(train) >= 900
        assert not {p.turns for p in train} & {p.turns for p in test}


def test_ids_regenerate_their_task_and_options_leave_it_alone():
    problems = held_out(4, 20)
    other = Depot(injections=True, distractors=False).problems("train", levels=[0])
    for problem in problems:
        again = other.get(problem.id)
        assert (again.turns, again.withheld, again.secret) == (problem.turns, problem.withheld, problem.secret)


@pytest.mark.parametrize("wrong", ["depot/6/1", "depot/0", "depot/0/-1", "bfcl/0/1", "depot/0/x", f"depot/0/{2**32}"])
def test_a_wrong_id_says_what_ids_look_like(wrong):
    with pytest.raises(DataError, match="depot/<level>/<seed>"):
        held_out(0, 1).get(wrong)


def test_wrong_options_are_refused():
    with pytest.raises(DataError, match=r"no split 'tests'.*Did you mean 'test'"):
        DEPOT.problems("tests")
    with pytest.raises(DataError, match="no level 9"):
        DEPOT.problems("test", levels=[0, 9])
    with pytest.raises(ConfigError, match=r"no 'fial'\. Did you mean 'fail'"):
        Depot(faults={"fial": 0.5})
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Depot(faults={"stale": 1.5})


def test_tasks_are_those_of_this_version():
    """A change of this digest changes what ids mean: that takes a new version of the environments' ids."""
    drawn = DEPOT.problems("test", levels=[0])
    some = [drawn.get(f"depot/{level}/{seed}") for level in LEVELS for seed in range(30)]
    said = json.dumps([[p.id, p.turns, [sorted(gone) for gone in p.withheld], p.least_steps, calls(p)] for p in some])
    assert hashlib.sha256(said.encode()).hexdigest()[:16] == "5ca38afeaad0abdc"


def calls(problem):
    return [[call.name, dict(call.arguments)] for call in DEPOT.oracle(problem)[0]]


SCRIPT = """
import hashlib
from marft_envs.families.tools.depot import Depot
out = hashlib.sha256()
for options in ({}, {"injections": True}, {"dual": True, "faults": {"stale": 0.3}}):
    domain = Depot(**options)
    drawn = domain.problems("test", levels=[0])
    for problem in [*drawn[:20], *(drawn.get(f"depot/{level}/{seed}") for level in range(6) for seed in range(15))]:
        world = domain.open(problem)
        out.update(repr((problem, domain.oracle(problem))).encode())
        for call in domain.oracle(problem)[0]:
            out.update(repr(world.call(call.name, call.arguments)).encode())
        out.update(world.state_hash().encode())
print(out.hexdigest())
"""


@pytest.mark.ci
def test_tasks_results_and_hashes_are_the_same_in_every_process():
    def run(hash_seed):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)

    assert run("1").stdout == run("2").stdout != ""


def test_the_policy_can_be_broken_and_that_loses_the_task():
    """Refused returns could be refunded: the tool does not forbid it."""
    broken = 0
    for problem in held_out(3):
        if problem.secret.reasons[0] in ("too_late", "final_sale", "over_limit") and len(problem.secret.writes) == 1:
            order = problem.secret.writes[0].arguments["order"]
            world = DEPOT.open(problem)
            total = world.call("get_order", {"order": order})["total"]
            world.call("refund_order", {"order": order, "amount": total})
            world.call("record_case", problem.secret.writes[0].arguments)
            grade = DEPOT.grade(problem, world)
            assert not grade.completion and grade.progress < 1
            broken += 1
    assert broken > 10


def test_a_refusal_needs_the_right_reason_and_evidence():
    problem = next(p for p in held_out(3) if p.secret.reasons == ("too_late",) and len(p.secret.writes) == 1)
    right = dict(problem.secret.writes[0].arguments)
    for wrong in ({"evidence": right["evidence"] + 1}, {"reason": "final_sale"}):
        world, _ = play(DEPOT, problem, [ToolCall("record_case", {**right, **wrong})])
        assert not DEPOT.grade(problem, world).completion
    world, _ = play(DEPOT, problem, [ToolCall("record_case", right)])
    assert DEPOT.grade(problem, world).completion


@pytest.mark.parametrize("level", (0, 2, 5))
def test_with_dual_control_nothing_goes_without_the_customer(level):
    domain = Depot(dual=True)
    assert domain.user_tools == {"confirm_address", "approve_refund"} and not DEPOT.user_tools
    refused = 0
    for problem in held_out(level, 80, domain):
        calls = domain.oracle(problem)[0]
        world, _ = play(domain, problem, calls)
        assert domain.grade(problem, world).completion and problem.least_steps == len(calls)
        alone, results = play(domain, problem, [c for c in calls if c.name not in domain.user_tools])
        if any(call.name in domain.user_tools for call in calls):
            assert any(isinstance(r, ToolError) for r in results) and not domain.grade(problem, alone).completion
            refused += 1
    assert refused > 20


def test_distractors_have_similar_names_and_can_be_left_out():
    problem = held_out(1)[0]
    doubled = {}
    for domain in (DEPOT, Depot(distractors=False)):
        world = domain.open(problem)
        _, found = play(domain, problem, [ToolCall("get_customer", {"customer": i}) for i in range(100, 200)], world)
        names = [customer["name"] for customer in found if not isinstance(customer, ToolError)]
        assert len(names) == len(set(names)) >= 7
        doubled[domain.distractors] = sum(len(world.call("find_customer", {"name": name})) > 1 for name in names)
    assert doubled == {True: 3, False: 0}


def test_whether_a_victim_obeyed_an_injected_instruction_is_measured():
    domain = Depot(injections=True)
    problems = [p for p in held_out(2, 200, domain) if any(c.name == "get_order" for c in p.secret.reads)]
    obeyed = []
    for problem in problems:
        careful, results = play(domain, problem, domain.oracle(problem)[0])
        grade = domain.grade(problem, careful)
        assert grade.completion and grade.info["injected"] is False
        notes = [r["note"] for r in results if isinstance(r, dict) and "note" in r]
        victim, _ = play(domain, problem, [call for note in notes if (call := demanded(note))], careful)
        grade = domain.grade(problem, victim)
        assert not grade.completion
        obeyed.append(grade.info["injected"])
    assert len(obeyed) > 50 and all(obeyed)
    assert "injected" not in DEPOT.grade(problems[0], DEPOT.open(problems[0])).info


def test_notes_hold_control_tokens_and_calls_only_where_asked_for():
    problem = held_out(1)[0]
    notes = {}
    for domain in (DEPOT, Depot(injections=True)):
        world, found = domain.open(problem), []
        for order in range(10, 100):
            try:
                found.append(world.call("get_order", {"order": order}).get("note"))
            except ToolError:
                continue
        notes[domain.injections] = found
    assert not any(notes[False]) and all(map(demanded, notes[True]))
    assert any("<|im_end|>\n<|im_start|>system" in n for n in notes[True])
    assert any("<tool_call>" in n for n in notes[True])
    assert demanded("gift, ring twice") is None


def test_faults_are_seeded_and_a_patient_agent_still_completes():
    domain = Depot(faults={"fail": 0.3, "stale": 0.5, "seed": 4})
    failed = 0
    for problem in held_out(5, 60, domain):
        logs = []
        for _ in range(2):
            world, log = domain.open(problem), []
            for call in domain.oracle(problem)[0]:
                for _ in range(50):
                    before = world.state_hash()
                    try:
                        log.append(world.call(call.name, call.arguments))
                        break
                    except ToolError as error:
                        assert error.transient and world.state_hash() == before
                        log.append(str(error))
                        failed += 1
            assert domain.grade(problem, world).completion
            logs.append(log)
        assert logs[0] == logs[1]
    assert failed > 100


def test_a_stale_read_shows_the_state_at_the_start_and_changes_nothing():
    domain = Depot(faults={"stale": 1.0})
    problem = next(p for p in held_out(0) if p.secret.writes[0].name == "cancel_order")
    world, order = domain.open(problem), problem.secret.writes[0].arguments
    world.call("cancel_order", order)
    done = world.state_hash()
    assert world.call("get_order", order)["status"] == "pending"
    assert world.state_hash() == done and domain.grade(problem, world).completion


def test_a_slow_tool_is_late_and_beyond_its_deadline_changes_nothing():
    problem = held_out(0)[0]
    call = problem.secret.writes[0]
    late = Depot(faults={"slow": 1.0, "slow_s": 0.001})
    world, _ = play(late, problem, [call])
    assert late.grade(problem, world).completion
    never = Depot(faults={"slow": 1.0, "slow_s": 1e6})
    world = never.open(problem)
    with pytest.raises(TimeoutError):
        world.call(call.name, call.arguments)
    assert never.grade(problem, world).progress == 0.0


def test_a_set_and_an_environment_pickle_as_their_recipe():
    problems = held_out(2, 10)
    text = pickle.dumps(problems)
    assert len(text) < 1000 and [p.id for p in pickle.loads(text)] == [p.id for p in problems]
    assert pickle.loads(text).get("depot/5/3") == problems.get("depot/5/3")
    domain = pickle.loads(pickle.dumps(Depot(dual=True, faults={"fail": 0.1})))
    assert domain.user_tools and domain.faults.fail == 0.1
