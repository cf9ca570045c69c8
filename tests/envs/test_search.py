"""Puzzles that are searched for: what is right, what a check is worth, and what is none."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations, permutations, product

import pytest

import marft_envs
from marft_envs import ConfigError, DataError, FlexEnv
from marft_envs.families.search.puzzles import KINDS, PLACES, Puzzle, puzzles
from marft_envs.problems.dice import Dice

SOME = 150


def numbers(puzzle: Puzzle) -> tuple[list[int], int]:
    *few, total = map(int, re.findall(r"\d+", puzzle.text))
    return few, total


@pytest.mark.parametrize("key", range(0, SOME, 3))
def test_sums_are_right_as_brute_force_has_it(key: int) -> None:
    puzzle = KINDS["sum"].build(key)
    few, total = numbers(puzzle)
    found = {tuple(sorted(said)) for said in permutations(few, 3) if sum(said) == total}
    assert {tuple(map(int, answer.split("+"))) for answer in puzzle.answers} == found and found
    assert len(few) == 6 and set(few) <= set(range(1, 10))


def test_counts_and_colours_are_right_as_brute_force_has_it() -> None:
    for key in range(SOME):
        puzzle = KINDS["count"].build(key)
        few, total = numbers(puzzle)
        assert puzzle.answers == (str(sum(a + b + c == total for a, b, c in combinations(few, 3))),)
        puzzle = KINDS["colour"].build(key)
        edges = puzzle.text[7:-1].split()
        places = [tuple(map(PLACES.index, edge)) for edge in edges]
        alike = [said for said in product("123", repeat=6) if any(said[a] == said[b] for a, b in places)]
        assert len(puzzle.answers) == 3**6 - len(alike) > 0 and 5 <= len(edges) <= 8
        assert not set(puzzle.answers) & {"".join(said) for said in alike}


def test_no_count_is_said_more_often_than_the_others() -> None:
    counts = [puzzle.answers[0] for puzzle in puzzles("count", "test")]
    assert all(abs(counts.count(n) / len(counts) - 1 / 3) < 0.05 for n in "012")


def test_no_puzzle_is_in_both_splits() -> None:
    for kind in KINDS:
        train, test = ({puzzle.text for puzzle in puzzles(kind, split)} for split in ("train", "test"))
        assert not train & test and len(train) + len(test) == 2000


@pytest.mark.parametrize(
    ("kind", "reply", "answer"),
    [
        ("sum", "7+4 + 9? No: 7+4+9.", "4+7+9"),
        ("sum", "4+5+6: 9 15 no\n4+7+9: 11 20 yes", "4+7+9"),
        ("sum", "4+7+9+3", ""),
        ("sum", "+4+7+9", ""),
        ("colour", "111111: ab11 no\n123123: ab12 yes", "123123"),
        ("colour", "1231231", ""),
        ("count", "1: no\n2: yes", "2"),
        ("count", "12", ""),
        ("count", "", ""),
    ],
)
def test_the_last_answer_of_a_reply_counts(kind: str, reply: str, answer: str) -> None:
    assert KINDS[kind].answer(reply) == answer


def play(env: FlexEnv, replies: dict[str, list[str]]) -> FlexEnv:
    said = {name: list(lines) for name, lines in replies.items()}
    while not env.done:
        env.step(said[env.agent_selection].pop(0))
    return env


def started(team: str, puzzle: str = "sum", seed: int = 0, **kwargs: object) -> tuple[FlexEnv, str, str]:
    """An environment at its start, a right answer and a wrong one."""
    env = marft_envs.make(f"search-{team}-v0", puzzle=puzzle, **kwargs)
    env.reset(seed=seed)
    task = env.task
    return env, task.problem.answers[0], task.kind.near(task.problem, Dice("test", seed))


def test_a_checker_that_picks_sees_every_proposal_and_proposers_see_none() -> None:
    env, right, wrong = started("pick")
    assert env.ready_agents == ["proposer_0", "proposer_1", "proposer_2"]
    for agent, text in zip(env.possible_agents, (wrong, right, wrong), strict=False):
        env.select(agent)
        env.step(text)
    seen = env.messages("checker_0")[-1]["content"]
    assert all(f"[proposer_{i}]" in seen or "[proposer]" in seen for i in range(3)) and right in seen
    env.step(right)
    assert env.episode.success and env.episode.metrics["offered"] == 1.0
    assert env.episode.rounds[0].D == [[0, 0, 0, 1]] * 3 + [[0, 0, 0, 0]]


def test_what_was_offered_and_not_picked_is_counted() -> None:
    env, right, wrong = started("pick", tries=2)
    play(env, {"proposer_0": [right], "proposer_1": [wrong], "checker_0": [wrong]})
    assert not env.episode.success and env.episode.metrics["offered"] == 1.0 and env.episode.team_return == 0.0


def test_a_checker_that_comments_stops_the_search_with_yes() -> None:
    env, right, wrong = started("check")
    check = env.task.kind.check
    play(env, {"proposer_0": [wrong, right], "checker_0": [check(env.task.problem, a) for a in (wrong, right)]})
    assert [turn.sees for turn in env.episode.turns] == [(), (0,), (0, 1), (2,)] and env.episode.success
    env, right, wrong = started("check")
    play(env, {"proposer_0": [wrong, wrong, right], "checker_0": ["no", "no"]})
    assert len(env.episode.turns) == 5 and env.episode.success, "the last proposal is not checked: it stands"
    env, right, wrong = started("check")
    play(env, {"proposer_0": [wrong], "checker_0": ["Yes? yes."]})
    assert not env.episode.success, "a checker that is wrong costs the team the puzzle"


def by_adding(text: str, proposals: list[str]) -> str:
    """What a checker can do who adds and does not search: the first proposal that fits, else the commonest."""
    *few, total = map(int, re.findall(r"\d+", text))
    for proposal in proposals:
        said = [int(n) for n in proposal.split("+")]
        if len(said) == 3 and not Counter(said) - Counter(few) and sum(said) == total:
            return proposal
    return max(proposals, key=proposals.count)


@pytest.mark.parametrize(("puzzle", "worth"), [("sum", "one is right"), ("count", "most are right")])
def test_who_checks_in_one_pass_finds_whatever_is_offered_or_no_more_than_a_vote(puzzle: str, worth: str) -> None:
    """Of three proposals, each right in four cases of ten: 1 - .6³ where answers can be checked, a majority else."""
    dice, solved, found, voted = Dice("checks", 0), 0, 0, 0
    env = marft_envs.make("search-pick-v0", puzzle=puzzle)
    for seed in range(300):
        env.reset(seed=seed)
        kind, problem = env.task.kind, env.task.problem
        said = [problem.answers[0] if dice.below(10) < 4 else kind.near(problem, dice) for _ in range(3)]
        found += any(answer in problem.answers for answer in said)
        voted += max(said, key=said.count) in problem.answers
        play(
            env,
            {**{f"proposer_{i}": [text] for i, text in enumerate(said)}, "checker_0": [by_adding(problem.text, said)]},
        )
        solved += bool(env.episode.success)
    assert solved == (found if puzzle == "sum" else voted)
    assert found / 300 == pytest.approx(1 - 0.6**3, abs=0.08) and voted < found - 60


def test_experts_try_check_and_answer() -> None:
    for kind in KINDS:
        for team in ("trial", "pick", "check"):
            env = marft_envs.make(f"search-{team}-v0", puzzle=kind)
            for seed in range(4):
                env.reset(seed=seed)
                while not env.done:
                    env.step(env.task.expert(env.agent_selection))
                assert env.episode.success
    env = marft_envs.make("search-trial-v0")
    tried = []
    for seed in range(30):
        env.reset(seed=seed)
        tried.append(env.task.expert("trier_0").count("\n") + 1)
    assert set(tried) == {1, 2, 3}, "an expert of trial and error errs"


def test_votes_count_answers_and_not_their_spelling() -> None:
    task = started("solo")[0].task
    assert task.answer_key("7+4+9") == task.answer_key("So 4+7+9.") != task.answer_key("4+7+8")


def test_settings_that_cannot_be_say_what_can() -> None:
    with pytest.raises(ConfigError, match=r"no puzzle 'sums'.*sum"):
        marft_envs.make("search-solo-v0", puzzle="sums")
    with pytest.raises(ConfigError, match="no split 'dev'"):
        marft_envs.make("search-solo-v0", split="dev")
    with pytest.raises(ConfigError, match="tries is 0"):
        marft_envs.make("search-pick-v0", tries=0)
    env = marft_envs.make("search-pick-v0")
    with pytest.raises(DataError, match="Expected search/sum/<key>"):
        env.reset(seed=0, options={"task_id": "search/count/3"})
    env.reset(seed=0, options={"task_id": "search/sum/70000"})
    assert env.task.task_id == "search/sum/70000"
