"""Writes an export: for each policy a folder, beside them the base models that no hub has."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig

from marft_algos.extras.export import bases, card, gguf, team
from marft_algos.extras.export.bases import ExportBase
from marft_algos.extras.export.card import ExportedPart, ExportedTeam
from marft_algos.models import finite_weights
from marft_algos.models.loading import read
from marft_algos.models.saved import SETTINGS, WEIGHTS
from marft_algos.runs.disk import copy, replacing
from marft_algos.terminal import say
from marft_envs import artefacts
from marft_envs.errors import ConfigError

MARK = "export.json"
"""In an export; a folder that holds it may be written anew."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be written."""

    policies: dict[str, ExportBase]
    """Policy -> its base model."""
    checkpoint: Path
    team: ExportedTeam
    merged: bool = False
    gguf: str = ""
    """Type of the GGUF files' weights; empty: none."""
    converter: tuple[str, ...] = ()
    """Command of llama.cpp's converter."""
    prefix: str = ""
    """``USER/NAME`` of what will be pushed; empty: stays here."""

    @property
    def whole(self) -> bool:
        """Whether policies are whole models and not adapters."""
        return self.team.config.full_finetune


def check(wanted: Wanted, out: Path) -> None:
    """Checks what can be checked before anything is written.

    Raises:
        ConfigError: The folder holds something else, or a base that nothing can be added to.
    """
    if out.exists() and not (out / MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"'{out}' exists and is no export. Choose another folder: --out DIR")
    if team.FOLDER in wanted.policies:
        raise ConfigError(f"A policy is called '{team.FOLDER}', as the folder of the whole team. Give it another name.")
    if not wanted.merged or wanted.whole:
        return
    quantize = wanted.team.config.quantize
    quantised = next((base.spec for base in wanted.policies.values() if base.quantised), None)
    if quantize != "none" or quantised is not None:
        what = f"quantize = {quantize}" if quantised is None else f"'{quantised}' is stored quantised"
        raise ConfigError(
            f"The adapters stand on quantised weights ({what}): added to them they would be rounded away, and added to"
            " others they make another model than the one that was scored. Leave out --merged and --gguf, and load the"
            " adapters."
        )


def planned(wanted: Wanted) -> list[str]:
    """Returns the names of the folders that an export will have, base models first."""
    bases_ = [] if wanted.whole else dict.fromkeys(base.folder for base in wanted.policies.values() if base.folder)
    kinds = ["", *(["-merged"] if wanted.merged and not wanted.whole else []), *(["-gguf"] if wanted.gguf else [])]
    whole = [team.FOLDER] if not team.unplayable(wanted) else []
    return [*bases_, *(f"{policy}{kind}" for policy in wanted.policies for kind in kinds), *whole]


def write(wanted: Wanted, out: Path) -> list[str]:
    """Writes the export aside and puts it in its place when it is whole.

    Returns:
        The names of its folders, base models first.

    Raises:
        ConfigError: A model that cannot be written.
        RunError: The folder cannot be written.
    """
    with replacing(out) as aside:
        return _write(wanted, aside)


def _write(wanted: Wanted, out: Path) -> list[str]:
    copied = {} if wanted.whole else {base.folder: base for base in wanted.policies.values() if base.folder}
    for folder, base in copied.items():
        bases.copy(base, out / folder)
        (out / folder / "README.md").write_text(card.base_card(base, bool(wanted.prefix)), encoding="utf-8")
    folders, described = list(copied), dict[str, Any]()
    for policy, base in wanted.policies.items():
        parts = _policy(wanted, out, policy, base)
        folders += parts
        described[policy] = {"folders": parts, "base": base.reference(wanted.prefix), "origin": base.origin}
    if why := team.unplayable(wanted):
        say(f"note:    no folder of the whole team: {why}")
    else:
        team.write(wanted, out)
        folders.append(team.FOLDER)
    for folder in folders:
        artefacts.write(out / folder)
    told = wanted.team
    content = {"env": told.config.env, "agents": dict(told.agents), "policies": described, "bases": list(copied)}
    (out / MARK).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folders


