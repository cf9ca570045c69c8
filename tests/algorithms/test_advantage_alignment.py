"""Advantage Alignment against brute force, and what it is without a past or without a weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.teams import episode
from marft_algos.algorithms import base as algorithm
from marft_algos.types import Estimates, Trajectory, Transition

LAYERS = [["a", "b"], ["a"], ["b"], ["a", "b"], ["a", "b"], ["b"]]
ROUNDS = [0, 0, 0, 1, 1, 2]


def games(layers: list[list[str]] = LAYERS, rounds: list[int] = ROUNDS, n: int = 6) -> list[Trajectory]:
    """Episodes in which each agent is paid its own."""
    made, rng = [], np.random.default_rng(0)
    for number in range(n):
        d = episode(layers, number=number, rewards=[0.0] * len(layers), rounds=rounds)
        for layer in d.layers:
            layer.agent_rewards = {agent: float(rng.normal()) for agent in "ab"}
        made.append(d)
    return made


def credited(name: str, data: list[Trajectory], **settings: Any) -> Estimates:
    rng = np.random.default_rng(1)
    turns = [t for d in data for t in d.transitions]
    found = Estimates(values={t: rng.normal(size=len(t.reply.action_ids)).astype(np.float32) for t in turns})
    cls = algorithm.get(name)
    cls(cls.Config(**settings)).credit(data, found)  # type: ignore[call-arg]
    return found


def same(one: Estimates, other: Estimates, turns: list[Transition]) -> bool:
    return all(one.advantages[t].tolist() == other.advantages[t].tolist() for t in turns)


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_a_turn_is_credited_with_the_others_advantage_times_its_agents_past(gamma: float) -> None:
    data, settings = games(), {"whiten": "off", "gamma_turn": gamma}
    plain = credited("ippo", data, **settings)
    found = credited("advantage_alignment", data, alignment=0.7, **settings)
    for d in data:
        for t in d.transitions:
            me, you, now = t.agent, "b" if t.agent == "a" else "a", t.turn.round

            def mean(agent: str, number: int, d: Trajectory = d) -> float | None:
                of = [u for u in d.transitions if u.agent == agent and u.turn.round == number]
                return sum(float(plain.advantages[u].mean()) for u in of) / len(of) if of else None

            past = [gamma ** (now - m) * before for m in range(now) if (before := mean(me, m)) is not None]
            others = mean(you, now) or 0.0
            more = 0.7 * gamma * sum(past) / len(past) * others if past else 0.0
            assert found.advantages[t] == pytest.approx(plain.advantages[t] + more, abs=1e-5)
            assert found.returns[t].tolist() == plain.returns[t].tolist()
    assert not same(found, plain, [t for d in data for t in d.transitions])


def test_after_a_good_past_what_is_good_for_the_other_is_learnt_and_after_a_bad_one_not() -> None:
    for past, sign in ((1.0, 1), (-1.0, -1)):
        (d,) = data = games([["a", "b"], ["a", "b"]], [0, 1], n=1)
        d.layers[0].agent_rewards, d.layers[1].agent_rewards = {"a": past, "b": 0.0}, {"a": 0.0, "b": 1.0}
        values = {t: np.zeros(len(t.reply.action_ids), np.float32) for t in d.transitions}
        cls = algorithm.get("advantage_alignment")
        cls(cls.Config(whiten="off")).credit(data, found := Estimates(values=values))  # type: ignore[call-arg]
        moved = float(found.advantages[d.transitions[2]].mean())
        assert d.transitions[2].agent == "a" and np.sign(moved) == sign


@pytest.mark.parametrize("settings", [{}, {"whiten": "off"}, {"level": "action", "gamma_turn": 0.9}])
def test_without_weight_or_past_it_is_ippo(settings: dict[str, Any]) -> None:
    data = games()
    turns = [t for d in data for t in d.transitions]
    assert same(
        credited("advantage_alignment", data, alignment=0.0, **settings), credited("ippo", data, **settings), turns
    )
    data = games([["a", "b"], ["a"]], [0, 0])
    turns = [t for d in data for t in d.transitions]
    assert same(credited("advantage_alignment", data, **settings), credited("ippo", data, **settings), turns)


def test_who_has_no_critic_leads_nobody() -> None:
    """A partner that is not trained has no values, and its returns are no advantages."""
    data = games()
    turns = [t for d in data for t in d.transitions]
    values = {t: np.zeros(len(t.reply.action_ids), np.float32) for t in turns if t.agent == "a"}
    ours = [t for t in turns if t.agent == "a"]
    found = {}
    for name in ("ippo", "advantage_alignment"):
        cls = algorithm.get(name)
        cls(cls.Config(whiten="off")).credit(data, of := Estimates(values=dict(values)))  # type: ignore[call-arg]
        found[name] = of
    assert same(found["ippo"], found["advantage_alignment"], ours)
