"""Takes costs off an episode's reward: at fixed weights, or at weights that hold a budget (Lagrange multipliers)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from marft_algos.credit.branches import BranchReplayer
from marft_algos.credit.rewards import Credit, Relation, ReturnChain, Rule
from marft_algos.ranges import NOT_NEGATIVE, POSITIVE, check
from marft_algos.types import Keep, Need, Trajectory
from marft_envs.core.types import AgentSpec

Cost = Literal["tokens", "calls", "handoffs", "critical_path"]


def costs_of(trajectory: Trajectory, kind: Cost) -> list[float]:
    """Returns what each turn costs.

    tokens: those that it samples. calls: 1 for a reply that an engine wrote. handoffs: 1 if somebody else acts next.
    critical_path: the tokens of its layer's longest reply, which that turn causes; replies of equal length share them.
    """
    turns = trajectory.transitions
    if kind == "tokens":
        return [len(t.reply.action_ids) for t in turns]
    if kind == "calls":
        return [int(bool(t.policy)) for t in turns]
    if kind == "critical_path":
        longest = [max((turns[k].length for k in layer.turns), default=0) for layer in trajectory.layers]
        sharing = Counter(t.layer for t in turns if t.length == longest[t.layer])
        return [t.length / sharing[t.layer] if t.length == longest[t.layer] else 0 for t in turns]
    following = [[turns[k].agent for k in layer.turns] for layer in trajectory.layers[1:]] + [[]]
    return [int(bool(set(following[t.layer]) - {t.agent})) for t in turns]


@dataclass
class WithCosts(Rule):
    """A rule whose turns' rewards are reduced by what they cost: r_k − Σ_c λ_c·cost_c(k).

    λ is ``costs``, and where there is a budget b it moves after every iteration, for the next one:

        λ ← max(0, λ + multiplier_lr·(mean cost of an episode − b))
    """

    costs: Annotated[dict[Cost, float], NOT_NEGATIVE] = field(default_factory=dict)
    """λ of each cost, per unit; of those with a budget, its first value."""
    budgets: Annotated[dict[Cost, float], NOT_NEGATIVE] = field(default_factory=dict)
    """Mean cost of an episode that is to be held."""
    multiplier_lr: Annotated[float, POSITIVE] = 0.01
    """Step of the multipliers that hold a budget, per unit above it."""
    rule: Rule = field(init=False)
    """The rule whose rewards are reduced."""

    def __post_init__(self) -> None:
        check(self)
        self.multipliers: dict[Cost, float] = {c: self.costs.get(c, 0.0) for c in (*self.costs, *self.budgets)}
        self._now = dict(self.multipliers)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Returns the rule's name."""
        return self.rule.name

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """Returns the rule's needs."""
        return self.rule.needs

    @property
    def chains(self) -> frozenset[Relation]:  # type: ignore[override]
        """Returns the relations that the rule's rewards may run over."""
        return self.rule.chains

    @property
    def keep(self) -> Keep:  # type: ignore[override]
        """Returns the states that the rule replays from."""
        return self.rule.keep

    def check(self, team: Sequence[AgentSpec]) -> None:
        """Checks the arguments as the rule does."""
        self.rule.check(team)

    def replay(self, trajectories: Sequence[Trajectory], replayer: BranchReplayer, iteration: int) -> list[Trajectory]:
        """Replays as the rule does."""
        return self.rule.replay(trajectories, replayer, iteration)

    def prepare(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Fixes this iteration's multipliers, and moves the next one's."""
        logged = self.rule.prepare(trajectories)
        self._now = dict(self.multipliers)
        for cost, multiplier in self._now.items():
            mean = sum(sum(costs_of(d, cost)) for d in trajectories) / max(len(trajectories), 1)
            logged |= {f"credit/cost/{cost}": mean, f"credit/multiplier/{cost}": multiplier}
            if cost in self.budgets and trajectories:
                self.multipliers[cost] = max(0.0, multiplier + self.multiplier_lr * (mean - self.budgets[cost]))
        return logged

    def __call__(self, trajectory: Trajectory) -> Credit:
        """Returns the rule's rewards, less the costs."""
        credit = self.rule(trajectory)
        rewards = credit.rewards if isinstance(credit, ReturnChain) else credit.turns
        for cost, multiplier in self._now.items():
            rewards = [r - multiplier * c for r, c in zip(rewards, costs_of(trajectory, cost), strict=True)]
        return replace(credit, rewards=rewards) if isinstance(credit, ReturnChain) else replace(credit, turns=rewards)

    def state_dict(self) -> dict[str, Any]:
        """Returns the next iteration's multipliers, and what the rule keeps."""
        return {"multipliers": dict(self.multipliers), "rule": self.rule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores ``state_dict``."""
        self.multipliers = dict(state["multipliers"])
        self.rule.load_state_dict(state["rule"])
