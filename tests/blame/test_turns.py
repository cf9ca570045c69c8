"""Blame against brute force: teams whose replies have known probabilities, on toys whose episodes are enumerated."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import marft_envs
from helpers import noisy
from helpers.flex import PlainTask, flex
from helpers.noisy import chance, failures, kept, player, tabular
from marft_algos.extras.blame.blaming import BlameSettings, out_of_reach
from marft_algos.extras.blame.commands import blame
from marft_algos.extras.blame.report import Blame, EpisodeBlame, TurnBlame
from marft_algos.runs.intervals import Interval
from marft_envs import Episode, FlexEnv, Independent, Outcome, TurnRecord
from marft_envs.core.partners import FixedPartners, expert
from marft_envs.families.toy.relay import Relay

TOYS = ("relay-v0", "xor-v0", "route-v0", "signal-v0")
NEAR = 1e-9


def makes(id: str) -> Callable[[], FlexEnv]:
    return lambda: marft_envs.make(id)


def blamed(id: str, n: int = 2, width: float = 0.12, **options: Any) -> tuple[Blame, list[Episode]]:
    by = player(makes(id))
    failed = failures(by, n)
    return blame(failed, by, width=width, **options), failed


def nobody(env: FlexEnv, agent: str, index: int) -> None:
    return None


def said(texts: dict[int, Any]) -> Callable[[FlexEnv, str, int], Any]:
    return lambda env, agent, index: texts.get(index)


def covers(interval: Interval, truth: float) -> bool:
    return bool(interval.low - NEAR <= truth <= interval.high + NEAR)


@pytest.mark.parametrize("id", [TOYS[0], *(pytest.param(id, marks=pytest.mark.ci) for id in TOYS[1:])])
def test_chances_of_turns_and_replacements_are_those_of_enumeration(id: str) -> None:
    """Intervals cover at .95 each and half-widths are .12; with fixed seeds, at most one of 25 may be beside."""
    found, failed = blamed(id)
    misses = total = 0
    for e, episode in zip(found.episodes, failed, strict=True):
        for turn in e.turns:
            recorded = episode.turns[turn.record.index]
            start = noisy.before(episode, makes(id), recorded.layer)
            truths = [
                (turn.before, chance(start, nobody)),
                (turn.after, chance(start, said({turn.record.index: turn.record.text}))),
            ]
            truths.append((turn.blame, truths[0][1] - truths[1][1]))
            for r in turn.replacements:
                truths.append((r.chance, replaced(id, episode, turn, r.by)))
            misses += sum(not covers(interval, truth) for interval, truth in truths)
            total += len(truths)
            assert all(interval.high - interval.low <= 0.24 + NEAR for interval, _ in truths[:2])
    assert total > 15 and misses <= total / 25


def replaced(id: str, episode: Episode, turn: TurnBlame, by: str) -> float:
    """The exact chance with something else in a turn's place."""
    recorded = episode.turns[turn.record.index]
    start = noisy.before(episode, makes(id), recorded.layer)
    if by == "silence":
        return chance(start, said({turn.record.index: ""}))
    if by == "expert":
        return chance(start, said({turn.record.index: expert(start, turn.record.agent)}))
    if by.startswith("policy "):
        other = by.removeprefix("policy ")
        return chance(
            start, lambda env, agent, i: tabular(other, env.messages(agent)) if i == turn.record.index else None
        )
    seer = by.removeprefix("cut to ")
    later = next(t for t in episode.turns if t.agent == seer and t.round == recorded.round)
    start = noisy.before(episode, makes(id), later.layer)
    plan = start.unwrapped.schedule.layer
    plan[seer] = dataclasses.replace(plan[seer], sees=tuple(i for i in plan[seer].sees if i != turn.record.index))
    return chance(start, nobody)


def test_a_later_turn_gets_no_credit_for_what_playing_on_does() -> None:
    """The planner says a wrong digit; the solver repeats it, and has no part in the failure."""

    def repeats(policy: str, messages: Sequence[Any]) -> dict[str, float]:
        read = messages[-1]["content"]
        return {"0": 0.3, "1": 0.7} if policy == "planner_0" else {read.strip()[-1]: 1.0}

    def planner_fails(by: Any) -> list[Episode]:
        return [e for e in failures(by, 50) if e.task_id == "relay/1"][:4]

    by = player(makes("relay-v0"), repeats)
    found = blame(planner_fails(by), by, width=0.1)
    assert len(found.episodes) == 4
    for e in found.episodes:
        planner, solver = e.turns
        assert covers(planner.before, 0.7) and planner.after.mean == 0.0 and solver.blame.mean == 0.0
        assert e.culprit is planner and e.ranked[0] is planner and e.hopeless == planner.record.index
        assert e.flips == (0,) and covers(e.flipped, 0.7)  # the solver sees another message then, and answers anew
        assert dict((r.by, r.chance.mean) for r in solver.replacements)["expert"] == 1.0
    assert found.sentence == "of 4 failures 4 turn with a better first message of planner_0"


