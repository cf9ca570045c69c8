"""Chat templates of public model families, as the package trl carries them: each is read back, or refused with a reason."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="chat templates need transformers (the extra train)")
from benchmarks.correctness.families import FAMILIES, PAGE, page, renderer, table
from marft_algos.models.probing import Render, call_format_of, read_back
from marft_envs.errors import ConfigError

TRL = importlib.util.find_spec("trl")
pytestmark = pytest.mark.skipif(TRL is None, reason="trl, whose templates these are, is not installed")
FOLDER = Path(TRL.origin or "").parent / "chat_templates" if TRL is not None else Path()

READ = {
    "diffusion_gemma": "gemma4", "gemma4": "gemma4", "gemma4_v2": "gemma4", "gemma4_v3": "gemma4", "gemma4_v4": "gemma4",
    "gemma4_v5": "gemma4", "glm4moe": "glm", "gptoss": "harmony", "lfm2_2_5": "lfm2", "lfm2_2_5_v2": "lfm2",
    "lfm2_2_5_vl": "lfm2", "lfm2_v2": "lfm2", "llama3_1": "llama-json", "llama3_2": "llama-json", "muse_glimmer": "muse",
    "nemotron_3_5_lightning": "qwen-xml", "nemotron_3_nano": "qwen-xml", "nemotron_3_super": "qwen-xml",
    "nemotron_3_ultra": "qwen-xml", "qwen2_5": "hermes", "qwen3": "hermes", "qwen3_5_nothink": "qwen-xml",
    "qwen3_5_think": "qwen-xml", "qwen3_6": "qwen-xml", "qwen3_8": "qwen-xml", "qwen3_instruct_2507": "hermes",
    "qwen3_vl": "hermes",
}  # fmt: skip
"""Template -> the call format that it is found to write."""
REFUSED = {
    **dict.fromkeys(
        ("cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "gemma", "gemma3", "idefics3", "llama3", "llava_next",
         "phi3", "phi3_5", "qwen2_5_vl", "smolvlm"), "shows no tools"),
    "lfm2": "leaves calls out",
}  # fmt: skip
"""Template -> why it is refused."""
HEADS = ([{"role": "system", "content": "P"}, {"role": "user", "content": "T"}], [{"role": "user", "content": "T"}])


def template(name: str) -> Render:
    return partial(renderer((FOLDER / f"{name}.jinja").read_text()), enable_thinking=False)


def head(render: Render) -> list[dict[str, str]]:
    return next((head for head in HEADS if "T" in (render(head) or "")), HEADS[1])


@pytest.mark.parametrize("training", ["", "_training"])
@pytest.mark.parametrize("name", READ)
def test_a_call_that_a_template_writes_is_read_back(name: str, training: str) -> None:
    if not (FOLDER / f"{name}{training}.jinja").is_file():
        training = ""
    render = template(name + training)
    assert call_format_of(name, render, head(render)).name == READ[name]


@pytest.mark.parametrize("name", REFUSED)
def test_a_template_that_cannot_be_used_with_tools_is_refused_with_the_reason(name: str) -> None:
    render = template(name)
    with pytest.raises(ConfigError, match=f"{REFUSED[name]}.*--template-tools"):
        call_format_of(name, render, head(render))


@pytest.mark.parametrize("name", ["deepseekv3", "deepseek_r1_distill"])
def test_deepseeks_calls_are_read_though_its_template_shows_no_tools(name: str) -> None:
    render = template(name)
    found, reason = read_back(render, head(render), render(head(render)) or "")
    assert found is not None and found.name == "deepseek-v3" and not reason


def test_every_template_of_the_package_is_judged() -> None:
    names = {file.stem.removesuffix("_training") for file in FOLDER.glob("*.jinja")}
    assert names == {*READ, *REFUSED} and len(names) >= 40
    assert set(FAMILIES.values()) <= names


def test_the_page_holds_the_table_that_the_command_makes() -> None:
    assert page(table(FOLDER)) == PAGE.read_text(encoding="utf-8"), "python -m benchmarks families --write"
