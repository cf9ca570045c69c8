"""The sixteen tools of the retail domain over one episode's view of the database.

What each tool does and refuses follows from its published schema, the policy, and the published differences of the
gold actions; the code is our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from marft_envs import tables
from marft_envs.families.tools.arithmetic import evaluate
from marft_envs.families.tools.store import Record, Replaced, Store, Tables
from marft_envs.families.tools.types import ToolError, copied

REASONS = ("no longer needed", "ordered by mistake")
GIFT_CARD = "gift_card"
ADDRESS = ("address1", "address2", "city", "state", "country", "zip")
_TABLE = tables.read(__package__, "tau")
READS, WRITES = frozenset(_TABLE["reads"]), frozenset(_TABLE["writes"])
"""Tools that leave the database as it is, and those that do not."""


class TableIndex:
    """Look-ups that the tables do not offer; made once per database."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        users = tables["users"].items()
        self.by_email = {user["email"].casefold(): key for key, user in users}
        self.by_name: dict[tuple[str, str], list[str]] = {}
        for key, user in users:
            name = user["name"]["first_name"].casefold(), user["name"]["last_name"].casefold()
            self.by_name.setdefault(name, []).append(key)
        self.products = {product["name"]: key for key, product in sorted(tables["products"].items(), key=_name)}


def _name(entry: tuple[str, Record]) -> str:
    return str(entry[1]["name"])


