"""The memory rows of bfcl-eval: all of them are read, and upstream's own rule judges replies alike."""

from __future__ import annotations

import importlib

import pytest

import marft_envs
from marft_envs.families.docs.document import Document, right
from marft_envs.families.tools.bfcl.data import load
from tests.helpers import bfcl_upstream

pytestmark = pytest.mark.skipif(not bfcl_upstream.place()[0], reason=bfcl_upstream.ABSENT)


@pytest.fixture(scope="module")
def published() -> tuple[Document, ...]:
    folder = bfcl_upstream.place()[1]
    load(folder)
    sets = [marft_envs.make("docs-recall-v0", data=folder or "bfcl-memory", split=s) for s in ("train", "test")]
    return tuple(document for env in sets for document in env.task.problems)


def test_every_published_question_has_its_sessions_and_its_answer_stands_where_it_says(
    published: tuple[Document, ...],
) -> None:
    assert len(published) == 155 and {d.kind for d in published} == {
        "customer", "healthcare", "finance", "student", "notetaker",
    }  # fmt: skip
    for document in published:
        assert len(document.pages) > 1 and all(right(document, f"It was {a}, I think.") for a in document.answers)
        assert not right(document, "") and not right(document, "I do not remember.")


def test_upstream_judges_replies_alike(published: tuple[Document, ...]) -> None:
    checker = importlib.import_module("bfcl_eval.eval_checker.agentic_eval.agentic_checker").agentic_checker
    for i, document in enumerate(published):
        gold, other = document.answers[0], published[i - 1].answers[0]
        replies = [
            gold, gold.upper(), f"({gold})", f"x{gold}", gold[:-1], f"{gold}s", other, f"{other}, or {gold}.", "",
        ]  # fmt: skip
        for reply in replies:
            assert right(document, reply) is checker(reply, list(document.answers))["valid"], (document.id, reply)
