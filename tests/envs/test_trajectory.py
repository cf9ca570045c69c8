"""Episode records: JSONL round trips, errors that name the line, replay, samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import marft_envs
from helpers.flex import PlainTask, flex, play
from marft_envs import ConfigError, DataError, Independent, Orchestrator, Outcome
from marft_envs.records.trajectory import ReplayError, from_dict, read, replay, to_dict, to_samples, write


def rewarding() -> PlainTask:
    return PlainTask(
        lambda turns: Outcome(turn_rewards={turns[0].index: 0.5}),
        lambda turns: Outcome(
            team_reward=1.0, agent_rewards={"a_0": 2.0}, success=True, metrics={"m": np.float32(0.5)}
        ),  # type: ignore[dict-item]
    )


def test_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "episodes.jsonl"
    episodes = [play(flex(3, task=rewarding(), max_rounds=2), seed).episode for seed in range(3)]
    write(path, episodes[:2])
    write(path, episodes[2])
    assert len(path.read_text().splitlines()) == 3
    again = list(read(path))
    assert again == episodes
    assert again[0].turns[1].sees == (0,) and again[0].rounds[0].D == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]
    assert again[0].layers[2].agent_rewards == {"a_0": 2.0} and again[0].team_return == episodes[0].team_return


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.text(st.characters(codec=None, exclude_characters=""), max_size=8), min_size=2, max_size=2))
def test_any_text_survives(tmp_path: Path, texts: list[str]) -> None:
    # JSON has one spelling for a pair of surrogates and for the character they stand for.
    joined = [text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") for text in texts]
    path = tmp_path / "x.jsonl"
    path.unlink(missing_ok=True)
    env = play(flex(2), say=lambda env, agent: joined[len(env.view.history)])
    write(path, env.episode)
    (again,) = read(path)
    assert [t.text for t in again.turns] == joined and path.read_bytes().isascii()
    replay(again, flex(2))


def test_lone_surrogates_nul_and_line_separators(tmp_path: Path) -> None:
    texts = ["a\ud800b", "\x00\n\r\u2028\x85"]
    env = play(flex(2), say=lambda env, agent: texts[len(env.view.history)])
    write(tmp_path / "x.jsonl", env.episode)
    assert [t.text for t in next(read(tmp_path / "x.jsonl")).turns] == texts


@pytest.mark.parametrize(("line", "words"), [
    (b"{broken", "Expecting property name"), (b"[1, 2]", "is of type list; expected an object"),
    (b"{}", "env_id is missing"), (b"[" * 100_000, "recursion"), (b'{"seed": ' + b"9" * 5000 + b"}", "limit"),
    (b'{"env_id": "\xff"}', "decode"),
])  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, words: str) -> None:
    path = tmp_path / "x.jsonl"
    write(path, play(flex(2)).episode)
    with open(path, "ab") as file:
        file.write(b"\n" + line + b"\n")
    with pytest.raises(DataError, match=rf"x\.jsonl:3: .*{words}"):
        list(read(path))


@pytest.mark.parametrize(("change", "words"), [
    (lambda e: e["turns"][1].update(sees=[-1]), r"turns\[1\]\.sees\[0\] is -1; expected a whole number"),
    (lambda e: e["turns"][1].update(sees=[1]), r"turns\[1\]\.sees is 1; expected a turn before it"),
    (lambda e: e["turns"][1].update(index=0), r"turns\[1\]\.index is 0; expected 1"),
    (lambda e: e["turns"][1].update(index=True), r"turns\[1\]\.index is True"),
    (lambda e: e["turns"][1].update(layer=9), r"turns\[1\]\.layer is 9"),
    (lambda e: e["turns"][1].update(agent="z"), r"turns\[1\]\.agent is 'z'"),
    (lambda e: e["turns"][1].update(text=None), r"turns\[1\]\.text is None; expected a text"),
    (lambda e: e["turns"][1].update(reward="1"), r"turns\[1\]\.reward is '1'; expected a number"),
    (lambda e: e["turns"][1].update(extra={}), r"turns\[1\]\.extra is unknown\. Did you mean 'extras'"),
    (lambda e: e["turns"][1].pop("role"), r"turns\[1\]\.role is missing"),
    (lambda e: e["turns"].pop(), r"layers\[2\]\.turns is 2; expected a turn; there are 2"),
    (lambda e: e.update(turns={"0": {}}), r"turns is of type dict; expected a list"),
    (lambda e: e["turns"].insert(0, None), r"turns\[0\] is None; expected an object"),
    (lambda e: e["layers"][0].update(late_rewards={"-1": 1.0}), r"late_rewards is '-1'"),
    (lambda e: e["layers"][0].update(late_rewards={"5": 1.0}), r"late_rewards is 5; expected a turn"),
    (lambda e: e["rounds"][0]["edges"].append([2, 1]), r"rounds\[0\]\.edges is 2; expected a turn before"),
    (lambda e: e["rounds"][0]["edges"].append([1]), r"edges\[\d\] is of type list; expected two indices"),
    (lambda e: e["rounds"][0]["D"].pop(), r"rounds\[0\]\.D is of type list; expected 3 rows of 3"),
    (lambda e: e["rounds"][0]["D"][1].__setitem__(1, 2), r"rounds\[0\]\.D\[1\]\[1\] is 2; expected 0 or 1"),
    (lambda e: e["agents"][0].update(name="b_0"), r"agents\[2\]\.name.*names that differ"),
    (lambda e: e.update(fault="nobody"), r"fault is 'nobody'; expected one of '', 'text', 'engine'"),
    (lambda e: e.update(success=1), r"success is 1; expected true or false"),
    (lambda e: e.update(seed=-3), r"seed is -3"),
    (lambda e: e["metrics"].update(m=[1]), r"metrics\.m is of type list; expected a number"),
    (lambda e: e.update(env_kwargs=[]), r"env_kwargs is of type list; expected an object"),
])  # fmt: skip
def test_what_is_wrong_with_a_record_is_named(change: Any, words: str) -> None:
    data = to_dict(play(flex(3, task=rewarding()), 1).episode)
    change(data)
    with pytest.raises(DataError, match=words):
        from_dict(data)


_ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 5), st.integers(), st.floats(), st.text(max_size=4), st.just([]), st.just({}),
    st.lists(st.integers(-2, 4), max_size=3), st.dictionaries(st.text(max_size=2), st.integers(-2, 4), max_size=2),
    st.sampled_from(["text", "world", "error", "a_0", "index", "0", "-1", "\ud800"]),
)  # fmt: skip
_ROWS = [
    to_dict(play(flex(3, task=rewarding(), max_rounds=2), 1).episode),
    {k: v for k, v in to_dict(play(flex(2)).episode).items() if k != "fault"},
]


def mutated(data: st.DataObject, value: Any) -> Any:
    """A copy in which something, at whatever depth, is another value, is not there, or is there twice."""
    if not isinstance(value, dict | list) or not value or data.draw(st.integers(0, 5)) == 0:
        return data.draw(_ODD)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    at, how = data.draw(st.sampled_from(keys)), data.draw(st.integers(0, 6))
    changed: Any = dict(value) if isinstance(value, dict) else list(value)
    if how == 0:
        del changed[at]
    elif how == 1 and isinstance(changed, dict):
        changed[data.draw(st.text(max_size=3) | st.integers())] = changed.pop(at)
    elif how == 1:
        changed.insert(at, data.draw(_ODD))
    else:
        changed[at] = mutated(data, changed[at])
    return changed


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_whatever_a_record_holds_it_is_an_episode_or_a_data_error(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(_ROWS))
    for _ in range(data.draw(st.integers(1, 3))):
        row = mutated(data, row)
    try:
        episode = from_dict(row)
    except DataError as error:
        assert str(error).startswith("No episode record: ") and str(error).isprintable()
        return
    same = lambda one: json.dumps(to_dict(one))  # noqa: E731  # NaN is no equal of itself
    assert same(from_dict(json.loads(same(episode)))) == same(episode)
    assert all(0 <= seen < turn.index for turn in episode.turns for seen in turn.sees)


def test_a_read_only_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write(tmp_path / "file" / "x.jsonl", play(flex(2)).episode)


# Replay -------------------------------------------------------------------------------------------------


def test_replay_rebuilds_the_environment_from_the_record(tmp_path: Path) -> None:
    env = marft_envs.make("signal-v0", attribution="split")
    episode = play(env, 3, lambda env, agent: env.action_space(agent).sample()).episode
    write(tmp_path / "x.jsonl", episode)
    (again,) = read(tmp_path / "x.jsonl")
    assert again.env_kwargs == {"attribution": "split"}
    assert to_dict(replay(again)) == to_dict(episode)


def test_replay_uses_the_recorded_options() -> None:
    env = flex(2)
    env.reset(seed=1, options={"task_id": "5"})
    while not env.done:
        env.step("x")
    assert replay(env.episode, flex(2)).task_id == "5"


def test_truncated_episodes_replay() -> None:
    env = flex(2, max_rounds=3)
    env.reset(seed=1)
    for _ in range(3):
        env.step("x")
    env.truncate("turn_limit")
    assert replay(env.episode, flex(2, max_rounds=3)).stop_reason == "turn_limit"


@pytest.mark.parametrize(("change", "words"), [
    (lambda e: e["turns"][1].update(agent="c_0", role="c"), "Turn 1: recorded c_0, but ready to act: b_0"),
    (lambda e: e["turns"][1].update(reward=9.0), r"turns\[1\]: .*'reward': 9.0"),
    (lambda e: e["turns"][1].update(sees=[]), r"turns\[1\]"),
    (lambda e: e["layers"][2].update(team_reward=0.0), r"layers\[2\]"),
    (lambda e: e["rounds"][0].update(edges=[[0, 1]]), r"rounds\[0\]"),
    (lambda e: e["turns"].append(dict(e["turns"][0], index=3)), r"ready to act: nobody \(max_rounds\)"),
    (lambda e: e.update(seed=2), "task_id: recorded"),
    (lambda e: e.update(stop_reason="task"), "stop_reason: recorded 'task', got 'max_rounds'"),
])  # fmt: skip
def test_a_record_that_was_changed_does_not_replay(change: Any, words: str) -> None:
    data = to_dict(play(flex(3, task=rewarding()), 1).episode)
    change(data)
    with pytest.raises(ReplayError, match=words):
        replay(from_dict(data), flex(3, task=rewarding()))


def test_records_that_cannot_be_replayed_say_why() -> None:
    env = flex(2)
    env.reset()
    with pytest.raises(ConfigError, match="without a seed"):
        replay(env.episode, flex(2))
    with pytest.raises(ConfigError, match=r"no registered environment.*env=your_environment"):
        replay(play(flex(2)).episode)
    env = marft_envs.make("relay-v0", dependency=Independent())
    episode = from_dict(to_dict(play(env).episode))
    with pytest.raises(ConfigError, match=r"cannot rebuild dependency=.*Independent.*env=your_environment"):
        replay(episode)
    assert replay(episode, env).turns == episode.turns


def test_late_rewards_survive_forks_json_and_replay() -> None:
    task = PlainTask(lambda turns: Outcome(turn_rewards={0: 0.5}), lambda turns: Outcome(turn_rewards={1: 2.0}))
    env = flex(3, task=task)
    env.reset(seed=0)
    for text in "xy":
        env.step(text)
    (other,) = env.fork()
    for one in (env, other):
        one.step("z")
    episode = from_dict(json.loads(json.dumps(to_dict(env.episode))))
    assert episode.layers == env.episode.layers == other.episode.layers
    assert [layer.late_rewards for layer in episode.layers] == [{}, {0: 0.5}, {0: 0.5, 1: 2.0}]
    replay(episode, flex(3, task=task))
    episode.layers[1].late_rewards = {}
    with pytest.raises(ReplayError, match=r"differs in layers\[1\]"):
        replay(episode, flex(3, task=task))


def test_what_a_driver_cut_is_cut_again_in_replays_and_samples() -> None:
    env = flex(2)
    env.reset(seed=0)
    env.step("x" * 50)
    read = env.messages("b_0", max_chars=18)
    env.attach("b_0", max_chars=18)
    env.step("done")
    episode = from_dict(to_dict(env.episode))
    assert episode.rounds[0].D == [[0, 0], [0, 0]] and episode.rounds[0].asked == [[0, 1], [0, 0]]
    assert replay(episode, flex(2)) == episode
    assert to_samples(episode, flex(2))[1]["messages"] == read


def test_bad_routing_replays() -> None:
    def build() -> Any:
        return flex(3, Orchestrator("a_0", hops=2, default="c_0"), on_invalid=0.5)

    episode = play(build(), say=lambda env, agent: "hm").episode
    assert episode.invalid == 2 and replay(episode, build()).invalid == 2


# Samples ------------------------------------------------------------------------------------------------


def test_samples_hold_what_each_agent_saw() -> None:
    env = play(flex(2, task=rewarding()), 1)
    first, second = to_samples(env.episode, flex(2, task=rewarding()))
    assert first["messages"][0] == {"role": "system", "content": "You are a."}
    assert second["messages"][-1]["content"] == f"The number is {env.task.number}.\n\n[a]\na_0 says 0"
    assert (second["action"], second["reward"], second["return"], second["success"]) == ("b_0 says 1", 0.5, 2.0, True)
    assert (second["agent"], second["role"], second["turn"], second["seed"]) == ("b_0", "b", 1, 1)
    json.dumps([first, second])


def test_samples_of_a_registered_environment() -> None:
    episode = play(marft_envs.make("relay-v0"), 4, lambda env, agent: "1").episode
    assert [row["agent"] for row in to_samples(episode)] == ["planner_0", "solver_0"]
