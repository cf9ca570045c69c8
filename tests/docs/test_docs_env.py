"""The family of long documents: what is shown, handed over and graded; windows, experts, ids, bosses."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import marft_envs
from examples import readers
from helpers.flex import play
from helpers.marks import rest_in_ci
from marft_envs import ConfigError, DataError, FlexEnv
from marft_envs.families.docs.document import Document, packed, pages_of, pieces, plan_of, right
from marft_envs.families.docs.kinds import KINDS
from marft_envs.families.docs.procedural import PER_PAGE, WINDOW, Made, build, from_id, part
from marft_envs.families.docs.teams import TEAMS
from marft_envs.records import experts

LEDGER = "procedural/total/2/0/5"


def started(team: str, task_id: str = LEDGER, **kwargs: Any) -> FlexEnv:
    env = marft_envs.make(f"docs-{team}-v0", **{"level": 0, "lengths": 2} | kwargs)
    env.reset(seed=0, options={"task_id": task_id})
    return env


def prompt(env: FlexEnv, agent: str) -> str:
    return env.messages(agent)[-1]["content"]


# --- documents ----------------------------------------------------------------------------------------------------


def plain_answer(document: Document) -> str:
    """The answer, worked out from the text alone, by other means than the expert's."""
    text = list(document.entries)
    if document.kind == "total" and document.level == 0:
        return str(sum(int("".join(c for c in entry if not c.isalpha())) for entry in text))
    if document.kind == "total":
        amounts = [int(entry.rstrip(".").split()[-1]) for entry in text]
        return str(sum(-n if " draws " in entry else n for n, entry in zip(amounts, text, strict=True)))
    if document.kind in ("count", "ever"):
        words = document.question.rstrip("?.").split()
        wanted = words[-1] if document.level == 0 else f"A {words[2]} box is sent to {words[-1]}."
        return str(text.count(wanted)) if document.kind == "count" else ("yes" if wanted in text else "no")
    if document.kind == "largest":
        return max((entry.rstrip(".").split()[-1] for entry in text), key=int)
    if document.kind == "lookup":
        marks = (">",) if document.level == 0 else ("The boss of ", " is ")
        links = [
            entry.rstrip(".").removeprefix("The boss of ")
            for entry in text
            if entry.startswith(marks[0]) or ">" in entry
        ]
        follow = dict(link.split(marks[-1]) for link in links)
        asked = document.question[0] if document.level == 0 else document.question.rstrip("?").split()[-1]
        return follow[follow[asked]]
    claims = [
        entry.rstrip(".").split("=" if document.level == 0 else " is ")
        for entry in text
        if "=" in entry or " is " in entry
    ]
    said: dict[str, set[str]] = {}
    for who, age in claims:
        said.setdefault(who, set()).add(age)
    (answer,) = [who for who, ages in said.items() if len(ages) > 1]
    return answer


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_follow_from_the_text(kind: str, level: int) -> None:
    for key in range(60):
        document = build(kind, 1 + key % 3, level, key)
        assert document.answers == (plain_answer(document),), document
        assert from_id(document.id) == document and len(document.entries) == document.pages[-1]


@pytest.mark.parametrize("level", [0, 1])
def test_a_window_holds_a_document_of_length_one_and_none_of_length_two(level: int) -> None:
    for kind in KINDS:
        for key in range(100):
            short, long = (build(kind, length, level, key) for length in (1, 2))
            sizes = [len(f"{d.question}\n{d.text(0, len(d.entries))}") for d in (short, long)]
            assert sizes[0] <= WINDOW[level] < sizes[1], (kind, sizes)


def test_splits_are_disjoint_and_the_evaluation_set_is_the_same_everywhere() -> None:
    train, test = (Made(None, [1, 2], 0, split) for split in ("train", "test"))
    assert len(test) == 12 * 600 and {test[i].kind for i in range(0, 12 * 600, 600)} == set(KINDS)
    assert [test[i].id for i in range(40)] == [Made(None, [1, 2], 0, "test")[i].id for i in range(40)]
    assert {part(test[i]) for i in range(40)} == {"test"} and {part(train[i]) for i in range(40)} == {"train"}
    rng = np.random.default_rng(0)
    drawn = [train.draw(rng) for _ in range(60)]
    assert {part(d) for d in drawn} == {"train"} and {d.length for d in drawn} == {1, 2}
    few = Made(["total"], [1], 0, "train", limit=3)
    assert {few.draw(rng).id for _ in range(40)} == {few[i].id for i in range(3)}
    assert pickle.loads(pickle.dumps(few))[2] == few[2]