@pytest.mark.ci
def test_blames_of_a_failure_add_up_to_the_chance_at_its_start() -> None:
    found, _ = blamed("signal-v0", by=())
    for e in found.episodes:
        assert sum(turn.blame.mean for turn in e.turns) == pytest.approx(e.turns[0].before.mean)
        assert [turn.nth for turn in e.turns] == [1, 1, 2, 2] and not any(turn.replacements for turn in e.turns)


@pytest.mark.parametrize("id", [TOYS[0], pytest.param(TOYS[1], marks=pytest.mark.ci)])
def test_the_smallest_set_that_flips_is_that_of_enumeration(id: str) -> None:
    """Of the sets of the size that was found, each has its exact chance; no smaller one is clearly enough."""
    found, failed = blamed(id, n=3, by=(), share=0.8)
    for e, episode in zip(found.episodes, failed, strict=True):
        states = {t.index: noisy.before(episode, makes(id), t.layer) for t in episode.turns}
        agents = {i: episode.turns[i].agent for i in states}
        prompts = {i: (agents[i], env.unwrapped.messages(agents[i])) for i, env in states.items()}

        def drawn(chosen: Sequence[int], episode: Any = episode, states: Any = states, prompts: Any = prompts) -> float:
            return chance(states[chosen[0]], kept(episode, prompts, chosen))

        bar = 0.8 * chance(states[0], nobody)
        sizes = range(1, len(e.turns) + 1)
        every = {s: drawn(s) for size in sizes for s in itertools.combinations(range(len(e.turns)), size)}
        assert e.flips and abs(e.flipped.mean - every[e.flips]) <= 0.15
        assert e.flipped.mean >= 0.8 * e.turns[0].before.mean
        assert all(p < bar + 0.12 for s, p in every.items() if len(s) < len(e.flips))


def unanimous(n: int = 3) -> FlexEnv:
    """Agents at once, who see nothing of each other; success is that all say 1."""

    def judged(turns: Sequence[TurnRecord]) -> Outcome:
        won = all(turn.text == "1" for turn in turns)
        return Outcome(team_reward=float(won), success=won, terminated=True)

    return flex(n, Independent(), PlainTask(round=judged))


def test_two_faults_that_each_suffice_are_found_together() -> None:
    by = player(unanimous, lambda policy, messages: {"0": 0.3, "1": 0.7})
    found = blame(failures(by, 12), by, env=unanimous, by=())
    misses = 0
    for e in found.episodes:
        wrong = tuple(t.record.index for t in e.turns if t.record.text == "0")
        assert e.flips == wrong
        misses += not covers(e.flipped, 0.7 ** len(wrong))
        misses += not covers(e.turns[0].before, 0.343)
        for t in e.turns:
            assert t.blame.mean > 0 if t.record.text == "0" else t.blame.low <= 0
            misses += not covers(t.after, 0.49 if t.record.text == "1" else 0.0)
    assert misses <= 4  # of 60
    assert {len(e.flips) for e in found.episodes} >= {1, 2}


@pytest.mark.ci
def test_long_episodes_are_searched_greedily() -> None:
    """Seven turns, of which two or three were wrong: each one alone leaves the chance at 0."""
    by = player(lambda: unanimous(7), lambda policy, messages: {"0": 0.15, "1": 0.85})
    failed = [e for e in failures(by, 60) if sum(turn.text == "0" for turn in e.turns) in (2, 3)][:3]
    for e in blame(failed, by, env=lambda: unanimous(7), by=()).episodes:
        assert e.flips == tuple(t.record.index for t in e.turns if t.record.text == "0") and len(e.turns) == 7


