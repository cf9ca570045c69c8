"""The tools, as typed functions on a state: seven that read, six that write, ``calculate`` and ``finish``.

Two more belong to the customer and exist in teams with a user-agent only. What a tool does not forbid may still be
against the policy.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from marft_envs import tables
from marft_envs.families.tools.arithmetic import evaluate
from marft_envs.families.tools.depot.rows import CITIES, ITEMS, TODAY
from marft_envs.families.tools.store import Record, Store
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
    role: frozenset(tools) for role, tools in tables.read(__package__, "depot")["roles"].items()
}
"""Role -> its tools, disjoint. ``finish`` belongs to none: the leader of the team has it."""
READS = ("find_customer", "get_customer", "list_orders", "get_order", "get_stock", "get_shipment", "get_refunds")
WRITES = ("cancel_order", "change_address", "ship_order", "add_stock", "refund_order", "record_case")
USER = ("confirm_address", "approve_refund")
HARMLESS = frozenset((*READS, "calculate", "finish"))
"""Tools that never change the state."""
IDEMPOTENT = frozenset((*HARMLESS, "cancel_order", "change_address", "ship_order", *USER))


class Desk:
    """The tools of one episode.

    Args:
        store: The state they work on.
        dual: True: a new city needs the customer's confirmation, and a refund the customer's approval.
    """

    def __init__(self, store: Store, dual: bool = False) -> None:
        self.store, self.dual = store, dual

    def find_customer(self, name: Word) -> list[dict[str, Any]]:
        """Find customers whose name contains this text (at most five)."""
        if not name.isascii():  # no name here has other characters
            return []
        rows = sorted(self.store.rows("customers").items())
        found = [{"customer": key, **row} for key, row in rows if name.lower() in row["name"].lower()]
        return found[:5]

    def get_customer(self, customer: CustomerId) -> dict[str, Any]:
        """Show a customer."""
        return {"customer": customer, **self._get("customers", customer, f"There is no customer {customer}.")}

    def list_orders(self, customer: CustomerId) -> list[dict[str, Any]]:
        """List a customer's orders."""
        rows = sorted(self.store.rows("orders").items())
        own = ((key, row) for key, row in rows if row["customer"] == customer)
        return [{"order": key, "item": row["item"], "status": row["status"]} for key, row in own]

    def get_order(self, order: OrderId) -> dict[str, Any]:
        """Show an order."""
        row = self._order(order)
        shown = {key: value for key, value in row.items() if value or key not in ("note", "confirmed", "approved")}
        return {"order": order, **shown, "paid": bool(row["paid"])}

    def get_stock(self, item: Word) -> dict[str, Any]:
        """Show an item and its stock."""
        left, row = self._left(item), self.store.tables["items"][item]
        return {"item": item, "sku": row["sku"], "stock": left, "price": row["price"], "final_sale": bool(row["final"])}

    def get_shipment(self, order: OrderId) -> dict[str, Any]:
        """Show an order's shipment."""
        row = self._get("shipments", order, f"Order {order} has no shipment.")
        return {
            "order": order,
            "code": row["code"],
            "city": row["city"],
            "sent": row["day"],
            "delivered": row["delivered"],
        }

    def get_refunds(self, order: OrderId) -> list[dict[str, Any]]:
        """List an order's refunds."""
        self._order(order)
        return [{"refund": key, "amount": row["amount"]} for key, row in self._about("refunds", order)]

    def cancel_order(self, order: OrderId) -> dict[str, Any]:
        """Cancel a pending order."""
        self._pending(order)
        self.store.change("orders", order, status="cancelled")
        return {"order": order, "status": "cancelled"}

    def change_address(self, order: OrderId, city: Word) -> dict[str, Any]:
        """Move a pending order to another city."""
        row = self._pending(order)
        self._city(city)
        if self.dual and row["confirmed"] != city:
            raise ToolError(f"The customer has not confirmed {city} for order {order}.")
        self.store.change("orders", order, city=city)
        return {"order": order, "city": city}

    def ship_order(self, order: OrderId, city: Word) -> dict[str, Any]:
        """Ship a pending order from stock to a city."""
        row = self._pending(order)
        self._city(city)
        item, quantity, left = row["item"], row["quantity"], self._left(row["item"])
        if left < quantity:
            raise ToolError(f"Order {order} needs {quantity} of {item}; stock is {left}.")
        self.store.change("stock", item, sent=self._stock(item)["sent"] + quantity)
        self.store.change("orders", order, status="shipped")
        self.store.change("shipments", order, city=city, code=1000 + order, day=TODAY, delivered=None)
        return {"order": order, "status": "shipped", "code": 1000 + order}

    def add_stock(self, item: Word, quantity: Quantity) -> dict[str, Any]:
        """Add to the stock of an item."""
        stock = self._stock(item)
        self.store.change("stock", item, received=stock["received"] + quantity)
        return {"item": item, "stock": self._left(item)}

    def refund_order(self, order: OrderId, amount: Amount) -> dict[str, Any]:
        """Refund an amount of an order."""
        row, earlier = self._order(order), self._about("refunds", order)
        most = row["total"] - sum(refund["amount"] for _, refund in earlier)
        if amount > most:
            raise ToolError(f"Order {order} can be refunded by {most} at most.")
        if len(earlier) >= 9:
            raise ToolError(f"Order {order} has nine refunds already.")
        if self.dual and row["approved"] != amount:
            raise ToolError(f"The customer has not approved a refund of {amount} for order {order}.")
        key = order * 10 + len(earlier) + 1
        self.store.change("refunds", key, order_id=order, amount=amount)
        return {"refund": key, "amount": amount}

    def record_case(
        self, order: OrderId, reason: Reason, evidence: Annotated[int, Field(ge=0, le=99999)] = 0
    ) -> dict[str, Any]:
        """Refuse or pass on what is asked for an order, with the reason and its evidence."""
        self._order(order)
        count = len(self._about("cases", order))
        if count >= 9:
            raise ToolError(f"Order {order} has nine cases already.")
        key = order * 10 + count + 1
        self.store.change("cases", key, order_id=order, reason=reason, evidence=evidence)
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
        self._order(order)
        self._city(city)
        self.store.change("orders", order, confirmed=city)
        return {"order": order, "confirmed": city}

    def approve_refund(self, order: OrderId, amount: Amount) -> dict[str, Any]:
        """Approve the amount of a refund (the customer's)."""
        self._order(order)
        self.store.change("orders", order, approved=amount)
        return {"order": order, "approved": amount}

    def _get(self, table: str, key: Any, missing: str) -> Record:
        if (row := self.store.get(table, key)) is None:
            raise ToolError(missing)
        return row

    def _order(self, order: int) -> Record:
        return self._get("orders", order, f"There is no order {order}.")

    def _pending(self, order: int) -> Record:
        row = self._order(order)
        if row["status"] != "pending":
            raise ToolError(f"Order {order} is {row['status']}, not pending.")
        return row

    def _about(self, table: str, order: int) -> list[tuple[int, Record]]:
        """The rows about an order, with their ids."""
        return sorted((key, row) for key, row in self.store.rows(table).items() if row["order_id"] == order)

    def _stock(self, item: str) -> Record:
        return self._get("stock", item, f"There is no such item. Items: {', '.join(ITEMS)}.")

    def _left(self, item: str) -> int:
        stock = self._stock(item)
        return int(stock["received"] - stock["sent"])

    def _city(self, city: str) -> None:
        if city not in CITIES:
            raise ToolError(f"The depot does not deliver there. Cities: {', '.join(CITIES)}.")
