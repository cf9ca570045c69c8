"""A second family with real weights: Gemma 3 270M, a base model without a chat template, as a GGUF file.

``MARFT_TEST_GEMMA`` names the file (Gemma's terms: it is no part of this project). It is weaker than SmolLM2 here, and
what is shown is that each command ends well.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="models need torch (the extra train)")

from marft_algos.cli.app import main
from marft_algos.models import gguf
from marft_algos.models.loading import ModelSettings, load_chat
from marft_envs.errors import ConfigError

GEMMA = os.environ.get("MARFT_TEST_GEMMA", "")
pytestmark = pytest.mark.skipif(not GEMMA, reason="MARFT_TEST_GEMMA names no GGUF file of Gemma 3")
PLAIN = """{%- for message in messages -%}
  {%- if message.role == "system" -%}
    {{ message.content + "\n\n" }}
  {%- elif message.role == "user" -%}
    {{ "Question: " + message.content + "\n" }}
  {%- else -%}
    {{ "Answer: " + message.content + "\n\n" }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "Answer:" }}{%- endif -%}
"""
TASK = ["--env", "math-dual-v0", "--env-kwargs", "levels=[0]"]
FEW = ["--episodes-per-iteration", "4", "--eval-episodes", "2", "--max-new-tokens", "16", "--dtype", "fp32"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(autouse=True)
def here(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the template, and one place for all conversions."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(models))
    monkeypatch.chdir(tmp_path)
    Path("plain.jinja").write_text(PLAIN)


def metrics(name: str) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "policy/actor_0/grad_norm" in line]


def test_it_has_no_template_and_is_given_one() -> None:
    with pytest.raises(ConfigError, match=r"no chat template.*--chat-template FILE"):
        load_chat(GEMMA)
    chat = load_chat(GEMMA, ModelSettings(chat_template=PLAIN))
    assert chat.end_text == "\n\nQuestion:" and chat.end_ids == (1,) and chat.vocabulary == 262_144


def test_it_is_evaluated() -> None:
    words = ["eval", *TASK, "--engines", GEMMA, "--chat-template", "plain.jinja", "--max-new-tokens", "32"]
    assert main([*words, "--episodes", "2", "--out", "played"]) == 0
    episodes = [json.loads(line) for line in Path("played/episodes.jsonl").read_text().splitlines()]
    turns = [turn for episode in episodes for turn in episode["turns"]]
    assert len(turns) == 4 and not any("\n\nQuestion:" in turn["text"] for turn in turns)
    assert all(turn["extras"]["stop_reason"] == "eos" or turn["extras"]["tokens"] == 32 for turn in turns)


def test_it_trains_after_demonstrations() -> None:
    words = ["train", *TASK, "--models", GEMMA, "--chat-template", "plain.jinja", *FEW, "--name", "gemma"]
    assert main([*words, "--warm-start", "1", "--iterations", "1"]) == 0
    assert metrics("gemma-warm")[-1]["policy/actor_0/grad_norm"] > 0 and len(metrics("gemma")) == 1
    assert main(["eval", "runs/gemma", "--episodes", "2"]) == 0


def test_it_plays_in_a_team_with_smollm2() -> None:
    """Two tokenizers, two ways in which a reply ends."""
    try:
        smollm2 = str(gguf.file_of("smollm2-135m"))
    except ConfigError as error:
        pytest.skip(str(error))
    words = ["train", *TASK, "--models", f"actor_0={GEMMA}", f"reasoner_0={smollm2}", *FEW, "--name", "mixed"]
    words += ["--chat-template", "actor_0=plain.jinja", "--warm-start", "1", "--iterations", "1"]
    assert main(words) == 0
    (line,) = metrics("mixed-warm")
    assert line["policy/actor_0/grad_norm"] > 0 and line["policy/reasoner_0/grad_norm"] > 0
