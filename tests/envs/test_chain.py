"""Returns over layers of turns: identities that hold for any dependency function, and ten-line references."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.references import gae
from helpers.teams import episode, random_team
from marft_algos import credit
from marft_algos.functional import Discounts, lambda_returns
from marft_algos.types import Estimates, Trajectory

SEEDS = range(25)


def team_returns(trajectory: Trajectory, discounts: Discounts, values: list | None = None, token: bool = False, **kw):
    turns = trajectory.transitions
    lengths = [len(t.reply.action_ids) if token else 1 for t in turns]
    links = credit.team_chain(trajectory, credit.broadcast(trajectory), Estimates())
    return lambda_returns(values or [None] * len(turns), lengths, links.rewards, links.successors, discounts, **kw)


def scalar_loop(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """MARFT's recursion for a chain of single agents: GAE over agents, then over steps."""
    advantage, following, out = 0.0, 0.0, []
    for r, v in zip(reversed(rewards), reversed(values), strict=True):
        advantage = r + gamma * following - v + gamma * lam * advantage
        following = v
        out.append(advantage + v)
    return out[::-1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("token", [False, True])
def test_every_return_is_1_for_any_n_and_any_D(seed: int, token: bool) -> None:
    """γ = λ = 1, one terminal reward 1, V ≡ c: a reward that is broadcast and bootstrapped would give 1.5."""
    rng = np.random.default_rng(seed)
    trajectory = episode(random_team(rng, agents=int(rng.integers(1, 6))), seed=seed)
    values = [np.full(len(t.reply.action_ids) if token else 1, 0.37) for t in trajectory.transitions]
    advantages, returns = team_returns(trajectory, Discounts(), values, token)
    for a, g in zip(advantages, returns, strict=True):
        assert g == pytest.approx(1.0) and a == pytest.approx(1.0 - 0.37)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_layer_returns_the_sum_of_all_rewards(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers = random_team(rng)
    trajectory = episode(layers, seed=seed, rewards=rng.normal(size=len(layers)))
    for t in trajectory.transitions:
        t.turn.reward = float(rng.normal())
    total = sum(x.team_reward for x in trajectory.layers) + sum(t.turn.reward for t in trajectory.transitions)
    _, returns = team_returns(trajectory, Discounts(), token=True)
    for k in trajectory.layers[0].turns:
        assert returns[k] == pytest.approx(total)


@pytest.mark.parametrize("seed", SEEDS)
def test_token_level_with_one_token_equals_action_level(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers = random_team(rng)
    trajectory = episode(layers, seed=seed, tokens=[1] * sum(map(len, layers)), rewards=rng.normal(size=len(layers)))
    values = [rng.normal(size=1) for _ in trajectory.transitions]
    action = team_returns(trajectory, Discounts(1.0, 0.9, 1.0, 0.8), values)
    token = team_returns(trajectory, Discounts(0.7, 0.9, 0.6, 0.8), values, token=True)
    assert np.concatenate(action[1]) == pytest.approx(np.concatenate(token[1]))
    assert np.concatenate(action[0]) == pytest.approx(np.concatenate(token[0]))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_chain_of_n_equals_a_scalar_loop(n: int, rounds: int) -> None:
    rng = np.random.default_rng(n)
    rewards = rng.normal(size=n * rounds)
    trajectory = episode(
        [[f"a{i % n}"] for i in range(n * rounds)], rewards=rewards, rounds=[i // n for i in range(n * rounds)]
    )
    values = rng.normal(size=(n * rounds, 1))
    advantages, returns = team_returns(trajectory, Discounts(1.0, 0.95, 1.0, 0.9), list(values))
    expected = scalar_loop(list(rewards), list(values[:, 0]), 0.95, 0.9)
    assert np.concatenate(returns) == pytest.approx(expected)
    assert np.concatenate(advantages) == pytest.approx(np.array(expected) - values[:, 0])
    assert np.concatenate(returns) == pytest.approx(gae(rewards, values[:, 0], [True] * n * rounds, 0.95, 0.9)[1])


def brute(trajectory: Trajectory, values: list[np.ndarray], d: Discounts, tail: float, k: int, t: int) -> float:
    """The definition, as a recursion over layers without any shortcut."""
    turn = trajectory.transitions[k]
    if t < len(values[k]) - 1:
        return d.gamma_tok * (
            (1 - d.lambda_tok) * values[k][t + 1] + d.lambda_tok * brute(trajectory, values, d, tail, k, t + 1)
        )
    layer = trajectory.layers[turn.layer]
    paid = layer.team_reward + sum(trajectory.transitions[i].turn.reward for i in layer.turns)
    if turn.layer + 1 == len(trajectory.layers):
        return paid + d.gamma_turn * tail
    after = trajectory.layers[turn.layer + 1].turns
    ahead = [
        (1 - d.lambda_turn) * values[j][0] + d.lambda_turn * brute(trajectory, values, d, tail, j, 0) for j in after
    ]
    return paid + d.gamma_turn * sum(ahead) / len(ahead)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_teams_against_the_definition(seed: int) -> None:
    """Layers, tokens, bootstrap and all four discounts at once."""
    rng = np.random.default_rng(seed)
    layers = random_team(rng, agents=3)
    trajectory = episode(layers, seed=seed, rewards=rng.normal(size=len(layers)))
    for turn in trajectory.transitions:
        turn.turn.reward = float(rng.normal())
    values = [rng.normal(size=len(t.reply.action_ids)) for t in trajectory.transitions]
    d, tail = Discounts(0.9, 0.8, 0.7, 0.6), float(rng.normal())
    advantages, returns = team_returns(trajectory, d, values, token=True, bootstraps=[tail] * len(values))
    for k, v in enumerate(values):
        expected = [brute(trajectory, values, d, tail, k, t) for t in range(len(v))]
        assert returns[k] == pytest.approx(expected)
        assert advantages[k] == pytest.approx(np.array(expected) - v)


def test_a_successors_value_is_read_at_its_first_decision_point() -> None:
    """λ_turn = 0: the predecessor's return is V of the successor before its first token, which saw the message."""
    trajectory = episode([["a"], ["b"]], tokens=[1, 3])
    for value in (0.2, 0.9):
        values = [np.zeros(1), np.array([value, 5.0, -5.0])]
        _, returns = team_returns(trajectory, Discounts(lambda_turn=0.0), values, token=True)
        assert returns[0].tolist() == [value]


def test_trace_with_ratio_one_equals_gae() -> None:
    """A2PO's c multiplies λ once: with c ≡ 1 nothing changes."""
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=5), rng.normal(size=(5, 1))
    successors = [(1,), (2,), (3,), (4,), ()]
    discounts = Discounts(gamma_turn=0.9, lambda_turn=0.8)
    traced, _ = lambda_returns(list(values), [1] * 5, list(rewards), successors, discounts, traces=[1.0] * 5)
    assert np.concatenate(traced) == pytest.approx(gae(rewards, values[:, 0], [True] * 5, 0.9, 0.8)[0])


def test_trace_cuts_what_lies_behind_an_updated_turn() -> None:
    discounts = Discounts(lambda_turn=0.8)
    values = [np.array([0.1]), np.array([0.5]), np.array([0.3])]
    _, returns = lambda_returns(values, [1] * 3, [0.0, 0.0, 1.0], [(1,), (2,), ()], discounts, traces=[1.0, 0.5, 0.0])
    assert returns[1].tolist() == [0.3]
    assert returns[0] == pytest.approx([0.6 * 0.5 + 0.4 * 0.3])


def test_an_episodes_advantages_do_not_depend_on_the_episode_before_it() -> None:
    """Links exist inside an episode only, and none is cut because the step before had ended."""
    second = episode([["a"], ["b"], ["c"]], number=1)
    alone = team_returns(second, Discounts(), [np.zeros(1)] * 3)[0]
    for ended in (True, False):
        first = episode([["a"], ["b"], ["c"]], rewards=[7.0, 8.0, 9.0])
        first.episode.terminated, first.episode.truncated = ended, not ended
        team_returns(first, Discounts(), [np.ones(1)] * 3, bootstraps=[4.0] * 3)
        again = team_returns(second, Discounts(), [np.zeros(1)] * 3)[0]
        assert [a.tolist() for a in again] == [a.tolist() for a in alone] == [[1.0], [1.0], [1.0]]


def test_every_agents_buffer_is_written() -> None:
    for n in (2, 3, 4):
        trajectory = episode([[f"a{i}"] for i in range(n)])
        advantages, returns = team_returns(trajectory, Discounts(), [np.full(1, 0.25)] * n)
        assert [a.tolist() for a in advantages] == [[0.75]] * n and [g.tolist() for g in returns] == [[1.0]] * n


def test_float_buffers() -> None:
    """Integer inputs must not make integer buffers, which truncate every advantage to 0."""
    advantages, returns = lambda_returns(
        [np.array([0]), np.array([0])], [1, 1], [0, 1], [(1,), ()], Discounts(gamma_turn=0.5)
    )
    assert advantages[0].dtype == np.float64 and advantages[0].tolist() == [0.5]
    assert returns[0].dtype == np.float64


def test_without_a_critic_returns_pass_through() -> None:
    """A turn that no critic saw hands on its successors' return whatever λ is."""
    values = [np.array([0.1]), None, np.array([0.3])]
    advantages, returns = lambda_returns(values, [1] * 3, [0.0, 0.0, 1.0], [(1,), (2,), ()], Discounts(lambda_turn=0.5))
    assert [g.tolist() for g in returns] == [[0.65], [0.65], [1.0]]
    assert advantages[1].tolist() == [0.65]


def test_successors_must_be_later() -> None:
    with pytest.raises(ValueError, match="turn 0 names a successor"):
        lambda_returns([None], [1], [0.0], [(0,)], Discounts())
