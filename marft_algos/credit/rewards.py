"""Defines rewards of turns and layers, credit rules, and the successor relations that returns run over.

A credit rule turns the recorded reward channels of an episode into rewards of turns. A successor relation says whose
values bootstrap a turn: the team's leads from a layer to the next one, the agents' from a turn to the agent's own next
turn. A reward enters once along any path of successors, between the layers where it falls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from marft_algos import functional as F
from marft_algos import types
from marft_algos.credit.branches import BranchReplayer
from marft_algos.types import Estimates, Keep, Need, Trajectory, Transition
from marft_envs.core.types import AgentSpec
from marft_envs.errors import ConfigError

FloatArray = NDArray[np.floating]
Relation = Literal["team", "agent", "round", "episode"]
"""Successor relation of an algorithm's returns: over layers, each agent's own turns, rounds with one joint advantage,
or an agent's whole episode with one score."""
Setting = str | Mapping[str, Any]
"""A rule's name, or a table: ``rule`` and its arguments, ``costs``, ``budgets`` and ``multiplier_lr``."""


@dataclass(slots=True)
class Rewards:
    """Holds the rewards that a credit rule assigns in one episode, by place. An empty list: none of that kind."""

    turns: list[float]
    """Per transition: reward at its own layer."""
    team: list[float] = field(default_factory=list)
    """Per layer: reward after it commits and before the next layer does."""
    agents: list[Mapping[str, float]] = field(default_factory=list)
    """Per layer: agent -> reward."""
    late: list[Mapping[int, float]] = field(default_factory=list)
    """Per layer: transition of an earlier layer -> its reward here."""
    tokens: list[FloatArray | None] = field(default_factory=list)
    """Per transition: reward of each token of its reply beside ``turns``, [L]; None: none. A KL in the reward
    (``Estimates.penalties``), which does not depend on the rule, is added by the chains."""

    @property
    def totals(self) -> list[float]:
        """Returns per transition the sum of its own rewards, late ones included."""
        own = zip(self.turns, self.tokens or [None] * len(self.turns), strict=True)
        return [r + _sum(x) + sum(late.get(k, 0.0) for late in self.late) for k, (r, x) in enumerate(own)]

    def by_layer(self, layers: int) -> zip[tuple[float, Mapping[str, float], Mapping[int, float]]]:
        """Returns per layer the rewards of the team, of agents and of turns of earlier layers."""
        return zip(self.team or [0.0] * layers, self.agents or [{}] * layers, self.late or [{}] * layers, strict=True)


@dataclass(slots=True)
class ReturnChain:
    """Holds rewards between turns and their successors: what ``functional.lambda_returns`` runs over.

    A rule that assigns whole returns, to which no later reward is added, returns a chain without successors.
    """

    rewards: list[float]
    """Per transition: all rewards before its successors, beside those of its tokens."""
    successors: list[tuple[int, ...]]
    """Per transition: whose values bootstrap it."""
    bootstraps: list[float]
    """Per transition: the value beyond its last successor, where a limit truncated the episode without a reward."""
    tokens: list[FloatArray | None]
    """Per transition: reward of each token of its reply, [L]; None: none."""

    @classmethod
    def of_returns(cls, returns: Sequence[float]) -> ReturnChain:
        """Returns the chain of a rule that assigns whole returns."""
        n = len(returns)
        return cls(list(returns), [()] * n, [0.0] * n, [None] * n)

    @property
    def totals(self) -> list[float]:
        """Returns per transition the rewards from its first token to its successors."""
        return [r + _sum(x) for r, x in zip(self.rewards, self.tokens, strict=True)]

    def token_rewards(self, lengths: Sequence[int]) -> list[FloatArray | None]:
        """Returns per transition the rewards of its decision points: a single one has those of all its tokens."""
        return [
            x if x is None or len(x) == n else np.array([_sum(x)]) for x, n in zip(self.tokens, lengths, strict=True)
        ]


