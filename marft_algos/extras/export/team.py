"""The folder of a whole team: settings and weights, as a run's folder has them, so that a run can begin with it.

Pushed, it is the repository ``USER/NAME`` itself, which `marft train --start`, `marft eval` and others take by name.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft_algos.config.settings import TrainConfig
from marft_algos.extras.export import card
from marft_algos.extras.export.bases import ExportBase, name_base
from marft_algos.models import EMBEDDED, gguf
from marft_envs import artefacts

if TYPE_CHECKING:
    from marft_algos.extras.export.folder import Wanted

FOLDER = "team"
_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
_HERE = (
    *("start", "start_values", "warm_start", "warm_episodes"),
    *("adapters", "adapter_dir", "loggers", "runs_dir", "name", "tinker"),
)
"""Settings of the run alone, or of the machine: they go back to their defaults."""
_NOT_HERE = "tinker.json"
"""Where a server has the weights beside the adapter: an export plays without it."""


def unplayable(wanted: Wanted) -> str:
    """Says why others could not play the whole team, or nothing."""
    if wanted.whole and any(base.folder for base in wanted.policies.values()):
        return "its untrained model is a folder of this machine"
    return ""


def write(wanted: Wanted, out: Path) -> None:
    """Writes the folder ``team`` of an export: ``config.toml`` and one checkpoint's policies."""
    folder = out / FOLDER
    step = folder / "checkpoints" / wanted.checkpoint.name
    for policy, base in wanted.policies.items():
        source, target = wanted.checkpoint / "policies" / policy, step / "policies" / policy
        target.mkdir(parents=True)
        for file in (file for pattern in _FILES for file in sorted(source.glob(pattern)) if file.name != _NOT_HERE):
            shutil.copyfile(file, target / file.name)
        if (described := target / "adapter_config.json").is_file():  # which names a folder of this machine
            name_base(described, described, _model(base, wanted, out))
    state = json.loads((wanted.checkpoint / "state.json").read_text(encoding="utf-8"))
    state |= {"policies": list(wanted.policies)}
    (step / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    artefacts.write(step)
    (folder / "config.toml").write_text(_config(wanted, out).to_toml(), encoding="utf-8")
    licenses = {base.license for base in wanted.policies.values()}
    text = card.team_card(wanted.team, wanted.prefix or "FOLDER", licenses)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _config(wanted: Wanted, out: Path) -> TrainConfig:
    """Returns the run's settings, with models and data as others name them."""
    config = wanted.team.config
    if config.tinker:  # nothing of its updates ran here
        default = dataclasses.replace(config.algorithm, micro_tokens=type(config.algorithm)().micro_tokens)
        config = config.changed(algorithm=default)
    known = {base.spec: _model(base, wanted, out) for base in wanted.policies.values()}
    models = config.models
    changes: dict[str, Any] = {
        "models": known.get(models, models)
        if isinstance(models, str)
        else {policy: known.get(spec, spec) for policy, spec in models.items()},
        **{name: getattr(TrainConfig(), name) for name in _HERE},
        **{name: _without_folders(getattr(config, name)) for name in ("env_kwargs", "eval_kwargs")},
    }
    return dataclasses.replace(config, **changes)


def _model(base: ExportBase, wanted: Wanted, out: Path) -> str:
    """Names a base model: as packages and hubs do, else its copy in the export, or that copy's repository."""
    if base.spec in (*EMBEDDED, *gguf.PACKAGED) or not base.folder:
        return base.spec
    # The export is written aside, and then put in its place.
    place = out.with_name(out.name.removeprefix(".tmp-"))
    return base.reference(wanted.prefix) if wanted.prefix else os.path.abspath(place / base.folder)


def _without_folders(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Names a data file of this machine by its name alone: others have it elsewhere, or not at all."""
    data = kwargs.get("data")
    return kwargs | {"data": Path(data).name} if isinstance(data, str) and os.path.isabs(data) else kwargs
