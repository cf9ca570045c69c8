"""What turns and layers are paid, and the successor relations that returns run over.

A credit rule turns the recorded reward channels of an episode into the rewards that a chain carries. A chain says
whose values bootstrap a turn: the team chain hands over to the next layer, an agent chain to the agent's own next
turn. A reward enters once along any path of a chain, between the layers where it was paid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from marft_algos import functional as F
from marft_algos import types
from marft_algos.types import Estimates, Trajectory, Transition
from marft_envs.errors import ConfigError

FloatArray = NDArray[np.floating]


@dataclass(slots=True)
class Rewards:
    """The three reward channels of one episode, as a credit rule leaves them.

    A KL in the reward is not among them: it is charged to its tokens (``Estimates.penalties``), whoever else is paid.
    """

    turns: list[float]
    """Per transition: paid at its own layer."""
    team: list[float]
    """Per layer: paid after it commits and before the next layer does."""
    agents: list[Mapping[str, float]]
    """Per layer: agent -> reward."""
    late: list[Mapping[int, float]] = field(default_factory=list)
    """Per layer: transition of an earlier layer -> what it is paid here. Empty: nothing is paid late."""
    settled: bool = False
    """Whether ``turns`` holds whole returns: what a turn is answerable for, to which no chain adds what came later."""


@dataclass(frozen=True, slots=True)
class Links:
    """What ``functional.chain`` runs over."""

    rewards: list[float]
    """Per turn: what is paid between it and its successors."""
    successors: list[tuple[int, ...]]
    """Per turn: whose values bootstrap it."""
    bootstraps: list[float]
    """Per turn: the value beyond its chain's end, where a limit cut the episode without pay."""
    tokens: list[FloatArray | None]
    """Per turn: what each of its tokens is paid, [L], beside ``rewards``; None: nothing."""

    @property
    def totals(self) -> list[float]:
        """Per turn: all that is paid from its first token to its successors."""
        return [r + _sum(x) for r, x in zip(self.rewards, self.tokens, strict=True)]

    def token_rewards(self, lengths: Sequence[int]) -> list[FloatArray | None]:
        """Per turn what each of ``lengths[k]`` decision points is paid: one point is paid for all of its tokens."""
        return [
            x if x is None or len(x) == n else np.array([_sum(x)]) for x, n in zip(self.tokens, lengths, strict=True)
        ]


def team_chain(trajectory: Trajectory, paid: Rewards, estimates: Estimates) -> Links:
    """Layer by layer through the whole episode, the next round after a round's last layer.

    What a turn's tokens are charged is paid token by token to the turn itself, and at the layer's end to those beside.

    Raises:
        ConfigError: Agents are paid differently: one return for all of them has no meaning then.
    """
    tokens = [estimates.penalties.get(t) for t in trajectory.transitions]
    if paid.settled:
        return _alone(paid, tokens)
    names = {t.agent for t in trajectory.transitions}
    rewards = [0.0] * len(trajectory.transitions)
    successors: list[tuple[int, ...]] = [()] * len(trajectory.transitions)
    for i, layer in enumerate(trajectory.layers):
        worth = paid.team[i] + sum(paid.turns[k] for k in layer.turns) + _common(paid.agents[i], names, i)
        worth += sum(paid.late[i].values()) if paid.late else 0.0
        following = trajectory.layers[i + 1].turns if i + 1 < len(trajectory.layers) else ()
        for k in layer.turns:
            rewards[k] = worth + sum(_sum(tokens[j]) for j in layer.turns if j != k)
            successors[k] = tuple(following)
    beyond = estimates.bootstraps.get(trajectory, 0.0) if trajectory.truncated else 0.0
    return Links(rewards, successors, [beyond] * len(rewards), tokens)


def team_score(trajectory: Trajectory, paid: Rewards, estimates: Estimates | None = None) -> float:
    """The episode's one score: all that the team chain pays.

    Raises:
        ConfigError: As ``team_chain``.
    """
    totals = team_chain(trajectory, paid, estimates or Estimates()).totals
    return float(sum(totals[layer.turns[0]] for layer in trajectory.layers))


def returns_to_go(trajectory: Trajectory, links: Links, gamma: float = 1.0) -> list[float]:
    """Per turn what its chain pays from there to the end, discounted from turn to turn; no values."""
    n = len(trajectory.transitions)
    found = F.chain([None] * n, [1] * n, links.totals, links.successors, F.Discounts(gamma_turn=gamma))[1]
    return [float(g[0]) for g in found]


def spread(
    trajectories: Sequence[Trajectory], advantages: Sequence[float] | FloatArray
) -> dict[Transition, types.FloatArray]:
    """Every turn's advantage where it is its episode's (action level)."""
    return {
        t: np.array([advantage], dtype=np.float32)
        for trajectory, advantage in zip(trajectories, advantages, strict=True)
        for t in trajectory.transitions
    }