Credit = Rewards | ReturnChain
"""What a rule returns."""


class Rule:
    """Base class: one that takes arguments is a dataclass of them.

    Attributes:
        name: What users type; set by ``register``.
        needs: What a run must offer, beside what the algorithm needs.
        chains: Relations for which its rewards are right; names as of ``Algorithm.chain``.
        keep: The states that ``replay`` goes on from.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[frozenset[Need]] = frozenset()
    chains: ClassVar[frozenset[Relation]] = frozenset(get_args(Relation))
    keep: ClassVar[Keep] = "nothing"

    def check(self, team: Sequence[AgentSpec]) -> None:
        """Raises ``ConfigError`` if the arguments do not fit the team."""

    def replay(self, trajectories: Sequence[Trajectory], replayer: BranchReplayer, iteration: int) -> list[Trajectory]:
        """Plays what the rule wants to know, at the weights that the episodes were sampled with. Nothing here.

        Returns:
            The episodes, in order, with what branches say in ``replayed``.
        """
        return list(trajectories)

    def prepare(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Looks at all of an iteration's episodes before any of them is rewarded; returns numbers to log."""
        return {}

    def __call__(self, trajectory: Trajectory) -> Credit:
        """Returns the rewards of this episode."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Returns what must survive a restart; plain Python only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores ``state_dict``."""


class Plain(Rule):
    """A rule that is a function of one episode."""

    def __init__(self, name: str, function: Callable[[Trajectory], Credit]) -> None:
        self.name = name  # type: ignore[misc]
        self._function = function

    def __call__(self, trajectory: Trajectory) -> Credit:
        return self._function(trajectory)


registered: dict[str, Plain | type[Rule]] = {}
"""Name -> rule."""
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def register(name: str) -> Callable[[_Rule], _Rule]:
    """Makes a credit rule known as ``name``: a decorator.

    A rule is a function from a trajectory to its rewards, or a subclass of ``Rule`` that is a dataclass of arguments.
    """

    def add(rule: _Rule) -> _Rule:
        if name in registered:
            raise ConfigError(f"Credit rule '{name}' is registered already; choose another name.")
        if isinstance(rule, type) and issubclass(rule, Rule):
            rule.name = name
            registered[name] = rule
        else:
            registered[name] = Plain(name, cast(Callable[[Trajectory], Credit], rule))
        return rule

    return add


def rules() -> list[str]:
    """Returns the names of the registered credit rules."""
    return sorted(registered)


@register("broadcast")
def broadcast(trajectory: Trajectory) -> Rewards:
    """Leaves rewards where they fall: every turn of a layer gets all of it, undivided.

    A span of a text is rewarded at the token that completes it. A late one is credited to later turns, as other late
    rewards are, and to the reply up to that token; the reply's last token takes it off what follows.
    """
    credit = Rewards(
        turns=punctual(trajectory),
        team=[layer.team_reward for layer in trajectory.layers],
        agents=[dict(layer.agent_rewards) for layer in trajectory.layers],
        late=[dict(layer.late_rewards) for layer in trajectory.layers],
        tokens=[None] * len(trajectory.transitions),
    )
    for layer in trajectory.layers:
        for k, spans in layer.segments.items():
            t = trajectory.transitions[k]
            if not t.tokens_at:  # its tokens are not known here, or have no loss: the turn is rewarded as a whole
                continue
            x = np.zeros(len(t.reply.action_ids)) if (before := credit.tokens[k]) is None else before
            for _, end, reward in spans:
                x[t.tokens_at[end]] += reward
            total = sum(reward for *_, reward in spans)
            if t.layer < layer.index:
                x[-1] -= total
            else:
                credit.turns[k] -= total
            credit.tokens[k] = x
    return credit


# Successor relations -------------------------------------------------------------------------------


