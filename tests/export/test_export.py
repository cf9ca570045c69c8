"""`marft export`: what it writes is loaded by PEFT and transformers alone, and says what the team says."""

from __future__ import annotations

import json
import random
import re
import shlex
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.engines import NativeEngine
from marft_algos.extras.export.commands import public
from marft_algos.models.loading import load_base
from marft_algos.models.policy import LoraSettings, PolicySet
from marft_algos.runs import checkpoint, paths
from marft_algos.runs.folder import RunFolder
from marft_algos.training import environments
from marft_algos.training.policies import make_policies, saved_policies
from marft_algos.training.resolve import resolve
from marft_algos.types import GenerationRequest, SamplingParams
from marft_envs.artefacts import DamagedError

WORDS = ["7 + 5", "letters/3", "What is {x}?\nSay it."]
TOKENS = 12


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_tiny(folder / "qwen")
    save_tiny(folder / "llama", "llama", seed=1)
    return folder


@pytest.fixture(scope="module")
def run(models: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(settings(models / "qwen", tmp_path_factory.mktemp("runs"), name="pair", max_new_tokens=TOKENS))[1]


def ours(run: RunFolder, which: str = "last") -> tuple[PolicySet, dict[str, list[list[int]]], dict[str, list[Any]]]:
    """The team as `marft eval` plays it: its greedy replies by policy, and the messages that it answered."""
    config = paths.of_run(run)
    env = environments.make_env(config, config.env_kwargs)
    policies = make_policies(resolve(config, env))
    checkpoint.load_policies(checkpoint.pick(run.checkpoints, which), policies, saved_policies(config, policies))
    engine = NativeEngine(policies)
    replies, asked = {}, {}
    for policy in policies.policies:
        talks = [[{"role": "system", "content": "Solve."}, {"role": "user", "content": text}] for text in WORDS]
        prompts = policies.renderer.render_many(policy, talks)
        requests = [GenerationRequest(policy, prompt, i) for i, prompt in enumerate(prompts)]
        made = engine.generate(requests, SamplingParams(TOKENS, greedy=True))
        replies[policy], asked[policy] = [reply.action_ids for reply in made], talks
    return policies, replies, asked


def theirs(model: Any, folder: Path, talks: list[Any], reader: Any = AutoTokenizer) -> list[list[int]]:
    """Greedy replies by transformers alone, by the folder's own tokenizer, template and settings."""
    tokenizer, generation = reader.from_pretrained(folder), GenerationConfig.from_pretrained(folder)
    replies = []
    for messages in talks:
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            ids = model.generate(**prompt, generation_config=generation)
        replies.append(ids[0, prompt["input_ids"].shape[1] :].tolist())
    return replies


def reader_of(folder: Path) -> Any:
    """The tokenizer's class that the card names."""
    named = re.search(r"AutoModelForCausalLM, (\w+),", (folder / "README.md").read_text())
    assert named is not None
    return {"AutoTokenizer": AutoTokenizer, "PreTrainedTokenizerFast": PreTrainedTokenizerFast}[named[1]]


def test_adapters_say_what_the_team_says(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    assert main(["export", str(run.root), "--out", str(out), "--merged"]) == 0
    _, replies, asked = ours(run)
    assert replies["planner_0"] != replies["solver_0"], "the policies differ, or nothing would be shown"
    for policy in ("planner_0", "solver_0"):
        monkeypatch.chdir(out / policy)  # the base's name is seen from the adapter's folder
        adapted = AutoPeftModelForCausalLM.from_pretrained(".", dtype="float32")
        assert theirs(adapted, out / policy, asked[policy], reader_of(out / policy)) == replies[policy]
        base = AutoModelForCausalLM.from_pretrained(out / "base")
        assert theirs(base, out / policy, asked[policy], reader_of(out / policy)) != replies[policy]
        merged = AutoModelForCausalLM.from_pretrained(out / f"{policy}-merged")
        assert (
            theirs(merged, out / f"{policy}-merged", asked[policy], reader_of(out / f"{policy}-merged"))
            == replies[policy]
        )
        assert not [key for key in load_file(out / policy / "adapter_model.safetensors") if "lora" not in key]
    assert not list(out.rglob("state.pt")) and not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    described = json.loads((out / "export.json").read_text())
    assert described["agents"] == {"planner_0": "planner_0", "solver_0": "solver_0"} and described["bases"] == ["base"]


def test_a_server_is_told_to_leave_out_what_the_base_s_publisher_samples_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """vLLM takes defaults from the base's ``generation_config.json``, for its adapters, too."""
    base = save_tiny(tmp_path / "qwen")
    run = train(settings(base, tmp_path / "runs", max_new_tokens=TOKENS, iterations=1))[1]
    said = []
    for changed in ({}, {"do_sample": True, "temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05}):
        GenerationConfig(**changed).save_pretrained(base)
        assert main(["export", str(run.root), "--out", str(tmp_path / "out")]) == 0
        said.append(shlex.split(capsys.readouterr().out.partition("next:")[2]))
    assert "--override-generation-config" not in said[0]
    told = json.loads(said[1][said[1].index("--override-generation-config") + 1])
    assert told == {"temperature": 1.0, "top_k": 0, "repetition_penalty": 1.0}


@pytest.mark.parametrize(("typed", "shown"), [
    ("marft train grpo --start /data/runs/warm --seed 0", "marft train grpo --start warm --seed 0"),
    (
        "marft train --models a=~/x/m.gguf b=Qwen/Q --start runs/w",
        "marft train --models a=m.gguf b=Qwen/Q --start runs/w",
    ),
    (
        "marft train --env-kwargs 'data=/my data/d.jsonl' levels=[0]",
        "marft train --env-kwargs data=d.jsonl 'levels=[0]'",
    ),
    ("""marft train --engines 'a={url="http://h/v1"}'""", """marft train --engines 'a={url="http://h/v1"}'"""),
    ("no 'command", ""),
])  # fmt: skip
def test_cards_name_no_folder_of_this_machine(typed: str, shown: str) -> None:
    assert public(typed) == shown


def test_the_card_of_a_run_that_went_on_from_another_one(run: RunFolder, models: Path, tmp_path: Path) -> None:
    table = {"name": "on", "max_new_tokens": TOKENS, "start": str(run.root), "iterations": 2}
    on = train(settings(models / "qwen", tmp_path / "runs", **table))[1]
    line = {
        "time": 0.0, "iteration": 0, "made": True, "folder": "", "root": str(on.root),
        "command": f"marft train --start {run.root} --runs-dir {tmp_path / 'runs'}",
    }  # fmt: skip
    (on.root / "commands.jsonl").write_text(json.dumps(line) + "\n")
    assert main(["export", str(on.root), "--out", str(tmp_path / "out")]) == 0
    for folder in ("solver_0", "team"):
        card = (tmp_path / "out" / folder / "README.md").read_text()
        assert f"marft train --start {run.root.name} --runs-dir runs\n" in card and str(tmp_path) not in card
        assert "| as this run began | " in card and "| untrained | " not in card


def test_the_program_of_a_card_runs_and_its_numbers_are_the_runs(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["export", str(run.root), "--out", str(out)]) == 0
    card = ModelCard.load(out / "solver_0" / "README.md")
    assert card.data.library_name == "peft" and card.data.base_model is None, "a hub refuses a path as base model"
    before, after, difference = run.gain() or pytest.fail("the run has evaluations")
    low, high = (f"{100 * x:+.1f}" for x in (difference.low, difference.high))
    for shown in (str(before), str(after), f"{100 * difference.mean:+.1f} points [{low}, {high}]"):
        assert shown in card.text
    assert "n = 10" in card.text and "    Solve." in card.text
    program = re.search(r"```python\n(.*?)```", card.text, re.DOTALL)
    assert program is not None
    assert "marft" not in program[1], "PEFT and transformers are all that it needs"
    monkeypatch.chdir(out / "solver_0")
    capsys.readouterr()
    exec(program[1], {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


def test_a_checkpoint_is_chosen_as_elsewhere(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = checkpoint.steps(run.checkpoints)
    first = checkpoint.step_dir(run.checkpoints, steps[0])
    for words in ([str(first)], [str(run.root), "--checkpoint", str(steps[0])]):
        out = tmp_path / str(len(words))
        assert main(["export", *words, "--out", str(out)]) == 0
        mine = load_file(out / "solver_0" / "adapter_model.safetensors")
        kept = load_file(first / "policies" / "solver_0" / "adapter_model.safetensors")
        assert mine.keys() == kept.keys() and all(torch.equal(mine[key], kept[key]) for key in kept)
        assert f"| iteration {steps[0]} |" in (out / "solver_0" / "README.md").read_text()
    capsys.readouterr()
    assert main(["export", str(first), "--checkpoint", "best"]) == 1
    assert "is one checkpoint. Leave out --checkpoint" in capsys.readouterr().err
    assert main(["export", str(run.root), "--checkpoint", "77"]) == 1
    assert "Expected last, best or one of" in capsys.readouterr().err


@pytest.mark.ci
def test_two_bases_a_shared_policy_and_a_frozen_one(models: Path, tmp_path: Path) -> None:
    """Each base is copied once; agents that share a policy share its folder."""
    bases = {"planner_0": str(models / "qwen"), "solver_0": str(models / "llama")}
    mixed = settings(models / "qwen", tmp_path, name="mixed", models=bases, frozen=("planner_0",), iterations=2)
    shown = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    (template := tmp_path / "own.jinja").write_text(shown)
    own = {"policies": "shared", "chat_template": str(template)}  # the run's template, and not its base's
    shared = settings(models / "qwen", tmp_path, name="shared", iterations=2, **own)
    for made, folders in (
        (mixed, {"base", "base-2", "planner_0", "solver_0", "team"}),
        (shared, {"base", "shared", "team"}),
    ):
        run = train(made)[1]
        out = tmp_path / f"out-{made.name}"
        assert main(["export", str(run.root), "--out", str(out)]) == 0
        assert {path.name for path in out.iterdir()} == {*folders, "export.json"}
        _, replies, asked = ours(run)
        for policy, said in replies.items():
            described = json.loads((out / policy / "adapter_config.json").read_text())
            base = AutoModelForCausalLM.from_pretrained(out / policy / described["base_model_name_or_path"])
            adapted = PeftModel.from_pretrained(base, out / policy)
            generated = theirs(adapted, out / policy, asked[policy], reader_of(out / policy))
            assert [reply[: made.max_new_tokens] for reply in said] == generated


@pytest.mark.ci
def test_fully_fine_tuned_policies_are_models(models: Path, tmp_path: Path) -> None:
    run = train(
        settings(models / "qwen", tmp_path, name="full", full_finetune=True, max_new_tokens=TOKENS, iterations=2)
    )[1]
    out = tmp_path / "out"
    assert main(["export", str(run.root), "--out", str(out), "--merged"]) == 0
    assert {path.name for path in out.iterdir()} == {"planner_0", "solver_0", "export.json"}
    _, replies, asked = ours(run)
    for policy, said in replies.items():
        model = AutoModelForCausalLM.from_pretrained(out / policy)
        assert theirs(model, out / policy, asked[policy], reader_of(out / policy)) == said
        assert ModelCard.load(out / policy / "README.md").data.library_name == "transformers"


def test_what_is_refused_leaves_nothing(
    run: RunFolder, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    words = ["export", str(run.root), "--out", str(out)]
    monkeypatch.setenv("PATH", "/nowhere")

    def fails(*more: str) -> str:
        assert main([*words, *more]) == 1
        assert not (out / "export.json").exists()
        return capsys.readouterr().err

    assert "is not on the PATH" in fails("--gguf") and "--llama-cpp DIR" in fails("--gguf")
    assert "There is no convert_hf_to_gguf.py in" in fails("--gguf", "--llama-cpp", str(tmp_path))
    assert "--push USER/NAME" in fails("--dry-run") and "--push USER/NAME" in fails("--private")
    assert "are about --gguf" in fails("--gguf-type", "q8_0") and "are about --gguf" in fails("--llama-cpp", ".")
    for which in ("7", "bset", "-1"):
        assert f"no checkpoint '{which}'" in fails(f"--checkpoint={which}")
    config = run.config_file.read_text()
    try:
        run.config_file.write_text(config.replace('quantize = "none"', 'quantize = "nf4"'))
        assert "quantised weights (quantize = nf4)" in fails("--merged")
    finally:
        run.config_file.write_text(config)
    out.mkdir()
    (out / "thesis.tex").write_text("all of it")
    assert "exists and is no export" in fails()
    assert (out / "thesis.tex").read_text() == "all of it"
    assert main(["export", "nothing"]) == 1 and "is no run" in capsys.readouterr().err


def test_an_export_is_replaced_whole(run: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["export", str(run.root), "--out", str(out), "--merged"]) == 0
    assert main(["export", str(run.root), "--out", str(out)]) == 0
    assert not list(out.glob("*-merged"))


def test_gguf_is_made_by_the_converter(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stand-in of llama.cpp's script: it gets the merged folder; what it says on failure is shown."""
    folder = tmp_path / "llama.cpp"
    folder.mkdir()
    script = folder / "convert_hf_to_gguf.py"
    script.write_text(
        "import argparse, pathlib, shutil\np = argparse.ArgumentParser()\np.add_argument('model')\n"
        "p.add_argument('--outfile')\np.add_argument('--outtype')\na = p.parse_args()\n"
        "shutil.copy(pathlib.Path(a.model) / 'model.safetensors', a.outfile)\nprint(a.outtype)\n"
    )
    out = tmp_path / "out"
    words = ["export", str(run.root), "--out", str(out), "--gguf", "--llama-cpp", str(folder)]
    assert main([*words, "--gguf-type", "f32"]) == 0
    for policy in ("planner_0", "solver_0"):
        made = out / f"{policy}-gguf" / f"{policy}-f32.gguf"
        assert made.read_bytes() == (out / f"{policy}-merged" / "model.safetensors").read_bytes()
        assert "llama-server -m" in (made.parent / "README.md").read_text()
    script.write_text("raise SystemExit('BPE pre-tokenizer was not recognized')")
    capsys.readouterr()
    assert main(words) == 1
    error = capsys.readouterr().err
    assert "BPE pre-tokenizer was not recognized" in error and "leave out --gguf" in error
    assert (out / "planner_0-gguf" / "planner_0-f32.gguf").is_file(), "the export before it stands"
    script.write_text("import no_such_package.inner")
    assert main(words) == 1
    assert "Type: pip install no_such_package\n" in capsys.readouterr().err
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


def test_a_changed_byte_of_an_export_is_noticed_where_it_is_loaded(run: RunFolder, tmp_path: Path) -> None:
    """Checksums are in each folder, as each is pushed by itself; what nobody here reads may change."""
    out = tmp_path / "out"
    assert main(["export", str(run.root), "--out", str(out), "--merged"]) == 0
    teams = {"planner_0": "planner_0"}
    policies, draw = PolicySet.build(str(out / "base"), teams, lora=LoraSettings(r=2), device="cpu"), random.Random(0)
    reads: dict[str, Callable[[], object]] = {
        "planner_0": lambda: policies.load_adapter("planner_0", out / "planner_0"),
        "base": lambda: load_base(str(out / "base"), dtype=torch.float32, device=torch.device("cpu")),
        "solver_0-merged": lambda: load_base(
            str(out / "solver_0-merged"), dtype=torch.float32, device=torch.device("cpu")
        ),
        "team": lambda: paths.of_run(RunFolder.find(str(out))),
    }
    noticed = set()
    for name, read in reads.items():
        subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=out / name, check=True)
        read()
        for file in sorted(path for path in (out / name).iterdir() if path.is_file()):
            whole = file.read_bytes()
            for place in (0, draw.randrange(len(whole)), draw.randrange(len(whole)), len(whole) - 1):
                file.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
                try:
                    read()
                except DamagedError as error:
                    noticed.add(f"{name}/{file.name}")
                    assert str(out / name) in str(error) and (file.name in str(error) or file.name == "SHA256SUMS")
            file.write_bytes(whole)
    harmless = {"README.md", "LICENSE", "SHA256SUMS", "adapter_config.json", "adapter_model.safetensors", "config.toml"}
    adapter = {"planner_0/adapter_config.json", "planner_0/adapter_model.safetensors"}
    models = {
        f"{name}/{file.name}"
        for name in ("base", "solver_0-merged")
        for file in (out / name).iterdir()
        if file.name not in harmless
    }
    assert noticed - {f"{name}/SHA256SUMS" for name in reads} == adapter | models | {"team/config.toml"}
