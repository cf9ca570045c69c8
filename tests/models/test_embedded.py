"""The embedded model: it loads offline by the usual classes, is small, knows the format, and is middling."""

from __future__ import annotations

import random
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import marft_envs  # noqa: E402
from benchmarks.embedded import recipes  # noqa: E402
from benchmarks.embedded.make_embedded import build_tokenizer, render, run_team  # noqa: E402
from marft_algos.models import embedded_path  # noqa: E402
from marft_envs.families.math.procedural import enumerate_level0  # noqa: E402

RECIPE = recipes.load("embedded")
BAND = (0.35, 0.55)
"""Where the card says the untrained teams are."""
_SUM = re.compile(r"\]\n(\d+)\+(\d+)=(\d+)")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(embedded_path(), local_files_only=True)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(embedded_path(), local_files_only=True).eval()


@pytest.fixture(scope="module")
def held_out() -> list[dict[str, str]]:
    problems = [{"task_id": problem.id} for problem in enumerate_level0("test")]
    return random.Random(1).sample(problems, 300)


def prompts(env_id: str, tokenizer: Any, replies: dict[str, str], **kwargs: Any) -> dict[str, list[int]]:
    """Prompt ids of the first episode, by agent."""
    env = marft_envs.make(env_id, **kwargs)
    env.reset(seed=0)
    out = {}
    while not env.done:
        agent = env.ready_agents[0]
        out[agent] = render(tokenizer, [env.messages(agent)])[0]
        env.select(agent)
        env.step(replies[env.profile(agent).role])
    return out


def test_it_is_a_plain_qwen2_of_the_promised_size(model: Any) -> None:
    assert model.config.model_type == "qwen2"
    assert 100_000 <= model.num_parameters() <= 1_000_000
    assert model.config.tie_word_embeddings
    assert model.config.max_position_embeddings == 2048
    assert sum(file.stat().st_size for file in Path(embedded_path()).iterdir()) < 4_000_000


def test_the_tokenizer_knows_where_a_reply_ends_and_what_is_padding(tokenizer: Any, model: Any) -> None:
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.chat_template
    assert model.generation_config.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert len(tokenizer) == model.config.vocab_size < 1000


@pytest.mark.parametrize("text", [
    "", " ", "\n\n", "Natalia sold 48/2 = <<48/2=24>>24 clips.", "求 $x^2$ 的值：答案是 \\boxed{7}。", "🙂é\u0301ß\t\x00\r\n",
])  # fmt: skip
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    # Qwen2's tokenizer normalises to NFC, and nothing else may change.
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_random_unicode_survives_the_tokenizer(tokenizer: Any) -> None:
    rng = random.Random(0)
    for _ in range(200):
        points = [rng.choice([rng.randrange(0x20, 0x3000), rng.randrange(0x10000, 0x1F9FF)]) for _ in range(20)]
        text = unicodedata.normalize("NFC", "".join(map(chr, points)))
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_digits_and_operators_are_one_token_each(tokenizer: Any) -> None:
    assert tokenizer.tokenize("12+34=46, 46*7=322") == [*"12+34=46", ", ", *"46*7=322"]


def test_prompts_are_short(tokenizer: Any) -> None:
    dual = prompts("math-dual-v0", tokenizer, {"reasoner": "13+14=27", "actor": ""}, levels=[0])
    assert max(map(len, dual.values())) <= 32
    relay = prompts("relay-v0", tokenizer, {"planner": "3", "solver": "3"})
    assert max(map(len, relay.values())) <= 24


def test_the_profiles_are_the_ones_it_was_made_with(tokenizer: Any) -> None:
    """A changed profile makes the model's prompts strange to it: run ``make_embedded`` again."""
    for env_id, form in RECIPE.teams.items():
        env = marft_envs.make(env_id, **form.kwargs)
        for prompt in (env.profile(agent).prompt for agent in env.possible_agents):
            assert len(tokenizer.tokenize(prompt)) <= 4, (env_id, prompt)


def test_demonstrations_follow_the_message_even_when_it_is_wrong() -> None:
    form = recipes.Format(200, RECIPE.teams["math-dual-v0"].roles)
    pairs = recipes.play("math-dual-v0", form, random.Random(0))
    actors = [(messages[-1]["content"], reply) for messages, reply in pairs if "[reasoner]" in messages[-1]["content"]]
    assert len(actors) == 200
    assert all(reply.split("*")[0] == seen.rsplit("=", 1)[1] for seen, reply in actors)
    far = [abs(a + b - c) > 10 for a, b, c in (map(int, found) for seen, _ in actors for found in _SUM.findall(seen))]
    assert sum(far) > 10  # not mere slips of the carry


def test_the_tokenizer_can_be_made_again(tokenizer: Any) -> None:
    pairs = [
        pair
        for env_id, of in RECIPE.teams.items()
        for pair in recipes.play(env_id, recipes.Format(30, of.roles, of.kwargs), random.Random(0))
    ]
    again = build_tokenizer(RECIPE, [messages for messages, _ in pairs])
    assert again.get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("env_id", ["math-solo-v0", "math-dual-v0"])
def test_untrained_teams_are_middling_and_almost_always_parsed(
    model: Any, tokenizer: Any, held_out: list[dict[str, str]], env_id: str
) -> None:
    episodes = run_team(model, tokenizer, env_id, held_out, levels=[0], split="test")
    right = sum(bool(episode.success) for episode in episodes) / len(episodes)
    assert BAND[0] <= right <= BAND[1]
    assert sum(episode.metrics["parsed"] for episode in episodes) / len(episodes) >= 0.95


@pytest.mark.parametrize("env_id", ["relay-v0", "xor-v0", "route-v0", "signal-v0"])
def test_toys_know_the_format_and_not_the_solution(model: Any, tokenizer: Any, env_id: str) -> None:
    torch.manual_seed(0)
    episodes = run_team(model, tokenizer, env_id, [{}] * 200, sample=True)
    chance = 0.5 if env_id == "xor-v0" else 0.25
    assert sum(episode.metrics["parsed"] for episode in episodes) / len(episodes) >= 0.95
    assert abs(sum(bool(episode.success) for episode in episodes) / len(episodes) - chance) < 0.12
