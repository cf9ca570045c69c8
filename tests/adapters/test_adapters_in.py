"""Environments of others under this project's drivers: PettingZoo, Gymnasium, and by name."""

from __future__ import annotations

import copy
import pickle
import random
import re
from collections.abc import Callable
from importlib import metadata
from typing import Any

import gymnasium
import numpy as np
import pytest

import marft_envs
from helpers import strangers
from marft_envs import ConfigError, FlexEnv, MissingExtraError, check_env
from marft_envs.adapters import optional
from marft_envs.adapters.inward import aec, compliance, gym_text, parallel
from marft_envs.adapters.inward.codecs import BoardPlanes, Discrete, chosen
from marft_envs.adapters.inward.game import OPPONENTS
from marft_envs.testing import invariants

Say = Callable[[FlexEnv, str], str]


def play(env: FlexEnv, say: Say, seed: int = 0) -> marft_envs.Episode:
    env.reset(seed=seed)
    while not env.done:
        for agent in env.ready_agents:
            env.select(agent)
            env.step(say(env, agent))
    return env.episode


def first_legal(env: FlexEnv, agent: str) -> str:
    return str(env.task.sample_actions(agent)[0])


# AEC --------------------------------------------------------------------------------------------------


def test_the_turn_order_is_theirs_and_recorded_as_d() -> None:
    env, theirs = aec.wrap(strangers.Counting(), sees=1), strangers.Counting()
    episode = play(env, lambda env, agent: "two", seed=3)
    theirs.reset(seed=int(np.random.default_rng(3).integers(2**31)))
    order = []
    while not any(theirs.terminations.values()):
        order.append(theirs.agent_selection)
        theirs.step("two")
    assert [turn.agent for turn in episode.turns] == order
    assert [turn.sees for turn in episode.turns] == [(), *((i,) for i in range(len(order) - 1))]
    assert episode.rounds[1].edges == [(0, 1)]
    assert episode.layers[-1].agent_rewards == theirs.rewards
    assert episode.metrics[f"return/{order[-1]}"] == 1.0


def test_visibility_of_moves_is_an_option() -> None:
    public = play(aec.wrap(strangers.Counting(), sees="public"), lambda env, agent: "one")
    assert [turn.sees for turn in public.turns] == [tuple(range(i)) for i in range(5)]
    with pytest.raises(ConfigError, match="'public'"):
        aec.wrap(strangers.Counting(), sees="everything")


def test_an_environment_of_text_keeps_the_rules() -> None:
    def build() -> FlexEnv:
        return aec.wrap(strangers.Counting(), sees=1)

    for promise in invariants.CHECKS:
        if promise is not invariants.hostile_actions:  # slow; the parallel environment below goes through it
            promise(build)


def test_a_copy_or_a_pickle_goes_on_where_the_game_stands() -> None:
    env = aec.wrap(strangers.Counting())
    env.reset(seed=5)
    env.step("one")
    env.step("two")
    copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    ends = []
    for one in [env, *copies]:
        while not one.done:
            one.step("one")
        ends.append([(turn.agent, turn.text) for turn in one.episode.turns])
    assert ends[0] == ends[1] == ends[2]


def test_wrong_settings_are_reported_at_once() -> None:
    for settings, word in (
        ({"illegal": "loose"}, "lose"),
        ({"opponents": "randm"}, "random"),
        ({"opponents": {"anne": "random"}}, "ann"),
        ({"profiles": {"anne": "Win."}}, "ann"),
        ({"opponents": dict.fromkeys(("ann", "bob", "cid"), "random")}, "no agent is left"),
    ):
        with pytest.raises(ConfigError, match=word):
            aec.wrap(strangers.Counting(), **settings)
    with pytest.raises(ConfigError, match="lists no legal moves"):
        for seed in range(5):
            play(aec.wrap(strangers.Counting(), opponents="random"), lambda env, agent: "one", seed)


# Codecs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "moves", "move"), [
    ("7", "7 17", "7"), ("I take 17.", "7 17", "17"), ("77", "7", None), ("", "7", None), ("1.5", "5", None),
    ("not 7 but up-left!", "up up-left 7", "up-left"), ("setup", "up", None), ("größlos", "los", None),
    ("答案是17。", "7 17", "17"), ("我选左。", "左 右", "左"), ("1을 선택합니다", "1 2", "1"), ("我选up", "up down", "up"),
    ("Rock!", "rock paper", "rock"), ("I say B", "a b i", None), ("nf3", "Nf3 nF3", None), ("UP? down", "up down", "down"),
])  # fmt: skip
def test_a_move_is_found_in_what_is_said(said: str, moves: str, move: str | None) -> None:
    assert chosen(said, moves.split()) == move


