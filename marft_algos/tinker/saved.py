"""A policy on disk whose weights are on a server: where they are there, and the adapter, if the server gives it."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import load as tensors_of

from marft_algos.engines.http import ServerDown, ServerRefused
from marft_algos.models import finite
from marft_algos.tinker.client import Model
from marft_algos.tinker.dialect import Dialect
from marft_envs.errors import ConfigError

FILE = "tinker.json"
_ADAPTER, _SETTINGS = "adapter_model.safetensors", "adapter_config.json"


def save(model: Model, dialect: Dialect, policy: str, version: int, folder: Path) -> Path:
    """Keeps a policy on its server, and writes where; with it the adapter in peft's format, if the server gives it.

    Raises:
        NotFiniteError: Its weights hold infinity or NaN.
        TinkerError: The server does not keep it.
    """
    name = f"{policy}-{version}-{secrets.token_hex(4)}"  # a name is given once
    kept: dict[str, Any] = {"server": model.server.url, "base": model.base, "state": model.save(name)}
    kept |= {"sampler": model.sampler(name), "version": version, "dialect": asdict(dialect), "downloaded": True}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        files = model.server.download(kept["sampler"])
    except (ServerDown, ServerRefused) as error:
        files, kept["downloaded"] = {}, False
        kept["why"] = str(error)
    if _ADAPTER in files and _SETTINGS in files:
        tensors = tensors_of(files[_ADAPTER])
        finite.check(tensors, f"The weights of policy '{policy}'")
        settings = json.loads(files[_SETTINGS])
        # Some servers leave this out, and peft would then load two kinds of layers and drop the rest without a word.
        layers = sorted({key.split(".lora_")[0].rpartition(".")[2] for key in tensors})
        settings["target_modules"] = settings.get("target_modules") or layers
        (folder / _ADAPTER).write_bytes(files[_ADAPTER])
        (folder / _SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    (folder / FILE).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return folder


def state(server: str, base: str, policy: str, folder: Path) -> str:
    """Returns the path of the weights that ``save`` has left on a server.

    Raises:
        ConfigError: None are there, or they are another server's or another base's.
    """
    try:
        kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
        found = {name: str(kept[name]) for name in ("server", "base", "state")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"'{folder}' does not say where a server keeps '{policy}' ({error!r}): a server cannot be given weights"
            " from here. Train on from a checkpoint of a run with --tinker, or train here: leave out --tinker"
        ) from error
    for name, here in (("server", server), ("base", base)):
        if found[name] != here:
            raise ConfigError(
                f"The weights of '{policy}' in '{folder}' are on {found['server']}, on the base '{found['base']}';"
                f" this run's {name} is '{here}'. Type: --tinker {found['server']} --models {found['base']}"
            )
    return found["state"]
