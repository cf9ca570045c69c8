"""Tasks made from nothing: ``depot/<level>/<seed>`` names the same task for ever.

* Level 0: staff ask for one write, in a few words, with every argument given.
* Level 1: a customer asks for something that takes one write; what it takes has to be looked up.
* Level 2: one request, two writes that belong together.
* Level 3: one request must be refused, with the evidence; often another one is to be carried out beside it.
* Level 4: two or three requests; in two thirds of the tasks a tool that one of them needs does not exist.
* Level 5: three or more requests that take exactly six writes, by all three roles.

What a request takes is decided by ``policy.decide`` on the rows, not by its generator.
Train and test are disjoint by content: the SHA-256 of the text decides (a quarter is test).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from marft_envs import tables
from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import DataError
from marft_envs.families.tools.depot.desk import ROLES
from marft_envs.families.tools.depot.policy import CustomerRequest, Decision, Kind, call, decide
from marft_envs.families.tools.depot.rows import CITIES, ITEMS, DepotBase, Tables, base
from marft_envs.families.tools.types import ToolProblem
from marft_envs.problems.dice import Dice
from marft_envs.problems.generators import SPLITS, by_split, split_of
from marft_envs.problems.stored import stored

LEVELS = (0, 1, 2, 3, 4, 5)
BASES = 40
"""Bases that tasks are spread over."""
LISTED = 1400
"""Distinct tasks of a level, both splits together."""
LEVEL0_SHARE = 330
"""At most so many tasks of level 0 use one tool: there are more texts about some tools than about others."""
_TRIES = 400
REFUSALS = ("not_owner", "not_pending", "not_delivered", "refunded", "final_sale", "too_late", "over_limit")


@dataclass(frozen=True)
class TaskPlan:
    """What a task is made of; the secret of its problem."""

    base: int
    reads: tuple[ToolCall, ...]
    writes: tuple[ToolCall, ...]
    reasons: tuple[str, ...] = ()
    """Reasons of the cases that are to be recorded."""


@dataclass(frozen=True)
class Asked:
    """A request with what the policy calls for."""

    request: CustomerRequest
    decision: Decision


_WORDS: dict[Kind, list[str]] = tables.read(__package__, "depot")["requests"]


def _level0(dice: Dice, start: DepotBase) -> tuple[str, ToolCall]:
    orders = {key: row for key, row in start.rows["orders"].items() if row["customer"] in start.core}
    by_status = {
        status: sorted(key for key, row in orders.items() if row["status"] == status)
        for status in ("pending", "delivered")
    }
    kind = dice.below(6)
    if kind == 0:
        order = dice.choice(by_status["pending"])
        return f"Cancel order {order}.", call("cancel_order", order=order)
    if kind == 1:
        order = dice.choice(by_status["pending"])
        city = dice.choice([city for city in CITIES if city != orders[order]["city"]])
        return f"Move order {order} to {city}.", call("change_address", order=order, city=city)
    if kind == 2:
        enough = [o for o in by_status["pending"] if orders[o]["quantity"] <= _left(start.rows, orders[o]["item"])]
        order = dice.choice(enough)
        city = orders[order]["city"]
        return f"Ship order {order} to {city}.", call("ship_order", order=order, city=city)
    if kind == 3:
        item, quantity = dice.choice(ITEMS), dice.integer(1, 30)
        return f"Add {quantity} to stock of {item}.", call("add_stock", item=item, quantity=quantity)
    if kind == 4:
        refunded = {row["order_id"] for row in start.rows["refunds"].values()}
        order = dice.choice([order for order in by_status["delivered"] if order not in refunded])
        amount = dice.integer(1, min(orders[order]["total"], 99))
        return f"Refund {amount} for order {order}.", call("refund_order", order=order, amount=amount)
    order = dice.choice(sorted(orders))
    return f"Record order {order} for review.", call("record_case", order=order, reason="review")


def _left(rows: Tables, item: str) -> int:
    stock = rows["stock"][item]
    return int(stock["received"] - stock["sent"])


class _Writer:
    """Writes the tasks of one seed above level 0."""

    def __init__(self, dice: Dice, start: DepotBase) -> None:
        self.dice, self.start, self.rows = dice, start, start.rows

    def options(self, asker: int) -> list[CustomerRequest]:
        """Every sensible request of a customer for an own order, in random order."""
        home = self.rows["customers"][asker]["city"]
        own = [(order, row) for order, row in sorted(self.rows["orders"].items()) if row["customer"] == asker]
        requests = [self._request(kind, order, home) for order, row in own for kind in self._kinds(row["status"])]
        return self.dice.sample(requests, len(requests))

    def foreign(self, asker: int) -> list[CustomerRequest]:
        """Requests for pending orders of others, one a customer."""
        home = self.rows["customers"][asker]["city"]
        requests = []
        for other in self.start.core:
            theirs = sorted(key for key, row in self.rows["orders"].items() if row["customer"] == other != asker)
            if pending := [key for key in theirs if self.rows["orders"][key]["status"] == "pending"]:
                kind = self.dice.choice(self._kinds("pending"))
                requests.append(replace(self._request(kind, self.dice.choice(pending), home), by_id=True))
        return self.dice.sample(requests, len(requests))

    def _kinds(self, status: str) -> tuple[Kind, ...]:
        if status == "pending":
            return ("cancel", "move", "ship", "move_ship")
        return ("cancel", "move", "return") if status == "shipped" else ("return", "damaged")

    def _request(self, kind: Kind, order: int, home: str) -> CustomerRequest:
        by_id = self.dice.below(3) == 0
        if kind not in ("move", "move_ship"):
            return CustomerRequest(kind, order, by_id=by_id)
        now = self.rows["orders"][order]["city"]
        if now != home and self.dice.below(2):
            return CustomerRequest(kind, order, home, by_id, home=True)
        return CustomerRequest(kind, order, self.dice.choice([c for c in CITIES if c not in (now, home)]), by_id)

    def judged(
        self, asker: int, requests: Sequence[CustomerRequest], withheld: frozenset[str] = frozenset()
    ) -> list[Asked]:
        """The requests with what each calls for."""
        return [_judged(self.start.key[0], asker, request, withheld) for request in requests]

    def customers(self) -> Iterator[int]:
        """The customers, each time in a new order; gives up after many."""
        for _ in range(_TRIES):
            yield from self.dice.sample(self.start.core, len(self.start.core))
        raise AssertionError("no task fits this base; bases hold every case, so this is a defect")

    def one(self, writes: int) -> tuple[int, list[Asked], frozenset[str]]:
        """Levels 1 and 2."""
        for asker in self.customers():
            # The kind is drawn before the order: there are more ways to ask for some kinds than for others.
            options = self.judged(asker, self.options(asker))
            if fits := [o for o in options if not o.decision.reason and len(o.decision.writes) == writes]:
                kind = self.dice.choice(sorted({option.request.kind for option in fits}))
                return asker, [next(o for o in fits if o.request.kind == kind)], frozenset()
        raise AssertionError

    def refusal(self) -> tuple[int, list[Asked], frozenset[str]]:
        """Level 3."""
        reason = self.dice.choice(REFUSALS)
        for asker in self.customers():
            own_requests = self.options(asker)
            options = self.judged(asker, self.foreign(asker) if reason == "not_owner" else own_requests)
            chosen = [option for option in options if option.decision.reason == reason][:1]
            if chosen:
                if self.dice.below(3):
                    chosen += [o for o in self.judged(asker, own_requests) if self._beside(o, chosen, 2)][:1]
                return asker, self.dice.sample(chosen, len(chosen)), frozenset()
        raise AssertionError

    def missing(self) -> tuple[int, list[Asked], frozenset[str]]:
        """Level 4."""
        wanted, without = self.dice.integer(3, 4), self.dice.below(3) > 0
        for asker in self.customers():
            own_requests = self.options(asker)
            options = [option for option in self.judged(asker, own_requests) if not option.decision.reason]
            first = options[0]
            gone = frozenset([self.dice.choice(first.decision.writes).name]) if without else frozenset()
            chosen = self.judged(asker, [first.request], gone)
            self._fill(chosen, self.judged(asker, own_requests, gone), wanted)
            if _count(chosen) == wanted and len(chosen) <= 3:
                return asker, self.dice.sample(chosen, len(chosen)), gone
        raise AssertionError

    def six(self) -> tuple[int, list[Asked], frozenset[str]]:
        """Level 5."""
        for asker in self.customers():
            chosen: list[Asked] = []
            if self.dice.below(2):
                refusals = self.judged(asker, [*self.foreign(asker), *self.options(asker)])
                chosen = self.dice.sample([o for o in refusals if o.decision.reason], 1)
            self._fill(chosen, self.judged(asker, self.options(asker)), 6)
            used = {write.name for option in chosen for write in option.decision.writes}
            if _count(chosen) == 6 and len(chosen) >= 3 and all(used & tools for tools in ROLES.values()):
                return asker, self.dice.sample(chosen, len(chosen)), frozenset()
        raise AssertionError

    def _fill(self, chosen: list[Asked], options: Sequence[Asked], writes: int) -> None:
        """Chooses options as long as there are no more writes than these."""
        for option in options:
            if self._beside(option, chosen, writes - _count(chosen)):
                chosen.append(option)

    @staticmethod
    def _beside(option: Asked, chosen: Sequence[Asked], most: int) -> bool:
        """Whether an option is to be carried out, with at most so many writes, on an order not yet chosen."""
        fresh = all(option.request.order != other.request.order for other in chosen)
        return fresh and not option.decision.reason and len(option.decision.writes) <= most

    def text(self, asker: int, chosen: Sequence[Asked], named: bool) -> str:
        """What the customer says."""
        wishes = []
        for option in chosen:
            request = option.request
            item = self.rows["orders"][request.order]["item"]
            ref = f"order {request.order}" if request.by_id else f"my {item} order"
            words = self.dice.choice(_WORDS[request.kind])
            wishes.append(words.format(ref=ref, city="my home city" if request.home else request.city))
        who = self.rows["customers"][asker]["name"] if named else f"Customer {asker}"
        return f"{who}: {'; '.join(wishes)}."

    def reads(self, asker: int, chosen: Sequence[Asked], named: bool) -> list[ToolCall]:
        """What cannot be known without looking it up; each once."""
        calls = [call("find_customer", name=self.rows["customers"][asker]["name"])] if named else []
        if not named and any(option.request.home and not option.decision.reason for option in chosen):
            calls.append(call("get_customer", customer=asker))
        if any(not option.request.by_id for option in chosen):
            calls.append(call("list_orders", customer=asker))
        for option in chosen:
            if _needs_row(option):
                calls.append(call("get_order", order=option.request.order))
            calls += option.decision.reads
        return calls


@lru_cache(maxsize=2**16)  # a level's tasks share bases, and so most of what could be asked
def _judged(number: int, asker: int, request: CustomerRequest, withheld: frozenset[str]) -> Asked:
    return Asked(request, decide(base(number).rows, asker, request, withheld))


def _count(chosen: Sequence[Asked]) -> int:
    return sum(len(option.decision.writes) for option in chosen)


def _needs_row(option: Asked) -> bool:
    """Whether the order's own row has to be read: the list of a customer's orders shows only item and status."""
    request, decision = option.request, option.decision
    if request.by_id:
        return True
    if decision.reason == "no_tool":
        return decision.row
    return request.kind != "move" and decision.reason in ("", "over_limit")


@lru_cache(maxsize=16384)
def build(level: int, seed: int) -> ToolProblem:
    """The task of one seed. Same arguments, same task, in every process; the domain's options never change it."""
    dice = Dice(f"depot/{level}", seed)
    number = dice.below(BASES)
    start = base(number)
    name = f"depot/{level}/{seed}"
    if level == 0:
        text, write = _level0(dice, start)
        return ToolProblem(name, (text,), 1, 0, secret=TaskPlan(number, (), (write,)))
    writer = _Writer(dice, start)
    make: Callable[[], tuple[int, list[Asked], frozenset[str]]]
    make = {
        1: lambda: writer.one(1), 2: lambda: writer.one(2), 3: writer.refusal, 4: writer.missing, 5: writer.six
    }[level]  # fmt: skip
    asker, chosen, withheld = make()
    named = dice.below(2) == 0
    text = writer.text(asker, chosen, named)
    reads = tuple(writer.reads(asker, chosen, named))
    writes = tuple(write for option in chosen for write in option.decision.writes)
    reasons = tuple(option.decision.reason for option in chosen if option.decision.reason)
    plan = TaskPlan(number, reads, writes, reasons)
    return ToolProblem(name, (text,), len(reads) + len(writes), level, (withheld,) if withheld else (), secret=plan)


