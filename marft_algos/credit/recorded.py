"""Credit rules that read the recorded rewards: of which agent, and when.

Rules that differ by agent need each agent's own successors: along the team's, every turn gets all later rewards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from marft_algos.credit.formulas import spearman
from marft_algos.credit.rewards import Relation, Rewards, Rule, broadcast, punctual, register, team_score
from marft_algos.ranges import NOT_NEGATIVE, Settings
from marft_algos.types import Trajectory
from marft_envs.core.types import AgentSpec
from marft_envs.errors import ConfigError, check_known

INDIVIDUAL: frozenset[Relation] = frozenset({"agent", "episode"})
"""Relations of rules that reward agents differently."""


@register("last")
def last(trajectory: Trajectory) -> Rewards:
    """Moves a round's rewards to its last layer, the released code's rule; earlier layers live on the bootstrap."""
    out = broadcast(trajectory)
    rounds = [trajectory.transitions[layer.turns[0]].round for layer in trajectory.layers]
    for i, layer in enumerate(trajectory.layers):
        end = max(j for j, r in enumerate(rounds) if r == rounds[i])
        if end == i:
            continue
        inside = sum(float(x.sum()) for k in layer.turns if (x := out.tokens[k]) is not None)
        out.team[end] += out.team[i] + sum(out.turns[k] for k in layer.turns) + sum(out.late[i].values()) + inside
        out.agents[end] = _add(out.agents[end], out.agents[i])
        out.team[i], out.agents[i], out.late[i] = 0.0, {}, {}
        for k in layer.turns:
            out.turns[k], out.tokens[k] = 0.0, None
    return out


@register("local")
@dataclass(frozen=True)
class Local(Settings, Rule):
    """α·team + local: an agent's own rewards whole, the team's times α (AT-GRPO, arXiv 2510.11062)."""

    chains: ClassVar[frozenset[Relation]] = INDIVIDUAL
    alpha: Annotated[float, NOT_NEGATIVE] = 1.0
    """Weight of the team's reward; 0 leaves the agent's own quality."""

    def __call__(self, trajectory: Trajectory) -> Rewards:
        """Scales the team channel."""
        credit = broadcast(trajectory)
        credit.team = [self.alpha * reward for reward in credit.team]
        return credit


@register("margin")
@dataclass(frozen=True)
class Margin(Rule):
    """q_i − mean_{j ≠ i} q_j over the agents that act in a round, q the rewards of an agent's own turns there.

    For teams whose members are graded one by one (proposals before a vote). The team's reward goes to no agent. A grade
    that comes late counts in the round of the turn that it is for.
    """

    chains: ClassVar[frozenset[Relation]] = INDIVIDUAL

    def __call__(self, trajectory: Trajectory) -> Rewards:
        """Rewards each agent's margin at its last turn of the round."""
        turns = trajectory.transitions
        quality: dict[tuple[int, str], float] = {}
        places: dict[tuple[int, str], int] = {}
        for t in turns:
            quality[t.round, t.agent] = quality.get((t.round, t.agent), 0.0) + t.turn.reward
            places[t.round, t.agent] = t.index
        for layer in trajectory.layers:
            for agent, reward in layer.agent_rewards.items():
                key = (turns[layer.turns[0]].round, agent)
                if key in quality:
                    quality[key] += reward
        credit = _nothing(trajectory)
        for (number, agent), turn_rewards in quality.items():
            others = [q for (r, name), q in quality.items() if r == number and name != agent]
            credit.turns[places[number, agent]] += turn_rewards - (sum(others) / len(others) if others else 0.0)
        return credit


@dataclass(frozen=True)
class _Steps(Rule):
    """Rules about a quality that changes: a span s runs from a producer's layer to the next one, with reward R_s."""

    chains: ClassVar[frozenset[Relation]] = INDIVIDUAL
    critics: tuple[str, ...] = ()
    """Agents, by name or role, that do not produce but make the next product better."""

    def check(self, team: Sequence[AgentSpec]) -> None:
        """Checks that the critics are members of the team, and leave somebody to produce."""
        names = {name for agent in team for name in (agent.name, agent.role)}
        check_known(self.critics, names, f"Credit rule '{self.name}' names '{{}}'.")
        if all(agent.name in self.critics or agent.role in self.critics for agent in team):
            raise ConfigError(f"Credit rule '{self.name}' names everybody as critics; somebody must produce.")

    def _produced(self, now: float, before: float) -> float:
        raise NotImplementedError

    def __call__(self, trajectory: Trajectory) -> Rewards:
        """Rewards an agent's last turn of each span."""
        turns, credit = trajectory.transitions, _nothing(trajectory)
        credit.agents = [dict(layer.agent_rewards) for layer in trajectory.layers]
        span, quality = -1, {-1: 0.0}
        places: dict[tuple[int, str], int] = {}
        critic = {t.agent: t.agent in self.critics or t.turn.role in self.critics for t in turns}
        turn_rewards = punctual(trajectory)
        for layer in trajectory.layers:
            span += any(not critic[turns[k].agent] for k in layer.turns)
            reward = layer.team_reward + sum(turn_rewards[k] for k in layer.turns) + sum(layer.late_rewards.values())
            quality[span] = quality.get(span, 0.0) + reward
            places |= {(span, turns[k].agent): k for k in layer.turns}
        for (s, agent), k in places.items():
            if critic[agent]:
                credit.turns[k] += quality[s + 1] - quality[s] if s + 1 in quality else 0.0
            else:
                credit.turns[k] += self._produced(quality[s], quality[s - 1])
        return credit


