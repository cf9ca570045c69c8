"""Credit rules and successor relations."""

from __future__ import annotations

import pytest
from teams import episode

from marft_algos import credit
from marft_envs.errors import ConfigError


def test_broadcast_pays_every_turn_of_a_layer_all_of_it() -> None:
    trajectory = episode([["a", "b"], ["c"]], rewards=[0.5, 2.0])
    trajectory.transitions[1].reward = 0.25
    links = credit.team_chain(trajectory, credit.broadcast(trajectory))
    assert links.rewards == [0.75, 0.75, 2.0]
    assert links.successors == [(2,), (2,), ()]


def test_last_moves_a_rounds_pay_to_its_last_layer() -> None:
    trajectory = episode([["a"], ["b"], ["a"], ["b"]], rewards=[1.0, 2.0, 3.0, 4.0], rounds=[0, 0, 1, 1])
    trajectory.transitions[0].reward = 0.5
    links = credit.team_chain(trajectory, credit.get("last")(trajectory))
    assert links.rewards == [0.0, 3.5, 0.0, 7.0]
    assert trajectory.transitions[0].reward == 0.5, "the record itself stays as it was"


def test_the_next_round_follows_a_rounds_last_layer() -> None:
    trajectory = episode([["a"], ["b", "c"], ["a"]], rounds=[0, 0, 1])
    assert credit.team_chain(trajectory, credit.broadcast(trajectory)).successors == [(1, 2), (3,), (3,), ()]


def test_team_chains_refuse_agents_that_are_paid_differently() -> None:
    trajectory = episode([["a"], ["b"]])
    trajectory.layers[1].agents = {"a": 1.0, "b": -1.0}
    with pytest.raises(ConfigError, match="agent chains"):
        credit.team_chain(trajectory, credit.broadcast(trajectory))
    trajectory.layers[1].agents = {"a": 1.0}
    with pytest.raises(ConfigError, match="agent chains"):
        credit.team_chain(trajectory, credit.broadcast(trajectory))


def test_what_all_agents_get_alike_is_counted_once() -> None:
    trajectory = episode([["a"], ["b"]])
    trajectory.layers[1].agents = {"a": 0.5, "b": 0.5}
    assert credit.team_chain(trajectory, credit.broadcast(trajectory)).rewards == [0.0, 1.5]


def test_agent_chains_run_to_the_agents_own_next_turn() -> None:
    trajectory = episode([["a"], ["b"], ["a"]], rewards=[1.0, 2.0, 4.0])
    trajectory.layers[1].agents = {"b": 10.0, "a": -5.0}
    trajectory.transitions[1].reward = 0.5
    links = credit.agent_chain(trajectory, credit.broadcast(trajectory))
    assert links.rewards == [1.0 + 2.0 - 5.0, 0.5 + 2.0 + 10.0 + 4.0, 4.0]
    assert links.successors == [(2,), (), ()]


def test_a_dead_agent_keeps_its_share_of_the_teams_return() -> None:
    trajectory = episode([["a"], ["b"], ["b"]], rewards=[0.0, 0.0, 1.0], rounds=[0, 0, 1])
    assert credit.agent_chain(trajectory, credit.broadcast(trajectory)).rewards == [1.0, 0.0, 1.0]


def test_own_view_needs_successors_that_see_input_and_action() -> None:
    sound = episode([["a"], ["b"], ["c"]])
    credit.check_own_view(sound, credit.team_chain(sound, credit.broadcast(sound)))
    blind = episode([["a"], ["b"], ["c"]])
    blind.transitions[2].sees = (1,)
    with pytest.raises(ConfigError, match="lambda_turn=1"):
        credit.check_own_view(blind, credit.team_chain(blind, credit.broadcast(blind)))
    private = episode([["a"], ["b"]])
    private.transitions[0].info["observation"] = "a secret"
    with pytest.raises(ConfigError, match="its task observation"):
        credit.check_own_view(private, credit.team_chain(private, credit.broadcast(private)))


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
