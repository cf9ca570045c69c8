"""What an episode of tool use is worth, and the numbers that say how the team worked.

Definitions, over the whole episode (``docs/tools.md`` has them as a table):

* a *call* is a call of a domain's tool, ``finish`` and handovers apart; an *attempt* is a call of anything, or a reply
  whose calls cannot be read; a *fault* is an attempt that failed by the agent's doing;
* a *duplicate* is a call with the same name, arguments and state version as an earlier one of any agent; a state
  version ends with every change of the state and with the user's turn;
* a *handoff loop* is control that goes back and forth between two agents for more than two round trips (five handoffs
  or more), whatever comes of it; an *idle loop*, which costs, is a run of turns that alternates so and brings nothing
  new (no change, no value that was not there before; with a user-agent, no words that were not said before);
* ``step_efficiency``, ``tool_selection_accuracy`` and ``trajectory_score`` are those of ``core.metrics``; a
  *step* is a call of a domain's tool, or a reply whose calls cannot be read, and is worth 1 if it worked and was new.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from marft_envs.core import metrics as coordination
from marft_envs.core.rewards import CompositeReward
from marft_envs.errors import ConfigError, check_known
from marft_envs.families.tools.types import StateGrade

REWARDS = ("composite", "completion", "progress")
"""Rewards of an episode, by name."""

REFUSED = frozenset({"unknown_tool", "withheld", "not_permitted", "budget"})
"""Errors of calls that were turned away at the door."""

_KEPT = 0.1
"""Share of the reward for progress that a failed team keeps whatever its penalties."""


_COMPOSITE = CompositeReward()


class CallStep(NamedTuple):
    """One call of a domain's tool, or a reply whose calls cannot be read."""

    agent: str
    tool: str
    """As it was asked for; "" where nothing could be read, and of a refused handover or ``finish``."""
    score: float
    """1 if it worked and was no duplicate."""


@dataclass
class Tally:
    """What is counted while an episode runs, per agent."""

    calls: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    malformed: int = 0
    turns: int = 0
    steps: list[CallStep] = field(default_factory=list)
    changed: bool = False
    """Some call of the team's changed the state."""
    skill_words: int = 0
    """Words of skills that were read."""
    trace: list[tuple[str, bool]] = field(default_factory=list)
    """Per turn: who acted ("" for several at once, and between user turns), and whether it brought anything new."""

    def total(self, what: str, agents: Collection[str] | None = None) -> int:
        """Returns how many calls, attempts, faults, duplicates or refusals agents (None: all) have."""
        return sum(count for agent, count in getattr(self, what).items() if agents is None or agent in agents)

    def chosen(self, agents: Collection[str]) -> list[str]:
        """Returns the names of the tools that agents asked for."""
        return [step.tool for step in self.steps if step.tool and step.agent in agents]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tally:
        new = Tally()
        for name, value in vars(self).items():
            setattr(new, name, copy.copy(value))
        return new


def check(reward: str | CompositeReward) -> None:
    """Raises a ConfigError unless there is such a reward."""
    if isinstance(reward, str):
        check_known([reward], REWARDS, "There is no reward '{}' for tool use.")
    elif not isinstance(reward, CompositeReward):
        raise ConfigError(f"reward must be one of {', '.join(REWARDS)} or a CompositeReward; got {reward!r}.")


def lowest(reward: str | CompositeReward) -> float:
    """Returns the lowest return of an episode."""
    rule = _COMPOSITE if reward == "composite" else reward
    return rule.lowest if isinstance(rule, CompositeReward) else 0.0


def loops(trace: Sequence[tuple[str, bool]]) -> tuple[int, int]:
    """Returns how many idle loops there are, and how many turns they have together."""
    if [new for _, new in trace].count(False) <= coordination.FEWEST_HANDOFFS:
        return 0, 0
    lengths = coordination.alternations(["" if new else agent for agent, new in trace])
    return len(lengths), sum(lengths)


