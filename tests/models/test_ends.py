"""Base models: a chat template from a file, and replies that end with the text that it writes before a message."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="models need torch (the extra train)")

from helpers.tiny import save_tiny
from marft_algos import TrainConfig
from marft_algos.cli.app import main
from marft_algos.config import values
from marft_algos.config.evaluation import EvalConfig
from marft_algos.engines import NativeEngine
from marft_algos.models.chat import Said
from marft_algos.models.loading import ModelSettings, load_chat
from marft_algos.models.policy import PolicySet
from marft_algos.types import GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError

PLAIN = (
    "{% for m in messages %}{% if m.role == 'assistant' %}Answer: {{ m.content + '\n\n' }}"
    "{% else %}Question: {{ m.content + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)
LETTER = "{% for m in messages %}{{ m.content + ('a' if m.role == 'assistant' else '|') }}{% endfor %}"
"""Behind a reply stands a letter, which random models say often."""
TALK = [{"role": "user", "content": "7+5?"}]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A base model: no template."""
    return str(save_tiny(tmp_path_factory.mktemp("bare"), chat_template=None))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "plain.jinja").write_text(PLAIN)
    return tmp_path / "plain.jinja"


def test_a_base_model_is_spoken_to_by_the_template_it_is_given(bare: str) -> None:
    with pytest.raises(ConfigError, match=r"no chat template.*--chat-template FILE"):
        load_chat(bare)
    with pytest.raises(ConfigError, match=r"Fix tokenizer\.chat_template, give another \(--chat-template FILE\)"):
        load_chat(bare, ModelSettings(chat_template="{% for m in messages %}"))
    chat = load_chat(bare, ModelSettings(chat_template={bare: PLAIN}))
    assert chat.tokenizer.decode(chat.render([TALK])[0]) == "Question: 7+5?\nAnswer:"
    assert chat.end_text == "\n\nQuestion:" and chat.end_ids == (chat.tokenizer.eos_token_id,)
    ids = chat.tokenizer.encode(" 12.\n\nQuestion: 1+1?", add_special_tokens=False)
    end = chat.end_of(ids)
    assert chat.tokenizer.decode(ids[:end]) == " 12.\n\nQuestion:" and chat.end_of(ids[: end - 1]) == 0
    assert chat.text_of(ids) == chat.text_of(ids[:end]) == " 12."
    assert chat.end_of([*ids[:3], *chat.end_ids, *ids]) == 4, "a token that ends it, too"
    assert chat.reply_ids("12")[-1] == chat.tokenizer.eos_token_id, "demonstrations end with the token"


def test_an_own_turn_that_ended_with_the_text_is_rendered_again(bare: str) -> None:
    chat = load_chat(bare, ModelSettings(chat_template=PLAIN))
    first, again = TALK, [*TALK, {"role": "assistant", "content": "12"}, {"role": "user", "content": "1+1?"}]
    rendered, next_ = chat.render([first, again])
    ended = chat.tokenizer.encode(" 12\n\nQuestion:", add_special_tokens=False)
    assert chat.as_sampled(next_, Said(rendered, rendered, ended)) == next_


def test_a_template_that_closes_replies_with_a_token_has_no_end_of_text(tmp_path: Path) -> None:
    assert load_chat(str(save_tiny(tmp_path))).end_text == ""


def test_the_native_engine_ends_a_reply_where_the_text_is_whole(bare: str) -> None:
    agents, settings = {"a_0": "a"}, ModelSettings(chat_template=LETTER)
    policies = PolicySet.build(bare, agents, device="cpu", settings=settings)
    chat, engine = policies.renderer.chat("a"), NativeEngine(policies)
    assert chat.end_text == "a"
    requests = [GenerationRequest("a", chat.render([TALK])[0], seed) for seed in range(64)]
    ended = engine.generate(requests, SamplingParams(48))
    chat.end_text = ""
    whole = engine.generate(requests, SamplingParams(48))
    assert {reply.stop_reason for reply in ended} == {StopReason.EOS, StopReason.LENGTH}
    cut = [(one, other) for one, other in zip(ended, whole, strict=True) if len(one.action_ids) < len(other.action_ids)]
    assert len(cut) > 2
    for one, other in cut:
        many = len(one.action_ids)
        assert one.action_ids == other.action_ids[:many] and one.stop_reason is StopReason.EOS
        assert one.logprobs == pytest.approx(other.logprobs[:many], abs=1e-5)
        assert "a" not in one.text and chat.text_of(one.action_ids) == one.text + "a"
    for one, other in zip(ended, whole, strict=True):
        assert (one, other) in cut or one.action_ids == other.action_ids


def test_a_template_s_text_is_a_part_of_the_settings(file: Path, bare: str) -> None:
    config = TrainConfig(env="relay-v0", models=bare, chat_template=str(file))
    assert config.chat_template == PLAIN == replace(config, seed=1).chat_template
    assert EvalConfig(env="relay-v0", chat_template={bare: str(file)}).chat_template == {bare: PLAIN}
    with pytest.raises(ConfigError, match=r"Cannot read .* 'none\.jinja'.*Expected a file as"):
        values.templates("none.jinja")
    file.write_text("Say something.")
    with pytest.raises(ConfigError, match="nothing in it is Jinja's"):
        values.templates(str(file))


def test_a_team_of_a_base_model_trains_and_is_evaluated(
    file: Path, bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--iterations", "1", "--episodes-per-iteration", "4", "--eval-episodes", "2", "--max-new-tokens", "4"]
    team = ["--env", "relay-v0", "--models", bare, "--chat-template"]
    Path("other.jinja").write_text(LETTER)
    two = [f"planner_0={file}", "solver_0=other.jinja"]
    for given, says in ([f"solver={file}"], "unknown policy 'solver'"), (two, "two templates. Policies on one model"):
        assert main(["train", *team, *given, *few]) == 1
        assert says in capsys.readouterr().err
    assert main(["train", *team, str(file), *few, "--name", "base"]) == 0
    assert "Question: " in Path("runs/base/config.toml").read_text(), "a run needs the file no more"
    file.unlink()
    assert main(["eval", "runs/base", "--episodes", "2"]) == 0
    file.write_text(PLAIN)
    hosted = ["eval", "--env", "relay-v0", "--engines", bare, "--episodes", "2", "--max-new-tokens", "4"]
    assert main([*hosted, "--chat-template", str(file), "--out", "played"]) == 0