def test_success_is_out_of_reach_from_a_turn_on() -> None:
    def turn(i: int, before: float, after: float) -> TurnBlame:
        known = [Interval(x, x, x, 1) for x in (before, after, before - after)]
        return TurnBlame(TurnRecord(i, 0, i, "a", "a", (), ""), i, known[0], known[1], known[2])

    for values, wanted in (
        ([0.5, 0.4, 0.01, 0.0], 1),
        ([0.5, 0.01, 0.3, 0.0], 2),  # it came back
        ([0.5, 0.4, 0.3, 0.0], 2),
        ([0.01, 0.0, 0.0, 0.0], None),
        ([0.5, 0.4, 0.4, 0.4], 2),  # a last layer of several turns: all of them together
    ):
        turns = [turn(i, values[i], values[i + 1]) for i in range(3)]
        assert out_of_reach(turns, 0.05) == wanted


def test_the_same_seed_finds_the_same_and_another_one_not() -> None:
    by = player(makes("relay-v0"))
    failed = failures(by, 2)
    first, again = (blame(failed, by).to_dict() for _ in range(2))
    assert first == again
    assert first != blame(failed, dataclasses.replace(by, seed=1)).to_dict()


def test_partners_belong_to_the_environment() -> None:
    """What a wrapper plays is neither blamed nor drawn anew, in a layer with turns of the team too."""

    def make() -> FlexEnv:
        return FixedPartners(marft_envs.make("xor-v0"), {"left_0": expert})

    by = player(make)
    failed = failures(by, 3)
    found = blame(failed, by, env=make, width=0.1, by=("expert", "cut"))
    for e, episode in zip(found.episodes, failed, strict=True):
        assert [t.record.agent for t in e.turns] == ["right_0", "joiner_0"]
        start = noisy.before(episode, makes("xor-v0"), 0)
        left = {0: episode.turns[0].text}
        assert covers(e.turns[0].before, chance(start, said(left)))
        assert covers(e.turns[0].after, chance(start, said({**left, 1: episode.turns[1].text})))
        assert {r.by for r in e.turns[0].replacements} == {"expert", "cut to joiner_0"}


class Program(Relay):
    """Stands for a task that cannot be copied."""

    copyable = False

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("a program")


def test_what_cannot_be_copied_is_run_again_from_its_start() -> None:
    closed: list[FlexEnv] = []

    def make() -> FlexEnv:
        env = marft_envs.make("relay-v0").unwrapped
        env.task = Program()
        env.close = lambda: closed.append(env)
        return env

    by = player(makes("relay-v0"))
    failed = failures(by, 2)
    copied = blame(failed, by, by=("silence",))
    again = blame(failed, by, by=("silence", "expert", "cut"), env=make, again=True)
    assert again.to_dict() == copied.to_dict()
    assert len(closed) > again.played and len(set(map(id, closed))) == len(closed)  # each, and the one that replays


def test_an_episode_blame_says_what_a_reader_needs() -> None:
    found, failed = blamed("relay-v0", n=1)
    (e,) = found.episodes
    assert isinstance(e, EpisodeBlame) and e.episode is failed[0] and found.failed == 1
    plain = found.to_dict()["episodes"][0]
    assert (plain["task_id"], plain["seed"]) == (failed[0].task_id, failed[0].seed)
    assert plain["turns"][0]["record"]["text"] == failed[0].turns[0].text and "episode" not in plain
    (row,) = found.rows()
    assert row["turns"][0]["extras"]["blame"].startswith("blame ") and "anew" in row["turns"][0]["extras"]["blame"]
    assert "out of reach" in row["info"]["blame"]
    head, planner, _ = found.table()
    assert head.split()[:3] == ["agent", "turns", "blame"] and planner.startswith("planner_0")


def test_what_nobody_looked_at_is_shown_as_unknown() -> None:
    by = player(makes("relay-v0"))
    found = blame(failures(by, 3), by, token_budget=1)
    assert found.sentence == "of 3 failures 3 turn with an unknown message"
    assert [(line.split()[2], line.split()[-1]) for line in found.table()[1:]] == [("–", "0")] * 2


@pytest.mark.ci
@pytest.mark.parametrize("id", ["code-reflect-v0", "docs-map-v0", "math-router-v0", "rag-chain-v0", "tools-dual-v0"])
def test_episodes_of_every_family_are_replayed_and_played_on(id: str) -> None:
    env = marft_envs.make(id)
    env.reset(seed=0)
    said = {agent: sorted({*env.unwrapped.task.sample_actions(agent)})[:3] for agent in env.possible_agents}
    by = player(makes(id), lambda policy, messages: dict.fromkeys(said[policy], 1 / len(said[policy])))
    found = blame(failures(by, 1, 4), by, width=0.4)
    assert len(found.episodes) == 1 and not found.left_out
    assert {r.by.split()[0] for t in found.episodes[0].turns for r in t.replacements} == {*BlameSettings.by}
