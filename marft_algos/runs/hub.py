"""What a name on the Hugging Face hub stands for, ``USER/NAME`` or ``USER/NAME@REVISION``: a folder of this machine.

What ``marft export --push`` wrote there is fetched into the hub's own cache, and is then a folder like any other. It is
anybody's: weights are safetensors, other files are JSON, TOML and text; pickles and code are not even fetched.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Literal

from marft_algos.config import trust, values
from marft_algos.lazy import require_training
from marft_algos.terminal import say
from marft_envs import artefacts
from marft_envs.errors import ConfigError

Kind = Literal["team", "adapter"]
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?:@([\w][\w./-]*))?")
_DATA = ("safetensors", "json", "jinja", "model", "txt")
_WANTED: dict[Kind, list[str]] = {
    "team": ["config.toml", *(f"checkpoints/step_*{end}" for end in (*(f".{d}" for d in _DATA), artefacts.FILE))],
    "adapter": ["adapter_model.safetensors", "adapter_config.json"],
}
_WRITES = {
    "team": "what `marft export RUN --push USER/NAME` writes as USER/NAME: config.toml, one checkpoint's policies",
    "adapter": "the adapter of one policy: adapter_model.safetensors and adapter_config.json, as PEFT writes them",
}
_LARGEST = 2**20
"""Bytes of a file of settings."""
_SHA256 = re.compile("[0-9a-f]{64}")


def local(spec: str, kind: Kind = "team") -> str:
    """Returns where what is named lies here: a path as it stands, else the folder that the hub's cache has of it.

    A folder here wins, and whatever begins with the name of one is a path; ``@REVISION`` is always the hub's.

    Args:
        spec: A path, a run's name, an export's folder (whose ``team`` is meant), or a name on the hub.
        kind: What is expected there: a whole team, or one policy's adapter.

    Raises:
        ConfigError: No such repository or revision, no leave to read it, not reached and not in the cache, or it holds
            something else; the message says what to type.
    """
    exported = Path(spec).expanduser() / "team"
    if kind == "team" and (exported.parent / "export.json").is_file() and (exported / "config.toml").is_file():
        return str(exported)
    if (match := _NAME.fullmatch(spec)) is None:
        return spec
    name, revision = match.groups()
    first = name.partition("/")[0]
    if any((root / spec).exists() for root in (Path(), Path("runs"))):
        _note(spec, name, kind)
        return spec
    if revision is None and any((root / first).is_dir() for root in (Path(), Path("runs"))):
        return spec
    folder = _fetched(spec, name, revision, kind)
    _check(folder, spec, kind)
    _announce(name, folder.name)
    return str(folder)


@cache
def _announce(name: str, commit: str) -> None:
    """Says once what was taken: a command looks for its start more than once."""
    say(f"from the hub: {name} at {commit[:12]}")


def _note(spec: str, name: str, kind: Kind) -> None:
    """Says which of two is taken, where this machine has had the hub's before."""
    require_training()
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, _WANTED[kind][0]), str):
        say(f"note: '{spec}' is the folder of that name here; the one on the hub: {name}@main", error=True)


def _fetched(spec: str, name: str, revision: str | None, kind: Kind) -> Path:
    require_training()
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub import errors as hub

    dry = trust.dry()
    download = f"hf download {name}" + (f" --revision {revision}" if revision else "")
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=[*_WANTED[kind], artefacts.FILE],
                local_files_only=dry,
                library_name="marft",
            )
        )
    except hub.GatedRepoError as error:
        raise ConfigError(
            f"'{spec}' is gated on the hub. Ask for access at {constants.ENDPOINT}/{name}, type: hf auth login; and"
            " then the same command again."
        ) from error
    except hub.RepositoryNotFoundError as error:
        raise ConfigError(
            f"'{spec}' is no folder here, and no repository at {constants.ENDPOINT} that you may read. Check the name;"
            " if it is private: hf auth login (or export HF_TOKEN=…), and the same command again."
        ) from error
    except hub.RevisionNotFoundError as error:
        raise ConfigError(
            f"'{name}' is on the hub, and has no revision '{revision}'. Type a branch, a tag or a commit behind the @,"
            f" or none: {name}"
        ) from error
    except (hub.HTTPError, hub.LocalEntryNotFoundError, OSError, ValueError) as error:
        why = "a dry run fetches nothing" if dry else f"the hub at {constants.ENDPOINT} was not reached"
        if constants.HF_HUB_OFFLINE and not dry:
            why = "the hub is switched off (type: unset HF_HUB_OFFLINE)"
        raise ConfigError(
            f"'{spec}' is no folder here, nor in the hub's cache, and {why}. Where there is a network: {download}; then"
            " the same command again."
        ) from error


def _check(folder: Path, spec: str, kind: Kind) -> None:
    """Checks that a snapshot is what is expected, and that weights arrived as they were sent."""
    lacking = [name for name in _WANTED[kind] if "*" not in name and not (folder / name).is_file()]
    if kind == "team":
        steps = [step for step in folder.glob("checkpoints/step_*/policies") if any(step.glob("*/*.safetensors"))]
        lacking += [] if len(steps) == 1 else [f"one checkpoints/step_…/policies with weights (it has {len(steps)})"]
    if lacking:
        other = f" If it is one policy's adapter: --adapters POLICY={spec}" if kind == "team" else ""
        raise ConfigError(f"'{spec}' on the hub lacks {', '.join(lacking)}. Expected {_WRITES[kind]}.{other}")
    for file in folder.rglob("*.safetensors"):
        blob = file.resolve()
        if _SHA256.fullmatch(blob.name) and blob.name != artefacts.sha256(blob):
            raise ConfigError(
                f"'{file}' is not what the hub sent: the copy in the cache is damaged. Delete {blob}, and give the same"
                " command again."
            )
    if kind == "team":
        _check_settings(folder / "config.toml", spec)


def _check_settings(file: Path, spec: str) -> None:
    if file.stat().st_size > _LARGEST:
        raise ConfigError(f"config.toml of '{spec}' has more than {_LARGEST} bytes. Expected {_WRITES['team']}.")
    table = values.read(file)
    if named := [key for key in ("start", "adapters", "adapter_dir") if table.get(key)]:
        raise ConfigError(
            f"config.toml of '{spec}' names other weights ({', '.join(named)}), which no export does: nothing was"
            " loaded."
        )