@pytest.mark.parametrize("n", [100, 200, 300, 500])
def test_an_evaluation_set_holds_as_many_of_each_length(n: int) -> None:
    """Whatever its size: taken in turn, every third document of three lengths would be of one length."""
    env = marft_envs.make("docs-boss-v0", kinds="total", lengths=[1, 2, 3], level=0)
    lengths = Counter(from_id(task_id).length for task_id in env.task.evaluation_set(n))
    assert set(lengths) == {1, 2, 3} and max(lengths.values()) - min(lengths.values()) <= 1
    limited = Counter(document.length for document in Made(["total"], [1, 2, 3], 0, "test", limit=n))
    assert limited == lengths


@pytest.mark.parametrize("bad", ["total/2/0/5", "procedural/totl/2/0/5", "procedural/total/0/0/5", "procedural/total/2/2/5",
                                 "procedural/total/65/0/5", "procedural/total/2/0/-5", f"procedural/total/2/0/{2**32}"])  # fmt: skip
def test_ids_of_nothing_are_refused(bad: str) -> None:
    with pytest.raises(DataError, match="Expected procedural/<kind>"):
        from_id(bad)


def test_pages_and_pieces() -> None:
    assert packed(["aaaa", "bb", "c", "dddddd"], 8, " ") == (2, 4) and packed(["long" * 5], 8, " ") == (1,)
    assert pieces("one two three\n\n  four ", 8) == ("one two", "three", "four") and pieces("x" * 9, 4) == (
        "xxxx",
        "xxxx",
        "x",
    )
    document = build("total", 2, 0, 5)
    assert [document.page(i) for i in range(4)] == [(4 * i, 4 * i + 4) for i in range(4)]
    assert document.page(1, 2) == (4, 12) and document.page(2, 9) == (8, 16)
    assert document.page(4) == document.page(-1) == document.page(3, 2) == (0, 0)
    assert [document.share(i, 3) for i in range(3)] == [(0, 5), (5, 10), (10, 16)]


# --- replies ------------------------------------------------------------------------------------------------------


def test_the_last_box_counts_whatever_the_case() -> None:
    document = build("lookup", 1, 1, 3)
    gold = document.answers[0]
    for reply in (rf"\boxed{{{gold}}}", rf"\boxed{{No}} or \boxed{{ {gold.upper()}. }}", rf"\boxed{{\text{{{gold}}}}}"):
        assert right(document, reply)
    for reply in (gold, rf"\boxed{{{gold}", rf"\boxed{{{gold}}} no, \boxed{{nobody}}", ""):
        assert not right(document, reply)


@pytest.mark.parametrize(("text", "plan"), [
    (r"Two: \boxed{1-2; 3}", ["1-2", "3"]), (r"\boxed{7}", ["7"]), (r"\boxed{9 - 12;4}", ["9-12", "4"]),
    (r"\boxed{1; two}", None), (r"\boxed{1;}", None), (r"\boxed{}", None), (rf"\boxed{{{'9' * 7}}}", None),
    ("1-2; 3", None),
])  # fmt: skip
def test_plans(text: str, plan: list[str] | None) -> None:
    assert plan_of(text) == plan and (plan is None or pages_of(plan[-1])[0] >= 0)


# --- teams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", rest_in_ci([1, 0]))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("team", TEAMS)
def test_experts_solve_every_kind_in_every_team(team: str, kind: str, level: int) -> None:
    env = marft_envs.make(f"docs-{team}-v0", kinds=kind, level=level, lengths=[1, 2, 3])
    for seed in range(8):
        assert experts.play(env, seed).success is True
    env.task.validate()


@pytest.mark.parametrize("team", TEAMS)
def test_the_null_team_scores_nothing(team: str) -> None:
    for kind in KINDS:
        env = marft_envs.make(f"docs-{team}-v0", kinds=kind)
        assert [play(env, seed, say=lambda env, agent: "").episode.team_return for seed in range(3)] == [0.0] * 3


def test_readers_in_a_chain_read_their_part_and_the_note_before() -> None:
    env = started("chain")
    document, size = env.task.problem, PER_PAGE[0]
    assert prompt(env, "reader_0") == f"Sum.\n{document.text(0, size)}"
    env.step(r"I go on and on. \boxed{17}")
    assert prompt(env, "reader_1") == f"Sum.\n{document.text(size, 2 * size)}\n\n[reader]\n17"
    env.step("no box here")
    assert prompt(env, "reader_2").endswith("[reader]\nno box here") and prompt(env, "reader_3").endswith(
        document.text(12, 16)
    )


