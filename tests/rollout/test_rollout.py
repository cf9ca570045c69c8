"""The Collector: what the policies said becomes trajectories, in the panel's order, whatever the batching."""

from __future__ import annotations

import json
import pickle
import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.tiny import save_tiny
from marft_algos.engines import EngineBase, EngineError, NativeEngine, RolloutEngine, ScriptedEngine
from marft_algos.models.policy import PolicySet
from marft_algos.rollout.collector import Collector
from marft_algos.seeds import row_seed
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason, Trajectory
from marft_envs import FlexEnv
from marft_envs.core.dependency import Chain, Independent
from marft_envs.core.types import AgentSpec, Outcome, TurnRecord
from marft_envs.core.vector import VectorEnv
from marft_envs.core.wrappers import TurnLimit

TEAM = (AgentSpec("writer_0", "writer", "Write."), AgentSpec("reader_0", "reader", "Read.", with_answer=True))
PARAMS = SamplingParams(max_new_tokens=8)


class Letters:
    """Pays a turn its length in hundredths, and the team 1 at a round's end; the task's text can be long."""

    slow = False

    def __init__(self, length: int = 1) -> None:
        self.length = length
        self.task_id = ""

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        self.letter = "abcdefgh"[int(rng.integers(8))]
        self.task_id = options.get("task_id", self.letter)

    def observe(self, agent: str) -> str:
        return self.letter * self.length

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome(turn_rewards={turn.index: len(turn.text) / 100 for turn in turns})

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome(team_reward=1.0, success=True, metrics={"turns": float(len(turns))})

    def sample_actions(self, agent: str) -> Sequence[str]:
        return ["a"]

    def validate(self) -> None:
        """Nothing to prove."""


def vector(slots: int = 4, length: int = 1, **settings: Any) -> VectorEnv:
    settings.setdefault("dependency", Chain())
    return VectorEnv([lambda: FlexEnv(TEAM, Letters(length), env_id="letters", **settings)] * slots)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> PolicySet:
    folder = save_tiny(tmp_path_factory.mktemp("models") / "qwen")
    return PolicySet.build(str(folder), {"writer_0": "writer", "reader_0": "reader"}, device="cpu", frozen=["writer"])


def collect(policies: PolicySet, vec: VectorEnv | None = None, n: int = 6, **settings: Any) -> list[Trajectory]:
    collector = Collector(vec or vector(), policies.renderer, NativeEngine(policies), PARAMS, **settings)
    return collector.collect(list(range(100, 100 + n)))


def said(trajectories: Sequence[Trajectory]) -> list[list[list[int]]]:
    return [[t.reply.action_ids for t in trajectory.transitions] for trajectory in trajectories]


def test_trajectories_hold_the_panel_in_order_with_all_rewards(policies: PolicySet) -> None:
    trajectories = collect(policies)
    assert [t.number for t in trajectories] == list(range(6))
    assert [t.episode.seed for t in trajectories] == list(range(100, 106))
    for trajectory in trajectories:
        assert [t.index for t in trajectory.transitions] == [0, 1]
        assert [t.agent for t in trajectory.transitions] == ["writer_0", "reader_0"]
        assert [t.policy for t in trajectory.transitions] == ["writer", "reader"]
        assert [t.trainable for t in trajectory.transitions] == [False, True]
        assert [layer.turns for layer in trajectory.layers] == [(0,), (1,)]
        assert [layer.team_reward for layer in trajectory.layers] == [0.0, 1.0]
        assert trajectory.score == pytest.approx(1 + sum(len(t.turn.text) for t in trajectory.transitions) / 100)
        assert trajectory.success and trajectory.episode.terminated and trajectory.metrics == {"turns": 2.0}