def test_a_board_is_drawn_from_its_agents_side() -> None:
    planes = np.zeros((3, 3, 2), np.int8)
    planes[0, 0, 0] = planes[1, 1, 1] = 1
    seen = {"observation": planes, "action_mask": np.array([0, 1, 1, 1, 0, 1, 1, 1, 1], np.int8)}
    cells = BoardPlanes(3, 3, 9)
    assert cells.show(seen) == "x 2 3\n4 o 6\n7 8 9"
    assert list(cells.moves(seen["action_mask"])) == ["2", "3", "4", "6", "7", "8", "9"]
    assert BoardPlanes(3, 3, 3).show(seen) == "x . .\n. o .\n. . .\n1 2 3"


# PettingZoo's own games -------------------------------------------------------------------------------


@pytest.fixture
def tictactoe() -> Any:
    pytest.importorskip("pygame", reason="PettingZoo's classic games need pygame: pip install -e '.[pettingzoo]'")
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3


def test_an_illegal_move_loses_and_is_counted(tictactoe: Any) -> None:
    episode = play(aec.wrap(tictactoe.env()), lambda env, agent: "5")
    assert [turn.text for turn in episode.turns] == ["5", "5"]
    assert episode.stop_reason == "illegal" and episode.metrics["illegal"] == 1
    assert episode.layers[-1].agent_rewards == {"player_2": -1.0}


def test_or_a_legal_move_is_drawn_with_the_environments_generator(tictactoe: Any) -> None:
    episodes = [play(aec.wrap(tictactoe.env(), illegal="random"), lambda env, agent: "pass", 7) for _ in range(2)]
    assert episodes[0].stop_reason == "task" and episodes[0].metrics["illegal"] == len(episodes[0].turns)
    assert episodes[0].info["moves"] == episodes[1].info["moves"]
    assert (
        episodes[0].info["moves"]
        != play(aec.wrap(tictactoe.env(), illegal="random"), lambda env, agent: "pass", 8).info["moves"]
    )


def test_fixed_opponents_play_one_seat_and_decide_success(tictactoe: Any) -> None:
    env = aec.wrap(tictactoe.env(), opponents="first")
    seats = set()
    for seed in range(12):
        episode = play(env, lambda env, agent: env.task.game.moves(agent)[-1], seed)
        (seat,) = {turn.agent for turn in episode.turns}
        seats.add(seat)
        # 9, 8, 7 against 1, 2, 3: who begins has its row first.
        assert episode.success == (seat == "player_1") == (episode.metrics[f"return/{seat}"] == 1.0)
        assert [move for who, move in episode.info["moves"] if who != seat][:2] == ["1", "2"]
    assert seats == {"player_1", "player_2"}


def test_the_winning_opponent_takes_its_row(tictactoe: Any) -> None:
    env = aec.wrap(tictactoe.env())
    env.reset(seed=0)
    for move in "1425":
        env.step(move)
    rng = np.random.default_rng(0)
    assert {OPPONENTS["winning"](env.task.game, "player_1", rng) for _ in range(5)} == {"3"}
    assert env.task.game.moves("player_1") == ["3", "6", "7", "8", "9"]  # looking ahead changes nothing


def test_what_is_seen_is_never_out_of_date(tictactoe: Any) -> None:
    """Observations are kept between two questions: a step, a new episode or a copy must not see the last ones."""
    env = aec.wrap(tictactoe.env())
    env.reset(seed=0)
    game, twin = env.task.game, copy.deepcopy(env)
    assert game.observe("player_2") == "1 2 3\n4 5 6\n7 8 9"
    env.step("5")
    assert (game.observe("player_1"), game.observe("player_2")) == ("1 2 3\n4 x 6\n7 8 9", "1 2 3\n4 o 6\n7 8 9")
    assert "5" not in game.moves("player_2") and "5" in twin.task.game.moves("player_1")
    env.reset(seed=0)
    assert game.observe("player_2") == "1 2 3\n4 5 6\n7 8 9"


