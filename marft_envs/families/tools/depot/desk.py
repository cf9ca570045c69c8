"""The tools, as typed functions on a state: seven that read, six that write, ``calculate`` and ``finish``.

Two more belong to the customer and exist in teams with a user-agent only. What a tool does not forbid may still be
against the policy.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from marft_envs.families.tools.arithmetic import evaluate
from marft_envs.families.tools.depot.rows import CITIES, ITEMS, TODAY
from marft_envs.families.tools.depot.state import DepotStore
from marft_envs.families.tools.types import ToolError

OrderId = Annotated[int, Field(ge=1, le=9999)]
CustomerId = Annotated[int, Field(ge=1, le=9999)]
Amount = Annotated[int, Field(ge=1, le=99999)]
Quantity = Annotated[int, Field(ge=1, le=999)]
Word = Annotated[str, Field(max_length=60)]
Reason = Literal[
    "not_owner", "not_pending", "not_delivered", "refunded", "final_sale", "too_late", "over_limit", "no_tool", "review"
]

ROLES: dict[str, frozenset[str]] = {
    "orders": frozenset(
        ("find_customer", "get_customer", "list_orders", "get_order", "cancel_order", "change_address")
    ),
    "shipping": frozenset(("get_stock", "get_shipment", "ship_order", "add_stock")),
    "refunds": frozenset(("get_refunds", "calculate", "refund_order", "record_case")),
}
"""Role -> its tools, disjoint. ``finish`` belongs to none: whoever leads the team has it."""
READS = ("find_customer", "get_customer", "list_orders", "get_order", "get_stock", "get_shipment", "get_refunds")
WRITES = ("cancel_order", "change_address", "ship_order", "add_stock", "refund_order", "record_case")
USER = ("confirm_address", "approve_refund")
HARMLESS = frozenset((*READS, "calculate", "finish"))
"""Tools that never change the state."""
IDEMPOTENT = frozenset((*HARMLESS, "cancel_order", "change_address", "ship_order", *USER))

_ORDER = ("customer", "item", "quantity", "total", "paid", "status", "city", "note", "confirmed", "approved")
_SHOWN = f"select {', '.join(_ORDER)} from orders where id = ?"
_STATUS = "select status, confirmed from orders where id = ?"
_TO_SHIP = (
    "select status, item, quantity, received - sent, sent from orders join stock on stock.id = item where orders.id = ?"
)
_PAID_BACK = """select total, approved, count(refunds.id), coalesce(sum(amount), 0)
    from orders left join refunds on order_id = orders.id where orders.id = ? group by orders.id"""
_CASES = """select count(cases.id)
    from orders left join cases on order_id = orders.id where orders.id = ? group by orders.id"""
_REFUNDS = """select refunds.id, amount
    from orders left join refunds on order_id = orders.id where orders.id = ? order by refunds.id"""


class Desk:
    """The tools of one episode.

    Args:
        store: The state they work on.
        dual: True: a new city needs the customer's confirmation, and a refund the customer's approval.
    """

    def __init__(self, store: DepotStore, dual: bool = False) -> None:
        self.store, self.dual = store, dual

    def _of_order(self, query: str, order: int) -> list[tuple[Any, ...]]:
        """The rows of a query that has some exactly if there is the order."""
        rows = self.store.select(query, order)
        if not rows:
            raise ToolError(f"There is no order {order}.")
        return rows

    def find_customer(self, name: Word) -> list[dict[str, Any]]:
        """Find customers whose name contains this text (at most five)."""
        if not name.isascii():  # no name here has other characters
            return []
        query = "select id, name, city from customers where instr(lower(name), ?) > 0 order by id limit 5"
        rows = self.store.select(query, name.lower())
        return [{"customer": key, "name": full_name, "city": city} for key, full_name, city in rows]

    def get_customer(self, customer: CustomerId) -> dict[str, Any]:
        """Show a customer."""
        rows = self.store.select("select name, city from customers where id = ?", customer)
        if not rows:
            raise ToolError(f"There is no customer {customer}.")
        return {"customer": customer, "name": rows[0][0], "city": rows[0][1]}

    def list_orders(self, customer: CustomerId) -> list[dict[str, Any]]:
        """List a customer's orders."""
        rows = self.store.select("select id, item, status from orders where customer = ? order by id", customer)
        return [{"order": key, "item": item, "status": status} for key, item, status in rows]

    def get_order(self, order: OrderId) -> dict[str, Any]:
        """Show an order."""
        row = dict(zip(_ORDER, self._of_order(_SHOWN, order)[0], strict=True))
        row["paid"] = bool(row["paid"])
        for name in ("note", "confirmed", "approved"):
            if not row[name]:
                del row[name]
        return {"order": order, **row}

    def get_stock(self, item: Word) -> dict[str, Any]:
        """Show an item and its stock."""
        self._item(item)
        query = "select sku, price, final, received - sent from items join stock using (id) where id = ?"
        [(sku, price, final, stock)] = self.store.select(query, item)
        return {"item": item, "sku": sku, "stock": stock, "price": price, "final_sale": bool(final)}

    def get_shipment(self, order: OrderId) -> dict[str, Any]:
        """Show an order's shipment."""
        rows = self.store.select("select code, city, day, delivered from shipments where id = ?", order)
        if not rows:
            raise ToolError(f"Order {order} has no shipment.")
        code, city, day, delivered = rows[0]
        return {"order": order, "code": code, "city": city, "sent": day, "delivered": delivered}

    def get_refunds(self, order: OrderId) -> list[dict[str, Any]]:
        """List an order's refunds."""
        rows = self._of_order(_REFUNDS, order)
        return [{"refund": key, "amount": amount} for key, amount in rows if key is not None]

    def cancel_order(self, order: OrderId) -> dict[str, Any]:
        """Cancel a pending order."""
        self._pending(_STATUS, order)
        self.store.update("orders", order, "status", "cancelled")
        return {"order": order, "status": "cancelled"}

    def change_address(self, order: OrderId, city: Word) -> dict[str, Any]:
        """Move a pending order to another city."""
        _, confirmed = self._pending(_STATUS, order)
        self._city(city)
        if self.dual and confirmed != city:
            raise ToolError(f"The customer has not confirmed {city} for order {order}.")
        self.store.update("orders", order, "city", city)
        return {"order": order, "city": city}

    def ship_order(self, order: OrderId, city: Word) -> dict[str, Any]:
        """Ship a pending order from stock to a city."""
        _, item, quantity, left, sent = self._pending(_TO_SHIP, order)
        self._city(city)
        if left < quantity:
            raise ToolError(f"Order {order} needs {quantity} of {item}; stock is {left}.")
        self.store.update("stock", item, "sent", sent + quantity)
        self.store.update("orders", order, "status", "shipped")
        shipment = {"city": city, "code": 1000 + order, "day": TODAY, "delivered": None}
        self.store.insert("shipments", order, shipment)
        return {"order": order, "status": "shipped", "code": shipment["code"]}

    def add_stock(self, item: Word, quantity: Quantity) -> dict[str, Any]:
        """Add to the stock of an item."""
        self._item(item)
        [(received, sent)] = self.store.select("select received, sent from stock where id = ?", item)
        self.store.update("stock", item, "received", received + quantity)
        return {"item": item, "stock": received + quantity - sent}

    def refund_order(self, order: OrderId, amount: Amount) -> dict[str, Any]:
        """Refund an amount of an order."""
        [(total, approved, count, before)] = self._of_order(_PAID_BACK, order)
        if amount > total - before:
            raise ToolError(f"Order {order} can be refunded by {total - before} at most.")
        if count >= 9:
            raise ToolError(f"Order {order} has nine refunds already.")
        if self.dual and approved != amount:
            raise ToolError(f"The customer has not approved a refund of {amount} for order {order}.")
        key = order * 10 + count + 1
        self.store.insert("refunds", key, {"order_id": order, "amount": amount})
        return {"refund": key, "amount": amount}

    def record_case(
        self, order: OrderId, reason: Reason, evidence: Annotated[int, Field(ge=0, le=99999)] = 0
    ) -> dict[str, Any]:
        """Refuse or pass on what is asked for an order, with the reason and its evidence."""
        [(count,)] = self._of_order(_CASES, order)
        if count >= 9:
            raise ToolError(f"Order {order} has nine cases already.")
        key = order * 10 + count + 1
        self.store.insert("cases", key, {"order_id": order, "reason": reason, "evidence": evidence})
        return {"case": key}

    def calculate(self, expression: Annotated[str, Field(max_length=100)]) -> int | float:
        """Work out an expression with + - * / and parentheses."""
        value = round(evaluate(expression, Fraction), 6)
        return int(value) if value.denominator == 1 else float(value)

    def finish(self, message: Annotated[str, Field(max_length=1000)] = "") -> dict[str, Any]:
        """End the work on the request."""
        return {"finished": True}  # what it ends is the user's turn, which the environment keeps

    def confirm_address(self, order: OrderId, city: Word) -> dict[str, Any]:
        """Confirm the new city of an order (the customer's)."""
        self._of_order(_STATUS, order)
        self._city(city)
        self.store.update("orders", order, "confirmed", city)
        return {"order": order, "confirmed": city}

    def approve_refund(self, order: OrderId, amount: Amount) -> dict[str, Any]:
        """Approve the amount of a refund (the customer's)."""
        self._of_order(_STATUS, order)
        self.store.update("orders", order, "approved", amount)
        return {"order": order, "approved": amount}

    def _pending(self, query: str, order: int) -> tuple[Any, ...]:
        """What a query that begins with the status shows of a pending order."""
        [row] = self._of_order(query, order)
        if row[0] != "pending":
            raise ToolError(f"Order {order} is {row[0]}, not pending.")
        return row

    def _item(self, item: str) -> None:
        if item not in ITEMS:
            raise ToolError(f"There is no such item. Items: {', '.join(ITEMS)}.")

    def _city(self, city: str) -> None:
        if city not in CITIES:
            raise ToolError(f"The depot does not deliver there. Cities: {', '.join(CITIES)}.")
