"""CPU time of the depot: steps of an environment, a tool call, a reset, a copy.

    python -m benchmarks depot [--json] [--tasks 300] [--level 2]

The oracle plays held-out tasks of one level. The first rows are the environment's: a step is ``observe`` and ``step``
with a recorded reply (one call, or where to go next), parsing, checks and rendering included, tokenisation not, and
resets shared out. The others are the world's: a step is a call with the state's hash before and after it, and a share
of the reset and the grade; a session puts the checks of permission and arguments around the call. Time is
``time.process_time``, one thread; each figure is the best of five. A loop of plain Python, timed beside it, makes the
figures of two machines comparable: the last column is in loops.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Collection, Sequence

from benchmarks.speed.envs import loop_microseconds
from marft_envs.families.tools import make
from marft_envs.families.tools.depot import Depot
from marft_envs.families.tools.oracle import reply
from marft_envs.families.tools.session import Toolbox, ToolSession
from marft_envs.families.tools.types import ToolProblem

DEPOT = Depot()
END = "</tool_call>"
REPEATS = 5
WANTED = {"environment step, solo": 100.0, "environment step, router": 100.0, "tool call": 50.0, "reset": 200.0}
"""Most microseconds on an ordinary machine: 10,000 steps a second, and what a call and a reset may take."""


def microseconds(run: Callable[[], int]) -> float:
    """Returns CPU microseconds per unit of ``run``, which returns how many it did; the best of ``REPEATS``."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        units = run()
        best = min(best, (time.process_time() - start) / units)
    return best * 1e6


def rows(problems: Sequence[ToolProblem]) -> tuple[dict[str, float], float]:
    """Returns what was measured -> microseconds, and those of the plain loop: the best of one timing beside each."""
    oracle = {problem.id: DEPOT.oracle(problem)[0] for problem in problems}
    harmless = {name for name, tool in DEPOT.tools.items() if tool.read_only}

    def steps() -> int:
        done = 0
        for problem in problems:
            world = DEPOT.open(problem)
            for call in oracle[problem.id]:
                world.state_hash()
                world.call(call.name, call.arguments)
                world.state_hash()
                done += 1
            assert DEPOT.grade(problem, world).completion
            world.close()
        return done

    def session() -> int:
        toolbox, done = Toolbox(DEPOT.tools.values()), 0
        holds = {"agent_0": frozenset(DEPOT.tools)}
        for problem in problems:
            opened = ToolSession(toolbox, lambda problem=problem: DEPOT.open(problem), holds, {}, 100, 4000)  # type: ignore[misc]
            for call in oracle[problem.id]:
                assert opened.call("agent_0", call).ok
                done += 1
            opened.world.close()
        return done

    def resets() -> int:
        for problem in problems:
            DEPOT.open(problem).close()
        return len(problems)

    def copies() -> int:
        for problem in problems:
            copy.deepcopy(DEPOT.open(problem)).close()
        return len(problems)

    timings: dict[str, Callable[[], float]] = {
        "environment step, solo": lambda: microseconds(played("solo", problems)),
        "environment step, router": lambda: microseconds(played("router", problems)),
        "world's step": lambda: microseconds(steps),
        "world's step through a session": lambda: microseconds(session),
        "tool call": lambda: _calls(problems, DEPOT.tools),
        "reset": lambda: microseconds(resets),
        "open and copy": lambda: microseconds(copies),
    }
    if any(call.name in harmless for calls in oracle.values() for call in calls):  # level 0 takes no reads
        timings["tool call that reads"] = lambda: _calls(problems, harmless)
    cpu_us, loop = {}, loop_microseconds()
    for name, timing in timings.items():
        cpu_us[name] = timing()
        loop = min(loop, loop_microseconds())
    return cpu_us, loop


def played(team: str, problems: Sequence[ToolProblem]) -> Callable[[], int]:
    """Returns a run of whole episodes of a team in which every reply makes one call at most."""
    env = make(team, DEPOT, split="test", max_turns=100)
    replies: dict[str, list[str]] = {}
    for problem in problems:
        env.reset(seed=0, options={"task_id": problem.id})
        replies[problem.id] = []
        while not env.done:
            first = reply(env, env.agent_selection).split(END)[0]
            replies[problem.id].append(first + END if "<tool_call>" in first else first)
            env.step(replies[problem.id][-1])
        assert env.episode.success, problem.id

    def run() -> int:
        done = 0
        for problem in problems:
            env.reset(seed=0, options={"task_id": problem.id})
            for text in replies[problem.id]:
                env.observe(env.agent_selection)
                env.step(text)
                done += 1
            assert env.done
        return done

    return run


def _calls(problems: Sequence[ToolProblem], names: Collection[str]) -> float:
    """Microseconds of the oracle's calls of these tools, timed task by task, without opening, hashes and grades."""
    best = float("inf")
    for _ in range(REPEATS):
        spent, done = 0.0, 0
        for problem in problems:
            world, calls = DEPOT.open(problem), [call for call in DEPOT.oracle(problem)[0] if call.name in names]
            start = time.process_time()
            for call in calls:
                world.call(call.name, call.arguments)
            spent += time.process_time() - start
            done += len(calls)
            world.close()
        best = min(best, spent / done)
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--tasks", type=int, default=300, help="tasks per measurement")
    parser.add_argument("--level", type=int, default=2, help="their level, 0 to 5")
    args = parser.parse_args()
    problems = DEPOT.problems("test", levels=[args.level], limit=args.tasks)
    cpu_us, loop = rows(problems)
    if args.json:
        print(
            json.dumps({**{name: round(value, 1) for name, value in cpu_us.items()}, "loop, microseconds": round(loop)})
        )
        return
    print(f"level {args.level}, {len(problems)} tasks {'CPU µs':>30}{'wanted':>10}{'in loops':>10}")
    for name, value in cpu_us.items():
        wanted = f"{WANTED[name]:.0f}" if name in WANTED else ""
        print(f"{name:<40}{value:>10.1f}{wanted:>10}{value / loop:>10.2f}")
    print(f"environment steps per CPU-second, solo: {1e6 / cpu_us['environment step, solo']:,.0f} (wanted: 10,000)")
    print(f"this machine now: {loop:.0f} CPU microseconds for sum(i * i for i in range(1000))")


if __name__ == "__main__":
    main()
