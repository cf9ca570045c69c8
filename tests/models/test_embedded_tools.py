"""The embedded tool-using model: it loads offline, knows the format, is middling, and a team of it can be trained."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from helpers.marks import rest_in_ci

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import marft_envs  # noqa: E402
from benchmarks.embedded import recipes  # noqa: E402
from benchmarks.embedded.make_embedded import phrases, run_team  # noqa: E402
from helpers.runs import train  # noqa: E402
from marft_algos.config import presets  # noqa: E402
from marft_algos.config import settings as config  # noqa: E402
from marft_algos.models import EMBEDDED, embedded_path  # noqa: E402
from marft_envs.call_formats import parse, written  # noqa: E402
from marft_envs.families.tools import ToolCall  # noqa: E402

NAME, TEAM = "embedded-tools", "tools-router-v0"
RECIPE = recipes.load(NAME)
HELD_OUT = {**RECIPE.teams[TEAM].kwargs, "split": "test"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(embedded_path(NAME), local_files_only=True)


@pytest.fixture(scope="module")
def shown() -> list[tuple[Any, str]]:
    """What demonstrators of the router's team show in sixty episodes."""
    form = RECIPE.teams[TEAM]
    return recipes.play(TEAM, recipes.Format(60, form.roles, form.kwargs), random.Random(0))


def test_it_is_small_and_has_recipe_and_card() -> None:
    assert EMBEDDED[NAME] == "tools"
    folder = embedded_path(NAME)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4_000_000
    assert f"## `{NAME}`" in (folder.parent / "README.md").read_text(encoding="utf-8")


def test_calls_and_profiles_are_a_few_tokens(tokenizer: Any) -> None:
    call = written([ToolCall("refund_order", {"order": 12, "amount": 25})])
    assert len(tokenizer.tokenize(call)) <= 9
    for env_id, form in RECIPE.teams.items():
        env = marft_envs.make(env_id, **form.kwargs)
        for agent in env.possible_agents:
            assert len(tokenizer.tokenize(env.profile(agent).prompt)) <= 8, "a changed profile: run make_embedded again"


def test_prompts_are_short(tokenizer: Any, shown: list[tuple[Any, str]]) -> None:
    prompts = [tokenizer.apply_chat_template(m, add_generation_prompt=True)["input_ids"] for m, _ in shown]
    assert max(map(len, prompts)) <= 120


def test_demonstrators_call_tools_route_and_are_careless(shown: list[tuple[Any, str]]) -> None:
    """Every reply is a call, a specialist's name or a refusal; some refunds have amount and order exchanged."""
    kinds: Counter[str] = Counter()
    for messages, reply in shown:
        calls = parse(reply).calls
        assert not parse(reply).error
        kinds["call" if calls else reply] += 1
        asked = messages[1]["content"]
        if calls and calls[0].name == "refund_order":
            first, order = (int(word.strip(".")) for word in asked.split("\n")[1].split() if word.strip(".").isdigit())
            exchanged = calls[0].arguments["order"] == first != order
            kinds["exchanged" if exchanged else "right"] += 1
            assert not exchanged or first >= 10
    assert set(kinds) <= {"call", "orders", "shipping", "refunds", "Nothing is left to do.", "exchanged", "right"}
    assert kinds["exchanged"] and kinds["right"] and kinds["call"] >= 40


def test_results_of_calls_are_no_tags_of_roles() -> None:
    """A list in a result is not taken for somebody's tag and made a token."""
    prompt = [{"role": "user", "content": "[feedback]\nfind: [1, 2]\n\n[orders, round 2]\nNo.\n\n[7]\nx"}]
    found = phrases(RECIPE, [prompt])
    assert {"[feedback]\n", "\n\n[orders, round 2]\n"} <= set(found) and not {"[1, 2]\n", "\n\n[7]\n"} & set(found)


def test_the_untrained_team_is_middling(tokenizer: Any) -> None:
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(embedded_path(NAME), local_files_only=True).eval()
    ids = marft_envs.make(TEAM, **HELD_OUT).task.evaluation_set(40)
    tasks = [{"task_id": task_id} for task_id in ids]
    episodes = run_team(model, tokenizer, TEAM, tasks, new_tokens=RECIPE.new_tokens, **HELD_OUT)
    assert 0.2 <= sum(bool(episode.success) for episode in episodes) / len(episodes) <= 0.7
    assert sum(episode.metrics["malformed"] for episode in episodes) <= 2


@pytest.mark.parametrize("env_id", ["tools-solo-v0", "tools-router-v0", "tools-supervisor-v0"])
def test_a_tool_using_team_is_trained_with_it_by_default(env_id: str) -> None:
    preset = presets.get(presets.suited(env_id))
    assert preset["models"] == NAME and "levels" not in preset["env_kwargs"], "no preset selects problems"
    assert {problem.level for problem in marft_envs.make(env_id, **preset["env_kwargs"]).task.problems} == {0}


@pytest.mark.parametrize("chain", rest_in_ci([False, True]))
def test_an_iteration_of_training(tmp_path: Path, chain: bool) -> None:
    """Also in the chain, in which the router never acts."""
    table = presets.get("tools")
    smaller = {"iterations": 1, "episodes_per_iteration": 8, "eval_episodes": 4, "runs_dir": str(tmp_path)}
    kwargs = {"dependency": [["orders_0"], ["shipping_0"], ["refunds_0"]], "max_rounds": 1} if chain else {}
    made = config.build({**table, **smaller, "device": "cpu", "env_kwargs": {**table["env_kwargs"], **kwargs}})
    _, run = train(made)
    last = run.metrics()[-1]
    assert last["iteration"] == 1 and last["tokens"] > 0
    assert ("router_0" in {turn.agent for e in run.episodes("eval", 1) for turn in e.turns}) is not chain
