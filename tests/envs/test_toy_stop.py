"""``stop-v0``: who sees which messages, what ends the talk, and the documented optima, by brute force."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import comb
from typing import Any

import pytest

import marft_envs
from benchmarks.learning.stopping import best_fixed, majority, needed, optimum, saved
from helpers.toys import play
from marft_envs.core.env import FlexEnv
from marft_envs.errors import ConfigError
from marft_envs.records import experts


def follow(env: FlexEnv, task_id: str, reply: Callable[[str, str], str]) -> float:
    """Plays a talk: ``reply(agent, its reading)``."""
    env.reset(seed=0, options={"task_id": task_id})
    while not env.done:
        agent = env.agent_selection
        env.step(reply(agent, env.messages(agent)[1]["content"].partition("reading ")[2][:1] or "0"))
    return env.episode.team_return


def test_every_speaker_sees_the_reading_of_its_word_and_the_others_words() -> None:
    env = marft_envs.make("stop-v0", words=4)
    env.reset(seed=0, options={"task_id": "stop/1-0110"})
    for reading, agent, said in zip("0110", ("left_0", "right_0") * 2, "0101", strict=True):
        told = "\n".join(message["content"] for message in env.messages(agent)[1:])
        assert env.agent_selection == agent and told.startswith(f"reading {reading}")
        heard = [turn.text for turn in env.view.history]
        assert [c for line in told.splitlines()[1:] for c in line if line in ("0", "1")] == heard
        env.step(said)
    assert env.done


@pytest.mark.parametrize(
    ("words", "reward", "ended"),
    [
        (["11"], 1.0, 1),
        (["00"], 0.0, 1),
        (["0", "11"], 1.0, 2),
        (["0", "hello", "11"], 1.0, 3),
        (["0", "10", "1"], 1.0, 3),  # 10 answers nothing; the last word's digit is an answer
        (["0", "0", ""], 0.0, 3),
        (["0", "0", "٠"], 0.0, 3),
    ],
)
def test_an_answer_ends_the_talk_and_is_rewarded(words: list[str], reward: float, ended: int) -> None:
    env = marft_envs.make("stop-v0", words=3)
    left = iter(words)
    assert play(env, "stop/1-001", lambda agent, text: next(left)) == reward
    assert len(env.episode.turns) == ended and env.episode.team_return == reward
    assert env.episode.metrics["words"] == ended


def test_nobody_may_end_a_talk_of_fixed_length() -> None:
    env = marft_envs.make("stop-v0", words=3, early=False)
    assert play(env, "stop/1-001", lambda agent, text: "11") == 1.0
    assert len(env.episode.turns) == 3
    assert all(len(experts.play(env, seed).turns) == 3 for seed in range(20))


class Majority:
    """Says what most of the readings say of those whose messages it sees, the latest of two equals."""

    def __init__(self, sources: Sequence[str]) -> None:
        self.sources, self.lead = sources, 0

    def __call__(self, agent: str, reading: str) -> str:
        self.lead += (2 * int(reading) - 1) * (agent in self.sources)
        return reading if self.lead == 0 else str(int(self.lead > 0))


def test_the_documented_scores_by_every_reading() -> None:
    """A majority of all readings, through the environment; under D = 0 of every other one."""
    for dependency, mine in ((None, 3), ("independent", 2)):
        env, score = marft_envs.make("stop-v0", words=3, early=False, dependency=dependency), 0.0
        for readings in itertools.product("01", repeat=3):
            task_id, chance = f"stop/1-{''.join(readings)}", 0.8 ** readings.count("1") * 0.2 ** readings.count("0")
            score += chance * follow(env, task_id, Majority(["left_0"] if dependency else ["left_0", "right_0"]))
        assert score == pytest.approx(majority(0.8, mine))


def test_the_optimum_is_that_of_every_rule_that_counts() -> None:
    """Brute force: each rule says for every count of ones and zeros whether to stop; the best is the optimum."""
    q, words, price = 0.75, 4, 0.04
    states = [(n, d) for n in range(1, words) for d in range(n % 2, n + 1, 2)]
    best = 0.0
    for stops in itertools.product((False, True), repeat=len(states)):
        rule, worth = dict(zip(states, stops, strict=True)), 0.0
        for readings in itertools.product((1, -1), repeat=words):
            chance, total = q ** readings.count(1) * (1 - q) ** readings.count(-1), 0
            for n, reading in enumerate(readings, 1):
                total += reading
                if n == words or rule[n, abs(total)]:
                    worth += chance * ((1.0 if total > 0 else 0.5 if total == 0 else 0.0) - price * n)
                    break
        best = max(best, worth)
    assert optimum(q, words, price).net == pytest.approx(best)
    assert best_fixed(q, words, price).net == pytest.approx(max(majority(q, n) - price * n for n in range(1, 5)))
    assert majority(q, 3) == pytest.approx(q**3 + comb(3, 2) * q * q * (1 - q))


@pytest.mark.parametrize(("settings", "options", "says"), [
    ({"words": 0}, {}, "words is 0; expected 1 to 64"),
    ({"reliability": 0.4}, {}, "reliability is 0.4; expected 0.5"),
    ({"words": 2}, {"task_id": "stop/1-0"}, "no task 'stop/1-0' of 2 words.*stop/1-11"),
])  # fmt: skip
def test_what_cannot_be_is_named(settings: dict[str, Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        marft_envs.make("stop-v0", **settings).reset(seed=0, options=options)


def test_a_fixed_talk_of_the_same_score_is_between_two_odd_numbers_of_words() -> None:
    for words in (1, 3, 5, 7):
        assert needed(0.9, majority(0.9, words))[0] == pytest.approx(2 * words)
    between = (majority(0.9, 3) + majority(0.9, 5)) / 2
    tokens, rise = needed(0.9, between)
    assert tokens == pytest.approx(8) and rise == pytest.approx(2 / (between - majority(0.9, 3)))
    assert needed(0.9, 0.5) == (2, 0)  # nobody says less than a word


def test_what_a_talk_saves_is_of_the_fixed_talk_of_its_score() -> None:
    outcomes, lengths = [[1.0] * 19 + [0.0], [1.0] * 18 + [0.0] * 2], [[5.0] * 20, [6.0, 4.0] * 10]
    runs = [{"outcomes": o, "eval_lengths": n} for o, n in zip(outcomes, lengths, strict=True)]
    share = saved(runs, 0.9)
    assert share.shape == (2, 20)
    assert share.mean() == pytest.approx(5 / needed(0.9, 0.925)[0] - 1)
    assert share[0, 19] - share[0, 0] == pytest.approx(needed(0.9, 0.925)[1] / needed(0.9, 0.925)[0])  # a failure costs


def test_the_reliable_tool_never_fails_and_the_other_one_does_in_marked_calls() -> None:
    env = marft_envs.make("examples.reliability:reliability-v0", calls=4)
    for said, works in (("0", [1, 1, 1, 1]), ("1", [1, 0, 0, 1]), ("2", [0, 0, 0, 0])):
        assert play(env, "reliability/0110", lambda agent, text, said=said: said) == all(works)
        assert [4 * turn.reward for turn in env.episode.turns] == works
    shown = [turn.text for seed in range(200) for turn in experts.play(env, seed).turns]
    assert len(shown) == 800 and 0.75 < shown.count("1") / 800 < 0.85
    with pytest.raises(ConfigError, match="calls is 3; expected an even number"):
        marft_envs.make("examples.reliability:reliability-v0", calls=3)
