"""A task pays spans inside a reply: recorded, mapped to the tokens that were sampled, in the returns where they end."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from helpers.flex import PlainTask, flex, play
from helpers.teams import episode, put, random_team
from helpers.tiny import CHATML, SPECIALS, save_tiny
from marft_algos import credit
from marft_algos.algorithms import base as algorithm
from marft_algos.engines import NativeEngine
from marft_algos.models.chat import Chat
from marft_algos.models.policy import PolicySet
from marft_algos.rollout.collector import Collector
from marft_algos.types import Estimates, SamplingParams, Trajectory, Transition
from marft_envs import ConfigError, Outcome, TurnRecord
from marft_envs.core.types import Segment
from marft_envs.core.vector import VectorEnv
from marft_envs.records.trajectory import ReplayError, from_dict, replay, to_dict

Spans = dict[int, list[Segment]]


def pays(spans: Spans, **fields: Any) -> Callable[[Sequence[TurnRecord]], Outcome]:
    return lambda turns: Outcome(segments=spans, **fields)


# --- the record -----------------------------------------------------------------------------------------------


def test_spans_are_part_of_the_turns_reward_and_stand_in_the_record() -> None:
    def layer(turns: Sequence[TurnRecord]) -> Outcome:
        (t,) = turns
        return Outcome(turn_rewards={t.index: 0.25}, segments={t.index: [(0, 1, 0.5), (0, len(t.text), -0.125)]})

    task = PlainTask(layer, pays({0: [(2, 3, 1.0)]}))
    env = play(flex(2, task=task))
    record = from_dict(json.loads(json.dumps(to_dict(env.episode))))
    assert record == dataclasses.replace(env.episode)
    assert [t.reward for t in record.turns] == [1.625, 0.625] and record.team_return == 2.25
    length = len(record.turns[0].text)
    assert record.layers[0].segments == {0: [(0, 1, 0.5), (0, length, -0.125)]}
    assert record.layers[1].segments == {1: [(0, 1, 0.5), (0, length, -0.125)], 0: [(2, 3, 1.0)]}
    assert [x.late_rewards for x in record.layers] == [{}, {0: 1.0}]
    assert env.rewards == {"a_0": 1.0, "b_0": 0.625}, "PettingZoo's view of the last step"
    replay(record, flex(2, task=task))
    record.layers[0].segments[0][0] = (0, 2, 0.5)
    with pytest.raises(ReplayError, match=r"differs in layers\[0\]"):
        replay(record, flex(2, task=task))


@pytest.mark.parametrize(
    ("spans", "told"),
    [
        ({0: [(0, 99, 1.0)]}, "text has 8 characters; expected a list"),
        ({0: [(3, 3, 1.0)]}, r"0 <= start < end <= 8"),
        ({0: [(-1, 3, 1.0)]}, "start"),
        ({0: [(0, 1.5, 1.0)]}, "start"),
        ({0: [(0, 1)]}, "start"),
        ({0: (0, 1, 1.0)}, "start"),
        ({0: 1.0}, "start"),
        ({0: [(0, 1, float("nan"))]}, "is nan; expected a finite number"),
        ({0: [(0, 1, "x")]}, "is 'x'; expected a finite number"),
        ({5: [(0, 1, 1.0)]}, "rewarded turn 5, but there are only 1 turns"),
        ({-1: [(0, 1, 1.0)]}, "rewarded turn -1"),
    ],
)
def test_what_is_no_span_of_the_text_is_refused_and_nothing_is_booked(spans: Any, told: str) -> None:
    env = flex(1, task=PlainTask(pays(spans, team_reward=1.0)))
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=told):
        env.step("a says 0")
    (record,) = env.episode.layers
    assert (record.team_reward, record.segments, env.episode.turns[0].reward) == (0.0, {}, 0.0)


@pytest.mark.parametrize("spans", [[[0, 9, 1.0]], [[2, 2, 1.0]], [[0, 1]], [["0", 1, 1.0]], [[0, 1, "x"]], 1.0])
def test_records_with_other_spans_are_no_records(spans: Any) -> None:
    data = to_dict(play(flex(1), say=lambda env, agent: "a says 0").episode)
    data["layers"][0]["segments"] = {"0": spans}
    with pytest.raises(ValueError, match=r"layers\[0\]\.segments"):
        from_dict(data)


# --- tokens ---------------------------------------------------------------------------------------------------


def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte: what is no ASCII takes several tokens a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({x: i for i, x in enumerate([*alphabet, "<|im_start|>", "<|im_end|>"])}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
    )


def test_a_span_ends_with_the_token_that_completes_its_last_character() -> None:
    chat = Chat("bytes", bytes_tokenizer())
    text = "né 木→x"
    ids = chat.reply_ids(text)
    assert len(ids) == len(text.encode()) + 1 and chat.text_of(ids) == text
    for end in range(1, len(text)):
        assert chat.token_at(ids, text, end) == len(text[:end].encode()) - 1
    assert chat.token_at(ids, text, len(text)) == len(ids) - 1, "the end of the text is the end token's"
    assert chat.token_at(ids[:-1], text, len(text)) == len(ids) - 2, "a reply that was cut"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("tiny"), hidden=16, layers=1))


def collected(model: str, task: PlainTask, n: int = 2, **settings: Any) -> list[Trajectory]:
    policies = PolicySet.build(model, {f"{x}_0": x for x in "abc"[:n]}, device="cpu")
    params = SamplingParams(max_new_tokens=6)
    vec = VectorEnv([lambda: flex(n, task=PlainTask(task.layer, task.round), **settings)] * 2)
    return Collector(vec, policies.renderer, NativeEngine(policies), params).collect([1, 2, 3])


def every_character(turns: Sequence[TurnRecord]) -> Outcome:
    return Outcome(segments={t.index: [(i, i + 1, float(i + 1)) for i in range(len(t.text))] for t in turns if t.text})


@pytest.mark.parametrize("when", ["layer", "round"])
def test_collected_replies_are_paid_at_the_sampled_tokens(when: str, tiny: str) -> None:
    """The tiny model has a token a character, and specials that leave no text; the reply's last token takes the end."""
    data = collected(tiny, PlainTask(**{when: every_character}))
    assert sum(len(t.turn.text) for d in data for t in d.transitions) > 20
    for d in data:
        paid = credit.broadcast(d)
        for t in (t for t in d.transitions if t.turn.text):
            writes = [i for i, token in enumerate(t.reply.action_ids) if token >= len(SPECIALS)]
            expected = np.zeros(len(t.reply.action_ids))
            expected[writes] = range(1, len(writes) + 1)
            expected[-1], expected[writes[-1]] = len(writes), expected[writes[-1]] * (writes[-1] + 1 == len(expected))
            if when == "round" and t.layer == 0:  # late: what lies behind the reply has all of it already
                expected[-1] -= sum(range(1, len(writes) + 1))
            assert np.array(paid.tokens[t.index]).tolist() == expected.tolist()
            assert paid.turns[t.index] == 0.0