def test_an_agent_with_a_memory_is_shown_page_and_note_and_nothing_else() -> None:
    env = started("memory")
    document, size = env.task.problem, PER_PAGE[0]
    assert prompt(env, "memory_0") == f"Sum.\n{document.text(0, size)}"
    env.step(r"words \boxed{17}")
    assert prompt(env, "memory_0") == f"Sum.\n17\n{document.text(size, 2 * size)}" and env.episode.success is False
    env.step("forgets to box")
    assert prompt(env, "memory_0") == f"Sum.\n{document.text(2 * size, 3 * size)}"
    env.step("")
    env.step(rf"\boxed{{{document.answers[0]}}}")
    episode = env.episode
    assert episode.success and episode.stop_reason == "task" and len(episode.rounds) == len(document.pages) == 4


@pytest.mark.parametrize("parts", [1, 2, 3, 16])
def test_an_agent_with_a_memory_reads_in_as_many_parts_as_are_set(parts: int) -> None:
    env = started("memory", readers=parts, window=0)
    document = env.task.problem
    for i in range(parts):
        assert prompt(env, "memory_0").endswith(document.text(*document.share(i, parts)))
        env.step(env.task.expert("memory_0"))
    assert env.done and env.episode.success and len(env.episode.rounds) == parts


def test_the_window_cuts_for_everybody_alike_and_the_cut_is_recorded() -> None:
    env = started("solo")
    assert len(prompt(env, "solo_0")) == WINDOW[0] and env.task.problem.text(0, 16).startswith(
        prompt(env, "solo_0")[5:]
    )
    env.step(r"\boxed{0}")
    assert env.episode.cuts == [{"turn": 0, "seen": -2, "chars": len(env.task.observe("solo_0")) - WINDOW[0]}]
    assert prompt(started("solo", window=0), "solo_0").endswith(".")
    flooded = started("map", readers=2)
    for _ in range(2):
        flooded.step("x" * 100)
    assert len(prompt(flooded, "reducer_0").replace("\n\n[mapper]\n", "")) == WINDOW[0]


@pytest.mark.parametrize("arity", [2, 3, 4])
@pytest.mark.parametrize("readers", [1, 2, 3, 4, 5, 7, 16])
def test_joiners_of_a_tree_read_two_notes_and_the_last_one_answers(readers: int, arity: int) -> None:
    for kind in KINDS:
        env = marft_envs.make("docs-tree-v0", kinds=kind, level=0, lengths=2, readers=readers, arity=arity)
        episode = experts.play(env, 1)
        assert (
            episode.success
            and all(cut["seen"] == -2 for cut in episode.cuts)
            and len(episode.layers[0].turns) == readers
        )
        assert len(episode.layers) == 1 + next(d for d in range(1, 9) if arity**d >= readers)
        joins = [turn for turn in episode.turns if turn.role == "reducer"]
        assert len(joins) == len(env.possible_agents) - readers and all(len(turn.sees) <= arity for turn in joins)
        assert [spec.name for spec in env.team if spec.with_answer] == [joins[-1].agent] == [env.possible_agents[-1]]
        for reader in env.possible_agents[:readers]:
            assert env.task.observe(reader).startswith(env.task.problem.question + "\n")


def test_joiners_of_a_tree_are_shown_notes_under_one_tag_and_which_one_answers() -> None:
    env = started("tree")
    for note in (7, -3, 5, 2):
        env.step(rf"\boxed{{{note}}}")
    assert env.ready_agents == ["reducer_0", "reducer_1"]
    assert prompt(env, "reducer_1") == "Sum.\n\n[mapper]\n5\n\n[mapper]\n2"
    assert (
        env.messages("reducer_0")[0] == env.messages("reducer_1")[0] != marft_envs.make("docs-map-v0").team[-1].prompt
    )
    for note in (4, 7):
        env.step(rf"\boxed{{{note}}}")
    assert prompt(env, "reducer_2") == "Sum.\n\n[reducer]\n4\n\n[reducer]\n7"
    assert env.team[-1].prompt == marft_envs.make("docs-map-v0").team[-1].prompt
    env.step(rf"\boxed{{{env.task.problem.answers[0]}}}")
    assert env.episode.success and env.episode.metrics["readers"] == 4


