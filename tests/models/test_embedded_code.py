"""The embedded coding model: it loads offline, knows the format, and is middling."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import marft_envs  # noqa: E402
from benchmarks.embedded import recipes  # noqa: E402
from benchmarks.embedded.make_embedded import run_team  # noqa: E402
from marft_algos.config import presets  # noqa: E402
from marft_algos.models import EMBEDDED, embedded_path  # noqa: E402
from marft_envs.families.code.procedural import enumerate_level0  # noqa: E402
from marft_envs.sandbox import Sandbox  # noqa: E402

NAME = "embedded-code"
RECIPE = recipes.load(NAME)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(embedded_path(NAME), local_files_only=True)


def test_it_is_small_and_has_its_recipe() -> None:
    assert EMBEDDED[NAME] == "code"
    assert sum(file.stat().st_size for file in embedded_path(NAME).iterdir()) < 4_000_000


def test_programs_and_prompts_are_short(sandbox: Sandbox, tokenizer: Any) -> None:
    assert len(tokenizer.tokenize("```python\ndef f(a, b):\n    return 2*a+b\n```")) <= 9
    for env_id, form in RECIPE.teams.items():
        env = marft_envs.make(env_id, **form.kwargs)
        for agent in env.possible_agents:
            assert len(tokenizer.tokenize(env.profile(agent).prompt)) <= 6, "a changed profile: run make_embedded again"


def test_demonstrators_write_programs_and_are_careless(sandbox: Sandbox) -> None:
    """Most programs are programs; under two thirds are right, and reflection mends some of the others."""
    pairs = recipes.play("code-reflect-v0", recipes.Format(40, RECIPE.teams["code-reflect-v0"].roles), random.Random(0))
    coders = [(messages, reply) for messages, reply in pairs if "Reflector. Solve" in messages[0]["content"]]
    assert len(pairs) > len(coders) > 40
    assert all(reply.startswith("```python\ndef f(") and reply.endswith("\n```") for _, reply in coders)
    advice = [reply for messages, reply in pairs if "You are the Reflector" in messages[0]["content"]]
    assert advice and all(reply.startswith("Try ") for reply in advice)


@pytest.mark.ci
def test_the_untrained_team_is_middling(sandbox: Sandbox, tokenizer: Any) -> None:
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(embedded_path(NAME), local_files_only=True).eval()
    problems = [{"task_id": problem.id} for problem in enumerate_level0("test")]
    some = random.Random(1).sample(problems, 120)
    held_out = {"levels": [0], "split": "test"}
    episodes = run_team(model, tokenizer, "code-reflect-v0", some, new_tokens=RECIPE.new_tokens, **held_out)
    assert 0.3 <= sum(bool(episode.success) for episode in episodes) / len(episodes) <= 0.58  # .43 of 500, and chance
    assert sum(episode.metrics["format"] for episode in episodes) / len(episodes) >= 0.95


@pytest.mark.parametrize("env_id", ["code-solo-v0", "code-reflect-v0", "code-tester-v0"])
def test_a_coding_team_is_trained_with_it_by_default(env_id: str) -> None:
    preset = presets.get(presets.suited(env_id))
    assert preset["models"] == NAME and not preset.get("env_kwargs"), "no preset selects problems"
    assert {problem.level for problem in marft_envs.make(env_id).task.problems} == {0}
