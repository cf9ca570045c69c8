"""The archive in which a Tinker server gives an adapter: where it is taken from, and what it may be."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.tinker_server import TinkerServer as Fake
from helpers.tinker_server import serving
from marft_algos.config.endpoints import tinker
from marft_algos.extras.tinker import saved
from marft_algos.extras.tinker.client import Model, TinkerServer
from marft_algos.extras.tinker.dialect import Dialect
from marft_algos.models.loading import load_chat


def keep(server: Fake, folder: Path) -> dict[str, Any]:
    """What tinker.json says after a policy was saved."""
    endpoint = tinker({"url": server.url, "timeout": 2})
    assert endpoint is not None
    model = Model(TinkerServer(endpoint, pause=0.05), server.base, load_chat(server.base).vocabulary, 4, 0)
    saved.save(model, Dialect("sum", True, True, True, 0.0, True), "p", 0, folder)
    kept: dict[str, Any] = json.loads((folder / saved.FILE).read_text())
    return kept


def tar(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def sparse() -> bytes:
    """A file that says it is 64 GiB of nothing."""
    member = tarfile.TarInfo("a/adapter_model.safetensors")
    member.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.map": "0,0", "GNU.sparse.size": str(64 << 30)}
    return member.tobuf(tarfile.PAX_FORMAT) + tar({"adapter_config.json": b"{}"}, "w:")


EMPTY_TENSORS = (2).to_bytes(8, "little") + b"{}"
BROKEN: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"", "garbage": lambda: bytes(range(7, 256)) * 9,
    "html": lambda: b"<html><body>Sign in</body></html>", "another": lambda: tar({"README": b"x"}),
    "no tensors": lambda: tar({"adapter_model.safetensors": EMPTY_TENSORS, "adapter_config.json": b"{}"}),
    "no safetensors": lambda: tar({"adapter_model.safetensors": b"PK", "adapter_config.json": b"{}"}),
    "many": lambda: tar({str(i): b"" for i in range(1001)}), "bomb": lambda: gzip.compress(bytes(400 << 20), 1),
    "bomb of a header": lambda: gzip.compress(b"x" * 257 + b"ustar\x0000" + bytes(200 << 20), 1), "sparse": sparse,
}  # fmt: skip
"""Made when asked for: every process of the suite reads this file."""


@pytest.mark.parametrize("kind", [*BROKEN, "cut", "cut plain", "settings"])
def test_an_archive_that_is_none_is_a_warning(kind: str, server: Fake, tmp_path: Path) -> None:
    whole, broken = server._archive, BROKEN[kind]() if kind in BROKEN else None

    def archive(key: str) -> bytes:
        data = whole(key)
        if kind == "settings":
            with tarfile.open(fileobj=io.BytesIO(data)) as found:
                files = {m.name: found.extractfile(m).read() for m in found if m.isfile()}  # type: ignore[union-attr]
            return tar({name: b"[]" if name.endswith(".json") else data for name, data in files.items()})
        cut = {"cut": data[: len(data) // 2], "cut plain": gzip.decompress(data)[:2000]}
        return cut[kind] if broken is None else broken

    server._archive = archive  # type: ignore[method-assign]
    began = time.monotonic()
    with pytest.warns(
        UserWarning, match=r"adapter of 'p' is on http://127.* alone: its archive of \d+ bytes is broken"
    ):
        kept = keep(server, tmp_path / "p")
    assert time.monotonic() - began < 2 and not kept["downloaded"] and "is broken" in kept["why"]
    assert [file.name for file in (tmp_path / "p").iterdir()] == [saved.FILE]


@pytest.mark.parametrize(("location", "taken"), [
    ("SERVER/api/v1/files/RUN/NAME", True), ("/api/v1/files/RUN/NAME", True), ("../../../../../files/RUN/NAME", True),
    ("//127.0.0.1:PORT/api/v1/files/RUN/NAME", True), ("OTHER/api/v1/files/RUN/NAME", False),
    ("http://169.254.169.254/latest", False), ("ftp://127.0.0.1/x", False), ("file:///etc/passwd", False),
    ("http://[x/", False), ("https://127.0.0.1:THEIRS/x", False),
    ("SERVER/api/v1/training_runs/RUN/checkpoints/NAME/archive", False),
])  # fmt: skip
def test_an_archive_comes_from_its_server_or_over_https(
    location: str, taken: bool, server: Fake, tmp_path: Path
) -> None:
    right, port, began = server._answer, server.url.rpartition(":")[2], time.monotonic()
    with serving() as other:

        def answer(path: str, body: dict[str, Any]) -> Any:
            if not path.endswith("/archive"):
                return right(path, body)
            words = {"SERVER": server.url, "PORT": port, "OTHER": other.url, "THEIRS": other.url.rpartition(":")[2]}
            words |= {"RUN": path.split("/")[1], "NAME": path.split("/")[-2]}
            there = location
            for word, meant in words.items():
                there = there.replace(word, meant)
            return {"Location": there}

        server._answer = answer  # type: ignore[method-assign]
        if taken:
            assert keep(server, tmp_path / "p")["downloaded"]
        else:
            with pytest.warns(UserWarning, match="adapter of 'p' is on"):
                kept = keep(server, tmp_path / "p")
            assert not kept["downloaded"] and "://:" not in kept["why"]
        assert not other.asked and time.monotonic() - began < 4