def test_tokens_trained_are_the_tokens_sampled(policies: PolicySet) -> None:
    for trajectory in collect(policies):
        first, second = trajectory.transitions
        for turn in (first, second):
            tokenizer = policies.renderer.tokenizer(turn.policy)
            assert turn.turn.text == tokenizer.decode(turn.reply.action_ids, skip_special_tokens=True)
            ids = torch.tensor([[*turn.request.prompt_ids, *turn.reply.action_ids]])
            mask = torch.arange(ids.shape[1])[None] >= len(turn.request.prompt_ids)
            with torch.no_grad():
                again, _ = policies.logprobs(turn.policy, ids, mask, turn.temperature)
            np.testing.assert_allclose(
                turn.reply.logprobs, again[0, len(turn.request.prompt_ids) - 1 :], rtol=0, atol=1e-5
            )
        prompt = policies.renderer.tokenizer("reader").decode(second.request.prompt_ids)
        assert prompt.startswith("<|im_start|>system\nRead.<|im_end|>")
        assert f"[writer]\n{first.turn.text}" in prompt or "<|" in first.turn.text
        assert second.turn.sees == (0,) and second.observation == first.observation
        assert "(reader)" in second.team_view


def test_samples_do_not_depend_on_the_number_of_slots(policies: PolicySet) -> None:
    one, four = collect(policies, vector(1)), collect(policies, vector(4))
    assert said(one) == said(four) == said(collect(policies, vector(8)))


def test_seed_iteration_episode_and_turn_decide_the_samples(policies: PolicySet) -> None:
    collector = Collector(vector(), policies.renderer, NativeEngine(policies), PARAMS, seed=3)
    first = said(collector.collect([1, 1], iteration=5))
    assert said(collector.collect([1, 1], iteration=5)) == first
    assert said(collector.collect([1, 1], iteration=6)) != first
    assert first[0] != first[1]  # one problem, two episodes of the panel
    assert said(Collector(vector(), policies.renderer, NativeEngine(policies), PARAMS, seed=4).collect([1, 1])) != first


def test_options_pick_the_problem(policies: PolicySet) -> None:
    collector = Collector(vector(), policies.renderer, NativeEngine(policies), PARAMS)
    found = collector.collect([1, 2], [{"task_id": "x"}, {"task_id": "y"}])
    assert [t.task_id for t in found] == ["x", "y"]


def test_progress_is_reported_to_the_end(policies: PolicySet) -> None:
    seen: list[tuple[int, int, int]] = []
    trajectories = collect(policies, vector(2), on_progress=lambda *numbers: seen.append(numbers))
    tokens = sum(len(t.reply.action_ids) for trajectory in trajectories for t in trajectory.transitions)
    assert seen[-1] == (6, 6, tokens)
    assert [numbers[0] for numbers in seen] == sorted(numbers[0] for numbers in seen)


def test_records_stay_writable_as_json(policies: PolicySet) -> None:
    episode = collect(policies)[0].episode
    written = json.loads(json.dumps(asdict(episode)))
    assert written["turns"][1]["extras"]["policy"] == "reader"
    assert set(written["turns"][1]["extras"]) == {
        "policy", "prompt_tokens", "tokens", "stop_reason", "version", "logprob"
    }  # fmt: skip


class Tied(Letters):
    """A task that can be copied, and holds what cannot be pickled."""

    def __deepcopy__(self, memo: object) -> Tied:
        made = Tied()
        made.__dict__.update(self.__dict__)
        return made

    def __reduce__(self) -> Any:
        raise TypeError("a live environment")


def test_what_is_returned_holds_no_environment_and_can_be_pickled(policies: PolicySet) -> None:
    vec = VectorEnv([lambda: TurnLimit(FlexEnv(TEAM, Tied(), Chain(), env_id="letters", max_rounds=3), 3)] * 2)
    collector = Collector(vec, policies.renderer, NativeEngine(policies), PARAMS)
    played = collector.collect(range(4), keep="decisions")
    with pytest.raises(TypeError, match="a live environment"):
        pickle.dumps(collector.states[0][1])
    loaded = pickle.loads(pickle.dumps(played))
    assert len(loaded) == 4
    for ours, theirs in zip(played, loaded, strict=True):
        assert theirs.episode == ours.episode and theirs.truncated and len(theirs.planned) == 1
        assert [t.turn.text for t in theirs.transitions] == [t.turn.text for t in ours.transitions]
        assert [t.turn.reward for t in theirs.transitions] == [t.turn.reward for t in ours.transitions]
        assert theirs.score == ours.score and theirs.layers == ours.layers
        assert all(t.turn is theirs.episode.turns[t.index] for t in theirs.transitions), "one turn, one record"
        for a, b in zip((*ours.transitions, *ours.planned), (*theirs.transitions, *theirs.planned), strict=True):
            assert (a.request.prompt_ids, a.reply.action_ids, a.observation) == (
                b.request.prompt_ids,
                b.reply.action_ids,
                b.observation,
            )
            assert a.reply.logprobs.tolist() == b.reply.logprobs.tolist()


