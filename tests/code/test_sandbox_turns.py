"""The queue before the sandbox's workers: short runs do not wait for long ones, and nobody is overtaken for ever."""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
import threading
import time

import pytest

from marft_envs.sandbox import Call, Limits, Sandbox, layers
from marft_envs.workers.pool import LOOKS, Ticket, Turns

HELD = [layer for layer in layers.LOCAL if not layers.check(layer)]
needs_layer = pytest.mark.skipif(not HELD, reason="no sandbox layer holds here; see python -m marft_envs.sandbox")


def simulate(workers: int, clients: int, demands: list[float]) -> list[float]:
    """Plays the queue with clients that hand in one run after the other, in a time of its own.

    Args:
        workers: Regular slots.
        clients: Who hand in; each waits for its run before it takes the next of the list.
        demands: Seconds that each run needs.

    Returns:
        Seconds from each run's arrival to its end.
    """
    clock = [0.0]
    turns: Turns[int] = Turns(list(range(workers)), [-1], clock=lambda: clock[0])
    number = itertools.count()
    events: list[tuple[float, int, int, Ticket[int]]] = []  # time, order, run, ticket: a look ends, or the run
    waits, todo = [0.0] * len(demands), iter(enumerate(demands))
    arrived: dict[int, float] = {}
    waiting: dict[int, Ticket[int]] = {}

    def hand_in(now: float) -> None:
        if (found := next(todo, None)) is not None:
            arrived[found[0]] = now
            waiting[found[0]] = ticket = Ticket()
            turns.arrive(ticket)

    def start(now: float) -> None:
        for run, ticket in list(waiting.items()):
            if ticket.called.is_set():
                del waiting[run]
                until = min(demands[run], LOOKS[ticket.look] if ticket.look < len(LOOKS) else demands[run])
                heapq.heappush(events, (now + until, next(number), run, ticket))

    for _ in range(clients):
        hand_in(0.0)
    start(0.0)
    while events:
        now, _, run, ticket = heapq.heappop(events)
        clock[0] = now
        look = LOOKS[ticket.look] if ticket.look < len(LOOKS) else demands[run]
        if demands[run] <= look:
            turns.leave(ticket)
            waits[run] = now - arrived[run]
            hand_in(now)
        elif turns.goes_on(ticket):
            more = LOOKS[ticket.look] if ticket.look < len(LOOKS) else demands[run]
            heapq.heappush(events, (now + min(demands[run], more) - look, next(number), run, ticket))
        else:
            turns.leave(ticket)
            turns.arrive(ticket)
            waiting[run] = ticket
        start(now)
    assert not waiting and len(arrived) == len(demands)
    return waits


@pytest.mark.parametrize("seed", range(20))
def test_no_short_run_waits_long_while_long_ones_hold_the_workers(seed: int) -> None:
    rng = random.Random(seed)
    demands = [rng.uniform(0.001, 0.0045) for _ in range(100)] + [rng.uniform(1.0, 4.0) for _ in range(100)]
    order = rng.sample(range(200), 200)
    waits = simulate(2, 32, [demands[i] for i in order])
    short = [wait for wait, i in zip(waits, order, strict=True) if i < 100]
    # The worst comes when all arrive at once, and each of the others has a first look. In order of arrival, or with the
    # thread that gives a worker back taking it again, it would be a minute.
    assert max(short) <= 32 * LOOKS[0] / 2
    assert statistics.median(short) <= 2 * LOOKS[0]


def test_long_runs_end_though_short_ones_never_cease() -> None:
    demands = [3.0] * 4 + [0.01] * 5000
    waits = simulate(2, 8, demands)
    assert max(waits[:4]) < 20.0  # alone they would take 6 s; the short ones would take 25 s of both workers


def test_runs_of_a_kind_take_turns_in_the_order_in_which_they_came() -> None:
    turns: Turns[int] = Turns([0], [1])
    tickets = [Ticket[int](look=len(LOOKS)) for _ in range(5)]
    for ticket in tickets:
        turns.arrive(ticket)
    for i, ticket in enumerate(tickets):
        assert [one.called.is_set() for one in tickets] == [True] * (i + 1) + [False] * (4 - i)
        turns.leave(ticket)
        turns.arrive(Ticket(look=len(LOOKS)))  # a thread that comes back at once does not overtake those who wait