@pytest.mark.parametrize("kind", KINDS)
def test_notes_are_joined_in_any_shape(kind: str) -> None:
    """A document cut anywhere, its notes merged in any tree: what is found is what one reader finds."""
    rng, made = np.random.default_rng(0), KINDS[kind]
    for key in range(30):
        document = build(kind, 1 + key % 3, key % 2, key)
        facts, target = document.facts, document.target
        cuts = [0, *sorted(rng.integers(0, len(facts) + 1, int(rng.integers(0, 9))).tolist()), len(facts)]
        notes = [made.read(facts[a:b], None, target)[1] for a, b in pairwise(cuts)]
        while len(notes) > 1:
            at = int(rng.integers(len(notes) - 1))
            notes[at : at + 2] = [made.merge(notes[at : at + 2])[1]]
        assert made.written(notes[0]) == made.written(made.read(facts, None, target)[1])
        assert made.conclude(notes[0], target)[1] == document.answers[0]


def test_a_boss_sends_readers_to_pages() -> None:
    env = started("boss")
    document = env.task.problem
    assert prompt(env, "boss_0") == "Sum.\n4 pages"
    env.step(r"\boxed{3-4; 2}")
    assert env.ready_agents == ["mapper_0", "mapper_1"]
    assert prompt(env, "mapper_0") == f"Sum.\n{document.text(8, 16)}\n\n[boss]\n3-4"
    assert prompt(env, "mapper_1") == f"Sum.\n{document.text(4, 8)}\n\n[boss]\n2"
    for note in (5, -3):
        env.step(rf"\boxed{{{note}}}")
    shown = [m["content"] for m in env.messages("boss_0")[1:]]
    assert shown == ["Sum.", r"\boxed{3-4; 2}", "[mapper]\n5\n\n[mapper]\n-3"]
    env.step(rf"\boxed{{{document.answers[0]}}}")
    episode = env.episode
    assert episode.success and episode.metrics["readers"] == 2 and episode.metrics["read"] == 0.75
    assert episode.rounds[0].D[0][1:] == [1, 1, 0, 0] and episode.rounds[0].D[1][0] == 1


def test_a_boss_whose_words_are_no_plan_is_counted_and_one_reader_reads_its_share() -> None:
    env = started("boss")
    env.step("let us see")
    assert env.ready_agents == ["mapper_0"] and env.episode.invalid == 1
    assert prompt(env, "mapper_0").startswith(f"Sum.\n{env.task.problem.text(0, 4)}")
    nowhere = started("boss")
    nowhere.step(r"\boxed{9}")
    assert prompt(nowhere, "mapper_0") == "Sum.\n\n\n[boss]\n9", "there is no such page"


def test_without_communication_each_agent_reads_alone() -> None:
    env = started("chain", dependency="independent")
    assert env.ready_agents == [f"reader_{i}" for i in range(4)]
    for _ in range(4):
        env.step(r"\boxed{1}")
    assert env.episode.rounds[0].D == [[0] * 4] * 4


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"kinds": "totl"}, "Did you mean 'total'"), ({"lengths": 0}, "lengths is"), ({"level": 3}, "level 3"),
    ({"split": "dev"}, "no split 'dev'"), ({"window": -1}, "window is -1"), ({"max_chars": 100, "window": 90}, "the same"),
    ({"readers": 0}, "readers is 0"), ({"limit": 0}, "limit is 0"), ({"arity": 2}, "docs-chain-v0 has no arity"),
    ({"profiles": [{"role": "poet", "prompt": "", "with_answer": True}]}, "role 'poet'"),
    ({"profiles": [{"role": "reader", "prompt": ""}]}, "no agent answers"),
])  # fmt: skip
def test_settings_that_cannot_work_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        marft_envs.make("docs-chain-v0", **kwargs)


def test_merges_of_the_example_are_right_step_by_step_and_leave_pairs_for_tests() -> None:
    for i, row in enumerate(readers.tree(documents=1, n=300, seed=0)):
        if row["agent"].startswith("reducer"):
            notes = [int(line) for line in row["messages"][-1]["content"].splitlines() if line.lstrip("-").isdecimal()]
            assert i >= 300 or not readers.held_out(*notes)
            first, *steps = re.findall(r"[+-]?\d+", row["action"].partition(".")[0])
            for amount, balance in zip(steps[::2], steps[1::2], strict=True):
                assert int(first) + int(amount) == int(balance)
                first = balance
            assert row["action"].endswith(f"{first}. \\boxed{{{sum(notes)}}}") and int(first) == sum(notes)
