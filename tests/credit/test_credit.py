"""Credit rules and successor relations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from helpers.flex import PlainTask, flex
from helpers.teams import episode, put
from helpers.tiny import tiny_tokenizer
from marft_algos import credit
from marft_algos.engines import ScriptedEngine
from marft_algos.rollout.collector import Collector
from marft_algos.types import Estimates, SamplingParams, Trajectory
from marft_envs import Outcome, Router, TurnRecord
from marft_envs.core.vector import VectorEnv
from marft_envs.errors import ConfigError


def test_broadcast_pays_every_turn_of_a_layer_all_of_it() -> None:
    trajectory = episode([["a", "b"], ["c"]], rewards=[0.5, 2.0])
    trajectory.transitions[1].turn.reward = 0.25
    links = credit.team_chain(trajectory, credit.broadcast(trajectory), Estimates())
    assert links.rewards == [0.75, 0.75, 2.0]
    assert links.successors == [(2,), (2,), ()]


def test_last_moves_a_rounds_pay_to_its_last_layer() -> None:
    trajectory = episode([["a"], ["b"], ["a"], ["b"]], rewards=[1.0, 2.0, 3.0, 4.0], rounds=[0, 0, 1, 1])
    trajectory.transitions[0].turn.reward = 0.5
    links = credit.team_chain(trajectory, credit.get("last")(trajectory), Estimates())
    assert links.rewards == [0.0, 3.5, 0.0, 7.0]
    assert trajectory.transitions[0].turn.reward == 0.5, "the record itself stays as it was"


def test_the_next_round_follows_a_rounds_last_layer() -> None:
    trajectory = episode([["a"], ["b", "c"], ["a"]], rounds=[0, 0, 1])
    links = credit.team_chain(trajectory, credit.broadcast(trajectory), Estimates())
    assert links.successors == [(1, 2), (3,), (3,), ()]


def test_team_chains_refuse_agents_that_are_paid_differently() -> None:
    trajectory = episode([["a"], ["b"]])
    trajectory.layers[1].agent_rewards = {"a": 1.0, "b": -1.0}
    with pytest.raises(ConfigError, match="agent chains"):
        credit.team_chain(trajectory, credit.broadcast(trajectory), Estimates())
    trajectory.layers[1].agent_rewards = {"a": 1.0}
    with pytest.raises(ConfigError, match="agent chains"):
        credit.team_chain(trajectory, credit.broadcast(trajectory), Estimates())


def test_what_all_agents_get_alike_is_counted_once() -> None:
    trajectory = episode([["a"], ["b"]])
    trajectory.layers[1].agent_rewards = {"a": 0.5, "b": 0.5}
    assert credit.team_chain(trajectory, credit.broadcast(trajectory), Estimates()).rewards == [0.0, 1.5]


def test_agent_chains_run_to_the_agents_own_next_turn() -> None:
    trajectory = episode([["a"], ["b"], ["a"]], rewards=[1.0, 2.0, 4.0])
    trajectory.layers[1].agent_rewards = {"b": 10.0, "a": -5.0}
    trajectory.transitions[1].turn.reward = 0.5
    links = credit.agent_chain(trajectory, credit.broadcast(trajectory), Estimates())
    assert links.rewards == [1.0 + 2.0 - 5.0, 0.5 + 2.0 + 10.0 + 4.0, 4.0]
    assert links.successors == [(2,), (), ()]


def test_a_dead_agent_keeps_its_share_of_the_teams_return() -> None:
    trajectory = episode([["a"], ["b"], ["b"]], rewards=[0.0, 0.0, 1.0], rounds=[0, 0, 1])
    assert credit.agent_chain(trajectory, credit.broadcast(trajectory), Estimates()).rewards == [1.0, 0.0, 1.0]


def test_own_view_needs_successors_that_see_input_and_action() -> None:
    sound = episode([["a"], ["b"], ["c"]])
    credit.check_own_view(sound, credit.team_chain(sound, credit.broadcast(sound), Estimates()))
    blind = episode([["a"], ["b"], ["c"]])
    blind.transitions[2].turn.sees = (1,)
    with pytest.raises(ConfigError, match="lambda_turn=1"):
        credit.check_own_view(blind, credit.team_chain(blind, credit.broadcast(blind), Estimates()))
    private = episode([["a"], ["b"]])
    put(private.transitions[0], observation="a secret")
    with pytest.raises(ConfigError, match="its task observation"):
        credit.check_own_view(private, credit.team_chain(private, credit.broadcast(private), Estimates()))


# Pay that comes late -------------------------------------------------------------------------------------


class LatePayer(PlainTask):
    """Pays at random: the team, agents, turns of this layer and of earlier ones; keeps a log of its own."""

    def __init__(self, seed: int, team_only: bool) -> None:
        super().__init__()
        self.rng, self.team_only = np.random.default_rng(seed), team_only
        self.log: list[tuple[int, str, object, float]] = []
        self.committed: list[list[tuple[int, str]]] = []

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        super().reset(rng, options)
        self.log, self.committed = [], []

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        self.committed.append([(t.index, t.agent) for t in turns])
        return self.pay()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        return self.pay()

    def pay(self) -> Outcome:
        """Logs (layers committed, channel, to whom, how much)."""
        now, amount = len(self.committed), lambda: round(float(self.rng.normal()), 3)
        everybody = [k for layer in self.committed for k, _ in layer]
        outcome = Outcome(
            team_reward=amount(),
            turn_rewards={k: amount() for k in everybody if self.rng.random() < 0.5},
            agent_rewards={} if self.team_only else {a: amount() for a in "abcd" if self.rng.random() < 0.3},
        )
        outcome.agent_rewards = {f"{a}_0": r for a, r in outcome.agent_rewards.items()}
        self.log.append((now, "team", None, outcome.team_reward))
        self.log += [(now, "turn", k, r) for k, r in outcome.turn_rewards.items()]
        self.log += [(now, "agent", a, r) for a, r in outcome.agent_rewards.items()]
        return outcome


def collected(task: LatePayer, seed: int) -> Trajectory:
    rng = np.random.default_rng(seed)
    walks = [[f"{a}_0" for a in "abcd" if rng.random() < 0.5] or ["a_0"] for _ in range(6)]
    d = Router(lambda view: walks[len(view.history) % 6] if view.layer < 3 else [])
    env = flex(4, d, task, max_rounds=2)
    env.task = task
    engine = ScriptedEngine({"*": "word"}, tiny_tokenizer())
    (trajectory,) = Collector(VectorEnv([lambda: env]), None, engine, SamplingParams()).collect([seed])
    return trajectory


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_returns_count_pay_where_it_was_paid(seed: int, gamma: float) -> None:
    """Against a return computed from the task's own log: what was paid between two layers belongs between them."""
    task = LatePayer(seed, team_only=True)
    trajectory = collected(task, seed)
    layer_of = {k: i for i, layer in enumerate(task.committed) for k, _ in layer}
    agent_of = {k: agent for layer in task.committed for k, agent in layer}
    paid = credit.broadcast(trajectory)
    team = credit.returns_to_go(trajectory, credit.team_chain(trajectory, paid, Estimates()), gamma)
    for k, layer in layer_of.items():
        wanted = sum(r * gamma ** (now - 1 - layer) for now, _, _, r in task.log if now > layer)
        assert team[k] == pytest.approx(wanted)
    assert credit.team_score(trajectory, paid) == pytest.approx(trajectory.score) == sum(r for *_, r in task.log)

    task = LatePayer(seed, team_only=False)
    trajectory = collected(task, seed)
    paid = credit.broadcast(trajectory)
    own = credit.returns_to_go(trajectory, credit.agent_chain(trajectory, paid, Estimates()), gamma)
    for k, layer in layer_of.items():
        agent, wanted = agent_of[k], 0.0
        turns = sorted(layer_of[j] for j in agent_of if agent_of[j] == agent)
        for now, kind, to, reward in task.log:
            mine = kind == "team" or to == agent or (kind == "turn" and agent_of[to] == agent)  # type: ignore[index]
            if mine and now > layer:
                passed = sum(layer < other < now for other in turns)
                wanted += reward * gamma**passed
        assert own[k] == pytest.approx(wanted)
    for agent in "abcd":
        name = f"{agent}_0"
        if name in agent_of.values():
            wanted = sum(
                r for _, kind, to, r in task.log
                if kind == "team" or to == name or (kind == "turn" and agent_of[to] == name)  # type: ignore[index]
            )  # fmt: skip
            assert credit.agent_score(trajectory, paid, name, Estimates()) == pytest.approx(wanted)


