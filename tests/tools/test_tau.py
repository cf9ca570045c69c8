"""τ-bench retail: our tools on an invented shop, the contract of a world, and bad input."""

from __future__ import annotations

import copy
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from marft_envs.errors import ConfigError, DataError
from marft_envs.families.tools import TEAMS, make, oracle
from marft_envs.families.tools.store import Store, as_set
from marft_envs.families.tools.tau import TauDomain
from marft_envs.families.tools.tau.world import READS, WRITES, TauWorld
from marft_envs.families.tools.types import ToolDomain, ToolError, ToolProblem, World
from marft_envs.records import experts

TEXT, TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
ADDRESS = {name: TEXT for name in ("address1", "address2", "city", "state", "country", "zip")}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "calculate": {"expression": TEXT}, "cancel_pending_order": {"order_id": TEXT, "reason": TEXT},
    "exchange_delivered_order_items": {
        "order_id": TEXT, "item_ids": TEXTS, "new_item_ids": TEXTS, "payment_method_id": TEXT,
    },
    "find_user_id_by_email": {"email": TEXT},
    "find_user_id_by_name_zip": {"first_name": TEXT, "last_name": TEXT, "zip": TEXT},
    "get_order_details": {"order_id": TEXT}, "get_product_details": {"product_id": TEXT},
    "get_user_details": {"user_id": TEXT}, "list_all_product_types": {},
    "modify_pending_order_address": {"order_id": TEXT, **ADDRESS},
    "modify_pending_order_items": {
        "order_id": TEXT, "item_ids": TEXTS, "new_item_ids": TEXTS, "payment_method_id": TEXT,
    },
    "modify_pending_order_payment": {"order_id": TEXT, "payment_method_id": TEXT},
    "modify_user_address": {"user_id": TEXT, **ADDRESS},
    "return_delivered_order_items": {"order_id": TEXT, "item_ids": TEXTS, "payment_method_id": TEXT},
    "think": {"thought": TEXT}, "transfer_to_human_agents": {"summary": TEXT},
}  # fmt: skip
HOME = {"address1": "1 Elm", "address2": "", "city": "Ulm", "state": "BW", "country": "DE", "zip": "89073"}
AWAY = {"address1": "2 Oak", "address2": "B", "city": "Bonn", "state": "NW", "country": "DE", "zip": "53111"}


def variant(item: str, price: float, available: bool = True, **options: str) -> dict[str, Any]:
    return {"item_id": item, "price": price, "available": available, "options": options}


def order(key: str, status: str, items: list[tuple[str, str, float]], method: str, **more: Any) -> dict[str, Any]:
    lines = [
        {"name": "", "product_id": p, "item_id": i, "price": price, "options": {"size": "S"}} for p, i, price in items
    ]
    paid = {
        "transaction_type": "payment",
        "amount": round(sum(price for *_, price in items), 2),
        "payment_method_id": method,
    }
    return {"order_id": key, "user_id": "ada_1", "address": HOME, "items": lines, "status": status,
            "fulfillments": [], "payment_history": [paid], **more}  # fmt: skip


def shop() -> dict[str, Any]:
    cups = {"name": "Cup", "product_id": "P1", "variants": {
        "c1": variant("c1", 10.0, size="S"), "c2": variant("c2", 12.5, size="L", **{"lid/no lid": "lid"}),
        "c3": variant("c3", 9.0, available=False, size="M"), "c4": variant("c4", 400.0, size="XL")}}  # fmt: skip
    pans = {"name": "Pan", "product_id": "P2", "variants": {"p1": variant("p1", 30.0), "p2": variant("p2", 28.0)}}
    ada = {"user_id": "ada_1", "name": {"first_name": "Ada", "last_name": "Lo"}, "address": HOME,
           "email": "ada@example.com", "orders": ["#W1", "#W2"], "payment_methods": {
               "gift_card_1": {"source": "gift_card", "id": "gift_card_1", "balance": 50.0},
               "credit_card_1": {"source": "credit_card", "id": "credit_card_1"},
               "paypal_1": {"source": "paypal", "id": "paypal_1"}}}  # fmt: skip
    orders = [
        order("#W1", "pending", [("P1", "c1", 10.0), ("P2", "p1", 30.0), ("P1", "c1", 10.0)], "credit_card_1"),
        order("#W2", "delivered", [("P1", "c1", 10.0), ("P2", "p1", 30.0)], "credit_card_1"),
        order("#W3", "pending", [("P2", "p1", 30.0)], "gift_card_1"),
        order("#W4", "processed", [("P2", "p1", 30.0)], "paypal_1"),
        order("#W5", "pending", [("P1", "c4", 400.0)], "paypal_1"),
    ]
    other = {**ada, "user_id": "ada_2", "email": "Ada.Two@example.com", "address": AWAY, "payment_methods": {}}
    return {
        "products": {"P1": cups, "P2": pans},
        "users": {"ada_1": ada, "ada_2": other},
        "orders": {o["order_id"]: o for o in orders},
    }


