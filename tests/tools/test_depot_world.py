"""The depot's state: calls of any kind, snapshots, copies, hashes; and the calculator."""

from __future__ import annotations

import copy
import json
import math
import pickle
import random
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft_envs.call_formats.call import ToolCall
from marft_envs.families.tools.depot import Depot
from marft_envs.families.tools.schema import validate
from marft_envs.families.tools.session import Toolbox, ToolSession
from marft_envs.families.tools.types import ToolError

DEPOT = Depot()
PROBLEM = DEPOT.problems("test", levels=[0])[0]
TOOLS = DEPOT.tools
WRITES = sorted(name for name, tool in TOOLS.items() if not tool.read_only)
HARMLESS = sorted(name for name, tool in TOOLS.items() if tool.read_only)
CITIES = ("Lima", "Oslo", "Rome")
ITEMS = ("lamp", "desk", "rug")
REASONS = tuple(TOOLS["record_case"].parameters["properties"]["reason"]["enum"])


def attempt(world, name, arguments):
    try:
        return world.call(name, arguments)
    except ToolError as error:
        return str(error)


def perform(world, calls):
    for name, arguments in calls:
        attempt(world, name, arguments)
    return world


START = DEPOT.open(PROBLEM)
THERE = [order for order in range(10, 100) if isinstance(attempt(START, "get_order", {"order": order}), dict)]


orders = st.sampled_from(THERE)
ARGUMENTS = {
    "cancel_order": st.fixed_dictionaries({"order": orders}),
    "change_address": st.fixed_dictionaries({"order": orders, "city": st.sampled_from(CITIES)}),
    "ship_order": st.fixed_dictionaries({"order": orders, "city": st.sampled_from(CITIES)}),
    "add_stock": st.fixed_dictionaries({"item": st.sampled_from(ITEMS), "quantity": st.integers(1, 9)}),
    "refund_order": st.fixed_dictionaries({"order": orders, "amount": st.integers(1, 40)}),
    "record_case": st.fixed_dictionaries(
        {"order": orders, "reason": st.sampled_from(REASONS), "evidence": st.integers(0, 9)}
    ),
}
write_calls = st.lists(st.sampled_from(WRITES).flatmap(lambda n: st.tuples(st.just(n), ARGUMENTS[n])), max_size=12)


def everything(world):
    """What the reads show of all orders, and of the stock that is written to."""
    reads = [(name, {"order": order}) for order in THERE for name in ("get_order", "get_shipment", "get_refunds")]
    reads += [("get_stock", {"item": item}) for item in ITEMS]
    return json.dumps([attempt(world, *read) for read in reads])


FRESH = everything(DEPOT.open(PROBLEM))


@settings(max_examples=40)
@given(before=write_calls, after=write_calls)
def test_restore_brings_back_what_the_snapshot_held(before, after):
    world = perform(DEPOT.open(PROBLEM), before)
    saved, state, shown = world.snapshot(), world.state_hash(), everything(world)
    for _ in range(2):  # the same snapshot serves twice
        perform(world, after)
        world.restore(saved)
        assert (world.state_hash(), everything(world)) == (state, shown)
    world.close()


@settings(max_examples=40)
@given(before=write_calls, after=write_calls)
def test_copies_are_equal_and_independent(before, after):
    world = perform(DEPOT.open(PROBLEM), before)
    state, shown = world.state_hash(), everything(world)
    for twin in (copy.deepcopy(world), pickle.loads(pickle.dumps(world))):
        assert (twin.state_hash(), everything(twin)) == (state, shown)
        perform(twin, after)
        assert (world.state_hash(), everything(world)) == (state, shown)
        perform(world, after)
        assert (world.state_hash(), everything(world)) == (twin.state_hash(), everything(twin))
        world.restore(perform(DEPOT.open(PROBLEM), before).snapshot())
        twin.close()


@given(calls=write_calls, others=write_calls)
def test_hashes_agree_exactly_where_states_do(calls, others):
    one, two = perform(DEPOT.open(PROBLEM), calls), perform(DEPOT.open(PROBLEM), others)
    assert (one.state_hash() == two.state_hash()) == (one.difference() == two.difference())
    start = DEPOT.open(PROBLEM)
    assert (one.state_hash() == start.state_hash()) == (not one.difference())


@given(calls=write_calls)
def test_a_closed_world_leaves_nothing_to_the_next(calls):
    world = perform(DEPOT.open(PROBLEM), calls)
    state, grade = world.state_hash(), DEPOT.grade(PROBLEM, world)
    world.close()
    world.close()
    assert (world.state_hash(), DEPOT.grade(PROBLEM, world)) == (state, grade)
    with pytest.raises(RuntimeError, match="closed"):
        world.call("get_order", {"order": 10})
    fresh = DEPOT.open(PROBLEM)
    assert everything(fresh) == FRESH and not fresh.difference()
    for name, arguments in calls:  # no read shows cases; their numbers count from 1
        if name == "record_case":
            assert fresh.call(name, arguments)["case"] % 10 == 1
            break
    fresh.close()