@pytest.mark.ci
def test_the_benchmark_shows_every_square_at_a_place_of_its_own(tictactoe: Any) -> None:
    selfplay = pytest.importorskip("benchmarks.learning.selfplay", reason="training is not installed")
    env = marft_envs.make(selfplay.GAME, **selfplay.BOARD)
    env.reset(seed=0)
    for move, seen in (("5", "1234o6789"), ("9", "1234x678o"), ("1", "o234o678x")):
        env.step(move)
        assert env.task.observe(env.agent_selection) == seen
    codecs = selfplay.places()
    assert codecs["speaker_0"].show(np.array([0.15, 0.65, 0.15])) == "goal 1"
    silent = np.zeros(11)
    spoken = np.array([0, 0, -1.0, 1.0, 0, 0, 9, -9, 0, 0, 1])
    assert codecs["listener_0"].show(silent) == "-\n44\n44\n44"
    assert codecs["listener_0"].show(spoken) == "2\n27\n44\n90"


def test_strangers_environments_need_no_code_of_ours(tictactoe: Any) -> None:
    """Three of PettingZoo's, as the documentation says: by their spaces, or with a codec of a few lines."""
    from pettingzoo.classic import connect_four_v3, go_v5, rps_v2

    four = aec.wrap(connect_four_v3.env(), profiles="Name a column.")
    names = ["rock", "paper", "scissors"]
    fists = aec.wrap(rps_v2.env(), Discrete(names, show=lambda last: ["rock", "paper", "scissors", "start"][int(last)]))

    def stones(planes: Any) -> str:
        return "\n".join("".join("x" if x else "o" if o else "." for x, o in row) for row in planes[:, :, :2])

    points = [f"{'ABCDE'[i % 5]}{i // 5 + 1}" for i in range(25)]
    go = aec.wrap(go_v5.env(board_size=5), Discrete([*points, "pass"], show=stones), max_rounds=30)
    for env in (four, fists, go):
        episode = play(env, lambda env, agent: f"I say {first_legal(env, agent)}")
        assert episode.metrics["illegal"] == 0 and len(episode.turns) > 5


# Parallel ---------------------------------------------------------------------------------------------


def test_everybody_acts_at_once_until_somebody_leaves() -> None:
    env = parallel.wrap(strangers.Choir(rounds=4), cooperative=True)
    assert env.dependency.is_empty and env.metadata["is_parallelizable"]
    episode = play(env, lambda env, agent: "1")
    assert [[episode.turns[i].agent for i in layer.turns] for layer in episode.layers] == [
        ["low", "high"], ["low", "high"], ["high"], ["high"],
    ]  # fmt: skip
    assert all(not turn.sees for turn in episode.turns)
    # The team's reward is the mean over all agents, those that have left included.
    assert [layer.team_reward for layer in episode.layers] == [1.0, 1.0, 0.5, 0.5]


def test_who_is_not_there_is_not_asked() -> None:
    class Duet(strangers.Choir):
        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            self.possible_agents = ["low", "high"]
            return super().reset(seed, options)

    duet = Duet(rounds=2)
    duet.possible_agents = ["low", "absent", "high"]
    episode = play(parallel.wrap(duet), lambda env, agent: "1")
    assert [turn.agent for turn in episode.turns] == ["low", "high", "low", "high"]


def test_a_parallel_environment_keeps_the_rules() -> None:
    check_env(lambda: parallel.wrap(strangers.Choir(rounds=2), cooperative=True))


# Gymnasium --------------------------------------------------------------------------------------------


def test_a_team_deliberates_and_its_last_agent_acts() -> None:
    lake = gymnasium.make("FrozenLake-v1", is_slippery=False)
    env = gym_text.wrap(lake, Discrete(["left", "down", "right", "up"]), roles=["scout", "actor"])
    plan = iter(["down", "down", "right", "right", "down", "right"])

    def say(env: FlexEnv, agent: str) -> str:
        return "left" if agent == "scout_0" else next(plan)

    episode = play(env, say)
    assert episode.team_return == 1.0 and len(episode.rounds) == 6
    assert episode.rounds[0].D == [[0, 1], [0, 0]]
    assert [move for _, move in episode.info["moves"]] == ["down", "down", "right", "right", "down", "right"]


def test_two_environments_side_by_side_reproduce_their_runs() -> None:
    """Each seeds the global generators; neither notices the other, and the globals do not move."""

    def steps(env: FlexEnv, seed: int) -> Any:
        env.reset(seed=seed)
        while not env.done:
            yield env.messages("actor_0")
            env.step("1")
        yield env.episode.team_return

    alone = [list(steps(gym_text.wrap(strangers.Door()), seed)) for seed in (1, 2)]
    before = random.getstate(), pickle.dumps(np.random.get_state())
    one, two = (steps(gym_text.wrap(strangers.Door()), seed) for seed in (1, 2))
    together: list[list[Any]] = [[], []]
    for a, b in zip(one, two, strict=True):
        together[0].append(a)
        together[1].append(b)
    assert together == alone and alone[0] != alone[1]
    assert (random.getstate(), pickle.dumps(np.random.get_state())) == before