def test_a_wrapper_that_changes_replies_and_spans_are_refused_together(tiny: str) -> None:
    def rewritten(turns: Sequence[TurnRecord]) -> Outcome:
        for t in turns:
            t.text = "other words"
        return Outcome(segments={t.index: [(0, 5, 1.0)] for t in turns})

    with pytest.raises(ConfigError, match="other text than was sampled"):
        collected(tiny, PlainTask(rewritten))


# --- returns --------------------------------------------------------------------------------------------------


def say_apart(d: Trajectory) -> None:
    """Makes every token a character: the first n of a text are n tokens."""
    for t in d.transitions:
        t.turn.text = "".join(map(str, t.reply.action_ids))
        put(t, tokens_at={i + 1: i for i in range(len(t.turn.text))})


def team(seed: int, pay: Callable[[np.random.Generator, Transition], list[Segment]] | None, late: bool) -> Trajectory:
    """A random team of which every turn is paid 1, in spans or whole, at once or at the episode's end."""
    rng = np.random.default_rng(seed)
    layers = random_team(rng)
    d = episode(layers, seed=seed, rewards=rng.normal(size=len(layers)))
    say_apart(d)
    for t in d.transitions:
        t.turn.reward = 1.0
        layer = d.layers[-1 if late else t.layer]
        spans = pay(rng, t) if pay else []
        if spans:
            layer.segments[t.index] = spans
        if t.layer != layer.index:
            layer.late_rewards[t.index] = 1.0
    return d


