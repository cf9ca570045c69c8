"""Notices files that are not what was written: the SHA-256 of each lies beside them, as ``sha256sum`` writes it.

A flipped bit in weights is a number like any other: formats of tensors have no checksum, and zip's are not looked at.
Checkpoints, exports, converted models and search indexes have one, of every file; formats of tensors and arrays hold
names, sizes and types, so it covers these. It shows that files are whole, and not who wrote them.
``sha256sum --check SHA256SUMS`` says the same as :func:`check`.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable
from pathlib import Path

from marft_envs.errors import ConfigError

FILE = "SHA256SUMS"


class DamagedError(ConfigError):
    """A file is not what was written, or is gone."""


def write(folder: Path) -> None:
    """Writes the checksums of all files below a folder, which will not change any more."""
    lines = [f"{sha256(folder / name)}  {name}\n" for name in _files(folder)]
    (folder / FILE).write_text("".join(lines), encoding="utf-8")


def damage(folder: Path, *parts: str) -> str:
    """Compares files with their checksums; says what is wrong, or nothing.

    Args:
        folder: Has the checksums.
        *parts: Files and folders in it that will be read; none: all of it.

    Raises:
        DamagedError: The system cannot read one.
    """
    if not (folder / FILE).is_file():
        return f"{folder} has no {FILE}, so its files cannot be compared with what was saved: it was copied in part"
    known = _known(folder)
    names = sorted({*known, *_files(folder)})
    bad = [name for name in _below(names, parts) if known.get(name) != sha256(folder / name)]
    bad += [part for part in parts if not _below(names, [part])]
    return f"{folder} is damaged: not what was saved there: {', '.join(bad)}" if bad else ""


def check(folder: Path, *parts: str) -> None:
    """Compares files with their checksums, see ``damage``.

    Raises:
        DamagedError: One of them has changed, is gone, or has no checksum; the message names it.
    """
    if what := damage(folder, *parts):
        raise DamagedError(
            f"{what}. Put back a copy of it; or delete it, if the same command makes it again; or choose another (of a"
            " run's checkpoints: --checkpoint last, best or a number). If you trust its files as they are, write down"
            f" what they are: cd {shlex.quote(str(folder))} && find * -type f ! -name {FILE} -exec sha256sum {{}} +"
            f" > {FILE}"
        )


def check_around(folder: Path, *ends: str) -> None:
    """Compares files that will be read with the checksums in their folder, or in the checkpoint of a policy's folder.

    Other people's folders have none, or of some files only: others are not compared.

    Args:
        folder: Of a model, an adapter, or a team.
        *ends: How the names of the files end.

    Raises:
        DamagedError: As ``check``.
    """
    own = folder.expanduser().resolve()
    inside = "" if (own / FILE).is_file() or own.parent.name != "policies" else f"policies/{own.name}/"
    place = own.parents[1] if inside else own
    known = _known(place) if (place / FILE).is_file() else ()
    if names := [name for name in known if name.startswith(inside) and name.endswith(ends)]:
        check(place, *names)


def _known(folder: Path) -> dict[str, str]:
    lines = (folder / FILE).read_bytes().decode("utf-8", "replace").split("\n")
    return {name: checksum for checksum, _, name in (line.replace(" *", "  ", 1).partition("  ") for line in lines)}


def _files(folder: Path) -> list[str]:
    """Lists what has a checksum; hidden files are the system's, such as those of NFS."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name != FILE and not any(p.startswith(".") for p in name.split("/")))


def _below(names: Iterable[str], parts: Iterable[str]) -> list[str]:
    parts = list(parts)
    return [name for name in names if name and (not parts or any(name == p or name.startswith(f"{p}/") for p in parts))]


def sha256(file: Path) -> str | None:
    """Returns the checksum of a file; None where there is none.

    Raises:
        DamagedError: The system cannot read it.
    """
    if not file.is_file():
        return None
    try:
        with file.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise DamagedError(
            f"{file} cannot be read: {error.strerror}. Give yourself leave to read it, or put back a copy."
        ) from error