def test_what_is_attached_to_a_turn_is_plain_while_the_episode_goes_on(policies: PolicySet) -> None:
    collector = Collector(vector(), policies.renderer, NativeEngine(policies), PARAMS)
    played = collector.collect(range(4), keep="decisions")
    played += Collector(vector(), None, ScriptedEngine({"*": "hello"}), PARAMS).collect(range(4))
    half = [collector.states[number][1].view.history[0] for number in range(4)]
    for turn in (*half, *(turn for d in played for turn in d.episode.turns)):
        assert turn.extras is not None and json.loads(json.dumps(turn.extras)) == turn.extras
        assert {type(value) for value in turn.extras.values()} <= {str, int, float}


def test_long_inputs_are_cut_to_the_context_and_the_cut_is_recorded(tmp_path: Path) -> None:
    short = save_tiny(tmp_path / "short", context=128)
    policies = PolicySet.build(str(short), {"writer_0": "w", "reader_0": "r"}, device="cpu")
    for trajectory in collect(policies, vector(length=300)):
        for turn in trajectory.transitions:
            assert len(turn.request.prompt_ids) + PARAMS.max_new_tokens <= 128
            assert (
                "Write." in (text := policies.renderer.tokenizer("w").decode(turn.request.prompt_ids))
                or "Read." in text
            )
        assert {cut["turn"] for cut in trajectory.episode.cuts} == {0, 1}


@pytest.mark.parametrize("overlap", [True, False])
def test_generation_goes_on_while_a_verdict_is_awaited_if_asked_to(overlap: bool) -> None:
    """The judge of one episode waits until more replies are asked for: only an overlapping collector asks meanwhile."""
    asked_again = threading.Event()
    seen: list[bool] = []

    class Judge(Letters):
        slow = True

        def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
            if self.task_id == "held" and turns[0].agent == "writer_0":
                seen.append(asked_again.wait(20.0 if overlap else 0.2))
            return Outcome()

    calls: list[int] = []

    class Engine(ScriptedEngine):
        def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
            calls.append(len(requests))
            if len(calls) == 2:
                asked_again.set()
            return super().generate(requests, params)

    vec = VectorEnv([lambda: FlexEnv(TEAM, Judge(), Chain(), env_id="letters")] * 2)
    engine = Engine({"writer_0": "hello", "reader_0": "you"})
    found = Collector(vec, None, engine, PARAMS, overlap=overlap).collect([1, 2], [{"task_id": "held"}, {}])
    assert seen == [overlap]
    assert [[t.turn.text for t in trajectory.transitions] for trajectory in found] == [["hello", "you"]] * 2


def test_scripts_play_without_policies() -> None:
    engine = ScriptedEngine({"writer_0": "hello", "reader_0": lambda r: r.messages[-1]["content"][-5:]})
    found = Collector(vector(), None, engine, PARAMS).collect([1, 2, 3])
    for trajectory in found:
        assert [t.turn.text for t in trajectory.transitions] == ["hello", "hello"]
        assert not any(t.trainable or t.request.prompt_ids for t in trajectory.transitions)


class Apart(ScriptedEngine):
    """Answers requests one by one, as a server; what it says hangs on the request alone, when it says it does not."""

    one_by_one = True

    def __init__(self, wait: Any = None) -> None:
        super().__init__({"*": lambda request: f"{request.seed % 997} {request.messages[-1]['content'][-3:]}"})
        self.wait, self.sizes = wait, list[int]()

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        self.sizes.append(len(requests))
        if self.wait is not None:
            self.wait(requests[0])
        return super().generate(requests, params)