def test_a_run_keeps_its_worker_while_nobody_waits() -> None:
    turns: Turns[int] = Turns([0], [1])
    alone = Ticket[int]()
    turns.arrive(alone)
    assert all(turns.goes_on(alone) for _ in LOOKS) and alone.look == len(LOOKS)
    late, later = Ticket[int](), Ticket[int]()
    turns.arrive(late)
    turns.arrive(later)
    assert late.express and not later.called.is_set()
    assert not turns.goes_on(late)  # the worker for first looks is for first looks
    turns.leave(late)
    assert later.express


def test_who_leaves_while_waiting_is_forgotten() -> None:
    turns: Turns[int] = Turns([0], [1])
    tickets = [Ticket[int]() for _ in range(4)]
    for ticket in tickets:
        turns.arrive(ticket)
    turns.leave(tickets[2])
    turns.leave(tickets[0])
    assert not tickets[2].called.is_set() and tickets[3].called.is_set()


# ---- with processes -------------------------------------------------------------------------------------------

LIMITS = Limits(cpu_s=0.8, wall_s=0.8, total_s=0.8)


@needs_layer
@pytest.mark.parametrize("hostile", ["while True: pass", "import time\ntime.sleep(100)"])
def test_a_short_program_is_done_before_the_hostile_ones_that_came_first(hostile: str) -> None:
    ended: list[str] = []
    with Sandbox() as made:

        def run(name: str, source: str) -> None:
            (result,) = made.run_calls(source, "f", [Call("call", "[3]")], limits=LIMITS)
            ended.append(f"{name} {result.status}")

        threads = [threading.Thread(target=run, args=("hostile", hostile)) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        threads.append(threading.Thread(target=run, args=("honest", "def f(x): return x")))
        threads[-1].start()
        for thread in threads:
            thread.join()
    assert sorted(ended) == ["honest ok"] + ["hostile timeout"] * 4
    assert ended.index("honest ok") <= 1


@pytest.mark.ci
@needs_layer
def test_a_program_that_begins_again_has_the_verdict_that_it_would_have_had() -> None:
    """It needs several looks, while others wait; what it did in a look that was cut short is gone."""
    source = """
import time
seen = []
def f(x):
    seen.append(x)
    start = time.process_time()
    while time.process_time() - start < 0.08: pass
    return list(seen)
"""
    printing = "import time\nprint(input())\nwhile time.process_time() < 0.3: pass\nprint('end')"
    wrong: list[object] = []
    with Sandbox() as made:

        def run() -> None:
            results = made.run_calls(source, "f", [Call("call", f"[{i}]") for i in range(3)])
            if [r.value for r in results] != [[0], [0, 1], [0, 1, 2]]:
                wrong.append(results)
            done = made.run_stdio(printing, "x\n")
            if (done.status, done.stdout) != ("ok", b"x\nend\n"):
                wrong.append(done)

        threads = [threading.Thread(target=run) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@needs_layer
def test_a_run_that_slept_through_two_tests_is_over() -> None:
    limits = Limits(cpu_s=0.5, wall_s=0.3, total_s=60.0)
    source = "import time\ndef f(x):\n    if x: time.sleep(100)\n    return x"
    with Sandbox() as made:
        start = time.monotonic()
        results = made.run_calls(source, "f", [Call("call", f"[{int(i > 0)}]") for i in range(50)], limits=limits)
        assert [r.status for r in results] == ["ok"] + ["timeout"] * 49
        assert time.monotonic() - start < 5.0 and "slept" in results[-1].message
        busy = "def f(x):\n    while x % 2: pass\n    return x"  # it does not sleep: every test has its own time
        limits = Limits(cpu_s=0.1, wall_s=5.0, total_s=60.0)
        results = made.run_calls(busy, "f", [Call("call", f"[{i}]") for i in range(8)], limits=limits)
        assert [r.status for r in results] == ["ok", "timeout"] * 4
