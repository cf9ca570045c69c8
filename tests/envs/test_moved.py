"""Modules that have moved: every way to import one by its old name gives the module itself, and one warning."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

INIT = """
from marft_envs.moved import moved

moved({"house.attic": "house.rooms.upper", "house.old_rooms": "house.rooms", "house.gone": "house.rooms.gone"})
"""
UPPER = """
class Box:
    pass

if __name__ == "__main__":
    print("started")
"""


@pytest.fixture()
def house(tmp_path: Path) -> Path:
    """A package in which ``attic`` became ``rooms.upper``, and the package ``old_rooms`` became ``rooms``."""
    rooms = tmp_path / "house" / "rooms"
    rooms.mkdir(parents=True)
    (rooms.parent / "__init__.py").write_text(INIT)
    (rooms / "__init__.py").write_text("")
    (rooms / "upper.py").write_text(UPPER)
    (rooms / "broken.py").write_text("import house.rooms.upper\nraise ValueError('not today')\n")
    return tmp_path


def run(house: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=house, capture_output=True, text=True)


@pytest.mark.parametrize(
    "statement",
    [
        "import house.attic; old = house.attic",
        "import house.attic as old",
        "from house import attic as old",
        "from house.attic import Box; import sys; old = sys.modules['house.attic']",
        "import importlib; old = importlib.import_module('house.attic')",
        "import house.old_rooms.upper as old",
        "from house.old_rooms import upper as old",
        "import pickle; Box = pickle.loads(b'chouse.attic\\nBox\\n.'); import sys; old = sys.modules[Box.__module__]",
    ],
)
@pytest.mark.parametrize("first", ["", "import house.rooms.upper\n"])
def test_the_module_itself_stands_under_its_old_name(house: Path, statement: str, first: str) -> None:
    done = run(
        house,
        "-c",
        f"{first}{statement}\nimport house.rooms.upper as new\n"
        "assert old is new and old.Box is new.Box, (old, new)\n"
        "assert new.__name__ == new.__spec__.name == 'house.rooms.upper' and new.__file__.endswith('upper.py')",
    )
    assert done.returncode == 0, done.stderr


def test_the_first_import_warns_and_names_the_line_and_the_new_name(house: Path) -> None:
    (house / "user.py").write_text(
        "import house\nfrom house.attic import Box\nimport house.attic\nimport house.attic\n"
    )
    done = run(house, "-W", "always::DeprecationWarning", "user.py")
    assert done.returncode == 0 and done.stderr.count("DeprecationWarning") == 1
    assert "user.py:2: DeprecationWarning: house.attic has moved: import house.rooms.upper." in done.stderr


def test_nothing_is_imported_and_nothing_said_before_an_old_name_is_asked_for(house: Path) -> None:
    done = run(house, "-W", "error", "-c", "import house, sys; assert 'house.rooms' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_a_moved_module_can_be_started(house: Path) -> None:
    done = run(house, "-W", "always::DeprecationWarning", "-m", "house.attic")
    assert done.stdout == "started\n" and "import house.rooms.upper" in done.stderr, done.stderr


def test_what_is_not_there_or_broken_under_the_new_name_is_so_under_the_old_one(house: Path) -> None:
    done = run(
        house,
        "-c",
        "import importlib\n"
        "for name in ('house.gone', 'house.old_rooms.cellar', 'house.other', 'house.old_rooms.broken'):\n"
        "    try: importlib.import_module(name)\n"
        "    except Exception as error: print(type(error).__name__, error)\n",
    )
    assert done.stdout.splitlines() == [
        "ModuleNotFoundError No module named 'house.gone'",
        "ModuleNotFoundError No module named 'house.old_rooms.cellar'",
        "ModuleNotFoundError No module named 'house.other'",
        "ValueError not today",
    ], done.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("codecs", "inward.codecs"),
        ("foreign", "inward.foreign"),
        ("load", "inward.load"),
        ("parallel", "inward.parallel"),
        ("gymnasium_env", "outward.gymnasium_env"),
        ("numeric", "outward.numeric"),
        ("parallel_play", "outward.parallel_play"),
        ("verl", "outward.verl"),
    ],
)
def test_adapters_go_by_their_old_names_for_one_release(old: str, new: str) -> None:
    sys.modules.pop(f"marft_envs.adapters.{old}", None)
    with pytest.warns(DeprecationWarning, match=f"import marft_envs.adapters.{new}"):
        module = importlib.import_module(f"marft_envs.adapters.{old}")
    assert module is importlib.import_module(f"marft_envs.adapters.{new}")


INSIDE = """
from marft_envs.moved import inside

__getattr__ = inside(__name__, {"Box": "upper"})
"""


def test_a_package_that_was_a_module_says_where_its_names_are(house: Path) -> None:
    (house / "house/rooms/__init__.py").write_text(INSIDE)
    code = (
        "import house.rooms\nfrom house.rooms import Box\nfrom house.rooms.upper import Box as same\n"
        "assert Box is same\n"
        "try:\n    house.rooms.Hat\nexcept AttributeError as error:\n    print(error)"
    )
    done = run(house, "-W", "always", "-c", code)
    assert done.stdout == "module 'house.rooms' has no attribute 'Hat'\n"
    assert "<string>:2: DeprecationWarning: house.rooms.Box has moved: import it from house.rooms.upper." in done.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("marft_algos.algorithm:Algorithm", "marft_algos.algorithms.base"),
        ("marft_algos.algos.grpo:GRPO", "marft_algos.algorithms.grpo"),
        ("marft_algos.estimate:estimate", "marft_algos.training.estimate"),
        ("marft_algos.loggers:Display", "marft_algos.runs.loggers"),
        ("marft_algos.modeling:load_base", "marft_algos.models.loading"),
        ("marft_algos.policy:PolicySet", "marft_algos.models.policy"),
        ("marft_algos.presets:get", "marft_algos.config.presets"),
        ("marft_algos.resolve:resolve", "marft_algos.training.resolve"),
        ("marft_algos.config:build", "marft_algos.config.settings"),
        ("marft_algos.rollout:Collector", "marft_algos.rollout.collector"),
        ("marft_algos.runs:RunFolder", "marft_algos.runs.folder"),
    ],
)
def test_names_of_the_trainer_that_documents_gave_work_for_one_release(old: str, new: str) -> None:
    pytest.importorskip("torch", reason="training is not installed")
    module, _, name = old.partition(":")
    if not new.startswith(f"{module}."):
        sys.modules.pop(module, None)  # as if it were imported for the first time
    with pytest.warns(DeprecationWarning, match=new.replace(".", r"\.")):
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(importlib.import_module(new), name)
