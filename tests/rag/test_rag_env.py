"""The family of retrieval: worlds, teams, searches, answers, their rewards, and rows of published sets."""

from __future__ import annotations

import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from marft_envs import ConfigError, DataError, FlexEnv
from marft_envs.errors import UnsolvedError
from marft_envs.families.rag import data
from marft_envs.families.rag.procedural import NAMES, RELATIONS, questions, world
from marft_envs.families.rag.question import cited
from marft_envs.problems.answers import em, f1, normal, substring
from marft_envs.records import experts

TEAMS = ("solo", "chain", "planner", "router")
ASKED = "procedural/2/0/0/"


def started(team: str = "chain", seed: int = 0, **kwargs: Any) -> FlexEnv:
    env = marft_envs.make(f"rag-{team}-v0", **{"level": 0} | kwargs)
    env.reset(seed=seed)
    return env


def prompt(env: FlexEnv, agent: str) -> str:
    return env.messages(agent)[-1]["content"]


# --- answers ------------------------------------------------------------------------------------------------------


def test_answers_are_compared_as_in_squad() -> None:
    assert normal("The  Beatles!") == "beatles" and normal("A") == "a" and normal("U.S.") == "us"
    assert em("the beatle", ["Beatles, The"]) == 0 and em("the beatles.", ["x", "Beatles"]) == 1
    assert f1("Barack Hussein Obama", ["Barack Obama"]) == pytest.approx(0.8)
    assert f1("no way", ["no"]) == 0 and f1("no", ["yes", "No."]) == 1 and f1("", ["x"]) == 0
    assert substring("It was Ann Moss.", ["ann moss"]) == 1 and substring("Anna", ["Ann"]) == 0
    assert cited(r"\boxed{Rome} [3] [a#1] [[4]]") == {"3", "a#1", "4"}


# --- worlds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1])
def test_a_question_is_answered_by_its_needed_passages(level: int) -> None:
    here, index = world(level, 0, "test")
    asked = questions((1, 2, 3, 4), level, 0, "test", 40)
    assert sorted({question.id.split("/")[1] for question in asked}) == ["1", "2", "3", "4"]
    for question in asked:
        name, *relations = question.question.rstrip("?").split()
        if level == 1:
            head, _, name = question.question.rstrip("?").rpartition(" of ")
            relations = [word for word in reversed(head.split()) if word in RELATIONS[1]]
        for relation, needed in zip(relations, question.needed, strict=True):
            passage = index.get(needed)
            assert passage is not None and {*name.split(), relation} <= set(passage.text.rstrip(".").split())
            name = here.facts[name, relation]
        assert question.answers == (name,)


def test_splits_and_worlds_share_no_name_and_no_fact() -> None:
    for level in RELATIONS:
        train, test, other = (world(level, *which)[0] for which in ((0, "train"), (0, "test"), (1, "test")))
        assert not set(train.names) & set(test.names) and len(train.names + test.names) == len(NAMES[level])
        assert set(test.facts.values()) <= set(test.names) and test.facts != other.facts
        assert len(train.facts) > 1900


def test_questions_are_known_by_their_ids() -> None:
    asked = questions((2,), 0, 0, "train", None)
    assert len(asked) == 9 * len(world(0, 0, "train")[0].names) and pickle.loads(pickle.dumps(asked)) is asked
    assert asked.get(asked[5].id) == asked[5] and len({question.question for question in asked}) == len(asked)
    test = questions((2,), 0, 0, "test", 3)[0].id
    for bad in (test, "procedural/2/1/0/3", "procedural/2/0/1/3", "procedural/9/0/0/3", "procedural/2/0/0/99999", "x"):
        with pytest.raises(DataError, match=r"no problem with the id .* Ids here look like 'procedural/2/0/0/"):
            asked.get(bad)
    env = started(hops=[1, 2])
    assert env.task.kind_of(f"{ASKED}77") == "procedural/2/0/0" and len(env.task.evaluation_set(50)) == 50


@pytest.mark.parametrize("kwargs", [{"hops": 5}, {"hops": []}, {"level": 2}, {"world": -1}, {"split": "dev"}, {"k": 0}, {"searches": 0},
                                    {"reward": "bleu"}, {"profiles": [{"role": "poet", "prompt": "", "with_answer": True}]}])  # fmt: skip