class TauWorld:
    """One episode's database and the tools on it. Fresh ones cost microseconds: nothing is copied before a write."""

    def __init__(self, index: TableIndex, store: Store | None = None) -> None:
        self._index = index
        self.store = store or Store(index.tables)

    def __deepcopy__(self, memo: dict[int, Any]) -> TauWorld:
        return TauWorld(self._index, self.store.__deepcopy__(memo))

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Runs a tool; the value is a copy, so that nobody can change the database through it."""
        if name not in READS and name not in WRITES:
            raise ToolError(f"There is no tool '{name}'.")
        return copied(getattr(self, name)(**arguments))

    def snapshot(self) -> Replaced:
        return self.store.snapshot()

    def restore(self, snapshot: Replaced) -> None:
        self.store.restore(snapshot)

    def state_hash(self) -> str:
        return self.store.state_hash()

    def close(self) -> None:
        """Nothing is held."""

    # -- what is looked up -------------------------------------------------------------------------------------------

    def _get(self, table: str, key: str) -> Record:
        if (record := self.store.get(table, key)) is None:
            raise ToolError(f"There is no {table.removesuffix('s')} '{key}'.")
        return record

    def _order(self, order_id: str, status: str) -> Record:
        """The order, if its status is exactly this one."""
        order = self._get("orders", order_id)
        if order["status"] != status:
            raise ToolError(f"Order '{order_id}' is '{order['status']}'; this needs a {status} order.")
        return order

    def _method(self, order: Record, payment_method_id: str) -> Record:
        """A payment method of the order's owner."""
        methods = self._get("users", order["user_id"])["payment_methods"]
        if payment_method_id not in methods:
            raise ToolError(f"The owner of the order has no payment method '{payment_method_id}'.")
        return methods[payment_method_id]

    @staticmethod
    def _has_items(order: Record, item_ids: Sequence[str]) -> None:
        if missing := Counter(item_ids) - Counter(item["item_id"] for item in order["items"]):
            raise ToolError(f"Order '{order['order_id']}' does not hold: {', '.join(sorted(missing.elements()))}.")

    def _swap(self, order: Record, old_ids: Sequence[str], new_ids: Sequence[str]) -> tuple[list[Record], float]:
        """The variants that are to replace the items, and the difference of the prices (positive: to pay)."""
        self._has_items(order, old_ids)
        if len(old_ids) != len(new_ids):
            raise ToolError(f"{len(old_ids)} items are to go and {len(new_ids)} to come; the numbers must be equal.")
        variants, difference = [], 0.0
        for old_id, new_id in zip(old_ids, new_ids, strict=True):
            item = next(entry for entry in order["items"] if entry["item_id"] == old_id)
            if (variant := self._get("products", item["product_id"])["variants"].get(new_id)) is None:
                raise ToolError(f"Item '{new_id}' is not of the same product as '{old_id}'.")
            if not variant["available"]:
                raise ToolError(f"Item '{new_id}' is not available.")
            variants.append(variant)
            difference += variant["price"] - item["price"]
        return variants, difference

    @staticmethod
    def _covers(method: Record, amount: float) -> None:
        if method["source"] == GIFT_CARD and method["balance"] < amount:
            raise ToolError(f"Gift card '{method['id']}' holds {method['balance']}, less than {round(amount, 2)}.")

    def _book(self, user_id: str, payments: Sequence[tuple[str, float]]) -> None:
        """Moves the balances of gift cards by the amounts; other methods settle outside the database."""
        for payment_method_id, amount in payments:
            methods = self._get("users", user_id)["payment_methods"]
            if (card := methods[payment_method_id])["source"] == GIFT_CARD:
                booked = {**card, "balance": round(card["balance"] + amount, 2)}
                self.store.change("users", user_id, payment_methods={**methods, payment_method_id: booked})

    # -- tools that read ---------------------------------------------------------------------------------------------

    def calculate(self, expression: str) -> float:
        return round(evaluate(expression, float), 2)

    def think(self, thought: str) -> str:
        return ""

    def transfer_to_human_agents(self, summary: str) -> str:
        return "A human agent takes over."

    def find_user_id_by_email(self, email: str) -> str:
        if (user_id := self._index.by_email.get(email.casefold())) is None:
            raise ToolError(f"No user has the email '{email}'.")
        return user_id

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        for key in self._index.by_name.get((first_name.casefold(), last_name.casefold()), ()):
            if self._get("users", key)["address"]["zip"] == zip:
                return key
        raise ToolError(f"No user is called {first_name} {last_name} with the zip code '{zip}'.")

    def get_user_details(self, user_id: str) -> Record:
        return self._get("users", user_id)

    def get_order_details(self, order_id: str) -> Record:
        return self._get("orders", order_id)

    def get_product_details(self, product_id: str) -> Record:
        return self._get("products", product_id)

    def list_all_product_types(self) -> dict[str, str]:
        return self._index.products

    # -- tools that write --------------------------------------------------------------------------------------------

    def modify_user_address(self, user_id: str, **address: str) -> Record:
        self._get("users", user_id)
        return self.store.change("users", user_id, address={key: address[key] for key in ADDRESS})

    def modify_pending_order_address(self, order_id: str, **address: str) -> Record:
        self._order(order_id, "pending")
        return self.store.change("orders", order_id, address={key: address[key] for key in ADDRESS})

    def cancel_pending_order(self, order_id: str, reason: str) -> Record:
        order = self._order(order_id, "pending")
        if reason not in REASONS:
            raise ToolError(f"'{reason}' is no reason for a cancellation. Reasons: {', '.join(REASONS)}.")
        paid = [(entry["payment_method_id"], entry["amount"]) for entry in order["payment_history"]]
        self._book(order["user_id"], paid)
        history = [*order["payment_history"], *(_entry("refund", amount, method) for method, amount in paid)]
        return self.store.change("orders", order_id, status="cancelled", payment_history=history, cancel_reason=reason)

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Record:
        order = self._order(order_id, "pending")
        method = self._method(order, payment_method_id)
        history = order["payment_history"]
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise ToolError(f"Order '{order_id}' has not exactly one payment; its payment cannot be changed.")
        former, amount = history[0]["payment_method_id"], history[0]["amount"]
        if former == payment_method_id:
            raise ToolError(f"Order '{order_id}' is already paid with '{payment_method_id}'.")
        self._covers(method, amount)
        self._book(order["user_id"], [(payment_method_id, -amount), (former, amount)])
        history = [*history, _entry("payment", amount, payment_method_id), _entry("refund", amount, former)]
        return self.store.change("orders", order_id, payment_history=history)

    def modify_pending_order_items(
        self, order_id: str, item_ids: Sequence[str], new_item_ids: Sequence[str], payment_method_id: str
    ) -> Record:
        order = self._order(order_id, "pending")
        variants, difference = self._swap(order, item_ids, new_item_ids)
        self._covers(self._method(order, payment_method_id), difference)
        items, waiting = list(order["items"]), list(range(len(order["items"])))
        for old_id, variant in zip(item_ids, variants, strict=True):
            place = next(i for i in waiting if items[i]["item_id"] == old_id)
            waiting.remove(place)
            items[place] = {**items[place], **{key: variant[key] for key in ("item_id", "price", "options")}}
        self._book(order["user_id"], [(payment_method_id, -difference)])
        paid = _entry("payment" if difference > 0 else "refund", abs(difference), payment_method_id)
        history = [*order["payment_history"], paid]
        return self.store.change(
            "orders", order_id, items=items, payment_history=history, status="pending (item modified)"
        )

    def return_delivered_order_items(self, order_id: str, item_ids: Sequence[str], payment_method_id: str) -> Record:
        order = self._order(order_id, "delivered")
        method = self._method(order, payment_method_id)
        if method["source"] != GIFT_CARD and payment_method_id != order["payment_history"][0]["payment_method_id"]:
            raise ToolError("The refund must go to the original payment method or to a gift card.")
        self._has_items(order, item_ids)
        changed = {"return_items": sorted(item_ids), "return_payment_method_id": payment_method_id}
        return self.store.change("orders", order_id, status="return requested", **changed)

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: Sequence[str], new_item_ids: Sequence[str], payment_method_id: str
    ) -> Record:
        order = self._order(order_id, "delivered")
        _, difference = self._swap(order, item_ids, new_item_ids)
        difference = round(difference, 2)
        self._covers(self._method(order, payment_method_id), difference)
        return self.store.change(
            "orders",
            order_id,
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=difference,
        )


def _entry(kind: str, amount: float, payment_method_id: str) -> Record:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": payment_method_id}