def test_a_slow_reply_holds_up_its_own_episode_and_no_other() -> None:
    """The first episode's first reply comes when all the others have ended: with a barrier it never would."""
    others, waited = threading.Event(), list[bool]()

    def wait(request: GenerationRequest) -> None:
        if request.seed == row_seed(0, 0, 0, 0):
            waited.append(others.wait(20.0))

    def progress(done: int, total: int, tokens: int) -> None:
        if done == total - 1:
            others.set()

    found = Collector(vector(3), None, Apart(wait), PARAMS, on_progress=progress).collect(range(8))
    assert waited == [True] and [d.number for d in found] == list(range(8))


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("dependency", [Chain(), Independent()])
def test_results_do_not_depend_on_when_replies_come(dependency: Any, slow: bool) -> None:
    class Judge(Letters):
        def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
            if slow:
                time.sleep(random.random() / 200)
            return super().on_layer(turns)

    Judge.slow = slow

    def play(engine: Apart) -> list[Trajectory]:
        vec = VectorEnv([lambda: FlexEnv(TEAM, Judge(), dependency, max_rounds=4, history="public")] * 5)
        with closing(vec):
            return Collector(vec, None, engine, PARAMS, seed=3).collect(range(12), iteration=2)

    together = Apart()
    together.one_by_one = False
    late = Apart(lambda request: time.sleep(random.random() / 100))
    expected, found = play(together), play(late)
    assert max(together.sizes) > 2 >= max(late.sizes), "one layer of one episode at a time"
    assert [asdict(d.episode) for d in found] == [asdict(d.episode) for d in expected]


def test_an_engine_that_raises_while_others_wait_is_heard_at_once() -> None:
    hold = threading.Event()

    def wait(request: GenerationRequest) -> None:
        if request.seed == row_seed(0, 0, 1, 0):
            raise EngineError("the budget is spent")
        hold.wait(20.0)

    started = time.monotonic()
    try:
        with pytest.raises(EngineError, match="the budget is spent"):
            Collector(vector(3), None, Apart(wait), PARAMS).collect(range(3))
        assert time.monotonic() - started < 10.0
    finally:
        hold.set()


class Flaky(EngineBase):
    """Fails on the writer's turn of every second episode."""

    def __init__(self, inner: RolloutEngine, every: int) -> None:
        self.inner, self.every, self.calls = inner, every, 0

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        replies = self.inner.generate(requests, params)
        for i, request in enumerate(requests):
            if request.agent == "writer_0":
                self.calls += 1
                if self.calls % self.every == 0:
                    empty = np.zeros(0, np.float32)
                    replies[i] = Generation([], empty, StopReason.ERROR, 0, error="server is down")
        return replies


@pytest.mark.parametrize("dependency", [Chain(), Independent()])
def test_a_failed_generation_ends_its_episode_and_no_other(policies: PolicySet, dependency: Any) -> None:
    engine = Flaky(NativeEngine(policies), every=2)
    found = Collector(vector(dependency=dependency), policies.renderer, engine, PARAMS).collect(range(6))
    assert [t.number for t in found] == list(range(6))
    failed = [t for t in found if t.episode.stop_reason.startswith("error")]
    assert len(failed) == 3
    for trajectory in failed:
        assert "server is down" in trajectory.episode.stop_reason
        assert trajectory.transitions == [] and trajectory.score == 0.0 and trajectory.success is False
    assert all(len(t.transitions) == 2 for t in found if t not in failed)


def test_when_everything_fails_it_is_an_error(policies: PolicySet) -> None:
    engine = Flaky(NativeEngine(policies), every=1)
    with pytest.raises(EngineError, match=r"All 6 episodes failed.*server is down"):
        Collector(vector(), policies.renderer, engine, PARAMS).collect(range(6))


def test_a_truncated_episode_brings_the_layer_that_would_have_run(policies: PolicySet) -> None:
    class Limited(FlexEnv):
        def step(self, action: str | None) -> None:
            super().step(action)
            if len(self.view.history) == 3:
                self.truncate("limit")

    trajectory = collect(policies, VectorEnv([lambda: Limited(TEAM, Letters(), Chain(), max_rounds=3)] * 2))[0]
    assert trajectory.truncated and len(trajectory.transitions) == 3
    (planned,) = trajectory.planned
    assert (planned.agent, planned.policy, planned.index) == ("reader_0", "reader", 3)
    assert planned.request.prompt_ids and planned.reply.action_ids == [] and planned.team_view
    assert planned.observation == trajectory.transitions[0].observation
