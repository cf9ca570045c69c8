"""The embedded reading model: it loads offline, knows the format, is middling, and a team of it can be trained."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from helpers.marks import rest_in_ci

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import marft_envs  # noqa: E402
from benchmarks.embedded import recipes  # noqa: E402
from benchmarks.embedded.make_embedded import run_team  # noqa: E402
from helpers.runs import train  # noqa: E402
from marft_algos.config import presets  # noqa: E402
from marft_algos.config import settings as config  # noqa: E402
from marft_algos.models import EMBEDDED, embedded_path  # noqa: E402
from marft_envs.problems.answers import boxed  # noqa: E402

NAME, TEAM = "embedded-docs", "docs-chain-v0"
RECIPE = recipes.load(NAME)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(embedded_path(NAME), local_files_only=True)


def test_it_is_small_and_has_recipe_and_card() -> None:
    assert EMBEDDED[NAME] == "docs"
    folder = embedded_path(NAME)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1_500_000
    assert f"## `{NAME}`" in (folder.parent / "README.md").read_text(encoding="utf-8")


def test_profiles_and_entries_are_a_few_tokens(tokenizer: Any) -> None:
    for env_id, form in RECIPE.teams.items():
        for agent in (env := marft_envs.make(env_id, **form.kwargs)).possible_agents:
            assert len(tokenizer.tokenize(env.profile(agent).prompt)) <= 8, "a changed profile: run make_embedded again"
    assert tokenizer.tokenize("26+a4-b2")[2:] == ["+a", "4", "-b", "2"]


def test_demonstrators_forget_carries_and_follow_the_note_they_heard() -> None:
    form = RECIPE.teams[TEAM]
    pairs = recipes.play(TEAM, recipes.Format(60, form.roles, form.kwargs), random.Random(0))
    forgotten = 0
    for messages, reply in pairs:
        shown = messages[-1]["content"]
        start = (
            shown.split("[reader]\n")[1] if "[reader]" in shown else shown.split("\n")[1].split("+")[0].split("-")[0]
        )
        assert reply.startswith(start)
        steps = [
            step.split("=")[1]
            for step in reply.split(". ")[0].replace("+", " ").replace("-", " ").split()
            if "=" in step
        ]
        assert boxed(reply) is not None and len(steps) >= 3
        total = int(start) + sum(int(sign + digits) for sign, digits in _signed(shown))
        forgotten += int(boxed(reply) or 0) != total
    assert 20 <= forgotten <= 80, "some of 120 replies are off by ten"


def test_joins_are_shown_without_a_mistake_under_every_tag() -> None:
    rng, seen = random.Random(0), set()
    for env_id, form in (*RECIPE.teams.items(), *RECIPE.more):
        if env_id not in ("docs-tree-v0", "docs-map-v0"):
            continue
        for messages, reply in recipes.play(env_id, recipes.Format(12, form.roles, form.kwargs), rng):
            question, *heard = messages[-1]["content"].split("\n\n")
            if not heard:
                continue
            tags, notes = zip(*(note.split("\n") for note in heard), strict=True)
            seen |= {(question.split()[0], tag) for tag in tags}
            if question == "Largest.":
                right = str(max(map(int, notes)))
            else:
                right = ("yes" if "yes" in notes else "no") if "Any" in question else str(sum(map(int, notes)))
            assert boxed(reply) == right, (messages, reply)
    assert {("Sum.", f"[{role}]") for role in ("mapper", "reducer", "reader", "solo", "memory")} <= seen
    assert {(word, f"[{role}]") for word in ("Largest.", "Any") for role in ("mapper", "reducer")} <= seen


def _signed(shown: str) -> list[tuple[str, str]]:
    text = shown.split("\n")[1]
    return [(text[i], text[i + 2]) for i, c in enumerate(text) if c in "+-" and text[i + 1].isalpha()]


def test_untrained_it_is_middling(tokenizer: Any) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(embedded_path(NAME), dtype=torch.float32)
    env = marft_envs.make(TEAM, level=0, kinds="total", lengths=1, split="test")
    options = [{"task_id": i} for i in env.task.evaluation_set(80)]
    kwargs = {"level": 0, "kinds": "total", "lengths": 1, "split": "test"}
    episodes = run_team(model, tokenizer, TEAM, options, new_tokens=RECIPE.new_tokens, **kwargs)
    assert all(boxed(e.turns[-1].text) is not None for e in episodes)
    assert 0.02 <= sum(bool(e.success) for e in episodes) / 80 <= 0.7


ROLES = {"boss": "boss", "mapper": "reader"}
"""A policy for each role: agents that are spawned share it, and those that are not leave nothing to learn from."""


@pytest.mark.parametrize(
    ("env_id", "policies"),
    rest_in_ci(
        [(TEAM, "shared"), ("docs-boss-v0", ROLES), pytest.param("docs-boss-v0", "own", marks=pytest.mark.slow)]
    ),
)
def test_the_preset_trains_a_team(env_id: str, policies: Any, tmp_path: Path) -> None:
    assert presets.suited(env_id) == "docs"
    few = {"iterations": 1, "episodes_per_iteration": 8, "eval_episodes": 8, "policies": policies}
    table = presets.get("docs") | few | {"env": env_id}
    _, run = train(config.build(table | {"runs_dir": str(tmp_path), "name": "docs"}))
    lines = run.metrics()
    assert lines[-1]["critical_path"] > 0 and lines[-1]["eval/critical_path"] > 0
    assert lines[-1]["eval/tokens_processed"] > lines[-1]["eval/tokens"] > 0


def test_the_expert_of_a_kind_that_the_model_does_not_know_can_be_learnt_from(tmp_path: Path) -> None:
    kwargs = {"level": 0, "kinds": ["lookup", "conflict"], "lengths": 1}
    few = {"iterations": 1, "episodes_per_iteration": 8, "eval_episodes": 8, "env_kwargs": kwargs, "algo": "sft"}
    table = presets.get("docs") | few | {"env": "docs-boss-v0", "algorithm": {"lr": 1e-3}}
    _, run = train(config.build(table | {"runs_dir": str(tmp_path), "name": "docs"}))
    assert run.metrics()[-1]["success"] == 1.0, "the expert's episodes"
