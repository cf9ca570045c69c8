"""poll/push: the same episodes whatever the slots, slow tasks in the background, failures as records."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

import marft_envs
from helpers.flex import PlainTask, flex, play
from marft_envs import Chain, ConfigError, DependencyError, Episode, FlexEnv, Independent, Layered, Outcome, Turn
from marft_envs.core.partners import FixedPartners
from marft_envs.core.vector import Request, VectorEnv
from marft_envs.core.wrappers import TurnLimit

Reply = Callable[[Request], str]


def drive(
    vec: VectorEnv, seeds: Sequence[int], reply: Reply = lambda r: f"{r.agent} {r.index_hint}", **kwargs: Any
) -> list[Episode]:
    vec.reset(seeds, **kwargs)
    finished: list[Episode] = []
    while not vec.done:
        requests = vec.poll()
        finished += vec.push(requests, [reply(r) for r in requests])
    return sorted(finished, key=lambda episode: episode.index)


def vector(slots: int, build: Callable[[], FlexEnv]) -> VectorEnv:
    return VectorEnv([build] * slots)


def transcript(episode: Episode) -> tuple[Any, ...]:
    return episode.task_id, [(t.agent, t.text, t.sees) for t in episode.turns], episode.rounds, episode.seed


def test_seeds_fix_the_episodes_whatever_the_slots() -> None:
    build = partial(flex, 3, Layered([["a_0", "b_0"], ["c_0"]]), max_rounds=2)
    one = drive(vector(1, build), range(10, 20))
    many = drive(vector(7, build), range(10, 20))
    alone = [play(build(), seed).episode.task_id for seed in range(10, 20)]
    assert [transcript(e) for e in one] == [transcript(e) for e in many]
    assert [e.task_id for e in one] == alone and [e.index for e in one] == list(range(10))


def test_every_turn_that_can_be_generated_is_offered_once() -> None:
    vec = vector(4, partial(flex, 3, Independent()))
    vec.reset([0, 1])
    requests = vec.poll()
    assert [(r.episode, r.agent, r.index_hint) for r in requests] == [
        (e, f"{name}_0", i) for e in (0, 1) for i, name in enumerate("abc")
    ]
    assert vec.poll() == [] and not vec.done
    assert vec.push(requests[:2], ["x", "y"]) == [] and vec.poll() == []
    (episode,) = vec.push(requests[2:3], ["z"])
    assert [t.text for t in episode.turns] == ["x", "y", "z"] and episode.index == 0


def test_a_request_says_what_the_agent_sees() -> None:
    vec = vector(1, partial(flex, 2, max_rounds=2))
    vec.reset([0], [{"task_id": "7"}])
    (first,) = vec.poll()
    vec.push([first], ["hello"], [{"ids": [1]}])
    (second,) = vec.poll()
    assert (second.slot, second.episode, second.agent, second.role) == (0, 0, "b_0", "b")
    assert (second.turn, second.round, second.layer, second.index_hint) == (Turn("b_0", (0,)), 0, 1, 1)
    assert second.messages[-1]["content"] == "The number is 7.\n\n[a]\nhello"
    assert second.observation == "The number is 7." and second.team_view == "The number is 7.\n\n[a]\nhello\n\n(b)"
    vec.push([second], ["x"])
    assert second.messages[-1]["content"].endswith("hello")
    with pytest.raises(ConfigError, match="answered already; read messages"):
        first.messages  # noqa: B018


def test_cuts_of_a_rendered_request_are_recorded() -> None:
    vec = vector(1, partial(flex, 2))
    vec.reset([0], [{"task_id": "7"}])
    vec.push(vec.poll(), ["x" * 100])
    (request,) = vec.poll()
    assert len(request.render(40)[-1]["content"]) < 60
    (episode,) = vec.push([request], ["done"])
    assert [(cut["turn"], cut["seen"]) for cut in episode.cuts] == [(1, 0)]


def test_extras_stay_with_their_turn() -> None:
    vec = vector(2, partial(flex, 2))
    vec.reset(range(6))
    finished = []
    while not vec.done:
        requests = vec.poll()
        extras = [{"episode": r.episode, "turn": r.index_hint} for r in requests]
        finished += vec.push(requests, ["x"] * len(requests), extras)
    assert all(t.extras == {"episode": e.index, "turn": t.index} for e in finished for t in e.turns)


@pytest.mark.parametrize("slow", [False, True])
def test_replies_may_come_in_any_order_and_size(slow: bool) -> None:
    def build() -> FlexEnv:
        return flex(4, Layered([["a_0", "b_0", "c_0"], ["d_0"]]), PlainTask(slow=slow), max_rounds=2)

    wanted = [transcript(e) for e in drive(vector(1, build), range(8))]
    rng, vec = random.Random(0), vector(3, build)
    vec.reset(range(8))
    out: list[Request] = []
    finished: list[Episode] = []
    while not vec.done:
        out += vec.poll()
        rng.shuffle(out)
        n = rng.randint(1, max(len(out), 1))
        now, out = out[:n], out[n:]
        finished += vec.push(now, [f"{r.agent} {r.index_hint}" for r in now])
    assert [transcript(e) for e in sorted(finished, key=lambda e: e.index)] == wanted


# Slow tasks ---------------------------------------------------------------------------------------------


def test_a_slow_task_does_not_block_the_others() -> None:
    gate, inside = threading.Event(), threading.Event()

    def build(first: list[bool] = [True]) -> FlexEnv:  # noqa: B006
        def wait(turns: object) -> Outcome:
            inside.set()
            assert gate.wait(10)
            return Outcome(team_reward=1.0)

        task = PlainTask(round=wait if first.pop() else None, slow=True)
        first.append(False)
        return flex(1, task=task)

    vec = vector(2, build)
    vec.reset(range(6))
    requests = vec.poll()
    assert len(requests) == 2
    finished = vec.push(requests, ["x", "y"])
    assert inside.wait(10)
    while len(finished) < 5:
        requests = vec.poll()
        finished += vec.push(requests, ["z"] * len(requests))
    assert not vec.done and {e.index for e in finished} == {1, 2, 3, 4, 5}
    gate.set()
    assert vec.poll() == []
    (last,) = vec.push([], [])
    assert last.index == 0 and last.team_return == 1.0 and vec.done
    vec.close()


def test_poll_waits_for_what_commits_in_the_background() -> None:
    def nap(turns: object) -> Outcome:
        time.sleep(0.05)
        return Outcome()

    vec = vector(1, lambda: flex(2, task=PlainTask(nap, slow=True)))
    vec.reset([0])
    vec.push(vec.poll(), ["x"])
    (request,) = vec.poll()
    assert request.agent == "b_0" and request.index_hint == 1
    vec.close()


def test_poll_can_wait_for_all_so_that_batches_do_not_depend_on_timing() -> None:
    def nap(turns: object) -> Outcome:
        time.sleep(random.random() / 100)
        return Outcome()

    vec = vector(6, lambda: flex(3, task=PlainTask(nap, slow=True)))
    vec.reset(range(6))
    for turn in range(3):
        requests = vec.poll(wait=True)
        assert [(r.episode, r.index_hint) for r in requests] == [(episode, turn) for episode in range(6)]
        vec.push(requests, ["x"] * 6)
    vec.close()


def test_slow_layers_of_many_episodes_wait_side_by_side() -> None:
    def nap(turns: object) -> Outcome:
        time.sleep(0.05)
        return Outcome()

    vec = vector(16, lambda: flex(1, task=PlainTask(round=nap, slow=True)))
    start = time.perf_counter()
    assert len(drive(vec, range(16))) == 16
    assert time.perf_counter() - start < 0.5
    vec.close()


# Failures -----------------------------------------------------------------------------------------------


def failing(kind: type[Exception], slow: bool) -> FlexEnv:
    def layer(turns: Sequence[Any]) -> Outcome:
        if turns[0].text == "bad":
            raise kind("out of order")
        return Outcome(turn_rewards={turns[0].index: 1.0})

    return flex(2, Chain(), PlainTask(layer, slow=slow))


@pytest.mark.parametrize("slow", [False, True])
def test_a_failing_episode_is_a_record_and_the_rest_goes_on(slow: bool) -> None:
    vec = vector(2, lambda: failing(RuntimeError, slow))
    finished = drive(vec, range(5), lambda r: "bad" if r.episode == 1 and r.agent == "b_0" else "good")
    assert [e.truncated for e in finished] == [False, True, False, False, False]
    broken = finished[1]
    assert broken.stop_reason == "error: RuntimeError: out of order" and broken.success is False
    assert [t.text for t in broken.turns] == ["good", "bad"] and not broken.planned
    vec.close()


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("kind", [ConfigError, DependencyError, marft_envs.DataError])
def test_a_bad_configuration_is_raised(kind: type[Exception], slow: bool) -> None:
    vec = vector(2, lambda: failing(kind, slow))
    with pytest.raises(kind, match="out of order"):
        drive(vec, range(5), lambda r: "bad" if r.episode == 1 else "good")
    vec.close()


def test_an_episode_that_cannot_start_is_a_record() -> None:
    class Moody(PlainTask):
        def reset(self, rng: Any, options: Any) -> None:
            super().reset(rng, options)
            if options.get("bad"):
                raise OSError("no such problem")

    vec = vector(2, lambda: flex(1, task=Moody()))
    finished = drive(vec, range(4), options=[{}, {"bad": 1}, {"bad": 1}, {}])
    assert [e.stop_reason for e in finished] == ["max_rounds", *["error: OSError: no such problem"] * 2, "max_rounds"]


def test_fail_ends_an_episode_whose_reply_could_not_be_had() -> None:
    vec = vector(2, partial(flex, 2, Independent()))
    vec.reset(range(3))
    requests = vec.poll()
    (broken,) = vec.fail(requests[0], "the engine is out of memory")
    assert broken.stop_reason == "error: the engine is out of memory" and broken.turns == [] and broken.truncated
    with pytest.raises(ConfigError, match="not open"):
        vec.push(requests[1:2], ["x"])
    finished = vec.push(requests[2:], ["x", "y"])
    while not vec.done:
        requests = vec.poll()
        finished += vec.push(requests, ["x"] * len(requests))
    assert sorted(e.index for e in finished) == [1, 2]


def test_requests_are_answered_once_and_in_their_reset() -> None:
    vec = vector(1, partial(flex, 2))
    vec.reset([0])
    (request,) = vec.poll()
    vec.push([request], ["x"])
    with pytest.raises(ConfigError, match="was answered"):
        vec.push([request], ["x"])
    (stale,) = vec.poll()
    vec.reset([1])
    with pytest.raises(ConfigError, match="reset was called"):
        vec.push([stale], ["x"])
    with pytest.raises(ConfigError, match="1 requests, 2 texts"):
        vec.push(vec.poll(), ["x", "y"])
    with pytest.raises(ConfigError, match="1 seeds and 2 options"):
        vec.reset([1], [{}, {}])


def test_a_reset_drops_what_was_running() -> None:
    def nap(turns: object) -> Outcome:
        time.sleep(0.02)
        return Outcome()

    vec = vector(3, lambda: flex(2, task=PlainTask(nap, slow=True)))
    vec.reset(range(3))
    requests = vec.poll()
    vec.push(requests[:2], ["old", "old"])
    finished = drive(vec, range(4), lambda r: "new")
    assert len(finished) == 4 and {t.text for e in finished for t in e.turns} == {"new"}
    vec.close()


def test_a_reset_without_episodes_is_done() -> None:
    vec = vector(2, partial(flex, 2))
    assert vec.done
    vec.reset([])
    assert vec.done and vec.poll() == [] and vec.push([], []) == []


# Wrapped environments -----------------------------------------------------------------------------------


def test_wrappers_stay_in_the_loop() -> None:
    vec = vector(2, lambda: FixedPartners(TurnLimit(flex(3, max_rounds=9), 7), {"b_0": "fixed"}))  # type: ignore[arg-type]
    finished = drive(vec, range(3))
    for episode in finished:
        assert [t.agent[0] for t in episode.turns] == list("abcabca")
        assert {t.text for t in episode.turns if t.agent == "b_0"} == {"fixed"}
        assert episode.truncated and episode.stop_reason == "turn_limit"
        assert [planned.turn.agent for planned in episode.planned] == ["b_0"]


def test_registered_environments() -> None:
    vec = marft_envs.make_vec("relay-v0", 4)
    finished = drive(vec, range(9), lambda r: "1")
    assert [e.index for e in finished] == list(range(9)) and {e.env_id for e in finished} == {"relay-v0"}
    vec.close()