def team_chain(trajectory: Trajectory, credit: Credit, estimates: Estimates) -> ReturnChain:
    """Links each layer to the next one through the whole episode, a round's last layer to the next round's first.

    Rewards of a turn's tokens go token by token to the turn itself, and at the layer's end to those beside.

    Raises:
        ConfigError: Agents have different rewards: one return for all of them has no meaning then.
    """
    tokens = _of_tokens(trajectory, credit, estimates)
    if isinstance(credit, ReturnChain):
        return replace(credit, tokens=tokens)
    names = {t.agent for t in trajectory.transitions}
    rewards = [0.0] * len(trajectory.transitions)
    successors: list[tuple[int, ...]] = [()] * len(trajectory.transitions)
    for i, (team, agents, late) in enumerate(credit.by_layer(len(trajectory.layers))):
        layer = trajectory.layers[i]
        reward = team + sum(credit.turns[k] for k in layer.turns) + _common(agents, names, i)
        reward += sum(late.values())
        following = trajectory.layers[i + 1].turns if i + 1 < len(trajectory.layers) else ()
        for k in layer.turns:
            rewards[k] = reward + sum(_sum(tokens[j]) for j in layer.turns if j != k)
            successors[k] = tuple(following)
    beyond = estimates.bootstraps.get(trajectory, 0.0) if trajectory.truncated else 0.0
    return ReturnChain(rewards, successors, [beyond] * len(rewards), tokens)


def team_score(trajectory: Trajectory, credit: Credit, estimates: Estimates | None = None) -> float:
    """Returns the episode's one score: all rewards, layer by layer.

    Raises:
        ConfigError: As ``team_chain``.
    """
    totals = team_chain(trajectory, credit, estimates or Estimates()).totals
    return float(sum(totals[layer.turns[0]] for layer in trajectory.layers))


def returns_to_go(trajectory: Trajectory, chain: ReturnChain, gamma: float = 1.0) -> list[float]:
    """Returns per turn the rewards from there to the end, discounted from successor to successor; no values."""
    n = len(trajectory.transitions)
    returns = F.lambda_returns([None] * n, [1] * n, chain.totals, chain.successors, F.Discounts(gamma_turn=gamma))[1]
    return [float(g[0]) for g in returns]


def spread(
    trajectories: Sequence[Trajectory], advantages: Sequence[float] | FloatArray
) -> dict[Transition, types.FloatArray]:
    """Returns every turn's advantage where it is its episode's (action level)."""
    return {
        t: np.array([advantage], dtype=np.float32)
        for trajectory, advantage in zip(trajectories, advantages, strict=True)
        for t in trajectory.transitions
    }


def agent_score(trajectory: Trajectory, credit: Credit, agent: str, estimates: Estimates) -> float:
    """Returns one agent's score of the episode: the team's rewards, its own, and its own turns'."""
    tokens = _of_tokens(trajectory, credit, estimates)
    rewards = credit.rewards if isinstance(credit, ReturnChain) else credit.turns
    score = sum(rewards[t.index] + _sum(tokens[t.index]) for t in trajectory.transitions if t.agent == agent)
    if isinstance(credit, ReturnChain):
        return float(score)
    score += sum(_late(trajectory, late, agent) for late in credit.late)
    return float(score + sum(credit.team) + sum(layer.get(agent, 0.0) for layer in credit.agents))


def agent_chain(trajectory: Trajectory, credit: Credit, estimates: Estimates) -> ReturnChain:
    """Links each turn to the agent's next one; the rewards between are its own and the team's."""
    tokens = _of_tokens(trajectory, credit, estimates)
    if isinstance(credit, ReturnChain):
        return replace(credit, tokens=tokens)
    turns = trajectory.transitions
    by_layer = list(credit.by_layer(len(trajectory.layers)))
    rewards = [0.0] * len(turns)
    successors: list[tuple[int, ...]] = [()] * len(turns)
    for t in turns:
        later = next((u for u in turns if u.agent == t.agent and u.layer > t.layer), None)
        span = by_layer[t.layer : later.layer if later else None]
        rewards[t.index] = credit.turns[t.index] + sum(team + agents.get(t.agent, 0.0) for team, agents, _ in span)
        rewards[t.index] += sum(_late(trajectory, late, t.agent) for *_, late in span)
        successors[t.index] = (later.index,) if later else ()
    return ReturnChain(rewards, successors, [_bootstrap(trajectory, t.agent, estimates) for t in turns], tokens)