def test_settings_that_cannot_work(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        marft_envs.make("rag-chain-v0", **kwargs)


# --- teams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("level", [0, 1])
def test_experts_find_everything_and_nothing_tells_the_answer_before(team: str, level: int) -> None:
    env = marft_envs.make(f"rag-{team}-v0", level=level, hops=[1, 2, 3, 4], recall_reward=0.25)
    env.task.validate()
    for seed in range(6):
        episode = experts.play(env, seed)
        assert episode.success and episode.metrics["recall"] == episode.metrics["em"] == episode.metrics["f1"] == 1
        assert episode.team_return == pytest.approx(1.25) and not episode.invalid
        assert episode.metrics["cited"] == level and episode.metrics.get("cited_precision", 1) == 1
        paid = {turn.role for turn in episode.turns if turn.reward}
        assert paid == {"solo" if team == "solo" else "searcher"}


def test_a_chain_passes_on_searches_and_notes() -> None:
    env = started(recall_reward=1.0)
    question = env.task.problem
    (first, note), (second, _) = question.steps
    assert prompt(env, "searcher_0") == question.question
    assert env.messages("searcher_0")[0]["content"] == "searcher"  # at level 0 all that a profile says
    env.step(f"\n{first}\nbecause")
    shown = prompt(env, "reader_0")
    assert shown.startswith(f"{question.question}\n\n[searcher]\n{first}\n\n[feedback]\n") and "because" not in shown
    assert f"[{question.needed[0]}] {first} {note}" in shown and len(shown.splitlines()) == 8
    env.step(rf"It says so. \boxed{{{note}}}")
    assert prompt(env, "searcher_0") == f"{question.question}\n\n[reader]\n{note}"
    env.step(rf"\boxed{{{second}}}")
    assert prompt(env, "reader_0").count("[feedback]") == 1  # its own note stands as its own words before it
    env.step("no box")
    assert prompt(env, "answerer_0") == f"{question.question}\n\n[reader]\n{note}\n\n[reader]\nno box"
    assert env.episode.turns[0].reward == env.episode.turns[2].reward == 0.5
    env.step(rf"\boxed{{{question.answers[0]}, or so}} [{question.needed[1]}] [x]")
    metrics = env.episode.metrics
    assert not env.episode.success and (metrics["em"], metrics["substring"], metrics["parsed"]) == (0, 1, 1)
    assert (metrics["cited"], metrics["cited_precision"], metrics["searches"]) == (0.5, 0.5, 2) and 0 < metrics[
        "f1"
    ] < 1


def test_a_repeated_search_has_no_reward_and_an_answer_needs_a_box() -> None:
    env = started(recall_reward=1.0)
    first, answer = env.task.problem.steps[0][0], env.task.problem.answers[0]
    for reply in (first, r"\boxed{-}", first, "", answer):
        env.step(reply)
    assert [turn.reward for turn in env.episode.turns] == [0.5, 0, 0, 0, 0]
    assert (
        env.done
        and env.episode.metrics["recall"] == 0.5
        and env.episode.metrics["parsed"] == env.episode.team_return - 0.5 == 0
    )


def test_alone_a_line_is_a_search_and_a_box_an_answer() -> None:
    env = started("solo", reward="f1")
    assert env.rules.max_rounds == 3
    env.step("999999 z")
    assert prompt(env, "solo_0") == "[feedback]\nNo passage was found."
    env.step("")
    env.step(rf"\boxed{{{env.task.problem.answers[0]} more}}")
    assert env.done and env.episode.team_return == pytest.approx(2 / 3) and env.episode.metrics["searches"] == 1
    env.reset(seed=0)
    env.step(r"\boxed{\text{1}}")
    assert env.done and env.episode.metrics["searches"] == 0


def test_a_planner_sends_searchers_with_a_part_each() -> None:
    env = started("planner")
    env.step("First:\n100 a; 200 b")
    assert env.ready_agents == ["searcher_0", "searcher_1"] and prompt(env, "searcher_1").endswith(
        "[planner]\nYour search: 200 b"
    )
    env.step("100 a")
    env.step("200 b")
    assert prompt(env, "checker_0").count("[feedback]") == 2
    env.step("Not yet.")
    assert prompt(env, "planner_0").endswith("[checker]\nNot yet.") and not env.done
    env.step("300 a")
    env.step("300 a")
    env.step(r"\boxed{1}")
    assert env.done and env.episode.metrics["parsed"] == 1 and not env.episode.success


def test_a_router_names_who_acts_and_an_answer_ends_it() -> None:
    env = started("router")
    env.step("Now the searcher.")
    env.step("100 a")
    env.step("reader")
    assert "[router]" not in prompt(env, "reader_0") and "[searcher]" in prompt(env, "reader_0")
    env.step(r"\boxed{7}")
    env.step("nobody")
    assert env.ready_agents == ["searcher_0"] and env.episode.invalid == 1
    env.step("200 a")
    env.step("answerer")
    env.step(r"\boxed{1}")
    assert env.done and env.episode.stop_reason == "task"


# --- published sets, and others -----------------------------------------------------------------------------------

FACTS = [("Po", "The Po is a river. It ends near Venice."), ("Venice", "Venice is a city.")]
COLUMNS = {
    "title": ["Po", "Venice"],
    "sentences": [["The Po is a river.", " It ends near Venice."], ["Venice is a city."]],
}
LISTS = [[title, sentences] for title, sentences in zip(*COLUMNS.values(), strict=True)]
HOTPOT = {"question": "Where does the Po end?", "answer": "Venice", "type": "bridge", "level": "hard"}
ROWS: dict[str, dict[str, Any]] = {
    "hotpotqa": {**HOTPOT, "id": "5a7a", "supporting_facts": {"title": ["Po", "Po"], "sent_id": [0, 1]}, "context": COLUMNS},
    "hotpotqa-fullwiki": {**HOTPOT, "_id": "5a7a", "supporting_facts": [["Po", 0], ["Po", 1]], "context": LISTS},
    "2wikimultihopqa": {
        **HOTPOT, "_id": "13f5", "supporting_facts": [["Po", 1]], "evidences": [["Po", "mouth", "Venice"]],
        "context": [["Po", ["The Po is a river.", "It ends near Venice."]], ["Venice", ["Venice is a city."]]],
    },
    "musique": {
        "id": "2hop__1", "question": HOTPOT["question"], "answer": "Venezia", "answer_aliases": ["Venice"], "answerable": True,
        "paragraphs": [{"idx": i, "title": title, "paragraph_text": text, "is_supporting": not i} for i, (title, text) in enumerate(FACTS)],
        "question_decomposition": [],
    },
    "nq-open": {"question": "where does the po end", "answer": ["Venezia", "Venice"]},
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows_in_the_published_format(name: str) -> None:
    row = ROWS[name]
    twice = [("a/0", "row 0", row), ("a/1", "row 1", {**row, "id": "other"})]
    questions, passages = data.pooled(twice)
    assert [question.id for question in questions] == [row.get("id", row.get("_id", "a/0")), "other"]
    question = questions[0]
    assert "Venice" in question.answers and em("venice", question.answers) == 1
    if name == "nq-open":
        assert not passages and not question.needed
        return
    assert [(passage.title, passage.text) for passage in passages] == FACTS  # each once
    assert question.needed == (("p1",) if name == "musique" else ("Po",)) and data.pooled(twice, alone=True)[0][
        0
    ].needed == ("Po",)
    with pytest.raises(DataError, match=r"row 0: .*The row has"):
        data.pooled([("a/0", "row 0", {k: v for k, v in row.items() if k != "question"})])


def test_a_set_is_fetched_and_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    fake = types.SimpleNamespace(load_dataset=lambda *args, split: asked.append((*args, split)) or [ROWS["hotpotqa"]])
    monkeypatch.setitem(sys.modules, "datasets", fake)  # type: ignore[arg-type]
    env = marft_envs.make("rag-chain-v0", data="hotpotqa", split="test", recall_reward=0.5)
    assert asked == [("hotpotqa/hotpot_qa", "distractor", "validation")]
    env.reset(seed=0)
    with pytest.raises(UnsolvedError, match="not made here"):
        env.task.expert("searcher_0")
    for reply in ("Po river", r"\boxed{near Venice}", "Venice", r"\boxed{-}", r"\boxed{Venice} [p1]"):
        env.step(reply)
    assert env.episode.success and env.episode.metrics["recall"] == 1 and env.episode.team_return == 1.5
    assert env.task.kind_of("5a7a") == "5a7a"


def test_questions_and_passages_of_ones_own(tmp_path: Path) -> None:
    asked, texts = tmp_path / "asked.jsonl", tmp_path / "texts"
    texts.mkdir()
    (texts / "Po.txt").write_text(FACTS[0][1])
    asked.write_text(json.dumps({"question": "Where?", "answer": ["Venice", "Venezia"], "needed": ["Po"]}))
    env = marft_envs.make("rag-solo-v0", data=asked, corpus=texts, recall_reward=1.0, searches=1)
    env.reset(seed=0)
    env.step("river")
    env.step(r"\boxed{venezia} [Po]")
    assert env.episode.success and env.episode.team_return == 2 and env.episode.metrics["cited_precision"] == 1
    with pytest.raises(ConfigError, match="come without passages"):
        marft_envs.make("rag-solo-v0", data=asked)
    asked.write_text(json.dumps({"question": "Where?", "answer": "Venice"}))
    with pytest.raises(ConfigError, match="without recall_reward"):
        marft_envs.make("rag-solo-v0", data=asked, corpus=texts, recall_reward=1.0)
    with pytest.raises(DataError, match="Did you mean 'hotpotqa'"):
        marft_envs.make("rag-solo-v0", data="hotpotq")