def agent_score(trajectory: Trajectory, paid: Rewards, agent: str, estimates: Estimates) -> float:
    """One agent's score of the episode: the team's rewards, its own, and its own turns'."""
    turns = [t for t in trajectory.transitions if t.agent == agent]
    own = sum(paid.turns[t.index] + _sum(estimates.penalties.get(t)) for t in turns)
    own += sum(_late(trajectory, paid, i, agent) for i in range(len(paid.late)))
    return float(own + sum(paid.team) + sum(layer.get(agent, 0.0) for layer in paid.agents))


def agent_chain(trajectory: Trajectory, paid: Rewards, estimates: Estimates) -> Links:
    """Each agent's own turns: what it and the team are paid until its next turn, or the episode's end."""
    tokens = [estimates.penalties.get(t) for t in trajectory.transitions]
    if paid.settled:
        return _alone(paid, tokens)
    turns = trajectory.transitions
    rewards = [0.0] * len(turns)
    successors: list[tuple[int, ...]] = [()] * len(turns)
    for t in turns:
        later = next((u for u in turns if u.agent == t.agent and u.layer > t.layer), None)
        end = later.layer if later else len(trajectory.layers)
        span = range(t.layer, end)
        rewards[t.index] = paid.turns[t.index] + sum(paid.team[i] + paid.agents[i].get(t.agent, 0.0) for i in span)
        rewards[t.index] += sum(_late(trajectory, paid, i, t.agent) for i in span) if paid.late else 0.0
        successors[t.index] = (later.index,) if later else ()
    return Links(rewards, successors, [_beyond(trajectory, t.agent, estimates) for t in turns], tokens)


def _late(trajectory: Trajectory, paid: Rewards, layer: int, agent: str) -> float:
    """What an agent is paid at a layer for turns of earlier ones."""
    return sum(reward for k, reward in paid.late[layer].items() if trajectory.transitions[k].agent == agent)


def punctual(trajectory: Trajectory) -> list[float]:
    """Per turn what it was paid at its own layer, and not late."""
    paid = [t.turn.reward for t in trajectory.transitions]
    for layer in trajectory.layers:
        for k, reward in layer.late_rewards.items():
            paid[k] -= reward
    return paid


def _alone(paid: Rewards, tokens: list[types.FloatArray | None]) -> Links:
    """Every turn by itself."""
    n = len(paid.turns)
    return Links(list(paid.turns), [()] * n, [0.0] * n, tokens)


def _sum(x: FloatArray | None) -> float:
    return 0.0 if x is None else float(x.sum())


def _beyond(trajectory: Trajectory, agent: str, estimates: Estimates) -> float:
    """What an agent of a truncated episode could still expect.

    The value of its own turn in the layer that would have run; of that layer if it has none and the team is paid as
    one; else 0.
    """
    if not trajectory.truncated:
        return 0.0
    values = estimates.values
    own = [float(values[t][0]) for t in trajectory.planned if t.agent == agent and t in values]
    if own:
        return own[0]
    apart = any(layer.agent_rewards for layer in trajectory.layers)
    return 0.0 if apart else estimates.bootstraps.get(trajectory, 0.0)


def check_own_view(trajectory: Trajectory, links: Links) -> None:
    """V of a successor's own observation is a sound bootstrap only where it sees the turn's input and action.

    Raises:
        ConfigError: Some successor does not, so that its value would ignore what the turn said or was told.
    """
    turns = trajectory.transitions
    for t in turns:
        for j in links.successors[t.index]:
            missing = ({t.index} | set(t.turn.sees)) - set(turns[j].turn.sees)
            private = t.observation is None or t.observation != turns[j].observation
            if not missing and not private:
                continue
            what = f"turn(s) {sorted(missing)}" if missing else "its task observation"
            raise ConfigError(
                f"critic 'own' bootstraps {t.agent} (turn {t.index}) from {turns[j].agent} (turn {j}), who does not "
                f"see {what}: V(own) is unsound there when lambda_turn < 1. Use a critic that sees the team's "
                "transcript (MARFT with critic='team', MAPPO), or lambda_turn=1."
            )


def _common(agents: Mapping[str, float], names: set[str], layer: int) -> float:
    """The reward that every agent got alike (counted once), else an error."""
    if not agents:
        return 0.0
    per_agent = {name: agents.get(name, 0.0) for name in sorted(names | set(agents))}
    if len(set(per_agent.values())) > 1:
        raise ConfigError(
            f"Layer {layer} pays agents differently ({per_agent}), and a team chain has one return for all. "
            "Use agent chains (marft --chain agent, ippo, mappo), or let the task pay a team reward."
        )
    return next(iter(per_agent.values()))


def validate(trajectories: Sequence[Trajectory]) -> None:
    """Checks what chains rely on: turns in play order, each in exactly one layer.

    Raises:
        ConfigError: A trajectory breaks it.
    """
    for trajectory in trajectories:
        listed = [k for layer in trajectory.layers for k in layer.turns]
        indices = [t.index for t in trajectory.transitions]
        if indices != list(range(len(indices))) or sorted(listed) != indices:
            raise ConfigError(
                f"Episode {trajectory.number}: turns {indices} in layers {[x.turns for x in trajectory.layers]}; "
                "expected transitions[k].index == k and every turn in exactly one layer."
            )
