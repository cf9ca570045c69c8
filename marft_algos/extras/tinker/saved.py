"""A policy on disk whose weights are on a server: where they are there, and the adapter, if the server gives it."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import secrets
import tarfile
import warnings
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urljoin, urlsplit

from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from torch import Tensor

from marft_algos.engines.http import NONSENSE, ServerDown, ServerRefused
from marft_algos.extras.tinker.client import ADAPTER_BYTES, V1, Model, TinkerError, TinkerServer
from marft_algos.extras.tinker.dialect import Dialect
from marft_algos.models import finite_weights
from marft_algos.models.saved import SETTINGS, WEIGHTS
from marft_envs.errors import ConfigError, reading

FILE = "tinker.json"
_BROKEN = (*NONSENSE, tarfile.TarError, zlib.error, EOFError, OSError, OverflowError, RecursionError, SafetensorError)
"""What reading a damaged archive raises."""
_RATIO, _ROOM, _MEMBERS = 16, 32 << 20, 1000
"""An archive may unpack to so many times its own bytes and so many more; of its files so many are looked at."""


def save(model: Model, dialect: Dialect, policy: str, version: int, folder: Path) -> Path:
    """Keeps a policy on its server, and writes where; with it the adapter in peft's format, if the server gives it.

    Raises:
        NotFiniteError: Its weights hold infinity or NaN.
        TinkerError: The server does not keep it. An adapter that it does not give, or not whole, is a warning.
    """
    name = f"{policy}-{version}-{secrets.token_hex(4)}"  # a name is given once
    kept: dict[str, Any] = {"server": model.server.url, "base": model.base, "state": model.save(name)}
    kept |= {"sampler": model.sampler(name), "version": version, "dialect": asdict(dialect), "downloaded": True}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        adapter, tensors, settings = _adapter(_archive(model.server, kept["sampler"], model.server.deadline()))
    except (ServerDown, ServerRefused, TinkerError) as error:
        kept |= {"downloaded": False, "why": str(error)}
        warnings.warn(f"The adapter of '{policy}' is on {model.server.url} alone: {error}", stacklevel=2)
    else:
        finite_weights.check(tensors, f"The weights of policy '{policy}'")
        # Some servers leave this out, and peft would then load two kinds of layers and drop the rest without a word.
        layers = sorted({key.split(".lora_")[0].rpartition(".")[2] for key in tensors})
        settings["target_modules"] = settings.get("target_modules") or layers
        (folder / WEIGHTS).write_bytes(adapter)
        (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    (folder / FILE).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return folder


def state(server: str, base: str, policy: str, folder: Path) -> str:
    """Returns the path of the weights that ``save`` has left on a server.

    Raises:
        ConfigError: None are there, or they are another server's or another base's.
    """
    advice = (
        "A server cannot be given weights from here. Train on from a checkpoint of a run with --tinker, or train here:"
        " leave out --tinker"
    )
    with reading(f"'{folder}' does not say where a server keeps '{policy}'", advice):
        kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
        found = {name: str(kept[name]) for name in ("server", "base", "state")}
    for name, here in (("server", server), ("base", base)):
        if found[name] != here:
            raise ConfigError(
                f"The weights of '{policy}' in '{folder}' are on {found['server']}, on the base '{found['base']}';"
                f" this run's {name} is '{here}'. Type: --tinker {found['server']} --models {found['base']}"
            )
    return found["state"]


def _archive(server: TinkerServer, path: str, until: float) -> bytes:
    """Returns the archive of a saved adapter, from its server or from an https address that this names.

    Raises:
        ServerDown: It does not come until then.
        ServerRefused: There is none, or at an address that nothing is taken from.
    """
    run, *rest = path.removeprefix("tinker://").split("/")
    refused = ServerRefused(404, f"{server.url} gives no archive of {path}")
    for name in dict.fromkeys(("/".join(rest), *rest[-1:])):  # with its kind, and as SkyRL wants it
        where = f"{V1}training_runs/{run}/checkpoints/{name}/archive"
        try:
            return server.get(where, until)
        except ServerRefused as error:
            refused = error
            if error.location:
                break
    try:
        parts = urlsplit(urljoin(server.url + where, refused.location))
    except ValueError:
        raise refused from None
    if not refused.location or (parts.scheme != "https" and parts[:2] != urlsplit(server.url)[:2]):
        raise refused
    path = parts._replace(scheme="", netloc="", fragment="").geturl()
    return server.get(path, until, f"{parts.scheme}://{parts.netloc}")


def _adapter(archive: bytes) -> tuple[bytes, dict[str, Tensor], dict[str, Any]]:
    """Returns an adapter's file, its tensors and its settings out of a tar, gzipped or not; the disk sees none of it.

    Raises:
        TinkerError: It is broken, cut or none, unpacks to far more than it is.
    """
    most = min(_ROOM + _RATIO * len(archive), ADAPTER_BYTES)
    try:
        zipped = archive[:2] == b"\x1f\x8b"
        plain = gzip.GzipFile(fileobj=io.BytesIO(archive)).read(most + 1) if zipped else archive
        if len(plain) > most:
            raise ValueError(f"more than {most} bytes unpacked")
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as tar:
            members = [m for m in itertools.islice(tar, _MEMBERS) if m.isreg() and not m.issparse()]
            found = {m.name.rpartition("/")[2]: cast(IO[bytes], tar.extractfile(m)) for m in members}
            adapter, told = found[WEIGHTS].read(), found[SETTINGS].read()
        tensors, settings = tensors_of(adapter), json.loads(told)
        if not tensors or not isinstance(settings, dict):
            raise ValueError("no adapter in it")
        return adapter, tensors, settings
    except _BROKEN as e:
        raise TinkerError(f"its archive of {len(archive)} bytes is broken ({type(e).__name__}: {e})") from e
