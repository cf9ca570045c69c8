"""Which problems are in a set that is made here is kept on disk, and nothing that happens to the file changes a set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from marft_envs.families.code import procedural as code
from marft_envs.families.math import procedural as math
from marft_envs.families.tools.depot import domain, tasks
from marft_envs.problems import stored

Deal = Callable[[], Sequence[Any]]
DEALS: dict[str, tuple[Deal, str, str]] = {
    "math": (lambda: math.SET._deal("test", (0, 2)), "math.procedural.2", "bef349db458d6962"),
    "code": (lambda: code.SET._deal("test", (1,)), "code.procedural.1", "e269a06c78c88d82"),
    "depot": (
        lambda: domain._problems.__wrapped__("train", (0,), True, None),
        "tools.depot.tasks.0",
        "b05d3230d5bbc810",
    ),
}
"""Name -> what deals a set anew, its file, and the hash of its ids, which never changes."""


@pytest.fixture(params=DEALS)
def deal(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Deal, Path, str]:
    """A set's deal, its file in an empty folder, and the hash of its ids."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made, name, digest = DEALS[request.param]
    return made, tmp_path / "cache" / "marft" / "problems" / f"marft_envs.families.{name}", digest


def test_a_set_is_the_same_fresh_cached_damaged_and_without_a_folder(
    deal: tuple[Deal, Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, path, digest = deal
    fresh = list(made())
    assert hashlib.sha256(json.dumps([p.id for p in fresh]).encode()).hexdigest()[:16] == digest
    content = path.read_bytes()
    assert list(path.parent.iterdir()) and not [left for left in path.parent.iterdir() if left.name.startswith(".")]
    other = content.replace(b"[", b"[4294967295,", 2)
    damages = (b"", b"\xff\n[]", content[:-40], content.split(b"\n")[1], other, b"\n".join([b"0" * 64, b"[]"]))
    for damage in damages if "depot" in path.name else damages[4:5]:  # one reader for all sets
        path.write_bytes(damage)
        assert list(made()) == fresh and path.read_bytes() == content, "written anew"
    with monkeypatch.context() as patched:
        patched.setattr(stored, "_code", lambda: "other code")
        assert list(made()) == fresh and path.read_bytes() != content
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert list(made()) == fresh, "no folder can be made there"


def test_what_is_known_is_not_found_out_again(deal: tuple[Deal, Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = deal[0]
    fresh = list(made())

    def never(*_: Any) -> Any:
        raise AssertionError("found out again")

    for module, name in ((math.SET, "_listed"), (code.SET, "_listed"), (tasks, "listed")):
        monkeypatch.setattr(module, name, never)
    again = made()
    assert list(again) == fresh and again[-1] is again[-1] and list(again[3:9:2]) == fresh[3:9:2]


def test_a_home_that_nobody_knows_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", unknown)
    assert stored.stored("nothing", lambda: {"train": [3]}) == {"train": [3]}