def test_worlds_open_at_the_same_time_do_not_share_a_state():
    call = PROBLEM.secret.writes[0]
    worlds = [DEPOT.open(PROBLEM) for _ in range(20)]
    worlds[7].call(call.name, call.arguments)
    assert [DEPOT.grade(PROBLEM, world).completion for world in worlds] == [i == 7 for i in range(20)]


def test_the_order_of_independent_writes_does_not_matter():
    several = (p for p in DEPOT.problems("test", levels=[4]) if len(p.secret.writes) == 4)
    problem = next(p for p in several if all("order" in call.arguments for call in p.secret.writes))
    by_order = {}
    for call in problem.secret.writes:
        by_order.setdefault(call.arguments["order"], []).append(call)
    forward = [call for calls in by_order.values() for call in calls]
    backward = [call for calls in reversed(by_order.values()) for call in calls]
    one, two = DEPOT.open(problem), DEPOT.open(problem)
    perform(one, [(c.name, c.arguments) for c in forward])
    perform(two, [(c.name, c.arguments) for c in backward])
    assert one.state_hash() == two.state_hash() and len(by_order) > 1


def test_a_change_taken_back_is_no_change():
    world = DEPOT.open(PROBLEM)
    order = next(o for o in THERE if attempt(world, "get_order", {"order": o})["status"] == "pending")
    start, city = world.state_hash(), world.call("get_order", {"order": order})["city"]
    elsewhere = next(c for c in CITIES if c != city)
    world.call("change_address", {"order": order, "city": elsewhere})
    assert world.state_hash() != start
    world.call("change_address", {"order": order, "city": city})
    assert world.state_hash() == start and not world.difference()


def test_an_integer_written_as_a_float_is_the_same_integer():
    problem = next(p for p in DEPOT.problems("test", levels=[0]) if p.secret.writes[0].name == "refund_order")
    call = problem.secret.writes[0]
    one, two = DEPOT.open(problem), DEPOT.open(problem)
    one.call(call.name, call.arguments)
    result = two.call(call.name, {name: float(value) for name, value in call.arguments.items()})
    assert one.state_hash() == two.state_hash() and "." not in json.dumps(result)


NASTY = (
    0, -1, 1, 7, 17, 42, 99, 100, 9999, 10**4, 2**31, 2**63, 2**64, 10**400, 17.0, 17.5, 1e308, True, None, "", "17", "lamp",
    "Lima", "too_late", "'; drop table orders; --", "%", "_", "\x00", "a\x00b", "\ud800", "\u202e", "😀" * 20, "x" * 61,
    "x" * 100_000, "<|im_end|><|im_start|>system", "((((1))))", "9**9**9", "1/0", "__import__('os')", [], [17], {}, {"order": 17},
)  # fmt: skip


def _any_call(rng):
    name = rng.choice([*TOOLS, *TOOLS, *TOOLS, "drop", "", "get_order ", "confirm_address"])
    known = sorted(TOOLS[name].parameters["properties"]) if name in TOOLS else ["order"]
    arguments = {}
    for parameter in known:
        kind = rng.random()
        if kind < 0.75:
            number = rng.randrange(1, 50)
            plausible = dict.fromkeys(("quantity", "amount", "evidence"), number) | {"customer": 100 + number}
            plausible |= {"name": "a", "city": "Lima", "expression": "1+1", "message": ""}
            plausible |= {"order": rng.choice(THERE), "item": rng.choice(ITEMS), "reason": rng.choice(REASONS)}
            arguments[parameter] = plausible[parameter]
        elif kind < 0.97:
            arguments[parameter] = rng.choice(NASTY)
    if rng.random() < 0.05:
        arguments[rng.choice(["extra", "self", "store", ""])] = rng.choice(NASTY)
    return ToolCall(name, arguments)


@pytest.mark.parametrize("seed", range(5))
def test_calls_of_any_kind_never_crash_the_world_or_change_it_unasked(seed):
    """2,000 calls a seed; agents hold their role's tools, and the world is renewed now and then."""
    rng = random.Random(seed)
    holds = {role: tools for role, tools in DEPOT.specialists.items()}
    changed = refused = 0
    for _ in range(10):
        session = ToolSession(Toolbox(TOOLS.values()), lambda: DEPOT.open(PROBLEM), holds, {}, 10**6, 10**6)
        for _ in range(200):
            agent, call = rng.choice([*holds]), _any_call(rng)
            before = session.world.state_hash()
            result = session.call(agent, call)
            after = session.world.state_hash()
            assert result.error != "crashed", (call, result)
            assert result.changed == (before != after)
            if result.changed:
                assert call.name in WRITES and call.name in holds[agent] and result.ok, (agent, call)
                changed += 1
            refused += not result.ok
        assert session.world.call("get_stock", {"item": "lamp"})["stock"] >= 0
        session.world.close()
    assert changed > 30 and refused > 500
    assert everything(DEPOT.open(PROBLEM)) == FRESH


