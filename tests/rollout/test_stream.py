"""Groups handed over as they come: while others are played, with the tokens of the whole panel, and broken off at will."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from helpers.branching import PARAMS, Trusting, engine
from helpers.flex import PlainTask, flex
from marft_algos import credit
from marft_algos.engines import ScriptedEngine
from marft_algos.rollout.collector import Collector
from marft_algos.rollout.episodes import chunk_size
from marft_algos.rollout.replay import Replayer, TreeCollector
from marft_algos.seeds import row_seed
from marft_algos.types import Generation, GenerationRequest, SamplingParams, Trajectory
from marft_envs import Independent, Layered, Outcome, TurnRecord
from marft_envs.core.vector import VectorEnv


def pays(turns: Sequence[TurnRecord]) -> Outcome:
    return Outcome(team_reward=float(sum(int(t.text or 0) for t in turns)), terminated=True)


def vector(slots: int = 4, slow: bool = False) -> VectorEnv:
    layers = Layered([["a_0", "b_0"], ["c_0"]])
    return VectorEnv([lambda: flex(3, layers, task=PlainTask(round=pays, slow=slow))] * slots)


class Server(ScriptedEngine):
    """Answers one by one, each request after ``wait``."""

    one_by_one = True

    def __init__(self, wait: Any = None) -> None:
        super().__init__({"*": lambda request: str(request.seed % 1000)})
        self.wait, self.asked = wait, 0

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        self.asked += len(requests)
        if self.wait is not None:
            self.wait(requests[0])
        return super().generate(requests, params)


def numbers(groups: Sequence[Sequence[Trajectory]]) -> list[list[int]]:
    return [[t.number for t in group] for group in groups]


def generating() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("marft-generate")]


def test_a_group_is_there_before_the_last_episode_has_ended() -> None:
    """The last episode's first reply waits until the caller has seen the other group."""
    seen, waited = threading.Event(), list[bool]()

    def wait(request: GenerationRequest) -> None:
        if request.seed == row_seed(0, 0, 5, 0):
            waited.append(seen.wait(20.0))

    groups = []
    for group in Collector(vector(6), None, Server(wait), PARAMS).stream(range(6), group_size=3):
        groups.append(group)
        seen.set()
    assert waited == [True] and numbers(groups) == [[0, 1, 2], [3, 4, 5]]
    assert [{t.group for t in group} for group in groups] == [{0}, {1}]


def test_engines_that_decode_batches_hand_groups_over_between_layers() -> None:
    """Two slots, so the second group has not begun when the first one is whole."""
    server = Server()
    server.one_by_one = False
    groups = Collector(vector(2), None, server, PARAMS).stream(range(4), group_size=2)
    assert [t.number for t in next(groups)] == [0, 1] and server.asked == 2 * 3
    assert [t.number for t in next(groups)] == [2, 3] and server.asked == 4 * 3
    assert next(groups, None) is None


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_collect_is_all_of_the_stream_sorted(together: bool, size: int) -> None:
    def play(how: str) -> list[Trajectory]:
        server = Server(lambda request: time.sleep(request.seed % 7 / 1000))
        server.one_by_one = not together
        collector = Collector(vector(3), None, server, PARAMS, seed=2)
        place: dict[str, Any] = {"iteration": 3, "first": 12, "group_size": size}
        if how == "collect":
            return collector.collect(range(11), **place)
        return sorted((t for group in collector.stream(range(11), **place) for t in group), key=lambda t: t.number)

    streamed, collected = play("stream"), play("collect")
    assert [asdict(t.episode) for t in streamed] == [asdict(t.episode) for t in collected]
    assert [(t.number, t.group) for t in streamed] == [(n, n // size) for n in range(12, 23)]


@pytest.mark.parametrize("slow", [False, True])
def test_what_still_runs_is_dropped_when_the_caller_stops(slow: bool) -> None:
    vec = vector(4, slow)
    server = Server(lambda request: time.sleep(0.02))
    collector = Collector(vec, None, server, PARAMS)
    groups = collector.stream(range(20))
    next(groups)
    assert not vec.done and generating()
    groups.close()
    assert vec.done and not generating() and server.asked < 20 * 3
    again = collector.collect(range(5))
    assert [asdict(t.episode) for t in again] == [
        asdict(t.episode) for t in Collector(vector(), None, Server(), PARAMS).collect(range(5))
    ]
    vec.close()


def test_several_candidates_can_be_streamed() -> None:
    def tree() -> TreeCollector:
        place = (vector(3), Trusting(), engine(), PARAMS)
        tries = Replayer(Trusting(), engine(), PARAMS)
        return TreeCollector(*place, replayer=tries, candidates=3, worth=lambda branch, index: branch.score)

    def turns(played: Sequence[Trajectory]) -> list[Any]:
        return [[(t.turn.text, t.worth) for t in (*d.transitions, *d.candidates)] for d in played]

    groups = list(tree().stream(range(6), group_size=2))
    assert sorted(numbers(groups)) == [[0, 1], [2, 3], [4, 5]]
    assert turns([d for group in sorted(groups, key=lambda g: g[0].number) for d in group]) == turns(
        tree().collect(range(6))
    )


@pytest.mark.parametrize("rule", ["blame", "counterfactual", "shapley"])
def test_rules_that_replay_can_replay_each_group_as_it_comes(rule: str) -> None:
    def play(streamed: bool) -> tuple[list[Any], int]:
        pay, tries = credit.get(rule), Replayer(Trusting(), engine(), PARAMS)
        vec = VectorEnv([lambda: flex(2, Independent(), task=PlainTask(round=pays))] * 2)
        collector = Collector(vec, Trusting(), engine(), PARAMS, states=tries.states)
        place: dict[str, Any] = {"iteration": 1, "group_size": 2, "keep": pay.keep}
        groups = collector.stream(range(6), **place) if streamed else [collector.collect(range(6), **place)]
        replayed = [d for group in groups for d in pay.replay(group, tries, 1)]
        charged = tries.add_costs(sorted(replayed, key=lambda d: d.number))
        return [list(d.replayed) for d in charged], sum(d.replayed_tokens for d in charged)

    assert play(True) == play(False)
    assert any(any(shares) for shares in play(True)[0])


def test_gpus_decode_their_whole_share_at_once_and_cpus_eight() -> None:
    """64 episodes on 8 lanes: 8 each; 512: 64 each, or what an engine decodes together; never fewer than on a CPU."""
    assert [chunk_size(n, 8, 256) for n in (8, 64, 512, 4096)] == [8, 8, 64, 256]
    assert chunk_size(512, 2, 64) == 64 and chunk_size(100, 0, 256) == 100


@pytest.mark.parametrize(("settings", "again"), [({"max_rounds": 1}, False), ({"max_rounds": 2}, True)])
def test_requests_of_an_agent_that_may_act_again_belong_to_a_chain(settings: dict[str, Any], again: bool) -> None:
    vec = VectorEnv([lambda: flex(2, task=PlainTask(), **settings)] * 2)
    asked = []

    class Noting(ScriptedEngine):
        def generate(self, requests: Any, params: Any) -> Any:
            asked.extend(requests)
            return super().generate(requests, params)

    collector = Collector(vec, None, Noting({"a_0": "x", "b_0": "y"}), PARAMS)
    collector.collect([0, 1])
    chains = [request.chain for request in asked]
    assert len(set(chains)) == (4 if again else 1) and (None in chains) is not again
    first, asked[:] = set(chains), []
    collector.collect([0, 1])
    assert not again or first.isdisjoint(request.chain for request in asked)