def parse(problem_id: str) -> tuple[int, int]:
    """Returns level and seed of an id.

    Raises:
        DataError: It is not the id of a task of the depot.
    """
    parts = problem_id.split("/")
    if len(parts) == 3 and parts[0] == "depot" and parts[1].isdecimal() and parts[2].isdecimal():
        level, seed = int(parts[1]), int(parts[2])
        if level in LEVELS and seed < 2**32:
            return level, seed
    raise DataError(
        f"'{problem_id}' is not the id of a task of the depot. Expected depot/<level>/<seed> with a level from 0 to 5 "
        "and a seed below 2**32, e.g. depot/0/7."
    )


def seeds(level: int, split: str) -> list[int]:
    """The seeds of a level's tasks in a split."""
    found = stored(f"{__name__}.{level}", lambda: by_split(listed(level), lambda problem: split_of(problem.turns[0])))
    return found[split]


def listed(level: int) -> list[ToolProblem]:
    """The tasks of a level: the first, in order, whose texts were not seen before."""
    firsts: dict[str, ToolProblem] = {}
    used: Counter[str] = Counter()
    for seed in range(50 * LISTED):
        problem = build(level, seed)
        text, tool = problem.turns[0], problem.secret.writes[0].name
        if text in firsts or (level == 0 and used[tool] == LEVEL0_SHARE):
            continue
        firsts[text] = problem
        used[tool] += 1
        if len(firsts) == LISTED:
            break
    return list(firsts.values())


__all__ = ["BASES", "LEVELS", "LISTED", "REFUSALS", "SPLITS", "TaskPlan", "build", "listed", "parse", "seeds"]