def test_farmers_of_harmless_calls_gain_nothing():
    world = DEPOT.open(PROBLEM)
    start = world.state_hash()
    about_orders = [name for name in HARMLESS if TOOLS[name].parameters.get("required") == ["order"]]
    perform(world, [(name, {"order": order}) for name in about_orders for order in range(10, 100)])
    perform(world, [("calculate", {"expression": "1+1"}), ("finish", {}), ("find_customer", {"name": ""})])
    assert world.state_hash() == start and DEPOT.grade(PROBLEM, world).progress == 0.0


def test_what_the_tools_enforce():
    problem = next(p for p in DEPOT.problems("test", levels=[0]) if p.secret.writes[0].name == "ship_order")
    world, ship = DEPOT.open(problem), problem.secret.writes[0].arguments
    order = ship["order"]
    row = world.call("get_order", {"order": order})
    with pytest.raises(ToolError, match="does not deliver there"):
        world.call("ship_order", {"order": order, "city": "Atlantis"})
    with pytest.raises(ToolError, match=f"by {row['total']} at most"):
        world.call("refund_order", {"order": order, "amount": row["total"] + 1})
    before = world.call("get_stock", {"item": row["item"]})["stock"]
    world.call("ship_order", ship)
    assert world.call("get_stock", {"item": row["item"]})["stock"] == before - row["quantity"]
    assert world.call("get_shipment", {"order": order})["city"] == ship["city"]
    for name, arguments in (("cancel_order", {"order": order}), ("change_address", ship), ("ship_order", ship)):
        with pytest.raises(ToolError, match="is shipped, not pending"):
            world.call(name, arguments)
    for name in ("get_order", "get_refunds", "cancel_order"):
        with pytest.raises(ToolError, match="There is no order 9999"):
            world.call(name, {"order": 9999})
    with pytest.raises(ToolError, match=r"no such item.*lamp"):
        world.call("add_stock", {"item": "lamps", "quantity": 1})


def test_stock_that_does_not_suffice_is_not_shipped_and_nothing_of_it_is_done():
    problem = next(p for p in DEPOT.problems("test", levels=[2]) if p.secret.writes[0].name == "add_stock")
    add, ship = problem.secret.writes
    world = DEPOT.open(problem)
    start = world.state_hash()
    with pytest.raises(ToolError, match="stock is"):
        world.call(ship.name, ship.arguments)
    assert world.state_hash() == start
    perform(world, [(add.name, add.arguments), (ship.name, ship.arguments)])
    assert DEPOT.grade(problem, world).completion


# calculate ------------------------------------------------------------------------------------------------


def calculate(text):
    assert not validate(TOOLS["calculate"], {"expression": text})
    return DEPOT.open(PROBLEM).call("calculate", {"expression": text})


@pytest.mark.parametrize(
    ("text", "value"),
    [("2*(3+4)", 14), ("7/2", 3.5), ("0.1+0.2", 0.3), (" -3 - -3", 0), ("1/3", 0.333333), (".5*4", 2), ("6/2*3", 9)],
)
def test_calculate(text, value):
    assert calculate(text) == value and type(calculate(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    ["", " ", "2**9", "7//2", "1(2)", "()", "1/0", "1/(2-2)", "9" * 13, "999999*9999999", "(" * 99, "007", "1.2.3", "1,2",
     "a", "1e9", "0x10", "1_0", "1j", "__import__('os')", "1\n+1", "１+１", "1;2", "[1]", "1 if 1 else 2"],
)  # fmt: skip
def test_calculate_refuses_everything_else(text):
    with pytest.raises(ToolError):
        calculate(text)


terms = st.recursive(
    st.integers(0, 99).map(lambda n: (str(n), Fraction(n))),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
        lambda t: (f"({t[0][0]} {t[1]} {t[2][0]})", _reference(t[0][1], t[1], t[2][1]))
    ),
    max_leaves=8,
)


def _reference(left, op, right):
    if left is None or right is None or (op == "/" and right == 0):
        return None
    value = {"+": left + right, "-": left - right, "*": left * right, "/": left / (right or 1)}[op]
    return value if abs(value) <= 10**12 else None


@given(term=terms)
def test_calculate_agrees_with_exact_arithmetic(term):
    text, value = term
    if len(text) > 100:
        return
    try:
        found = calculate(text)
    except ToolError:
        assert value is None
    else:
        assert value is not None and math.isclose(found, value, rel_tol=1e-12, abs_tol=5.1e-7)


@given(text=st.one_of(st.text("0123456789+-*/(). ", max_size=100), st.text(max_size=100)))
def test_calculate_of_any_text_is_a_number_or_a_refusal(text):
    try:
        value = calculate(text)
    except ToolError:
        return
    assert type(value) in (int, float) and math.isfinite(value) and re.search(r"\d", text)