def _policy(wanted: Wanted, out: Path, policy: str, base: ExportBase) -> list[str]:
    """Writes one policy's folders; returns their names."""
    source = wanted.checkpoint / "policies" / policy
    part = ExportedPart(
        policy, "model" if wanted.whole else "adapter", base, base.reference(wanted.prefix), "", dtype=_dtype(wanted)
    )
    say(f"writing  {policy}")
    (out / policy).mkdir()
    if wanted.whole:
        copy(source, out / policy)
    else:
        shutil.copyfile(source / WEIGHTS, out / policy / WEIGHTS)
        bases.name_base(source / SETTINGS, out / policy / SETTINGS, part.reference, inference_mode=True)
    _finish(wanted, part, out / policy)
    folders, model = [policy], out / policy
    if wanted.merged and not wanted.whole:
        folders.append(f"{policy}-merged")
        model = out / folders[-1]
        _merge(base, source, model)
        _finish(wanted, replace(part, kind="model"), model)
    if wanted.gguf:
        folders.append(f"{policy}-gguf")
        file = out / folders[-1] / f"{policy}-{wanted.gguf}.gguf"
        gguf.convert(list(wanted.converter), model, file, wanted.gguf)
        _card(wanted, replace(part, kind="gguf", file=file.name), out / folders[-1])
    return folders


def _merge(base: ExportBase, adapter: Path, folder: Path) -> None:
    """Adds an adapter to its base's weights, in float32, and saves them in the type that the base has."""
    with read(base.spec):
        model = AutoModelForCausalLM.from_pretrained(base.location, dtype="auto", trust_remote_code=False)
    finite_weights.check_model(model, base.spec)
    stored = model.dtype
    merged = PeftModel.from_pretrained(model.float(), str(adapter)).merge_and_unload(safe_merge=True)
    with torch.no_grad():
        merged.to(stored).save_pretrained(folder)


def _finish(wanted: Wanted, part: ExportedPart, folder: Path) -> None:
    """Adds tokenizer, template, settings of generation and card to weights."""
    base = part.base
    base.chat.tokenizer.save_pretrained(folder)
    generation(wanted, base).save_pretrained(folder)
    reader = bases.tokenizer_class(folder, base.chat)
    if reader != "AutoTokenizer":
        say(f"note:    the tokenizer of '{base.spec}' is read by {reader}, not by AutoTokenizer: see README.md")
    _card(wanted, replace(part, tokenizer=reader), folder)


def _card(wanted: Wanted, part: ExportedPart, folder: Path) -> None:
    name = f"{wanted.prefix}-{folder.name}" if wanted.prefix else "."
    text = card.policy_card(replace(part, name=name), wanted.team)
    (folder / "README.md").write_text(text, encoding="utf-8")


def generation(wanted: Wanted, base: ExportBase) -> GenerationConfig:
    """Returns how the team was evaluated, as transformers and vLLM read it: ends, length, greedy or temperature."""
    config, chat = wanted.team.config, base.chat
    sampled: dict[str, Any] = {"do_sample": False}
    if not config.eval_greedy:
        sampled = {"do_sample": True, "temperature": config.temperature, "top_p": 1.0, "top_k": 0}
    pad = chat.tokenizer.pad_token_id
    return GenerationConfig(
        max_new_tokens=config.max_new_tokens,
        eos_token_id=list(chat.end_ids),
        pad_token_id=chat.end_ids[0] if pad is None else pad,
        bos_token_id=chat.tokenizer.bos_token_id,
        **sampled,
    )


def _dtype(wanted: Wanted) -> str:
    """Returns the arithmetic in which the policies were scored."""
    if wanted.team.config.dtype == "auto":
        return "bfloat16" if torch.cuda.is_available() else "float32"
    return {"fp32": "float32", "bf16": "bfloat16"}[wanted.team.config.dtype]