def whole(rng: np.random.Generator, t: Transition) -> list[Segment]:
    return [(0, len(t.turn.text), 1.0)]


def parts(rng: np.random.Generator, t: Transition) -> list[Segment]:
    """Spans that cover the reply and add up to 1."""
    n = len(t.turn.text)
    cuts = sorted({0, n, *rng.integers(0, n + 1, 2).tolist()})
    rewards = rng.normal(size=len(cuts) - 1)
    rewards[-1] = 1.0 - rewards[:-1].sum()
    return [(a, b, float(r)) for a, b, r in zip(cuts, cuts[1:], rewards, strict=False)]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("rule", "chain"),
    [("broadcast", "team"), ("last", "team"), *((x, "agent") for x in ("broadcast", "last", "local", "difference"))],
)
def test_spans_that_cover_a_reply_are_worth_its_turn_reward(rule: str, chain: str, late: bool) -> None:
    """To 1e-12, at γ = λ = 1: at the start of every reply, and at every token if one span covers it."""
    for seed in range(12):
        returns = [exact(team(seed, pay, late), rule, chain) for pay in (None, whole, parts)]
        for turn_paid, covered, cut in zip(*returns, strict=True):
            assert np.abs(turn_paid - covered).max() < 1e-12
            assert abs(turn_paid[0] - cut[0]) < 1e-12


def exact(d: Trajectory, rule: str, chain: str) -> list[np.ndarray]:
    """Returns of every token in float64, by sums: what comes at or behind it in its turn, and after the turn."""
    relation = {"team": credit.team_chain, "agent": credit.agent_chain}[chain]
    links = relation(d, credit.get(rule)(d), Estimates())
    to_go = credit.returns_to_go(d, links)
    nothing = [np.zeros(len(t.reply.action_ids)) for t in d.transitions]
    tokens = [x if y is None else y for x, y in zip(nothing, links.tokens, strict=True)]
    return [g - np.cumsum(x) + x for g, x in zip(to_go, tokens, strict=True)]


PAID = sorted(
    x
    for x in algorithm.pages()
    if algorithm.get(x).trains and not algorithm.get(x).imitates and x not in ("at_grpo", "dpo", "rft", "sdpo")
)
"""Algorithms that look at what turns are paid in episodes."""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", PAID)
def test_every_algorithm_pays_a_covered_reply_as_its_turn_reward(name: str, late: bool) -> None:
    made: Any = algorithm.get(name)
    found = []
    for pay in (None, whole):
        algo = made(made.Config(value_warmup=0))
        data = [dataclasses.replace(team(i // 2, pay, late), number=i, group=i // 2) for i in range(8)]
        for d in data[::2]:
            d.layers[-1].team_reward += 1.0
        estimates = Estimates()
        algo.rule.prepare(data)
        algo.credit(data, estimates)
        found.append([estimates.advantages[t] for d in data for t in d.transitions])
    for a, b in zip(*found, strict=True):
        assert a == pytest.approx(b, abs=1e-6)
    assert max(np.abs(a).max() for a in found[0]) > 0.1
