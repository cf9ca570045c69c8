"""Policies on disk: what an adapter's settings say of its tensors, and tensors that can be loaded."""

from __future__ import annotations

import json
import os
import tomllib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePath
from typing import Annotated, Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from marft_algos.models import EMBEDDED, embedded_path, finite_weights, gguf
from marft_algos.ranges import COUNT, Settings
from marft_envs import artefacts
from marft_envs.errors import ConfigError, did_you_mean, reading

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
_TABLE = tomllib.loads((resources.files("marft_algos.models") / "peft_settings.toml").read_text(encoding="utf-8"))
USED: list[str] = _TABLE["used"]
NEUTRAL: list[str] = [key for keys in _TABLE["neutral"].values() for key in keys]
"""Keys of peft's settings that do not change what an adapter's tensors mean."""
ACCEPTED: dict[str, list[Any]] = _TABLE["accepted"]
"""Keys with values that do not, as none at all does not."""
REFUSED: list[str] = _TABLE["refused"]
"""Keys that do; they may be there with nothing. A test compares these tables with peft's own."""


@dataclass(frozen=True)
class LoraSettings(Settings):
    """Shape of every adapter. There is no dropout: it would move the first minibatch's ratio away from 1."""

    r: Annotated[int, COUNT] = 8
    """Rank. Released code: 8."""
    alpha: Annotated[int, COUNT] = 16
    """Scale: the adapter counts alpha / r times. Released code: 16."""
    targets: str | tuple[str, ...] = "all-linear"
    """Names of the layers that get an adapter, or ``all-linear`` (every linear layer but the output head)."""


def check_adapter(folder: Path, lora: LoraSettings, *bases: str) -> str:
    """Checks that a saved adapter is there, and counts as much here as where it was trained; no weights are read.

    Args:
        folder: Of the adapter.
        lora: The shape of adapters here.
        *bases: Names of the base model here: its place last. None: it is not compared.

    Returns:
        The name of its base model; empty if it is not known.

    Raises:
        ConfigError: There is none, or one of another rank, scale or base, or of a kind whose tensors mean something
            else.
    """
    _file(folder, WEIGHTS)
    file = _file(folder, SETTINGS)
    artefacts.check_around(folder, SETTINGS)
    with reading(f"'{file}' cannot be read", "Expected what peft writes."):
        described = dict(json.loads(file.read_text(encoding="utf-8")))
        r, alpha = float(described["r"]), float(described["lora_alpha"])
        named = str(described.get("base_model_name_or_path") or "")
    for key, value in described.items():
        if not (value in (None, *ACCEPTED[key]) if key in ACCEPTED else key in (*USED, *NEUTRAL) or not value):
            raise ConfigError(_unlike(folder, key, value))
    if (r, alpha) != (lora.r, lora.alpha):
        raise ConfigError(
            f"The adapter in '{folder}' has rank {r:g} and alpha {alpha:g}; here they are {lora.r} and {lora.alpha}."
            f" Type: --lora-r {r:g} --lora-alpha {alpha:g}"
        )
    if named and bases and named not in bases:
        _check_base(folder, named, bases)
    return named


def _unlike(folder: Path, key: str, value: Any) -> str:
    """Says what an adapter has that is not supported, and how it can be used all the same."""
    if key not in (*ACCEPTED, *REFUSED):
        return (
            f"The adapter in '{folder}' has {key} = {json.dumps(value)[:80]}, which is not known here: it may change"
            f" what its weights mean. If it does not, delete that line of {folder / SETTINGS}."
        )
    convert = ""
    if key == "init_lora_weights":  # these take a part out of the base
        convert = " (save_pretrained with path_initial_model_for_weight_conversion=… makes a plain one of it)"
    return (
        f"The adapter in '{folder}' has {key} = {json.dumps(value)[:80]}, under which its weights mean something else"
        f" than here. Expected a plain LoRA adapter{convert}. Or add it to its base with peft, PeftModel"
        f".from_pretrained(BASE, '{folder}').merge_and_unload().save_pretrained('MERGED'), put the base's tokenizer"
        " there, and type: --models POLICY=MERGED"
    )


def _check_base(folder: Path, named: str, bases: Sequence[str]) -> None:
    """Refuses an adapter of another base model, if that is certain; if names differ alone, a warning says so.

    Certain is what can be compared: the embedded models, and folders that are here with the same files of weights.
    """
    there, here = _model(named, folder), _model(bases[-1])
    if there and here:
        theirs, ours = ({f.name: gguf.digest(f) for f in sorted(at.glob("*.safetensors"))} for at in (there, here))
        if theirs == ours or there.resolve() == here.resolve():
            return
        if theirs.keys() == ours.keys():
            raise ConfigError(
                f"The adapter in '{folder}' belongs to the base model '{named}'; here it would stand on '{bases[0]}',"
                f" which has other weights. Type: --models POLICY={there.name if there.name in EMBEDDED else there}"
                f" (if they are the same model, say so: base_model_name_or_path in {folder / SETTINGS})"
            )
    if PurePath(named).name.casefold() not in (PurePath(base).name.casefold() for base in bases):
        warnings.warn(
            f"The adapter in '{folder}' names the base model '{named}'; here it stands on '{bases[0]}'. If these"
            f" are two models, it plays at random: --models POLICY={named}",
            stacklevel=3,
        )


def _model(named: str, folder: Path = Path()) -> Path | None:
    """Finds the folder of a base model, seen from an adapter's or from here; None where it is not on this machine."""
    found = (path for path in (folder / named, Path(named)) if os.path.isfile(path / "config.json"))
    name = PurePath(named).name
    return next(found, embedded_path(name) if name in EMBEDDED else None)


def check_saved(folder: Path, lora: LoraSettings | None) -> None:
    """Checks that a saved policy can be read whole.

    Args:
        folder: Of the policy.
        lora: The adapter's shape; None for one that is a whole model.

    Raises:
        ConfigError: It cannot, or is another adapter.
    """
    if lora is not None:
        check_adapter(folder, lora)
    read_tensors(folder, "model.safetensors" if lora is None else WEIGHTS)


def _file(folder: Path, name: str) -> Path:
    """Returns a file of saved weights, or says where some are."""
    if not (folder / name).is_file():
        places = ("../*", "policies/*", "checkpoints/*/policies/*")
        near = [str(Path(os.path.normpath(file.parent))) for at in places for file in folder.glob(f"{at}/{name}")]
        raise ConfigError(
            f"There is no {name} in '{folder}'. Expected the folder of one saved policy."
            f" {did_you_mean(str(folder), near)}"
        )
    return folder / name


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """Reads saved weights.

    Args:
        folder: Of the policy.
        name: The file's.

    Raises:
        ConfigError: There are none, or they are not what was written, cannot be read, or are no weights: of integers,
            of 8 bits, infinite or NaN.
    """
    file = _file(folder, name)
    artefacts.check_around(folder, name)
    try:
        read = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"The weights in '{file}' cannot be read: {error}. The file is damaged, or cut: copy it again, or choose"
            " another checkpoint."
        ) from error
    if odd := next((key for key, tensor in read.items() if tensor.dtype not in finite_weights.FLOATS), ""):
        kinds = ", ".join(str(kind).removeprefix("torch.") for kind in finite_weights.FLOATS)
        raise ConfigError(f"'{odd}' in '{file}' is of type {read[odd].dtype}. Expected {kinds}: save it so.")
    single = {key: tensor.float() for key, tensor in read.items()}  # as it will be used
    finite_weights.check_read(
        single, f"'{file}'", "Copy it again, or choose another checkpoint, or an earlier one of its run."
    )
    return single