@pytest.mark.parametrize("seed", range(10))
def test_rules_on_the_record_keep_late_pay(seed: int) -> None:
    """``last`` moves what a round pays to its last layer, late pay too; qualities of spans hold what was paid in them."""
    task = LatePayer(seed, team_only=True)
    trajectory = collected(task, seed)
    rounds = [trajectory.transitions[layer.turns[0]].round for layer in trajectory.layers]
    links = credit.team_chain(trajectory, credit.get("last")(trajectory), Estimates())
    for i, layer in enumerate(trajectory.layers):
        last = i + 1 == len(rounds) or rounds[i + 1] != rounds[i]
        wanted = sum(r for now, _, _, r in task.log if now and rounds[now - 1] == rounds[i]) if last else 0.0
        assert links.rewards[layer.turns[0]] == pytest.approx(wanted)
    qualities = [sum(r for now, _, _, r in task.log if now == i + 1) for i in range(len(rounds))]
    spans = [q - before for q, before in zip(qualities, [0.0, *qualities[:-1]], strict=True)]
    paid = credit.get("difference")(trajectory)
    assert [paid.turns[layer.turns[0]] for layer in trajectory.layers] == pytest.approx(spans)


def test_unknown_rule_names_the_nearest() -> None:
    assert credit.rules() == sorted(credit.rules()) and {"broadcast", "last"} <= set(credit.rules())
    with pytest.raises(ConfigError, match="Did you mean 'broadcast'"):
        credit.get("broadcst")
    with pytest.raises(ConfigError, match="registered already"):
        credit.register("last")(credit.broadcast)


def test_records_that_do_not_fit_are_refused() -> None:
    trajectory = episode([["a"], ["b"]])
    credit.validate([trajectory])
    trajectory.layers[1].turns = (0,)
    with pytest.raises(ConfigError, match="exactly one layer"):
        credit.validate([trajectory])
