"""Scripted teams on published tasks: gold, parts of it, nothing, and farmers who work without getting anywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from marft_envs.call_formats import written
from marft_envs.call_formats.call import ToolCall
from marft_envs.core.env import FlexEnv
from marft_envs.families.tools import make, oracle
from marft_envs.families.tools.types import ToolDomain, ToolError, ToolProblem
from marft_envs.records import experts

Turns = Sequence[Sequence[ToolCall]]


class Scripted:
    """One agent that makes the same calls in every episode, and a router that only passes the word on."""

    def __init__(self, domain: ToolDomain, split: str) -> None:
        self.domain = domain
        self.solo: FlexEnv = make("solo", domain, split=split, max_turns=100, max_calls=300, max_result_chars=100_000)
        self.router: FlexEnv = make("router", domain, split=split, max_turns=30)

    def paid(self, problem: ToolProblem, turns: Turns) -> float:
        """Returns the reward of calls per user turn, each made in a reply of its own."""
        env = self.solo
        env.reset(seed=0, options={"task_id": problem.id})
        waiting = [[written([call]) for call in turn] for turn in turns]
        while not env.done:
            now = waiting[env.unwrapped.task.user_turn]
            experts.turn(env, {env.agent_selection: now.pop(0) if now else "Done."})
        return env.episode.team_return

    def ping_pong(self, problem: ToolProblem) -> float:
        """Returns the reward of a router that calls one specialist again and again, who says nothing of use."""
        env = self.router
        env.reset(seed=0, options={"task_id": problem.id})
        role = next(iter(self.domain.specialists))
        while not env.done:
            boss = env.agent_selection == "router_0"
            experts.turn(env, {env.agent_selection: f"{role}, please." if boss else "I have nothing."})
        return env.episode.team_return

    def reads(self, problem: ToolProblem, times: int = 1) -> list[list[ToolCall]]:
        """Returns the calls of the gold that change nothing, each so many times."""
        tools = self.domain.tools
        gold = self.domain.oracle(problem)
        return [[call for call in turn for _ in range(times) if tools[call.name].read_only] for turn in gold]


def cut(turns: Turns, count: int) -> list[list[ToolCall]]:
    """Returns the first calls."""
    out = []
    for turn in turns:
        out.append(list(turn[: max(count, 0)]))
        count -= len(turn)
    return out


MOST_READS = 12
"""Calls of a farmer."""

Look = tuple[Callable[[Any], Any], Callable[[Any, Any], bool]]


class Shape:
    """One team of any shape that plays given calls, whoever holds the tools, or hands over and does nothing else.

    Args:
        team: One of the teams.
        domain: Where they play.
        split: Of the domain's problems.
        look: Takes what counts of a state, and says whether a world still has it; by default the state's hash.
        levels: Of the problems; None: as the domain has it.
    """

    def __init__(
        self, team: str, domain: ToolDomain, split: str, look: Look | None = None, levels: Sequence[int] | None = None
    ) -> None:
        self.domain = domain
        self._look: Look = look or (lambda world: world.state_hash(), lambda state, world: state == world.state_hash())
        limits = {"max_turns": 200, "max_calls": 300, "max_result_chars": 100_000}
        self.env: FlexEnv = make(team, domain, split=split, levels=levels, **limits)
        self.task = self.env.unwrapped.task
        some = [self.task.problems.get(task_id) for task_id in self.task.evaluation_set(30)]
        self._pool = list(_reads(domain, some))

    def gold(self, problem: ToolProblem) -> list[list[ToolCall]]:
        """Returns the oracle's calls per user turn."""
        return self.domain.oracle(problem)

    def plays(self, problem: ToolProblem, turns: Turns) -> float:
        """Returns the reward of a team that makes these calls per user turn, as if they were the gold."""
        self.env.reset(seed=0, options={"task_id": problem.id})
        self.task._gold = [list(turn) for turn in turns]
        while not self.env.done:
            experts.turn(self.env, {agent: oracle.reply(self.env, agent) for agent in self.env.ready_agents})
        return self.env.episode.team_return

    def hands_over(self, problem: ToolProblem) -> float:
        """Returns the reward of a team whose members pass the word to and fro until a limit ends it."""
        self.env.reset(seed=0, options={"task_id": problem.id})
        while not self.env.done:
            experts.turn(self.env, {self.env.agent_selection: self._pass(self.env.agent_selection)})
        return self.env.episode.team_return

    def silent(self, problem: ToolProblem) -> float:
        """Returns the reward of a team in which nobody ever says a word."""
        self.env.reset(seed=0, options={"task_id": problem.id})
        while not self.env.done:
            experts.turn(self.env, {self.env.agent_selection: ""})
        return self.env.episode.team_return

    def _pass(self, agent: str) -> str:
        task = self.task
        if agent in task.team.routers:
            return task.roles[next(name for name in task.agents if name != agent)]
        for name, (_, to) in task.control[agent].items():
            if to:
                return written([ToolCall(name, {})])
        if agent in task.team.enders and agent != task.team.user:
            return written([ToolCall("no_such_tool", {})])  # what gives the word back to the advisers
        return "I have nothing."

    def farmers(self, problem: ToolProblem) -> dict[str, float]:
        """Returns what farmers are paid: different harmless reads, one read again and again, handing to and fro."""
        found = self._harmless(problem)
        turns = len(problem.turns) - 1
        return {
            "reads": self.plays(problem, [found, *([] for _ in range(turns))]),
            "duplicates": self.plays(problem, [found[:1] * MOST_READS, *([] for _ in range(turns))]),
            "handovers": self.hands_over(problem),
        }

    def _harmless(self, problem: ToolProblem) -> list[ToolCall]:
        """Reads that work at the start and that somebody in the team holds, the gold's own first."""
        held = frozenset().union(*self.task.holds.values()) - (problem.withheld[0] if problem.withheld else frozenset())
        world, out = self.domain.open(problem), list[ToolCall]()
        self.domain.begin_turn(problem, world, 0)
        for call in (*_reads(self.domain, [problem]), *self._pool):
            if call.name in held and call not in out and len(out) < MOST_READS:
                with contextlib.suppress(ToolError):
                    world.call(call.name, call.arguments)
                    out.append(call)
        world.close()
        return out

    def writes(self, problem: ToolProblem) -> list[tuple[int, bool]]:
        """Returns per call of the gold that changes what counts: its number, and whether the start is left then."""
        take, same = self._look
        world, gold = self.domain.open(problem), self.gold(problem)
        start, wrote, count = take(world), list[tuple[int, bool]](), 0
        for number, turn in enumerate(gold):
            self.domain.begin_turn(problem, world, number)
            for call in turn:
                before, count = take(world), count + 1
                with contextlib.suppress(ToolError):
                    world.call(call.name, call.arguments)
                if not same(before, world):
                    wrote.append((count, not same(start, world)))
        world.close()
        return wrote

    def judged(self, problem: ToolProblem, most_parts: int = 1000) -> tuple[int, list[str]]:
        """Compares gold > part > null >= farmers on a problem whose gold changes the state.

        Parts are the gold up to a write that is not its last, where the state is not the start's again.

        Returns:
            How many parts were compared (-1: the gold changes nothing, and nothing was), and what is out of order.
        """
        writes, turns = self.writes(problem), self.gold(problem)
        if not any(differs for _, differs in writes):
            return -1, []
        gold = self.plays(problem, turns)
        out = [] if self.env.episode.success and gold > 1 else [f"gold {gold}"]
        null = self.silent(problem)
        out += [] if null == 0 else [f"null {null}"]
        out += [f"{name} {value}" for name, value in self.farmers(problem).items() if not value <= null]
        parts = [cut(turns, count) for count, differs in writes[:-1] if differs]
        parts = parts[:: -(-len(parts) // most_parts) or 1]
        for part in parts:
            value = self.plays(problem, part)
            if not gold > value > null:
                out.append(f"part of {sum(map(len, part))} calls {value}")
        return len(parts), out


def _reads(domain: ToolDomain, problems: Sequence[ToolProblem]) -> Iterator[ToolCall]:
    """The oracle's calls of tools that change nothing."""
    for problem in problems:
        yield from (c for turn in domain.oracle(problem) for c in turn if domain.tools[c.name].read_only)
