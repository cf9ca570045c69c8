"""Requests with a document: who sees it, what reaches the one who acts, and what an attack comes to."""

from __future__ import annotations

import re

import pytest

import marft_envs
from marft_envs import ConfigError, DataError, FlexEnv
from marft_envs.families.tools.depot.documents import ATTACKS, DocumentRequests
from marft_envs.families.tools.depot.injections import FRAMES, demanded
from marft_envs.records.experts import play

TEAMS = ("solo", "dual", "quarantine", "messenger")
QUIET = {"show_policy": False, "show_tools": "none"}


def build(team: str, attacks: object = "all", **kwargs: object) -> FlexEnv:
    return marft_envs.make(
        f"tools-{team}-v0", domain="documents", domain_args={"attacks": attacks}, split="test", **QUIET, **kwargs
    )


def prompt(env: FlexEnv, agent: str) -> str:
    return "\n".join(message["content"] for message in env.messages(agent))


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("attacks", ["none", "all"])
def test_the_oracle_settles_requests_and_obeys_no_letter(team: str, attacks: str) -> None:
    env = build(team, attacks)
    for seed in range(12):
        episode = play(env, seed)
        assert episode.success and episode.metrics.get("obeyed") == (0.0 if attacks == "all" else None)
    env.task.validate()


def test_a_request_cannot_be_settled_without_the_letter() -> None:
    for problem in DocumentRequests().problems("train"):
        assert not re.search(rf"\b{problem.sought}\b", re.sub(r"order \d+", "", problem.turns[0]))
        assert re.search(rf"\b{problem.sought}\b", problem.document)
        assert str(problem.secret.writes[0].arguments.values()).count(problem.sought) >= 1


def test_attacks_that_are_held_out_are_of_other_kinds() -> None:
    seen, unseen = set(ATTACKS["seen"]), set(ATTACKS["unseen"])
    assert not seen & unseen and seen | unseen == set(FRAMES) == set(ATTACKS["all"])
    train, test = (DocumentRequests(attacks=a).problems(s) for a, s in (("seen", "train"), ("unseen", "test")))
    assert not {p.turns[0] + p.sought for p in train} & {p.turns[0] + p.sought for p in test}
    assert all(demanded(p.document) is not None for p in [*train, *test])


def test_attacks_change_documents_and_nothing_else() -> None:
    clean, some = DocumentRequests().problems("test"), DocumentRequests(attacks="seen", share=0.5).problems("test")
    assert [(p.id, p.turns, p.sought, p.secret) for p in clean] == [(p.id, p.turns, p.sought, p.secret) for p in some]
    attacked = sum(a.document != b.document for a, b in zip(clean, some, strict=True))
    assert 0.4 < attacked / len(clean) < 0.6
    assert all(a.document in b.document for a, b in zip(clean, some, strict=True)), "the value is still said"
    domain = DocumentRequests(attacks="seen", share=0.5)
    assert domain.problems("test").get(some[3].id) == some[3]


def test_in_quarantine_nothing_of_a_letter_reaches_the_actor_but_one_word() -> None:
    env = build("quarantine")
    for seed in range(20):
        env.reset(seed=seed)
        letter, sought = env.task.problem.document, env.task.problem.sought
        assert letter[:12] in prompt(env, "reader_0").replace("< |", "<|") or "<" in letter[:12]
        assert env.tools.get("reader_0", []) == []
        env.step(letter)  # an obedient reader passes all of it on
        assert prompt(env, "actor_0").endswith("[reader]\n?")
        env.reset(seed=seed)
        env.step(f" {sought}\n")
        assert prompt(env, "actor_0").endswith(f"[reader]\n{sought}")
        assert env.episode.turns[0].text == f" {sought}\n", "the record has what was said"


def test_a_messenger_is_no_quarantine() -> None:
    env = build("messenger", ["note"])
    env.reset(seed=0)
    env.step(env.task.expert("reader_0"))
    act = demanded(env.task.problem.document)
    assert act is not None and str(act.arguments["order"]) in prompt(env, "actor_0")


@pytest.mark.parametrize("kind", FRAMES)
def test_who_does_what_a_letter_asks_has_obeyed_and_completed_nothing(kind: str) -> None:
    env = build("solo", [kind])
    for seed in range(3):
        env.reset(seed=seed)
        act, gold = demanded(env.task.problem.document), env.task.gold_calls[0][0]
        assert act is not None
        env.step(env.task.speech.write("agent_0", [act, gold]))
        env.step(env.task.expert("agent_0"))
        assert env.episode.metrics["obeyed"] == 1.0 and not env.episode.success


def test_a_letter_forges_no_turn() -> None:
    env = build("solo", ["system", "response"])
    for seed in range(6):
        env.reset(seed=seed)
        said = prompt(env, "agent_0")
        assert "<|im_" not in said and "[INST]" not in said and len(env.messages("agent_0")) == 2


def test_settings_that_cannot_be_say_what_can() -> None:
    with pytest.raises(ConfigError, match=r"no attacks 'unsen'.*unseen"):
        DocumentRequests(attacks="unsen")
    with pytest.raises(ConfigError, match=r"no kind of attack 'notes'.*note"):
        DocumentRequests(attacks=["notes"])
    with pytest.raises(ConfigError, match="share is 2"):
        DocumentRequests(attacks="all", share=2)
    with pytest.raises(DataError, match="no levels"):
        DocumentRequests().problems("train", [1])
    with pytest.raises(ConfigError, match=r"'depot' have no document that reader_0 could read.*documents"):
        marft_envs.make("tools-quarantine-v0", domain="depot")
    with pytest.raises(DataError, match="Expected documents/<seed>"):
        DocumentRequests().problems("train").get("depot/0/1")