def penalties(tally: Tally, least_steps: int) -> dict[str, float]:
    """Returns the penalised terms, each in [0, 1]; a team that does nothing has none.

    ``steps``: e / (e + least) for e calls more than the oracle's least; ``errors``: faults / attempts; ``duplicates``:
    duplicates / calls; ``loops``: share of turns that lie in idle loops.
    """
    calls, attempts = tally.total("calls"), tally.total("attempts")
    excess = max(0, calls - least_steps)
    turns = len([agent for agent, _ in tally.trace if agent])
    return {
        "steps": excess / (excess + max(least_steps, 1)),
        "errors": tally.total("faults") / attempts if attempts else 0.0,
        "duplicates": tally.total("duplicates") / calls if calls else 0.0,
        "loops": min(1.0, loops(tally.trace)[1] / turns) if turns else 0.0,
    }


def score(
    reward: str | CompositeReward, grade: StateGrade, tally: Tally, least_steps: int
) -> tuple[float, dict[str, float]]:
    """Returns what the episode is worth so far, and the weighted terms.

    Under ``composite`` a failed team that has made progress never falls to the level of one that did nothing: its
    penalties are scaled down until a tenth of the reward for progress is left. Without progress nothing is scaled, so
    idle calls score less than silence.
    """
    done = float(grade.completion)
    if reward == "completion":
        return done, {"completion": done}
    if reward == "progress":
        return float(grade.progress), {"progress": float(grade.progress)}
    rule = reward if isinstance(reward, CompositeReward) else _COMPOSITE
    terms = penalties(tally, least_steps)
    total, parts = rule(completion=done, progress=float(grade.progress), **terms)
    owed, earned = -sum(parts[name] for name in terms), rule.progress * grade.progress
    if not grade.completion and earned > 0 and owed > (1 - _KEPT) * earned:
        terms = {name: value * (1 - _KEPT) * earned / owed for name, value in terms.items()}
        total, parts = rule(completion=done, progress=float(grade.progress), **terms)
    return total, {name: value + 0.0 for name, value in parts.items()}  # without negative zeros


def metrics(
    grade: StateGrade,
    tally: Tally,
    least_steps: int,
    agents: Sequence[str],
    max_calls: int,
    budgets: Mapping[str, int],
    gold: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, float]:
    """Returns the team's numbers, and those of each agent as ``name/agent``.

    Args:
        grade: What the domain says of the state.
        tally: What was counted.
        least_steps: Calls that the oracle needs.
        agents: The team.
        max_calls: The team's limit.
        budgets: Agent -> limit of its own.
        gold: Agent -> names of the tools that the oracle calls as that agent; None: nobody knows.
    """
    looped = coordination.handoff_loops([agent for agent, _ in tally.trace])
    out = {
        "completion": float(grade.completion),
        "progress": float(grade.progress),
        "turns": float(tally.turns),
        "handoff_loops": float(looped),
        "handoff_loop_rate": float(looped > 0),
        "idle_loops": float(loops(tally.trace)[0]),
        "malformed": float(tally.malformed),
        "declined": float(not tally.changed),
    }
    if "injected" in grade.info:
        out["obeyed"] = float(bool(grade.info["injected"]))
    for agent in (None, *agents):
        who, limit = (agents, max_calls) if agent is None else ((agent,), budgets.get(agent, max_calls))
        calls, tried = tally.total("calls", who), tally.total("attempts", who)
        numbers = {
            "calls": float(calls),
            "error_rate": tally.total("faults", who) / tried if tried else 0.0,
            "duplicates": float(tally.total("duplicates", who)),
            "refusals": float(tally.total("refusals", who)),
            "budget_use": calls / limit,
            "trajectory_score": coordination.trajectory_score([s.score for s in tally.steps if s.agent in who]),
        }
        if gold is not None:
            wanted = [name for one in who for name in gold.get(one, ())]
            numbers["tool_selection_accuracy"] = coordination.tool_selection_accuracy(tally.chosen(who), wanted)
        out.update(numbers if agent is None else {f"{name}/{agent}": value for name, value in numbers.items()})
    out["excess_steps"] = max(0.0, out["calls"] - least_steps)
    out["step_efficiency"] = coordination.step_efficiency(grade.completion, least_steps, int(out["calls"]))
    return out
