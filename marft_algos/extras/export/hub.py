"""Pushes exported folders to the Hugging Face hub, each as a repository of its own.

A repository for each folder: only so has an adapter's ``base_model_name_or_path`` a name that loaders of others follow.
The whole team is ``USER/NAME`` itself, and comes last: nothing that it names is absent when it is there.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, constants, get_token

# HTTPError is that of the client that this version of the hub's package uses: httpx or its successor.
from huggingface_hub.errors import HFValidationError, HTTPError
from huggingface_hub.utils import validate_repo_id

from marft_algos.config import keys
from marft_algos.extras.export.team import FOLDER
from marft_algos.terminal import say
from marft_envs.errors import ConfigError, MarftError


class HubError(MarftError, RuntimeError):
    """The hub did not take an export, which stays where it is."""


def check(prefix: str, dry: bool) -> None:
    """Checks, before anything is written, that folders can be pushed under this name.

    Raises:
        ConfigError: It is no name on the hub, or there is no token.
    """
    try:
        validate_repo_id(prefix)
    except HFValidationError as error:
        raise ConfigError(f"--push {prefix}: {error} Expected USER/NAME.") from error
    if prefix.count("/") != 1:
        raise ConfigError(f"--push {prefix} names no account. Expected USER/NAME.")
    if dry:
        return
    if constants.HF_HUB_OFFLINE:
        raise ConfigError("The hub is switched off (HF_HUB_OFFLINE). Type: unset HF_HUB_OFFLINE. Or leave out --push.")
    if get_token() is None:
        raise ConfigError(
            "There is no token for the hub. Type: hf auth login (or export HF_TOKEN=…), then the same command again."
            " What would be sent: --dry-run"
        )


def repository(prefix: str, folder: str) -> str:
    """Names the repository of a folder."""
    return prefix if folder == FOLDER else f"{prefix}-{folder}"


def check_names(prefix: str, folders: Sequence[str]) -> None:
    """Checks that the hub takes the name of every repository.

    Raises:
        ConfigError: One is too long, or has letters that names there have not.
    """
    for name in folders:
        try:
            validate_repo_id(repository(prefix, name))
        except HFValidationError as error:
            raise ConfigError(
                f"--push {prefix} makes the repository '{repository(prefix, name)}': {error} Expected a shorter"
                " NAME, and policies named in letters, digits, '-' and '_'."
            ) from error


def listed(out: Path, folders: Sequence[str], prefix: str) -> list[str]:
    """Returns, line by line, which files go into which repository."""
    lines = []
    for name in folders:
        files = sorted(file for file in (out / name).rglob("*") if file.is_file())
        lines.append(repository(prefix, name))
        lines += [f"  {file.stat().st_size:>13,}  {file.relative_to(out / name)}" for file in files]
    return lines


def push(out: Path, folders: Sequence[str], prefix: str, private: bool, message: str) -> list[str]:
    """Uploads folders, base models first, so that no adapter names what is not there yet.

    Args:
        out: The export.
        folders: Names in it.
        prefix: ``USER/NAME``; a folder becomes the repository ``USER/NAME-FOLDER``, that of the team ``USER/NAME``.
        private: Make new repositories private.
        message: Of the commits.

    Returns:
        The repositories' addresses.

    Raises:
        HubError: The hub cannot be reached, or refuses; the message says how to go on.
    """
    api, addresses = HfApi(), list[str]()
    keys.announce("HF_TOKEN", keys.places([constants.ENDPOINT]))
    for name in sorted(folders, key=lambda name: (not name.startswith("base"), name == FOLDER, name)):
        repo = repository(prefix, name)
        try:
            url = api.create_repo(repo, private=private, exist_ok=True)
            api.upload_folder(repo_id=repo, folder_path=out / name, commit_message=message)
        except (HTTPError, OSError, ValueError, RuntimeError) as error:  # the last: of hf_xet, which sends large files
            again = shlex.join(["hf", "upload", repo, str(out / name)])
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise HubError(
                f"The hub at {constants.ENDPOINT} did not take '{repo}': {reason}. The export stays in {out}. Once the"
                f" hub answers (and the token may write: hf auth whoami), give the same command again; or only: {again}"
            ) from error
        say(f"pushed:  {url}")
        addresses.append(str(url))
    return addresses