@register("difference")
class Difference(_Steps):
    """ΔR: R_s − R_{s−1} for who produces, R_{s+1} − R_s for the critics between.

    Both are rewarded for one difference, so their sum is not the team's reward.
    """

    def _produced(self, now: float, before: float) -> float:
        return now - before


@register("improvement")
class Improvement(_Steps):
    """Critics get the reward after their feedback minus the one before; producers their own reward (WaltzRL)."""

    def check(self, team: Sequence[AgentSpec]) -> None:
        """Checks that somebody gives feedback."""
        super().check(team)
        if not self.critics:
            raise ConfigError("Credit rule 'improvement' rewards feedback: name who gives it, critics=['ROLE'].")

    def _produced(self, now: float, before: float) -> float:
        return now


@register("rank")
class Rank(Rule):
    """local_i + w_i·team, w_i by how well the ranks of an agent's own rewards agree with those of the team's scores.

        ρ_i = Spearman(local scores of i, team scores) over the episodes of a group
        w_i = n·max(ρ_i, 0)/Σ_j max(ρ_j, 0)

    A group is the episodes of one start, or all of an iteration where each has a start of its own. Where no ranks agree
    all weights are 1. After CoMAM's rank consistency; its exact weights are not public.
    """

    chains: ClassVar[frozenset[Relation]] = INDIVIDUAL

    def __init__(self) -> None:
        self._weights: dict[Trajectory, Mapping[str, float]] = {}

    def prepare(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Weighs the agents of every group."""
        self._weights = {}
        groups: dict[int, list[Trajectory]] = {}
        alone = len({d.group for d in trajectories}) == len(trajectories)
        for d in trajectories:
            groups.setdefault(0 if alone else d.group, []).append(d)
        logged: dict[str, list[float]] = {}
        for group in groups.values():
            weights = self._weigh(group)
            for d in group:
                self._weights[d] = weights
            for agent, weight in weights.items():
                logged.setdefault(agent, []).append(weight)
        return {f"credit/rank_weight/{agent}": float(np.mean(w)) for agent, w in sorted(logged.items())}

    def _weigh(self, group: Sequence[Trajectory]) -> dict[str, float]:
        agents = sorted({t.agent for d in group for t in d.transitions})
        team = [sum(layer.team_reward for layer in d.layers) for d in group]
        agreement = {}
        for agent in agents:
            local = [
                sum(t.turn.reward for t in d.transitions if t.agent == agent)
                + sum(layer.agent_rewards.get(agent, 0.0) for layer in d.layers)
                for d in group
            ]
            rho = spearman(local, team)
            agreement[agent] = max(rho, 0.0) if rho == rho else 0.0
        total = sum(agreement.values())
        return {a: len(agents) * agreement[a] / total if total else 1.0 for a in agents}

    def __call__(self, trajectory: Trajectory) -> Rewards:
        """Moves the team's reward to the agents, weighed."""
        if trajectory not in self._weights:
            raise ConfigError(
                f"Credit rule 'rank' has not weighed episode {trajectory.number}: its weights hang on all episodes "
                "of an iteration. Call rule.prepare(trajectories) first, as an update does."
            )
        weights = self._weights[trajectory]
        credit = broadcast(trajectory)
        credit.agents = [
            _add(turn_rewards, {agent: weight * team for agent, weight in weights.items()})
            for turn_rewards, team in zip(credit.agents, credit.team, strict=True)
        ]
        credit.team = [0.0] * len(credit.team)
        return credit


def outcome(trajectory: Trajectory, agent: str) -> float:
    """Sums what an episode was worth to an agent: all rewards of the team, its turns and the agent."""
    team = sum(layer.team_reward for layer in trajectory.layers) + sum(t.turn.reward for t in trajectory.transitions)
    return float(team + sum(layer.agent_rewards.get(agent, 0.0) for layer in trajectory.layers))


def team_outcome(trajectory: Trajectory) -> float:
    """Returns what an episode was worth to the team.

    Raises:
        ConfigError: Agents have different rewards.
    """
    return team_score(trajectory, broadcast(trajectory))


def _nothing(trajectory: Trajectory) -> Rewards:
    """Returns rewards of 0 for every turn."""
    layers = len(trajectory.layers)
    return Rewards([0.0] * len(trajectory.transitions), [0.0] * layers, [{} for _ in range(layers)])


def _add(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    return {name: a.get(name, 0.0) + b.get(name, 0.0) for name in {**a, **b}}
