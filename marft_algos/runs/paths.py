"""Where the files lie that settings name: absolute in what a run keeps, found again when the run has moved."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from marft_algos.config import arguments, values
from marft_algos.config import settings as configs
from marft_algos.config.settings import TrainConfig
from marft_algos.models import EMBEDDED, gguf
from marft_algos.runs.folder import RunFolder
from marft_envs import artefacts
from marft_envs.core import teams
from marft_envs.errors import ConfigError


def absolute(config: TrainConfig) -> TrainConfig:
    """Names every model, adapter and data file of the settings that is found from here by its absolute path.

    What is not found stays as it is: it is a name (``embedded``, a hub id), or an error that others report.
    """
    config = fetched(config)
    changes = _mapped(vars(config), _here, _kept)
    source = getattr(config.algorithm, "demonstrations", "expert")
    if source not in ("", "expert") and Path(source).expanduser().exists():
        path = os.path.abspath(Path(source).expanduser())
        changes["algorithm"] = dataclasses.replace(config.algorithm, demonstrations=path)
    return config.changed(**changes)


def fetched(config: TrainConfig) -> TrainConfig:
    """Names adapters that are on the hub by their folders in its cache; see :func:`marft_algos.runs.hub.local`."""
    if not config.adapters:
        return config
    from marft_algos.runs import hub

    return config.changed(adapters={policy: hub.local(spec, "adapter") for policy, spec in config.adapters.items()})


def of_run(run: RunFolder, replaced: Mapping[str, Any] | None = None) -> TrainConfig:
    """Reads a run's settings, its models and adapters where they are now.

    A path is looked for as it stands in config.toml, then where it lies seen from the run's folder, should both have
    moved.

    Args:
        run: The run.
        replaced: Settings that the caller will replace: what they name need not be there.

    Raises:
        ConfigError: A model's folder is gone, or an export's settings are not what was written.
    """
    artefacts.check_around(run.root, run.config_file.name)
    config = configs.load(run.config_file)
    if config.start and (kept := run.start / "policies").is_dir():
        config = config.changed(start=os.path.abspath(kept.parent))
    given: dict[str, Any] = {key: {} for key in ("models", "adapters") if key in (replaced or {})}
    mapped = _mapped(vars(config) | given, lambda spec: _located(spec, run), lambda name, value: value)
    return config.changed(**{key: value for key, value in mapped.items() if key not in given})


def task(run: RunFolder) -> str:
    """Writes the environment that a run trains in, with its arguments; empty where the run has no settings."""
    table = values.read(run.config_file) if run.config_file.is_file() else {}
    return arguments.task(str(table.get("env", "")), table.get("env_kwargs", {}))


def _mapped(settings: Mapping[str, Any], path: Callable[[str], str], kept: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Returns the settings that name files, changed."""
    kwargs = {key: {k: kept(k, v) for k, v in settings[key].items()} for key in ("env_kwargs", "eval_kwargs")}
    models, adapters = settings["models"], settings["adapters"]
    return kwargs | {
        "models": path(models) if isinstance(models, str) else {policy: path(spec) for policy, spec in models.items()},
        "adapters": {policy: path(spec) for policy, spec in adapters.items()},
    }


def _here(spec: str) -> str:
    """Finds the folder of that name, seen from the current one; other names stay."""
    path = Path(spec).expanduser()
    named = not spec.strip() or spec in (*EMBEDDED, *gguf.PACKAGED) or not _is_model(path)
    return spec if named else os.path.abspath(path)


def _is_model(path: Path) -> bool:
    """Whether a model's folder, or its GGUF file, lies there."""
    return path.is_dir() or (path.is_file() and gguf.file_of(str(path)) is not None)


def _kept(name: str, value: Any) -> Any:
    """Returns an argument of the environment as a run keeps it: a file of profiles becomes a part of the settings."""
    profiles = name == "profiles" and isinstance(value, str) and os.path.isfile(value)
    return teams.read_profiles(value) if profiles else _data(value) if name == "data" else value


def _data(value: Any) -> Any:
    """Makes a data file's path absolute; the name of a data set has neither a folder nor an ending, and stays."""
    if not isinstance(value, str) or value == Path(value).stem:
        return value
    path = Path(value).expanduser()
    files = [Path(str(path).replace("{split}", split)) for split in ("train", "test")]
    return os.path.abspath(path) if any(file.is_file() for file in files) else value


def _located(spec: str, run: RunFolder) -> str:
    """Finds where the folder is now, or returns the name of a model that is none."""
    path = Path(spec).expanduser()
    if spec in (*EMBEDDED, *gguf.PACKAGED) or (path.is_absolute() and _is_model(path)):
        return spec
    # An absolute path leads elsewhere if the run's folder has moved, and what it names with it.
    moved = [run.root / os.path.relpath(path, line["root"]) for line in run.commands()[:1]]
    for folder in moved if path.is_absolute() else [path]:
        if _is_model(folder):
            return os.path.abspath(folder)
    if not path.is_absolute() and not spec.startswith(".") and spec.count("/") < 2:
        return spec  # a hub's id
    raise ConfigError(
        f"'{run.root}' was trained on the model in '{spec}', which is not there any more. Put it back, or write its new"
        f" place into {run.config_file}."
    )
