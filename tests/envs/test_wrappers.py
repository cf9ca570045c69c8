"""Wrappers: limits without a reward, recording, prompts, fixed partners; drivers cannot pass them by."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import pytest
from pettingzoo.test import api_test
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper

from helpers.flex import PlainTask, flex, order, play
from marft_envs import ConfigError, FlexEnv, Layered, Outcome
from marft_envs.core.partners import FixedPartners
from marft_envs.core.wrappers import PromptObservation, TurnLimit
from marft_envs.records.trajectory import RecordEpisodes, read, replay


def scored() -> PlainTask:
    return PlainTask(round=lambda turns: Outcome(team_reward=1.0, success=True))


def test_turn_limit_truncates_without_a_reward() -> None:
    env = play(TurnLimit(flex(3, task=scored(), max_rounds=9), 4))  # type: ignore[arg-type]
    episode = env.episode
    assert len(episode.turns) == 4 and episode.truncated and episode.stop_reason == "turn_limit"
    assert episode.team_return == 1.0 and [planned.turn.agent for planned in episode.planned] == ["b_0"]
    assert env.truncations == dict.fromkeys(env.possible_agents, True)


def test_turn_limit_does_not_begin_a_layer_that_does_not_fit() -> None:
    env = play(TurnLimit(flex(3, Layered([["a_0"], ["b_0", "c_0"]])), 2))  # type: ignore[arg-type]
    assert order(env) == ["a"]
    with pytest.raises(ConfigError, match="no room for the first layer"):
        TurnLimit(flex(3, Layered([["a_0", "b_0", "c_0"]])), 2).reset(seed=0)
    with pytest.raises(ConfigError, match="at least 1"):
        TurnLimit(flex(3), 0)


def test_turn_limit_leaves_shorter_episodes_alone() -> None:
    episode = play(TurnLimit(flex(3, task=scored()), 3)).episode  # type: ignore[arg-type]
    assert episode.terminated and episode.stop_reason == "max_rounds" and episode.team_return == 1.0


def test_record_episodes_writes_each_ended_episode_once(tmp_path: Path) -> None:
    env = RecordEpisodes(TurnLimit(flex(2, max_rounds=3), 5), tmp_path / "x.jsonl")  # type: ignore[arg-type]
    for seed in range(2):
        play(env, seed)  # type: ignore[arg-type]
        for _ in range(2):
            env.step(None)
    env.reset(seed=2)
    env.step("x")
    env.truncate("enough")
    env.reset(seed=3)
    episodes = list(read(tmp_path / "x.jsonl"))
    assert [(e.seed, e.stop_reason) for e in episodes] == [(0, "turn_limit"), (1, "turn_limit"), (2, "enough")]
    for episode in episodes:
        replay(episode, env)  # type: ignore[arg-type]


def test_prompt_observation() -> None:
    env = PromptObservation(flex(2))
    env.reset(seed=0, options={"task_id": "7"})
    env.step("hello")
    wanted = {"prompt": "You are b.\n\nThe number is 7.\n\n[a]\nhello", "turn": 1}
    assert env.observe("b_0") == wanted and env.observation_space("b_0").contains(wanted)
    assert env.last()[0] == wanted
    env = PromptObservation(flex(2), lambda messages: "|".join(m["role"] for m in messages))
    env.reset(seed=0)
    assert env.observe("a_0")["prompt"] == "system|user"


# Fixed partners -----------------------------------------------------------------------------------------


def partnered(n: int = 3, **kwargs: object) -> FixedPartners:
    return FixedPartners(flex(n, **kwargs), {"b_0": lambda messages: messages[-1]["content"].upper()})  # type: ignore[arg-type]


def test_partners_play_their_part_and_are_recorded() -> None:
    env = partnered(max_rounds=2)
    env.reset(seed=0, options={"task_id": "7"})
    acted = []
    for agent in env.agent_iter():
        _, _, terminated, truncated, _ = env.last()
        acted.append(agent)
        env.step(None if terminated or truncated else "hello")
    assert acted == ["a_0", "c_0", "a_0", "c_0", "a_0", "c_0"]
    assert [t.agent for t in env.episode.turns] == ["a_0", "b_0", "c_0"] * 2
    assert env.episode.turns[1].text == "THE NUMBER IS 7.\n\n[A]\nHELLO"


def test_partners_are_out_of_sight() -> None:
    env = partnered()
    env.reset(seed=0)
    assert env.possible_agents == env.agents == ["a_0", "c_0"] and env.num_agents == env.max_num_agents == 2
    for mapping in (env.rewards, env.terminations, env.truncations, env.infos):
        assert set(mapping) == {"a_0", "c_0"}


@pytest.mark.parametrize("layers", [[["b_0"], ["a_0", "c_0"]], [["a_0", "b_0"], ["c_0"]], [["a_0", "c_0"], ["b_0"]]])
def test_partners_in_any_place(layers: list[list[str]]) -> None:
    env = FixedPartners(flex(3, Layered(layers), scored(), max_rounds=2), {"b_0": "fixed"})
    play(env)  # type: ignore[arg-type]
    assert [t.text for t in env.episode.turns if t.agent == "b_0"] == ["fixed"] * 2
    assert len(env.episode.turns) == 6 and env.episode.team_return == 2.0


def test_partners_that_die_or_outlive_the_others() -> None:
    for dead in ("b_0", "a_0"):
        task = PlainTask(lambda turns, dead=dead: Outcome(dead=frozenset({dead})))
        env = partnered(task=task, max_rounds=2)
        env.reset(seed=0)
        for _ in env.agent_iter():
            _, _, terminated, truncated, _ = env.last()
            env.step(None if terminated or truncated else "x")
        names = [t.agent[0] for t in env.episode.turns]
        assert names == (["a", "c", "a", "c"] if dead == "b_0" else ["a", "b", "c", "b", "c"])


def test_partners_must_exist_and_leave_somebody() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'a_0'"):
        FixedPartners(flex(2), {"a_1": "x"})
    with pytest.raises(ConfigError, match="at least one agent"):
        FixedPartners(flex(1), {"a_0": "x"})


# All of them --------------------------------------------------------------------------------------------


def wrapped(tmp_path: Path) -> list[FlexEnv]:
    def base() -> FlexEnv:
        return flex(3, task=scored(), max_rounds=2, render_mode="ansi")

    plain = [
        TurnLimit(base(), 4),
        RecordEpisodes(base(), tmp_path / "x.jsonl"),
        PromptObservation(base()),
        FixedPartners(base(), {"b_0": "fixed"}),
        PromptObservation(FixedPartners(RecordEpisodes(TurnLimit(base(), 4), tmp_path / "y.jsonl"), {"a_0": "x"})),  # type: ignore[arg-type]
    ]
    return [*plain, *(OrderEnforcingWrapper(AssertOutOfBoundsWrapper(env)) for env in plain)]  # type: ignore[list-item]


def test_pettingzoos_api_test_passes_under_every_wrapper(tmp_path: Path) -> None:
    for env in wrapped(tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            api_test(env)


def test_forks_and_pickles_keep_the_wrapper() -> None:
    env = TurnLimit(FixedPartners(flex(3, max_rounds=9), {"b_0": "fixed"}), 100)  # type: ignore[arg-type]
    env.reset(seed=0)
    env.step("one")
    (copy,) = env.fork()
    loaded = pickle.loads(pickle.dumps(env))
    for other in (env, copy, loaded):
        assert isinstance(other, TurnLimit) and isinstance(other.env, FixedPartners)
        other.step("two")
        assert [t.text for t in other.episode.turns] == ["one", "fixed", "two"]
