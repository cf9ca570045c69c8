"""Adapters of others: what their settings say counts as in peft, or is refused by name; so are weights that are none."""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from helpers.marks import rest_in_ci
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.models import saved
from marft_algos.models.policy import LoraSettings, PolicySet
from marft_envs import artefacts
from marft_envs.errors import ConfigError

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])
ACTIONS = torch.arange(8)[None] > 0
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def plain(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter as peft writes it."""
    folder = tmp_path_factory.mktemp("adapters") / "plain"
    made(qwen, folder)
    return folder


@pytest.fixture
def adapter(plain: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(plain, tmp_path / "adapter")


def based(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def made(model: Path, folder: Path, arch: str = "all-linear", **more: Any) -> Tensor:
    """Writes an adapter with weights of its own; returns the log-probs that peft gives with it."""
    config = LoraConfig(**{"r": 8, "lora_alpha": 16, "target_modules": arch, "task_type": "CAUSAL_LM"} | more)
    peft, draw = get_peft_model(based(model), config), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in sorted(peft.named_parameters()):
            if "lora_" in name:
                tensor += 0.1 * torch.randn(tensor.shape, generator=draw)
    peft.save_pretrained(folder)
    again = PeftModel.from_pretrained(based(model), folder).eval()
    with torch.no_grad():
        logprobs = torch.log_softmax(again(input_ids=IDS).logits[0, :-1], -1)
    return logprobs.gather(-1, IDS[0, 1:, None])[:, 0]


def policies_on(model: Path | str, **settings: Any) -> PolicySet:
    return PolicySet.build(str(model), {"actor_0": "actor_0"}, device="cpu", **settings)


def loaded(model: Path | str, folder: Path, **settings: Any) -> Tensor:
    policies = policies_on(model, **settings)
    policies.load_adapter("actor_0", folder)
    with torch.no_grad():
        return policies.logprobs("actor_0", IDS, ACTIONS)[0][0]


def described(folder: Path, **changes: Any) -> None:
    """Changes an adapter's settings."""
    file = folder / saved.SETTINGS
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def remade(folder: Path, change: Callable[[Tensors], object]) -> None:
    """Changes an adapter's tensors."""
    tensors = load_file(folder / saved.WEIGHTS)
    change(tensors)
    save_file(tensors, folder / saved.WEIGHTS)


def test_every_setting_that_peft_knows_is_in_one_table() -> None:
    """A new version's settings have to be looked at before adapters with them are loaded."""
    tables = [*saved.USED, *saved.NEUTRAL, *saved.ACCEPTED, *saved.REFUSED]
    assert sorted(tables) == sorted(field.name for field in dataclasses.fields(LoraConfig))


LATTER = {"target_modules": ["q_proj", "v_proj"]}


@pytest.mark.parametrize(
    ("written", "here"),
    rest_in_ci([
        ({}, {}),
        *(({"init_lora_weights": kind}, {}) for kind in (False, "gaussian", "orthogonal", "mica")),
        ({"fan_in_fan_out": True, "lora_dropout": 0.5}, {}),
        ({"r": 4, "lora_alpha": 3}, {"lora": LoraSettings(4, 3)}),
        (LATTER, {"lora": LoraSettings(targets=("q_proj", "v_proj"))}),
        ({"exclude_modules": ["k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}, {"lora": LoraSettings(targets=("q_proj", "v_proj"))}),
    ], 4),
)  # fmt: skip
def test_what_is_accepted_counts_as_in_peft(
    written: dict[str, Any], here: dict[str, Any], qwen: Path, tmp_path: Path
) -> None:
    expected = made(qwen, tmp_path / "adapter", **written)
    found = loaded(qwen, tmp_path / "adapter", **here)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    assert (found - loaded(qwen, tmp_path / "adapter", **here)).abs().max() == 0


def test_layers_of_another_kind_store_weights_the_other_way_round(tmp_path: Path) -> None:
    """GPT-2's are Conv1D."""
    model = save_tiny(tmp_path / "gpt2", "gpt2")
    expected = made(model, tmp_path / "adapter", fan_in_fan_out=True)
    torch.testing.assert_close(loaded(model, tmp_path / "adapter"), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("written", rest_in_ci(
    [
        {"alpha_pattern": {"q_proj": 128}}, {"alpha_pattern": {r".*layers\.0\..*": 1}}, {"rank_pattern": {"q_proj": 4}},
        {"use_rslora": True}, {"use_dora": True}, {"bias": "all"}, {"modules_to_save": ["lm_head"]},
        {"trainable_token_indices": [1, 2]},
        *({"init_lora_weights": kind} for kind in ("pissa", "pissa_niter_4", "olora")),
        {"alora_invocation_tokens": [5, 6]},
    ],
    5,
))  # fmt: skip
def test_what_changes_the_meaning_of_weights_is_refused_by_name(
    written: dict[str, Any], qwen: Path, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made(qwen, tmp_path / "adapter", **written)
    with pytest.raises(ConfigError, match=rf"has {next(iter(written))} = .*merge_and_unload.*--models"):
        loaded(qwen, tmp_path / "adapter")


@pytest.mark.parametrize("key", [*saved.REFUSED, "brand_new"])
def test_settings_that_are_there_with_nothing_are_nothing(key: str, adapter: Path) -> None:
    for nothing in (None, False, [], {}, ""):
        described(adapter, **{key: nothing})
        saved.check_adapter(adapter, LoraSettings())
    described(adapter, **{key: {"x": 1}})
    with pytest.raises(ConfigError, match=rf"has {key} = "):
        saved.check_adapter(adapter, LoraSettings())


@pytest.mark.parametrize(("changes", "message"), [
    ({"init_lora_weights": "corda"}, "init_lora_weights.*path_initial_model_for_weight_conversion"),
    ({"init_lora_weights": "loftq"}, "init_lora_weights"), ({"init_lora_weights": "lora_ga"}, "init_lora_weights"),
    ({"init_lora_weights": "of next year"}, "init_lora_weights"), ({"peft_type": "ADALORA"}, 'peft_type = "ADALORA"'),
    ({"bias": "lora_only"}, "bias"), ({"brand_new": 7}, "brand_new = 7, which is not known here.*delete that line"),
    ({"r": "x"}, "cannot be read"), ({"lora_alpha": None}, "cannot be read"), ({"r": 4}, "--lora-r 4 --lora-alpha 16"),
    ({"lora_alpha": 16.5}, "alpha 16.5"),
])  # fmt: skip
def test_settings_that_no_adapter_here_has_are_refused(changes: dict[str, Any], message: str, adapter: Path) -> None:
    described(adapter, **changes)
    with pytest.raises(ConfigError, match=message):
        saved.check_adapter(adapter, LoraSettings())


def test_what_is_refused_can_be_merged_as_the_message_says(qwen: Path, tmp_path: Path) -> None:
    expected = made(qwen, tmp_path / "pissa", init_lora_weights="pissa")
    merged = shutil.copytree(qwen, tmp_path / "merged")
    PeftModel.from_pretrained(based(qwen), tmp_path / "pissa").merge_and_unload().save_pretrained(merged)
    policies = policies_on(merged)
    with torch.no_grad():
        found = policies.logprobs("actor_0", IDS, ACTIONS)[0][0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_converted_adapter_is_a_plain_one(qwen: Path, tmp_path: Path) -> None:
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights="pissa")
    peft = get_peft_model(based(qwen), config)
    peft.peft_config["default"].init_lora_weights = True
    peft.save_pretrained(tmp_path / "init")
    with torch.no_grad():
        for tensor in (p for n, p in peft.named_parameters() if "lora_" in n):
            tensor += 0.05
        peft.peft_config["default"].init_lora_weights = "pissa"
        expected = torch.log_softmax(peft.eval()(input_ids=IDS).logits[0, :-1], -1).gather(-1, IDS[0, 1:, None])[:, 0]
    peft.save_pretrained(tmp_path / "plain", path_initial_model_for_weight_conversion=str(tmp_path / "init"))
    found = loaded(qwen, tmp_path / "plain", lora=LoraSettings(8, 16))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


# --- tensors -----------------------------------------------------------------------------------------------------


def first(tensors: Tensors, change: Callable[[Tensor], Tensor]) -> None:
    name = sorted(tensors)[0]
    tensors[name] = change(tensors[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_type_of_numbers_are_read(dtype: torch.dtype, qwen: Path, adapter: Path) -> None:
    remade(adapter, lambda t: t.update({name: tensor.to(dtype) for name, tensor in t.items()}))
    assert loaded(qwen, adapter).isfinite().all()


@pytest.mark.parametrize(("change", "message"), [
    (lambda x: x.index_fill(0, torch.tensor([1]), float("nan")), "holds infinity or NaN"),
    (lambda x: x.index_fill(1, torch.tensor([0]), float("-inf")), "holds infinity or NaN"),
    (lambda x: x.double() * 1e300, "holds infinity or NaN"),
    (lambda x: x.to(torch.int8), "is of type torch.int8. Expected float16"),
    (lambda x: x.to(torch.float8_e4m3fn), "is of type torch.float8"),
    (lambda x: x[:, 1:].clone(), r"do not fit: .*lora_A.weight' is \[8, .*\] in them, and \[8, .*\] in the model"),
])  # fmt: skip
def test_weights_that_are_none_are_named(
    change: Callable[[Tensor], Tensor], message: str, qwen: Path, adapter: Path
) -> None:
    name = sorted(load_file(adapter / saved.WEIGHTS))[0]
    remade(adapter, lambda tensors: first(tensors, change))
    with pytest.raises(ConfigError, match=message) as error:
        loaded(qwen, adapter)
    assert str(adapter) in str(error.value) and name in str(error.value)


def test_layers_that_differ_are_told_with_the_option(qwen: Path, tmp_path: Path) -> None:
    made(qwen, tmp_path / "two", **LATTER)
    with pytest.raises(ConfigError, match=r"do not fit: .*not there in them.*Type: --lora-targets q_proj v_proj"):
        loaded(qwen, tmp_path / "two")
    made(qwen, tmp_path / "half", layers_to_transform=[0], target_modules=["q_proj"])
    with pytest.raises(ConfigError, match="do not fit"):
        loaded(qwen, tmp_path / "half", lora=LoraSettings(targets=("q_proj",)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_base_model_is_refused_for_one_number_of_a_word_that_nobody_says(bad: float, tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", "gpt2")
    file = model / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("wpe.weight"))  # of places that a trial does not reach
    tensors[name][-1, 0] = bad
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=rf"'.*model' holds infinity or NaN .*{name}.*--models"):
        policies_on(model)


def test_a_whole_model_of_a_policy_is_refused_too(qwen: Path, tmp_path: Path) -> None:
    policies = policies_on(qwen, full_finetune=True)
    folder = policies.save_adapter("actor_0", tmp_path / "whole")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][-1, 3] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"model\.safetensors' holds infinity or NaN .*embed_tokens"):
        policies.load_adapter("actor_0", folder)


def test_equal_adapters_are_equal_files(qwen: Path, tmp_path: Path) -> None:
    """Names of layers are a set in peft, in an order that differs from process to process."""
    folder = policies_on(qwen).save_adapter("actor_0", tmp_path / "a")
    names = json.loads((folder / saved.SETTINGS).read_text())["target_modules"]
    assert names == sorted(names)
    assert LoraConfig.from_pretrained(str(folder)).target_modules == set(names)


# --- the base ------------------------------------------------------------------------------------------------------


def test_an_adapter_of_another_base_is_refused_where_that_is_certain(qwen: Path, adapter: Path, here: Path) -> None:
    other = save_tiny(here / "elsewhere" / "qwen", seed=7)
    with pytest.raises(ConfigError, match=rf"belongs to the base model '{qwen}'.*Type: --models POLICY={qwen} "):
        loaded(other, adapter)
    shutil.copytree(other, here / "base")
    described(adapter, base_model_name_or_path="../base")  # as exports name it
    with pytest.raises(ConfigError, match=r"belongs to the base model '\.\./base'"):
        loaded(qwen, adapter)


def test_the_embedded_models_are_told_apart_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = policies_on("embedded-tools").save_adapter("actor_0", tmp_path / "tools")
    for name in ("embedded-tools", "/of/another/machine/marft_algos/models/embedded-tools"):
        described(folder, base_model_name_or_path=name)
        with pytest.raises(ConfigError, match="Type: --models POLICY=embedded-tools"):
            policies_on("embedded").load_adapter("actor_0", folder)
    assert main(["train", "--adapters", f"actor_0={folder}", "--dry-run"]) == 1
    assert "--models POLICY=embedded-tools" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("named", "warned"),
    [
        ("{qwen}", False),
        (None, False),
        ("", False),
        ("/gone/with/the/disk/qwen", False),
        ("Org/Qwen", False),
        ("../copy", False),  # elsewhere, with the same files
        ("Org/Qwen-Instruct", True),
        ("/gone/with/the/disk/another", True),
        ("../base", True),
        ("x" * 5000, True),
    ],
)
def test_names_that_cannot_be_compared_are_a_warning(
    named: str | None, warned: bool, qwen: Path, adapter: Path, tmp_path: Path
) -> None:
    shutil.copytree(qwen, tmp_path / "copy")
    described(adapter, base_model_name_or_path=named and named.format(qwen=qwen))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded(qwen, adapter)
    told = [str(w.message) for w in said if "names the base model" in str(w.message)]
    assert len(told) == warned and all(f"'{qwen}'" in text for text in told)


# --- checksums -----------------------------------------------------------------------------------------------------


def test_a_changed_byte_of_an_adapter_with_checksums_is_noticed(qwen: Path, adapter: Path) -> None:
    """And of one without, as other people's are, what cannot be read or makes no sense."""
    artefacts.write(adapter)
    policies, draw = policies_on(qwen), torch.Generator().manual_seed(0)
    policies.load_adapter("actor_0", adapter)
    for name in (saved.WEIGHTS, saved.SETTINGS):
        whole = (adapter / name).read_bytes()
        header = range(8 + int.from_bytes(whole[:8], "little")) if name == saved.WEIGHTS else range(0)
        places = [*header[::16], *torch.randint(len(whole), (100,), generator=draw).tolist()]
        for place in places:
            (adapter / name).write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
            with pytest.raises(artefacts.DamagedError, match=name):
                policies.load_adapter("actor_0", adapter)
        (adapter / name).write_bytes(whole)
    policies.load_adapter("actor_0", adapter)
    (adapter / "README.md").write_text("of other people")
    policies.load_adapter("actor_0", adapter)
    (adapter / saved.SETTINGS).unlink()
    with pytest.raises(ConfigError, match=f"There is no {saved.SETTINGS}"):
        policies.load_adapter("actor_0", adapter)