TASKS: list[dict[str, Any]] = [
    {"id": "t0", "user_id": "ada_1", "instruction": "You are Ada Lo, ada@example.com. Cancel #W1, it was a mistake; return the pan of #W2 to paypal, else to the credit card.",
     "outputs": [], "actions": [
        {"name": "cancel_pending_order", "kwargs": {"order_id": "#W1", "reason": "ordered by mistake"}},
        {"name": "return_delivered_order_items", "kwargs": {"order_id": "#W2", "item_ids": ["p1"], "payment_method_id": "paypal_1"}},
        {"name": "return_delivered_order_items", "kwargs": {"order_id": "#W2", "item_ids": ["p1"], "payment_method_id": "credit_card_1"}}]},
    {"id": "t1", "user_id": "ada_1", "instruction": "You are Ada Lo, zip 89073. Where is #W4?", "outputs": ["processed"], "actions": []},
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "retail_db.json").write_text(json.dumps(shop()))
    (tmp_path / "retail_policy.md").write_text("Be fair.")
    entries = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": name,
                "parameters": {"type": "object", "properties": given, "required": list(given)},
            },
        }
        for name, given in ARGUMENTS.items()
    ]
    (tmp_path / "retail_tools.json").write_text(json.dumps(entries))
    (tmp_path / "retail_train.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    return tmp_path


@pytest.fixture
def domain(folder: Path) -> TauDomain:
    return TauDomain(folder)


@pytest.fixture
def world(domain: TauDomain) -> TauWorld:
    return domain.open(domain.problems("train")[0])


def changes(world: TauWorld) -> dict[str, Any]:
    return {path: new for path, _, _, new in world.store.difference()}


def refused(world: TauWorld, name: str, says: str, **arguments: Any) -> None:
    before = world.state_hash()
    with pytest.raises(ToolError, match=says):
        world.call(name, arguments)
    assert world.state_hash() == before, "a refusal must leave the database as it is"


# -- the tools -------------------------------------------------------------------------------------------------------


def test_the_domain_offers_sixteen_strict_tools_in_disjoint_roles(domain: TauDomain) -> None:
    as_domain: ToolDomain = domain
    assert set(as_domain.tools) == set(ARGUMENTS) == READS | WRITES
    assert all(tool.parameters["additionalProperties"] is False for tool in domain.tools.values())
    assert {name for name, tool in domain.tools.items() if tool.read_only} == READS
    held = [name for tools in domain.specialists.values() for name in tools]
    assert sorted(held) == sorted(domain.tools), "every tool belongs to exactly one specialist"
    assert set(domain.tools) > domain.user_tools and not domain.user_tools & READS
    assert domain.policy == "Be fair." and isinstance(domain.open(domain.problems("train")[0]), World)


def test_users_are_found_by_email_or_by_name_and_zip_code(world: TauWorld) -> None:
    assert world.call("find_user_id_by_email", {"email": "ADA@example.com"}) == "ada_1"
    assert world.call("find_user_id_by_email", {"email": "ada.two@example.com"}) == "ada_2"
    found = [
        world.call("find_user_id_by_name_zip", {"first_name": "ada", "last_name": "LO", "zip": z})
        for z in ("89073", "53111")
    ]
    assert found == ["ada_1", "ada_2"]
    refused(world, "find_user_id_by_email", "No user", email="nobody@example.com")
    refused(world, "find_user_id_by_name_zip", "No user", first_name="Ada", last_name="Lo", zip="1")


def test_a_user_who_moved_is_found_at_the_new_zip_code_only(world: TauWorld) -> None:
    world.call("modify_user_address", {"user_id": "ada_1", **AWAY, "zip": "10115"})
    assert world.call("find_user_id_by_name_zip", {"first_name": "Ada", "last_name": "Lo", "zip": "10115"}) == "ada_1"
    refused(world, "find_user_id_by_name_zip", "No user", first_name="Ada", last_name="Lo", zip="89073")


def test_details_are_copies_of_what_the_database_holds(world: TauWorld) -> None:
    data = shop()
    assert world.call("get_user_details", {"user_id": "ada_1"}) == data["users"]["ada_1"]
    assert world.call("get_order_details", {"order_id": "#W4"}) == data["orders"]["#W4"]
    assert world.call("get_product_details", {"product_id": "P1"}) == data["products"]["P1"]
    types = world.call("list_all_product_types", {})
    assert list(types.items()) == [("Cup", "P1"), ("Pan", "P2")]
    for value in (types, world.call("get_order_details", {"order_id": "#W4"})):
        value.clear()
    assert (
        world.call("list_all_product_types", {})
        and world.call("get_order_details", {"order_id": "#W4"})["status"] == "processed"
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [("get_user_details", "user_id"), ("get_order_details", "order_id"), ("get_product_details", "product_id")],
)
def test_unknown_ids_are_refused(world: TauWorld, name: str, key: str) -> None:
    refused(world, name, "There is no", **{key: "W1"})


@pytest.mark.parametrize(("text", "value"), [
    ("2 + 2", 4), ("(1.005 + .5) * -2", -3.01), ("10 / 4 - 1", 1.5), ("2*3+4*5", 26), ("8/2/2", 2), ("--3", 3),
    ("1-2-3", -4),
])  # fmt: skip
def test_calculate(world: TauWorld, text: str, value: float) -> None:
    assert world.call("calculate", {"expression": text}) == pytest.approx(value)


@pytest.mark.parametrize("text", [
    "", "2 +", "(1", "1)", "1 2", "2 ** 3", "a", "__import__('os')", "1/0", "(" * 150 + "1", "1+" * 200 + "1", "1.2.3",
    "9" * 99 + "*" + "9" * 99,
])  # fmt: skip
def test_calculate_refuses_what_is_no_arithmetic(world: TauWorld, text: str) -> None:
    refused(world, "calculate", ".", expression=text)


def test_think_and_transfer_change_nothing(world: TauWorld) -> None:
    before = world.state_hash()
    assert world.call("think", {"thought": "hm"}) == ""
    assert "human" in world.call("transfer_to_human_agents", {"summary": "s"})
    assert world.state_hash() == before and changes(world) == {}


def test_cancelling_refunds_at_once_to_a_gift_card_only(world: TauWorld) -> None:
    shown = world.call("cancel_pending_order", {"order_id": "#W3", "reason": "no longer needed"})
    assert shown["status"] == "cancelled"
    made = changes(world)
    assert made["/users/ada_1/payment_methods/gift_card_1/balance"] == 80
    assert made["/orders/#W3/cancel_reason"] == "no longer needed"
    assert made["/orders/#W3/payment_history"][1:] == [
        {"transaction_type": "refund", "amount": 30.0, "payment_method_id": "gift_card_1"}
    ]
    world.call("cancel_pending_order", {"order_id": "#W1", "reason": "ordered by mistake"})
    assert sum(path.startswith("/users") for path in changes(world)) == 1


def test_only_pending_orders_are_cancelled_and_for_two_reasons(world: TauWorld) -> None:
    refused(world, "cancel_pending_order", "delivered", order_id="#W2", reason="no longer needed")
    refused(world, "cancel_pending_order", "processed", order_id="#W4", reason="no longer needed")
    refused(world, "cancel_pending_order", "no reason", order_id="#W1", reason="too dear")
    refused(world, "cancel_pending_order", "There is no order", order_id="W1", reason="no longer needed")


def test_addresses(world: TauWorld) -> None:
    world.call("modify_pending_order_address", {"order_id": "#W1", **AWAY})
    world.call("modify_user_address", {"user_id": "ada_1", **AWAY})
    assert {path for path in changes(world)} == {
        f"/{what}/address/{name}"
        for what in ("orders/#W1", "users/ada_1")
        for name in ADDRESS
        if AWAY[name] != HOME[name]
    }
    refused(world, "modify_pending_order_address", "delivered", order_id="#W2", **AWAY)
    refused(world, "modify_user_address", "There is no user", user_id="bob", **AWAY)


def test_payment_moves_to_another_method_that_covers_it(world: TauWorld) -> None:
    world.call("modify_pending_order_payment", {"order_id": "#W3", "payment_method_id": "paypal_1"})
    made = changes(world)
    kinds = [(e["transaction_type"], e["amount"], e["payment_method_id"]) for e in made["/orders/#W3/payment_history"]]
    assert kinds == [("payment", 30.0, "gift_card_1"), ("payment", 30.0, "paypal_1"), ("refund", 30.0, "gift_card_1")]
    assert made["/users/ada_1/payment_methods/gift_card_1/balance"] == 80
    refused(
        world, "modify_pending_order_payment", "exactly one payment", order_id="#W3", payment_method_id="credit_card_1"
    )
    world.call("modify_pending_order_payment", {"order_id": "#W1", "payment_method_id": "gift_card_1"})
    assert changes(world)["/users/ada_1/payment_methods/gift_card_1/balance"] == 30


def test_payment_refusals(world: TauWorld) -> None:
    refused(world, "modify_pending_order_payment", "already paid", order_id="#W1", payment_method_id="credit_card_1")
    refused(world, "modify_pending_order_payment", "no payment method", order_id="#W1", payment_method_id="gift_card_9")
    refused(world, "modify_pending_order_payment", "less than 400", order_id="#W5", payment_method_id="gift_card_1")
    refused(world, "modify_pending_order_payment", "delivered", order_id="#W2", payment_method_id="paypal_1")


def test_items_of_a_pending_order_change_once(world: TauWorld) -> None:
    swap = {
        "order_id": "#W1",
        "item_ids": ["c1", "p1", "c1"],
        "new_item_ids": ["c2", "p2", "c2"],
        "payment_method_id": "gift_card_1",
    }
    shown = world.call("modify_pending_order_items", swap)
    assert [(item["item_id"], item["price"]) for item in shown["items"]] == [("c2", 12.5), ("p2", 28.0), ("c2", 12.5)]
    assert shown["items"][0]["options"] == {"size": "L", "lid/no lid": "lid"}
    assert shown["status"] == "pending (item modified)"
    assert shown["payment_history"][-1] == {
        "transaction_type": "payment",
        "amount": 3.0,
        "payment_method_id": "gift_card_1",
    }
    assert changes(world)["/users/ada_1/payment_methods/gift_card_1/balance"] == 47
    assert "/orders/#W1/items/0/options/lid/no lid" in changes(world), "a slash in a key stays as it is"
    refused(world, "modify_pending_order_items", "item modified", **swap)
    refused(world, "cancel_pending_order", "item modified", order_id="#W1", reason="no longer needed")


def test_a_cheaper_item_is_refunded(world: TauWorld) -> None:
    shown = world.call(
        "modify_pending_order_items",
        {"order_id": "#W3", "item_ids": ["p1"], "new_item_ids": ["p2"], "payment_method_id": "gift_card_1"},
    )
    assert shown["payment_history"][-1]["transaction_type"] == "refund" and shown["payment_history"][-1]["amount"] == 2
    assert changes(world)["/users/ada_1/payment_methods/gift_card_1/balance"] == 52


@pytest.mark.parametrize(
    ("name", "key"), [("modify_pending_order_items", "#W1"), ("exchange_delivered_order_items", "#W2")]
)
def test_swaps_are_refused(world: TauWorld, name: str, key: str) -> None:
    def no(says: str, old: list[str], new: list[str], method: str = "credit_card_1", order_id: str = key) -> None:
        refused(world, name, says, order_id=order_id, item_ids=old, new_item_ids=new, payment_method_id=method)

    no("does not hold: c2", ["c2"], ["c1"])
    no("does not hold: p1", ["p1", "p1"], ["p2", "p2"])
    no("numbers must be equal", ["c1", "p1"], ["c2"])
    no("not available", ["c1"], ["c3"])
    no("not of the same product", ["c1"], ["p2"])
    no("no payment method", ["c1"], ["c2"], "paypal_7")
    no("less than 390", ["c1"], ["c4"], "gift_card_1")
    no("processed", ["p1"], ["p2"], order_id="#W4")


def test_exchanges_are_requested_with_the_rounded_difference_and_sorted_items(world: TauWorld) -> None:
    world.call(
        "exchange_delivered_order_items",
        {"order_id": "#W2", "item_ids": ["p1", "c1"], "new_item_ids": ["p2", "c2"], "payment_method_id": "gift_card_1"},
    )
    assert changes(world) == {
        "/orders/#W2/status": "exchange requested",
        "/orders/#W2/exchange_items": ["c1", "p1"],
        "/orders/#W2/exchange_new_items": ["c2", "p2"],
        "/orders/#W2/exchange_payment_method_id": "gift_card_1",
        "/orders/#W2/exchange_price_difference": 0.5,
    }
    refused(
        world,
        "return_delivered_order_items",
        "exchange requested",
        order_id="#W2",
        item_ids=["c1"],
        payment_method_id="credit_card_1",
    )


@pytest.mark.parametrize("method", ["credit_card_1", "gift_card_1"])
def test_returns_go_to_the_original_method_or_a_gift_card(world: TauWorld, method: str) -> None:
    world.call("return_delivered_order_items", {"order_id": "#W2", "item_ids": ["p1"], "payment_method_id": method})
    assert changes(world) == {
        "/orders/#W2/status": "return requested",
        "/orders/#W2/return_items": ["p1"],
        "/orders/#W2/return_payment_method_id": method,
    }


def test_return_refusals(world: TauWorld) -> None:
    refused(
        world,
        "return_delivered_order_items",
        "original payment method",
        order_id="#W2",
        item_ids=["p1"],
        payment_method_id="paypal_1",
    )
    refused(
        world,
        "return_delivered_order_items",
        "does not hold",
        order_id="#W2",
        item_ids=["p2"],
        payment_method_id="credit_card_1",
    )
    refused(
        world,
        "return_delivered_order_items",
        "no payment method",
        order_id="#W2",
        item_ids=["p1"],
        payment_method_id="x",
    )
    refused(
        world,
        "return_delivered_order_items",
        "pending",
        order_id="#W1",
        item_ids=["p1"],
        payment_method_id="credit_card_1",
    )


@pytest.mark.parametrize("name", ["store", "snapshot", "__init__", "_get", "deploy"])
def test_only_tools_can_be_called(world: TauWorld, name: str) -> None:
    with pytest.raises(ToolError, match="no tool"):
        world.call(name, {})


# -- the world -------------------------------------------------------------------------------------------------------


def test_episodes_forks_and_snapshots_do_not_see_each_other(domain: TauDomain) -> None:
    problem = domain.problems("train")[0]
    one, two = domain.open(problem), domain.open(problem)
    fresh = one.state_hash()
    one.call("cancel_pending_order", {"order_id": "#W1", "reason": "no longer needed"})
    fork, saved, after = copy.deepcopy(one), one.snapshot(), one.state_hash()
    fork.call("modify_user_address", {"user_id": "ada_1", **AWAY})
    assert two.state_hash() == fresh != after and one.state_hash() == after != fork.state_hash()
    one.call("cancel_pending_order", {"order_id": "#W3", "reason": "no longer needed"})
    for _ in range(2):
        one.restore(saved)
        assert one.state_hash() == after and one.call("get_order_details", {"order_id": "#W3"})["status"] == "pending"
        one.call("cancel_pending_order", {"order_id": "#W3", "reason": "no longer needed"})


def test_a_domain_is_pickled_as_its_path(domain: TauDomain) -> None:
    pickled = pickle.dumps(domain)
    assert len(pickled) < 1000 and pickle.loads(pickled).problems("train")[0] == domain.problems("train")[0]


def test_whatever_is_called_only_tool_errors_come_and_json_goes(domain: TauDomain) -> None:
    rng = random.Random(0)
    words = [
        "", "#W1", "#W2", "#W3", "ada_1", "P1", "c1", "c2", "p1", "gift_card_1", "paypal_1", "\ud800",
        "ordered by mistake", "1/0",
    ]  # fmt: skip
    worked = set()
    for _ in range(300):
        world = domain.open(domain.problems("train")[0])
        for _ in range(10):
            name, lists = rng.choice(list(ARGUMENTS)), [[], ["c1"], ["p1", "c1"], ["c2"], ["p2", "c2"]]
            given = {
                key: rng.choice(lists) if kind == TEXTS else rng.choice(words) for key, kind in ARGUMENTS[name].items()
            }
            before = world.state_hash()
            try:
                json.dumps(world.call(name, given), allow_nan=False)
            except ToolError:
                assert world.state_hash() == before
            else:
                worked.add(name)
                assert name in WRITES or world.state_hash() == before
        domain.grade(domain.problems("train")[0], world)
    assert len(worked) > 9


def test_a_change_that_is_taken_back_is_no_change(world: TauWorld) -> None:
    fresh = world.state_hash()
    world.call("modify_user_address", {"user_id": "ada_1", **AWAY})
    assert world.state_hash() != fresh
    world.call("modify_user_address", {"user_id": "ada_1", **HOME})
    assert world.state_hash() == fresh and world.store.difference() == []


def test_the_overlay_agrees_with_a_full_copy() -> None:
    """Brute force: random edits on the overlay and on a deep copy; reads and hashes must say the same."""
    rng = random.Random(0)
    base = {"t": {str(i): {"n": i, "list": [1, 2], "deep": {"x": float(i)}} for i in range(5)}}
    seen: dict[str, str] = {}
    store, full = Store(base), copy.deepcopy(base)
    for _ in range(400):
        key, value = str(rng.randrange(5)), rng.choice([0, 1, 1.0, 68, 68.0])
        record = copy.deepcopy(store.get("t", key))
        copied = full["t"][key]
        where = rng.randrange(3)
        for target in (record, copied):
            if where == 0:
                target["n"] = value
            elif where == 1:
                target["deep"]["x"] = value
            else:
                target["list"][0] = value
        store.put("t", key, record)
        assert all(store.get("t", k) == full["t"][k] for k in full["t"])
        state = json.dumps({k: [float(x) for x in (r["n"], *r["list"], r["deep"]["x"])] for k, r in full["t"].items()})
        assert seen.setdefault(store.state_hash(), state) == state, "different states, one hash"
    assert len(set(seen.values())) == len(seen), "equal states, different hashes"
    assert base["t"]["3"] == {"n": 3, "list": [1, 2], "deep": {"x": 3.0}}


def test_differences_compare_as_sets_and_by_value() -> None:
    assert as_set([["/a", "set", 68, 1], ["/b", "add", None, {"x": 2.0}]]) == as_set(
        [["/b", "add", None, {"x": 2}], ["/a", "set", 68.0, 1]]
    )
    assert as_set([["/a", "set", 68, 1]]) != as_set([["/a", "set", 68, 1.5]])


# -- grades ----------------------------------------------------------------------------------------------------------


def test_the_oracle_completes_null_gets_nothing_and_half_is_between(domain: TauDomain) -> None:
    problem = domain.problems("train")[0]
    assert problem.id == "tau/t0" and problem.level == 2 and "Cancel #W1" in problem.turns[0]
    world = domain.open(problem)
    assert domain.grade(problem, world).progress == 0 and not domain.grade(problem, world).completion
    calls = domain.oracle(problem)[0]
    assert [call.name for call in calls] == [
        "find_user_id_by_email", "get_order_details", "cancel_pending_order", "get_order_details", "return_delivered_order_items",
    ]  # fmt: skip
    seen = []
    for call in calls:
        world.call(call.name, call.arguments)
        seen.append(domain.grade(problem, world).progress)
    assert seen == sorted(seen) and 0 == seen[0] == seen[1] < seen[2] < seen[4] == 1
    assert domain.grade(problem, world).completion and problem.least_steps == len(calls)
    world.call("cancel_pending_order", {"order_id": "#W3", "reason": "no longer needed"})
    worse = domain.grade(problem, world)
    assert not worse.completion and worse.progress < 1 and worse.info["wrong"] == 4


def test_a_task_that_changes_nothing_is_completed_by_leaving_things_alone(domain: TauDomain) -> None:
    problem = domain.problems("train").get("tau/t1")
    world, told = domain.open(problem), ["It is processed."]
    assert domain.grade(problem, world, told).completion and domain.grade(problem, world, told).progress == 1
    world.call("cancel_pending_order", {"order_id": "#W3", "reason": "no longer needed"})
    assert not domain.grade(problem, world, told).completion and domain.grade(problem, world, told).progress == 0
    assert [call.name for call in domain.oracle(problem)[0]] == ["find_user_id_by_name_zip"]


def test_the_right_payments_in_another_order_are_not_complete(domain: TauDomain) -> None:
    problem = domain.problems("train")[0]
    world, refusals = domain.replay(problem)
    assert refusals == 1 and domain.grade(problem, world).completion
    paid = world.store.get("orders", "#W1")["payment_history"]
    world.store.change("orders", "#W1", payment_history=[*paid, paid[-1]])
    assert 0 < domain.grade(problem, world).progress < 1


def test_nothing_that_agents_see_holds_the_gold(domain: TauDomain) -> None:
    problem = domain.problems("train")[0]
    assert "return_delivered_order_items" not in repr(problem) and "ordered by mistake" not in repr(problem)


def test_levels_and_limit(domain: TauDomain) -> None:
    assert [p.id for p in domain.problems("train", levels=[2])] == ["tau/t0"]
    assert len(domain.problems("train", limit=1)) == 1
    with pytest.raises(DataError, match=r"levels \[7\].*\[0, 2\]"):
        domain.problems("train", levels=[7])
    with pytest.raises(DataError, match="'train'"):
        domain.problems("trian")


def test_a_published_difference_is_what_is_graded(folder: Path) -> None:
    row = {**TASKS[1], "outputs": [], "derived": {"gold_diff": [["/orders/#W4/status", "set", "processed", "lost"]]}}
    (folder / "retail_dev.jsonl").write_text(json.dumps(row))
    domain = TauDomain(folder)
    problem = domain.problems("dev")[0]
    world = domain.open(problem)
    assert not domain.grade(problem, world).completion
    world.store.change("orders", "#W4", status="lost")
    assert domain.grade(problem, world).completion


# -- bad input -------------------------------------------------------------------------------------------------------


def spoil(row: dict[str, Any], **changed: Any) -> str:
    return json.dumps({**row, **changed})


@pytest.mark.parametrize(("text", "says"), [
    ("{", "line 1: not JSON"), ("[]", "expected a JSON object, got list"),
    (spoil(TASKS[0], id=3), "'id' is 3; expected a text"),
    (spoil(TASKS[0], actions="x"), "'actions' is 'x'; expected a list"),
    (spoil(TASKS[0], user_id="eve"), "user 'eve' is not in the database"),
    (spoil(TASKS[0], outputs=5), "'outputs' is 5"), (spoil(TASKS[0], actions=["x"]), "an action is 'x'"),
    (spoil(TASKS[0], actions=[{"name": "cancel_order", "kwargs": {}}]), "Did you mean 'cancel_pending_order'"),
    (spoil(TASKS[0], actions=[{"name": "think", "kwargs": {"idea": ""}}]), "unknown or lacks arguments: idea, thought"),
    (spoil(TASKS[0], derived={"gold_diff": [["/a", "set"]]}), "'derived.gold_diff' is malformed"),
])  # fmt: skip
def test_bad_rows_are_named(folder: Path, text: str, says: str) -> None:
    (folder / "retail_train.jsonl").write_text(text)
    with pytest.raises(DataError, match=says) as caught:
        TauDomain(folder)
    assert "retail_train.jsonl, line 1" in str(caught.value)


def test_two_tasks_with_one_id_are_refused(folder: Path) -> None:
    (folder / "retail_train.jsonl").write_text((json.dumps(TASKS[0]) + "\n") * 2)
    with pytest.raises(DataError, match="'tau/t0' twice"):
        TauDomain(folder).problems("train")


@pytest.mark.parametrize(("path", "key", "says"), [
    ("retail_db.json", "orders", "no table 'orders'"),
    ("retail_tools.json", None, "schemas of calculate.* are missing"),
])  # fmt: skip
def test_incomplete_files_are_named(folder: Path, path: str, key: str | None, says: str) -> None:
    value = json.loads((folder / path).read_text())
    (folder / path).write_text(json.dumps([] if key is None else {k: v for k, v in value.items() if k != key}))
    with pytest.raises(DataError, match=says):
        TauDomain(folder)


def test_records_that_the_tools_could_not_use_are_refused(folder: Path) -> None:
    data = shop()
    del data["orders"]["#W1"]["status"]
    (folder / "retail_db.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match=r"orders '#W1' lacks status"):
        TauDomain(folder)
    data = shop()
    data["orders"]["#W1"]["user_id"] = "eve"
    (folder / "retail_db.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match=r"'#W1' belongs to 'eve'"):
        TauDomain(folder)


def test_a_path_without_the_files_says_what_is_expected(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataError, match=r"not a folder\. Expected a folder with retail_db\.json"):
        TauDomain(tmp_path / "nowhere")
    (folder / "retail_db.json").unlink()
    with pytest.raises(DataError, match=r"it has no retail_db\.json"):
        TauDomain(folder)


def test_foreign_problems_and_worlds_are_refused(domain: TauDomain) -> None:
    problem = domain.problems("train")[0]
    with pytest.raises(DataError, match="not a problem of tau"):
        domain.oracle(ToolProblem("depot/1", ("hi",), 1))
    with pytest.raises(DataError, match="was given a Other"):
        domain.grade(problem, Other())


class Other:
    """A world of somebody else's."""

    def call(self, name: str, arguments: Any) -> Any: ...
    def snapshot(self) -> Any: ...
    def restore(self, snapshot: Any) -> None: ...
    def state_hash(self) -> str:
        return ""

    def close(self) -> None: ...


# -- words to the customer, folders by name ------------------------------------------------------------------------------


@pytest.mark.parametrize("team", TEAMS)
def test_the_oracle_says_what_a_customer_asks_to_know(folder: Path, team: str) -> None:
    """Silence scored 1 on tasks that ask for nothing but an answer; upstream scores it 0."""
    env = make(team, f"tau:{folder}", split="train")
    env.task.validate()
    episode = oracle.play(env, options={"task_id": "tau/t1"})
    assert episode.success and episode.metrics["progress"] == 1.0
    env.reset(seed=0, options={"task_id": "tau/t1"})
    while not env.done:
        experts.turn(env, dict.fromkeys(env.ready_agents, ""))
    assert not env.episode.success and env.episode.metrics["progress"] == 0.0 and env.episode.team_return <= 0


def test_outputs_are_looked_for_as_upstream_does(folder: Path) -> None:
    task = {**TASKS[0], "id": "t2", "outputs": ["1131.5", "Red Cup"], "actions": TASKS[0]["actions"][:1]}
    (folder / "retail_train.jsonl").write_text(json.dumps(task) + "\n")
    domain = TauDomain(folder)
    problem = domain.problems("train")[0]
    assert "1131.5" not in problem.turns[0] and "told to the customer" in problem.turns[0]
    world = domain.open(problem)
    assert domain.grade(problem, world).progress == 0
    part = domain.grade(problem, world, ["It costs $1,131.50."])
    assert 0 < part.progress < 1 and not part.completion and part.info["untold"] == 1
    for call in domain.oracle(problem)[0]:
        world.call(call.name, call.arguments)
    assert not domain.grade(problem, world, ["$1,131.50"]).completion
    assert domain.grade(problem, world, ["$1,131.50", "for the RED CUP."]).completion, "in any of several messages"


def test_a_folder_may_stand_behind_the_name(folder: Path) -> None:
    env = make("solo", f"tau:{folder}", split="train")
    assert env.unwrapped.task.domain.name == "tau" and len(env.unwrapped.task.problems) == 2
    with pytest.raises(DataError, match="is not a folder"):
        make("solo", f"tau:{folder}/no")
    with pytest.raises(ConfigError, match="no module 'tua'"):
        make("solo", "tua:x")


def test_levels_that_cannot_be_are_refused_with_the_way_out(folder: Path) -> None:
    with pytest.raises(DataError, match=r"Levels there: \[0, 2\].*levels=null"):
        make("solo", f"tau:{folder}", levels=[5])
    for levels in ("null", "0", [0, "1"], 1.5):
        with pytest.raises(ConfigError, match=r"expected whole numbers"):
            make("solo", f"tau:{folder}", levels=levels)


@pytest.mark.parametrize(("inside", "says"), [
    (
        "tau_bench/envs/airline/data/flights.json",
        "airline domain of tau-bench, which is not supported; .* domain='tau2/airline'",
    ),
    ("data/flights.json", "airline domain of tau-bench, which is not supported"),
    ("data/tau2/domains/retail/tasks.json", "tau2-bench, whose domains are domain='tau2/retail'"),
    (
        "retail_db.json",
        r"no retail_tools.json, retail_policy.md, retail_SPLIT.jsonl.*there is no tau_bench/envs/retail",
    ),
])  # fmt: skip
def test_a_wrong_folder_is_an_error_that_says_what_was_looked_for(tmp_path: Path, inside: str, says: str) -> None:
    file = tmp_path / inside
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}")
    with pytest.raises(DataError, match=says):
        TauDomain(tmp_path)


# -- a checkout of the upstream repository ---------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    retail = tmp_path / "repo" / "tau_bench" / "envs" / "retail"
    (retail / "data").mkdir(parents=True)
    (retail / "tools").mkdir()
    for table, records in shop().items():
        (retail / "data" / f"{table}.json").write_text(json.dumps(records))
    (retail / "wiki.md").write_text("Be fair.")
    for name, given in ARGUMENTS.items():
        info = {
            "type": "function",
            "function": {
                "name": name,
                "description": "",
                "parameters": {"type": "object", "properties": given, "required": list(given)},
            },
        }
        (retail / "tools" / f"{name}.py").write_text(
            f"class T(Tool):\n    @staticmethod\n    def get_info():\n        return {info!r}\n"
        )
    action = TASKS[0]["actions"][0]
    reads = "Action(name='get_order_details', kwargs={'order_id': '#W1'}), Action(name='get_order_details', kwargs={'order_id': '#W0'})"
    task = f"Task(annotator='0', user_id='ada_1', instruction='Cancel #W1.', outputs=[], actions=[{reads}, Action(name={action['name']!r}, kwargs={action['kwargs']!r})])"
    (retail / "tasks_test.py").write_text(f"raise SystemExit('never run')\nTASKS_TEST = [\n    {task},\n]\n")
    return retail


def test_a_checkout_is_read_without_running_it(checkout: Path) -> None:
    for path in (checkout, checkout.parents[2]):
        domain = TauDomain(path)
        problem = domain.problems("test")[0]
        world = domain.open(problem)
        for call in domain.oracle(problem)[0]:
            world.call(call.name, call.arguments)
        assert domain.grade(problem, world).completion and problem.id == "tau/retail_test_0"
        assert [call.name for call in domain.oracle(problem)[0]] == [
            "find_user_id_by_name_zip", "get_order_details", "cancel_pending_order",
        ], "look-ups of the gold stand there once, refused ones not at all"  # fmt: skip


@pytest.mark.parametrize(("text", "says"), [
    ("T = [Task(user_id='ada_1', instruction=open('x'), actions=[])]", "expected plain literals"),
    ("T = [Task(user_id='a')]", "lacks actions, instruction"), ("T = [", "is not Python"),
])  # fmt: skip
def test_a_damaged_checkout_is_refused(checkout: Path, text: str, says: str) -> None:
    (checkout / "tasks_test.py").write_text(text)
    with pytest.raises(DataError, match=says):
        TauDomain(checkout)