def _late(trajectory: Trajectory, late: Mapping[int, float], agent: str) -> float:
    """Returns an agent's rewards for turns of earlier layers."""
    return sum(reward for k, reward in late.items() if trajectory.transitions[k].agent == agent)


def punctual(trajectory: Trajectory) -> list[float]:
    """Returns per turn its reward at its own layer, without late ones."""
    credit = [t.turn.reward for t in trajectory.transitions]
    for layer in trajectory.layers:
        for k, reward in layer.late_rewards.items():
            credit[k] -= reward
    return credit


def _of_tokens(trajectory: Trajectory, credit: Credit, estimates: Estimates) -> list[FloatArray | None]:
    """Returns per turn the reward of each of its tokens by the rule, less a KL in the reward.

    Raises:
        ConfigError: The rule rewards other tokens than those of the replies.
    """
    turns = trajectory.transitions
    charged = [estimates.penalties.get(t) for t in turns]
    if not credit.tokens:
        return list(charged)
    lengths = [len(t.reply.action_ids) for t in turns]
    shapes = [None if x is None else np.shape(x) for x in credit.tokens]
    fits = len(shapes) == len(turns) and all(s in (None, (n,)) for s, n in zip(shapes, lengths, strict=True))
    if not fits or not all(x is None or np.isfinite(x).all() for x in credit.tokens):
        raise ConfigError(
            f"The credit rule rewards tokens of shapes {shapes} in episode {trajectory.number}, whose replies have"
            f" {lengths} tokens. Expected Rewards.tokens to hold a finite number for each token of each turn, in the"
            " order of trajectory.transitions: an array of len(t.reply.action_ids), or None for nothing."
        )
    own = [None if x is None else np.asarray(x, dtype=np.float64) for x in credit.tokens]
    return [x if y is None else y if x is None else x + y for x, y in zip(own, charged, strict=True)]


def _sum(x: FloatArray | None) -> float:
    return 0.0 if x is None else float(x.sum())


def _bootstrap(trajectory: Trajectory, agent: str, estimates: Estimates) -> float:
    """Returns what an agent of a truncated episode could still expect.

    The value of its own turn in the layer that would have run; of that layer if it has none and the team is rewarded as
    one; else 0.
    """
    if not trajectory.truncated:
        return 0.0
    values = estimates.values
    values_of_agent = [float(values[t][0]) for t in trajectory.planned if t.agent == agent and t in values]
    if values_of_agent:
        return values_of_agent[0]
    apart = any(layer.agent_rewards for layer in trajectory.layers)
    return 0.0 if apart else estimates.bootstraps.get(trajectory, 0.0)


def check_own_view(trajectory: Trajectory, chain: ReturnChain) -> None:
    """Checks that a successor's V is a sound bootstrap: its observation must hold the turn's input and action.

    Raises:
        ConfigError: Some successor does not, so that its value would ignore the turn's reply or prompt.
    """
    turns = trajectory.transitions
    for t in turns:
        for j in chain.successors[t.index]:
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
    """Returns the reward that every agent got alike (counted once), else an error."""
    if not agents:
        return 0.0
    per_agent = {name: agents.get(name, 0.0) for name in sorted(names | set(agents))}
    if len(set(per_agent.values())) > 1:
        raise ConfigError(
            f"Layer {layer} rewards agents differently ({per_agent}), and a team chain has one return for all. "
            "Use agent chains (marft --chain agent, ippo, mappo), or let the task give a team reward."
        )
    return next(iter(per_agent.values()))


def validate(trajectories: Sequence[Trajectory]) -> None:
    """Checks what successor relations rely on: turns in play order, each in exactly one layer.

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
