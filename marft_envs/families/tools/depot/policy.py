"""The policy: as the text that agents are shown, and as the code that says what each request calls for.

The tools enforce only a part of it. The rest an agent can break, and then the state is not the one wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from marft_envs import tables
from marft_envs.call_formats.call import ToolCall
from marft_envs.families.tools.depot.rows import TODAY, Row, Tables

Kind = Literal["cancel", "move", "ship", "move_ship", "return", "damaged"]
LIMIT = 400
"""Dollars of a refund that needs no supervisor."""
FULL_DAYS, HALF_DAYS = 30, 60
"""Days after delivery within which a return is refunded in full, and by half."""

_TABLE = tables.read(__package__, "depot")
TEXT: str = _TABLE["policy"].format(TODAY=TODAY, FULL_DAYS=FULL_DAYS, HALF_DAYS=HALF_DAYS, LIMIT=LIMIT)
DUAL_TEXT: str = _TABLE["dual_policy"]


@dataclass(frozen=True)
class CustomerRequest:
    """What a customer wants for one order."""

    kind: Kind
    order: int
    city: str = ""
    """Where to, for ``move`` and ``move_ship``."""
    by_id: bool = True
    """False: the order is named by its item."""
    home: bool = False
    """True: the city is named as the customer's home."""


@dataclass
class Decision:
    """What one request calls for."""

    writes: list[ToolCall]
    reason: str = ""
    """Why the request is refused or passed on; empty if it is carried out."""
    reads: list[ToolCall] = field(default_factory=list)
    """What one has to look up to know it, beside the order's own row."""
    row: bool = True
    """Whether it takes the order's own row."""


def case(order: int, reason: str, evidence: int) -> ToolCall:
    """Returns the call that refuses or passes on."""
    return ToolCall("record_case", {"order": order, "reason": reason, "evidence": evidence})


def call(tool: str, /, **arguments: Any) -> ToolCall:
    """Returns a call, written like a Python call."""
    return ToolCall(tool, arguments)


def decide(rows: Tables, asker: int, request: CustomerRequest, withheld: frozenset[str] = frozenset()) -> Decision:
    """Says what the policy calls for.

    Args:
        rows: The state; requests for different orders and items do not touch each other.
        asker: Who asks.
        request: What for.
        withheld: Tools that do not exist in this episode.
    """
    order, row = request.order, rows["orders"][request.order]
    if row["customer"] != asker:
        return Decision([case(order, "not_owner", row["customer"])], "not_owner")
    if request.kind in ("return", "damaged"):
        decision = _refund(rows, request, row)
    elif row["status"] != "pending":
        code = rows["shipments"][order]["code"]
        decision = Decision([case(order, "not_pending", code)], "not_pending", [call("get_shipment", order=order)])
    else:
        decision = _pending(rows, request, row)
    gone = withheld & {write.name for write in decision.writes}
    if decision.reason or not gone:
        return decision
    # What a request always takes is known to be missing before anything is read.
    at_once = request.kind not in ("return", "damaged") and gone & {"cancel_order", "change_address", "ship_order"}
    return Decision([case(order, "no_tool", 0)], "no_tool", [] if at_once else decision.reads, not at_once)


def _pending(rows: Tables, request: CustomerRequest, row: Row) -> Decision:
    order = request.order
    if request.kind == "cancel":
        refund = [call("refund_order", order=order, amount=row["total"])] if row["paid"] else []
        return Decision([call("cancel_order", order=order), *refund])
    writes = []
    if request.kind in ("move", "move_ship"):
        writes.append(call("change_address", order=order, city=request.city))
    if request.kind == "move":
        return Decision(writes)
    stock = rows["stock"][row["item"]]
    missing = row["quantity"] - (stock["received"] - stock["sent"])
    if missing > 0:
        writes.append(call("add_stock", item=row["item"], quantity=missing))
    writes.append(call("ship_order", order=order, city=request.city or row["city"]))
    return Decision(writes, "", [call("get_stock", item=row["item"])])


def _refund(rows: Tables, request: CustomerRequest, row: Row) -> Decision:
    """Checks in the order of the policy's reasons, so that the reads are those up to the first that holds."""
    order, returned = request.order, request.kind == "return"
    reads: list[ToolCall] = []

    def refuse(reason: str, evidence: int) -> Decision:
        return Decision([case(order, reason, evidence)], reason, reads)

    reads.append(call("get_shipment", order=order))
    if row["status"] != "delivered":
        return refuse("not_delivered", rows["shipments"][order]["code"])
    before: Iterator[int] = (key for key, refund in rows["refunds"].items() if refund["order_id"] == order)
    earlier = next(before, None)
    reads[:] = [call("get_refunds", order=order)]
    if earlier is not None:
        return refuse("refunded", earlier)
    if returned:
        reads.append(call("get_stock", item=row["item"]))
        if rows["items"][row["item"]]["final"]:
            return refuse("final_sale", rows["items"][row["item"]]["sku"])
    reads.append(call("get_shipment", order=order))
    delivered = rows["shipments"][order]["delivered"]
    age = TODAY - delivered
    if age > HALF_DAYS:
        return refuse("too_late", delivered)
    amount = row["total"] // 2 if returned and age > FULL_DAYS else row["total"]
    if amount > LIMIT:
        return refuse("over_limit", amount)
    writes = [call("refund_order", order=order, amount=amount)]
    if returned:
        writes.append(call("add_stock", item=row["item"], quantity=row["quantity"]))
    return Decision(writes, "", reads)