# By name ----------------------------------------------------------------------------------------------


def test_an_environment_of_others_goes_by_its_name() -> None:
    env = marft_envs.make("helpers.strangers:make_counting", sees=1)
    assert env.env_id == "helpers.strangers:make_counting" and env.env_kwargs == {"sees": 1}
    assert play(env, lambda env, agent: "two").terminated
    lake = marft_envs.make("gymnasium:FrozenLake-v1", settings={"is_slippery": False}, roles=["scout", "actor"])
    assert lake.possible_agents == ["scout_0", "actor_0"]


@pytest.mark.parametrize(("name", "settings", "says"), [
    ("pettingzoo:tictactoe_v2", {}, "Did you mean 'tictactoe_v3'"),
    ("pettingzoo:nobody.knows_v0", {}, "no module 'nobody.knows_v0'"),
    ("gymnasium:FrozenLake-v77", {}, "FrozenLake-v77"),
    ("gymnasium:FrozenLake-v1", {"codec": "helpers.strangers:nothing"}, "no codec"),
    ("helpers.strangers:make_counting", {"se": 1}, "sees"),
])  # fmt: skip
def test_a_wrong_name_is_answered(name: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        marft_envs.make(name, **settings)


def test_a_missing_package_is_answered_with_the_pip_command_and_one_that_does_not_fit_with_both_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[textarena\]'"):
        optional.require("no_such_package_anywhere", "textarena")
    monkeypatch.setattr(metadata, "version", lambda package: "0.6.17rc1")
    with pytest.raises(ConfigError, match=r"0\.6\.17rc1 is installed; expected 0\.7\.0"):
        optional.require("json", "textarena", "0.7.0", "textarena")
    monkeypatch.setattr(metadata, "version", lambda package: "0.10.0")
    optional.require("json", "textarena", "0.7.0", "textarena")
    with pytest.raises(
        ConfigError, match=r"0\.10\.0 is installed; expected 0\.8 or newer, but older than 0\.9.*,<0\.9"
    ):
        optional.require("json", "benchmarl", "0.8", "torchrl", below="0.9")
    monkeypatch.setattr(metadata, "version", lambda package: "0.8.1")
    optional.require("json", "benchmarl", "0.8", "torchrl", below="0.9")


# The compliance page ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("env", "clause", "needed"), [
    (strangers.Picture, "actions", "Discrete or Text actions"),
    (strangers.Picture, "observations", "show\\(\\) says what is seen"),
    (strangers.AllAtOnce, "interface", "pettingzoo.ParallelEnv"),
    (strangers.Growing, "episode", "'late' appeared in mid-episode"),
    (strangers.Nameless, "cast", "lists all agents from the start"), (strangers.Unseeded, "episode", "seed"),
    (object, "interface", "no environment of a known kind"),
])  # fmt: skip
def test_what_is_missing_is_said_clause_by_clause(env: Any, clause: str, needed: str) -> None:
    found = {c.name: c for c in compliance.check(env())}
    assert not found[clause].met
    assert re.search(needed, found[clause].found)


def test_what_complies_is_said_to_and_the_rest_is_refused_before_it_is_played() -> None:
    for env in (strangers.Counting(), strangers.Choir(), strangers.Door(), gymnasium.make("FrozenLake-v1")):
        assert all(clause.met for clause in compliance.check(env)), compliance.report(env)
    with pytest.raises(ConfigError, match=r"(?s)actions: .*observations: "):
        marft_envs.make("helpers.strangers:Picture")
    env = marft_envs.make("helpers.strangers:Growing")
    env.reset(seed=0)
    env.step("1")
    with pytest.raises(ConfigError, match="appear in mid-episode"):
        env.step("1")


def test_a_task_id_is_the_seed_of_a_game() -> None:
    env = marft_envs.make("gymnasium:Blackjack-v1")
    shown = []
    for seed in (0, 1):
        env.reset(seed=seed, options={"task_id": "77"})
        shown.append((env.task.task_id, env.messages(env.agent_selection)))
    assert shown[0] == shown[1]
